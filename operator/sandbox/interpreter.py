"""A Python that runs one block, seen from the runner. It may start before the block is known. Standard library only."""

import contextlib
import os

from source import Source

COMMAND = ["python3"]
"""What the operator calls it."""
_PROGRAM = f"{os.path.dirname(os.path.abspath(__file__))}/python_main.py"


class Interpreter:
    """One process, confined as user code is; it has run nothing but Python's own startup until `run`."""

    def __init__(self, children, environment, streams, confine):
        self._source = Source()
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        inherited = (orders, self._source.descriptor)
        # -s: without packages that code has installed for its user, in the workspace.
        command = [*COMMAND, "-s", _PROGRAM, *map(str, inherited)]
        self.pid = children.start(command, environment, streams, confine, inherited)
        os.close(orders)

    def run(self, path, block):
        """Have it run a block, under this name, as `python3 PATH` does."""
        try:
            self._source.seal(block)
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its status says how
                os.write(self._orders, os.fsencode(path) + b"\0")
        finally:
            self.release()

    def release(self):
        """Close what is held of it. If nothing is to be run, it ends."""
        os.close(self._orders)
        self._source.close()
