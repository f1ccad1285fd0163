"""Makes a process stand still, as on a machine that sleeps: its connections stay open."""

import os
import signal
import time
from pathlib import Path
from typing import Final

_LOOK_EACH: Final = 0.005
"""Seconds. A parent would be told, but a fork's parent is another process."""


def stop(pid: int) -> None:
    """Return when the last of its threads stands still, which on a busy machine is some time after the signal.

    Raises:
        FileNotFoundError: it has ended.
    """
    os.kill(pid, signal.SIGSTOP)
    while not all(map(_stands_still, Path(f"/proc/{pid}/task").iterdir())):
        time.sleep(_LOOK_EACH)


def _stands_still(thread: Path) -> bool:
    """True if its state, the first field after its name, is T; see proc(5)."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
