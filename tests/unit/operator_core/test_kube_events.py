"""Events: of what somebody has to know, none on the usual way, no more than a few each second, never with output."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from factories import APPROVER, NOW, a_raw_file, a_session, an_execution
from kubernetes.aio.client.exceptions import ApiException
from polling import until

from codeexec_api import (
    ApprovalStatus,
    CodeExecution,
    ConditionType,
    EgressProof,
    EgressVerdict,
    Grant,
    OpenedEgress,
    Phase,
    Reason,
    SessionPhase,
    StreamStatus,
    condition,
)
from codeexec_operator.adapters.event_recorder import _MOST_WAITING, EventRecorder
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.core.kube_events import Allowance, KubeEvent, build_event, event_of, event_of_wait

MARKER = "PLANTED-IN-CODE-AND-OUTPUT"
ASKED = ApprovalStatus(grants=(Grant(field="spec.limits.memory", value="4Gi"),), approver=APPROVER)
OPEN = EgressProof(verdict=EgressVerdict.OPEN, checked_at=NOW)
CLOSED = EgressProof(verdict=EgressVerdict.CLOSED, checked_at=NOW)


def told(before: Phase, phase: Phase, **status: Any) -> KubeEvent | None:
    return event_of(before, an_execution(phase=phase, status=status))


@pytest.mark.parametrize(
    ("before", "phase", "reason"),
    [
        (Phase.PENDING, Phase.STARTING, Reason.POD_REQUESTED),
        (Phase.STARTING, Phase.RUNNING, Reason.CODE_STARTED),
        (Phase.PENDING, Phase.RUNNING, Reason.CODE_STARTED),
        (Phase.RUNNING, Phase.SUCCEEDED, Reason.COMPLETED),
        (Phase.RUNNING, Phase.FAILED, Reason.NON_ZERO_EXIT),
        (Phase.RUNNING, Phase.CANCELLED, Reason.CANCEL_REQUESTED),
        (Phase.AWAITING_APPROVAL, Phase.AWAITING_APPROVAL, Reason.APPROVAL_REQUIRED),
    ],
)
def test_the_usual_way_is_not_told(before: Phase, phase: Phase, reason: Reason) -> None:
    assert told(before, phase, reason=reason.value, egress_proof=CLOSED) is None


@pytest.mark.parametrize(
    ("before", "phase", "reason", "note", "action"),
    [
        (Phase.PENDING, Phase.AWAITING_APPROVAL, "ApprovalRequired", "spec.limits.memory=4Gi", "Approve"),
        (Phase.AWAITING_APPROVAL, Phase.APPROVED, "Approved", f"{APPROVER} approved spec.limits", "Approve"),
        (Phase.AWAITING_APPROVAL, Phase.DENIED, "ApprovalDenied", f"denied by {APPROVER}", "Accept"),
        (Phase.APPROVED, Phase.DENIED, "ApprovalRevoked", f"the approval of {APPROVER} was revoked", "Accept"),
        (Phase.AWAITING_APPROVAL, Phase.EXPIRED, "ApprovalTimeout", "what is said", "Accept"),
        (Phase.PENDING, Phase.DENIED, "PolicyViolation", "what is said", "Accept"),
        (Phase.STARTING, Phase.DENIED, "EgressNotEnforced", "what is said", "Start"),
        (Phase.STARTING, Phase.FAILED, "ImagePullFailed", "what is said", "Start"),
        (Phase.PENDING, Phase.DENIED, "PayloadMismatch", "see status.message", "Accept"),
        (Phase.RUNNING, Phase.FAILED, "RunnerFailed", "see status.message", "Run"),
        (Phase.RUNNING, Phase.TIMED_OUT, "DeadlineExceeded", "ran longer than spec.timeoutSeconds (60 s)", "Run"),
        (Phase.RUNNING, Phase.OUT_OF_MEMORY, "OutOfMemory", "256Mi", "Run"),
        (Phase.RUNNING, Phase.LOST, "OperatorRestarted", "the operator was restarted", "Run"),
        (Phase.STARTING, Phase.LOST, "PodLost", "its pod was deleted", "Run"),
    ],
)
def test_what_somebody_has_to_know_is_told(before: Phase, phase: Phase, reason: str, note: str, action: str) -> None:
    started = {} if before is Phase.RUNNING else {"started_at": None}
    what = told(before, phase, reason=reason, message="what is said", approval=ASKED, **started)
    assert what is not None
    assert (what.reason, what.action, what.warning) == (reason, action, action != "Approve")
    assert note in what.note


def test_code_that_runs_although_its_network_may_be_open_is_told_of() -> None:
    what = told(Phase.STARTING, Phase.RUNNING, reason="CodeStarted", egress_proof=OPEN)
    assert what is not None
    assert (what.reason, what.warning) == ("EgressNotEnforced", True)
    assert what.note.startswith(
        "the network of the sandbox was not shown to be closed (Open), and the policy lets code run"
    )
    session = a_session(phase=SessionPhase.READY, status={"egress_proof": OPEN})
    assert event_of(SessionPhase.STARTING, session) == what
    assert build_event(session, what, NOW, "operator")["regarding"]["kind"] == "CodeSession"


def test_what_code_may_reach_is_told_of_and_is_no_warning() -> None:
    restricted = EgressProof(verdict=EgressVerdict.RESTRICTED, checked_at=NOW)
    opened = (OpenedEgress(permit="10.1.2.3/32:443/TCP"),)
    what = told(Phase.STARTING, Phase.RUNNING, reason="CodeStarted", egress_proof=restricted, egress=opened)
    assert what is not None
    assert (what.reason, what.warning) == ("EgressPermitted", False)
    assert build_event(an_execution(), what, NOW, "operator")["type"] == "Normal"
    assert "connect to 10.1.2.3/32:443/TCP and to nothing else" in what.note


def test_sessions_tell_of_what_went_wrong_only() -> None:
    for phase in (SessionPhase.DENIED, SessionPhase.FAILED, SessionPhase.LOST):
        assert event_of(SessionPhase.STARTING, a_session(phase=phase)), phase
    assert event_of(SessionPhase.READY, a_session(phase=SessionPhase.ENDED)) is None
    assert event_of(SessionPhase.STARTING, a_session(phase=SessionPhase.READY)) is None


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.COMPLETED])
def test_no_event_of_code_that_ran_quotes_it(reason: Reason) -> None:
    output = StreamStatus(text=MARKER, sha256="0" * 64, kept_bytes=9, total_bytes=9, truncated=False)
    for phase in (one for one in Phase if one.terminal):
        ran = an_execution(
            phase=phase,
            files=[a_raw_file(f"{MARKER}.txt")],
            status={"reason": reason.value, "message": MARKER, "stdout": output, "started_at": NOW},
        )
        if phase in (Phase.DENIED, Phase.EXPIRED):
            continue  # nothing has run then
        what = event_of(Phase.RUNNING, ran)
        assert what is None or MARKER not in json.dumps(build_event(ran, what, NOW, "operator")), phase


def test_an_event_is_about_its_record_and_no_longer_than_the_api_server_takes() -> None:
    record = an_execution(phase=Phase.DENIED, status={"reason": "PolicyViolation", "message": "é" * 4000})
    what = event_of(Phase.PENDING, record)
    assert what is not None
    event = build_event(record, what, NOW, "x" * 300)
    assert event["regarding"] == {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "CodeExecution",
        "name": "run-1",
        "namespace": "codeexec-sandbox",
        "uid": record.metadata.uid,
    }
    assert (event["type"], event["eventTime"]) == ("Warning", "2026-11-21T12:00:00.000001Z")
    assert len(event["note"].encode()) == 1024
    assert len(event["reportingInstance"]) == 128


def test_after_a_burst_there_are_so_many_in_each_second() -> None:
    allowance = Allowance(3, 2.0, now=100.0)
    assert [allowance.take(100.0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert allowance.take(102.0) == 0
    assert allowance.take(200.0) == 0


class Played:
    """An API server that may refuse."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.refuses = False

    async def create_event(self, event: Any) -> None:
        if self.refuses:
            raise ApiException(status=403)
        self.posted.append(event)


def count(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("codeexec_events_total", {"result": result}) or 0


async def test_events_are_posted_and_what_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    played, metrics = Played(), Metrics("1")
    cluster: Any = played
    event_recorder = EventRecorder(cluster, metrics)
    task = asyncio.create_task(event_recorder.run())
    denied = an_execution(phase=Phase.DENIED, status={"reason": "PolicyViolation"})
    played.refuses = True
    for _ in range(3):
        event_recorder.written(an_execution(), denied)
    await until(lambda: count(metrics, "failed") == 3)
    played.refuses = False
    event_recorder.written(an_execution(), denied)
    event_recorder.written(an_execution(phase=Phase.RUNNING), an_execution(phase=Phase.SUCCEEDED))
    await until(lambda: count(metrics, "posted") == 1)
    task.cancel()
    assert [one["reason"] for one in played.posted] == ["PolicyViolation"]
    assert [one.message for one in caplog.records] == ["could not post an Event: 403 (logged at most once a minute)"]


@pytest.mark.parametrize("reason", [Reason.FILES_NOT_STORED, Reason.STORE_UNAVAILABLE])
def test_that_a_session_stays_awake_is_told_once_without_names_of_files(reason: Reason) -> None:
    shown = condition(ConditionType.ASLEEP, holds=False, reason=reason.value, message=MARKER, now=NOW, generation=1)
    awake = a_session(phase=SessionPhase.READY, status={"conditions": (shown,)})
    note = "the session stays awake, because its files could not be stored; see the condition Asleep"
    assert event_of_wait((), awake) == KubeEvent(reason.value, note, "Sleep")
    assert event_of_wait((shown,), awake) is None


@pytest.mark.parametrize(("holds", "reason"), [(True, "FilesStored"), (False, "Waking"), (True, "StoreUnavailable")])
def test_that_a_session_sleeps_and_wakes_is_not_told(holds: bool, reason: str) -> None:
    shown = condition(ConditionType.ASLEEP, holds=holds, reason=reason, message="", now=NOW, generation=1)
    assert event_of_wait((), a_session(phase=SessionPhase.READY, status={"conditions": (shown,)})) is None
    assert event_of(SessionPhase.READY, a_session(phase=SessionPhase.ASLEEP)) is None


async def test_what_is_too_much_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics("1")
    nobody: Any = SimpleNamespace()
    event_recorder = EventRecorder(nobody, metrics)
    denied = an_execution(phase=Phase.DENIED)
    for _ in range(_MOST_WAITING + 7):
        event_recorder.written(an_execution(), denied)
    assert count(metrics, "dropped") == 7
    broken: CodeExecution = denied.model_copy(update={"status": None})
    event_recorder.written(an_execution(), broken)
    assert "not announced" in caplog.text


async def test_events_of_a_namespace_that_floods_take_no_place_and_no_turn_of_others() -> None:
    played, metrics = Played(), Metrics("1")
    cluster: Any = played
    event_recorder = EventRecorder(cluster, metrics)
    denied = an_execution(phase=Phase.DENIED)
    elsewhere = denied.model_copy(update={"metadata": denied.metadata.model_copy(update={"namespace": "quiet"})})
    for _ in range(_MOST_WAITING):
        event_recorder.written(an_execution(), denied)
    event_recorder.written(an_execution(), elsewhere)
    task = asyncio.create_task(event_recorder.run())
    await until(lambda: count(metrics, "posted") >= 2)
    task.cancel()
    assert [one["metadata"]["namespace"] for one in played.posted[:2]] == [denied.metadata.namespace, "quiet"]
    assert count(metrics, "dropped") == 1
