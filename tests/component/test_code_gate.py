"""Rules for code: what is noted, asked about and denied. No code runs that a rule denies, or that nobody can read.

That it is advice, and no isolation, is in `tests/e2e/test_code_gate.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, a_name, a_secret, a_session, an_approval, an_execution, announce
from component_stage import LIMITS, Stage
from release_fixtures import audit_lines

from executor_client import PreparedBlock

RULES = {"Deny": ["ctypes"], "NeedApproval": ["socket", "subprocess"], "Note": ["os"]}
ENDS = ("Succeeded", "Failed", "Denied", "Lost", "TimedOut")
SMALL = {"limits": LIMITS, "timeoutSeconds": 600}


def rules(**actions: list[str]) -> list[dict[str, Any]]:
    return [{"action": action, "imports": modules} for action, modules in actions.items()]


@pytest.fixture
def ruled(policy: Callable[..., None]) -> None:
    policy(codeRules=rules(**RULES))


@pytest.fixture
def ended(stage: Stage) -> Callable[..., dict[str, Any]]:
    """Gives the status of an execution that has ended. If it was denied, its code was handed to nobody."""

    def submit(code: str, *more: str, **spec: Any) -> dict[str, Any]:
        name = a_name("gate")
        stage.admin.submit(name, code, *more, **{**SMALL, **spec})
        return end_of(stage, name)

    return submit


def end_of(stage: Stage, name: str) -> dict[str, Any]:
    record = stage.admin.wait_for_phase(name, *ENDS)
    if record["status"]["phase"] == "Denied":
        assert "startedAt" not in record["status"]
        stage.never_ran(record)
    return record["status"]


def findings(status: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(one["found"], one["action"], *one["places"]) for one in status.get("codeFindings", ())]


# --- what is noted, and the control ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["import ctypes", "import os, socket, subprocess"])
def test_control_without_rules_the_same_code_runs_and_nothing_is_found(policy, ended, code):
    policy()
    status = ended(code)
    assert (status["phase"], findings(status)) == ("Succeeded", [])


def test_what_is_noted_runs_and_is_seen_with_kubectl_and_in_the_log(operator, stage, admin, ruled):
    name = a_name("noted")
    admin.submit(name, "import json", "import os.path as p\nprint('/')", **SMALL)
    status = end_of(stage, name)
    assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "/\n")
    assert findings(status) == [("import os", "Note", "spec.blocks[1]")]
    assert "import os" in admin.kubectl("-n", SANDBOX, "describe", "cex", name)

    lines = audit_lines(operator.log.read_text())
    ours = [one["record"] for one in lines if one.get("record", {}).get("name") == name]
    assert {tuple(one["codeFindings"]) for one in ours} == {("Note: import os",)}


# --- what is denied -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["!ls", "%run other.py", "print 'two'", "(" * 50_000, "x = 1\x00", "-" * 50_000 + "1"])
def test_what_can_not_be_read_is_denied_as_the_strictest_rule_says(ruled, ended, code):
    status = ended(code)
    assert (status["phase"], findings(status)) == ("Denied", [("unreadable Python", "Deny", "spec.blocks[0]")])


def test_files_that_can_be_imported_are_looked_at(stage, admin, ruled):
    name, code, module = a_name("files"), b"import helper", b"import ctypes"
    payload = {"block-0": code, "file-0": module, "file-1": module}
    files = [{"path": path, **announce(module)} for path in ("helper.txt", "pkg/helper.py")]
    admin.submit(name, code.decode(), payload=payload, files=files, **SMALL)
    status = end_of(stage, name)
    assert (status["phase"], findings(status)) == ("Denied", [("import ctypes", "Deny", "spec.files[1]")])


def test_other_languages_are_not_looked_at(stage, admin, ruled, ended):
    """Which is why `languages` is what forbids them: with bash, code starts Python."""
    code = "import ctypes\nprint(1)"
    assert ended(code)["phase"] == "Denied", "control: as Python it is looked at"
    name = a_name("bash")
    block = {"language": "bash", **announce(code.encode())}
    execution = an_execution(name, [block], requestedBy=admin.me, **SMALL)
    admin.create(a_secret(name, {"block-0": code.encode()}), execution)
    status = end_of(stage, name)
    assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "1\n")


async def test_code_is_looked_at_before_it_gets_a_pod_of_a_pool(ruled, stage, client, asking, agent, make_pool):
    pool = await make_pool(1)
    [ready] = pool.pods()
    denied = await client.execute((PreparedBlock("python", b"import ctypes"),), asking())
    assert (denied.exit_code, denied.reason) == (1, "PolicyViolation")
    record = stage.record(agent)
    assert "podName" not in record["status"]
    stage.never_ran(record)
    noted = (PreparedBlock("python", b'import os\nprint("ran")'),)
    ran = await client.execute(noted, asking(agent=f"{agent}-2"))
    status = stage.record(f"{agent}-2")["status"]
    assert (ran.output, status["poolName"], status["podName"]) == ("ran\n", pool.name, ready), "control"
    assert findings(status) == [("import os", "Note", "spec.blocks[0]")]


# --- what a human decides about -------------------------------------------------------------------------------------


def test_an_approval_of_something_else_does_not_count(stage, admin, ruled, approver):
    name = a_name("other")
    admin.submit(name, "import socket, subprocess\nprint('ran')", **SMALL)
    record = admin.wait_for_phase(name, "AwaitingApproval")
    wrong = [{"field": "spec.blocks[0]", "value": "import socket"}]
    approver.create(an_approval(record, approver.me, grants=wrong))

    def found_wanting(record: dict[str, Any]) -> bool:
        return [one["reason"] for one in record["status"]["approval"].get("unused", ())] == ["OtherGrants"]

    record = admin.wait_until("the approval to be found wanting", "cex", name, found_wanting)
    assert record["status"]["phase"] == "AwaitingApproval"
    stage.never_ran(record)
    approver.create(an_approval(record, approver.me))
    assert end_of(stage, name)["stdout"]["text"] == "ran\n", "control: an approval of exactly that counts"


# --- sessions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(admin: Admin, ruled: None) -> Iterator[str]:
    name = a_name("ruled")
    admin.create(a_session(name, requestedBy=admin.me, limits=LIMITS))
    yield name
    admin.delete("codesession", name)


def test_in_a_session_each_execution_is_looked_at(stage, admin, ended, session, approver):
    place = {"sessionRef": {"name": session}}
    assert ended("import os\nwrite('note')", **place)["phase"] == "Succeeded"
    assert ended("import ctypes", **place)["phase"] == "Denied"
    asks = a_name("asks")
    admin.submit(asks, "import socket\nshow('note')", **SMALL, **place)
    record = admin.wait_for_phase(asks, "AwaitingApproval")
    stage.never_ran(record)
    approver.create(an_approval(record, approver.me))
    status = end_of(stage, asks)
    assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "note 640\n")


# --- who ------------------------------------------------------------------------------------------------------------


def test_rules_of_an_agent_replace_the_others(admin, policy, ended):
    policy(codeRules=rules(Deny=["os"]))
    assert ended("import os")["phase"] == "Denied", "control"
    policy(codeRules=rules(Deny=["os"]), agentRules=[{"requestedBy": admin.me, "codeRules": rules(Note=["os"])}])
    status = ended("import os")
    assert (status["phase"], findings(status)) == ("Succeeded", [("import os", "Note", "spec.blocks[0]")])
