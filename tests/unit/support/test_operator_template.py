"""Operators that are forks: they behave as programs do."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from operator_template import Forked, can_start

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a mount namespace without a user namespace")


def started(folder: Path, environment: Mapping[str, str] | None = None) -> Forked:
    (folder / "resolv.conf").write_text("")
    return Forked(folder, {"KUBECONFIG": "", **(environment or {})}, folder / "log")


@as_root
def test_its_exit_code_is_told_and_its_words_are_in_its_log(tmp_path: Path) -> None:
    operator = started(tmp_path, {"CODEEXEC_HEALTH_PORT": "none"})
    assert (operator.wait(60), operator.poll()) == (1, 1)
    said = (tmp_path / "log").read_text()
    assert "invalid settings" in said
    assert "health_port" in said, "control: it has the environment that it was given"
    operator.kill()


@as_root
def test_it_is_ended_by_a_signal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")  # it waits for a reader
    operator = started(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        operator.wait(0.1)
    assert operator.poll() is None
    operator.kill()
    assert operator.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("name", ["LD_PRELOAD", "COVERAGE_PROCESS_CONFIG"])
def test_what_has_to_be_there_before_python_starts_takes_a_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert can_start({"PATH": "/bin"})
    assert not can_start({"PATH": "/bin", name: "1"})


def test_without_root_it_takes_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not can_start({})
