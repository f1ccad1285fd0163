"""Whatever is observed, the decision is one of the table's moves, and one that can be written down."""

from dataclasses import replace
from typing import Any, Final

from factories import (
    AGENT,
    APPROVER,
    CLUSTER_VIEW,
    CODE,
    NOW,
    SECRETS,
    SESSION_REF,
    UID,
    a_finished_transcript,
    a_piece,
    a_pod,
    a_policy,
    a_raw_block,
    a_runner,
    a_sandbox,
    a_transcript,
    a_view,
    an_approval,
    an_artifact,
    an_execution,
    block_end,
    output,
    seconds,
    the_end,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from codeexec_api import (
    ApprovalStatus,
    CodeExecution,
    CodeExecutionStatus,
    CodeSession,
    CodeSessionStatus,
    Decision,
    ExecutionApproval,
    ExecutionPolicySpec,
    Grant,
    Phase,
    Reason,
    SessionPhase,
    evaluate,
    judge,
)
from codeexec_api.phases import SESSION_TRANSITIONS, TRANSITIONS
from codeexec_api.schema import structural
from codeexec_api.v1alpha1.approval import UnusedApproval
from codeexec_operator.core.actions import CreatePod, DeletePayload, DeletePod, Forget, GiveUpSession, Plan, StartCode
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.observed import FrameStream, Observed, ObservedSession, PolicyProblem
from codeexec_operator.core.observed_pod import Fault, PodLink, RunnerView, Sandbox
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing

STEPS: Final = {(phase, move.phase) for (phase, _), move in TRANSITIONS.items()}
AT_ONCE: Final = {
    (phase, last) for phase, first in STEPS if first is Phase.STARTING for start, last in STEPS if start is first
}
"""What was just accepted starts in the same write if its sandbox is at hand."""
WAITS: Final = {(Phase.AWAITING_APPROVAL, Phase.AWAITING_APPROVAL)}
"""It records which approvals don't count."""
MOVES: Final = STEPS | AT_ONCE | WAITS
SESSION_MOVES: Final = {(phase, move.phase) for (phase, _), move in SESSION_TRANSITIONS.items()}
SCHEMA: Final = Draft202012Validator(structural(CodeExecution)["properties"]["status"])
SESSION_SCHEMA: Final = Draft202012Validator(structural(CodeSession)["properties"]["status"])

pods = st.builds(
    a_pod,
    running=st.booleans(),
    terminated=st.sampled_from([None, "OOMKilled", "Completed", "Error", "DeadlineExceeded", "Evicted"]),
    exit_code=st.sampled_from([None, 0, 1, 137]),
    waiting_reason=st.sampled_from(["", "ContainerCreating", "ErrImagePull", "CreateContainerError"]),
    unschedulable=st.sampled_from(["", "no node"]),
)
FILE: Final = (an_artifact(0, "a", b"xy"), a_piece(0, b"x"))
transcripts = st.builds(
    lambda make: make(),
    st.sampled_from(
        [
            lambda: a_transcript(),
            lambda: a_transcript(output("so far")),
            lambda: a_transcript(output("x") | {"seq": 3}),
            lambda: a_transcript({"fault": {"reason": "FileRefused", "message": "a: Is a directory"}}),
            lambda: a_transcript(block_end(), *FILE),
            lambda: a_transcript(block_end(), *FILE, a_piece(0, b"y"), the_end(artifactsOmitted=3)),
            lambda: a_transcript(the_end()),
            lambda: a_transcript(output("x" * 700_000)),
            lambda: a_finished_transcript(),
            lambda: a_finished_transcript(text="x" * 700_000),
            lambda: a_finished_transcript(3, "NonZeroExit", "text"),
            lambda: a_finished_transcript(124, "DeadlineExceeded"),
            lambda: a_finished_transcript(130, "Cancelled"),
            lambda: a_finished_transcript(137, "OutOfMemory"),
        ]
    ),
)
moments = st.floats(0, 200).map(lambda after: NOW + seconds(after))
TAKES_APPROVAL: Final = a_policy(maxLimits={"memory": "128Mi"}, withApproval={"maxLimits": {"memory": "256Mi"}})
GRANTED: Final = (("spec.limits.memory", "256Mi"),)
GRANTS: Final = tuple(Grant(field=field, value=value) for field, value in GRANTED)
policies = st.sampled_from([a_policy(), a_policy(languages=["sh"]), a_policy(egressProof="Warn"), PolicyProblem("no")])
decisions = st.builds(
    lambda name, decision, grants, expires, **rest: an_approval(
        name, decision=decision, **rest, **({"grants": grants, "expiresAt": expires} if decision == "Approve" else {})
    ),
    st.sampled_from(["yes", "yes", "other"]),
    st.sampled_from(["Approve", "Approve", "Approve", "Deny"]),
    grants=st.sampled_from([GRANTED, GRANTED, GRANTED, (("spec.timeoutSeconds", "3600"),)]),
    expires=st.sampled_from([NOW + seconds(1000), NOW + seconds(1000), NOW + seconds(100)]),
    uid=st.sampled_from([UID, UID, UID, "another"]),
    approver=st.sampled_from([APPROVER, APPROVER, APPROVER, AGENT]),
    revoked=st.sampled_from([False, False, False, True]),
)
GOOD: Final = an_approval("yes", grants=GRANTED, expiresAt=NOW + seconds(150))
approvals = st.one_of(
    st.none(),
    st.lists(decisions, max_size=3, unique_by=lambda one: one.metadata.name).map(tuple),
    st.lists(decisions.filter(lambda one: one.metadata.name != "yes"), max_size=1).map(lambda more: (GOOD, *more)),
)
APPROVED: Final = ApprovalStatus(
    grants=GRANTS,
    requested_at=NOW,
    wait_until=NOW + seconds(100),
    name="yes",
    decision="Approve",
    approver=APPROVER,
    decided_at=NOW,
    expires_at=NOW + seconds(150),
)
NOT_NEEDED: Final = ApprovalStatus(requested_at=NOW, wait_until=NOW + seconds(100))
ASKED: Final = NOT_NEEDED.model_copy(update={"grants": GRANTS})
UNUSED: Final = (UnusedApproval(name="other", approver=AGENT, reason="SelfApproval"),)
runners = st.builds(
    RunnerView,
    link=st.sampled_from(PodLink),
    closed_at=st.none() | moments,
    ready=st.sampled_from([None, *(a_runner(**one).ready for one in ({}, {"answered": True}, {"targets": ()}))]),
    problem=st.sampled_from(["", "", "", "nonsense"]),
)
sandboxes = st.builds(
    Sandbox,
    pod=st.none() | pods,
    requested=st.booleans(),
    gone=st.booleans(),
    fault=st.sampled_from([None, None, Fault(Reason.QUOTA_EXCEEDED, "quota")]),
    runner=runners,
)
reasons = st.sampled_from(["", "LifetimeExceeded", "OutOfMemory", "RunnerFailed", "EndRequested"])
views = st.builds(
    a_view,
    st.sampled_from(SessionPhase),
    sandbox=sandboxes,
    turn=st.booleans(),
    status=st.fixed_dictionaries({"reason": reasons}),
    ended=st.booleans(),
    stateful=st.booleans(),
)
SANDBOX_READY: Final = a_sandbox()


@st.composite
def approval_states(draw: st.DrawFn, phase: Phase) -> tuple[ApprovalStatus | None, ExecutionPolicySpec | PolicyProblem]:
    """What the record says of approval in this phase, and the policy, which may have been changed meanwhile.

    With a policy that takes approval nothing is about to start that was not approved: what is allowed when it is
    accepted keeps its pod, whatever becomes of the policy.
    """
    takes_approval = draw(st.booleans())
    policy = TAKES_APPROVAL if takes_approval else draw(policies)
    recorded: list[ApprovalStatus | None] = [APPROVED, None, NOT_NEEDED]
    if phase is Phase.PENDING:
        recorded = [None]
    elif phase is Phase.AWAITING_APPROVAL:
        recorded = [ASKED, ASKED.model_copy(update={"unused": UNUSED})]
    elif phase is Phase.APPROVED:
        recorded = [APPROVED, NOT_NEEDED]
    elif phase is Phase.STARTING and takes_approval:
        recorded = [APPROVED]
    return draw(st.sampled_from(recorded)), policy


@st.composite
def observations(draw: st.DrawFn, phases: st.SearchStrategy[Phase] = st.sampled_from(Phase)) -> Observed:  # noqa: B008
    in_session = draw(st.booleans())
    blocks = draw(st.integers(0 if in_session else 1, 2))
    phase = draw(phases)
    approval, policy = draw(approval_states(phase))
    execution = an_execution(
        phase=phase,
        status={"approval": approval},
        requestedBy=AGENT,
        blocks=[a_raw_block()] * blocks,
        cancelled=draw(st.booleans()),
        timeoutSeconds=draw(st.sampled_from([1, 60])),
        **(SESSION_REF if in_session else {}),
    )
    payloads: list[Any] = [
        None,
        Payload((CODE,) * blocks, (), SECRETS),
        HeldPayload(SECRETS),
        PayloadProblem(Reason.PAYLOAD_MISSING, "missing"),
        PayloadProblem(Reason.PAYLOAD_FOREIGN, "foreign"),
        PayloadProblem(Reason.PAYLOAD_MISMATCH, "mismatch", SECRETS),
    ]
    return Observed(
        execution=execution,
        policy=policy,
        approvals=draw(approvals),
        pool_asked=draw(st.booleans()),
        since=NOW,
        cluster_view=draw(st.sampled_from([CLUSTER_VIEW, ClusterView()])),
        payload=draw(st.sampled_from(payloads)),
        payload_read_at=draw(st.none() | moments),
        sandbox=Sandbox() if in_session else draw(sandboxes),
        session=draw(st.none() | views) if in_session else None,
        frames=draw(st.sampled_from(FrameStream)) if execution.status.phase is Phase.RUNNING else FrameStream.CLOSED,
        frames_since=draw(st.none() | moments),
        missing=draw(st.sampled_from(["", "", "NeverBegun", "Overflowed", "?"])),
        cancel_sent_at=draw(st.none() | moments),
        transcript=draw(transcripts),
    )


@st.composite
def sessions(draw: st.DrawFn) -> ObservedSession:
    view = draw(views)
    return ObservedSession(
        session=view.session,
        policy=draw(policies),
        since=NOW,
        policy_read=draw(st.booleans()),
        pool_asked=draw(st.booleans()),
        adopting=draw(st.booleans()),
        cluster_view=draw(st.sampled_from([CLUSTER_VIEW, ClusterView()])),
        sandbox=view.sandbox,
        claimants=draw(st.sampled_from([frozenset(), frozenset({UID})])),
        used_at=draw(st.none() | moments),
        executions=draw(st.integers(0, 3)),
        unresponsive=draw(st.sampled_from(["", "", "it did not end the code"])),
    )


def holds_code_back(observed: Observed) -> bool:
    """Waits for nothing but the session, or for what becomes of its pod, which wake it."""
    phase, spec = observed.execution.status.phase, observed.execution.spec
    if phase is Phase.RUNNING and observed.frames is FrameStream.CLOSED:
        return observed.session is not None or observed.sandbox.pod is not None
    return observed.session is not None and phase is Phase.STARTING and not spec.cancelled


@settings(max_examples=250)
@given(observed=observations(), now=moments)
def test_every_decision_follows_the_table_and_can_be_written(observed: Observed, now: Any) -> None:
    before = observed.execution.status
    observed.transcript.finish()
    plan = decide(observed, now, Timing())
    assert plan == decide(observed, now, Timing())
    if plan.status is not None:
        assert isinstance(plan.status, CodeExecutionStatus)
        assert (before.phase, plan.status.phase) in MOVES
        assert CodeExecutionStatus.model_validate(plan.status.dump()) == plan.status
        SCHEMA.validate(plan.status.dump())
        assert plan.status.reason in set(Reason)
        assert plan.status.message
        assert plan.status.phase.terminal == (plan.status.finished_at is not None)
        succeeded = [one.status == "True" for one in plan.status.conditions if one.type == "Succeeded"]
        assert succeeded == [plan.status.phase is Phase.SUCCEEDED] * plan.status.phase.terminal
    if before.phase.terminal:
        assert plan.status is None


@settings(max_examples=250)
@given(observed=observations(), now=moments)
def test_nothing_is_left_waiting_for_ever(observed: Observed, now: Any) -> None:
    """A plan changes the status, acts, or says when to look again."""
    plan = decide(observed, now, Timing())
    assert plan.status or plan.actions or plan.wake_at or holds_code_back(observed)
    assert plan.wake_at is None or plan.wake_at > now


@settings(max_examples=250)
@given(observed=observations(), now=moments)
def test_code_starts_only_with_a_record_and_after_the_payload_has_gone(observed: Observed, now: Any) -> None:
    plan = decide(observed, now, Timing())
    again = observed.execution.status.phase is Phase.RUNNING
    if any(isinstance(action, StartCode) for action in plan.actions) and again:
        assert (observed.missing, observed.frames) == ("NeverBegun", FrameStream.CLOSED)
        assert plan.status is None
        assert observed.session is None or observed.session.turn
    elif any(isinstance(action, StartCode) for action in plan.actions):
        assert plan.status
        assert plan.status.phase is Phase.RUNNING
        assert (observed.execution.status.phase, Phase.RUNNING) in MOVES
        assert DeletePayload(SECRETS) in plan.actions
        [shown] = [one for one in plan.status.conditions if one.type == "EgressClosed"]
        assert shown.status == "True" or a_policy(egressProof="Warn") == observed.policy
        if observed.session:
            assert observed.session.turn
            assert observed.session.session.status.phase is SessionPhase.READY
            assert not observed.session.session.spec.ended
    if Forget() in plan.actions:
        assert observed.execution.status.phase.terminal


@st.composite
def about_to_start(draw: st.DrawFn) -> Observed:
    """All is there that it takes to start code, but perhaps the approval."""
    observed = draw(observations(st.sampled_from([Phase.PENDING, Phase.APPROVED, Phase.STARTING])))
    spec = observed.execution.spec
    ready = SANDBOX_READY if spec.session_ref is None else Sandbox()
    return replace(
        observed,
        execution=observed.execution.model_copy(update={"spec": spec.model_copy(update={"cancelled": False})}),
        payload=Payload((CODE,) * len(spec.blocks), (), SECRETS),
        cluster_view=CLUSTER_VIEW,
        sandbox=ready,
        session=a_view() if spec.session_ref else None,
    )


@settings(max_examples=500)
@given(observed=observations() | about_to_start(), now=moments)
def test_code_that_takes_approval_starts_only_if_it_is_approved_now(observed: Observed, now: Any) -> None:
    if any(isinstance(action, StartCode | CreatePod) for action in decide(observed, now, Timing()).actions):
        approval, execution = observed.execution.status.approval, observed.execution
        assert not isinstance(observed.policy, PolicyProblem) or execution.status.phase is Phase.STARTING
        verdict = None if isinstance(observed.policy, PolicyProblem) else evaluate(execution.spec, observed.policy)
        needed = verdict is not None and verdict.decision is Decision.NEEDS_APPROVAL
        if needed or (approval and approval.decision == "Approve"):
            assert judge(known(observed), execution, GRANTS, now).approved


def known(observed: Observed) -> tuple[ExecutionApproval, ...]:
    assert observed.approvals is not None
    return observed.approvals


@settings(max_examples=250)
@given(observed=observations(st.just(Phase.AWAITING_APPROVAL)), now=moments)
def test_what_waits_for_approval_writes_no_more_once_that_is_written(observed: Observed, now: Any) -> None:
    status = decide(observed, now, Timing()).status
    if isinstance(status, CodeExecutionStatus) and status.phase is Phase.AWAITING_APPROVAL:
        written = CodeExecutionStatus.model_validate(status.dump())
        execution = observed.execution.model_copy(update={"status": written})
        again = decide(replace(observed, execution=execution), now, Timing())
        assert again == Plan(wake_at=written.approval.wait_until if written.approval else None)


@settings(max_examples=250)
@given(observed=observations(), now=moments)
def test_an_execution_acts_on_its_own_pod_or_gives_up_its_session_but_never_both(observed: Observed, now: Any) -> None:
    actions = decide(observed, now, Timing()).actions
    if observed.execution.spec.session_ref:
        assert not any(isinstance(action, CreatePod | DeletePod) for action in actions)
    else:
        assert not any(isinstance(action, GiveUpSession) for action in actions)
    if any(isinstance(action, GiveUpSession) for action in actions):
        assert observed.execution.status.phase is Phase.RUNNING
        assert observed.frames is FrameStream.OPEN


@settings(max_examples=250)
@given(observed=sessions(), now=moments)
def test_every_decision_about_a_session_follows_its_table_and_can_be_written(
    observed: ObservedSession, now: Any
) -> None:
    before = observed.session.status
    plan = decide_session(observed, now, Timing())
    assert plan == decide_session(observed, now, Timing())
    if before.phase.terminal:
        assert plan in (Plan(actions=(DeletePod(),)), Plan(actions=(Forget(),)))
        return
    assert Forget() not in plan.actions
    assert plan.status or plan.actions or plan.wake_at
    assert plan.wake_at is None or plan.wake_at > now
    if plan.status is not None:
        assert isinstance(plan.status, CodeSessionStatus)
        use = before.phase is SessionPhase.READY and plan.status.phase is SessionPhase.READY
        assert use or (before.phase, plan.status.phase) in SESSION_MOVES
        assert CodeSessionStatus.model_validate(plan.status.dump()) == plan.status
        SESSION_SCHEMA.validate(plan.status.dump())
        assert plan.status.phase.terminal == (plan.status.ended_at is not None)
        assert use or plan.status.reason in set(Reason)
        assert plan.status.executions >= before.executions
    pod = observed.sandbox.pod or observed.sandbox.requested
    if plan.status and plan.status.phase.terminal:
        assert plan.actions == ((DeletePod(),) if pod else ())


@settings(max_examples=250)
@given(observed=sessions(), now=moments)
def test_a_session_is_ready_only_where_its_network_is_closed_or_the_policy_warns(
    observed: ObservedSession, now: Any
) -> None:
    before, plan = observed.session.status.phase, decide_session(observed, now, Timing())
    if plan.status and plan.status.phase is SessionPhase.READY and before is not SessionPhase.READY:
        [shown] = [one for one in plan.status.conditions if one.type == "EgressClosed"]
        assert shown.status == "True" or a_policy(egressProof="Warn") == observed.policy
