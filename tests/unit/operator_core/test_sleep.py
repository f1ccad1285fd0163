"""When a session sleeps and wakes, as scenarios."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    SESSION_UID,
    UID,
    a_pod,
    a_policy,
    a_sandbox,
    a_session,
    an_execution,
    seconds,
)
from factories import a_runner as runner
from plans import Walk, given_up, outcome, proof_of
from played_cluster import PlayedCluster
from played_context import a_context

from codeexec_api import CodeSession, CodeSessionStatus, ConditionType, Reason, SessionPhase, StoredFiles, condition
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.core.actions import (
    AskPool,
    CancelStray,
    CreatePod,
    KeepAwake,
    LeavePod,
    Plan,
    ReadLease,
    ReadPod,
    ReadPolicy,
    RestoreFiles,
    StoreFiles,
)
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.observed import ClaimedView, ObservedSession, PolicyProblem, Room
from codeexec_operator.core.observed_pod import Fault, Sandbox
from codeexec_operator.core.placement import has_turn
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing
from codeexec_operator.core.workspace_copy import FILES_JOB, Transfer

TIMING = Timing(start_timeout=60, sleep_retry=300, wake_retry=10, workspace_transfer=120, start_notice=1.5)
STORE = "file:///mnt/store"
IDLE, LIFETIME, AFTER = 100, 1000, 20
STORED = StoredFiles(url=STORE, sha256="a" * 64, entries=3, size_bytes=5, stored_at=NOW)
OURS = a_pod(owner=SESSION_UID)
BUSY = frozenset({UID})


def seen(phase: SessionPhase, *, status: Any = None, spec: Any = None, **rest: Any) -> ObservedSession:
    limits = {"idleTimeoutSeconds": IDLE, "maxLifetimeSeconds": LIFETIME, "sleepAfterSeconds": AFTER}
    session = a_session(phase=phase, status=status, **limits | (spec or {}))
    known = {"policy": a_policy(), "since": NOW, "policy_read": True, "cluster_view": CLUSTER_VIEW}
    return ObservedSession(session=session, **known | {"pool_asked": True, "store_url": STORE, **rest})


def ready(**rest: Any) -> ObservedSession:
    return seen(SessionPhase.READY, **{"sandbox": a_sandbox(pod=OURS), **rest})


def asleep(reason: Reason = Reason.FILES_STORED, *, status: Any = None, **rest: Any) -> ObservedSession:
    shown = condition(ConditionType.ASLEEP, holds=True, reason=reason.value, message="", now=NOW, generation=1)
    past = {"stored_files": STORED, "sleeps": 1, "pod_name": "", "image": IMAGE, "conditions": (shown,)}
    past |= {"started_at": NOW, "last_used_at": NOW}
    begun = "claimants" in rest
    known = {"policy_read": begun, "pool_asked": begun}
    return seen(SessionPhase.ASLEEP, status=past | (status or {}), **known | rest)


def waking(**rest: Any) -> ObservedSession:
    shown = condition(ConditionType.ASLEEP, holds=False, reason="Waking", message="", now=NOW, generation=1)
    past = {"stored_files": STORED, "sleeps": 1, "pod_name": "work-1-other", "conditions": (shown,)}
    past |= {"started_at": NOW - seconds(500), "last_used_at": NOW - seconds(90)}
    known = {"sandbox": a_sandbox(pod=OURS), "claimants": BUSY}
    return seen(SessionPhase.STARTING, status=past, **known | rest)


def plan(observed: ObservedSession, after: float = 0) -> Plan:
    return decide_session(observed, NOW + seconds(after), TIMING)


def written(result: Plan) -> CodeSessionStatus:
    assert isinstance(result.status, CodeSessionStatus)
    return result.status


def written_to(observed: ObservedSession, result: Plan) -> CodeSession:
    return observed.session.model_copy(update={"status": written(result)})


def shown(result: Plan, kind: str) -> tuple[str, str, str]:
    [found] = [one for one in written(result).conditions if one.type == kind]
    return found.status, found.reason, found.message


# --- falling asleep ---


def test_only_a_policy_that_lets_sessions_sleep_accepts_one_that_asks_for_it() -> None:
    result = plan(seen(SessionPhase.PENDING))
    assert outcome(result) == (SessionPhase.DENIED, "PolicyViolation")
    assert "spec.sleepAfterSeconds" in written(result).message
    sleepers = a_policy(sessionSleep={"minAfterSeconds": AFTER})
    assert outcome(plan(seen(SessionPhase.PENDING, policy=sleepers)))[0] is SessionPhase.STARTING


def test_an_idle_session_has_its_files_stored() -> None:
    assert plan(ready(), AFTER - 1) == Plan(wake_at=NOW + seconds(AFTER))
    assert plan(ready(), AFTER).actions == (StoreFiles(),)


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"sleepAfterSeconds": None}},
        {"store_url": ""},
        {"claimants": BUSY},
        {"sandbox": a_sandbox(pod=a_pod(owner="uid-of-the-pool"))},
        {"used_at": NOW + seconds(1)},
        {"since": NOW + seconds(1)},
    ],
    ids=["not asked for", "no store", "in use", "pod of a pool", "used since", "operator is new"],
)
def test_others_stay_awake(changes: Any) -> None:
    assert StoreFiles() not in plan(ready(**changes), AFTER).actions


def test_nothing_else_is_done_meanwhile() -> None:
    assert plan(ready(storing=Transfer(NOW + seconds(AFTER))), 30) == Plan(wake_at=NOW + seconds(IDLE))


def test_its_use_is_recorded_now_and_then_while_it_is_awake() -> None:
    used = {"used_at": NOW + seconds(1), "executions": 3, "spec": {"sleepAfterSeconds": 90}}
    assert plan(ready(**used), 2) == Plan(wake_at=NOW + seconds(30))
    assert (written(plan(ready(**used), 31)).executions, plan(ready(**used), 31).actions) == (3, ())


def test_when_all_is_stored_it_is_recorded_and_only_then_the_pod_goes() -> None:
    used = {"used_at": NOW + seconds(2), "executions": 7}
    storing = Transfer(NOW + seconds(2), NOW + seconds(20), STORED)
    result = plan(ready(storing=storing, status={"pool_name": "default"}, **used), 30)
    status = written(result)
    assert outcome(result) == (SessionPhase.ASLEEP, "FilesStored")
    assert (status.stored_files, status.sleeps) == (STORED, 1)
    assert (status.pod_name, status.node_name, status.pool_name) == ("", "", "")
    assert (status.last_used_at, status.executions) == (NOW + seconds(2), 7)
    assert shown(result, "Asleep")[:2] == ("True", "FilesStored")
    assert shown(result, "Ready")[:2] == ("False", "FilesStored")
    assert result.actions == (LeavePod(),), "adapters carry it out after the write"


def test_a_copy_from_before_the_last_execution_is_dropped() -> None:
    storing = Transfer(NOW + seconds(1), NOW + seconds(2), STORED)
    assert plan(ready(storing=storing, used_at=NOW + seconds(3)), 30) == Plan(actions=(KeepAwake(),))


def test_somebody_who_comes_meanwhile_keeps_it_awake() -> None:
    for transfer in (Transfer(NOW), Transfer(NOW, NOW, STORED)):
        assert plan(ready(storing=transfer, claimants=BUSY)) == Plan(actions=(KeepAwake(),))


def test_no_code_is_handed_over_while_files_are_told_or_the_record_is_not_known() -> None:
    claimant: Any = type("Claimant", (), {"claim": type("Claim", (), {"uid": UID})})
    assert has_turn(claimant, ready(), a_sandbox())
    assert not has_turn(claimant, ready(storing=Transfer(NOW)), a_sandbox())
    assert not has_turn(claimant, ready(storing=Transfer(NOW, NOW, STORED)), a_sandbox()), (
        "the copy would miss its files"
    )
    assert has_turn(claimant, ready(storing=Transfer(NOW, NOW, problem="a file can't be read")), a_sandbox())
    assert not has_turn(claimant, ready(ending=True), a_sandbox())
    assert not has_turn(claimant, ready(unsure=True), a_sandbox())


def test_why_it_stays_awake_is_recorded_once_and_tried_again_later() -> None:
    failed = Transfer(NOW, NOW + seconds(AFTER), problem="a: is a link", reason=Reason.FILES_NOT_STORED)
    result = plan(ready(storing=failed, spec={"idleTimeoutSeconds": 900}), AFTER)
    assert written(result).phase is SessionPhase.READY
    message = "the session stays awake, because its files could not be stored: a: is a link"
    assert shown(result, "Asleep") == ("False", "FilesNotStored", message)
    told = ready(storing=failed, spec={"idleTimeoutSeconds": 900}, status={"conditions": written(result).conditions})
    assert plan(told, AFTER) == Plan(wake_at=NOW + seconds(AFTER + 300))
    assert plan(told, AFTER + 300).actions == (StoreFiles(),)
    used = replace(told, used_at=NOW + seconds(AFTER + 1))
    assert plan(used, 2 * AFTER + 1).actions == (StoreFiles(),), "after another use it is as if nothing had been tried"


def test_words_of_a_pod_with_controls_are_recorded_once_too() -> None:
    failed = Transfer(NOW, NOW + seconds(AFTER), problem="a\n  b\x1b: is a link", reason=Reason.FILES_NOT_STORED)
    result = plan(ready(storing=failed, spec={"idleTimeoutSeconds": 900}), AFTER)
    assert shown(result, "Asleep")[2].endswith(r": a\n  b\x1b: is a link")
    told = ready(storing=failed, spec={"idleTimeoutSeconds": 900}, status={"conditions": written(result).conditions})
    assert plan(told, AFTER) == Plan(wake_at=NOW + seconds(AFTER + 300))


def test_if_the_write_may_have_come_through_another_one_comes_first() -> None:
    result = plan(ready(unsure=True, claimants=BUSY))
    assert (written(result).phase, result.actions) == (SessionPhase.READY, ())
    assert shown(result, "Asleep")[0] == "False"


def test_a_listing_of_an_operator_before_this_one_is_ended_at_once() -> None:
    job = f"{FILES_JOB}0"
    busy = a_sandbox(pod=OURS, runner=runner(job=job))
    assert plan(ready(sandbox=busy, claimants=BUSY)).actions == (CancelStray(job),)


# --- asleep ---


def test_it_sleeps_until_it_is_idle_for_too_long_or_too_old() -> None:
    assert plan(asleep(), 30) == Plan(wake_at=NOW + seconds(IDLE))
    assert outcome(plan(asleep(), IDLE)) == (SessionPhase.ENDED, "IdleTimeout")
    old = asleep(status={"last_used_at": NOW + seconds(LIFETIME - 1)})
    assert outcome(plan(old, LIFETIME)) == (SessionPhase.ENDED, "LifetimeExceeded")
    assert written(plan(old, LIFETIME)).message == "the session reached spec.maxLifetimeSeconds (1000 s)"
    assert outcome(plan(replace(old, claimants=BUSY), LIFETIME)) == (SessionPhase.ENDED, "LifetimeExceeded")


def test_it_ends_on_request_and_with_its_client() -> None:
    assert outcome(plan(asleep(spec={"ended": True}))) == (SessionPhase.ENDED, "EndRequested")
    assert plan(asleep(spec={"clientLease": "lease"}), 20).actions == (ReadLease("lease"),)


def test_a_new_operator_leaves_it_asleep() -> None:
    assert plan(asleep(), 1) == Plan(wake_at=NOW + seconds(IDLE))


def test_an_answer_that_was_lost_leaves_no_pod() -> None:
    late = asleep(storing=Transfer(NOW, NOW, STORED), sandbox=a_sandbox(pod=OURS))
    assert plan(late) == Plan(actions=(LeavePod(),))


@pytest.mark.parametrize(
    "begun",
    [
        {"policy_read": True},
        {"claimed": ClaimedView("default", "default-1", proof_of(a_sandbox()))},
        {"sandbox": Sandbox(requested=True)},
        {"sandbox": a_sandbox(pod=OURS)},
    ],
    ids=["policy", "pod of a pool", "pod asked for", "pod"],
)
def test_of_a_wake_that_nobody_needs_any_more_nothing_is_kept(begun: Any) -> None:
    """Else a pod would wait for the next call, which would wake by the policy of today."""
    left = asleep(**begun)
    assert plan(left) == Plan(actions=(LeavePod(),))
    assert LeavePod() not in plan(replace(left, claimants=BUSY)).actions, "control: somebody needs it"


@pytest.mark.parametrize(
    "left",
    [
        {"restoring": Transfer(NOW, NOW, problem="no answer")},
        {"restoring": Transfer(NOW)},
        {"unsure": True, "sandbox": a_sandbox(pod=OURS, gone=True)},
    ],
    ids=["store failed", "store took too long", "pod lost"],
)
def test_an_answer_that_was_lost_after_a_wake_has_failed_leaves_nothing_for_the_next_wake(left: Any) -> None:
    for claimants in (BUSY, frozenset[str]()):
        failed = asleep(Reason.STORE_UNAVAILABLE, claimants=claimants, **left)
        assert plan(failed, 10) == Plan(actions=(LeavePod(),))
    assert outcome(plan(asleep(Reason.STORE_UNAVAILABLE, claimants=BUSY), 10))[0] is SessionPhase.STARTING, "control"


async def test_what_an_answer_that_was_lost_has_left_is_left_once() -> None:
    rooms = Rooms(lambda _: Room(), lambda _: None)
    worker = SessionWorker(
        a_context(PlayedCluster(an_execution())), asleep().session, lambda _: None, rooms, lambda *_, **__: None
    )
    worker.task.cancel()
    await asyncio.gather(worker.task, return_exceptions=True)
    worker._unsure, worker.sandbox = True, a_sandbox(pod=OURS)
    assert worker._decide().actions == (LeavePod(),)
    await worker._act(LeavePod())
    assert LeavePod() not in worker._decide().actions


# --- waking ---


def test_somebody_wakes_it_and_the_policy_is_read_first() -> None:
    assert plan(asleep(claimants=BUSY, policy_read=False)) == Plan(actions=(ReadPolicy(),))
    assert plan(asleep(claimants=BUSY, pool_asked=False)) == Plan(actions=(AskPool(IMAGE, None),))
    result = plan(asleep(claimants=BUSY))
    [create] = result.actions
    assert isinstance(create, CreatePod)
    assert outcome(result) == (SessionPhase.STARTING, "Waking")
    assert shown(result, "Asleep")[:2] == ("False", "Waking")
    assert written(result).pod_name == create.manifest["metadata"]["name"]


def test_each_pod_of_a_session_has_a_name_of_its_own() -> None:
    names = {written(plan(asleep(claimants=BUSY, status={"sleeps": count}))).pod_name for count in range(5)}
    assert len(names) == 5
    assert all(len(name) == len("work-1-3f333df6") for name in names)


def test_it_takes_a_ready_pod_of_a_pool() -> None:
    sandbox = a_sandbox(pod=a_pod(owner="uid-of-the-pool"))
    claimed = {"sandbox": sandbox, "claimed": ClaimedView("default", "default-1", proof_of(sandbox))}
    result = plan(asleep(claimants=BUSY, **claimed))
    assert outcome(result) == (SessionPhase.STARTING, "Waking")
    assert (written(result).pool_name, written(result).pod_name, result.actions) == ("default", "default-1", ())


def test_it_wakes_in_its_image_whatever_the_default_is_by_now_and_whether_others_may_sleep() -> None:
    later = a_policy(images=[OTHER_IMAGE, IMAGE])
    [create] = plan(asleep(claimants=BUSY, policy=later)).actions
    assert isinstance(create, CreatePod)
    assert create.manifest["spec"]["containers"][0]["image"] == IMAGE


def test_what_the_policy_does_not_allow_any_more_does_not_wake() -> None:
    assert outcome(plan(asleep(claimants=BUSY, policy=a_policy(images=[OTHER_IMAGE])))) == (
        SessionPhase.DENIED,
        "PolicyViolation",
    )
    assert outcome(plan(asleep(claimants=BUSY, policy=PolicyProblem("bad")))) == (SessionPhase.DENIED, "PolicyInvalid")


def test_files_come_back_before_it_is_ready() -> None:
    assert plan(waking()) == Plan(actions=(RestoreFiles(STORED),))
    assert plan(waking(restoring=Transfer(NOW)), 1).status is None
    told = plan(waking(restoring=Transfer(NOW)), 1.5)
    assert shown(told, "Delayed")[0] == "True"
    assert "its files are being restored" in shown(told, "Delayed")[2]
    result = plan(waking(restoring=Transfer(NOW, NOW)))
    assert outcome(result) == (SessionPhase.READY, "SandboxReady")
    assert (written(result).started_at, written(result).last_used_at) == (NOW - seconds(500), NOW - seconds(90))


def test_what_a_pod_of_a_pool_has_shown_before_is_not_asked_for_again() -> None:
    away = {"cluster_view": ClusterView()}
    assert plan(waking(**away)).actions == ()
    proven = ClaimedView("default", "default-1", proof_of(a_sandbox(pod=OURS)))
    assert plan(waking(**away, claimed=proven)) == Plan(actions=(RestoreFiles(STORED),))


def test_no_file_gets_into_a_pod_that_has_not_shown_what_it_has_to() -> None:
    open_pod = a_sandbox(pod=OURS, runner=runner(answered=True))
    assert outcome(plan(waking(sandbox=open_pod))) == (SessionPhase.DENIED, "EgressNotEnforced")


def test_files_that_differ_end_the_session_and_no_code_runs() -> None:
    wrong = Transfer(NOW, NOW, problem="a.txt is another one", reason=Reason.FILES_DIFFER)
    result = plan(waking(restoring=wrong))
    assert outcome(result) == (SessionPhase.FAILED, "FilesDiffer")
    assert written(result).message == (
        f"a.txt is another one. The files as they were stored are in {STORE} (list {'a' * 64}). Nothing was run"
    )


@pytest.mark.parametrize(
    ("changes", "after", "reason"),
    [
        ({"restoring": Transfer(NOW, NOW, problem="no answer")}, 0, "StoreUnavailable"),
        ({"restoring": Transfer(NOW)}, 120, "StoreUnavailable"),
        ({"sandbox": Sandbox(requested=True)}, 60, "StartTimeout"),
        ({"sandbox": a_sandbox(pod=OURS, gone=True)}, 0, "PodLost"),
        ({"sandbox": Sandbox(fault=Fault(Reason.QUOTA_EXCEEDED, "used up."))}, 0, "QuotaExceeded"),
    ],
    ids=["store fails", "store takes too long", "no room", "pod lost", "quota"],
)
def test_what_may_pass_costs_no_files_and_is_tried_again(changes: Any, after: float, reason: str) -> None:
    decided = given_up if reason == "StartTimeout" else lambda plan, *seen: plan(*seen)
    result = decided(plan, waking(**changes), after)
    assert outcome(result) == (SessionPhase.ASLEEP, reason)
    assert (written(result).stored_files, written(result).sleeps, result.actions) == (STORED, 2, (LeavePod(),))
    assert shown(result, "Delayed")[0] == "True", "executions that wait are told why"
    assert ".." not in shown(result, "Delayed")[2]
    sleeping = asleep(Reason(reason), claimants=BUSY)
    assert plan(sleeping, 9) == Plan(wake_at=NOW + seconds(10))
    assert outcome(plan(sleeping, 10)) == (SessionPhase.STARTING, "Waking")


def test_it_is_tried_again_as_soon_though_the_clock_of_the_operator_before_was_ahead() -> None:
    failed = asleep(Reason.STORE_UNAVAILABLE, claimants=BUSY)
    [shown_then] = failed.session.status.conditions
    ahead = shown_then.model_copy(update={"last_transition_time": NOW + seconds(TIMING.clock_skew)})
    after = replace(failed, session=asleep(status={"conditions": (ahead,)}).session)
    assert plan(after, 9) == Plan(wake_at=NOW + seconds(10))
    assert outcome(plan(after, 10)) == (SessionPhase.STARTING, "Waking")


def test_once_nobody_waits_for_it_the_record_of_a_session_that_sleeps_on_says_so() -> None:
    failed = waking(restoring=Transfer(NOW, NOW, problem="no answer"))
    gone = {"restoring": None, "sandbox": Sandbox(), "policy_read": False, "pool_asked": False}
    left = replace(failed, session=written_to(failed, plan(failed)), claimants=frozenset(), **gone)
    result = plan(left)
    assert shown(result, "Delayed") == ("False", "StoreUnavailable", "no execution waits for the session any more")
    assert (written(result).phase, shown(result, "Asleep")[0], result.actions) == (SessionPhase.ASLEEP, "True", ())
    assert plan(replace(left, session=written_to(left, result)), 1).status is None, "it is said once"


def test_a_new_operator_goes_on_with_a_pod_of_a_pool_that_was_taken() -> None:
    half = waking(sandbox=Sandbox())
    of_pool = replace(
        half,
        session=half.session.model_copy(update={"status": half.session.status.model_copy(update={"pool_name": "p"})}),
    )
    assert plan(of_pool, 20).actions == (ReadPod(),)
    assert [type(one) for one in plan(half, 20).actions] == [CreatePod]


def test_a_whole_night() -> None:
    walk = Walk(ready(), plan)
    walk.step(AFTER)
    walk.step(AFTER + 1, storing=Transfer(NOW, NOW, STORED))
    walk.step(AFTER + 2, storing=None, sandbox=Sandbox(), policy_read=False)
    walk.step(AFTER + 3, claimants=BUSY, policy_read=True)
    walk.step(AFTER + 4, sandbox=a_sandbox(pod=OURS))
    record = walk.step(AFTER + 5, restoring=Transfer(NOW, NOW))
    assert walk.actions == ["StoreFiles", "LeavePod", "CreatePod", "RestoreFiles"]
    assert record.status.phase is SessionPhase.READY
    conditions = {one.type: one.status for one in record.status.conditions}
    assert (conditions["Ready"], conditions["Asleep"]) == ("True", "False")
