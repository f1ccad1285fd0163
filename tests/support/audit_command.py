"""`codeexec audit` as a process of its own, and the operator's log while nothing is written to it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cluster_tools import Admin, wait_for
from release_fixtures import audit_lines, operator_log

T = TypeVar("T")
BIN = Path(sys.executable).parent


class AuditCommand:
    def __init__(self, kubeconfig: str) -> None:
        path = f"{BIN}:{os.environ['PATH']}"
        self._environment = {"PATH": path, "KUBECONFIG": kubeconfig, "HOME": os.environ["HOME"]}

    def __call__(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = ["codeexec", "audit", *arguments]
        return subprocess.run(
            command, env=self._environment, input=stdin, capture_output=True, text=True, timeout=110, check=False
        )

    def verify(self, *logs: str, stdin: str | None = None) -> list[dict[str, str]]:
        """The findings."""
        done = self("verify", *logs, "-o", "json", stdin=stdin)
        found = json.loads(done.stdout)
        assert done.returncode == (0 if found["ok"] else 1), done.stderr
        return found["findings"]


def while_nothing_is_written(admin: Admin, doing: Callable[[str], T]) -> T:
    """What `doing` gives for the operator's log, if no audit line was written meanwhile; else it is done again.

    Records are read after the log: one that is written in between would know of a line that the log doesn't have.
    """

    def probe() -> tuple[T] | None:
        log = operator_log(admin)
        found = doing(log)
        return (found,) if audit_lines(operator_log(admin)) == audit_lines(log) else None

    [found] = wait_for("the operator to write nothing while its log is looked at", probe)
    return found
