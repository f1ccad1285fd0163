"""How many bytes may be held in memory for one purpose, by all who hold some together."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final


class ByteBudget:
    """Who wants bytes waits until there is room, in the order of arrival.

    Take all that you may need at once. Two holders that each wait for what the other holds would wait for ever.

    Args:
        most: bytes in total. A holder that wants more gets all of them, so it is alone.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._free = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait until there is room for so many bytes, and take them."""
        size = min(size, self._most)
        if size <= self._free and not self._waiting:
            self._free -= size
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append((size, place))
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # the bytes were taken for it already
                self.give(size)
            with suppress(ValueError):
                self._waiting.remove((size, place))
            self._let_in()
            raise

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self._free += min(size, self._most)
        self._let_in()

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Take so many bytes, and give them back at the end."""
        await self.take(size)
        try:
            yield
        finally:
            self.give(size)

    def _let_in(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, place = self._waiting.popleft()
            if not place.cancelled():
                self._free -= size
                place.set_result(None)
