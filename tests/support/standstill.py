"""Makes a child process stand still, as on a machine that sleeps: its connections stay open."""

import os
import signal


def stop(pid: int) -> None:
    """Return when the last of its threads stands still, which on a busy machine is some time after the signal."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
