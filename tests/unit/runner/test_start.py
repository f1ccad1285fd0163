"""What the runner does before any code can come, in which order, and what it loads for that."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"
DEAR = {
    "hashlib": "OpenSSL: 6 ms and 4 MB",
    "_hashlib": "the same",
    "platform": "os.uname() tells the machine",
    "fractions": "no number needs this",
    "tempfile": "files have names of their own",
    "subprocess": "`processes.py` starts programs",
    "asyncio": "`channel.py` has a loop",
}


def modules(code: str) -> set[str]:
    """What a Python has loaded that has run this."""
    told = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); {code}; import json; print(json.dumps([*sys.modules]))"
    command = [sys.executable, "-I", "-S", "-B", "-c", told]
    return set(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))


def test_the_runner_starts_without_modules_that_cost_more_than_they_do() -> None:
    assert modules("import start, runner") & DEAR.keys() == set()


def test_the_control_a_module_that_is_loaded_is_seen() -> None:
    assert modules("import start, runner, hashlib") & DEAR.keys() >= {"hashlib", "_hashlib"}


def test_before_the_first_attempts_nothing_is_loaded_that_they_do_not_need() -> None:
    ours = {one.stem for one in SOURCES.glob("*.py")} - {"__main__"}
    assert modules("import start") & ours == {"start", "egress"}


EVENTS = """
import confinement, ctypes, egress, json
events = []
def told(name, function):
    def run(*arguments, **named):
        dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
        events.append([name, dumpable])
        return function(*arguments, **named)
    return run
egress._attempt = told("attempt", egress._attempt)
confinement.Confinement.layers = told("layers", confinement.Confinement.layers)
serve = told("serve", runner.serve)
def write_and_serve(pod):
    events.append(["proof", pod._report["egress"]])
    open(workspace.WORKSPACE + "/events", "w").write(json.dumps(events))
    return serve(pod)
runner.serve = write_and_serve
"""


@pytest.fixture
def answering(answers: bool) -> Any:
    """A port at which a server listens or does not. Nobody else gets the port meanwhile."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if answers:
            server.listen()
        yield server


@pytest.mark.parametrize("answers", [False, True])
def test_the_network_is_proven_before_any_code_can_come(sandbox: Any, answering: socket.socket, answers: bool) -> None:
    address, port = answering.getsockname()
    target = {"name": "test", "address": address, "port": port, "protocol": "TCP"}
    sandbox.environment["CODEEXEC_EGRESS_TARGETS"] = json.dumps([target])
    short = "import start\nstart.EGRESS_SECONDS = 0\n"  # what answers is not tried again
    report = sandbox.run("print(1)", before=EVENTS + short)
    assert (report.status, report.text()) == (0, "1\n")
    *before, (last, proof) = json.loads((sandbox.workspace / "events").read_text())
    assert last == "proof"
    assert [(one["name"], one["answered"]) for one in proof] == [("test", answers)]
    names = [name for name, _ in before]
    assert names == (["attempt", "layers"] if answers else ["attempt", "layers", "attempt", "attempt"])
    assert all(dumpable == 0 for _, dumpable in before), "nobody can read the runner's memory from the first attempt on"


def test_a_pod_whose_layers_do_not_hold_runs_nothing(sandbox: Any) -> None:
    broken = "import confinement\ndef fails(_): raise OSError(95, 'no filter')\nconfinement.Confinement.layers = fails"
    report = sandbox.run("print(1)", before=broken)
    assert report.status == 1
    assert "no filter" in report.errors
    assert report.raw == b""
