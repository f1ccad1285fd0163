"""A Python that waits for the first block of the next job, seen from the runner. Standard library only.

It holds no code and has done nothing but start. It is used once, or killed before a block of another kind runs.
"""

import os
import signal

from interpreter import Interpreter
from output import Pipe


class Standby:
    """At most one process."""

    def __init__(self, children, confinement, environment, nothing):
        self._children = children
        self._confinement = confinement
        self._environment = environment
        self._nothing = nothing
        self._waiting = self._limits = None
        self._pipes = ()

    @property
    def waits(self):
        """Whether there is one."""
        return self._waiting is not None

    def prepare(self, pids, file_bytes):
        """Start one if there is none; for the limits see `Confinement.apply`."""
        if self._waiting:
            return
        self._limits = (pids, file_bytes)
        self._pipes = (Pipe(), Pipe())
        streams = (self._nothing, *(pipe.writer for pipe in self._pipes))

        def confine():
            self._confinement.apply(pids, file_bytes)

        self._waiting = Interpreter(self._children, self._environment, streams, confine)

    def take(self, pids, file_bytes):
        """The process and its pipes if there is one with these limits; otherwise None, and it is killed."""
        if self._waiting is None:
            return None
        if self._limits != (pids, file_bytes) or self._children.status(self._waiting.pid) is not None:
            self.drop()
            return None
        taken = self._waiting, self._pipes
        self._waiting, self._pipes = None, ()
        return taken

    def drop(self):
        """Kill it."""
        if self._waiting is None:
            return
        pid = self._waiting.pid
        if self._children.status(pid) is None:
            os.kill(pid, signal.SIGKILL)
            self._children.await_end(pid)
        self._children.forget(pid)
        self._waiting.release()
        for pipe in self._pipes:
            pipe.close()
        self._waiting, self._pipes = None, ()
