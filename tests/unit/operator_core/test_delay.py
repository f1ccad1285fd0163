"""Nobody waits without a word: what records and Events say while a pod doesn't start, or while others go first."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    PAYLOAD,
    TARGET,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    a_session,
    a_view,
    an_execution,
)
from plans import given_up

from codeexec_api import (
    CodeExecution,
    CodeExecutionStatus,
    CodeSession,
    CodeSessionStatus,
    Phase,
    SessionPhase,
    find_condition,
)
from codeexec_api.conditions import ConditionType
from codeexec_operator.core.actions import Attach, Plan
from codeexec_operator.core.delay import FREE_ROOM
from codeexec_operator.core.kube_events import event_of_wait
from codeexec_operator.core.observed import Observed, ObservedSession, Room
from codeexec_operator.core.observed_pod import Sandbox
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing

TIMING = Timing(start_timeout=60, early_notice=0.25, start_notice=1.5, queue_recorded=5, grace=5)
NO_CPU = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available."
BLOCKED = a_pod(running=False, node_name="", unschedulable=NO_CPU)
PULLING = a_pod(running=False, waiting_reason="ContainerCreating")
HELD = Room(idle=("old", "older", "oldest", "first"), busy=1, executions=2, ready=1)
HELD_WORDS = (
    "In this namespace, these have pods: 4 idle sessions (old, older, oldest and 1 more), 1 busy session, "
    f"2 executions, 1 ready pod of pools. {FREE_ROOM}"
)


def alone(sandbox: Sandbox, *, status: CodeExecutionStatus | None = None, **rest: Any) -> Observed:
    """In a pod of its own."""
    execution = an_execution(phase=Phase.STARTING)
    execution = execution.model_copy(update={"status": status}) if status else execution
    known = {"payload": PAYLOAD, "cluster_view": CLUSTER_VIEW, "pool_asked": True, "sandbox": sandbox, **rest}
    return Observed(execution, a_policy(), NOW, **known)


def session(sandbox: Sandbox, *, status: CodeSessionStatus | None = None, **rest: Any) -> ObservedSession:
    one = a_session(phase=SessionPhase.STARTING)
    one = one.model_copy(update={"status": status}) if status else one
    known = {"policy_read": True, "cluster_view": CLUSTER_VIEW, "sandbox": sandbox, **rest}
    return ObservedSession(one, a_policy(), NOW, **known)


def in_session(view: Any, *, status: CodeExecutionStatus | None = None, **rest: Any) -> Observed:
    execution = an_execution(phase=Phase.STARTING, sessionRef={"name": "work-1"})
    execution = execution.model_copy(update={"status": status}) if status else execution
    return Observed(execution, a_policy(), NOW, payload=PAYLOAD, session=view, cluster_view=CLUSTER_VIEW, **rest)


def plan(observed: Observed | ObservedSession, after: float) -> Plan:
    now = NOW + timedelta(seconds=after)
    return decide(observed, now, TIMING) if isinstance(observed, Observed) else decide_session(observed, now, TIMING)


def told(result: Plan, kind: ConditionType = ConditionType.DELAYED) -> tuple[str, str, str]:
    assert result.status is not None
    found = find_condition(result.status.conditions, kind)
    assert found
    return found.status, found.reason, found.message


@pytest.mark.parametrize("waiting", [alone, session], ids=["execution", "session"])
class TestPod:
    def test_that_no_node_has_room_is_told_at_once_with_what_to_do(self, waiting: Any) -> None:
        blocked = waiting(Sandbox(BLOCKED, requested=True), room=HELD)
        assert plan(blocked, 0.2) == Plan(wake_at=NOW + timedelta(seconds=0.25))
        result = plan(blocked, 0.25)
        words = f"the pod is not ready yet: the scheduler found no node: {NO_CPU} {HELD_WORDS}"
        assert told(result) == ("True", "Unschedulable", words)
        assert result.status
        assert (result.status.reason, result.status.message) == ("Unschedulable", words)

    def test_that_a_container_takes_its_time_is_told_within_two_seconds(self, waiting: Any) -> None:
        pulling = waiting(Sandbox(PULLING, requested=True))
        assert plan(pulling, 1.4) == Plan(wake_at=NOW + timedelta(seconds=1.5))
        status, reason, message = told(plan(pulling, 1.5))
        assert (status, reason) == ("True", "PodStarting")
        assert "ContainerCreating" in message
        assert f"Its node may still be pulling the image {IMAGE}" in message
        assert "`kubectl -n codeexec-sandbox describe pod " in message

    def test_it_is_told_once_for_each_reason(self, waiting: Any) -> None:
        blocked = waiting(Sandbox(BLOCKED, requested=True))
        first = plan(blocked, 1).status
        assert plan(waiting(Sandbox(BLOCKED, requested=True), status=first), 2) == Plan(
            wake_at=NOW + timedelta(seconds=60)
        )
        assert told(plan(waiting(Sandbox(PULLING, requested=True), status=first), 2))[1] == "PodStarting"
        unfinished = replace(BLOCKED, unschedulable="0/1 nodes are available: Insufficient cpu...")
        first = plan(waiting(Sandbox(unfinished, requested=True)), 1).status
        assert plan(waiting(Sandbox(unfinished, requested=True), status=first), 2).status is None
        other = replace(BLOCKED, unschedulable=NO_CPU.replace("cpu", "memory"))
        assert "memory" in told(plan(waiting(Sandbox(other, requested=True), status=first), 2))[2]

    def test_words_of_several_lines_are_told_in_one_and_once(self, waiting: Any) -> None:
        failing = replace(BLOCKED, unschedulable="first\n  Phase: Ready")
        result = plan(waiting(Sandbox(failing, requested=True)), 2)
        assert r"first\n  Phase: Ready" in told(result)[2]
        assert result.status
        assert result.status.message == told(result)[2]
        assert plan(waiting(Sandbox(failing, requested=True), status=result.status), 3).status is None

    def test_long_words_are_told_once_and_leave_room_for_what_to_do(self, waiting: Any) -> None:
        """A scheduler names each taint; the operator wrote such a record again and again, without a pause."""
        taints = ", ".join(f"1 node(s) had untolerated taint {{dedicated: team-{number:03}}}" for number in range(90))
        full = replace(BLOCKED, unschedulable=f"0/90 nodes are available: {taints}.")
        result = plan(waiting(Sandbox(full, requested=True)), 1)
        assert "team-001" in told(result)[2]
        assert "`kubectl describe nodes`" in told(result)[2]
        assert plan(waiting(Sandbox(full, requested=True), status=result.status), 1.001).status is None

    def test_what_is_late_before_it_would_be_looked_for_is_not_waited_for(self, waiting: Any) -> None:
        heard = waiting(Sandbox(PULLING, requested=True, heard_at=NOW + timedelta(seconds=50)))
        assert plan(heard, 50).wake_at == NOW + timedelta(seconds=60)

    def test_what_is_to_be_done_is_done_meanwhile(self, waiting: Any) -> None:
        result = plan(waiting(Sandbox(a_pod(), requested=True)), 2)
        assert result.actions == (Attach(),)
        assert told(result)[1] == "PodStarting"
        assert "pulling" not in told(result)[2], "its container runs"

    def test_once_the_pod_is_ready_it_waits_no_more(self, waiting: Any) -> None:
        first = plan(waiting(Sandbox(BLOCKED, requested=True)), 1).status
        result = plan(waiting(a_sandbox(runner=a_runner()), status=first), 3)
        assert result.status
        assert result.status.phase in (Phase.RUNNING, SessionPhase.READY)
        assert told(result)[:2] == ("False", "SandboxReady")

    def test_what_waits_in_vain_says_who_has_the_room(self, waiting: Any) -> None:
        first = plan(waiting(Sandbox(BLOCKED, requested=True)), 1).status
        result = given_up(plan, waiting(Sandbox(BLOCKED, requested=True), status=first, room=HELD), 60)
        assert result.status
        assert (result.status.phase.value, result.status.reason) == ("Failed", "StartTimeout")
        assert result.status.message.endswith(f"Insufficient cpu. preemption: 0/1 nodes are available. {HELD_WORDS}")
        assert told(result)[:2] == ("False", "StartTimeout")

    def test_a_network_that_can_not_be_checked_yet(self, waiting: Any) -> None:
        stale = replace(CLUSTER_VIEW, reached_at={TARGET: NOW - timedelta(minutes=10)})
        observed = waiting(a_sandbox(runner=a_runner()), cluster_view=stale)
        status, reason, message = told(plan(observed, 2))
        assert (status, reason) == ("True", "PodStarting")
        assert message.startswith("the pod is not ready yet: ")
        assert TARGET.name in message

    def test_a_taint_is_for_the_platform_owner(self, waiting: Any) -> None:
        tainted = replace(BLOCKED, unschedulable="0/1 nodes are available: 1 node(s) had untolerated taint")
        message = told(plan(waiting(Sandbox(tainted, requested=True)), 1))[2]
        assert message.endswith("The platform owner has to look at the nodes: `kubectl describe nodes`")

    def test_an_event_tells_of_each_reason_once(self, waiting: Any) -> None:
        observed = waiting(Sandbox(BLOCKED, requested=True))
        record = observed.execution if isinstance(observed, Observed) else observed.session
        written = record.model_copy(update={"status": plan(observed, 1).status})
        what = event_of_wait(record.status.conditions, written)
        assert what
        assert (what.reason, what.action, what.warning) == ("Unschedulable", "Start", True)
        assert "Insufficient cpu" in what.note
        assert event_of_wait(written.status.conditions, written) is None
        other = plan(waiting(Sandbox(PULLING, requested=True), status=written.status), 2).status
        assert (what := event_of_wait(written.status.conditions, record.model_copy(update={"status": other})))
        assert what.reason == "PodStarting"


class TestSession:
    def test_executions_say_why_their_session_does_not_start(self) -> None:
        waits = a_view(SessionPhase.STARTING, sandbox=Sandbox(BLOCKED, requested=True))
        assert plan(in_session(waits), 3) == Plan()
        blocked = plan(session(Sandbox(BLOCKED, requested=True), room=HELD), 1).status
        view = replace(waits, session=waits.session.model_copy(update={"status": blocked}))
        first = plan(in_session(view), 3)
        status, reason, message = told(first)
        assert (status, reason) == ("True", "Unschedulable")
        assert message.startswith("session 'work-1': the pod is not ready yet: the scheduler found no node")
        assert HELD_WORDS in message
        assert plan(in_session(view, status=first.status), 4) == Plan()  # type: ignore[arg-type]

    def test_the_place_in_line_is_told_within_two_seconds(self) -> None:
        third = replace(a_view(turn=False), since=NOW, position=2, length=4)
        assert plan(in_session(third), 1) == Plan(wake_at=NOW + timedelta(seconds=1.5))
        result = plan(in_session(third), 1.5)
        place = "position 3 of 4 in the queue of session 'work-1', which runs one execution at a time"
        assert told(result, ConditionType.QUEUED) == ("True", "WaitingForSession", place)
        known: Any = result.status
        written = NOW + timedelta(seconds=1.5)
        assert plan(in_session(third, status=known, recorded_at=written), 2) == Plan(
            wake_at=written + timedelta(seconds=5)
        )
        second = replace(third, position=1)
        assert (
            "position 2 of 4"
            in told(plan(in_session(second, status=known, recorded_at=written), 7), ConditionType.QUEUED)[2]
        )
        turn = plan(in_session(a_view(), status=known), 8)
        assert told(turn, ConditionType.QUEUED)[:2] == ("False", "SandboxReady")
        execution: CodeExecution = an_execution()
        announced = event_of_wait((), execution.model_copy(update={"status": known}))
        assert announced
        assert (announced.reason, announced.note, announced.warning) == ("WaitingForSession", place, False)

    def test_who_is_next_waits_without_a_place(self) -> None:
        assert plan(in_session(replace(a_view(turn=False), since=NOW, position=0, length=1)), 9) == Plan()


def test_sessions_are_named_as_far_as_there_is_room() -> None:
    three = Room(idle=("old", "older", "oldest"))
    message = told(plan(alone(Sandbox(BLOCKED, requested=True), room=three), 1))[2]
    assert "these have pods: 3 idle sessions (old, older, oldest). End" in message


def test_without_anything_else_the_request_is_too_large() -> None:
    message = told(plan(alone(Sandbox(BLOCKED, requested=True)), 1))[2]
    assert "Nothing else in this namespace has a pod. End sessions" in message
    assert isinstance(a_session(), CodeSession)
