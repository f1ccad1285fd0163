"""The same cases with AutoGen's Local and Docker executors and with ours; see `suite.py`."""

import pytest
from parity.case import Case
from parity.cases import timing
from parity.lanes import Lanes
from parity.plugin import SEEN
from parity.suite import PARTIES, all_cases

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # AutoGen's Docker executor never closes its connections to the daemon.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Using LocalCommandLineCodeExecutor"),
    pytest.mark.filterwarnings("ignore:Restarting local command line code executor"),
    pytest.mark.filterwarnings("ignore:No approval function set"),
]


def _marked(case: Case) -> object:
    """Cases about time and cancellation were flaky once."""
    about_time = any(case in group.cases for group in timing.GROUPS) or "cancelled" in case.id
    return pytest.param(case, marks=pytest.mark.suspect) if about_time else case


@pytest.mark.parametrize("case", list(map(_marked, all_cases())), ids=lambda case: case.id)
async def test_each_gives_what_is_written(case: Case, lanes: Lanes, peers: list[str], request: pytest.FixtureRequest):
    """Ours as AutoGen's Docker executor, but for differences with a reason."""
    found = await lanes.outcome(case)
    request.node.stash[SEEN] = dict.fromkeys(PARTIES) | found
    assert found == {party: case.expected(party) for party in found}
    if peers and "Docker" not in found:
        pytest.skip("Docker's executor was not run, for want of a Docker daemon; the other two gave what they should")
