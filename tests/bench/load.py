"""Many calls at once, and calls without end: how long each takes, and how many a second there are."""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from measuring import Contender, progress, timed


@dataclass
class Burst:
    """What came of rounds of calls that start at the same moment."""

    call: Contender
    count: int
    """Calls of a round."""
    seconds: list[float] = field(default_factory=list)
    """Of each call of all rounds."""
    walls: list[float] = field(default_factory=list)
    """Seconds of each round, until its last call has ended."""


async def bursts(contenders: Mapping[str, Burst], rounds: int, before: Contender) -> None:
    """Each contender in turn; one round more is not counted. `before` is not timed."""
    for number in range(1 + rounds):
        for burst in contenders.values():
            await before()
            begun = time.perf_counter()
            seconds = await asyncio.gather(*(timed(burst.call) for _ in range(burst.count)))
            wall = time.perf_counter() - begun
            if number:
                burst.seconds += seconds
                burst.walls.append(wall)
        progress(f"burst: round {number + 1} of {1 + rounds}")


@dataclass
class Sustained:
    """What came of callers that each begin the next call when the last has ended."""

    call: Contender
    seconds: list[float] = field(default_factory=list)
    """Of each call that has ended while it was counted."""
    counted_seconds: float = 0

    @property
    def per_second(self) -> float:
        """Calls that have ended in a second."""
        return len(self.seconds) / self.counted_seconds


async def sustained(
    contenders: Mapping[str, Sustained],
    *,
    callers: int,
    seconds: float,
    head_start: int,
    rounds: int,
    before: Contender,
) -> None:
    """Each contender in turn, for its share of `seconds` in each round.

    A round is counted when `head_start` calls have ended in it, which is the pods that stood ready before; so what is
    counted is what the machine can keep up. `before` is not timed.
    """
    for number in range(rounds):
        for one in contenders.values():
            await before()
            await _closed_loop(one, callers, seconds / rounds, head_start)
        progress(f"sustained: round {number + 1} of {rounds}")


async def _closed_loop(one: Sustained, callers: int, seconds: float, head_start: int) -> None:
    ended: list[tuple[float, float]] = []
    """When each call has ended, and how long it took."""

    def stop() -> float:
        """When the round is over: not before as many calls were counted as there are callers."""
        enough = head_start + callers
        return max(ended[head_start - 1][0] + seconds, ended[enough - 1][0]) if len(ended) >= enough else math.inf

    async def caller() -> None:
        while time.perf_counter() < stop():
            took = await timed(one.call)
            ended.append((time.perf_counter(), took))

    await asyncio.gather(*(caller() for _ in range(callers)))
    end = stop()
    one.seconds += [took for at, took in ended[head_start:] if at <= end]
    one.counted_seconds += end - ended[head_start - 1][0]
