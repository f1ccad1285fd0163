"""Rules for code on a real cluster: what is noted, asked about and denied; and that it is advice, and no isolation."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import (
    SANDBOX,
    SYSTEM,
    Admin,
    a_name,
    a_secret,
    a_session,
    an_approval,
    an_execution,
    announce,
)
from release_fixtures import audit_lines, operator_log

from executor_client import ClusterRef, CodeExecutionClient, Limits

pytestmark = pytest.mark.e2e

LIMITS = {"cpu": "100m", "memory": "64Mi"}
RULES = {"Deny": ["ctypes"], "NeedApproval": ["socket", "subprocess"], "Note": ["os"]}
GETS_ROUND = "getattr(__builtins__, '__imp' + 'ort__')"


def rules(**actions: list[str]) -> list[dict[str, Any]]:
    return [{"action": action, "imports": modules} for action, modules in actions.items()]


@pytest.fixture
def ruled(policy) -> Callable[..., None]:
    """Puts a policy with these rules into the namespace, and others if it is called."""

    def put(**actions: list[str]) -> None:
        policy(codeRules=rules(**actions))

    put(**RULES)
    return put


@pytest.fixture
def session(admin: Admin) -> Iterator[str]:
    name = a_name("ruled")
    admin.apply(a_session(name, limits=LIMITS))
    yield name
    admin.delete("codesession", name)


def approve(user: Admin, record: dict[str, Any]) -> None:
    async def decide() -> None:
        async with CodeExecutionClient(ClusterRef(SANDBOX, user.kubeconfig)) as client:
            await client.approve(await client.get(record["metadata"]["name"]))

    asyncio.run(decide())


def ended(admin: Admin, code: str, *more: str, **spec: Any) -> dict[str, Any]:
    """The status of an execution that has ended."""
    name = a_name("gate")
    admin.submit(name, code, *more, **{"limits": LIMITS, **spec})
    return admin.wait_for_phase(name, "Succeeded", "Failed", "Denied", "Lost", "TimedOut")["status"]


def findings(status: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(one["found"], one["action"], *one["places"]) for one in status.get("codeFindings", ())]


# --- what is noted, and the control ---------------------------------------------------------------------------------


def test_control_without_rules_the_same_code_runs_and_nothing_is_found(admin, policy):
    policy()
    for code in ("import ctypes", "import os, socket, subprocess"):
        status = ended(admin, code)
        assert (status["phase"], findings(status)) == ("Succeeded", [])


def test_what_is_noted_runs_and_is_seen_with_kubectl_and_in_the_log(admin, ruled):
    name = a_name("noted")
    admin.submit(name, "import json", "import os.path as p; print(p.sep)", limits=LIMITS)
    status = admin.wait_for_phase(name, "Succeeded")["status"]
    assert status["stdout"]["text"] == "/\n"
    assert findings(status) == [("import os", "Note", "spec.blocks[1]")]
    described = admin.kubectl("-n", SANDBOX, "describe", "cex", name)
    assert "import os" in described

    lines = [one["record"] for one in audit_lines(operator_log(admin)) if one.get("record", {}).get("name") == name]
    assert {tuple(one["codeFindings"]) for one in lines} == {("Note: import os",)}


# --- what is denied -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["!ls", "%run other.py", "print 'two'", "(" * 50_000, "x = 1\x00", "-" * 50_000 + "1"])
def test_what_can_not_be_read_is_denied_as_the_strictest_rule_says(admin, ruled, code):
    status = ended(admin, code)
    assert (status["phase"], findings(status)) == ("Denied", [("unreadable Python", "Deny", "spec.blocks[0]")])
    assert "startedAt" not in status, "the code was sent to a pod"


def test_a_megabyte_of_hostile_code_does_not_disturb_the_operator(admin, ruled):
    """It goes on with others, and with the same process as before."""

    def killed() -> list[str]:
        """When containers of the operator were ended by lack of memory or by a fault."""
        pods = admin.list("pod", SYSTEM, labels="app.kubernetes.io/component=operator")
        states = [one["lastState"] for pod in pods for one in pod["status"].get("containerStatuses", ())]
        ends = [state["terminated"] for state in states if "terminated" in state]
        return [end["finishedAt"] for end in ends if end["reason"] == "OOMKilled" or end["exitCode"] > 128]

    before, names = killed(), [a_name("hostile") for _ in range(4)]
    for name, code in zip(names, ("(" * 999_000, "a\n" * 499_000, "1," * 499_000, "-" * 999_000 + "1"), strict=True):
        admin.submit(name, code, limits=LIMITS)
    assert ended(admin, "print('meanwhile')")["stdout"]["text"] == "meanwhile\n"
    for name in names:
        status = admin.wait_for_phase(name, "Denied", "Succeeded", "Failed")["status"]
        assert (status["phase"], findings(status)) == ("Denied", [("unreadable Python", "Deny", "spec.blocks[0]")])
    assert killed() == before


def test_files_that_can_be_imported_are_looked_at(admin, ruled):
    name, code, module = a_name("files"), b"import helper", b"import ctypes"
    payload = {"block-0": code, "file-0": module, "file-1": module}
    files = [{"path": path, **announce(module)} for path in ("helper.txt", "pkg/helper.py")]
    admin.submit(name, code.decode(), payload=payload, files=files, limits=LIMITS)
    status = admin.wait_for_phase(name, "Denied", "Succeeded", "Failed")["status"]
    assert findings(status) == [("import ctypes", "Deny", "spec.files[1]")]
    assert status["phase"] == "Denied"


def test_other_languages_are_not_looked_at(admin, ruled):
    """Which is why `languages` is what forbids them: bash starts Python."""
    assert ended(admin, "import ctypes; print(1)")["phase"] == "Denied", "control: as Python it is looked at"
    name, code = a_name("bash"), b"python3 -c 'import ctypes; print(1)'"
    block = {"language": "bash", **announce(code)}
    admin.apply(a_secret(name, {"block-0": code}), an_execution(name, [block], limits=LIMITS))
    status = admin.wait_for_phase(name, "Denied", "Succeeded", "Failed")["status"]
    assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "1\n")


# --- what a human decides about -------------------------------------------------------------------------------------


def test_an_approval_of_something_else_does_not_count(admin, ruled, approver):
    name = a_name("other")
    admin.submit(name, "import socket, subprocess", limits=LIMITS)
    record = admin.wait_for_phase(name, "AwaitingApproval")
    wrong = [{"field": "spec.blocks[0]", "value": "import socket"}]
    approver.create(an_approval(record, approver.me, grants=wrong))

    def found_wanting(record: dict[str, Any]) -> bool:
        return [one["reason"] for one in record["status"]["approval"].get("unused", ())] == ["OtherGrants"]

    admin.wait_until("the approval to be found wanting", "cex", name, found_wanting)
    assert admin.phase(name) == "AwaitingApproval"


# --- sessions and pools ---------------------------------------------------------------------------------------------


def test_in_a_session_each_execution_is_looked_at(admin, ruled, session, approver):
    spec = {"sessionRef": {"name": session}}
    assert ended(admin, "import os; open('note', 'w').write('left')", **spec)["phase"] == "Succeeded"
    assert ended(admin, "import ctypes", **spec)["phase"] == "Denied"
    asks = a_name("asks")
    admin.submit(asks, "import socket; print(open('note').read())", limits=LIMITS, **spec)
    approve(approver, admin.wait_for_phase(asks, "AwaitingApproval"))
    status = admin.wait_for_phase(asks, "Succeeded", "Denied")["status"]
    assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "left\n")


async def test_code_is_looked_at_before_it_gets_a_pod_of_a_pool(make_pool, make_executor, admin, ruled):
    pool = make_pool(1)
    await asyncio.to_thread(pool.ready, 1)
    executor = make_executor(limits=Limits(cpu="100m", memory="96Mi"), timeout=30)
    denied = await executor.execute_code_blocks([CodeBlock("import ctypes", "python")], CancellationToken())
    assert (denied.exit_code, denied.reason) == (1, "PolicyViolation")
    assert "startedAt" not in admin.execution(denied.execution)["status"], "the code was sent to a pod"
    ran = await executor.execute_code_blocks([CodeBlock("import os; print(1)", "python")], CancellationToken())
    status = admin.execution(ran.execution)["status"]
    assert (ran.output, status["poolName"]) == ("1\n", pool.name)
    assert findings(status) == [("import os", "Note", "spec.blocks[0]")]


# --- who ------------------------------------------------------------------------------------------------------------


def test_rules_of_an_agent_replace_the_others(admin, policy):
    policy(codeRules=rules(Deny=["os"]), agentRules=[{"requestedBy": admin.me, "codeRules": rules(Note=["os"])}])
    status = ended(admin, "import os")
    assert (status["phase"], findings(status)) == ("Succeeded", [("import os", "Note", "spec.blocks[0]")])


# --- advice, and no isolation ---------------------------------------------------------------------------------------


def test_code_that_wants_to_gets_round_it_and_is_still_held_by_the_sandbox(admin, ruled, unprotected_pod):
    """It imports what is denied, and nobody finds anything. Then it can do no more than any code in a sandbox."""
    ruled(Deny=["os", "socket", "ctypes"])
    assert ended(admin, "import os, socket")["phase"] == "Denied", "control: who writes it plainly is found"
    address = admin.get("service", "kubernetes", "default")["spec"]["clusterIP"]
    code = f"""
load = {GETS_ROUND}
os, socket = load('os'), load('socket')
print(os.getuid() == 0, os.path.exists('/var/run/secrets/kubernetes.io'))
try:
    socket.create_connection(({address!r}, 443), 3)
    print('reached')
except OSError as error:
    print('held:', type(error).__name__)
"""
    assert unprotected_pod(code) == "True True\nreached\n", "control: nothing in the code itself keeps it from that"
    status = ended(admin, code)
    assert (status["phase"], findings(status)) == ("Succeeded", [])
    assert status["stdout"]["text"] == "False False\nheld: PermissionError\n", "no socket can be had"
    assert status["egressProof"]["verdict"] == "Closed"


def test_nobody_reads_the_memory_of_the_operator(admin):
    """Not even a process of its own user in its own container, as the one that reads code is."""
    look = "import sys; print(len(open(f'/proc/{sys.argv[1]}/environ', 'rb').read()) > 0)"

    def read(process: str) -> subprocess.CompletedProcess[str]:
        words = ("python3", "-I", "-c", look, process)
        return admin.try_kubectl("-n", SYSTEM, "exec", "deployment/codeexec-operator", "--", *words)

    assert read("self").stdout == "True\n", "control"
    assert "PermissionError" in read("1").stderr
