"""The connection to the operator: JSON, one object a line, in on stdin and out on stdout. Standard library only."""

import base64
import collections
import json
import os
import select
import selectors
import time
import zlib

CHUNK = 64 * 1024
PACKED_FROM = 4096
GZIP = 31  # wbits of zlib: with the header of gzip


class Loop:
    """Calls whoever has something to read, until what is waited for has come."""

    def __init__(self):
        # Unlike epoll, poll costs code nothing when it writes while nobody waits.
        self._selector = selectors.PollSelector()
        self._urgent = []

    def add(self, descriptor, react, *, urgent=False):
        """Call `react` when the descriptor is readable. It returns True if it pays to wait a little for more.

        False: there is more already, so nobody waits. An urgent one is called during that wait, too.
        """
        self._selector.register(descriptor, selectors.EVENT_READ, react)
        if urgent:
            self._urgent.append(descriptor)

    def remove(self, descriptor):
        """Forget a descriptor, before it is closed."""
        self._selector.unregister(descriptor)

    def serve(self, finished, deadline=None, collect=0.0):
        """Wait for `finished()`, asked after every round; False if the deadline (of time.monotonic) comes first.

        `collect` is how many seconds to wait where it pays.
        """
        while not finished():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            said = [key.data() for key, _ in self._selector.select(left)]
            if collect and True in said and False not in said:
                self._collect(finished, collect)
        return True

    def _collect(self, finished, seconds):
        """Wait for more. Processes that end don't shorten it: with one after the other, code would make many frames."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            urgent, _, _ = select.select(self._urgent, (), (), left)
            for descriptor in urgent:
                self._selector.get_key(descriptor).data()
            if not urgent or finished():
                break


class Input:
    """What the operator says. While a job runs, `begin` says what is heeded; the rest waits in order.

    Each message has an epoch, which grows with each leader among the operators, and with each connection of one. After
    the first message of an epoch, older ones are refused: what is left of an operator before this one can't interfere.
    """

    def __init__(self, loop):
        self.ended = False
        self.cancelled = False
        self._epoch = []
        self._job = self._answer = None
        self._loop = loop
        self._pieces = []
        self._waiting = collections.deque()
        loop.add(0, self._read)

    def next(self, deadline=None):
        """The next message, {"garbled": True} for a line that is none; None if stdin or the time ends before."""
        self._loop.serve(lambda: self._waiting or self.ended, deadline)
        return self._waiting.popleft() if self._waiting else None

    def begin(self, job, answer):
        """A job runs: heed what cancels it, also in what has come already. `answer` returns True for what it takes."""
        self._job, self._answer, self.cancelled = job, answer, False
        self._sift()

    @property
    def cancels(self):
        """Whether somebody has asked to end a job that has not begun, or nobody wants any."""
        return self.ended or any("cancel" in message for message in self._waiting)

    def end(self):
        """No job runs."""
        self._job = self._answer = None

    def _read(self):
        data = os.read(0, CHUNK)
        if not data:  # the operator is gone; the limits of the pod stand
            self.ended = True
            self._loop.remove(0)
            return
        first, *others = data.split(b"\n")
        self._pieces.append(first)
        for piece in others:
            self._take(b"".join(self._pieces))
            self._pieces = [piece]
        self._sift()

    def _take(self, line):
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            message = {"garbled": True, "epoch": self._epoch}
        epoch = message.pop("epoch", [])
        if epoch < self._epoch:
            send(refused=epoch)
            return
        if epoch > self._epoch:
            self._epoch = epoch
            self._waiting.clear()  # of an operator, or a connection, that is no more
        self._waiting.append(message)

    def _sift(self):
        if self._job is None:
            return
        waiting, self._waiting = self._waiting, collections.deque()
        for message in waiting:
            if message.get("cancel") in (True, self._job):
                self.cancelled = True
            elif not self._answer(message):
                self._waiting.append(message)


def send(**frame):
    """Write one line to stdout."""
    write(encoded(frame) + b"\n")


def write(line):
    """Write to stdout, completely."""
    line = memoryview(line)
    while line:
        line = line[os.write(1, line) :]


def encoded(value):
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def text_fields(text):
    """A text as fields of a frame: `data`, or what `data_fields` makes of it where that is shorter."""
    raw = text.encode()
    fields = data_fields(raw)
    if "gzip64" in fields or len(encoded(text)) - 2 > len(fields["data64"]):
        return fields
    return {"data": text}


def data_fields(raw):
    """Bytes as fields of a frame: `gzip64` where there are many and that is shorter, else `data64`.

    Each byte that is sent is written, encrypted and stored several times until a caller has it.
    """
    if len(raw) >= PACKED_FROM:
        packed = zlib.compress(raw, 1, GZIP)
        if len(packed) < len(raw):
            return {"gzip64": base64.b64encode(packed).decode()}
    return {"data64": base64.b64encode(raw).decode()}
