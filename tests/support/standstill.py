"""Makes a process stand still, as on a machine that sleeps: its connections stay open."""

import os
import signal
from pathlib import Path

from cluster_tools import wait_for


def stop(pid: int) -> None:
    """Return when the last of its threads stands still, which on a busy machine is some time after the signal.

    Its parent would be told, but the parent of a fork is another process.

    Raises:
        FileNotFoundError: it has ended.
    """
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_for(f"process {pid} to stand still", lambda: all(map(_stands_still, tasks.iterdir())))


def _stands_still(thread: Path) -> bool:
    """True if its state, the first field after its name, is T; see proc(5)."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
