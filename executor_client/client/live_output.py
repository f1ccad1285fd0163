"""Output as it comes, from the lines of a runner's log: pure, no I/O.

Nothing here is trusted: what counts is the record, with which the live output is completed, and held against, at the
end.
"""

import base64
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from codeexec_api.packing import unpack
from executor_client.model.results import OutputChunk, StreamName

logger = logging.getLogger(__name__)

_STREAMS: Final[dict[str, StreamName]] = {"stdout": "stdout", "stderr": "stderr"}
_MOST_OF_A_LINE: Final = 256 * 1024
"""Bytes of output in a frame."""


@dataclass
class _Delivered:
    """What a stream has given so far: enough to tell whether a text begins with it."""

    size_bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, text: str) -> None:
        data = text.encode(errors="replace")
        self.size_bytes += len(data)
        self.digest.update(data)

    def begins(self, content: bytes) -> bool:
        return bool(hashlib.sha256(content[: self.size_bytes]).digest() == self.digest.digest())


class LiveOutput:
    """Picks the output of one execution out of log lines, each piece once and in order.

    Frames are taken in the order of their numbers, without a gap, so a log may be read again from an earlier point.

    Args:
        uid: of the CodeExecution, which its frames carry.
        most_bytes: of each stream; what is beyond isn't delivered live.
    """

    def __init__(self, uid: str, most_bytes: int) -> None:
        self._uid = uid
        self._most_bytes = most_bytes
        self._next = 0
        self._delivered = {name: _Delivered() for name in _STREAMS.values()}
        self._full: set[StreamName] = set()

    def feed(self, line: bytes) -> OutputChunk | None:
        """The output in a line of the log, if it is the next of this execution's frames and has any."""
        frame = _frame(line)
        if frame is None or frame.get("id") != self._uid or frame.get("seq") != self._next:
            return None
        self._next += 1
        stream, text = _STREAMS.get(str(frame.get("stream"))), _text(frame)
        if stream is None or not text or stream in self._full:
            return None
        delivered = self._delivered[stream]
        if delivered.size_bytes + len(text.encode(errors="replace")) > self._most_bytes:
            self._full.add(stream)  # from here on its pieces have to come from the record, all of them
            return None
        delivered.add(text)
        return OutputChunk(stream, text)

    def missing(self, recorded: Iterable[OutputChunk]) -> Iterator[OutputChunk]:
        """What was not delivered of the output in the record.

        If what was delivered is not how a stream begins in the record, there is nothing to go on with: its rest is
        left out, and the result has it.
        """
        chunks = list(recorded)
        skip = {}
        for stream, delivered in self._delivered.items():
            content = b"".join(chunk.text.encode() for chunk in chunks if chunk.stream == stream)
            good = delivered.begins(content)
            if not good:
                logger.warning("the live %s differs from the record of execution %s", stream, self._uid)
            skip[stream] = delivered.size_bytes if good else len(content)
        for chunk in chunks:
            data = chunk.text.encode()
            rest = data[skip[chunk.stream] :]
            skip[chunk.stream] = max(0, skip[chunk.stream] - len(data))
            if rest:
                yield OutputChunk(chunk.stream, rest.decode(errors="replace"))


def _frame(line: bytes) -> dict[str, Any] | None:
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return frame if isinstance(frame, dict) else None


def _text(frame: dict[str, Any]) -> str:
    """The output in a frame; empty if there is none."""
    if isinstance(text := frame.get("data"), str):
        return text.encode(errors="replace").decode()  # a lone surrogate is none of the output
    if not isinstance(encoded := frame.get("data64", packed := frame.get("gzip64")), str):
        return ""
    try:
        data = base64.b64decode(encoded, validate=True)
        return (unpack(data, _MOST_OF_A_LINE) if encoded is packed else data).decode(errors="replace")
    except ValueError:
        return ""
