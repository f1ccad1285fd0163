"""The runner and the code: same user, but the code can't get at the runner."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).parents[3] / "operator" / "sandbox"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the runner as another user")


def test_outside_a_pid_namespace_the_runner_refuses_to_start() -> None:
    """Safe: its first act is to look at its own process number."""
    result = subprocess.run([sys.executable, "-I", "-B", str(RUNNER)], input=b"{}\n", capture_output=True, check=False)
    assert result.returncode == 1
    assert b"must be PID 1" in result.stderr
    assert result.stdout == b""


def test_an_end_of_stdin_before_a_job_is_named(sandbox: Any) -> None:
    result = subprocess.run(sandbox.command(), input=b"", capture_output=True, check=False)
    assert result.returncode == 1
    assert b"stdin ended before a job arrived" in result.stderr


@needs_root
@pytest.mark.parametrize(
    "attempt",
    [
        "open('/proc/1/mem', 'rb+')",
        "open('/proc/1/fd/1', 'wb')",
        "open('/proc/1/fd/0', 'rb')",
        "open('/proc/1/environ', 'rb').read()",
        "os.listdir('/proc/1/fd')",
        "os.readlink('/proc/1/cwd')",
        "os.pidfd_open(1) and ptrace(16, 1)",
    ],
)
def test_code_of_the_same_user_can_not_reach_into_the_runner(attempt: str, run: Any) -> None:
    code = f"""
import ctypes, os
def ptrace(request, pid):
    if ctypes.CDLL(None, use_errno=True).ptrace(request, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
assert os.getuid() != 0
try:
    {attempt}
except PermissionError:
    print("refused")
"""
    report = run(code)
    assert (report.text(), report.endings) == ("refused\n", [(0, "Completed")])


@needs_root
def test_the_positive_control_a_dumpable_process_of_the_same_user_can_be_read(run: Any) -> None:
    code = (
        "import os, time\nif (pid := os.fork()) == 0: time.sleep(60)\nelse: print(bool(os.listdir(f'/proc/{pid}/fd')))"
    )
    assert run(code).text() == "True\n"


@pytest.mark.parametrize("number", [1, 2, 9, 10, 15, 17, 19])
def test_code_can_not_signal_the_runner(number: int, run: Any) -> None:
    code = f"""
import os
os.kill(os.getpid(), 0)
try:
    os.kill(1, {number})
except PermissionError:
    print("refused")
"""
    report = run(code)
    assert report.text() == "refused\n"
    assert report.totals["done"]
