"""The command line, as a process of its own with an agent's rights.

What it shows of records and sessions is in `tests/component/test_cli.py`.
"""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from cluster_tools import a_name
from command_line import CommandLine, without_waits

SMALL = ("--cpu", "100m", "--memory", "96Mi")
"""The node starts a few pods at a time only. Examples and the doctor run with what users get by default."""


@pytest.fixture
def codeexec(agent_kubeconfig: str) -> CommandLine:
    return CommandLine(agent_kubeconfig)


@pytest.fixture
def start(codeexec) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command line without waiting for it; what still runs after the test is stopped."""
    started = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        started.append(codeexec.start(*arguments))
        return started[-1]

    yield begin
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def session(codeexec) -> Iterator[str]:
    done = codeexec("run", *SMALL, "--new-session", "-o", "json", "-c", "open('made', 'w').write('by code')")
    assert done.returncode == 0, done.stderr
    name = json.loads(done.stdout)["session"]
    yield name
    codeexec("sessions", "end", name)


def test_run_gives_both_streams_the_exit_code_and_the_files(codeexec, tmp_path):
    (tmp_path / "input.txt").write_text("from here")
    code = """
import sys
print(open('data/in.txt').read())
print('to stderr', file=sys.stderr)
open('made.bin', 'wb').write(bytes(range(256)) * 5000)
sys.exit(7)
"""
    files = ("-f", f"{tmp_path}/input.txt:data/in.txt", "--artifacts", str(tmp_path / "artifacts"))
    done = codeexec("run", *SMALL, "-c", code, *files)
    assert (done.stdout, without_waits(done.stderr), done.returncode) == ("from here\n", "to stderr\n", 7)
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["made.bin"]
    assert (tmp_path / "artifacts" / "made.bin").read_bytes() == bytes(range(256)) * 5000


def test_output_comes_while_the_code_runs_and_ctrl_c_stops_it(start, admin):
    agent = a_name("ctrl-c")
    running = start(
        "run",
        *SMALL,
        "--timeout",
        "300",
        "--agent",
        agent,
        "-c",
        "print('first', flush=True)\nimport time\ntime.sleep(280)",
    )
    assert running.stdout.readline() == "first\n"
    name = admin.running_execution(agent)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=100)
    assert (stdout, running.returncode) == ("", 130)
    assert "Code execution was cancelled." in stderr
    assert admin.phase(name) == "Cancelled"


def test_logs_follow_what_runs_and_cancel_ends_it(start, codeexec, admin):
    agent = a_name("logs")
    code = "import time\nprint('so far', flush=True)\ntime.sleep(280)"
    running = start("run", *SMALL, "--timeout", "300", "--agent", agent, "-c", code)
    name = admin.running_execution(agent)
    following = start("logs", "-f", name)
    assert following.stdout.readline() == "so far\n"
    assert admin.phase(name) == "Running"
    now = codeexec("logs", name)
    assert (now.stdout, now.returncode) == ("so far\n", 0)
    assert now.stderr == f"codeexec: {name} has not ended; use -f to follow its output\n"
    assert codeexec("cancel", name).stdout == f"{name} is being stopped\n"
    stdout, stderr = following.communicate(timeout=100)
    assert (stdout, following.returncode) == ("", 0)
    assert "Code execution was cancelled." in stderr
    assert running.wait(timeout=100) == 130
    after = codeexec("logs", name)
    assert (after.stdout, after.returncode) == ("so far\n", 0)


def test_session_keeps_files_that_cp_brings_and_takes(codeexec, session, tmp_path):
    content = bytes(range(256)) * 8000
    (tmp_path / "large").write_bytes(content)
    assert codeexec("cp", str(tmp_path / "large"), f"{session}:in/large").returncode == 0
    code = "import os; print(os.path.getsize('in/large'), open('made').read())"
    assert codeexec("run", "--session", session, "-c", code).stdout == f"{len(content)} by code\n"
    assert codeexec("cp", f"{session}:in/large", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == content
    made = codeexec("run", "--session", session, "-c", "open('new', 'w')", "--artifacts", str(tmp_path / "artifacts"))
    assert made.returncode == 0, made.stderr
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["new"]


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["outcome"], one["found"]) for one in json.loads(done.stdout)}


def test_doctor_finds_nothing_wrong_with_an_agent(codeexec):
    done = codeexec("doctor", "-o", "json")
    found = findings(done)
    checks = ["API server", "clock", "kinds", "rights", "execution", "network", "isolation", "versions"]
    assert list(found) == checks, done.stdout
    assert {outcome for outcome, _ in found.values()} == {"ok"}, done.stdout
    assert done.returncode == 0
