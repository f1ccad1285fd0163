"""Measures calls on the cluster for `codeexec doctor --capacity --measure`: what each kind takes, in time and CPU.

Kinds are calls with a pod from a pool, calls in a session and calls with a pod of their own. Each is made N times one
after the other, and N times by several callers at once. Where the kubelets' figures can be read, what the nodes used
more than at rest is divided by the calls.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from codeexec_api import Phase, SandboxPool
from codeexec_api.names import GROUP, POOL_PLURAL
from codeexec_api.quantities import parse_quantity
from executor_client.cli.capacity_reader import CapacityReader
from executor_client.cli.diagnosis import Right
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import Request
from executor_client.exceptions import CodeExecError, NotPermitted
from executor_client.model.blocks import PreparedBlock, SourceBlock, prepare
from executor_client.model.results import ExecutionResult
from executor_client.runtime.asyncio_tasks import together

POOL, SESSION, OWN_POD = "pool", "session", "own pod"
_CODE: Final = "print(1)"
_FRESH_SECONDS: Final = 60
"""How long to wait for new figures of the kubelets, which measure every ten seconds or so."""
_REST_SECONDS: Final = 15
_FULL_SECONDS: Final = 120
_MOST_NODES: Final = 50
"""More nodes are not asked for their CPU: one call would be lost in what else they do."""

Call = Callable[[], Awaitable[ExecutionResult]]
Sample = Mapping[str, tuple[float, float]]
"""By node: when it was measured, by its clock, and the seconds of CPU until then."""


@dataclass(frozen=True)
class Measured:
    """What came of one kind of call."""

    kind: str
    calls: int
    """Of each of the two rounds: one after the other, and by several callers."""
    p50_s: float
    p95_s: float
    per_second: float
    """Calls that ended in a second, with several callers. For calls with pods of their own, also pods."""
    cpu_s: float | None = None
    """CPU of all nodes for one call; None if it was not measured."""


@dataclass
class Measurement:
    """The results, and what could not be measured and why."""

    callers: int
    results: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def cores(before: Sample, after: Sample) -> dict[str, float]:
    """What each node used between two samples."""
    return {node: (after[node][1] - cpu) / (after[node][0] - at) for node, (at, cpu) in before.items()}


def cpu_each(before: Sample, after: Sample, at_rest: Mapping[str, float], calls: int) -> float:
    """CPU seconds of one call: what all nodes used between two samples, without what they use at rest."""
    used = sum(after[node][1] - cpu - at_rest[node] * (after[node][0] - at) for node, (at, cpu) in before.items())
    return max(0.0, used) / calls


class CpuMeter:
    """What the nodes use, as their kubelets tell.

    Args:
        ask: for the figures of one node, or why there are none.
        nodes: their names.
        rest_seconds: how long to watch them at rest.
        pause: seconds between two questions.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[tuple[float, float] | str]],
        nodes: Sequence[str],
        *,
        rest_seconds: float = _REST_SECONDS,
        pause: float = 0.5,
    ) -> None:
        self._ask, self._nodes, self._rest_seconds, self._pause = ask, nodes, rest_seconds, pause
        self.at_rest: Mapping[str, float] = {}
        """Cores of each node."""

    async def why_not(self) -> str:
        """Why nothing can be measured; empty if it can."""
        if not self._nodes:
            return "CPU was not measured: the nodes are unknown"
        if len(self._nodes) > _MOST_NODES:
            return f"CPU was not measured: the cluster has more than {_MOST_NODES} nodes"
        found = await self._sample()
        return f"CPU was not measured: {found}" if isinstance(found, str) else ""

    async def rest(self) -> None:
        """Measure what the nodes use without our calls."""
        before = await self.fresh()
        await asyncio.sleep(self._rest_seconds)
        self.at_rest = cores(before, await self.fresh())

    async def fresh(self) -> Sample:
        """Figures of a time after this call: each kubelet has measured again.

        Raises:
            CodeExecError: the kubelets don't measure.
        """
        seen: dict[str, set[float]] = {node: set() for node in self._nodes}
        deadline = time.monotonic() + _FRESH_SECONDS
        while time.monotonic() < deadline:
            sample = await self._sample()
            if isinstance(sample, str):
                raise CodeExecError(f"measured nothing more: {sample}")
            for node, (at, _) in sample.items():
                seen[node].add(at)
            if all(len(times) > 1 for times in seen.values()):
                return sample
            await asyncio.sleep(self._pause)
        raise CodeExecError(f"the kubelets' figures did not change within {_FRESH_SECONDS} s, so CPU can't be measured")

    async def _sample(self) -> Sample | str:
        """Or why there is none."""
        found = dict(zip(self._nodes, await asyncio.gather(*map(self._ask, self._nodes)), strict=True))
        return next((one for one in found.values() if isinstance(one, str)), None) or {
            node: one for node, one in found.items() if not isinstance(one, str)
        }


class Measurer:
    """Makes the calls.

    Args:
        client: of the sandbox namespace.
        reader: for pools and CPU.
        request: what each call asks for.
        nodes: names of all nodes, if they are known.
        calls: of each kind, and of each round.
        callers: at the same time.
        progress: told what is measured next.
    """

    def __init__(
        self,
        client: CodeExecutionClient,
        reader: CapacityReader,
        request: Request,
        *,
        nodes: Sequence[str],
        calls: int,
        callers: int,
        progress: Callable[[str], None],
    ) -> None:
        self._client, self._reader, self._request = client, reader, request
        self._calls, self._callers, self._progress = calls, callers, progress
        self._blocks: Sequence[PreparedBlock] = prepare([SourceBlock("python", _CODE)]).blocks
        self._meter = CpuMeter(reader.cpu_sample, nodes)
        self._cpu = False
        self._found = Measurement(callers)

    async def run(self) -> Measurement:
        """Measure all kinds.

        Raises:
            CodeExecError: a call failed, or the cluster does not answer.
        """
        if note := await self._meter.why_not():
            self._found.notes.append(note)
        else:
            self._cpu = True
            self._progress("CPU of the nodes at rest")
            await self._meter.rest()
        await self._pool()
        await self._sessions()
        await self._own_pods()
        return self._found

    async def _pool(self) -> None:
        name = await self._pool_of(await self._execute(self._request))
        if not name:
            self._found.notes.append("calls with a pod from a pool were not measured: no pool has pods of these limits")
            return
        before: Callable[[], Awaitable[None]] = lambda: self._until_full(name)  # noqa: E731
        try:
            await before()
        except NotPermitted:
            before = _nothing
            self._found.notes.append(
                "calls of the kind 'pool' did not wait for a ready pod: that needs the right "
                f"`{Right(GROUP, POOL_PLURAL, 'get')}`"
            )
        call = lambda: self._execute(self._request)  # noqa: E731
        await self._measure(POOL, call, [call] * self._callers, before)

    async def _sessions(self) -> None:
        async with AsyncExitStack() as stack:
            calls: list[Call] = []
            for _ in range(self._callers):
                session = await stack.enter_async_context(await self._client.open_session(self._request, wait=True))
                calls.append(lambda session=session: session.execute(self._blocks))  # type: ignore[misc]
            for call in calls:
                _checked(await call())
            await self._measure(SESSION, calls[0], calls)

    async def _own_pods(self) -> None:
        """Pods with a little less CPU than those of any pool with these limits."""
        limits = self._request.limits
        cpu = f"{int(parse_quantity(limits.cpu) * 1000) - 1}m"
        request = replace(self._request, limits=limits.model_copy(update={"cpu": cpu}))
        if name := await self._pool_of(await self._execute(request)):
            self._found.notes.append(f"calls with pods of their own were not measured: they got pods of pool {name!r}")
            return
        call = lambda: self._execute(request)  # noqa: E731
        await self._measure(OWN_POD, call, [call] * self._callers)

    async def _measure(
        self, kind: str, one: Call, several: Sequence[Call], before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._progress(f"{kind}: {self._calls} calls one after the other, and {self._calls} by {self._callers} callers")
        sample = await self._meter.fresh() if self._cpu else {}
        times = []
        for _ in range(self._calls):
            await (before or _nothing)()
            started = time.perf_counter()
            _checked(await one())
            times.append(time.perf_counter() - started)
        await (before or _nothing)()
        per_second = await self._at_once(several)
        cpu = None
        if self._cpu:
            cpu = cpu_each(sample, await self._meter.fresh(), self._meter.at_rest, 2 * self._calls)
        p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
        self._found.results.append(Measured(kind, self._calls, statistics.median(times), p95, per_second, cpu))

    async def _at_once(self, calls: Sequence[Call]) -> float:
        left = self._calls

        async def caller(call: Call) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                _checked(await call())

        begun = time.perf_counter()
        await together(*map(caller, calls))
        return self._calls / (time.perf_counter() - begun)

    async def _execute(self, request: Request) -> ExecutionResult:
        return _checked(await self._client.execute(self._blocks, request, list_files="None"))

    async def _pool_of(self, result: ExecutionResult) -> str:
        return (await self._client.get(result.name)).status.pool_name or ""

    async def _until_full(self, pool: str) -> None:
        deadline = time.monotonic() + _FULL_SECONDS
        while time.monotonic() < deadline:
            found = await self._reader.get_object(SandboxPool, pool)
            ready, wanted = found.get("status", {}).get("readyReplicas", 0), found["spec"]["replicas"]
            if ready >= wanted:
                return
            await asyncio.sleep(0.2)
        raise CodeExecError(
            f"pool {pool!r} has {ready} of {wanted} ready pods after {_FULL_SECONDS} s, so its calls can't be "
            f"measured; `kubectl describe sandboxpool {pool}` says why"
        )


def _checked(result: ExecutionResult) -> ExecutionResult:
    if result.phase is not Phase.SUCCEEDED:
        raise CodeExecError(
            f"measured nothing more: {result.name} ended as {result.phase.value}/{result.reason}: {result.message}"
        )
    return result


async def _nothing() -> None:
    pass
