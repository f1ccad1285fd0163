"""An operator that is stopped while it is still starting ends at once, also as process 1 of a container."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STARTS = 'import sys, time\nprint("starts", flush=True)\nwhile True: time.sleep(0.01)\n'
"""Python handles a signal that comes just before a sleep only after the sleep."""
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Its child is process 1 of a PID namespace, as in a container."""


@pytest.fixture
def slow_to_import(tmp_path: Path) -> dict[str, str]:
    """An environment in which the first import of the operator does not end."""
    (tmp_path / "kopf.py").write_text(STARTS)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.suspect
def test_a_signal_during_the_imports_ends_it(slow_to_import: dict[str, str]) -> None:
    command = [*ALONE, sys.executable, "-m", "codeexec_operator"]
    with subprocess.Popen(command, env=slow_to_import, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"starts\n"
        [child] = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        try:
            assert parent.wait(60) == 128 + signal.SIGTERM
        finally:
            parent.kill()
