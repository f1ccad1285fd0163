"""Whatever is observed, the decision is one of the table's moves, and one that can be written down."""

from typing import Any

from factories import (
    CODE,
    NOW,
    SECRET_UID,
    SURROUNDINGS,
    a_finished_transcript,
    a_pod,
    a_policy,
    a_raw_block,
    a_ready_transcript,
    a_transcript,
    an_execution,
    output,
    seconds,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from codeexec_api import CodeExecutionStatus, Phase, Reason
from codeexec_api.phases import TRANSITIONS
from codeexec_operator.core.actions import DeletePayload, Forget, StartCode
from codeexec_operator.core.observed import Fault, Observed, PodLink
from codeexec_operator.core.payload import Payload, PayloadProblem
from codeexec_operator.core.reconcile import Timing, decide
from codeexec_operator.core.surroundings import Surroundings

PAYLOAD = Payload(SECRET_UID, (CODE,), ())
MOVES = {(phase, move.phase) for (phase, _), move in TRANSITIONS.items()}

pods = st.builds(
    a_pod,
    running=st.booleans(),
    terminated=st.sampled_from([None, "OOMKilled", "Completed", "Error", "DeadlineExceeded", "Evicted"]),
    exit_code=st.sampled_from([None, 0, 1, 137]),
    waiting_reason=st.sampled_from(["", "ContainerCreating", "ErrImagePull", "CreateContainerError"]),
    unschedulable=st.sampled_from(["", "no node"]),
)
transcripts = st.builds(
    lambda make: make(),
    st.sampled_from(
        [
            lambda: a_transcript(),
            lambda: a_transcript(output("so far")),
            lambda: a_ready_transcript(),
            lambda: a_ready_transcript(answered=True),
            lambda: a_ready_transcript(targets=()),
            lambda: a_transcript(output("x") | {"seq": 3}),
            lambda: a_finished_transcript(),
            lambda: a_finished_transcript(3, "NonZeroExit", "text"),
            lambda: a_finished_transcript(124, "DeadlineExceeded"),
            lambda: a_finished_transcript(130, "Cancelled"),
            lambda: a_finished_transcript(137, "OutOfMemory"),
        ]
    ),
)
moments = st.floats(0, 200).map(lambda after: NOW + seconds(after))


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    blocks = draw(st.integers(1, 2))
    execution = an_execution(
        phase=draw(st.sampled_from(Phase)),
        blocks=[a_raw_block()] * blocks,
        cancelled=draw(st.booleans()),
        timeoutSeconds=draw(st.sampled_from([1, 60])),
    )
    payloads: list[Any] = [
        None,
        Payload(SECRET_UID, (CODE,) * blocks, ()),
        PayloadProblem(Reason.PAYLOAD_MISSING, "missing"),
        PayloadProblem(Reason.PAYLOAD_FOREIGN, "foreign"),
        PayloadProblem(Reason.PAYLOAD_MISMATCH, "mismatch", SECRET_UID),
    ]
    return Observed(
        execution=execution,
        policy=draw(st.sampled_from([a_policy(), a_policy(languages=["sh"]), a_policy(egressProof="Warn")])),
        surroundings=draw(st.sampled_from([SURROUNDINGS, Surroundings()])),
        payload=draw(st.sampled_from(payloads)),
        payload_read_at=draw(st.none() | moments),
        pod=draw(st.none() | pods),
        pod_requested=draw(st.booleans()),
        pod_gone=draw(st.booleans()),
        fault=draw(st.sampled_from([None, Fault(Reason.QUOTA_EXCEEDED, "quota")])),
        link=draw(st.sampled_from(PodLink)),
        link_closed_at=draw(st.none() | moments),
        cancel_sent_at=draw(st.none() | moments),
        transcript=draw(transcripts),
    )


@settings(max_examples=250)
@given(observed=observations(), now=moments)
def test_every_decision_follows_the_table_and_can_be_written(observed: Observed, now: Any) -> None:
    before = observed.execution.status
    plan = decide(observed, now, Timing())
    assert plan == decide(observed, now, Timing())
    if plan.status is not None:
        assert (before.phase, plan.status.phase) in MOVES
        assert CodeExecutionStatus.model_validate(plan.status.dump()) == plan.status
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
    assert plan.status or plan.actions or plan.wake_at
    assert plan.wake_at is None or plan.wake_at > now


@settings(max_examples=250)
@given(observed=observations(), now=moments)
def test_code_starts_only_with_a_record_and_after_the_payload_has_gone(observed: Observed, now: Any) -> None:
    plan = decide(observed, now, Timing())
    if any(isinstance(action, StartCode) for action in plan.actions):
        assert plan.status
        assert plan.status.phase is Phase.RUNNING
        assert observed.execution.status.phase is Phase.STARTING
        assert DeletePayload(SECRET_UID) in plan.actions
        [shown] = [one for one in plan.status.conditions if one.type == "EgressClosed"]
        assert shown.status == "True" or a_policy(egressProof="Warn") == observed.policy
    if Forget() in plan.actions:
        assert observed.execution.status.phase.terminal
