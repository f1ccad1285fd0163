"""A human decides about what the policy doesn't allow by itself: from AutoGen to the pod, and who tried in vain.

What becomes of each decision, and what kubectl shows, is in `tests/component/test_approval.py`.
"""

import asyncio
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, Admin, a_name, an_approval, an_execution, wait_for

from codeexec_api import Limits
from executor_client import ClusterRef, CodeExecutionClient

MORE = {"memory": "128Mi", "cpu": "100m"}
"""What the policy of these tests allows with approval only."""
BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
GRANTS = [{"field": "spec.limits.memory", "value": "128Mi"}]


@pytest.fixture(autouse=True)
def strict(policy) -> None:
    """Allows 64 MiB, and 256 with approval."""
    policy(maxLimits={"memory": "64Mi"}, withApproval={"maxLimits": {"memory": "256Mi"}})


def submit(admin: Admin, name: str) -> dict[str, Any]:
    """The record of an execution that waits for approval."""
    admin.submit(name, "print('ran')", limits=MORE)
    return admin.wait_for_phase(name, "AwaitingApproval")


def create(user: Admin, thing: dict[str, Any]) -> str:
    """What the API server objects to; empty if it takes it."""
    return str(user.try_create(thing) or "")


async def test_a_call_waits_runs_when_it_is_approved_and_says_who_approved_it(make_executor, admin, approver):
    asked = []
    executor = make_executor(agent=a_name("asks"), limits=Limits(**MORE), on_approval_request=asked.append)
    uses_them = 'held = b"x" * (80 << 20); print(6 * 7)'
    running = asyncio.create_task(executor.execute_code_blocks([CodeBlock(uses_them, "python")], CancellationToken()))
    await asyncio.to_thread(wait_for, "the request for approval", lambda: asked)
    [request] = asked
    assert request.requested_by == f"system:serviceaccount:{SANDBOX}:codeexec-agent"
    assert [grant.dump() for grant in request.grants] == GRANTS
    record = admin.execution(request.execution)
    assert record["status"]["phase"] == "AwaitingApproval"
    assert "podName" not in record["status"]
    async with CodeExecutionClient(ClusterRef(SANDBOX, approver.kubeconfig)) as client:
        waiting = await client.get(request.execution)
        code = await client.read_code(waiting)
        assert code.blocks == (uses_them.encode(),), "it came sealed, and the approver may read it"
        await client.approve(waiting, reason="looked at")
    result = await running
    assert (result.exit_code, result.output) == (0, "42\n")
    approval = admin.execution(request.execution)["status"]["approval"]
    assert approval["grants"] == GRANTS
    assert (approval["decision"], approval["approver"]) == ("Approve", approver.me)
    assert approval["reason"] == "looked at"
    secret = record["status"]["approval"]["codeSecret"]
    admin.wait_until_gone("secret", secret)


def test_attempts_are_in_the_audit_log_of_the_api_server(admin, make_user, node_shell):
    agent = make_user("agent")
    name = a_name("audited")
    record = submit(admin, name)
    assert "Forbidden" in create(agent, an_approval(record, agent.me))
    forged = an_execution(a_name("forged"), [BLOCK], requestedBy="somebody")
    assert "spec.requestedBy must be" in create(agent, forged)
    code = REFUSALS.format(user=agent.me)
    found = node_shell.wait_for("both attempts to be in the log", "at_least_two(refusals())", code, every=1)
    assert set(map(tuple, found)) == {("executionapprovals", 403), ("codeexecutions", 422)}


REFUSALS = """
import glob, json
def refusals():
    found = set()
    for path in glob.glob("/proc/1/root/var/log/kubernetes/audit*.log"):
        for line in open(path):
            if {user!r} not in line or not line.endswith("\\n"):  # or is being written
                continue
            event = json.loads(line)
            code = event.get("responseStatus", {{}}).get("code", 0)
            if event["user"]["username"] == {user!r} and event["stage"] == "ResponseComplete" and code >= 400:
                found.add((event["objectRef"]["resource"], code))
    return sorted(found)
def at_least_two(found):
    return found if len(found) > 1 else []
"""
