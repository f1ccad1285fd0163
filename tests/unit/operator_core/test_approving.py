"""The decision about an execution that asks for more than the policy allows by itself."""

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    AGENT,
    APPROVER,
    CLUSTER_VIEW,
    CODE,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    PAYLOAD,
    SECRETS,
    SESSION_REF,
    UID,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    a_view,
    an_approval,
    an_execution,
    seconds,
)
from plans import outcome, proof_of

from codeexec_api import CodeExecution, CodeExecutionStatus, ExecutionApproval, Grant, Phase, Reason, SessionPhase
from codeexec_operator.core.actions import (
    AskPool,
    CreatePod,
    DeletePayload,
    DeletePod,
    Plan,
    PublishCode,
    ReadApprovals,
    ReadRequest,
    StartCode,
    WithdrawCode,
)
from codeexec_operator.core.observed import FrameStream, Observed, PolicyProblem, PoolView, SessionView
from codeexec_operator.core.observed_pod import Sandbox
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.timing import Timing

TIMING = Timing(payload_grace=5, payload_retry=0.1, start_timeout=60, grace=5, queue_notice=1, queue_recorded=5)
POLICY = a_policy(withApproval={"maxLimits": {"memory": "4Gi"}}, approvalTimeoutSeconds=600)
"""`an_execution` of this module asks for 2Gi, which takes approval."""
GRANTS = (Grant(field="spec.limits.memory", value="2Gi"),)
TIGHTER = a_policy(approvalTimeoutSeconds=600)
WIDER = a_policy(maxLimits={"memory": "2Gi"}, approvalTimeoutSeconds=600)
MORE_TO_APPROVE = a_policy(
    languages=["sh"], withApproval={"languages": ["python"], "maxLimits": {"memory": "4Gi"}}, approvalTimeoutSeconds=600
)
SEALED = {"payloadRef": None, "sealedPayload": {"keyName": "key-1", "data": "AAAA"}}
SEALED_PAYLOAD = Payload((CODE,), (), ())
HELD = HeldPayload(SECRETS)
REVIEW = "run-1-0f8fad5b-review"
MISSING = PayloadProblem(Reason.PAYLOAD_MISSING, "there is no Secret")
MISMATCH = PayloadProblem(Reason.PAYLOAD_MISMATCH, "spec.blocks[0]: another digest", SECRETS)
WAIT_UNTIL = NOW + seconds(600)
EXPIRES = NOW + seconds(3600)


def seen(execution: CodeExecution | None = None, *, spec: dict[str, Any] | None = None, **rest: Any) -> Observed:
    asked = {"limits": {"memory": "2Gi"}, "requestedBy": AGENT} | (spec or {})
    known = {"policy": POLICY, "since": NOW, "cluster_view": CLUSTER_VIEW, "payload": PAYLOAD, "pool_asked": True}
    return Observed(execution=execution or an_execution(**asked), **known | rest)


def plan(observed: Observed, after: float = 0) -> Plan:
    return decide(observed, NOW + seconds(after), TIMING)


def written(result: Plan) -> CodeExecutionStatus:
    """What the API server gives back of a status that was written."""
    assert isinstance(result.status, CodeExecutionStatus)
    return CodeExecutionStatus.model_validate(result.status.dump())


def after(observed: Observed, result: Plan, **changes: Any) -> Observed:
    """What is seen next: the status was written."""
    execution = observed.execution.model_copy(update={"status": written(result)})
    return replace(observed, execution=execution, **changes)


def waiting(*, spec: dict[str, Any] | None = None, **rest: Any) -> Observed:
    """It was asked for approval at NOW, and the decisions were read: there is none, unless told otherwise."""
    sealed = spec is not None and "sealedPayload" in spec
    asked = seen(spec=spec, payload=SEALED_PAYLOAD if sealed else PAYLOAD, session=rest.get("session"))
    return after(asked, plan(asked), **{"payload": HeldPayload(()) if sealed else HELD, "approvals": ()} | rest)


def approved(approval: ExecutionApproval | None = None, *, spec: dict[str, Any] | None = None, **rest: Any) -> Observed:
    """It was approved at NOW."""
    observed = waiting(spec=spec, approvals=(approval or an_approval(),), session=rest.get("session"))
    return after(observed, plan(observed), **rest)


def starting(**rest: Any) -> Observed:
    """It was approved, and has a pod of its own, with a runner that waits for code."""
    observed = approved()
    sandbox = a_sandbox(pod=a_pod(), runner=a_runner())
    return after(observed, plan(observed), **{"sandbox": sandbox, "payload": PAYLOAD} | rest)


def pool(**changes: Any) -> PoolView:
    return PoolView(**{"name": "large", "since": NOW, "position": 0, "length": 1, "image": IMAGE} | changes)


def never_begun(**rest: Any) -> Observed:
    """It was approved, and the record says that it runs, but the runner never got its code."""
    observed = starting()
    return after(observed, plan(observed), **{"missing": "NeverBegun", "approvals": (an_approval(),)} | rest)


def queued(**rest: Any) -> Observed:
    """It was approved, and stands in the queue of a pool."""
    observed = approved(pool=pool())
    in_line = plan(observed, 1)
    return after(observed, in_line, **rest)


def in_session(**rest: Any) -> Observed:
    """It was approved, and waits for its turn in a session."""
    observed = approved(spec=SESSION_REF, session=a_view(turn=False, limits={"memory": "2Gi"}))
    return after(observed, plan(observed), **rest)


def conditions(result: Plan) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in written(result).conditions}


def starts(result: Plan) -> bool:
    return any(isinstance(one, StartCode | CreatePod) for one in result.actions)


def approval_of(result: Plan) -> Any:
    approval = written(result).approval
    assert approval
    return approval


class TestAsking:
    def test_it_waits_and_says_what_is_to_be_approved_and_until_when(self) -> None:
        result = plan(seen())
        assert outcome(result) == (Phase.AWAITING_APPROVAL, "ApprovalRequired")
        asked = approval_of(result)
        assert (asked.grants, asked.decision, asked.unused) == (GRANTS, "", ())
        assert (asked.requested_at, asked.wait_until) == (NOW, WAIT_UNTIL)
        message = written(result).message
        assert message.startswith(
            "a human has to approve spec.limits.memory=2Gi: `kubectl codeexec approve run-1 -n codeexec-sandbox --uid "
        )
        assert "spec.limits.memory: 2Gi is not allowed by the policy" in message
        assert conditions(result) == {"Approved": ("False", "ApprovalRequired")}

    def test_it_gets_no_pod_and_no_code_meanwhile(self) -> None:
        result = plan(seen(pool_asked=False, pool=pool()))
        assert outcome(result)[0] is Phase.AWAITING_APPROVAL
        assert result.actions == ()
        assert (written(result).pod_name, written(result).pool_name, written(result).image) == ("", "", "")

    def test_code_that_came_sealed_is_published_for_whoever_decides(self) -> None:
        result = plan(seen(spec=SEALED, payload=SEALED_PAYLOAD))
        assert result.actions == (PublishCode(SEALED_PAYLOAD),)
        assert approval_of(result).code_secret == REVIEW
        assert "print" not in repr(result)

    def test_code_in_secrets_is_left_there(self) -> None:
        result = plan(seen(spec={"payloadRef": {"name": "big", "parts": 3}}))
        assert result.actions == ()
        assert approval_of(result).code_secret == "big"

    def test_files_alone_have_no_code(self) -> None:
        listing = {"blocks": [], "payloadRef": None, "limits": {"cpu": "2"}, **SESSION_REF}
        policy = a_policy(withApproval={"maxLimits": {"cpu": "2"}})
        session = a_view(limits={"cpu": "2"})
        result = plan(seen(spec=listing, payload=Payload(), policy=policy, session=session))
        assert outcome(result)[0] is Phase.AWAITING_APPROVAL
        assert (approval_of(result).code_secret, result.actions) == ("", ())

    @pytest.mark.parametrize(
        ("payload", "late", "reason"),
        [(MISSING, 5, "PayloadMissing"), (MISMATCH, 0, "PayloadMismatch")],
    )
    def test_nobody_is_asked_about_code_that_is_not_there_or_not_what_was_announced(
        self, payload: PayloadProblem, late: float, reason: str
    ) -> None:
        assert outcome(plan(seen(payload=payload), late)) == (Phase.DENIED, reason)

    def test_a_payload_that_may_still_come_is_waited_for_first(self) -> None:
        observed = seen(payload=MISSING, payload_read_at=NOW)
        assert plan(observed) == Plan(wake_at=NOW + seconds(0.1))

    def test_nobody_is_asked_about_what_can_not_be_approved(self) -> None:
        assert outcome(plan(seen(policy=TIGHTER))) == (Phase.DENIED, "PolicyViolation")

    def test_a_denial_says_where_the_policy_is_kept(self) -> None:
        message = written(plan(seen(policy=TIGHTER, policy_source="the policy in X"))).message
        assert message.endswith(". Ask for less, or ask the platform owner to change the policy in X")

    def test_nobody_is_asked_about_what_was_cancelled(self) -> None:
        assert outcome(plan(seen(spec={"cancelled": True}))) == (Phase.CANCELLED, "CancelRequested")

    @pytest.mark.parametrize(
        ("session", "reason"),
        [
            *((a_view(phase, limits={"memory": "2Gi"}), "SessionEnded") for phase in SessionPhase if phase.terminal),
            (a_view(limits={"memory": "2Gi"}, ended=True), "SessionEnded"),
            (a_view(limits={"memory": "1Gi"}), "SessionMismatch"),
        ],
    )
    def test_nobody_is_asked_where_the_session_would_not_take_it(self, session: SessionView, reason: str) -> None:
        result = plan(seen(spec=SESSION_REF, session=session))
        assert outcome(result) == (Phase.DENIED, reason)
        assert written(result).approval is None
        lives = a_view(limits={"memory": "2Gi"})
        assert outcome(plan(seen(spec=SESSION_REF, session=lives))) == (Phase.AWAITING_APPROVAL, "ApprovalRequired")


class TestWaiting:
    def test_after_a_restart_the_request_and_then_the_decisions_are_read_first(self) -> None:
        assert plan(waiting(payload=None, approvals=None), 700) == Plan(actions=(ReadRequest(),))
        assert plan(waiting(approvals=None), 700) == Plan(actions=(ReadApprovals(),))

    @pytest.mark.parametrize(("spec", "withdraw"), [({}, ()), (SEALED, (WithdrawCode(),))])
    def test_an_approval_that_counts(self, spec: dict[str, Any], withdraw: tuple[Any, ...]) -> None:
        approval = an_approval(reason="the report needs it", created=NOW + seconds(30))
        result = plan(waiting(spec=spec, approvals=(approval,)), 31)
        assert outcome(result) == (Phase.APPROVED, "Approved")
        decided = approval_of(result)
        assert (decided.name, decided.decision, decided.approver) == ("decision-1", "Approve", APPROVER)
        assert (decided.reason, decided.grants) == ("the report needs it", GRANTS)
        assert (decided.decided_at, decided.expires_at) == (NOW + seconds(30), EXPIRES)
        assert written(result).message == f"approved by {APPROVER}: the report needs it"
        assert conditions(result) == {"Approved": ("True", "Approved")}
        assert result.actions == withdraw

    @pytest.mark.parametrize(
        ("spec", "payload", "actions"),
        [
            ({}, HELD, (DeletePayload(SECRETS),)),
            (SEALED, HeldPayload(()), (WithdrawCode(),)),
        ],
    )
    def test_a_denial_ends_it_and_the_code_goes(self, spec: Any, payload: Any, actions: tuple[Any, ...]) -> None:
        denial = an_approval(decision="Deny", reason="not on Fridays")
        result = plan(waiting(spec=spec, payload=payload, approvals=(denial,)))
        assert outcome(result) == (Phase.DENIED, "ApprovalDenied")
        assert written(result).message == f"denied by {APPROVER}: not on Fridays. Nothing was run"
        assert (approval_of(result).decision, approval_of(result).approver) == ("Deny", APPROVER)
        assert conditions(result)["Approved"] == conditions(result)["Accepted"] == ("False", "ApprovalDenied")
        assert result.actions == actions

    def test_a_denial_wins_over_an_approval(self) -> None:
        decisions = (an_approval(), an_approval("decision-2", decision="Deny", created=NOW + seconds(1)))
        assert outcome(plan(waiting(approvals=decisions))) == (Phase.DENIED, "ApprovalDenied")

    @pytest.mark.parametrize(("spec", "withdraw"), [({}, False), (SEALED, True)])
    def test_nobody_decides(self, spec: dict[str, Any], withdraw: bool) -> None:
        observed = waiting(spec=spec)
        assert plan(observed) == plan(observed, 599.9) == Plan(wake_at=WAIT_UNTIL)
        result = plan(observed, 600)
        assert outcome(result) == (Phase.EXPIRED, "ApprovalTimeout")
        assert conditions(result)["Approved"] == ("False", "ApprovalTimeout")
        assert written(result).finished_at == WAIT_UNTIL
        assert result.actions == ((WithdrawCode(),) if withdraw else (DeletePayload(SECRETS),))

    def test_a_decision_that_was_given_in_time_counts_though_it_is_read_later(self) -> None:
        assert outcome(plan(waiting(approvals=(an_approval(),)), 700)) == (Phase.APPROVED, "Approved")

    def test_how_long_it_waits_was_settled_when_it_was_asked(self) -> None:
        policy = POLICY.model_copy(update={"approval_timeout_seconds": 1})
        assert plan(waiting(policy=policy), 599) == Plan(wake_at=WAIT_UNTIL)

    @pytest.mark.parametrize(("spec", "withdraw"), [({}, False), (SEALED, True)])
    def test_cancelled(self, spec: dict[str, Any], withdraw: bool) -> None:
        observed = waiting(spec=spec | {"cancelled": False})
        cancelled = observed.execution.spec.model_copy(update={"cancelled": True})
        execution = observed.execution.model_copy(update={"spec": cancelled})
        result = plan(replace(observed, execution=execution, approvals=(an_approval(),)))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert result.actions == ((WithdrawCode(),) if withdraw else (DeletePayload(SECRETS),))

    def test_approvals_that_do_not_count_are_recorded_once(self) -> None:
        decisions = (an_approval(approver=AGENT), an_approval("decision-2", uid="another"))
        observed = waiting(approvals=decisions)
        result = plan(observed, 1)
        assert written(result).phase is Phase.AWAITING_APPROVAL
        assert {one.name: one.reason for one in approval_of(result).unused} == {
            "decision-1": "SelfApproval",
            "decision-2": "OtherExecution",
        }
        assert result.actions == ()
        assert plan(after(observed, result), 2) == Plan(wake_at=WAIT_UNTIL)

    def test_what_was_recorded_of_them_goes_with_them(self) -> None:
        observed = waiting(approvals=(an_approval(approver=AGENT),))
        gone = after(observed, plan(observed), approvals=())
        result = plan(gone)
        assert approval_of(result).unused == ()
        assert plan(after(gone, result)) == Plan(wake_at=WAIT_UNTIL)

    def test_those_that_did_not_count_stay_in_the_record_of_the_decision(self) -> None:
        decisions = (an_approval("other", uid="another"), an_approval())
        result = plan(waiting(approvals=decisions))
        assert [one.name for one in approval_of(result).unused] == ["other"]

    @pytest.mark.parametrize("approvals", [(), (an_approval(),)])
    def test_a_policy_that_was_tightened_denies_whoever_has_approved(self, approvals: Any) -> None:
        result = plan(waiting(policy=TIGHTER, approvals=approvals))
        assert outcome(result) == (Phase.DENIED, "PolicyViolation")
        assert conditions(result)["Approved"] == ("False", "PolicyViolation")

    def test_a_policy_that_is_not_valid_any_more_denies(self) -> None:
        result = plan(waiting(policy=PolicyProblem("images: Field required"), approvals=(an_approval(),)))
        assert outcome(result) == (Phase.DENIED, "PolicyInvalid")

    def test_a_denial_counts_also_where_the_policy_was_widened(self) -> None:
        denial = an_approval(decision="Deny")
        assert outcome(plan(waiting(policy=WIDER, approvals=(denial,)))) == (Phase.DENIED, "ApprovalDenied")
        observed = waiting(policy=WIDER)
        later = plan(after(observed, plan(observed), approvals=(denial,)))
        assert outcome(later) == (Phase.DENIED, "ApprovalDenied")

    def test_that_the_code_can_not_be_read_is_on_record_once(self) -> None:
        observed = waiting(code_unreadable=True)
        result = plan(observed)
        assert (outcome(result)[0], approval_of(result).code_secret) == (Phase.AWAITING_APPROVAL, "")
        assert plan(after(observed, result)).status is None

    def test_a_policy_that_was_widened_needs_nobody(self) -> None:
        observed = waiting(policy=WIDER)
        result = plan(observed)
        assert outcome(result) == (Phase.APPROVED, "ApprovalNotNeeded")
        assert (approval_of(result).grants, approval_of(result).decision) == ((), "")
        assert outcome(plan(after(observed, result))) == (Phase.STARTING, "PodRequested")
        tightened_again = plan(after(observed, result, policy=POLICY))
        assert outcome(tightened_again) == (Phase.DENIED, "PolicyViolation")

    def test_a_policy_that_takes_more_approval_makes_what_was_approved_too_little(self) -> None:
        observed = waiting(policy=MORE_TO_APPROVE, approvals=(an_approval(),))
        result = plan(observed)
        assert written(result).phase is Phase.AWAITING_APPROVAL
        assert [one.field for one in approval_of(result).grants] == ["spec.limits.memory", "spec.blocks[0].language"]
        assert [one.reason for one in approval_of(result).unused] == ["OtherGrants"]
        assert plan(after(observed, result)) == Plan(wake_at=WAIT_UNTIL)

    def test_a_payload_that_goes_while_it_waits_ends_it(self) -> None:
        result = plan(waiting(payload=MISSING, approvals=(an_approval(),)))
        assert outcome(result) == (Phase.DENIED, "PayloadMissing")


class TestApproved:
    def test_it_gets_a_pod_of_its_own(self) -> None:
        result = plan(approved())
        assert outcome(result) == (Phase.STARTING, "PodRequested")
        assert written(result).message == f"approved by {APPROVER}"
        assert conditions(result) == {"Approved": ("True", "Approved"), "Accepted": ("True", "PodRequested")}
        [create] = result.actions
        assert isinstance(create, CreatePod)
        [container] = create.manifest["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == "2Gi"

    def test_what_was_granted_is_what_runs(self) -> None:
        grants = [("spec.image", OTHER_IMAGE)]
        policy = a_policy(withApproval={"images": [OTHER_IMAGE]})
        observed = seen(spec={"image": OTHER_IMAGE, "limits": {}}, policy=policy)
        waits = after(observed, plan(observed), approvals=(an_approval(grants=grants),))
        result = plan(after(waits, plan(waits)))
        assert written(result).image == OTHER_IMAGE

    def test_a_pool_is_asked_first(self) -> None:
        assert plan(approved(pool_asked=False)).actions == (AskPool(IMAGE, None),)

    def test_it_gets_in_line_in_a_pool_and_holds_what_it_was_granted_there(self) -> None:
        in_line = queued()
        assert (in_line.execution.status.phase, in_line.execution.status.pool_name) == (Phase.STARTING, "large")
        assert plan(in_line, 1).status is None
        assert plan(replace(in_line, policy=WIDER), 2).status is None

    @pytest.mark.parametrize("policy", [TIGHTER, MORE_TO_APPROVE])
    def test_more_than_was_granted_is_denied_in_the_queue_as_before_it(self, policy: Any) -> None:
        for observed in (approved(policy=policy), queued(policy=policy)):
            assert outcome(plan(observed, 2)) == (Phase.DENIED, "PolicyViolation")

    def test_a_pod_of_a_pool_that_is_at_hand_gets_the_code_at_once(self) -> None:
        sandbox = a_sandbox(pod=a_pod(started_at=NOW), runner=a_runner())
        pooled = pool(pod_name="large-1", proven=proof_of(sandbox))
        result = plan(approved(payload=PAYLOAD, sandbox=sandbox, pool=pooled))
        assert outcome(result) == (Phase.RUNNING, "CodeStarted")
        assert starts(result)

    def test_it_waits_for_its_turn_in_a_session(self) -> None:
        session = a_view(turn=False, limits={"memory": "2Gi"})
        observed = approved(spec=SESSION_REF, session=session)
        result = plan(observed)
        assert outcome(result) == (Phase.STARTING, "WaitingForSession")
        its_turn = replace(session, turn=True)
        assert outcome(plan(after(observed, result, session=its_turn, payload=PAYLOAD))) == (
            Phase.RUNNING,
            "CodeStarted",
        )

    def test_a_session_that_ended_meanwhile_denies(self) -> None:
        observed = approved(spec=SESSION_REF, session=a_view(limits={"memory": "2Gi"}))
        ended = a_view(limits={"memory": "2Gi"}, ended=True)
        assert outcome(plan(replace(observed, session=ended))) == (Phase.DENIED, "SessionEnded")

    def test_a_session_that_could_not_start_is_a_failure(self) -> None:
        unstarted = {"started_at": None, "reason": "StartTimeout", "message": "no room"}
        view = a_view(SessionPhase.FAILED, limits={"memory": "2Gi"}, status=unstarted)
        observed = approved(spec=SESSION_REF, session=a_view(limits={"memory": "2Gi"}))
        result = plan(replace(observed, session=view))
        assert outcome(result) == (Phase.FAILED, "StartTimeout")
        assert written(result).message == "session 'work-1' could not start: no room. Nothing was run"
        unapproved = plan(seen(spec=SESSION_REF, session=view))
        assert outcome(unapproved) == (Phase.FAILED, "StartTimeout"), "nobody is asked about it"
        assert "Accepted" not in [one.type for one in written(unapproved).conditions]

    def test_what_the_policy_allows_by_now_is_not_put_down_to_the_approver(self) -> None:
        result = plan(approved(policy=WIDER))
        assert outcome(result) == (Phase.STARTING, "PodRequested")
        assert APPROVER not in written(result).message
        assert written(result).message == written(plan(seen(policy=WIDER))).message

    def test_code_that_was_let_go_of_is_read_again(self) -> None:
        assert plan(starting(payload=HELD)).actions == (ReadRequest(),)

    def test_it_is_looked_again_when_the_approval_expires(self) -> None:
        soon = NOW + seconds(1.2)
        observed = approved(an_approval(expiresAt=soon))
        begun = plan(observed)
        assert begun.wake_at == soon
        assert plan(after(observed, begun, sandbox=Sandbox(requested=True)), 1).wake_at == soon
        later = approved()  # for an hour
        assert plan(after(later, plan(later), sandbox=Sandbox(requested=True)), 1).wake_at == NOW + seconds(1.5)

    def test_how_long_it_may_queue_counts_from_the_decision(self) -> None:
        policy = POLICY.model_copy(update={"approval_timeout_seconds": 86_400})
        first = seen(spec={"queueTimeoutSeconds": 10}, policy=policy)
        late = an_approval(created=NOW + seconds(100))
        waits = after(first, plan(first), approvals=(late,), pool=pool())
        in_line = after(waits, plan(waits, 100), pool=pool(since=NOW + seconds(100)))
        result = plan(in_line, 101)
        assert written(result).phase is Phase.STARTING
        assert outcome(plan(after(in_line, result), 110)) == (Phase.FAILED, "QueueTimeout")

    def test_cancelled(self) -> None:
        observed = approved()
        cancelled = observed.execution.spec.model_copy(update={"cancelled": True})
        result = plan(replace(observed, execution=observed.execution.model_copy(update={"spec": cancelled})))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")


REVOKED = an_approval(revoked=True, revokedBy="bob")
LATER_DENIAL = an_approval("decision-2", decision="Deny", reason="stop", created=NOW + seconds(1))
BEFORE_THE_CODE = pytest.mark.parametrize("place", [approved, queued, in_session, starting])
HOLDS_NO_MORE = pytest.mark.parametrize(
    ("approvals", "moment", "expected", "told"),
    [
        ((REVOKED,), 2, (Phase.DENIED, "ApprovalRevoked"), "was revoked by bob"),
        ((), 2, (Phase.DENIED, "ApprovalRevoked"), "was deleted"),
        ((an_approval(),), 3600, (Phase.EXPIRED, "ApprovalExpired"), "expired before the code could start"),
        ((REVOKED,), 3600, (Phase.DENIED, "ApprovalRevoked"), "was revoked by bob"),
        (
            (an_approval(), LATER_DENIAL),
            2,
            (Phase.DENIED, "ApprovalDenied"),
            f"{APPROVER}: stop. It had been",
        ),
        ((an_approval(expiresAt=NOW + seconds(7200)),), 3600, (Phase.EXPIRED, "ApprovalExpired"), "expired before"),
        # Somebody who may delete it has made another one of the same name.
        ((an_approval(uid="another"),), 2, (Phase.DENIED, "ApprovalRevoked"), "was deleted"),
        ((an_approval(approver=AGENT),), 2, (Phase.DENIED, "ApprovalRevoked"), "was deleted"),
        ((an_approval(grants=[("spec.limits.cpu", "8")]),), 2, (Phase.DENIED, "ApprovalRevoked"), "was deleted"),
    ],
)


class TestLapse:
    """What was approved runs only if that still holds when the code starts."""

    @BEFORE_THE_CODE
    def test_after_a_restart_the_decisions_are_read_first(self, place: Any) -> None:
        for moment in (2, 3600):
            assert plan(place(approvals=None), moment) == Plan(actions=(ReadApprovals(),))

    @BEFORE_THE_CODE
    @HOLDS_NO_MORE
    def test_nothing_runs(self, place: Any, approvals: Any, moment: float, expected: Any, told: str) -> None:
        observed = place(approvals=approvals)
        result = plan(observed, moment)
        assert outcome(result) == expected
        assert not starts(result)
        assert told in written(result).message
        assert written(result).message.endswith("Nothing was run")
        assert conditions(result)["Approved"] == ("False", expected[1])
        assert written(result).started_at is None
        assert DeletePayload(SECRETS) in result.actions
        assert (DeletePod() in result.actions) == (place is starting)

    @BEFORE_THE_CODE
    @pytest.mark.parametrize("policy", [TIGHTER, PolicyProblem("images: Field required")])
    def test_nothing_runs_that_the_policy_no_longer_lets_run(self, place: Any, policy: Any) -> None:
        assert not starts(plan(place(policy=policy), 2))
        reason = "PolicyInvalid" if isinstance(policy, PolicyProblem) else "PolicyViolation"
        assert outcome(plan(starting(policy=policy), 2)) == (Phase.DENIED, reason)

    @BEFORE_THE_CODE
    def test_an_approval_that_still_holds_lets_it_go_on(self, place: Any) -> None:
        result = plan(place(), 2)
        assert result.status is None or not written(result).phase.terminal

    def test_the_code_starts_up_to_the_expiry_and_not_at_that_moment(self) -> None:
        soon = an_approval(expiresAt=NOW + seconds(20))
        observed = approved(soon)
        at_hand = {"sandbox": a_sandbox(pod=a_pod(), runner=a_runner()), "payload": PAYLOAD}
        ready = after(observed, plan(observed), **at_hand)
        assert outcome(plan(ready, 19.9)) == (Phase.RUNNING, "CodeStarted")
        assert outcome(plan(ready, 20)) == (Phase.EXPIRED, "ApprovalExpired")

    def test_other_decisions_that_come_later_are_no_matter_if_they_do_not_count(self) -> None:
        foreign = an_approval("decision-2", decision="Deny", uid="another")
        self_made = an_approval("decision-3", decision="Deny", approver=AGENT)
        assert outcome(plan(starting(approvals=(an_approval(), foreign, self_made)))) == (Phase.RUNNING, "CodeStarted")

    @pytest.mark.parametrize("approvals", [None, (), (REVOKED,), (an_approval(), LATER_DENIAL)])
    def test_once_the_code_runs_it_has_no_effect(self, approvals: Any) -> None:
        observed = starting()
        runs = after(observed, plan(observed), approvals=approvals, frames=FrameStream.OPEN)
        assert runs.execution.status.phase is Phase.RUNNING
        result = plan(runs, 2)
        assert (result.status, result.actions) == (None, ())

    @HOLDS_NO_MORE
    def test_what_never_got_to_the_runner_is_not_handed_over_again(
        self, approvals: Any, moment: float, expected: Any, told: str
    ) -> None:
        result = plan(never_begun(approvals=approvals), moment)
        assert outcome(result) == (Phase.LOST, "OperatorRestarted"), expected
        assert not starts(result)
        assert told in written(result).message

    def test_what_never_got_to_the_runner_is_handed_over_again_if_its_approval_still_holds(self) -> None:
        assert plan(never_begun(approvals=None), 2) == Plan(actions=(ReadApprovals(),)), "they are read first"
        result = plan(never_begun(), 2)
        assert (result.status, starts(result)) == (None, True)

    @pytest.mark.parametrize("approvals", [None, (), (LATER_DENIAL,)])
    def test_what_the_policy_allows_by_itself_needs_no_decisions(self, approvals: Any) -> None:
        result = plan(seen(policy=WIDER, approvals=approvals))
        assert outcome(result) == (Phase.STARTING, "PodRequested")
        assert written(result).approval is None


def test_the_name_of_the_execution_that_these_decisions_are_about() -> None:
    execution = waiting().execution
    assert (execution.metadata.uid, execution.spec.requested_by) == (UID, AGENT)
