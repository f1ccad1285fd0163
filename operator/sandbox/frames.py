"""What the runner says of its latest job: each frame is kept until the operator has it. Standard library only.

An operator that attaches later, or again, asks for the frames from a number on. Kept frames count as memory of the pod,
so they are bounded: beyond KEPT_BYTES the oldest go.
"""

import collections

from channel import encoded, send, write

KEPT_BYTES = 4 * 1024 * 1024


class Frames:
    """The frames of one job after the other."""

    def __init__(self):
        self.job = None
        self._begun = set()
        self._kept = collections.deque()
        self._kept_bytes = 0
        self._next = 0

    def begins(self, job):
        """Whether this job is a new one. Nothing is run twice, whoever says so."""
        if job in self._begun:
            return False
        self._begun.add(job)
        self.forget()
        self.job, self._next = job, 0
        return True

    @property
    def any_begun(self):
        """Whether code may have run in this pod."""
        return bool(self._begun)

    def send(self, **fields):
        """Send the next frame of the job."""
        self._add({"id": self.job, "seq": self._next, **fields})

    def fail(self, message):
        """Say that the job could not be run. Nothing comes after that."""
        self._add({"id": self.job, "seq": -1, "error": message})

    def replay(self, job, start):
        """Send the frames of a job again, from number `start` on, or say why that can't be."""
        missing = None
        if job not in self._begun:
            missing = "NeverBegun"
        elif job != self.job:
            missing = "Forgotten"
        elif start < self._next - len(self._kept):
            missing = "Overflowed"
        if missing:
            send(resumed=job, missing=missing)
            return
        send(resumed=job)
        first = self._next - len(self._kept)
        for line in list(self._kept)[max(0, start - first) :]:
            write(line)

    def forget(self):
        """The operator has all frames."""
        self._kept.clear()
        self._kept_bytes = 0

    def _add(self, frame):
        line = encoded(frame) + b"\n"
        self._next += 1
        self._kept.append(line)
        self._kept_bytes += len(line)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
        write(line)
