"""How a block ends by what its supervisor says, which is played here."""

from pathlib import Path
from typing import Any

import pytest

from executor_client.exceptions import ExecutionNotStarted
from executor_client.local import supervised
from executor_client.local.plan import Plan
from executor_client.local.record import Output

SUPERVISOR = """
import socket
control = socket.socket(fileno=0)
control.makefile("rb").readline()
control.sendall(b'{"started": true}\\n')
WAIT
control.sendall(b'{"failed": "sandlock: it did not start"}\\n')
"""


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
    plan = Plan((), "/", {}, (), (), 1, 1, 1, None, 1, (), (), {})
    with pytest.raises(ExecutionNotStarted, match=r"supervisor of the block can't be started: No such file or direct"):
        supervised.run_block("/nowhere/python", plan, 60, Output(1), supervised.Stop())
