"""The command line, as a process of its own with an agent's rights, and as a plugin of kubectl."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_tools import SANDBOX, a_name

pytestmark = pytest.mark.e2e

BIN = Path(sys.executable).parent
SMALL = ("--cpu", "100m", "--memory", "96Mi")
"""The node starts a few pods at a time only. Examples and the doctor run with what users get by default."""


class CommandLine:
    """`codeexec` with the rights of one kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        path = f"{BIN}:{os.environ['PATH']}"
        own = {"KUBECONFIG": kubeconfig, "CODEEXEC_NAMESPACE": SANDBOX}
        self.environment = {"PATH": path, "HOME": os.environ["HOME"], **own}

    def __call__(self, *arguments: str, program: tuple[str, ...] = ("codeexec",)) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, *arguments], env=self.environment, capture_output=True, text=True, timeout=110)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["codeexec", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


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


def without_waits(stderr: str) -> str:
    """Without the lines that say what is waited for: on a busy node a pod or the operator takes more than 2 s."""
    reasons = ("PodStarting", "Unschedulable", "WaitingForOperator")
    starts = tuple(f"codeexec: waiting ({reason}): " for reason in reasons)
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith(starts))


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


def test_what_waits_for_a_human_says_so_and_runs_when_one_has_approved_it(start, codeexec, kubeconfig, policy):
    policy(maxLimits={"memory": "64Mi"}, withApproval={"maxLimits": {"memory": "256Mi"}})
    process = start("run", "--cpu", "100m", "--memory", "128Mi", "-c", "print('approved')")
    said = next(line for line in process.stderr if without_waits(line))
    assert said.startswith("codeexec: waiting (until ")
    name = said.split("`kubectl codeexec approve ")[1].split()[0]
    done = CommandLine(kubeconfig)("approve", name)
    assert done.returncode == 0, done.stderr
    output, errors = process.communicate()
    assert (output, without_waits(errors), process.returncode) == ("approved\n", "", 0)


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


def test_get_lists_and_shows_records(codeexec, admin):
    agent = a_name("get")
    result = json.loads(codeexec("run", *SMALL, "--agent", agent, "-o", "json", "-c", "print(1)").stdout)
    listed = json.loads(codeexec("get", "--agent", agent, "-o", "json").stdout)
    assert [one["metadata"]["name"] for one in listed["items"]] == [result["name"]]
    record = admin.execution(result["name"])
    shown = json.loads(codeexec("get", result["name"], "-o", "json").stdout)
    assert {key: shown[key] for key in ("apiVersion", "kind")} == {key: record[key] for key in ("apiVersion", "kind")}
    assert shown["status"]["codeDigest"] == record["status"]["codeDigest"]
    text = codeexec("get", result["name"]).stdout
    assert "EGRESS CLOSED" in text
    assert record["status"]["podName"] in text


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


def test_sessions_are_listed_shown_and_ended(codeexec, session, admin):
    row = next(line for line in codeexec("sessions").stdout.splitlines() if line.startswith(session))
    assert row.split()[1:3] == ["codeexec-cli", "Ready"]
    assert json.loads(codeexec("sessions", session, "-o", "json").stdout)["metadata"]["name"] == session
    pod = admin.get("codesession", session)["status"]["podName"]
    assert codeexec("sessions", "end", session).stdout == f"{session} is being ended\n"
    admin.wait_until_gone("pod", pod)
    refused = codeexec("run", "--session", session, "-c", "print(1)")
    assert (refused.stdout, refused.returncode) == ("", 1)
    assert "SessionEnded" in refused.stderr


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["outcome"], one["found"]) for one in json.loads(done.stdout)}


def test_doctor_finds_nothing_wrong_with_an_agent(codeexec):
    done = codeexec("doctor", "-o", "json")
    found = findings(done)
    checks = ["API server", "clock", "kinds", "rights", "execution", "network", "isolation", "versions"]
    assert list(found) == checks, done.stdout
    assert {outcome for outcome, _ in found.values()} == {"ok"}, done.stdout
    assert done.returncode == 0


def test_doctor_names_the_rights_that_are_missing(codeexec, kubeconfig_of, admin):
    account = a_name("nobody")
    meta = {"name": account, "namespace": SANDBOX}
    admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    try:
        done = CommandLine(kubeconfig_of(SANDBOX, account))("doctor", "-o", "json")
    finally:
        admin.delete("serviceaccount", account)
    found = findings(done)
    assert found["rights"][0] == "failed"
    assert "create codeexecutions.codeexec.dev" in found["rights"][1]
    assert found["execution"] == ("unknown", "no code was run, because a check failed")
    assert done.returncode == 1
    assert findings(codeexec("doctor", "--no-run", "-o", "json"))["rights"][0] == "ok"


def test_doctor_looks_for_the_runtime_class(codeexec, kubeconfig):
    done = CommandLine(kubeconfig)("doctor", "--no-run", "--runtime-class", "nothing", "-o", "json")
    assert findings(done)["runtime class"][0] == "failed"
    assert done.returncode == 1
    asked_by_agent = codeexec("doctor", "--no-run", "--runtime-class", "nothing", "-o", "json")
    assert findings(asked_by_agent)["runtime class"][0] == "unknown"


def test_it_is_a_plugin_of_kubectl(codeexec):
    plugin = ("kubectl", "codeexec")
    assert "version" in codeexec("--version", program=plugin).stdout
    done = codeexec("get", "-n", SANDBOX, "--limit", "1", program=plugin)
    assert (done.stdout.split()[0], done.returncode) == ("NAME", 0)
    refused = codeexec("get", "-n", "kube-system", program=plugin)
    assert refused.returncode == 1
    assert "in namespace 'kube-system'" in refused.stderr
