"""Times what is called, each contender in turn."""

import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Contender = Callable[[], Awaitable[object]]
_BEGUN = time.monotonic()
WARM_UP = 2
"""Rounds that are not counted."""


async def nothing() -> None:
    pass


async def timed(call: Contender) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


def each_its_own(calls: Sequence[Contender]) -> Contender:
    """A call that makes one of these that nobody else makes at the same time. There are as many as callers."""
    idle = list(calls)

    async def call() -> None:
        mine = idle.pop()  # the one that was used last, so that few callers use few
        try:
            await mine()
        finally:
            idle.append(mine)

    return call


async def measure(
    contenders: Mapping[str, Contender], runs: int, before: Mapping[str, Contender] = MappingProxyType({})
) -> dict[str, list[float]]:
    """Each contender in turn, so that all see the same drift of the machine's speed. `before` is not timed."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_UP + runs):
        for name, call in contenders.items():
            await before.get(name, nothing)()
            seconds = await timed(call)
            if number >= WARM_UP:
                times[name].append(seconds)
        progress(f"round {number + 1} of {WARM_UP + runs}")
    return times


@dataclass(frozen=True)
class Fresh:
    """What is made anew for each run, and taken away again. Only `begin` is timed, until its first result."""

    begin: Callable[[], Awaitable[Contender]]
    """Ends with the first result; gives what takes it away."""
    before: Contender = nothing
    """Not timed."""


async def in_turn(contenders: Mapping[str, Fresh], runs: int) -> dict[str, list[float]]:
    """Each contender in turn, so that all see the same drift of the machine. The first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(1 + runs):
        for name, one in contenders.items():
            seconds = await _once(one)
            if number:
                times[name].append(seconds)
        progress(f"first call: round {number + 1} of {1 + runs}")
    return times


async def one_after_the_other(contenders: Mapping[str, Fresh], runs: int) -> dict[str, list[float]]:
    """All runs of a contender without a pause, then those of the next: ComputeSDK's sequential mode."""
    times: dict[str, list[float]] = {}
    for name, one in contenders.items():
        times[name] = [await _once(one) for _ in range(runs)]
        progress(f"first command: {name}")
    return times


async def _once(one: Fresh) -> float:
    await one.before()
    ends: list[Contender] = []

    async def begin() -> None:
        ends.append(await one.begin())

    seconds = await timed(begin)
    await ends[0]()
    return seconds


def progress(text: str) -> None:
    print(f"  {time.monotonic() - _BEGUN:4.0f} s: {text}", file=sys.stderr)
