"""A Python that waits for the first block of the next job, seen from the runner. Standard library only.

It holds no code and has done nothing but start. It is used once, or killed before a block of another kind runs.
"""

import contextlib
import os
import signal

import workspace
from output import Pipe

_HERE = os.path.dirname(os.path.abspath(__file__))


class Standby:
    """At most one process."""

    def __init__(self, children, confinement, environment, nothing):
        self._children = children
        self._confinement = confinement
        self._environment = environment
        self._nothing = nothing
        self._pid = self._limits = self._orders = None
        self._pipes = ()

    def prepare(self, pids, file_bytes):
        """Start one if there is none; for the limits see `Confinement.apply`."""
        if self._pid is not None or _has_packages_of_its_user():
            return
        self._limits = (pids, file_bytes)
        self._pipes = (Pipe(), Pipe())
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        streams = (self._nothing, *(pipe.writer for pipe in self._pipes))
        command = ["python3", f"{_HERE}/standby_python.py", str(orders)]

        def confine():
            os.set_inheritable(orders, True)
            self._confinement.apply(pids, file_bytes)

        self._pid = self._children.start(command, self._environment, streams, confine)
        os.close(orders)

    def take(self, pids, file_bytes):
        """The process, as `Taken`, if there is one with these limits; otherwise None, and it is killed."""
        if self._pid is None:
            return None
        usable = self._limits == (pids, file_bytes) and self._children.status(self._pid) is None
        if not usable or _has_packages_of_its_user():
            self.drop()
            return None
        taken = Taken(self._pid, self._pipes, self._orders)
        self._pid = self._orders = None
        self._pipes = ()
        return taken

    def drop(self):
        """Kill it."""
        if self._pid is None:
            return
        if self._children.status(self._pid) is None:
            os.kill(self._pid, signal.SIGKILL)
            self._children.await_end(self._pid)
        self._children.forget(self._pid)
        os.close(self._orders)
        for pipe in self._pipes:
            pipe.close()
        self._pid = self._orders = None
        self._pipes = ()


class Taken:
    """A process that somebody has taken over."""

    def __init__(self, pid, pipes, orders):
        self.pid, self.pipes = pid, pipes
        self._orders = orders

    def run(self, path):
        """Have it run a file of the workspace."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its status says how
            os.write(self._orders, os.fsencode(path) + b"\0")
        os.close(self._orders)

    def release(self):
        """Nothing is to be run after all: it ends."""
        os.close(self._orders)


def _has_packages_of_its_user():
    """Whether Python, when it starts, would look at what code or caller have put into the workspace for that."""
    return os.path.lexists(f"{workspace.WORKSPACE}/.local")
