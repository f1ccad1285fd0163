"""Slots that namespaces share: those that wait for one are served in turn, however much one of them wants."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final


class FairSemaphore:
    """A semaphore with a queue for each namespace, and round-robin between the queues.

    A namespace that asks again gets in line behind all other namespaces that wait. Within a namespace the order is that
    of arrival.

    Args:
        most: slots in total.
        each: slots that one namespace holds at most.
    """

    def __init__(self, most: int, each: int | None = None) -> None:
        self._free, self._each = most, each or most
        self._held: Final[Counter[str]] = Counter()
        self._waiting: Final[OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        """In the order of the next turns."""

    def free_for(self, namespace: str) -> bool:
        """Whether this namespace can take a slot without waiting."""
        return bool(self._free) and self._may_have(namespace) and namespace not in self._waiting

    async def take(self, namespace: str) -> None:
        """Wait for a slot, and take it."""
        if self.free_for(namespace):
            self._hand_to(namespace)  # whoever waits holds all that a namespace may have
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(namespace, place)
            else:  # the slot was handed over already
                self.give(namespace)
            raise

    def give(self, namespace: str) -> None:
        """Give a slot back."""
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        while self._free and (nearest := next(filter(self._may_have, self._waiting), None)) is not None:
            line = self._waiting[nearest]
            place = line.popleft()
            if not place.cancelled():
                self._hand_to(nearest)
                place.set_result(None)
                self._waiting.move_to_end(nearest)
            if not line:
                del self._waiting[nearest]

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Take a slot, and give it back at the end."""
        await self.take(namespace)
        try:
            yield
        finally:
            self.give(namespace)

    async def turn(self, namespace: str) -> None:
        """Take a slot until the event loop has gone round: for work that takes time of the one thread."""
        await self.take(namespace)
        asyncio.get_running_loop().call_soon(self.give, namespace)

    def _may_have(self, namespace: str) -> bool:
        return self._held[namespace] < self._each

    def _hand_to(self, namespace: str) -> None:
        self._free -= 1
        self._held[namespace] += 1

    def _forget(self, namespace: str, place: asyncio.Future[None]) -> None:
        line = self._waiting.get(namespace, deque())
        with suppress(ValueError):
            line.remove(place)
        if not line:
            self._waiting.pop(namespace, None)
