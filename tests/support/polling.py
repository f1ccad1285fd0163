"""A wait for what tells nobody that it has changed."""

import asyncio
from collections.abc import Callable


async def until(true: Callable[[], object], seconds: float = 60, every: float = 0) -> None:
    """Until this is so, which is looked at whenever the event loop has turned, or less often."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(every)
