"""What asyncio leaves to its users about tasks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")

callbacks: Final[ContextVar[set[Future[None]] | None]] = ContextVar("callbacks", default=None)
"""The functions of callers that run now, for whoever waits for them. None: nobody does."""


class SingleFlight(Generic[T]):
    """Makes one attempt at a time, for all that wait for its outcome. A failure is that of all of them, too.

    For one event loop. An attempt that nobody waits for any more is cancelled.

    Args:
        attempt: makes one attempt.
    """

    def __init__(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._attempt = attempt
        self._latest: _Joined[T] | None = None

    async def __call__(self) -> T:
        """The outcome of the attempt that is under way, or of a new one."""
        if self._latest is None or self._latest.task.done():
            self._latest = _Joined(asyncio.create_task(self._attempt()))
        joined = self._latest
        joined.callers += 1
        try:
            return await asyncio.shield(joined.task)
        finally:
            joined.callers -= 1
            if not joined.callers:
                if self._latest is joined:
                    self._latest = None  # a task holds its loop
                if not joined.task.done():
                    await stop(joined.task)  # as if its last caller had made the attempt, so that nothing is left open


@dataclass
class _Joined(Generic[T]):
    """An attempt, and how many wait for it."""

    task: asyncio.Task[T]
    callers: int = 0


async def in_worker(function: Callable[[V], object], value: V) -> None:
    """Call a caller's function in a thread of its own, which no other call needs: the function may wait for calls.

    Raises:
        RuntimeError: it has raised StopIteration, which no future of Python 3.11 takes.
        Exception: what it has raised.
    """

    def call() -> None:
        try:
            function(value)
        except StopIteration as error:
            raise RuntimeError(f"{function!r} raised StopIteration") from error

    worker, known = ThreadPoolExecutor(1), callbacks.get()
    running = worker.submit(copy_context().run, call)
    worker.shutdown(wait=False)
    if known is not None:
        known.add(running)
        running.add_done_callback(known.discard)
    await asyncio.wrap_future(running)


async def together(*work: Awaitable[Any]) -> list[Any]:
    """What each returns. All run at the same time; when all have ended, the first failure in this order is raised."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


async def completed(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. Whoever cancels the caller does not cancel the work, and the caller waits on."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()


async def reminded(items: AsyncGenerator[T, None], seconds: float) -> AsyncGenerator[T | None, None]:
    """What comes, and None once, when so many seconds are over. What makes the next item is not disturbed by that."""
    clock = asyncio.get_running_loop().time
    at: float | None = clock() + seconds
    while True:
        coming = asyncio.ensure_future(anext(items))
        try:
            if at is not None:
                await asyncio.wait([coming], timeout=max(at - clock(), 0))
                if not coming.done():
                    at = None
                    yield None
            yield await coming
        except StopAsyncIteration:
            return
        finally:
            await stop(coming)


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """End tasks and wait for their end, whatever it is."""
    for task in tasks:
        task.cancel()
    await settle(*tasks)


async def settle(*tasks: asyncio.Task[Any]) -> None:
    """Wait for the end of tasks, whatever it is."""
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that nothing complains that nobody did
