"""Starts operators as forks of a process that has already imported the operator.

The imports take 1.7 s of CPU, and a component run starts an operator some 250 times. A fork has the environment, the
mount namespace, the log and the death signal that `OperatorProcess` gives to a program. libfaketime and coverage need a
program of their own, and so does a user who is not root.
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWNS: Final = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
"""Of linux/mount.h."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["codeexec_operator.process", "telling_operator"])


def can_start(environment: Mapping[str, str]) -> bool:
    """True if nothing in this environment has to be there before Python starts."""
    return os.geteuid() == 0 and not any(name == "LD_PRELOAD" or name.startswith("COV") for name in environment)


class Forked:
    """What `OperatorProcess` uses of `subprocess.Popen`, for a fork.

    Args:
        folder: where it runs; its empty `resolv.conf` is the operator's /etc/resolv.conf.
        environment: all of it.
        log: gets what it writes.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._process = _CONTEXT.Process(target=_operate, args=(folder, dict(environment), log), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """The same, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not ended within so many seconds.
        """
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("the operator", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _operate(folder: Path, environment: Mapping[str, str], log: Path) -> None:
    """Be an operator, in the fork."""
    # Here: the fork has both, and the process of the tests does not need them.
    import kubernetes.aio.config
    import kubernetes.config
    import telling_operator

    os.setpgid(0, 0)  # see control_plane.Program.start
    libc = ctypes.CDLL(None, use_errno=True)
    resolv_conf = str(folder / "resolv.conf").encode()
    for call in (
        lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        lambda: libc.unshare(_CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
        lambda: libc.mount(resolv_conf, b"/etc/resolv.conf", None, _MS_BIND, None),
    ):
        if call():
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.chdir(folder)
    with log.open("ab") as output:
        sys.stdout.flush()
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    for library in (kubernetes.config, kubernetes.aio.config):  # both read it when they were imported
        library.kube_config.KUBE_CONFIG_DEFAULT_LOCATION = environment["KUBECONFIG"]
    telling_operator.main()
