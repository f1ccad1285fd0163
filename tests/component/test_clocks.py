"""Clocks that are wrong by five minutes: that of the operator, of the nodes, or of the API server.

The clock of the API server stays as it is, because programs in Go ask the kernel for the time. If it is ahead, operator
and nodes are behind. So each row says how far these two are ahead of it.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from component_stage import in_thread

from codeexec_api import CodeExecution, Phase
from codeexec_api.names import EXECUTION_LABEL
from executor_client import Limits, PreparedBlock

LASTING = 300
"""Seconds of a Lease that nobody is to take."""
ROUNDED = timedelta(seconds=1)
"""Some times in a record are in whole seconds."""
HELLO = 'print("hello")'
OF_POOL = {"cpu": "100m", "memory": "128Mi"}
"""Limits that no pod outside of the pool has."""


@dataclass(frozen=True)
class Clocks:
    """By how many seconds they are ahead of that of the API server."""

    operator: int
    nodes: int

    def __str__(self) -> str:
        return f"operator{self.operator:+d}s-nodes{self.nodes:+d}s"


CLOCKS = (
    Clocks(0, 300),
    Clocks(0, -300),
    Clocks(300, 300),  # the API server is five minutes behind
    Clocks(-300, -300),  # the API server is five minutes ahead
    Clocks(300, -300),
    Clocks(-300, 300),
)


@pytest.fixture
async def started(nobody_leads, stage, clocks):
    """An operator, and nodes, with these clocks."""
    operator = stage.operator(clock=f"{clocks.operator:+d}s", lease_seconds=LASTING, timing={"grace": 30})
    with stage.nodes.clocks_ahead(clocks.nodes):
        await in_thread(operator.start)
        yield operator
        await in_thread(operator.end)


def python(*lines: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", "\n".join(lines).encode()),)


class Watched:
    """What was seen of executions by the clock of the operator."""

    def __init__(self, client, clocks: Clocks) -> None:
        self._client, self._ahead = client, timedelta(seconds=clocks.operator)
        self._begun = self._now()

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    async def record(self, name: str) -> CodeExecution:
        """A record that is over: all its times are by the clock of the operator, and in order."""
        record = await self._client.get(name)
        status = record.status
        blocks = [(one.started_at, one.started_at + timedelta(milliseconds=one.duration_ms)) for one in status.blocks]
        moments = [self._begun, status.started_at, *(edge for block in blocks for edge in block), status.finished_at]
        moments.append(self._now())
        assert all(one <= other + ROUNDED for one, other in pairwise(moments)), moments
        assert status.started_at <= status.finished_at
        for one in status.conditions:
            assert self._begun - ROUNDED <= one.last_transition_time <= status.finished_at + ROUNDED, one
        took = (status.finished_at - status.started_at).total_seconds()
        assert status.summary.duration == f"{took:.2f}s"
        assert 0 <= sum(one.duration_ms for one in status.blocks) / 1000 <= took + 0.01
        return record


async def alone(watched, client, asking) -> None:
    """In a pod of its own."""
    result = await client.execute(python(HELLO), asking())
    assert (result.exit_code, result.output) == (0, "hello\n")
    assert (await watched.record(result.name)).status.phase is Phase.SUCCEEDED


async def too_long(watched, client, asking) -> None:
    """More than its time, and not a moment earlier."""
    result = await client.execute(python('print("so far")', 'wait("never")'), asking(timeout_seconds=1))
    assert (result.exit_code, result.stdout) == (124, "so far\n")
    status = (await watched.record(result.name)).status
    assert status.phase is Phase.TIMED_OUT
    assert status.blocks[0].duration_ms >= 1000


async def in_a_session(watched, stage, client, asking, gate) -> None:
    """Two calls; the output of the second comes while its code runs."""
    session = await client.open_session(asking(), wait=True)
    first = await session.execute(python(HELLO))
    lines = python('print("now")', f'wait("{gate}")')
    async with asyncio.timeout(100):
        second = await session.execute(lines, on_output=lambda _: stage.script.open(gate))
    assert [first.output, second.output] == ["hello\n", "now\n"]
    for one in (first, second):
        await watched.record(one.name)
    await session.end()
    over = lambda record: "endedAt" in record["status"]  # noqa: E731
    ended = await in_thread(stage.admin.wait_until, "its end", "codesession", session.name, over)
    moments = [datetime.fromisoformat(ended["status"][one]) for one in ("startedAt", "lastUsedAt", "endedAt")]
    assert moments == sorted(moments)
    assert ended["status"]["reason"] == "EndRequested"


async def from_a_pool(watched, stage, client, asking, pool, agent) -> None:
    """A ready pod, whose deadline leaves the code its time by the clock of its node."""
    gate = f"{agent}-pool"
    running = asyncio.create_task(client.execute(python(f'wait("{gate}")', HELLO), asking(limits=Limits(**OF_POOL))))
    await stage.script.reached(gate, running)
    [pod] = [one["podName"] for one in statuses(stage, agent) if one.get("poolName") == pool.name]
    its_own = lambda one: EXECUTION_LABEL in one["metadata"]["labels"]  # noqa: E731
    found = await in_thread(stage.admin.wait_until, "the pod to be its own", "pod", pod, its_own)
    age = stage.script.time() - datetime.fromisoformat(found["status"]["startTime"]).timestamp()
    assert 0 <= age < found["spec"]["activeDeadlineSeconds"] - 600
    stage.script.open(gate)
    result = await running
    assert result.output == "hello\n"
    status = (await watched.record(result.name)).status
    assert (status.pool_name, status.pod_name) == (pool.name, pod)


def statuses(stage, agent):
    return [one.get("status", {}) for one in stage.records(agent=agent)]


@pytest.mark.parametrize("clocks", CLOCKS, ids=str)
async def test_all_goes_as_with_clocks_that_are_right(started, stage, client, asking, agent, make_pool, clocks):
    watched = Watched(client, clocks)
    pool = await make_pool(1, limits=OF_POOL)
    assert 0 <= pool.status()["lastRefillMs"] < 60_000
    await asyncio.gather(
        alone(watched, client, asking),
        too_long(watched, client, asking),
        in_a_session(watched, stage, client, asking, f"{agent}-session"),
        from_a_pool(watched, stage, client, asking, pool, agent),
    )
    for record in stage.records(agent=agent):
        stage.ran_once(record)
