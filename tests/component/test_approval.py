"""A human decides about what the policy doesn't allow by itself; who may not decide can't, whatever they try.

What the API server refuses alone is in `tests/api/test_approval.py`.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, a_name, a_sealed_execution, a_session, an_approval
from component_stage import Stage, in_thread

from codeexec_api.names import review_name
from executor_client import ApprovalWait, ClusterRef, CodeExecutionClient, Limits, PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
MORE = {"memory": "128Mi", "cpu": "100m"}
"""What the policy of these tests allows with approval only."""
GRANTS = [{"field": "spec.limits.memory", "value": "128Mi"}]
SMALL = {"memory": "64Mi", "cpu": "100m"}
PLENTY, MORE_THAN_PLENTY = 30_000, 30_001
"""Seconds that the policy allows, and that it allows with approval."""
LATER = "+11m"
"""A clock by which an approval of ten minutes has expired."""


@pytest.fixture(autouse=True)
def strict(policy) -> Callable[..., None]:
    """Allows 64 MiB, and 256 with approval; puts other such policies if it is called."""

    def put(**spec: Any) -> None:
        more = {"maxLimits": {"memory": "256Mi"}, "maxTimeoutSeconds": MORE_THAN_PLENTY}
        policy(**{"maxLimits": {"memory": "64Mi"}, "maxTimeoutSeconds": PLENTY, "withApproval": more, **spec})

    put()
    return put


@pytest.fixture
async def human(approver: Admin) -> AsyncIterator[CodeExecutionClient]:
    """The client of somebody who may decide."""
    async with CodeExecutionClient(ClusterRef(SANDBOX, approver.kubeconfig)) as client:
        yield client


def submit(admin: Admin, name: str, code: str = "print('ran')", **spec: Any) -> dict[str, Any]:
    """The record of an execution that waits for approval."""
    admin.submit(name, code, **{"limits": MORE, "timeoutSeconds": 600, **spec})
    return admin.wait_for_phase(name, "AwaitingApproval")


def unused(admin: Admin, name: str, reason: str, count: int = 1) -> dict[str, Any]:
    """The record once it says that so many approvals don't count, and why; the execution goes on waiting."""

    def recorded(record: dict[str, Any]) -> bool:
        reasons = [one["reason"] for one in record["status"]["approval"].get("unused", ())]
        return reasons.count(reason) == count

    record = admin.wait_until(f"{count} approvals of {name} to be recorded as {reason}", "cex", name, recorded)
    assert record["status"]["phase"] == "AwaitingApproval"
    return record


def runs(stage: Stage, name: str, output: str = "ran\n") -> None:
    """The positive control: what does not run in these tests would run, had somebody approved it."""
    record = stage.admin.wait_for_phase(name, "Succeeded")
    assert record["status"]["stdout"]["text"] == output
    stage.ran_once(record)


# --- the way it is meant --------------------------------------------------------------------------------------------


async def test_a_call_that_does_not_wait_says_so_and_its_code_runs_later(stage, client, asking, agent, human, approver):
    left = await client.execute(HELLO, asking(limits=Limits(**MORE), approval=ApprovalWait("return")))
    assert (left.exit_code, left.reason) == (1, "ApprovalRequired")
    assert left.output.startswith("Not run yet: a human has to approve spec.limits.memory=128Mi: `kubectl codeexec")
    stage.never_ran(stage.record(agent))
    await human.approve(await human.get(left.name), reason="looked at")
    result = await client.attach(left.name).result()
    assert (result.exit_code, result.output) == (0, "hello\n")
    record = stage.record(agent)
    stage.ran_once(record)
    approval = record["status"]["approval"]
    assert (approval["decision"], approval["approver"], approval["reason"]) == ("Approve", approver.me, "looked at")
    assert approval["grants"] == GRANTS


async def test_a_denial_reaches_the_caller_with_its_reason(stage, client, asking, agent, human, approver):
    left = await client.execute(HELLO, asking(limits=Limits(**MORE), approval=ApprovalWait("return")))
    await human.deny(await human.get(left.name), reason="use less")
    result = await client.attach(left.name).result()
    assert (result.exit_code, result.reason) == (1, "ApprovalDenied")
    assert result.output == f"Denied: denied by {approver.me}: use less. Nothing was run"
    record = stage.record(agent)
    assert "podName" not in record["status"]
    stage.never_ran(record)


async def test_a_call_does_not_wait_longer_than_it_was_told(stage, client, asking, agent):
    result = await client.execute(HELLO, asking(limits=Limits(**MORE), approval=ApprovalWait(seconds=1)))
    assert (result.exit_code, result.reason) == (1, "ApprovalTimeout")
    assert "nobody approved spec.limits.memory=128Mi within 1 s" in result.output
    record = stage.record(agent)
    assert record["status"]["phase"] == "Cancelled"
    stage.never_ran(record)


@pytest.mark.suspect
def test_nobody_decides_in_time(stage, admin, strict):
    strict(approvalTimeoutSeconds=1)
    name = a_name("late")
    with admin.following("cex", name) as versions:
        admin.submit(name, "print('ran')", limits=MORE)
        record = versions.wait_for_phase("Expired")
        assert "AwaitingApproval" in versions.phases
    assert record["status"]["reason"] == "ApprovalTimeout"
    assert "podName" not in record["status"]
    stage.never_ran(record)
    admin.wait_until_gone("secret", name)


async def test_in_a_session_others_need_not_wait_for_it(stage, admin, client, asking, human):
    asked = asking(limits=Limits(**SMALL))
    async with await client.open_session(asked, wait=True) as session:
        long = asking(limits=Limits(**SMALL), timeout_seconds=MORE_THAN_PLENTY)
        shows = await client.submit((PreparedBlock("python", b'show("note")'),), long, session=session.name)
        await in_thread(admin.wait_for_phase, shows.name, "AwaitingApproval")
        assert (await session.execute((PreparedBlock("python", b'write("note")'),))).exit_code == 0
        await human.approve(await human.get(shows.name))
        assert (await shows.result()).output == "note 640\n", "it ran after the other one"


async def test_in_a_session_it_waits_for_what_began_before_it_was_approved(stage, admin, client, asking, agent, human):
    """It was created earlier. It has to wait all the same: a runner runs one execution at a time."""
    async with await client.open_session(asking(limits=Limits(**SMALL)), wait=True) as session:
        long = asking(limits=Limits(**SMALL), timeout_seconds=MORE_THAN_PLENTY)
        shows = await client.submit((PreparedBlock("python", b'show("note")'),), long, session=session.name)
        await in_thread(admin.wait_for_phase, shows.name, "AwaitingApproval")
        writes = PreparedBlock("python", f'wait("{agent}")\nwrite("note")'.encode())
        runs = asyncio.create_task(session.execute((writes,)))
        await stage.script.reached(agent, runs)
        await human.approve(await human.get(shows.name))
        place = "position 2 of 2 in the queue"
        await in_thread(
            admin.wait_until, place, "cex", shows.name, lambda record: place in record["status"].get("message", "")
        )
        stage.script.open(agent)
        assert (await runs).exit_code == 0
        assert (await shows.result()).output == "note 640\n", "it ran after the other one"


def test_what_no_approval_can_grant_is_denied_at_once(stage, admin):
    name = a_name("never")
    admin.submit(name, "print(1)", limits={"memory": "512Mi", "cpu": "100m"})
    record = admin.wait_for_phase(name, "Denied")
    assert record["status"]["reason"] == "PolicyViolation"
    assert (
        "spec.limits.memory: 512Mi is not allowed by the policy (allowed: at most 64Mi; with approval"
        in record["status"]["message"]
    )
    stage.never_ran(record)


def test_it_is_told_of_and_seen_with_kubectl(stage, admin, approver):
    name = a_name("seen")
    record = submit(admin, name)

    def asked(events: list[dict[str, Any]]) -> bool:
        return any(one["reason"] == "ApprovalRequired" for one in events)

    admin.wait_until_all("the Event of the question", "event", asked, fields=f"involvedObject.name={name}")
    assert "AwaitingApproval" in approver.kubectl("-n", SANDBOX, "get", "cex", name)
    described, _, events = approver.kubectl("-n", SANDBOX, "describe", "cex", name).partition("\nEvents:")
    assert "spec.limits.memory" in described
    assert f"kubectl codeexec approve {name}" in described
    assert "ApprovalRequired" in events
    assert "spec.limits.memory=128Mi" in events
    approver.create(an_approval(record, approver.me))
    runs(stage, name)
    rows = approver.kubectl("-n", SANDBOX, "get", "xapp", "-l", f"codeexec.dev/execution={name}", "--no-headers")
    assert rows.split()[1:4] == [name, "Approve", approver.me]


def test_an_approver_stops_an_execution_and_a_session(stage, admin, approver):
    """What else an approver may not do with them is shown by an API server alone."""
    name, session = a_name("stopped"), a_name("stopped")
    admin.create(a_session(session, requestedBy=admin.me, limits=SMALL))
    admin.submit(name, f"wait('{name}')", limits=SMALL, timeoutSeconds=PLENTY)
    stage.script.wait_at(name)
    ready = lambda found: found.get("status", {}).get("phase") == "Ready"  # noqa: E731
    admin.wait_until("the session to be ready", "codesession", session, ready)
    approver.patch("codeexecution", name, {"spec": {"cancelled": True}})
    assert admin.wait_for_phase(name, "Cancelled")["status"]["reason"] == "CancelRequested"
    approver.patch("codesession", session, {"spec": {"ended": True}})
    over = lambda found: found["status"]["phase"] == "Ended"  # noqa: E731
    admin.wait_until("the session to be over", "codesession", session, over)


# --- before the code starts -----------------------------------------------------------------------------------------


class Line:
    """A session whose turn is taken, and executions that were approved and wait for theirs."""

    def __init__(self, stage: Stage, approver: Admin) -> None:
        self._stage, self._admin, self._approver = stage, stage.admin, approver
        self._session, busy = a_name("line"), a_name("busy")
        self._admin.create(a_session(self._session, requestedBy=self._admin.me, limits=SMALL))
        code = f"wait('{self._session}')"
        self._admin.submit_to(busy, code, self._session, limits=SMALL, timeoutSeconds=PLENTY)
        stage.script.wait_at(self._session)

    def approved(self, expires_in: timedelta = timedelta(minutes=10)) -> tuple[str, dict[str, Any]]:
        """The name of another one, and its approval."""
        name, place = a_name("queued"), {"sessionRef": {"name": self._session}, "limits": SMALL}
        record = submit(self._admin, name, timeoutSeconds=MORE_THAN_PLENTY, **place)
        with self._admin.following("cex", name) as versions:
            until = (datetime.now(UTC) + expires_in).isoformat().replace("+00:00", "Z")
            approval = an_approval(record, self._approver.me, expiresAt=until)
            self._approver.create(approval)
            versions.wait_for_phase("Starting")
        return name, approval

    def does_not_run(self, name: str, phase: str, reason: str) -> dict[str, Any]:
        """The status of one whose approval does not hold any more; it ended while the turn was still taken."""
        record = self._admin.wait_for_phase(name, phase)
        assert (record["status"]["reason"], record["status"].get("startedAt")) == (reason, None)
        self._stage.never_ran(record)
        return record["status"]

    def goes_on(self) -> None:
        self._stage.script.open(self._session)

    def end(self) -> None:
        self.goes_on()
        self._admin.delete("codesession", self._session)


@pytest.fixture
def line(stage: Stage, approver: Admin, strict: Callable[..., None]) -> Iterator[Line]:
    line = Line(stage, approver)
    yield line
    line.end()


def test_what_is_revoked_before_the_code_starts_does_not_run(stage, approver, line):
    (name, approval), (other, _) = line.approved(), line.approved()
    approver.patch("xapp", approval["metadata"]["name"], {"spec": {"revoked": True, "revokedBy": approver.me}})
    status = line.does_not_run(name, "Denied", "ApprovalRevoked")
    assert f"revoked by {approver.me}" in status["message"]
    line.goes_on()
    runs(stage, other)


def test_what_another_one_denies_before_the_code_starts_does_not_run(stage, admin, make_user, line):
    (name, _), (other, _) = line.approved(), line.approved()
    somebody = make_user("approver")
    denial = an_approval(admin.execution(name), somebody.me, decision="Deny", reason="no")
    del denial["spec"]["grants"], denial["spec"]["expiresAt"]
    somebody.create(denial)
    status = line.does_not_run(name, "Denied", "ApprovalDenied")
    assert status["approval"]["approver"] == somebody.me
    line.goes_on()
    runs(stage, other)


def test_what_was_approved_by_an_approval_that_is_deleted_does_not_run(stage, admin, line):
    (name, approval), (other, _) = line.approved(), line.approved()
    admin.delete("xapp", approval["metadata"]["name"], wait=True)
    line.does_not_run(name, "Denied", "ApprovalRevoked")
    line.goes_on()
    runs(stage, other)


def test_what_does_not_start_before_its_approval_expires_does_not_run(stage, operator, line):
    """By the clock of the operator that takes over. When one looks again: `unit/operator_core/test_approving.py`."""
    (name, _), (other, _) = line.approved(), line.approved(timedelta(hours=8))
    operator.stop()
    with stage.operator(clock=LATER):
        line.does_not_run(name, "Expired", "ApprovalExpired")
        line.goes_on()
        runs(stage, other)
    stage.free_lease()
    operator.start()


# --- attacks --------------------------------------------------------------------------------------------------------


def test_nobody_approves_their_own_request_as_that_of_another_one(stage, admin, make_user, approver):
    """So that the API server's rule doesn't see who has asked. Not even who has both roles."""
    both = make_user("agent", "approver")
    name = a_name("own")
    both.submit(name, "print('ran')", limits=MORE, timeoutSeconds=600)
    record = admin.wait_for_phase(name, "AwaitingApproval")
    forged = an_approval(record, both.me)
    forged["spec"]["executionRef"]["requestedBy"] = approver.me
    both.create(forged)
    stage.never_ran(unused(admin, name, "OtherExecution"))
    approver.create(an_approval(record, approver.me))  # control: somebody else may
    runs(stage, name)


def test_an_approver_is_shown_the_code_that_runs_though_it_came_sealed(stage, admin, make_user, approver):
    """Agents can put no other code there: `tests/api/test_approval.py`."""
    agent = make_user("agent")
    name = a_name("sealed")
    more = {"limits": MORE, "timeoutSeconds": 600}
    execution = a_sealed_execution(admin, name, "print('harmful')", requestedBy=agent.me, **more)
    agent.create(execution)
    record = admin.wait_for_phase(name, "AwaitingApproval")
    review = record["status"]["approval"]["codeSecret"]
    assert review == review_name(name, record["metadata"]["uid"])
    shown = {"block-0": base64.b64encode(b"print('harmful')").decode()}
    assert admin.wait_until("the code that would run", "secret", review, bool)["data"] == shown
    approver.create(an_approval(record, approver.me))
    runs(stage, name, "harmful\n")
    admin.wait_until_gone("secret", review)


def test_an_approval_is_for_one_execution_and_not_for_the_next_of_its_name(stage, admin, approver):
    name = a_name("again")
    old = submit(admin, name, "print('harmless')")
    admin.delete("cex", name, wait=True)
    admin.delete("secret", name, wait=True)
    new = submit(admin, name, "print('harmful')")
    approver.create(an_approval(old, approver.me))
    record = unused(admin, name, "OtherExecution")
    assert old["metadata"]["uid"] in record["status"]["approval"]["unused"][0]["message"]
    stage.never_ran(record)
    approver.create(an_approval(new, approver.me))  # control
    runs(stage, name, "harmful\n")


def test_an_approval_can_not_be_replayed_for_another_execution(stage, admin, approver):
    first, second = a_name("first"), a_name("second")
    used = an_approval(submit(admin, first), approver.me)
    approver.create(used)
    runs(stage, first)
    record = submit(admin, second)
    used["metadata"] |= {"name": a_name("replayed"), "labels": {"codeexec.dev/execution": second}}
    used["spec"]["executionRef"]["name"] = second
    approver.create(used)
    stage.never_ran(unused(admin, second, "OtherExecution"))
    approver.create(an_approval(record, approver.me))  # control
    runs(stage, second)


def test_an_approval_counts_only_for_exactly_what_is_asked_for(stage, admin, approver):
    name = a_name("grants")
    record = submit(admin, name)
    others = {
        "more of it": [{"field": "spec.limits.memory", "value": "256Mi"}],
        "more than it": [*GRANTS, {"field": "spec.timeoutSeconds", "value": "3600"}],
        "something else": [{"field": "spec.limits.cpu", "value": "128Mi"}],
    }
    for count, grants in enumerate(others.values(), 1):
        approver.create(an_approval(record, approver.me, grants=grants))
        stage.never_ran(unused(admin, name, "OtherGrants", count))
    approver.create(an_approval(record, approver.me, grants=GRANTS))  # control
    runs(stage, name)


def test_an_approval_that_has_expired_counts_for_nothing(stage, admin, approver):
    name = a_name("stale")
    record = submit(admin, name)
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    approver.create(an_approval(record, approver.me, expiresAt=past))
    stage.never_ran(unused(admin, name, "Expired"))
    approver.create(an_approval(record, approver.me))  # control
    runs(stage, name)


def test_an_approval_that_is_deleted_is_no_longer_named(stage, admin, approver):
    name = a_name("deleted")
    record = submit(admin, name)
    wrong = an_approval(record, approver.me, grants=[{"field": "spec.limits.memory", "value": "1Gi"}])
    approver.create(wrong)
    unused(admin, name, "OtherGrants")
    admin.delete("xapp", wrong["metadata"]["name"], wait=True)
    gone = "the approval to be gone from the record"
    admin.wait_until(gone, "cex", name, lambda record: "unused" not in record["status"]["approval"])
    approver.create(an_approval(record, approver.me))
    runs(stage, name)
