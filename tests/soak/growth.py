"""Whether something grows that was measured again and again while the load stayed the same. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Sample:
    """What there was at one moment."""

    seconds: float
    memory_mib: float
    """The first four are of the operator's process."""
    descriptors: float
    threads: float
    tasks: float
    """Of its event loop."""
    objects: int
    """Pods, Secrets and NetworkPolicies of the sandbox namespace: all of them go with their execution or session."""
    records: int
    """Executions of the namespace. They stay, and what the operator keeps of each is a part of its memory."""
    surplus: int
    """How many more of these there are than calls were begun."""


@dataclass(frozen=True)
class Bound:
    """Something grows if it grows faster than `per_hour`, and by more than it moves as the load does."""

    per_hour: float
    moves: float


BOUNDS: Final = {
    "memory_mib": Bound(8, 16),
    "descriptors": Bound(4, 16),
    "threads": Bound(1, 4),
    "tasks": Bound(4, 16),
    "objects": Bound(4, 16),
    "surplus": Bound(4, 16),
}


@dataclass(frozen=True)
class Slope:
    """How something has moved."""

    name: str
    per_hour: float
    """By least squares."""
    first: float
    last: float
    grows: bool

    def __str__(self) -> str:
        verdict = "GROWS" if self.grows else "steady" if self.name in BOUNDS else "by design"
        return f"{self.name:<12} {self.per_hour:+10.2f}/h   {self.first:.1f} -> {self.last:.1f}   {verdict}"


def slopes(samples: Sequence[Sample]) -> list[Slope]:
    """How each has moved in the second half, when caches are full; empty if there are too few samples."""
    settled = samples[len(samples) // 2 :]
    if len(settled) < 3:
        return []
    hours = [one.seconds / 3600 for one in settled]
    found = []
    for name in (*BOUNDS, "records"):
        values = [getattr(one, name) for one in settled]
        per_hour = statistics.linear_regression(hours, values).slope
        bound, in_all = BOUNDS.get(name), per_hour * (hours[-1] - hours[0])
        grows = bound is not None and per_hour > bound.per_hour and in_all > bound.moves
        found.append(Slope(name, per_hour, values[0], values[-1], grows))
    return found
