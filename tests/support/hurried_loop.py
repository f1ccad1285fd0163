"""An event loop whose time goes on only when nothing is left to do: hours of timers take no time, always the same."""

import asyncio
import selectors
from typing import Any


class _Skipping(selectors.DefaultSelector):
    """Waits for no timer, but counts how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout is not None else None)
        if not found and timeout:
            self.skipped += timeout
        return found


class HurriedLoop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=HurriedLoop)`. Code under test has to take its time from `time`, in seconds."""

    def __init__(self, *arguments: Any) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping, *arguments)

    def time(self) -> float:
        return self._skipping.skipped
