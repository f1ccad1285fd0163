"""The control plane that tests start: it ends with them, and says why it doesn't start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cluster_tools import ROOT, wait_for
from control_plane import ControlPlane, hyperkube

STARTS_AND_WAITS = """
import sys, pathlib
from control_plane import ControlPlane
with ControlPlane(pathlib.Path(sys.argv[1]), programs=["etcd"]) as plane:
    print(plane.programs["etcd"].pid, flush=True)
    sys.stdin.read()
"""


def test_it_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path):
    path = os.pathsep.join((str(ROOT / "tests" / "support"), *sys.path))
    command = [sys.executable, "-c", STARTS_AND_WAITS, str(tmp_path / "plane")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdin=pipe, stdout=pipe, text=True) as child:
        etcd = psutil.Process(int(child.stdout.readline()))
        assert etcd.name() == "etcd", "control"
        child.send_signal(signal.SIGKILL)

    def ended() -> bool:
        try:
            return etcd.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for("etcd to end", ended)


def test_a_program_that_does_not_start_says_why(tmp_path: Path):
    plane = ControlPlane(tmp_path / "plane", programs=["kube-apiserver"], api_server_arguments=["--no-such-flag"])
    with pytest.raises(RuntimeError, match="unknown flag: --no-such-flag"), plane:
        pass


def test_a_missing_binary_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("CODEEXEC_HYPERKUBE", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="absent is no program: run `make control-plane`"):
        hyperkube()


def test_each_has_its_own_address_and_ports(tmp_path: Path):
    one, other = (ControlPlane(tmp_path / name) for name in ("one", "other"))
    assert one.address == other.address, "that of this process"
    assert one.url != other.url
