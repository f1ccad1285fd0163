"""What asyncio leaves to its users about tasks."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Makes one attempt at a time, for all that wait for its outcome. A failure is that of all of them, too.

    For one event loop. An attempt that nobody waits for any more is cancelled.

    Args:
        attempt: makes one attempt.
    """

    def __init__(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._attempt = attempt
        self._task: asyncio.Task[T] | None = None
        self._waiting = 0

    async def __call__(self) -> T:
        """The outcome of the attempt that is under way, or of a new one."""
        if self._task is None or self._task.done():
            self._task, self._waiting = asyncio.create_task(self._attempt()), 0
        task = self._task
        self._waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting -= 1
            if not self._waiting and task is self._task:
                self._task = None
                if not task.done():
                    await stop(task)  # as if its last caller had made the attempt, so that nothing is left open


async def together(*work: Awaitable[Any]) -> list[Any]:
    """What each returns. All run at the same time; when all have ended, the first failure in this order is raised."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


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
