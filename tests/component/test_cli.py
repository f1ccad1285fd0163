"""What the command line shows of records and sessions, as a process of its own with an agent's rights.

What it does with files, streams and signals of real code is in `tests/e2e/test_cli.py`.
"""

import json
from collections.abc import Iterator

import pytest
from cluster_tools import Admin, a_name
from command_line import CommandLine, without_waits
from component_stage import LIMITS, Stage

pytestmark = pytest.mark.usefixtures("operator")

SMALL = ("--cpu", LIMITS["cpu"], "--memory", LIMITS["memory"], "--timeout", "600")
HELLO = ("-c", 'print("hello")')


@pytest.fixture
def codeexec(stage: Stage) -> CommandLine:
    return CommandLine(stage.agent_kubeconfig())


@pytest.fixture
def session(codeexec: CommandLine) -> Iterator[str]:
    done = codeexec("run", *SMALL, "--new-session", "-o", "json", *HELLO)
    assert done.returncode == 0, done.stderr
    name = json.loads(done.stdout)["session"]
    yield name
    codeexec("sessions", "end", name)


def test_get_lists_and_shows_records(codeexec: CommandLine, admin: Admin, agent: str) -> None:
    admin.submit(other := a_name("other"), 'print("hello")', limits=LIMITS, timeoutSeconds=600)
    result = json.loads(codeexec("run", *SMALL, "--agent", agent, "-o", "json", *HELLO).stdout)
    every = json.loads(codeexec("get", "-o", "json").stdout)
    assert {other, result["name"]} <= {one["metadata"]["name"] for one in every["items"]}, "control"
    listed = json.loads(codeexec("get", "--agent", agent, "-o", "json").stdout)
    assert [one["metadata"]["name"] for one in listed["items"]] == [result["name"]]
    record = admin.execution(result["name"])
    shown = json.loads(codeexec("get", result["name"], "-o", "json").stdout)
    assert {key: shown[key] for key in ("apiVersion", "kind")} == {key: record[key] for key in ("apiVersion", "kind")}
    assert shown["status"]["codeDigest"] == record["status"]["codeDigest"]
    text = codeexec("get", result["name"]).stdout
    assert "EGRESS CLOSED" in text
    assert record["status"]["podName"] in text


def test_sessions_are_listed_shown_and_ended(codeexec: CommandLine, session: str, admin: Admin) -> None:
    row = next(line for line in codeexec("sessions").stdout.splitlines() if line.startswith(session))
    assert row.split()[1:3] == ["codeexec-cli", "Ready"]
    assert json.loads(codeexec("sessions", session, "-o", "json").stdout)["metadata"]["name"] == session
    pod = admin.get("codesession", session)["status"]["podName"]
    assert codeexec("sessions", "end", session).stdout == f"{session} is being ended\n"
    admin.wait_until_gone("pod", pod)
    refused = codeexec("run", "--session", session, *HELLO)
    assert (refused.stdout, refused.returncode) == ("", 1)
    assert "SessionEnded" in refused.stderr


def test_what_waits_for_a_human_says_so_and_runs_when_one_has_approved_it(
    codeexec: CommandLine, policy, stage: Stage, agent: str, approver: Admin
) -> None:
    policy(maxLimits={"memory": "64Mi"}, withApproval={"maxLimits": {"memory": "256Mi"}})
    with codeexec.start("run", "--cpu", "100m", "--memory", "128Mi", "--agent", agent, *HELLO) as process:
        try:
            said = next(line for line in process.stderr if without_waits(line))
            assert said.startswith("codeexec: waiting (until ")
            name = said.split("`kubectl codeexec approve ")[1].split()[0]
            stage.never_ran(stage.record(agent))
            done = CommandLine(approver.kubeconfig)("approve", name)
            assert done.returncode == 0, done.stderr
            output, errors = process.communicate(timeout=110)
        finally:
            process.terminate()
    assert (output, without_waits(errors), process.returncode) == ("hello\n", "", 0)
