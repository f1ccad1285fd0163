"""Each right of the operator: whatever its first request by that right is answered, it starts, and work ends right.

The rights come from the table that the chart is tested against, so a new right is tested as soon as it is there.
A request without an answer is given up after 15 s, and then is as one whose connection was cut. With a stall of each,
the same work takes seven minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import pytest
from api_calls import Match
from chart.rights import (
    OPERATOR,
    OPERATOR_AT_HOME,
    OPERATOR_AT_HOME_BY_NAME,
    OPERATOR_BY_NAME,
    OPERATOR_EVERYWHERE,
    OPERATOR_IN_DEFAULT,
    OPERATOR_THAT_DELETES,
    OPERATOR_THAT_DELETES_BY_NAME,
    NamedRights,
    Rights,
)
from cluster_tools import SANDBOX, SYSTEM, an_approval
from component_stage import LIMITS, Stage, in_thread
from component_stage import OPERATOR as NAME
from faults import Answer, Cut, Fault

from executor_client import ClusterRef, CodeExecutionClient, PreparedBlock, Request

PERMIT: Final = {"cidr": "203.0.113.7/32", "port": 443, "protocol": "TCP"}
HELLO: Final = "hello\n"
Asking: TypeAlias = Callable[..., Request]
CLEANING: Final = {
    "delete codeexecutions",
    "delete codesessions",
    "delete configmaps",
    "delete leases",
    "get configmaps/codeexec-export",
    "get leases",
}
"""Rights by which old objects go, hours later: a look that fails is made up for by the next one."""


def matches() -> Iterator[Match]:
    """A match for each right."""
    yield from _of(OPERATOR | OPERATOR_THAT_DELETES, SANDBOX)
    yield from _of_names(OPERATOR_BY_NAME | OPERATOR_THAT_DELETES_BY_NAME, SANDBOX)
    yield from _of(OPERATOR_AT_HOME, SYSTEM)
    yield from _of_names(OPERATOR_AT_HOME_BY_NAME, SYSTEM)
    yield from _of(OPERATOR_IN_DEFAULT, "default")
    yield from _of(OPERATOR_EVERYWHERE, "")


def _of(rights: Rights, namespace: str) -> Iterator[Match]:
    for (_, resource), verbs in rights.items():
        plural, _, subresource = resource.partition("/")
        for verb in {"connect"} if subresource == "attach" else verbs:
            yield Match(verb, plural, subresource=subresource, namespace=namespace)


def _of_names(rights: NamedRights, namespace: str) -> Iterator[Match]:
    for (_, plural, name), verbs in rights.items():
        for verb in verbs:
            yield Match(verb, plural, name=name if verb in ("get", "patch") else "", namespace=namespace)


def words_of(match: Match) -> str:
    """The right as a person reads it."""
    what = "/".join(filter(None, (match.resource, match.subresource, match.name)))
    return f"{match.verb} {what}" + (f" in {match.namespace}" if match.namespace not in ("", SANDBOX) else "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage where the operator has all its rights, and uses them."""
    values = {"defaultPool": {"enabled": True, "replicas": 1, "limits": LIMITS}}
    with Stage(tmp_path_factory.mktemp("whole"), values=values) as stage:
        yield stage


@pytest.fixture
async def caller(whole: Stage) -> AsyncIterator[CodeExecutionClient]:
    client = CodeExecutionClient(ClusterRef(kubeconfig=whole.agent_kubeconfig(), namespace=SANDBOX))
    yield client
    await client.close()


def block(code: str, language: str = "python") -> tuple[PreparedBlock, ...]:
    return (PreparedBlock(language, code.encode()),)


async def all_kinds_of_work(stage: Stage, client: CodeExecutionClient, asking: Asking) -> None:
    """Work for which the operator needs its rights; each piece ends right."""

    async def approved() -> str:
        waiting = asyncio.create_task(client.execute(block("print('hello')", "bash"), asking()))
        asked = lambda records: [one for one in records if _awaits(one, asking().agent)]  # noqa: E731
        [record, *_] = asked(await in_thread(stage.admin.wait_until_all, "a request", "cex", asked))
        await in_thread(stage.admin.apply, an_approval(record, stage.admin.me))
        return (await waiting).output

    async def in_session() -> str:
        async with await client.open_session(asking(), wait=True) as session:
            return (await session.execute(block("print('hello')"))).output

    ready = lambda pool: pool.get("status", {}).get("readyReplicas", 0) == 1  # noqa: E731
    await in_thread(stage.admin.wait_until, "a ready pod", "sandboxpool", "default", ready, 200)
    filled = await client.execute(block("fill(600_000)"), asking())
    assert filled.exit_code == 0
    assert len(filled.output) >= 600_000
    large = block(f"print('hello')  # {'x' * 950_000}")
    assert (await client.execute(large, asking(egress=("203.0.113.7/32:443",)))).output == HELLO
    assert await in_session() == HELLO
    assert await approved() == HELLO


def _awaits(record: dict[str, Any], agent: str) -> bool:
    return record["spec"]["source"]["agent"] == agent and record.get("status", {}).get("phase") == "AwaitingApproval"


@pytest.mark.parametrize("fault", [Answer(503), Cut()], ids=str)
async def test_the_operator_starts_and_work_ends_right(
    whole: Stage, caller: CodeExecutionClient, agent: str, asking: Asking, stack: ExitStack, fault: Fault
) -> None:
    before = (("lease", NAME, SYSTEM), ("sandboxpool", "default", SANDBOX), ("executionpolicy", "default", SANDBOX))
    for made in filter(lambda one: whole.admin.exists(*one), before):
        whole.admin.delete(*made, wait=True)
    whole.admin.patch("secret", "codeexec-sealing", {"data": None}, SYSTEM)
    policy = {"languages": ["python"], "withApproval": {"languages": ["bash"]}, "egress": [PERMIT]}
    whole.admin.apply(whole.a_policy(**policy))
    faults = {words_of(match): stack.enter_context(whole.proxy.fault(match, fault, times=1)) for match in matches()}
    operator = whole.operator()
    stack.callback(operator.end)
    operator.start(leads=False)
    await all_kinds_of_work(whole, caller, asking)
    assert faults.keys() > CLEANING
    for right in faults.keys() - CLEANING:
        await faults[right].hit(seconds=60)
    assert operator.running
    for record in whole.records(agent=agent):
        whole.ran_once(record)
