"""For each verb that the operator uses: whatever a call is answered, its execution ends right or says what happened."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from api_calls import Match
from component_stage import in_thread
from faults import Answer, Cut, Delay, Fault, Lose, Stall

from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_operator.core import backoff
from executor_client import PreparedBlock

REFUSED = Answer(403, message="not today")
QUICK: tuple[Fault, ...] = (
    REFUSED,
    *(Answer(status) for status in (409, 410, 500, 502, 503, 504)),
    Answer(429, retry_after=1),
    Delay(1),
    Cut(),
    Lose("cut"),
    Lose("504"),
)
SLOW: tuple[Fault, ...] = (Stall(), Lose("stall"))
"""The operator waits for 15 s then."""
SUCCEEDED = ("Succeeded", "Completed")
PERMIT = {"cidr": "203.0.113.7/32", "port": 443, "protocol": "TCP"}


@dataclass(frozen=True)
class Row:
    """A verb, and an execution on whose way it is."""

    match: Match
    code: str = "print('hello')"
    asks: Mapping[str, Any] = field(default_factory=dict)
    forbidden: tuple[str, str | None] = SUCCEEDED
    """Phase and reason of the record after one answer of 403."""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.match.verb, self.match.resource, self.match.subresource)))


def not_before_the_hand_over(call) -> bool:
    """What follows a fault of that write is in test_operator_faults.py."""
    return call.phase != "Running"


LARGE = f"print('hello')  # {'x' * 600_000}"
ROWS = (
    Row(Match("create", "pods"), forbidden=("Failed", "PodRefused")),
    Row(Match("connect", "pods", subresource="attach")),
    Row(Match("delete", "pods")),
    Row(Match("patch", EXECUTION_PLURAL, subresource="status", where=not_before_the_hand_over)),
    Row(Match("get", "secrets"), code=LARGE),
    Row(Match("delete", "secrets"), code=LARGE),
    Row(Match("create", "configmaps"), code="fill(600_000)"),
    Row(
        Match("create", "networkpolicies"),
        asks={"egress": ("203.0.113.7/32:443",)},
        forbidden=("Failed", "EgressNotEnforced"),
    ),
    Row(Match("delete", "networkpolicies"), asks={"egress": ("203.0.113.7/32:443",)}),
)


@pytest.fixture
def way_out(stage, operator):
    """A policy that lets code out to where the rows ask for."""
    stage.put_policy(egress=[PERMIT])
    yield
    stage.drop_policy()


def endings(stage, agent) -> Counter:
    """How often each phase with its reason is the end of an execution of this agent. Who ran has run once."""
    records = stage.records(agent=agent)
    for record in records:
        check = (
            stage.never_ran if record["status"].get("reason") in ("PodRefused", "EgressNotEnforced") else stage.ran_once
        )
        check(record)
    return Counter((record["status"]["phase"], record["status"].get("reason")) for record in records)


async def run(client, asking, row: Row, times: int) -> None:
    blocks = (PreparedBlock("python", row.code.encode()),)
    submitted = await asyncio.gather(*(client.submit(blocks, asking(**row.asks)) for _ in range(times)))
    await asyncio.gather(*(execution.finished() for execution in submitted))


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_an_execution_ends_right_or_says_what_happened(
    operator, stage, client, asking, agent, stack: ExitStack, way_out, row
):
    rules = [stack.enter_context(stage.proxy.fault(row.match, fault, times=1)) for fault in QUICK]
    await run(client, asking, row, len(QUICK))
    for rule in rules:
        await rule.hit()
    assert endings(stage, agent) == Counter({SUCCEEDED: len(QUICK) - 1}) + Counter([row.forbidden])


async def test_calls_that_are_never_answered_are_given_up_and_made_again(
    operator, stage, client, asking, agent, stack: ExitStack, way_out
):
    """All verbs at the same time, because each of these takes as long as the operator waits for an answer."""
    rules = [stack.enter_context(stage.proxy.fault(row.match, fault, times=1)) for row in ROWS for fault in SLOW]
    await asyncio.gather(*(run(client, asking, row, len(SLOW)) for row in ROWS))
    for rule in rules:
        await rule.hit()
    assert endings(stage, agent) == {SUCCEEDED: len(ROWS) * len(SLOW)}


@pytest.mark.parametrize("fault", [REFUSED, Answer(409), Answer(503), Cut(), Lose("504"), Stall()], ids=str)
async def test_a_session_goes_on_whatever_a_write_of_its_status_is_answered(operator, stage, client, asking, fault):
    status = Match("patch", SESSION_PLURAL, subresource="status")
    with stage.proxy.fault(status, fault, times=1) as rule:
        async with await client.open_session(asking(), wait=True) as session:
            block = PreparedBlock("python", b"print('hello')")
            assert (await session.execute((block,))).output == "hello\n"
        await rule.hit()


@pytest.mark.parametrize("fault", [Answer(503), Answer(409), Cut()], ids=str)
async def test_tries_are_bounded_by_the_back_off_and_not_by_the_clock(operator, stage, client, asking, agent, fault):
    """A conflict is tried again at once, but only the first."""
    create, objects, tries = Match("create", "pods"), 10, 7
    with stage.proxy.fault(create, fault) as rule:
        submitted = [await client.submit((PreparedBlock("python", b"print(1)"),), asking()) for _ in range(objects)]
        await rule.hit(objects * tries)
    for execution in submitted:
        await execution.finished()
    assert endings(stage, agent) == {SUCCEEDED: objects}
    names = {record["status"]["podName"] for record in stage.records(agent=agent)}
    for name in names:
        calls = [one for one in stage.proxy.seen(create) if one.call.sent["metadata"]["name"] == name]
        gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(calls)]
        least = [backoff.pause(failures, 0, getattr(fault, "status", None)) for failures in range(1, len(calls))]
        assert all(gap >= pause for gap, pause in zip(gaps, least, strict=True)), (gaps, least)


async def test_an_outage_is_told_in_one_line_for_each_object(operator, stage, client, asking, agent):
    before = await in_thread(operator.log.read_text)
    with stage.proxy.fault(Match("create", "pods"), Answer(503)) as rule:
        waiting = asyncio.create_task(client.execute((PreparedBlock("python", b"print(1)"),), asking()))
        await rule.hit(5)
    await waiting
    [record] = stage.records(agent=agent)
    said = (await in_thread(operator.log.read_text)).removeprefix(before).splitlines()
    own = [line for line in said if record["metadata"]["name"] in line]
    assert sum("the API server answered 503" in line for line in own) == 1
    assert sum("failed tries in" in line for line in own) == 1
    # After the outage, the record says in its own words what the pod still lacks.
    phases = [line for line in own if '"event":"StatusWrite"' in line and "(PodStarting)" not in line]
    assert len(phases) == len({line.split('"phase":"')[1].split('"')[0] for line in phases}), "one for each phase"
