"""Lets namespaces begin work as `core.pacing` says: each namespace has a line, and its first comes first."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from codeexec_operator.core.pacing import Pacing


class Pacer:
    """Whoever begins something for a namespace waits here."""

    def __init__(self) -> None:
        self._pacing: Final = Pacing()
        self._lines: Final[dict[str, deque[asyncio.Future[None]]]] = {}
        self._timers: Final[dict[str, asyncio.TimerHandle]] = {}

    @property
    def limit(self) -> float:
        """How much a namespace with a queue may have under way beside others."""
        return self._pacing.congestion.limit

    def measured(self, seconds: float) -> None:
        """A write has taken so long."""
        self._pacing.congestion.measured(seconds, asyncio.get_running_loop().time())

    @asynccontextmanager
    async def work(self, namespace: str, *, begun: bool = False) -> AsyncIterator[None]:
        """Wait until something may begin, and tell when it has ended.

        `begun` goes on with what had its turn already, and holds code or a pod: it comes before what has nothing.
        """
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        line = self._lines.setdefault(namespace, deque())
        if begun:
            line.appendleft(place)
        else:
            line.append(place)
        self._serve(namespace)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._end(namespace, 0.0)
            raise
        began = loop.time()
        try:
            yield
        finally:
            self._end(namespace, loop.time() - began)

    def _end(self, namespace: str, took: float) -> None:
        self._pacing.end(namespace, took, asyncio.get_running_loop().time())
        self._serve(namespace)

    def _serve(self, namespace: str) -> None:
        if timer := self._timers.pop(namespace, None):
            timer.cancel()
        loop, line = asyncio.get_running_loop(), self._lines.get(namespace, deque())
        while line:
            if line[0].cancelled():
                line.popleft()
                continue
            pause = self._pacing.pause(namespace, len(line), loop.time())
            if pause:
                if pause < math.inf:
                    self._timers[namespace] = loop.call_later(pause, self._serve, namespace)
                return
            self._pacing.begin(namespace, loop.time())
            line.popleft().set_result(None)
        self._lines.pop(namespace, None)
