"""What a runner sends of one job, frame by frame; `operator/sandbox/runner.py` describes the format. Pure.

The pod is not trusted: a frame that doesn't fit, or that is missing, is a problem, and nothing is taken after that.
"""

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from codeexec_api.packing import unpack

MAX_LINE_BYTES: Final = 2 * 1024 * 1024
MAX_PIECE_BYTES: Final = 256 * 1024
"""Of output or of a file in a frame. A runner reads 64 KiB at a time, and a broken character becomes three bytes."""
MAX_WORDS: Final = 1000
"""Characters of the runner's own words in a message."""


class Lines:
    """Puts lines together from pieces of any size."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping = False

    @property
    def pending(self) -> int:
        """How many bytes have come of a line that isn't complete."""
        return len(self._rest)

    def feed(self, data: bytes, *, skip_beyond: int | None = None) -> list[bytes]:
        """The lines that these bytes complete.

        Args:
            data: what has come.
            skip_beyond: a line that is longer, and not complete yet, is left out. None: no line is.

        Raises:
            ValueError: a line is longer than MAX_LINE_BYTES.
        """
        if self._skipping:
            _, end, data = data.partition(b"\n")
            self._skipping = not end
        self._rest += data
        lines: list[bytes] = []
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if skip_beyond is not None and len(self._rest) > skip_beyond:
            self._rest.clear()
            self._skipping = True
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return lines


@dataclass(repr=False)
class Frames(ABC):
    """Accumulates the frames of one job. It has no repr, so that output can't slip into a log line."""

    task: ClassVar[str]
    """What the runner does: the word after "could not"."""

    done: bool = False
    """True once the runner has reported the end, and everything had arrived."""
    problem: str = ""
    """What is wrong with the frames; empty as long as nothing is."""
    _next: int = 0

    @property
    def over(self) -> bool:
        """True when nothing more is to be expected."""
        return self.done or bool(self.problem)

    @property
    def next_frame(self) -> int:
        """Number of the frame that comes next."""
        return self._next

    def take(self, frame: Mapping[str, Any], job: str) -> None:
        """Take the next frame of the job with this ID."""
        if self.over:
            return
        try:
            if "error" in frame:
                self.problem = f"the runner could not {self.task}: {str(frame['error'])[:MAX_WORDS]}"
            elif frame["id"] != job or frame["seq"] != self._next:
                self.fail(f"frame {frame['seq']} of {frame['id']!r} instead of frame {self._next}")
            else:
                self._next += 1
                self._take(frame)
        except Exception as error:  # whatever a pod sends must not get any further
            self.fail(f"a line that is not a valid frame ({type(error).__name__})")

    def fail(self, problem: str) -> None:
        """Record a problem.

        Args:
            problem: what the runner has sent, as the end of a sentence.
        """
        self.problem = f"the runner sent {problem}"

    @abstractmethod
    def _take(self, frame: Mapping[str, Any]) -> None:
        """Take the next frame. Whatever this raises makes the frames faulty."""


def content_of(frame: Mapping[str, Any]) -> tuple[bytes, bytes | None]:
    """The bytes that a frame brings, and the same as one gzip member if the frame has one and it is shorter."""
    if "gzip64" in frame:
        packed = base64.b64decode(frame["gzip64"], validate=True)
        data = unpack(packed, MAX_PIECE_BYTES, alone=True)
        return data, packed if len(packed) < len(data) else None
    if "data64" in frame:
        return base64.b64decode(frame["data64"], validate=True), None
    text: str = frame["data"]
    return text.encode(), None
