"""Times what is called, each contender in turn."""

import sys
import time
from collections.abc import Awaitable, Callable, Mapping
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


def progress(text: str) -> None:
    print(f"  {time.monotonic() - _BEGUN:4.0f} s: {text}", file=sys.stderr)
