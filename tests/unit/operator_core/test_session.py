"""The decision about a session, phase by phase, as scenarios."""

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    TARGET,
    UID,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    a_session,
    seconds,
)
from plans import Walk, given_up, outcome

from codeexec_api import CodeSession, CodeSessionStatus, Reason, SessionPhase
from codeexec_operator.core.actions import (
    Attach,
    CancelStray,
    CreatePod,
    DeletePod,
    Forget,
    Plan,
    ReadLease,
    ReadPod,
    ReadPolicy,
)
from codeexec_operator.core.client_lease import observe
from codeexec_operator.core.cluster_view import ClusterView, RuntimeClass
from codeexec_operator.core.egress import parse_targets
from codeexec_operator.core.observed import ObservedSession, PolicyProblem
from codeexec_operator.core.observed_pod import Fault, PodLink, RunnerView, Sandbox
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing
from codeexec_operator.core.workspace_copy import FILES_JOB
from codeexec_operator.manifests.pod import egress_targets_of

TIMING = Timing(start_timeout=60, start_notice=1.5, attach_retry=1, grace=5, list_grace=15, use_recorded=30)
IDLE, LIFETIME = 100, 1000
ENDED_POD = a_pod(running=False, terminated="Error", exit_code=1)
TAKEN = a_pod(running=False, terminated="Evicted", disruption="its node ended it (low on memory)")
EVICTED = a_pod(running=False, terminated="Evicted", end_message="Pod ephemeral local storage usage exceeds")
OUT_OF_MEMORY = a_pod(running=False, terminated="OOMKilled", exit_code=137)
BUSY = frozenset({UID})
"""Something runs in it."""


def seen(
    phase: SessionPhase = SessionPhase.PENDING,
    *,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **rest: Any,
) -> ObservedSession:
    limits = {"idleTimeoutSeconds": IDLE, "maxLifetimeSeconds": LIFETIME}
    session = a_session(phase=phase, status=status, **limits | (spec or {}))
    known = {"policy": a_policy(), "since": NOW, "policy_read": True, "cluster_view": CLUSTER_VIEW}
    known |= {"pool_asked": True, **rest}
    return ObservedSession(session=session, **known)


def starting(sandbox: Sandbox | None = None, **rest: Any) -> ObservedSession:
    return seen(SessionPhase.STARTING, **{"sandbox": sandbox or Sandbox(requested=True), **rest})


def ready(**rest: Any) -> ObservedSession:
    return seen(SessionPhase.READY, **{"sandbox": a_sandbox(), **rest})


def plan(observed: ObservedSession, after: float = 0) -> Plan:
    return decide_session(observed, NOW + seconds(after), TIMING)


def condition_of(result: Plan, kind: str) -> tuple[str, str]:
    assert result.status is not None
    [found] = [one for one in result.status.conditions if one.type == kind]
    return found.status, found.reason


class TestPending:
    def test_the_policy_is_read_first(self) -> None:
        assert plan(seen(policy_read=False)) == Plan(actions=(ReadPolicy(),))

    def test_accepted(self) -> None:
        result = plan(seen())
        assert outcome(result) == (SessionPhase.STARTING, "PodRequested")
        assert condition_of(result, "Accepted") == ("True", "PodRequested")
        [action] = result.actions
        assert isinstance(action, CreatePod)
        assert result.status
        assert result.status.pod_name == action.manifest["metadata"]["name"] == "work-1-3f333df6"
        assert result.status.image == IMAGE
        assert parse_targets(egress_targets_of(action.manifest["spec"])) == {TARGET}

    def test_the_kubelets_deadline_is_behind_that_of_the_session(self) -> None:
        [action] = plan(seen()).actions
        assert isinstance(action, CreatePod)
        assert action.manifest["spec"]["activeDeadlineSeconds"] == 60 + LIFETIME + 2 * 5 + 300

    def test_it_gets_the_image_that_it_asks_for(self) -> None:
        result = plan(seen(spec={"image": OTHER_IMAGE}, policy=a_policy(images=[IMAGE, OTHER_IMAGE])))
        assert isinstance(result.status, CodeSessionStatus)
        assert result.status.image == OTHER_IMAGE

    def test_the_runtime_class_is_recorded_and_used(self) -> None:
        result = plan(seen(policy=a_policy(runtimeClassName="gvisor")))
        [action] = result.actions
        assert isinstance(action, CreatePod)
        assert action.manifest["spec"]["runtimeClassName"] == "gvisor"
        assert result.status
        assert result.status.runtime_class_name == "gvisor"

    @pytest.mark.parametrize(
        ("policy", "reason", "told"),
        [
            (a_policy(maxSessionIdleSeconds=IDLE - 1), "PolicyViolation", "spec.idleTimeoutSeconds"),
            (a_policy(maxSessionLifetimeSeconds=LIFETIME - 1), "PolicyViolation", "spec.maxLifetimeSeconds"),
            (a_policy(maxLimits={"cpu": "100m"}), "PolicyViolation", "spec.limits.cpu"),
            (PolicyProblem("images: Field required"), "PolicyInvalid", "images: Field required"),
        ],
    )
    def test_denied(self, policy: Any, reason: str, told: str) -> None:
        result = plan(seen(policy=policy))
        assert outcome(result) == (SessionPhase.DENIED, reason)
        assert condition_of(result, "Accepted") == ("False", reason)
        assert result.status
        assert told in result.status.message
        assert result.status.ended_at == NOW
        assert result.actions == ()

    def test_a_denial_says_where_the_policy_is_kept(self) -> None:
        result = plan(seen(policy=a_policy(maxLimits={"cpu": "100m"}), policy_source="the policy in X"))
        assert result.status
        assert result.status.message.endswith("ask the platform owner to change the policy in X")

    def test_ended_before_it_was_accepted(self) -> None:
        result = plan(seen(spec={"ended": True}, policy_read=False))
        assert outcome(result) == (SessionPhase.ENDED, "EndRequested")
        assert condition_of(result, "Ready") == ("False", "EndRequested")
        assert result.actions == ()

    def test_a_pod_that_was_asked_for_goes_even_if_the_record_does_not_say_so(self) -> None:
        observed = seen(spec={"ended": True}, sandbox=Sandbox(requested=True))
        assert plan(observed).actions == (DeletePod(),)


class TestStarting:
    def test_waits_for_the_pod_attaches_and_waits_for_its_report(self) -> None:
        waits = Plan(wake_at=NOW + seconds(1.5))
        assert plan(starting()) == waits
        assert plan(starting(Sandbox(a_pod(running=False)))) == waits
        assert plan(starting(Sandbox(a_pod()))) == replace(waits, actions=(Attach(),))
        assert plan(starting(a_sandbox(runner=RunnerView(PodLink.OPEN)))) == waits

    def test_ready_once_it_was_shown_that_its_network_is_closed(self) -> None:
        pod = a_pod(image_id="sha256:1", user_namespace=True)
        result = plan(starting(a_sandbox(pod=pod)), 2)
        assert outcome(result) == (SessionPhase.READY, "SandboxReady")
        assert condition_of(result, "EgressClosed") == ("True", "Closed")
        assert condition_of(result, "Ready") == ("True", "SandboxReady")
        status = result.status
        assert isinstance(status, CodeSessionStatus)
        assert (status.started_at, status.last_used_at) == (NOW + seconds(2), NOW + seconds(2))
        assert status.layers == ("UserNamespace", "NetworkPolicy", "Seccomp", "Landlock")
        assert (status.node_name, status.image_id) == ("node-1", "sha256:1")
        assert result.actions == ()

    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [
            ({"sandbox": a_sandbox(runner=a_runner(answered=True))}, "Open"),
            ({"cluster_view": ClusterView()}, "Unproven"),
            ({"sandbox": a_sandbox(runner=a_runner(targets=()))}, "Unproven"),
        ],
    )
    def test_what_is_not_shown_to_be_closed_is_refused_or_recorded_as_such(self, changes: Any, verdict: str) -> None:
        observed = starting(**{"sandbox": a_sandbox(), **changes})
        result = plan(observed)
        if verdict == "Unproven":  # it may be shown a moment later
            assert result == Plan(wake_at=NOW + seconds(TIMING.proof_retry))
            assert plan(observed, TIMING.start_timeout - 0.5).wake_at == NOW + seconds(TIMING.start_timeout)
            result = plan(observed, TIMING.start_timeout)
        assert outcome(result) == (SessionPhase.DENIED, "EgressNotEnforced")
        assert condition_of(result, "EgressClosed") == ("False", verdict)
        assert condition_of(result, "Ready") == ("False", "EgressNotEnforced")
        assert result.actions == (DeletePod(),)
        warned = plan(replace(observed, policy=a_policy(egressProof="Warn")))
        assert outcome(warned) == (SessionPhase.READY, "SandboxReady")
        assert condition_of(warned, "EgressClosed") == ("False", verdict)

    def test_a_policy_that_is_not_valid_asks_for_no_warning(self) -> None:
        observed = starting(a_sandbox(runner=a_runner(answered=True)), policy=PolicyProblem("no images"))
        assert outcome(plan(observed)) == (SessionPhase.DENIED, "EgressNotEnforced")

    @pytest.mark.parametrize(
        ("sandbox", "expected"),
        [
            (Sandbox(a_pod(running=False, waiting_reason="ErrImagePull")), (SessionPhase.FAILED, "ImagePullFailed")),
            (
                Sandbox(requested=True, fault=Fault(Reason.QUOTA_EXCEEDED, "used up")),
                (SessionPhase.FAILED, "QuotaExceeded"),
            ),
            (Sandbox(ENDED_POD), (SessionPhase.FAILED, "RunnerFailed")),
            (a_sandbox(runner=RunnerView(problem="nonsense")), (SessionPhase.FAILED, "RunnerFailed")),
            (a_sandbox(gone=True), (SessionPhase.LOST, "PodLost")),
        ],
    )
    def test_a_pod_that_does_not_start(self, sandbox: Sandbox, expected: tuple[SessionPhase, str]) -> None:
        result = plan(starting(sandbox))
        assert outcome(result) == expected
        assert condition_of(result, "Ready") == ("False", expected[1])
        assert result.actions == (DeletePod(),)

    def test_gives_up_in_time(self) -> None:
        assert outcome(plan(starting(), 59.9)) == (SessionPhase.STARTING, "PodStarting")
        assert outcome(given_up(plan, starting(), 60)) == (SessionPhase.FAILED, "StartTimeout")

    def test_gives_up_in_time_before_anything_else_is_read(self) -> None:
        for runner in (RunnerView(PodLink.OPEN), replace(a_runner(), link=PodLink.CLOSED)):
            result = given_up(plan, starting(a_sandbox(runner=runner), policy_read=False), 60)
            assert outcome(result) == (SessionPhase.FAILED, "StartTimeout")

    def test_gives_up_in_time_though_the_runner_has_reported_if_nothing_is_known_of_its_node(self) -> None:
        waits = starting(
            a_sandbox(pod=a_pod(runtime_class_name="gvisor")),
            cluster_view=replace(CLUSTER_VIEW, runtime_classes={"gvisor": RuntimeClass("runsc")}),
        )
        assert plan(waits, 1.4).status is None
        assert outcome(plan(waits, 59)) == (SessionPhase.STARTING, "PodStarting")
        assert outcome(plan(waits, 60)) == (SessionPhase.FAILED, "StartTimeout")

    def test_ended_before_it_was_ready(self) -> None:
        result = plan(starting(a_sandbox(), spec={"ended": True}))
        assert outcome(result) == (SessionPhase.ENDED, "EndRequested")
        assert result.actions == (DeletePod(),)

    def test_after_a_restart_the_policy_is_read_and_the_pod_asked_for_again(self) -> None:
        for runtime in (None, "gvisor"):
            policy, status = a_policy(runtimeClassName=runtime), {"runtime_class_name": runtime or ""}
            [again] = plan(starting(Sandbox(), status=status)).actions
            [first] = plan(seen(policy=policy)).actions
            assert again == first
        for pod in (None, a_pod()):
            assert plan(starting(Sandbox(pod), policy_read=False)) == Plan(actions=(ReadPolicy(),))


class TestReady:
    def test_waits_until_it_has_not_been_used_for_its_time(self) -> None:
        assert plan(ready(), 1) == Plan(wake_at=NOW + seconds(IDLE))
        result = plan(ready(), IDLE)
        assert outcome(result) == (SessionPhase.ENDED, "IdleTimeout")
        assert result.status
        assert result.status.message == f"nothing ran in the session for spec.idleTimeoutSeconds ({IDLE} s)"
        assert result.actions == (DeletePod(),)

    def test_it_ends_with_its_client_but_not_while_something_runs(self) -> None:
        gone = observe(observe(None, None, NOW), None, NOW + seconds(40))
        of_client = {"spec": {"clientLease": "codeexec-client-1"}, "lease": gone}
        result = plan(ready(**of_client), 40)
        assert outcome(result) == (SessionPhase.ENDED, "ClientGone")
        assert result.actions == (DeletePod(),)
        assert plan(ready(**of_client, claimants=BUSY), 40) == Plan(wake_at=NOW + seconds(LIFETIME))
        assert plan(ready(lease=gone), 40) == Plan(wake_at=NOW + seconds(IDLE)), "it outlives its client"
        assert plan(ready(spec=of_client["spec"]), 40) == Plan(actions=(ReadLease("codeexec-client-1"),))

    def test_its_idle_time_ends_it_though_its_client_is_there(self) -> None:
        there = observe(None, {"renewTime": "now", "leaseDurationSeconds": 100 * IDLE}, NOW)
        assert plan(ready(spec={"clientLease": "codeexec-client-1"}, lease=there)) == Plan(wake_at=NOW + seconds(IDLE))

    def test_the_time_begins_anew_with_each_use(self) -> None:
        used = ready(used_at=NOW + seconds(50), status={"last_used_at": NOW + seconds(50)})
        assert plan(used, IDLE) == Plan(wake_at=NOW + seconds(50 + IDLE))
        assert outcome(plan(used, 50 + IDLE)) == (SessionPhase.ENDED, "IdleTimeout")

    def test_while_something_runs_only_its_lifetime_ends_it(self) -> None:
        assert plan(ready(claimants=BUSY), IDLE) == Plan(wake_at=NOW + seconds(LIFETIME))
        result = plan(ready(claimants=BUSY), LIFETIME)
        assert outcome(result) == (SessionPhase.ENDED, "LifetimeExceeded")
        assert result.actions == (DeletePod(),)

    def test_its_lifetime_ends_it_however_much_it_is_used(self) -> None:
        used_at = NOW + seconds(LIFETIME - 1)
        used = ready(used_at=used_at, status={"last_used_at": used_at})
        assert plan(used, LIFETIME - 0.5) == Plan(wake_at=NOW + seconds(LIFETIME))
        assert outcome(plan(used, LIFETIME)) == (SessionPhase.ENDED, "LifetimeExceeded")

    def test_ended_as_was_asked_for_with_what_was_used(self) -> None:
        result = plan(ready(spec={"ended": True}, claimants=BUSY, used_at=NOW + seconds(3), executions=4), 5)
        assert outcome(result) == (SessionPhase.ENDED, "EndRequested")
        assert condition_of(result, "Ready") == ("False", "EndRequested")
        status = result.status
        assert isinstance(status, CodeSessionStatus)
        assert (status.ended_at, status.last_used_at, status.executions) == (NOW + seconds(5), NOW + seconds(3), 4)
        assert result.actions == (DeletePod(),)

    def test_its_use_is_recorded_now_and_then(self) -> None:
        used = ready(used_at=NOW + seconds(1), executions=2)
        assert plan(used, 29) == Plan(wake_at=NOW + seconds(30))
        result = plan(used, 30)
        status = result.status
        assert isinstance(status, CodeSessionStatus)
        assert (status.last_used_at, status.executions) == (NOW + seconds(1), 2)
        assert status == used.session.status.model_copy(update={"last_used_at": NOW + seconds(1), "executions": 2})
        assert result.actions == ()
        again = replace(used, session=used.session.model_copy(update={"status": status}))
        assert plan(again, 30) == Plan(wake_at=NOW + seconds(1 + IDLE))

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"sandbox": a_sandbox(gone=True)}, (SessionPhase.LOST, "PodLost")),
            ({"sandbox": a_sandbox(pod=OUT_OF_MEMORY)}, (SessionPhase.FAILED, "OutOfMemory")),
            ({"sandbox": a_sandbox(pod=ENDED_POD)}, (SessionPhase.FAILED, "RunnerFailed")),
            ({"sandbox": a_sandbox(pod=TAKEN)}, (SessionPhase.LOST, "PodLost")),
            ({"sandbox": a_sandbox(pod=EVICTED)}, (SessionPhase.FAILED, "RunnerFailed")),
            ({"sandbox": a_sandbox(runner=RunnerView(problem="nonsense"))}, (SessionPhase.FAILED, "RunnerFailed")),
            ({"unresponsive": "it did not end the code"}, (SessionPhase.FAILED, "RunnerFailed")),
        ],
        ids=["deleted", "out of memory", "ended", "taken away", "evicted", "nonsense", "given up"],
    )
    def test_a_session_that_can_not_go_on(self, changes: Any, expected: tuple[SessionPhase, str]) -> None:
        for busy in (True, False):
            result = plan(ready(claimants=BUSY if busy else frozenset(), **changes))
            assert outcome(result) == expected
            assert condition_of(result, "Ready") == ("False", expected[1])
            assert result.actions == (DeletePod(),)

    def test_a_connection_that_ends_is_opened_again(self) -> None:
        cut_off = ready(sandbox=a_sandbox(runner=RunnerView(PodLink.CLOSED, closed_at=NOW)))
        assert plan(cut_off, 0.5) == Plan(wake_at=NOW + seconds(1))
        assert plan(cut_off, 1).actions == (Attach(),)
        assert plan(ready(sandbox=a_sandbox(runner=RunnerView()))).actions == (Attach(),)

    def test_a_runner_that_does_not_report_again_is_given_up(self) -> None:
        silent = ready(claimants=BUSY, sandbox=a_sandbox(runner=RunnerView(PodLink.OPEN, asked_at=NOW + seconds(1))))
        assert plan(silent, 60) == Plan(wake_at=NOW + seconds(61))
        for runner in (replace(a_runner(), asked_at=NOW), RunnerView(PodLink.CLOSED, asked_at=NOW, closed_at=NOW)):
            assert plan(ready(claimants=BUSY, sandbox=a_sandbox(runner=runner)), 61).status is None
        result = plan(silent, 61)
        assert outcome(result) == (SessionPhase.FAILED, "RunnerFailed")
        assert result.actions == (DeletePod(),)

    def test_a_pod_that_refuses_connections_for_a_minute_is_lost(self) -> None:
        runner = RunnerView(PodLink.CLOSED, closed_at=NOW + seconds(59), refused_since=NOW)
        refused = ready(sandbox=a_sandbox(runner=runner))
        assert plan(refused, 59.5).status is None
        assert outcome(plan(refused, 60)) == (SessionPhase.LOST, "PodLost")
        assert plan(refused, 60).actions == (DeletePod(),)

    def test_code_that_no_execution_claims_is_stopped_once_all_executions_were_heard_of(self) -> None:
        runs = a_sandbox(runner=a_runner(job=UID))
        assert plan(ready(sandbox=runs), 14) == Plan(wake_at=NOW + seconds(15))
        assert plan(ready(sandbox=runs), 15) == Plan(actions=(CancelStray(UID),))
        assert plan(ready(sandbox=runs, claimants=BUSY), 15) == Plan(wake_at=NOW + seconds(LIFETIME)), "it is claimed"
        assert plan(ready(sandbox=runs, strays_listed_at=NOW + seconds(5)), 15) == Plan(wake_at=NOW + seconds(20))

    @pytest.mark.parametrize(("handed", "limit"), [("of-a-deleted-execution", 65), (f"{FILES_JOB}1", 360)])
    def test_a_job_that_nobody_wants_and_that_does_not_end_holds_up_the_queue_for_so_long(
        self, handed: str, limit: float
    ) -> None:
        stuck = a_sandbox(runner=replace(a_runner(), handed=handed, handed_at=NOW))
        assert plan(ready(sandbox=stuck, claimants=BUSY), limit - 1).wake_at == NOW + seconds(limit)
        ended = plan(ready(sandbox=stuck, claimants=BUSY), limit)
        assert outcome(ended) == (SessionPhase.FAILED, "RunnerFailed")
        assert ended.actions == (DeletePod(),)
        assert not plan(ready(sandbox=stuck, claimants=BUSY | {handed}), limit).status, "it is claimed"

    def test_such_a_job_has_its_time_from_when_its_execution_has_left(self) -> None:
        stuck = a_sandbox(runner=replace(a_runner(), handed="of-a-deleted-execution", handed_at=NOW))
        used_at = NOW + seconds(100)
        left = ready(sandbox=stuck, claimants=BUSY, used_at=used_at, status={"last_used_at": used_at})
        assert not plan(left, 164).status
        assert outcome(plan(left, 165)) == (SessionPhase.FAILED, "RunnerFailed")
        assert not plan(replace(left, claimants=frozenset()), 165).status, "nobody waits"

    def test_after_a_restart_the_pod_is_looked_for(self) -> None:
        assert plan(ready(sandbox=Sandbox()), 1) == Plan(wake_at=NOW + seconds(15))
        assert plan(ready(sandbox=Sandbox()), 15) == Plan(actions=(ReadPod(),)), "lists may take longer"
        assert outcome(plan(ready(sandbox=Sandbox(gone=True)), 15)) == (SessionPhase.LOST, "PodLost")
        assert plan(ready(sandbox=Sandbox(a_pod())), 20).actions == (Attach(),)

    def test_after_a_restart_the_session_is_not_idle_before_it_is_known_what_runs_in_it(self) -> None:
        """The record tells of a use only once the execution has ended, so one that took long isn't in it."""
        since = NOW + seconds(500)
        restarted = ready(since=since, sandbox=Sandbox(a_pod()))
        assert plan(restarted, 500).actions == (Attach(),)
        assert outcome(plan(ready(since=since), 500 + IDLE)) == (SessionPhase.ENDED, "IdleTimeout")


@pytest.mark.parametrize("phase", [phase for phase in SessionPhase if phase.terminal])
class TestOver:
    def test_its_pod_goes_and_then_nothing_is_left_to_do(self, phase: SessionPhase) -> None:
        assert plan(seen(phase, sandbox=a_sandbox())) == Plan(actions=(DeletePod(),))
        assert plan(seen(phase, sandbox=a_sandbox(deleted_at=NOW))) == Plan(wake_at=NOW + seconds(5)), (
            "it was asked for"
        )
        assert plan(seen(phase, sandbox=a_sandbox(gone=True))) == Plan(actions=(Forget(),))
        assert plan(seen(phase, sandbox=Sandbox())) == Plan(actions=(Forget(),))


def test_the_pod_is_made_once_and_deleted_once_on_the_whole_way() -> None:
    walk = Walk(seen(policy_read=False), plan)
    step = walk.step
    step(0)
    step(0.1, policy_read=True)
    step(0.2, sandbox=Sandbox(requested=True))
    step(1, sandbox=Sandbox(a_pod(), requested=True))
    assert step(2, sandbox=a_sandbox()).status.phase is SessionPhase.READY
    step(3, claimants=BUSY)
    step(10, claimants=frozenset(), used_at=NOW + seconds(9), executions=1)
    step(50)
    session = step(9 + IDLE)
    assert (session.status.phase, session.status.executions) == (SessionPhase.ENDED, 1)
    step(200, sandbox=a_sandbox(gone=True))
    assert walk.actions == ["ReadPolicy", "CreatePod", "Attach", "DeletePod", "Forget"]
    assert [one.type for one in session.status.conditions] == ["Accepted", "EgressClosed", "Ready"]
    assert CodeSession.parse(session.dump()) == session


def test_a_pod_that_started_while_no_operator_was_there_is_asked_before_the_session_ends() -> None:
    away = TIMING.start_timeout + 5
    observed = starting(Sandbox(a_pod()), since=NOW + seconds(away))
    assert plan(observed, away).actions == (Attach(),)
    assert given_up(plan, observed, away + TIMING.start_timeout).status is not None
