"""A wait for what tells nobody that it has changed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any


async def until(true: Callable[[], object], seconds: float = 60, every: float = 0) -> None:
    """Until this is so, which is looked at whenever the event loop has turned, or less often."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(every)


async def settled() -> None:
    """Until no task has anything to do that it could do without I/O, a timer or another thread.

    For what is not to happen. What needs no more than turns of the event loop has happened by then, on any machine.
    Only one task may wait so, and none beside it in `until`: they would keep each other busy.
    """
    loop: Any = asyncio.get_running_loop()
    await asyncio.sleep(0)  # timers that are due have their turn, too
    await until(lambda: not loop._ready)


def clock_jumps_once(true: Callable[[], object], seconds: float) -> None:
    """The clock of the running event loop goes ahead by so many seconds as soon as this is so, and stays ahead.

    What has a time limit then finds that it has passed, which no real wait has to be short or long enough for. Code
    that keeps `loop.time` has to take it after this call.
    """
    loop = asyncio.get_running_loop()
    clock, jumped = loop.time, False

    def time() -> float:
        nonlocal jumped
        jumped = jumped or bool(true())
        return clock() + (seconds if jumped else 0)

    loop.time = time  # type: ignore[method-assign]


@asynccontextmanager
async def time_limit_passes_once(true: Callable[[], object]) -> AsyncIterator[None]:
    """A caller's `asyncio.timeout()` that passes as soon as this is so: no number of seconds is right everywhere."""
    async with asyncio.timeout(None) as limit:

        async def pass_once() -> None:
            await until(true)
            limit.reschedule(asyncio.get_running_loop().time())

        watching = asyncio.create_task(pass_once())
        try:
            yield
        finally:
            watching.cancel()
