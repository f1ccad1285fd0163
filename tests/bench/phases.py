"""Where the time of a call goes, by the clocks of caller, operator and runner, which are one machine's."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from measuring import WARM_UP, Contender, nothing, progress

from codeexec_api import CodeExecution
from executor_client import CodeExecutionClient, ExecutionResult
from executor_client.client.request import DEFAULT_NAMESPACE
from executor_client.transport.cluster import Transport

PHASES = ("create_ack", "adoption", "start", "run", "propagate", "e2e")
"""In order; the last is the sum of the others."""


class DatedTransport(Transport):
    """Notes when the API server had taken each execution."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.taken_at: dict[str, float] = {}
        """By name; seconds since 1970."""

    async def create(self, name: str, *arguments: Any) -> CodeExecution:
        created = await super().create(name, *arguments)
        self.taken_at[name] = time.time()
        return created


class DatedClient(CodeExecutionClient):
    """A client, for one event loop, that knows when its executions were taken."""

    def __init__(self) -> None:
        super().__init__(transport=self._make)
        self._transport: DatedTransport | None = None

    async def _make(self) -> DatedTransport:
        self._transport = await DatedTransport.connect(kubeconfig=None, context=None, namespace=DEFAULT_NAMESPACE)
        return self._transport

    def taken_at(self, name: str) -> float:
        """When the API server had taken this execution, in seconds since 1970."""
        assert self._transport
        return self._transport.taken_at[name]


@dataclass(frozen=True)
class Way:
    """A way to run code whose time is taken apart."""

    call: Callable[[], Awaitable[ExecutionResult]]
    before: Contender = nothing
    """Not timed."""


async def phases(client: DatedClient, ways: Mapping[str, Way], runs: int) -> dict[str, dict[str, list[float]]]:
    """Each way in turn. Seconds of each phase, by way."""
    times: dict[str, dict[str, list[float]]] = {name: {phase: [] for phase in PHASES} for name in ways}
    for number in range(WARM_UP + runs):
        for name, way in ways.items():
            await way.before()
            begun = time.time()
            result = await way.call()
            ended = time.time()
            taken = _taken_apart(await client.get(result.name), begun, client.taken_at(result.name), ended)
            if number >= WARM_UP:
                for phase, seconds in zip(PHASES, taken, strict=True):
                    times[name][phase].append(seconds)
        progress(f"phases: round {number + 1} of {WARM_UP + runs}")
    return times


def _taken_apart(record: CodeExecution, begun: float, taken: float, ended: float) -> tuple[float, ...]:
    started, [block] = record.status.started_at, record.status.blocks
    assert started
    code_begun = block.started_at.timestamp()
    code_ended = code_begun + block.duration_ms / 1000
    marks = (begun, taken, started.timestamp(), code_begun, code_ended, ended)
    return (*(after - before for before, after in pairwise(marks)), ended - begun)
