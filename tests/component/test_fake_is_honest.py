"""`FakeCluster` does as an operator on simulated nodes does, for two faults that nobody causes on kind.

`tests/e2e/test_fake_is_honest.py` plays all other cases.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_tools import SANDBOX
from component_stage import Stage
from fake_cases import FakeStage, blocks, visible, visible_error, visible_record, visible_session
from operator_process import OperatorProcess

from executor_client import CodeExecutionClient, Request
from executor_client.client import execution
from executor_client.testing import FakeOutcome

CODE = blocks(("python", 'print("ran")'))
RAN = {'print("ran")': FakeOutcome(stdout="ran\n")}


@pytest.fixture
def open_network(stage: Stage) -> Iterator[None]:
    stage.script.network_open = True
    yield
    stage.script.network_open = False


async def refused(client: CodeExecutionClient, request: Request) -> Any:
    """The error and the record of an execution, then the same of a session: neither of them starts."""
    errors = (
        await visible_error(client.execute(CODE, request)),
        await visible_error(client.open_session(request, wait=True)),
    )
    [record] = [one for one in await client.list_executions() if one.spec.source.agent == request.agent]
    [session] = [one for one in await client.list_sessions() if one.spec.source.agent == request.agent]
    return without_targets((errors, visible_record(record), visible_session(session)))


def without_targets(seen: Any) -> Any:
    """The same, if each text names one target and no address of a cluster."""
    return ast.literal_eval(re.sub(r"[a-z-]+ [0-9.]+:[0-9]+/TCP(, [a-z-]+ [0-9.]+:[0-9]+/TCP)*", "TARGETS", repr(seen)))


@pytest.mark.usefixtures("operator")
async def test_an_open_network_is_refused(
    client: CodeExecutionClient, asking: Callable[..., Request], open_network: None
) -> None:
    played = FakeStage(RAN, namespace=SANDBOX)
    played.fake.open_network()
    on_the_fake, on_the_cluster = await refused(played.client, asking()), await refused(client, asking())
    assert on_the_fake == on_the_cluster
    assert "EgressNotEnforced" in on_the_cluster[0][0][1]


async def test_an_open_network_that_the_policy_accepts_is_recorded(
    client: CodeExecutionClient,
    asking: Callable[..., Request],
    policy: Callable[..., None],
    operator: OperatorProcess,
    open_network: None,
) -> None:
    policy(egressProof="Warn")
    played = FakeStage(RAN, {"egressProof": "Warn"}, SANDBOX)
    played.fake.open_network()

    async def ran(client: CodeExecutionClient) -> Any:
        result = await client.execute(CODE, asking())
        return visible(result), visible_record(await client.get(result.name))

    on_the_fake, on_the_cluster = await ran(played.client), await ran(client)
    assert on_the_fake == on_the_cluster
    assert on_the_cluster[1]["egress"] == "Open"


@pytest.mark.usefixtures("nobody_leads")
async def test_an_operator_that_is_away_takes_nothing_up(
    client: CodeExecutionClient, asking: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "OPERATOR_SECONDS", 0.1)
    played = FakeStage(RAN, namespace=SANDBOX)
    played.fake.stop_operator()

    async def waited(client: CodeExecutionClient, request: Request) -> Any:
        error = await visible_error(client.execute(CODE, request))
        [record] = [one for one in await client.list_executions() if one.spec.source.agent == request.agent]
        return error, visible_record(record)

    on_the_fake, on_the_cluster = await waited(played.client, asking()), await waited(client, asking())
    assert on_the_fake == on_the_cluster
    assert on_the_cluster[0][0] == "NotInstalled"
