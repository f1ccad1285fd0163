"""One stream of output, as it comes: which text is kept of it. Pure.

The runner has the same rules: `Pipe` and `Stream` in `operator/sandbox/output.py`.
"""

import codecs


class Stream:
    """Takes the bytes that code writes.

    Args:
        room: bytes of text that are kept. What is beyond is counted only.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.total_bytes = 0
        self.truncated = False

    def take(self, data: bytes, *, final: bool = False) -> str:
        """The text to keep of these bytes. A character that has begun is kept once it is whole, or at the end."""
        self.total_bytes += len(data)
        text = self._decoder.decode(data, final)
        encoded = text.encode()
        if len(encoded) > self._room:
            text = encoded[: self._room].decode(errors="ignore")
            self._room, self.truncated = 0, True
        else:
            self._room -= len(encoded)
        self._kept.append(text)
        return text

    @property
    def text(self) -> str:
        """All that is kept."""
        return "".join(self._kept)
