"""The decision: what to do about one execution, given what was observed and the time.

`decide` is called again whenever something new was observed or `wake_at` has come; it has no memory of its own, so a
restarted operator goes on from what the cluster says.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import (
    CodeExecutionStatus,
    ConditionType,
    EgressMode,
    EgressVerdict,
    Event,
    Phase,
    Reason,
    advance,
    condition,
    evaluate,
    set_condition,
)
from codeexec_operator.core.actions import (
    Action,
    Attach,
    CancelCode,
    CreatePod,
    DeletePayload,
    DeletePod,
    Forget,
    Plan,
    ReadPayload,
    StartCode,
)
from codeexec_operator.core.egress import explain, judge
from codeexec_operator.core.observed import Observed, PodLink, PodView, PolicyProblem
from codeexec_operator.core.payload import Payload, PayloadProblem, build_job
from codeexec_operator.core.transcript import Readiness
from codeexec_operator.manifests.pod import build_pod


@dataclass(frozen=True)
class Timing:
    """Limits of the operator's own patience, in seconds."""

    payload_grace: float = 5
    """How long the payload may come after its CodeExecution; clients create both at once."""
    payload_retry: float = 0.1
    start_timeout: float = 60
    """From accepted to running: scheduling, image pull, container start."""
    attach_retry: float = 1
    exit_grace: float = 15
    """How long a runner that has reported its end may take to exit, before its pod is deleted."""
    grace: float = 5
    """What the runner gets beyond its own limits before the pod is deleted under it."""


_WAITING_FAULTS: Final = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.POD_REFUSED,
    "CreateContainerError": Reason.POD_REFUSED,
    "RunContainerError": Reason.POD_REFUSED,
}

_KILLED: Final = range(129, 160)
_NOT_STARTED: Final = "StartError"  # the container runtime's, before any program ran
_WARNING: Final = (
    "warning: the network of the sandbox was not shown to be closed (see egressProof); "
    "the policy runs code all the same"
)

_BLOCK_EVENTS: Final = {
    "Completed": Event.EXITED_ZERO,
    "NonZeroExit": Event.EXITED_NONZERO,
    "OutOfMemory": Event.OUT_OF_MEMORY,
    "DeadlineExceeded": Event.DEADLINE,
    "Cancelled": Event.CANCEL,
}


def decide(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """What to do about one execution. Pure: same observation, same time, same plan."""
    phase = seen.execution.status.phase
    if phase.terminal:
        return _retain(seen, now, timing)
    if phase is Phase.PENDING:
        return _accept(seen, now, timing)
    if phase is Phase.STARTING:
        return _start(seen, now, timing)
    return _supervise(seen, now, timing)


# --- Pending -------------------------------------------------------------------------------------------------------


def _accept(seen: Observed, now: datetime, timing: Timing) -> Plan:
    if seen.payload is None:
        return Plan(actions=(ReadPayload(),))
    if seen.execution.spec.cancelled:
        return _finish(seen, now, Event.CANCEL, message="cancelled before it was started")
    if isinstance(seen.policy, PolicyProblem):
        return _finish(seen, now, Event.REFUSED, reason=Reason.POLICY_INVALID, message=seen.policy.message)
    verdict = evaluate(seen.execution.spec, seen.policy)
    if not verdict.allowed:
        return _finish(seen, now, Event.REFUSED, reason=Reason.POLICY_VIOLATION, message=verdict.message)
    if isinstance(seen.payload, PayloadProblem):
        created = seen.execution.metadata.creation_timestamp or now
        late = now >= created + timedelta(seconds=timing.payload_grace)
        if seen.payload.reason is Reason.PAYLOAD_MISSING and not late:
            read_at = seen.payload_read_at or now
            again_at = read_at + max(timedelta(seconds=timing.payload_retry), (read_at - created) / 2)
            return Plan(wake_at=again_at) if now < again_at else Plan(actions=(ReadPayload(),))
        return _finish(seen, now, Event.REFUSED, reason=seen.payload.reason, message=seen.payload.message)
    manifest = _manifest(seen, now, timing, image=verdict.image, runtime_class_name=verdict.runtime_class_name)
    status = _moved(seen, now, Event.ACCEPTED, ConditionType.ACCEPTED, message=verdict.message).model_copy(
        update={
            "pod_name": manifest["metadata"]["name"],
            "image": verdict.image,
            "runtime_class_name": verdict.runtime_class_name or "",
        }
    )
    return Plan(status=status, actions=(CreatePod(manifest),))


def _manifest(
    seen: Observed, now: datetime, timing: Timing, *, image: str, runtime_class_name: str | None
) -> dict[str, Any]:
    """The pod, with a deadline behind those of the runner and of this operator."""
    spec = seen.execution.spec
    seconds = timing.start_timeout + len(spec.blocks) * spec.timeout_seconds + 2 * timing.grace
    return build_pod(
        seen.execution,
        image=image,
        deadline_seconds=int(seconds),
        runtime_class_name=runtime_class_name,
        user_namespace=seen.surroundings.user_namespace(runtime_class_name),
        egress_targets=[target.dump() for target in seen.surroundings.targets(now)],
    )


# --- Starting ------------------------------------------------------------------------------------------------------


def _start(seen: Observed, now: datetime, timing: Timing) -> Plan:
    if seen.execution.spec.cancelled:
        return _finish(seen, now, Event.CANCEL, message="cancelled before the code started")
    if ended := _start_failure(seen):
        event, reason, message = ended
        return _finish(seen, now, event, reason=reason, message=message)
    accepted_at = _time_of(seen, ConditionType.ACCEPTED) or now
    give_up_at = accepted_at + timedelta(seconds=timing.start_timeout)
    if now >= give_up_at:
        why = _why_not_ready(seen)
        message = f"the pod did not start within {timing.start_timeout:g} s: {why or 'no reason was given'}"
        return _finish(seen, now, Event.DEADLINE, message=message)
    if seen.payload is None:
        return Plan(actions=(ReadPayload(),))
    if isinstance(seen.payload, PayloadProblem):
        message = f"the operator was restarted before the code started, and then: {seen.payload.message}"
        return _finish(seen, now, Event.VANISHED, reason=Reason.OPERATOR_RESTARTED, message=message)
    if seen.pod is None and not seen.pod_requested:  # after a restart: the pod may or may not exist
        status = seen.execution.status
        manifest = _manifest(
            seen, now, timing, image=status.image, runtime_class_name=status.runtime_class_name or None
        )
        return Plan(actions=(CreatePod(manifest),), wake_at=give_up_at)
    if seen.pod is None or not seen.pod.running:
        return Plan(wake_at=give_up_at)
    return _prepare(seen, now, timing, seen.payload, seen.pod, give_up_at)


def _prepare(
    seen: Observed, now: datetime, timing: Timing, payload: Payload, pod: PodView, give_up_at: datetime
) -> Plan:
    """The runner is there: connect to it, and hear what it has found out."""
    if seen.link is not PodLink.OPEN:
        attach_at = (seen.link_closed_at or now) + timedelta(seconds=timing.attach_retry)
        wait = seen.link is PodLink.CLOSED and now < attach_at
        return Plan(wake_at=attach_at) if wait else Plan(actions=(Attach(),), wake_at=give_up_at)
    if seen.transcript.problem:
        return _finish(seen, now, Event.FAULT, reason=Reason.RUNNER_FAILED, message=seen.transcript.problem)
    if seen.transcript.ready is None:
        return Plan(wake_at=give_up_at)
    return _hand_over(seen, now, payload, pod, seen.transcript.ready)


def _why_not_ready(seen: Observed) -> str:
    if seen.pod is None:
        return ""
    if seen.pod.running:
        return "its container runs, but the runner did not answer"
    return seen.pod.unschedulable or seen.pod.waiting_message


def _start_failure(seen: Observed) -> tuple[Event, Reason, str] | None:
    if seen.fault:
        return Event.FAULT, seen.fault.reason, seen.fault.message
    if seen.pod_gone:
        return Event.VANISHED, Reason.POD_LOST, "the pod was deleted before the code started"
    if seen.pod is None:
        return None
    if seen.pod.waiting_reason in _WAITING_FAULTS:
        reason = _WAITING_FAULTS[seen.pod.waiting_reason]
        hint = "check that the image exists and that the node may pull it; " if "Image" in reason.value else ""
        message = f"{seen.pod.waiting_reason}: {hint}{seen.pod.waiting_message}"
        return Event.FAULT, reason, message
    if seen.pod.terminated:
        message = f"the runner ended before the code started ({seen.pod.terminated}, exit code {seen.pod.exit_code})"
        hint = "" if seen.pod.terminated == _NOT_STARTED else "; is it a sandbox image of codeexec?"
        said = f" It said: {seen.pod.last_words}" if seen.pod.last_words else ""
        return Event.FAULT, Reason.RUNNER_FAILED, f"{message}{hint}{said}"
    return None


def _hand_over(seen: Observed, now: datetime, payload: Payload, pod: PodView, ready: Readiness) -> Plan:
    """The code goes in if the network was shown to be closed, or if the policy wants no more than a warning."""
    try:
        job = build_job(seen.execution, payload)
    except UnicodeDecodeError as error:
        message = f"a block is not UTF-8 text ({error.reason} at byte {error.start}); nothing was run"
        return _finish(seen, now, Event.FAULT, reason=Reason.PAYLOAD_MISMATCH, message=message)
    proof = judge(pod.egress_targets, ready.answered, seen.surroundings.reached_at, now)
    closed = proof.verdict is EgressVerdict.CLOSED
    layers = ("UserNamespace",) * pod.user_namespace + ("NetworkPolicy",) * closed + ready.layers
    shown = condition(
        ConditionType.EGRESS_CLOSED,
        holds=closed,
        reason=proof.verdict.value,
        message=explain(proof)[:4096],
        now=now,
        generation=seen.execution.metadata.generation,
    )
    known = seen.execution.status.model_copy(
        update={
            "conditions": set_condition(seen.execution.status.conditions, shown),
            "node_name": pod.node_name,
            "image_id": pod.image_id,
            "layers": layers,
            "egress_proof": proof,
        }
    )
    seen = replace(seen, execution=seen.execution.model_copy(update={"status": known}))
    if not closed and (isinstance(seen.policy, PolicyProblem) or seen.policy.egress_proof is EgressMode.ENFORCE):
        message = f"{shown.message}. No code was run"
        return _finish(seen, now, Event.REFUSED, reason=Reason.EGRESS_NOT_ENFORCED, message=message)
    status = _moved(seen, now, Event.STARTED, ConditionType.STARTED, message="the code was handed to the runner")
    status = status.model_copy(update={"started_at": now})
    return Plan(status=status, actions=(DeletePayload(payload.secret_uid), StartCode(job)))


# --- Running -------------------------------------------------------------------------------------------------------


def _supervise(seen: Observed, now: datetime, timing: Timing) -> Plan:
    transcript, spec = seen.transcript, seen.execution.spec
    if transcript.done:
        return _conclude(seen, now)
    if transcript.problem:
        return _finish(seen, now, Event.FAULT, message=f"{transcript.problem}; there is no result")
    if seen.link is PodLink.NONE:
        message = "the operator was restarted, or cut off, while the code ran; it was stopped and is not run again"
        return _finish(seen, now, Event.VANISHED, reason=Reason.OPERATOR_RESTARTED, message=message)
    started = seen.execution.status.started_at or now
    stop_at = started + timedelta(seconds=len(spec.blocks) * spec.timeout_seconds + timing.grace)
    if now >= stop_at:
        message = "the runner did not end the code within its limit; the pod was deleted"
        return _finish(seen, now, Event.DEADLINE, message=message)
    if spec.cancelled:
        if seen.cancel_sent_at is None:
            return Plan(actions=(CancelCode(),), wake_at=now + timedelta(seconds=timing.grace))
        if now >= seen.cancel_sent_at + timedelta(seconds=timing.grace):
            return _finish(seen, now, Event.CANCEL, message="cancelled; the runner did not answer, the pod was deleted")
        stop_at = min(stop_at, seen.cancel_sent_at + timedelta(seconds=timing.grace))
    if seen.link is PodLink.CLOSED:
        return _after_disconnect(seen, now, timing)
    return Plan(wake_at=stop_at)


def _conclude(seen: Observed, now: datetime) -> Plan:
    """The runner has reported the end: the last block that ran tells how."""
    spec, blocks = seen.execution.spec, seen.transcript.blocks
    last = blocks[-1]
    if len(blocks) > len(spec.blocks):
        message = f"the runner reported {len(blocks)} blocks, but there are {len(spec.blocks)}"
        return _finish(seen, now, Event.FAULT, message=message)
    event = _BLOCK_EVENTS.get(last.reason, Event.EXITED_NONZERO)
    if event is Event.EXITED_ZERO and last.exit_code != 0:
        event = Event.EXITED_NONZERO
    if event is Event.EXITED_ZERO and len(blocks) < len(spec.blocks):
        if not spec.cancelled:
            message = f"the runner reported the end after {len(blocks)} of {len(spec.blocks)} blocks"
            return _finish(seen, now, Event.FAULT, message=message)
        event = Event.CANCEL  # it arrived between two blocks
    return _finish(seen, now, event, message=_how_it_ended(event, last.exit_code, spec.timeout_seconds))


def _after_disconnect(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """The connection ended without a result: the pod's status, which may come a little later, tells why."""
    if seen.pod_gone or seen.pod is None:
        message = "the pod was deleted while the code ran"
        return _finish(seen, now, Event.VANISHED, message=message)
    if seen.pod.terminated == "OOMKilled":
        return _finish(seen, now, Event.OUT_OF_MEMORY, message=_how_it_ended(Event.OUT_OF_MEMORY, 137, 0))
    if seen.pod.terminated == "DeadlineExceeded":
        return _finish(seen, now, Event.DEADLINE, message="the kubelet ended the pod at its deadline")
    if seen.pod.terminated:
        message = f"the pod ended without a result ({seen.pod.terminated}, exit code {seen.pod.exit_code})"
        if seen.pod.exit_code in _KILLED:
            message += "; the runner was killed, perhaps by the code itself"
        elif seen.transcript.ready is None:
            message += "; is it a sandbox image of codeexec?"
        return _finish(seen, now, Event.FAULT, message=message)
    give_up_at = (seen.link_closed_at or now) + timedelta(seconds=timing.grace)
    if now >= give_up_at:
        return _finish(seen, now, Event.VANISHED, message="the connection to the pod was lost; the code was stopped")
    return Plan(wake_at=give_up_at)


def _how_it_ended(event: Event, exit_code: int, timeout: int) -> str:
    return {
        Event.EXITED_ZERO: "all blocks ended with exit code 0",
        Event.EXITED_NONZERO: f"the last block ended with exit code {exit_code}",
        Event.OUT_OF_MEMORY: "the code needed more memory than spec.limits.memory; files in /workspace and /tmp count",
        Event.DEADLINE: f"the block ran longer than spec.timeoutSeconds ({timeout} s) and was killed",
        Event.CANCEL: "cancelled; the code was killed",
    }[event]


# --- finished ------------------------------------------------------------------------------------------------------


def _retain(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """Keep the finished pod for its time, then delete it; the record stays."""
    if seen.pod is None or seen.pod_gone:
        return Plan(actions=(Forget(),))
    ttl = seen.execution.spec.ttl_seconds_after_finished
    finished = seen.execution.status.finished_at or now
    longest = 0 if isinstance(seen.policy, PolicyProblem) else seen.policy.pod_ttl_seconds
    delete_at = finished + timedelta(seconds=longest if ttl is None else min(ttl, longest))
    if not seen.pod.terminated:  # the runner is about to exit; one that doesn't is not waited for
        delete_at = min(delete_at, finished + timedelta(seconds=timing.exit_grace))
    return Plan(wake_at=delete_at) if now < delete_at else Plan(actions=(DeletePod(),))


def _finish(seen: Observed, now: datetime, event: Event, *, message: str, reason: Reason | None = None) -> Plan:
    """End the execution: everything that is known goes into the record, what still runs is deleted."""
    transcript = seen.transcript
    if _egress_may_be_open(seen.execution.status) and reason is not Reason.EGRESS_NOT_ENFORCED:
        message += f"; {_WARNING}"
    status = _moved(seen, now, event, ConditionType.FINISHED, reason=reason, message=message)
    started = status.started_at
    update: dict[str, Any] = {"finished_at": now}
    if not started:
        never_accepted = seen.execution.status.phase is Phase.PENDING and event is Event.REFUSED
        kind = ConditionType.ACCEPTED if never_accepted else ConditionType.STARTED
        failed = condition(
            kind,
            holds=False,
            reason=status.reason,
            message=status.message,
            now=now,
            generation=seen.execution.metadata.generation,
        )
        update["conditions"] = set_condition(status.conditions, failed)
    else:
        blocks = tuple(transcript.blocks)
        update |= {
            "blocks": blocks,
            "exit_code": _exit_code(event, blocks[-1].exit_code if blocks else None),
            "stdout": transcript.stream("stdout"),
            "stderr": transcript.stream("stderr"),
            "output_order": transcript.order(),
            "summary": status.summary.model_copy(update={"duration": _duration((now - started).total_seconds())}),
        }
    actions: list[Action] = []
    if isinstance(seen.payload, (Payload, PayloadProblem)) and seen.payload.secret_uid and not started:
        actions.append(DeletePayload(seen.payload.secret_uid))
    # A runner that has reported its end exits by itself once that is acknowledged; anything else is stopped.
    if (seen.pod or seen.pod_requested or started) and not transcript.done:
        actions.append(DeletePod())
    return Plan(status=status.model_copy(update=update), actions=tuple(actions))


def _egress_may_be_open(status: CodeExecutionStatus) -> bool:
    return status.egress_proof is not None and status.egress_proof.verdict is not EgressVerdict.CLOSED


def _exit_code(event: Event, last: int | None) -> int | None:
    """Exit code of the record: the last block's; where it has none, the one that shells use for what happened."""
    if event is Event.DEADLINE:
        return 124
    if event is Event.OUT_OF_MEMORY:
        return last or 137
    if event is Event.CANCEL:
        return last or 130
    return last if event in (Event.EXITED_ZERO, Event.EXITED_NONZERO) else None


def _moved(
    seen: Observed,
    now: datetime,
    event: Event,
    kind: ConditionType,
    *,
    message: str,
    reason: Reason | None = None,
) -> CodeExecutionStatus:
    execution = seen.execution
    move = advance(execution.status.phase, event)
    why = (reason or move.reason).value
    message = message[:4096]
    observed = condition(
        kind, holds=True, reason=why, message=message, now=now, generation=execution.metadata.generation
    )
    return execution.status.model_copy(
        update={
            "phase": move.phase,
            "reason": why,
            "message": message,
            "observed_generation": execution.metadata.generation,
            "conditions": set_condition(execution.status.conditions, observed),
            "code_digest": execution.spec.code_digest,
            "summary": execution.status.summary.model_copy(
                update={
                    "languages": ",".join(execution.spec.languages),
                    "digest": execution.spec.code_digest.removeprefix("sha256:")[:12],
                }
            ),
        }
    )


def _time_of(seen: Observed, kind: ConditionType) -> datetime | None:
    times = [one.last_transition_time for one in seen.execution.status.conditions if one.type == kind.value]
    return times[0] if times else None


def _duration(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 60 else f"{int(seconds // 60)}m{int(seconds % 60)}s"
