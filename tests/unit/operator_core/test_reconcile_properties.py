"""Whatever is observed, the decision is one of the table's moves, and one that can be written down."""

from typing import Any, Final

from factories import (
    CODE,
    NOW,
    SECRETS,
    SESSION_REF,
    SURROUNDINGS,
    a_finished_transcript,
    a_piece,
    a_pod,
    a_policy,
    a_raw_block,
    a_runner,
    a_transcript,
    a_view,
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

from codeexec_api import CodeExecution, CodeExecutionStatus, CodeSession, CodeSessionStatus, Phase, Reason, SessionPhase
from codeexec_api.phases import SESSION_TRANSITIONS, TRANSITIONS
from codeexec_api.schema import structural
from codeexec_operator.core.actions import CreatePod, DeletePayload, DeletePod, Forget, GiveUpSession, Plan, StartCode
from codeexec_operator.core.observed import (
    Fault,
    Observed,
    ObservedSession,
    PodLink,
    PolicyProblem,
    RunnerView,
    Sandbox,
)
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.startup import Timing
from codeexec_operator.core.surroundings import Surroundings

MOVES: Final = {(phase, move.phase) for (phase, _), move in TRANSITIONS.items()}
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
policies = st.sampled_from([a_policy(), a_policy(languages=["sh"]), a_policy(egressProof="Warn"), PolicyProblem("no")])
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


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    in_session = draw(st.booleans())
    blocks = draw(st.integers(0 if in_session else 1, 2))
    execution = an_execution(
        phase=draw(st.sampled_from(Phase)),
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
        policy=draw(policies),
        since=NOW,
        surroundings=draw(st.sampled_from([SURROUNDINGS, Surroundings()])),
        payload=draw(st.sampled_from(payloads)),
        payload_read_at=draw(st.none() | moments),
        sandbox=Sandbox() if in_session else draw(sandboxes),
        session=draw(st.none() | views) if in_session else None,
        handed_over=execution.status.phase is Phase.RUNNING and draw(st.booleans()),
        cut_off_at=draw(st.none() | moments),
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
        surroundings=draw(st.sampled_from([SURROUNDINGS, Surroundings()])),
        sandbox=view.sandbox,
        busy=draw(st.booleans()),
        used_at=draw(st.none() | moments),
        executions=draw(st.integers(0, 3)),
        unresponsive=draw(st.sampled_from(["", "", "it did not end the code"])),
    )


def holds_code_back(observed: Observed) -> bool:
    """Waits for nothing but the session, which wakes it."""
    waits = observed.session is not None and observed.execution.status.phase is Phase.STARTING
    return waits and not observed.execution.spec.cancelled


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
    if any(isinstance(action, StartCode) for action in plan.actions):
        assert plan.status
        assert plan.status.phase is Phase.RUNNING
        assert observed.execution.status.phase is Phase.STARTING
        assert DeletePayload(SECRETS) in plan.actions
        [shown] = [one for one in plan.status.conditions if one.type == "EgressClosed"]
        assert shown.status == "True" or a_policy(egressProof="Warn") == observed.policy
        if observed.session:
            assert observed.session.turn
            assert observed.session.session.status.phase is SessionPhase.READY
            assert not observed.session.session.spec.ended
    if Forget() in plan.actions:
        assert observed.execution.status.phase.terminal


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
        assert observed.handed_over


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
