"""A human decides about what the policy doesn't allow by itself; who may not decide can't, whatever they try."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import (
    SANDBOX,
    Admin,
    a_name,
    a_sealed_execution,
    a_secret,
    a_session,
    an_approval,
    an_execution,
    wait_for,
)

from codeexec_api import Limits
from codeexec_api.names import review_name
from executor_client import ClusterRef, CodeExecutionClient

pytestmark = pytest.mark.e2e

MORE = {"memory": "128Mi", "cpu": "100m"}
"""What the policy of these tests allows with approval only."""
BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
GRANTS = [{"field": "spec.limits.memory", "value": "128Mi"}]


@pytest.fixture(autouse=True)
def strict(policy) -> Callable[..., None]:
    """Allows 64 MiB, and 256 with approval."""

    def put(**spec: Any) -> None:
        policy(**{"maxLimits": {"memory": "64Mi"}, "withApproval": {"maxLimits": {"memory": "256Mi"}}, **spec})

    put()
    return put


def client_of(user: Admin) -> CodeExecutionClient:
    return CodeExecutionClient(ClusterRef(SANDBOX, user.kubeconfig))


def submit(admin: Admin, name: str, code: str = "print('ran')", **spec: Any) -> dict[str, Any]:
    """The record of an execution that waits for approval."""
    admin.submit(name, code, **{"limits": MORE, **spec})
    return admin.wait_for_phase(name, "AwaitingApproval")


def create(user: Admin, thing: dict[str, Any]) -> str:
    """What the API server objects to; empty if it takes it."""
    return str(user.try_create(thing) or "")


def patch(user: Admin, kind: str, name: str, change: dict[str, Any], subresource: str = "") -> str:
    return str(user.try_patch(kind, name, change, subresource=subresource) or "")


def unused(admin: Admin, name: str, reason: str) -> dict[str, Any]:
    """The record once it says that an approval doesn't count, and why; the execution goes on waiting."""

    def recorded(record: dict[str, Any]) -> bool:
        return reason in [one["reason"] for one in record["status"]["approval"].get("unused", ())]

    record = admin.wait_until(f"an approval of {name} to be recorded as {reason}", "cex", name, recorded)
    assert record["status"]["phase"] == "AwaitingApproval"
    return record


# --- the way it is meant --------------------------------------------------------------------------------------------


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
    async with client_of(approver) as client:
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


async def test_a_call_that_does_not_wait_tells_the_agent_and_runs_later(make_executor, admin, approver):
    executor = make_executor(agent=a_name("leaves"), limits=Limits(**MORE), approval="return")
    left = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
    assert (left.exit_code, left.reason) == (1, "ApprovalRequired")
    assert left.output.startswith("Not run yet: a human has to approve spec.limits.memory=128Mi: `kubectl codeexec")
    async with client_of(approver) as client:
        await client.approve(await client.get(left.execution))
    result = await executor.result_of(left.execution)
    assert (result.exit_code, result.output) == (0, "1\n")


async def test_a_denial_reaches_the_agent_with_its_reason(make_executor, admin, approver):
    executor = make_executor(agent=a_name("denied"), limits=Limits(**MORE), approval="return")
    left = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
    async with client_of(approver) as client:
        await client.deny(await client.get(left.execution), reason="use less")
    result = await executor.result_of(left.execution)
    assert (result.exit_code, result.reason) == (1, "ApprovalDenied")
    assert result.output == f"Denied: denied by {approver.me}: use less. Nothing was run"
    assert "podName" not in admin.execution(left.execution)["status"]


async def test_a_call_does_not_wait_longer_than_it_was_told(make_executor, admin):
    executor = make_executor(agent=a_name("waits"), limits=Limits(**MORE), approval_timeout=1)
    result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
    assert (result.exit_code, result.reason) == (1, "ApprovalTimeout")
    assert "nobody approved spec.limits.memory=128Mi within 1 s" in result.output
    assert admin.phase(result.execution) == "Cancelled"


@pytest.mark.suspect
def test_nobody_decides_in_time(admin, strict):
    strict(approvalTimeoutSeconds=1)
    name = a_name("late")
    with admin.following("cex", name) as record:
        admin.submit(name, "print('ran')", limits=MORE)
        status = record.wait_for_phase("Expired")["status"]
        assert "AwaitingApproval" in record.phases
    assert status["reason"] == "ApprovalTimeout"
    assert "podName" not in status
    admin.wait_until_gone("secret", name)


async def test_in_a_session_others_need_not_wait_for_it(make_executor, admin, approver, strict):
    strict(maxTimeoutSeconds=30, withApproval={"maxTimeoutSeconds": 60})
    small = Limits(memory="64Mi", cpu="100m")
    long = make_executor(agent=a_name("long"), session="per-executor", limits=small, timeout=60, approval="return")
    left = await long.execute_code_blocks([CodeBlock("print(open('note').read())", "python")], CancellationToken())
    session = admin.execution(left.execution)["spec"]["sessionRef"]["name"]
    note = a_name("writes")
    admin.submit(note, "open('note', 'w').write('from another')", sessionRef={"name": session}, limits=small.dump())
    admin.wait_for_phase(note, "Succeeded")
    async with client_of(approver) as client:
        await client.approve(await client.get(left.execution))
    assert (await long.result_of(left.execution)).output == "from another\n"


def test_what_no_approval_can_grant_is_denied_at_once(admin):
    name = a_name("never")
    admin.submit(name, "print(1)", limits={"memory": "512Mi", "cpu": "100m"})
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PolicyViolation"
    assert (
        "spec.limits.memory: 512Mi is not allowed by the policy (allowed: at most 64Mi; with approval"
        in (status["message"])
    )


def test_it_is_seen_with_kubectl(admin, approver):
    name = a_name("seen")
    record = submit(admin, name)
    assert "AwaitingApproval" in approver.kubectl("-n", SANDBOX, "get", "cex", name)
    described = approver.kubectl("-n", SANDBOX, "describe", "cex", name)
    assert "spec.limits.memory" in described
    assert f"kubectl codeexec approve {name}" in described
    assert create(approver, an_approval(record, approver.me)) == ""
    admin.wait_for_phase(name, "Succeeded")
    rows = approver.kubectl("-n", SANDBOX, "get", "xapp", "-l", f"codeexec.dev/execution={name}", "--no-headers")
    assert rows.split()[1:4] == [name, "Approve", approver.me]


# --- before the code starts -----------------------------------------------------------------------------------------


SESSION_LIMITS = {"cpu": "100m", "memory": "64Mi"}


class Line(NamedTuple):
    """A session whose turn is taken."""

    session: str
    busy: str


@pytest.fixture(scope="module")
def line(admin: Admin) -> Iterator[Line]:
    """One for all tests of this file, until the control lets it go on."""
    found = Line(a_name("queue"), a_name("busy"))
    admin.apply(a_session(found.session, limits=SESSION_LIMITS))
    busy = {"limits": SESSION_LIMITS, "timeoutSeconds": 300}
    admin.submit_to(found.busy, "import time; time.sleep(300)", found.session, **busy)
    admin.wait_for_phase(found.busy, "Running")
    yield found
    admin.delete("codesession", found.session)


@pytest.fixture
def queued(admin, approver, strict, line) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Makes executions that were approved and wait for their turn in a session, each with its approval."""
    strict(maxTimeoutSeconds=30, withApproval={"maxTimeoutSeconds": 60})

    def make(expires_in: float = 600) -> tuple[str, dict[str, Any]]:
        name = a_name("queued")
        record = submit(admin, name, sessionRef={"name": line.session}, limits=SESSION_LIMITS, timeoutSeconds=60)
        with admin.following("cex", name) as versions:
            until = datetime.now(UTC) + timedelta(seconds=expires_in)
            approval = an_approval(record, approver.me, expiresAt=until.isoformat().replace("+00:00", "Z"))
            assert create(approver, approval) == ""
            versions.wait_for_phase("Starting")
        return name, approval

    return make


def test_what_is_revoked_before_the_code_starts_does_not_run(admin, approver, queued):
    name, approval = queued()
    revoked = {"spec": {"revoked": True, "revokedBy": approver.me}}
    assert patch(approver, "xapp", approval["metadata"]["name"], revoked) == ""
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert (status["reason"], status.get("startedAt")) == ("ApprovalRevoked", None)
    assert f"revoked by {approver.me}" in status["message"]
    back = patch(approver, "xapp", approval["metadata"]["name"], {"spec": {"revoked": False, "revokedBy": None}})
    assert "can't be taken back" in back


def test_what_another_one_denies_before_the_code_starts_does_not_run(admin, make_user, queued):
    name, _ = queued()
    other = make_user("approver")
    denial = an_approval(admin.execution(name), other.me, decision="Deny", reason="no")
    del denial["spec"]["grants"], denial["spec"]["expiresAt"]
    assert create(other, denial) == ""
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert (status["reason"], status.get("startedAt")) == ("ApprovalDenied", None)
    assert status["approval"]["approver"] == other.me


def test_what_was_approved_by_an_approval_that_is_deleted_does_not_run(admin, queued):
    name, approval = queued()
    admin.delete("xapp", approval["metadata"]["name"], wait=True)
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert (status["reason"], status.get("startedAt")) == ("ApprovalRevoked", None)


@pytest.mark.suspect
def test_what_does_not_start_before_its_approval_expires_does_not_run(admin, queued):
    name, _ = queued(expires_in=30)
    status = admin.wait_for_phase(name, "Expired")["status"]
    assert (status["reason"], status.get("startedAt")) == ("ApprovalExpired", None)


def test_control_what_is_approved_and_waits_for_its_turn_runs(admin, queued, line):
    """Last: it ends what the others wait for."""
    name, _ = queued()
    admin.patch("cex", line.busy, {"spec": {"cancelled": True}})
    assert admin.wait_for_phase(name, "Succeeded")["status"]["startedAt"]


# --- attacks --------------------------------------------------------------------------------------------------------


def test_nobody_approves_their_own_request(admin, make_user, approver):
    """Not even who has both roles."""
    both = make_user("agent", "approver")
    name = a_name("own")
    both.submit(name, "print('ran')", limits=MORE)
    record = admin.wait_for_phase(name, "AwaitingApproval")
    assert "nobody approves their own request" in create(both, an_approval(record, both.me))
    # They claim that somebody else has requested it, so that the rule doesn't see who they are.
    forged = an_approval(record, both.me)
    forged["spec"]["executionRef"]["requestedBy"] = approver.me
    assert create(both, forged) == ""
    unused(admin, name, "OtherExecution")
    assert create(approver, an_approval(record, approver.me)) == "", "control: somebody else may"
    admin.wait_for_phase(name, "Succeeded")


def test_nobody_shows_an_approver_other_code_than_what_runs(admin, make_user):
    """By a Secret that stands, or comes, where an approver looks for the code."""
    agent = make_user("agent")
    name = a_name("swapped")
    execution = a_sealed_execution(admin, name, "print('harmful')", requestedBy=agent.me, limits=MORE)
    assert create(agent, execution) == ""
    record = admin.wait_for_phase(name, "AwaitingApproval")
    review = record["status"]["approval"]["codeSecret"]
    assert review == review_name(name, record["metadata"]["uid"])
    harmless = a_secret(review, {"block-0": b"print('harmless')"}, name)
    assert "metadata.name must not end with -review" in create(agent, harmless)
    shown = {"block-0": base64.b64encode(b"print('harmful')").decode()}
    assert admin.wait_until("the code that would run", "secret", review, bool)["data"] == shown
    owned = a_secret(a_name("swapped"), {"block-0": b"x"}, name)
    assert create(agent, owned) == "", "control: a payload as such"
    owner = {"apiVersion": "v1", "kind": "Secret", "name": "other", "uid": record["metadata"]["uid"]}
    owned["metadata"] |= {"name": a_name("swapped"), "ownerReferences": [owner]}
    assert "metadata.ownerReferences must be empty" in create(agent, owned)


def test_an_approval_is_for_one_execution_and_not_for_the_next_of_its_name(admin, approver):
    name = a_name("again")
    old = submit(admin, name, "print('harmless')")
    admin.delete("cex", name, wait=True)
    admin.delete("secret", name, wait=True)
    new = submit(admin, name, "print('harmful')")
    assert create(approver, an_approval(old, approver.me)) == ""
    record = unused(admin, name, "OtherExecution")
    assert old["metadata"]["uid"] in record["status"]["approval"]["unused"][0]["message"]
    assert create(approver, an_approval(new, approver.me)) == "", "control"
    assert admin.wait_for_phase(name, "Succeeded")["status"]["stdout"]["text"] == "harmful\n"


def test_an_approval_can_not_be_replayed_for_another_execution(admin, approver):
    first, second = a_name("first"), a_name("second")
    used = an_approval(submit(admin, first), approver.me)
    assert create(approver, used) == ""
    admin.wait_for_phase(first, "Succeeded")
    submit(admin, second)
    used["metadata"] |= {"name": a_name("replayed"), "labels": {"codeexec.dev/execution": second}}
    assert "must be spec.executionRef.name" in create(approver, used)
    used["spec"]["executionRef"]["name"] = second
    assert create(approver, used) == ""
    unused(admin, second, "OtherExecution")


@pytest.mark.parametrize(
    "grants",
    [
        [{"field": "spec.limits.memory", "value": "256Mi"}],
        [*GRANTS, {"field": "spec.timeoutSeconds", "value": "3600"}],
        [{"field": "spec.limits.cpu", "value": "128Mi"}],
    ],
    ids=["more of it", "more than it", "something else"],
)
def test_an_approval_counts_only_for_exactly_what_is_asked_for(admin, approver, grants):
    name = a_name("grants")
    record = submit(admin, name)
    assert create(approver, an_approval(record, approver.me, grants=grants)) == ""
    unused(admin, name, "OtherGrants")


def test_an_approval_that_has_expired_counts_for_nothing(admin, approver):
    name = a_name("stale")
    record = submit(admin, name)
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    assert create(approver, an_approval(record, approver.me, expiresAt=past)) == ""
    unused(admin, name, "Expired")
    no_end = an_approval(record, approver.me)
    del no_end["spec"]["expiresAt"]
    assert "expiresAt" in create(approver, no_end)


def test_an_approval_that_is_deleted_is_no_longer_named(admin, approver):
    name = a_name("deleted")
    record = submit(admin, name)
    wrong = an_approval(record, approver.me, grants=[{"field": "spec.limits.memory", "value": "1Gi"}])
    assert create(approver, wrong) == ""
    unused(admin, name, "OtherGrants")
    admin.delete("xapp", wrong["metadata"]["name"], wait=True)
    gone = "the approval to be gone from the record"
    admin.wait_until(gone, "cex", name, lambda record: "unused" not in record["status"]["approval"])
    assert create(approver, an_approval(record, approver.me)) == ""
    admin.wait_for_phase(name, "Succeeded")


def test_attempts_are_in_the_audit_log_of_the_api_server(admin, make_user, node_shell):
    agent = make_user("agent")
    name = a_name("audited")
    record = submit(admin, name)
    assert "Forbidden" in create(agent, an_approval(record, agent.me))
    forged = an_execution(a_name("forged"), [BLOCK], requestedBy="somebody")
    assert "spec.requestedBy must be" in create(agent, forged)
    found = wait_for("both attempts to be in the log", lambda: refusals(node_shell, agent.me))
    assert found == {("executionapprovals", 403), ("codeexecutions", 422)}


AUDIT_LOG = """
import glob, json
found = set()
for path in glob.glob("/proc/1/root/var/log/kubernetes/audit*.log"):
    for line in open(path):
        if {user!r} not in line or not line.endswith("\\n"):  # or is being written
            continue
        event = json.loads(line)
        code = event.get("responseStatus", {{}}).get("code", 0)
        if event["user"]["username"] == {user!r} and event["stage"] == "ResponseComplete" and code >= 400:
            found.add((event["objectRef"]["resource"], code))
print(json.dumps(sorted(found)))
"""


def refusals(node_shell, user: str) -> set[tuple[str, int]] | None:
    found = {tuple(one) for one in json.loads(node_shell(AUDIT_LOG.format(user=user)))}
    return found if len(found) > 1 else None
