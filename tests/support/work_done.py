"""How much the operator does for something: lines that are executed, which no load on the machine changes."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

from codeexec_operator import __file__ as package

_OURS = str(Path(str(package)).parent)


class WorkDone:
    """Counts lines of the operator's code that this thread executes within a `with`."""

    lines = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        return self._moved if frame.f_code.co_filename.startswith(_OURS) else None

    def _moved(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        self.lines += event == "line"
        return self._moved
