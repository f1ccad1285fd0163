"""The same cases with AutoGen's Local and Docker executors and with ours; see `suite.py`."""

import asyncio

import pytest
from parity.case import Case
from parity.page import NOT_RUN
from parity.parties import Party
from parity.plugin import NAME
from parity.suite import PARTIES, all_cases

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    # AutoGen's Docker executor never closes its connections to the daemon.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Using LocalCommandLineCodeExecutor"),
    pytest.mark.filterwarnings("ignore:Restarting local command line code executor"),
    pytest.mark.filterwarnings("ignore:No approval function set"),
]


async def _seen_by(party: Party, case: Case):
    try:
        return await case.run(party)
    finally:
        await party.tidy()


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
async def test_each_gives_what_is_written(case: Case, parties: list[Party], request: pytest.FixtureRequest):
    """Ours as AutoGen's Docker executor, but for differences with a reason."""
    found = await asyncio.gather(*(_seen_by(party, case) for party in parties))
    seen = dict.fromkeys(PARTIES) | {party.name: one for party, one in zip(parties, found, strict=True)}
    request.config.pluginmanager.get_plugin(NAME).note(case, seen)
    expected = {party: case.expected(party) for party, one in seen.items() if one is not None}
    assert {party: one for party, one in seen.items() if one is not None} == expected
    if seen["Docker"] is None:
        pytest.skip(f"Docker's executor {NOT_RUN}; the other two gave what they should")
