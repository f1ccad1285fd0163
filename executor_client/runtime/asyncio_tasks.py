"""What asyncio leaves to its users about tasks."""

import asyncio
from collections.abc import Awaitable
from typing import Any


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
