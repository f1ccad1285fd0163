"""The decision: what to do about one execution, given what was observed and the time.

`decide` is called again whenever something new was observed or `wake_at` has come; it has no memory of its own, so a
restarted operator goes on from what the cluster says.
"""

from datetime import datetime, timedelta

from codeexec_api import (
    CodeExecutionStatus,
    ConditionType,
    Event,
    Phase,
    Reason,
    SessionPhase,
    Verdict,
    records,
)
from codeexec_operator.core import startup
from codeexec_operator.core.actions import AskPool, CancelCode, CloseEgress, Forget, Plan, ReadRequest
from codeexec_operator.core.approving import (
    ask,
    awake_at_expiry,
    consult,
    lapse,
    look_at_code,
    permits,
    wait_for_decision,
)
from codeexec_operator.core.observed import FrameStream, Observed, PolicyProblem, SessionView
from codeexec_operator.core.observed_pool import MAX_RUN_SECONDS
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.payload import PayloadProblem
from codeexec_operator.core.record import finish, knowing, moved, with_status
from codeexec_operator.core.resuming import awake_for_pod, pod_ended, resume, with_pod
from codeexec_operator.core.starting import (
    is_stateful,
    needs_own_pod,
    not_to_be_had,
    request_pod,
    seconds_to_run,
    seconds_to_stop,
    session_over,
    start_alone,
    start_from_pool,
    start_in_session,
)
from codeexec_operator.core.timing import Timing


def decide(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """What to do about one execution. Pure: same observation, same time, same plan."""
    phase = seen.execution.status.phase
    if phase.terminal:
        return _retain(seen, now, timing)
    if phase is Phase.RUNNING:
        return _supervise(seen, now, timing)
    looked = look_at_code(seen)
    if isinstance(looked, Plan):
        return looked
    if phase is Phase.PENDING:
        return _accept(looked, now, timing)
    if phase is Phase.AWAITING_APPROVAL:
        return wait_for_decision(looked, now)
    return lapse(looked, now) or awake_at_expiry(looked, _begin(looked, now, timing))


def _begin(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """On the way from accepted or approved to the start of the code."""
    if seen.execution.status.phase is Phase.STARTING:
        if seen.execution.spec.session_ref:
            return start_in_session(seen, now, timing)
        start = start_alone if seen.execution.status.pod_name else start_from_pool
        return start(seen, now, timing)
    return _accept(seen, now, timing)


def _accept(seen: Observed, now: datetime, timing: Timing) -> Plan:
    spec = seen.execution.spec
    if seen.payload is None:
        return Plan(actions=(ReadRequest(),))
    if spec.cancelled:
        return finish(seen, now, Ending(Event.CANCEL, None, "cancelled before it was accepted"))
    verdict = consult(seen)
    if isinstance(verdict, Ending):
        return finish(seen, now, verdict)
    allowed = permits(seen, verdict)
    if not allowed and seen.execution.status.phase is Phase.APPROVED:
        return finish(seen, now, Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message))
    if never := not_to_be_had(seen, verdict):  # before anybody is asked to approve it
        return finish(seen, now, never)
    if ending := _missing(seen):
        late = now >= seen.since + timedelta(seconds=timing.payload_grace)
        if ending.reason in (Reason.PAYLOAD_MISSING, Reason.SESSION_NOT_FOUND) and not late:
            read_at = seen.payload_read_at or now
            again_at = read_at + max(timedelta(seconds=timing.payload_retry), (read_at - seen.since) / 2)
            return Plan(wake_at=again_at) if now < again_at else Plan(actions=(ReadRequest(),))
        if seen.session and ending.event is Event.FAULT:  # its session could not start; only what is starting can fail
            accepted = _in_line(seen, seen.session, now)
            seen = with_status(seen, accepted) if allowed else knowing(seen, {"phase": Phase.STARTING})
        return finish(seen, now, ending)
    return _enter(seen, verdict, now, timing) if allowed else ask(seen, verdict, now)


def _enter(seen: Observed, verdict: Verdict, now: datetime, timing: Timing) -> Plan:
    """It may run: get in line where it will."""
    spec, approval = seen.execution.spec, seen.execution.status.approval
    message = f"approved by {approval.approver}" if approval and not verdict.allowed else verdict.message
    if seen.session:
        accepted = _in_line(seen, seen.session, now)
        at_once = start_in_session(with_status(seen, accepted), now, timing)
        tell_at = seen.since + timedelta(seconds=timing.early_notice)
        if at_once.status or now >= tell_at or _is_ready(seen):
            return at_once if at_once.status else Plan(status=accepted)
        return Plan(wake_at=tell_at)  # it was made with its session, which may have a pod in no time
    facts = {"image": verdict.image, "runtime_class_name": verdict.runtime_class_name or ""}
    if not needs_own_pod(spec) and not seen.pool_asked and seconds_to_run(spec, timing) <= MAX_RUN_SECONDS:
        return Plan(actions=(AskPool(verdict.image, verdict.runtime_class_name),))
    if pool := seen.pool:
        reason = Reason.POD_CLAIMED if pool.proven else Reason.WAITING_FOR_POOL
        status = moved(seen, now, Ending(Event.ACCEPTED, reason, message), ConditionType.ACCEPTED)
        return start_from_pool(with_status(seen, status.model_copy(update=facts)), now, timing)
    status = moved(seen, now, Ending(Event.ACCEPTED, None, message), ConditionType.ACCEPTED)
    return request_pod(with_status(seen, status.model_copy(update=facts)), now, timing)


def _in_line(seen: Observed, view: SessionView, now: datetime) -> CodeExecutionStatus:
    """The status of an execution that was accepted and waits for its session."""
    message = records.wait_for_session(view.session.status.phase)
    return moved(seen, now, Ending(Event.ACCEPTED, Reason.WAITING_FOR_SESSION, message), ConditionType.ACCEPTED)


def _is_ready(seen: Observed) -> bool:
    return seen.session is not None and seen.session.session.status.phase is SessionPhase.READY


def _missing(seen: Observed) -> Ending | None:
    """What the execution refers to and can't have, if there is such a thing."""
    if isinstance(seen.payload, PayloadProblem):
        return Ending(Event.REFUSED, seen.payload.reason, seen.payload.message)
    spec = seen.execution.spec
    if spec.session_ref is None:
        return None
    if seen.session is None:
        message = records.session_missing(spec.session_ref.name, seen.execution.metadata.namespace)
        return Ending(Event.REFUSED, Reason.SESSION_NOT_FOUND, message)
    return session_over(seen.session) or _mismatch(seen, seen.session)


def _mismatch(seen: Observed, view: SessionView) -> Ending | None:
    """The limits of a pod that exists already can't be chosen any more."""
    message = records.session_mismatch(seen.execution.spec, view.session)
    return Ending(Event.REFUSED, Reason.SESSION_MISMATCH, message) if message else None


def _supervise(seen: Observed, now: datetime, timing: Timing) -> Plan:
    if ending := _ended(seen):
        return finish(seen, now, ending)
    if seen.frames is not FrameStream.OPEN:
        return awake_for_pod(seen, resume(seen, now, timing), timing)
    if ending := pod_ended(seen, now, timing):
        return finish(seen, now, ending)
    spec = seen.execution.spec
    started = seen.begun_at or seen.since  # not when the record says: that is by the clock of another operator, perhaps
    seconds = seconds_to_run(spec, timing) + (timing.kernel_start if is_stateful(seen) else 0)
    # What the runner has said meanwhile takes a moment to arrive.
    stop_at = max(
        started + timedelta(seconds=seconds), (seen.frames_since or started) + timedelta(seconds=timing.grace)
    )
    if now >= stop_at:
        message = f"the code did not end within {seconds:g} s and the runner did not stop it, so the pod was deleted"
        return finish(seen, now, Ending(Event.DEADLINE, None, message))
    if spec.cancelled:
        if seen.cancel_sent_at is None:
            return Plan(actions=(CancelCode(),), wake_at=now + timedelta(seconds=timing.grace))
        answer_by = _answer_by(seen, seen.cancel_sent_at, timing)
        if now >= answer_by:
            message = "cancelled; the runner did not answer, so the pod was deleted"
            return finish(seen, now, Ending(Event.CANCEL, None, message))
        stop_at = min(stop_at, answer_by)
    return awake_for_pod(seen, Plan(wake_at=stop_at), timing)


def _answer_by(seen: Observed, sent_at: datetime, timing: Timing) -> datetime:
    """Until when the runner has to end a job that was cancelled. While it sends files, whatever it says counts."""
    last = max(sent_at, seen.place.runner.heard_at or sent_at) + timedelta(seconds=timing.grace)
    return min(last, sent_at + timedelta(seconds=seconds_to_stop(seen.execution.spec, timing)))


def _ended(seen: Observed) -> Ending | None:
    """The end that was reported, or that follows from what holds the code."""
    transcript = seen.transcript
    if transcript.done:
        return _how(seen)
    if transcript.fault:
        return Ending(Event.FAULT, Reason.FILE_REFUSED, transcript.fault.message)
    if transcript.problem:
        return Ending(Event.FAULT, None, f"{transcript.problem}; there is no result")
    return _without_session(seen)


def _without_session(seen: Observed) -> Ending | None:
    """The session ended while code ran in it."""
    if seen.session is None:
        return None
    session = seen.session.session
    if session.spec.ended:  # or deleted
        return Ending(Event.CANCEL, None, records.ENDED_WITH_SESSION)
    if not session.status.phase.terminal:
        return None
    why = f"the session ended while the code ran: {session.status.message}"
    if session.status.reason == Reason.LIFETIME_EXCEEDED.value:
        return Ending(Event.DEADLINE, None, why)
    return with_pod(seen) or Ending(Event.VANISHED, None, why)


def _how(seen: Observed) -> Ending:
    """The runner has reported the end: the last block that ran tells how."""
    spec, blocks = seen.execution.spec, seen.transcript.blocks
    if not spec.blocks and not blocks:
        return Ending(Event.EXITED_ZERO, None, records.FILES_TRANSFERRED)
    if not blocks or len(blocks) > len(spec.blocks):
        return Ending(Event.FAULT, None, f"the runner reported {len(blocks)} blocks, but there are {len(spec.blocks)}")
    last = blocks[-1]
    event = records.BLOCK_EVENTS.get(last.reason, Event.EXITED_NONZERO)
    if event is Event.EXITED_ZERO and last.exit_code != 0:
        event = Event.EXITED_NONZERO
    if event is Event.EXITED_ZERO and len(blocks) < len(spec.blocks):
        if not spec.cancelled:
            message = f"the runner reported the end after {len(blocks)} of {len(spec.blocks)} blocks"
            return Ending(Event.FAULT, None, message)
        event = Event.CANCEL  # it arrived between two blocks
    return Ending(event, None, records.how_code_ended(event, last.exit_code, spec))


def _retain(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """Keep the finished pod for its time, then delete it; the record stays."""
    sandbox = seen.sandbox
    asked = seen.execution.spec.egress and (sandbox.requested or sandbox.pod)  # and nothing is on record of it
    if (seen.execution.status.egress or asked) and not seen.egress_closed:
        return Plan(actions=(CloseEgress(),))
    if sandbox.pod is None or sandbox.gone:
        return Plan(actions=(Forget(),))
    ttl = seen.execution.spec.ttl_seconds_after_finished
    finished = seen.execution.status.finished_at or now
    longest = 0 if isinstance(seen.policy, PolicyProblem) else seen.policy.pod_ttl_seconds
    delete_at = finished + timedelta(seconds=longest if ttl is None else min(ttl, longest))
    if not sandbox.pod.terminated:  # the runner is about to exit; one that doesn't is not waited for
        delete_at = min(delete_at, finished + timedelta(seconds=timing.exit_grace))
    return Plan(wake_at=delete_at) if now < delete_at else startup.delete(sandbox, now, timing)
