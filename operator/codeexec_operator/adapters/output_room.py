"""Memory for output that is not stored yet, of all executions in all namespaces together.

Little output is free. An execution with more takes one share, which is enough for as much as it can ever hold, so none
holds one part of what it needs while it waits for another. While it waits, its connection isn't read, and the code's
writes wait, too. When shares are short, the execution that has had one longest stores what it has, and gives it back.
"""

import logging
from collections import Counter
from collections.abc import Collection, Coroutine
from typing import Any, Final, Protocol

from codeexec_operator.adapters.fair_semaphore import FairSemaphore

logger = logging.getLogger(__name__)

FREE_BYTES: Final = 32 * 1024
"""What each execution may hold without a share. A connection without one holds no longer line."""
SHARE_BYTES: Final = 4 * 1024 * 1024
"""A part of the output with its order, the longest line, and the copies that are made of a part while it is stored."""
ROOM_BYTES: Final = 128 * 1024 * 1024
"""All shares together, so 32 executions have one."""


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
    """All shares. One namespace has at most half of them, and namespaces that wait for one take turns."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        shares = room_bytes // SHARE_BYTES
        self._half = max(1, shares // 2)
        self._slots = FairSemaphore(shares, self._half)
        self._taken: dict[Share, None] = {}
        """Who has had a share longest is first."""
        self._waiting: Counter[str] = Counter()
        """How many of each namespace wait."""

    @property
    def taken_bytes(self) -> int:
        """How much is taken at this moment."""
        return SHARE_BYTES * len(self._taken)

    async def take(self, share: Share) -> None:
        """Wait for a share."""
        waits: Counter[str] = Counter() if self._slots.free_for(share.namespace) else Counter([share.namespace])
        self._waiting += waits
        try:
            self.press()
            await self._slots.take(share.namespace)
        finally:
            self._waiting -= waits
        share.taken, share.refuses = True, False
        self._taken[share] = None
        self.press()

    def give(self, share: Share) -> None:
        """Give a share back."""
        share.taken = False
        del self._taken[share]
        self._slots.give(share.namespace)

    def press(self) -> None:
        """Have as many shares given back as others wait for, as far as that can be."""
        held = Counter(one.namespace for one in self._taken)
        of_all = 0
        for namespace, count in self._waiting.items():
            may_have = min(count, self._half - held[namespace])
            of_all += may_have
            _shorten(count - may_have, [one for one in self._taken if one.namespace == namespace])
        _shorten(of_all, self._taken)


def _shorten(count: int, shares: Collection[Share]) -> None:
    """So many of these, the first ones first. Those that are being shortened count."""
    missing = count - sum(one.shortening for one in shares)
    for one in [one for one in shares if not (one.shortening or one.refuses)][: max(0, missing)]:
        one.shorten()
