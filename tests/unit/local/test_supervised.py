"""How a block ends by what its supervisor says, which is played here."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from codeexec_api import Event
from executor_client.exceptions import ExecutionNotStarted
from executor_client.local import supervised
from executor_client.local.plan import Plan
from executor_client.local.record import Output
from executor_client.model.results import OutputChunk

SUPERVISOR = """
import socket
control = socket.socket(fileno=0)
control.makefile("rb").readline()
control.sendall(b'{"started": true}\\n')
WAIT
control.sendall(b'{"failed": "sandlock: it did not start"}\\n')
"""
PLAN = Plan((), "/", {}, (), (), 1, 1, 1, None, 1, (), (), {})


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(SUPERVISOR.replace("WAIT", request.param))
    monkeypatch.setattr(supervised, "_WORKER", worker)


@pytest.mark.parametrize("played", ["control.recv(1)  # until the block is to end"], indirect=True)
async def test_what_ends_while_its_sandbox_starts_ends_as_it_was_asked_to(played: None, make: Any, run: Any) -> None:
    result = await run(make(timeout=1), "print(1)")
    assert (result.exit_code, result.reason) == (124, "DeadlineExceeded")


@pytest.mark.parametrize("played", [""], indirect=True)
async def test_the_control_a_sandbox_that_does_not_start_is_an_error(played: None, make: Any, run: Any) -> None:
    with pytest.raises(ExecutionNotStarted, match="sandlock: it did not start; nothing was run"):
        await run(make(timeout=60), "print(1)")


def test_a_supervisor_that_can_not_be_started_is_an_error_that_says_so() -> None:
    """As where the caller may open no more files."""
    with pytest.raises(ExecutionNotStarted, match=r"supervisor of the block can't be started: No such file or direct"):
        supervised.run_block("/nowhere/python", PLAN, 60, Output(1), supervised.Stop())


@pytest.mark.parametrize(
    "played",
    [
        """
print(1, flush=True)
control.sendall(b'{"exit": 0, "killed": false}\\n')
control.close()
open(__file__ + ".over", "w").close()  # when somebody reads it
raise SystemExit"""
    ],
    indirect=True,
)
def test_what_has_ended_in_time_has_not_timed_out_if_this_process_stood_still(
    played: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit passes after the block has ended, and before its end is read."""
    over, now = Path(f"{supervised._WORKER}.over"), 0.0
    os.mkfifo(over)
    monkeypatch.setattr(supervised, "time", SimpleNamespace(monotonic=lambda: now))

    def stand_still(_: OutputChunk) -> None:
        nonlocal now
        over.read_text()
        now += 3600

    end = supervised.run_block(sys.executable, PLAN, 60, Output(1024, stand_still), supervised.Stop())
    assert (end.event, end.exit_code) == (Event.EXITED_ZERO, 0)
