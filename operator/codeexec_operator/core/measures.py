"""What is counted and measured: of an execution when it is over, and of all there is at one moment.

Labels come from closed vocabularies: no name of an execution, a pod or a person, no UID, and nothing of code or output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from codeexec_api import CodeExecution, Phase, SessionPhase
from codeexec_operator.core.stages import known_reason, origin_of, times_of

NO_LANGUAGE: Final = "none"
"""Of an execution that has files and no block."""


@dataclass(frozen=True)
class Measured:
    """An execution that is over. Times are in seconds; None for what never happened."""

    namespace: str
    phase: str
    reason: str
    languages: str
    """In alphabetical order, joined by commas."""
    origin: str
    until_accepted: float | None
    """From its creation, as the next two; until a human was asked to approve it, if one was."""
    until_started: float | None
    until_finished: float
    running: float | None
    deciding: float | None
    """From when a human was asked until it went on, or was over."""


def measure(execution: CodeExecution, seen_at: datetime) -> Measured:
    """Of an execution that is over; `seen_at` is when this process first heard of it."""
    times = times_of(execution, seen_at)

    def until(moment: datetime | None) -> float | None:
        return (moment - times.created).total_seconds() if moment else None

    return Measured(
        namespace=execution.metadata.namespace,
        phase=execution.status.phase.value,
        reason=known_reason(execution.status.reason),
        languages=",".join(sorted(execution.spec.languages)) or NO_LANGUAGE,
        origin=origin_of(execution),
        until_accepted=until(times.asked or times.accepted),
        until_started=until(times.started),
        until_finished=(times.finished - times.created).total_seconds(),
        running=(times.finished - times.started).total_seconds() if times.started else None,
        deciding=((times.accepted or times.finished) - times.asked).total_seconds() if times.asked else None,
    )


@dataclass(frozen=True)
class PoolCount:
    """A pool at one moment."""

    namespace: str
    wanted: int
    ready: int
    starting: int
    claimed: int
    queued: int
    last_refill_ms: int | None


@dataclass(frozen=True)
class Census:
    """All that this process looks after at one moment."""

    executions: Mapping[tuple[str, Phase], int]
    """By namespace and phase, those that are not over."""
    sessions: Mapping[tuple[str, SessionPhase], int]
    """The same."""
    pools: Sequence[PoolCount]


def pools_by_namespace(pools: Sequence[PoolCount], namespaces: Sequence[str]) -> dict[str, PoolCount]:
    """The pools of each namespace as one; of the last refills the slowest."""
    return {name: _together(name, [pool for pool in pools if pool.namespace == name]) for name in namespaces}


def _together(namespace: str, pools: Sequence[PoolCount]) -> PoolCount:
    refills = [pool.last_refill_ms for pool in pools if pool.last_refill_ms is not None]
    counts = ("wanted", "ready", "starting", "claimed", "queued")
    sums = {name: sum(getattr(pool, name) for pool in pools) for name in counts}
    return PoolCount(namespace, **sums, last_refill_ms=max(refills, default=None))
