"""Memory for output that is not stored yet, of all executions in all namespaces together.

Little output is free. An execution with more takes one share, which is enough for as much as it can ever hold, so none
holds one part of what it needs while it waits for another. While it waits, its connection isn't read, and the code's
writes wait, too. When shares are short, the execution that has had one longest stores what it has, and gives it back.
"""

import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from codeexec_operator.adapters.byte_budget import ByteBudget

logger = logging.getLogger(__name__)

FREE_BYTES: Final = 32 * 1024
"""What each execution may hold without a share. A connection without one holds no longer line."""
SHARE_BYTES: Final = 4 * 1024 * 1024
"""A part of the output with its order, the longest line, and the copies that are made of a part while it is stored."""
ROOM_BYTES: Final = 128 * 1024 * 1024
"""All shares together, so 32 executions have one."""
_ALL: Final = ""


class Holder(Protocol):
    """What a share is for."""

    @property
    def held_bytes(self) -> int:
        """How much output it holds."""

    async def shorten(self) -> bool:
        """Store what is held, so that the share can be given back; False if that can't be."""

    def run_in_background(self, job: Coroutine[Any, Any, None]) -> None:
        """Do something that it doesn't wait for."""


class Share:
    """What one holder has, or hasn't, of the room."""

    def __init__(self, room: "OutputRoom", namespace: str, holder: Holder) -> None:
        self.namespace = namespace
        self.taken = self.shortening = self.refuses = False
        self._room, self._holder = room, holder
        self._pending, self._closed = 0, False

    async def need(self, pending: int) -> None:
        """Wait until there is room for all that may come. The holder doesn't count `pending` bytes that have come."""
        self._knows(pending)
        if not self.taken and not self._closed and not self._little:
            await self._room.take(self)
            if self._closed:  # meanwhile
                self.close()

    def settle(self, pending: int) -> None:
        """Give the share back if what is held is little by now."""
        self._knows(pending)
        if self.taken and self._little:
            self._room.give(self)
        elif self.taken:
            self._room.press()

    def close(self) -> None:
        """Nothing more comes, and nothing is held."""
        self._closed = True
        if self.taken:
            self._room.give(self)

    def _knows(self, pending: int) -> None:
        self.refuses = self.refuses and pending == self._pending
        self._pending = pending

    @property
    def _little(self) -> bool:
        return self._pending + self._holder.held_bytes <= FREE_BYTES

    def shorten(self) -> None:
        """Have what is held stored, in the background."""
        self.shortening = True
        self._holder.run_in_background(self._shorten())

    async def _shorten(self) -> None:
        try:
            self.refuses = not await self._holder.shorten()
        finally:
            self.shortening = False
        # What has come meanwhile is stored when it is asked again; a line that isn't complete can't be.
        self.refuses = self.refuses or self._holder.held_bytes <= FREE_BYTES < self._pending
        self.settle(self._pending)  # if it is given back, whoever gets it looks for the next


class OutputRoom:
    """All shares. One namespace has at most half of them."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._half = max(SHARE_BYTES, room_bytes // 2)
        self._room = ByteBudget(room_bytes)
        self._rooms: WeakValueDictionary[str, ByteBudget] = WeakValueDictionary()
        self._taken: dict[Share, ByteBudget] = {}
        """Who has had a share longest is first."""
        self._waiting: Counter[str] = Counter()
        """How many wait until another one of their namespace gives its share back; as _ALL, until anybody does."""

    @property
    def taken_bytes(self) -> int:
        """How much is taken at this moment."""
        return SHARE_BYTES * len(self._taken)

    async def take(self, share: Share) -> None:
        """Wait for a share, behind those that came before."""
        of_namespace = self._rooms.setdefault(share.namespace, ByteBudget(self._half))
        await self._wait(of_namespace, share.namespace)
        try:
            await self._wait(self._room, _ALL)
        except BaseException:
            of_namespace.give(SHARE_BYTES)
            raise
        share.taken, share.refuses = True, False
        self._taken[share] = of_namespace
        self.press()

    def give(self, share: Share) -> None:
        """Give a share back."""
        share.taken = False
        self._taken.pop(share).give(SHARE_BYTES)
        self._room.give(SHARE_BYTES)

    async def _wait(self, budget: ByteBudget, whose: str) -> None:
        self._waiting[whose] += 1
        try:
            self.press()
            await budget.take(SHARE_BYTES)
        finally:
            self._waiting[whose] -= 1
            if not self._waiting[whose]:
                del self._waiting[whose]

    def press(self) -> None:
        """Have as many shares given back as others wait for, as far as that can be."""
        for whose, count in list(self._waiting.items()):
            asked = [one for one in self._taken if whose in (_ALL, one.namespace)]
            missing = count - sum(one.shortening for one in asked)
            for one in [one for one in asked if not (one.shortening or one.refuses)][: max(0, missing)]:
                one.shorten()
