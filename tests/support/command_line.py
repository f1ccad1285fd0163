"""`codeexec` as a process of its own, with the rights of one kubeconfig."""

import os
import subprocess
import sys
from pathlib import Path

from cluster_tools import SANDBOX

BIN = Path(sys.executable).parent


class CommandLine:
    """`codeexec` with the rights of one kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        path = f"{BIN}:{os.environ['PATH']}"
        own = {"KUBECONFIG": kubeconfig, "CODEEXEC_NAMESPACE": SANDBOX}
        self.environment = {"PATH": path, "HOME": os.environ["HOME"], **own}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["codeexec", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=110)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["codeexec", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def without_waits(stderr: str) -> str:
    """Without the lines that say what is waited for: where much else runs a pod or the operator takes more than 2 s."""
    reasons = ("PodStarting", "Unschedulable", "WaitingForOperator")
    starts = tuple(f"codeexec: waiting ({reason}): " for reason in reasons)
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith(starts))
