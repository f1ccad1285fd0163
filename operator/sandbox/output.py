"""Output of code: pipes, and the text that comes out of them. Standard library only."""

import array
import codecs
import contextlib
import fcntl
import os
import termios

from channel import CHUNK
from sha256 import Sha256

PIPE_BYTES = 1024 * 1024


class Stream:
    """One of a job's two output streams: how much of it is kept, and what has come."""

    def __init__(self, name, limit):
        self.name = name
        self.total = 0
        self._room = limit
        self._truncated = False
        self._digest = Sha256()

    def take(self, size, text):
        """Count `size` bytes and return what to send of their text; the part beyond the limit is counted only."""
        self.total += size
        encoded = text.encode()
        if len(encoded) > self._room:
            text = encoded[: self._room].decode(errors="ignore")
            encoded = text.encode()
            self._room = 0
            self._truncated = True
        else:
            self._room -= len(encoded)
        self._digest.update(encoded)
        return text

    def totals(self):
        """Bytes that were written, the digest of the text that was sent, and whether there was more."""
        return {"bytes": self.total, "sha256": self._digest.hexdigest(), "truncated": self._truncated}


class Pipe:
    """A pipe that code writes to. The runner holds both ends, so that it never ends by itself."""

    def __init__(self, sink=None):
        """`sink` takes a number of bytes and the text that they have become, and returns whether it keeps any."""
        self.sink = sink
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        with contextlib.suppress(OSError):  # its user has pipes enough; then code waits for the runner sooner
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self):
        """Read once. True if what came is less than may come at once, so that waiting makes fewer frames.

        True also if nothing of it is kept: then more is read, as much as a pipe holds, so that code is not slowed down.
        """
        left = PIPE_BYTES
        while left > 0:
            try:
                data = os.read(self.reader, CHUNK)
            except BlockingIOError:
                return None if left == PIPE_BYTES else True
            left -= len(data)
            kept = self.sink(len(data), self._decoder.decode(data))
            if kept or len(data) < CHUNK:
                return len(data) < CHUNK
        return True

    def drain(self):
        """Read what was written until now, and no more: a process in the background may write for ever."""
        held = array.array("i", [0])
        fcntl.ioctl(self.reader, termios.FIONREAD, held)
        left = held[0]
        while left > 0:
            data = os.read(self.reader, min(left, CHUNK))
            left -= len(data)
            self.sink(len(data), self._decoder.decode(data))

    def finish(self):
        """Read what is left when nobody writes any more; a character that was begun is a broken one."""
        self.drain()
        self.sink(0, self._decoder.decode(b"", True))

    def close(self):
        """Close both ends."""
        os.close(self.reader)
        os.close(self.writer)
