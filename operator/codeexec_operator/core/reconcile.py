"""The decision: what to do about one execution, given what was observed and the time.

`decide` is called again whenever something new was observed or `wake_at` has come; it has no memory of its own, so a
restarted operator goes on from what the cluster says.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import (
    CodeExecutionSpec,
    CodeExecutionStatus,
    CodeSessionStatus,
    ConditionType,
    EgressVerdict,
    Event,
    OutputRef,
    Phase,
    Reason,
    advance,
    condition,
    evaluate,
    find_condition,
    set_condition,
)
from codeexec_api.names import output_name
from codeexec_api.phases import SessionPhase
from codeexec_api.quantities import parse_quantity
from codeexec_operator.core import startup
from codeexec_operator.core.actions import (
    Action,
    CancelCode,
    CreatePod,
    DeletePayload,
    DeletePod,
    Forget,
    GiveUpSession,
    Plan,
    ReadRequest,
    StartCode,
)
from codeexec_operator.core.observed import Observed, PodLink, PolicyProblem, Sandbox, SessionView
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem, build_messages
from codeexec_operator.core.startup import MESSAGE_LENGTH, Ending, Timing
from codeexec_operator.manifests.pod import build_pod

_KILLED: Final = range(129, 160)
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
        in_session = seen.execution.spec.session_ref is not None
        return _start_in_session(seen, now, timing) if in_session else _start(seen, now, timing)
    return _supervise(seen, now, timing)


# --- Pending -------------------------------------------------------------------------------------------------------


def _accept(seen: Observed, now: datetime, timing: Timing) -> Plan:
    spec = seen.execution.spec
    if seen.payload is None:
        return Plan(actions=(ReadRequest(),))
    if spec.cancelled:
        return _finish(seen, now, Ending(Event.CANCEL, None, "cancelled before it was started"))
    if isinstance(seen.policy, PolicyProblem):
        return _finish(seen, now, Ending(Event.REFUSED, Reason.POLICY_INVALID, seen.policy.message))
    verdict = evaluate(spec, seen.policy)
    if not verdict.allowed:
        return _finish(seen, now, Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message))
    if ending := _missing(seen):
        created = seen.execution.metadata.creation_timestamp or now
        late = now >= created + timedelta(seconds=timing.payload_grace)
        if ending.reason in (Reason.PAYLOAD_MISSING, Reason.SESSION_NOT_FOUND) and not late:
            read_at = seen.payload_read_at or now
            again_at = read_at + max(timedelta(seconds=timing.payload_retry), (read_at - created) / 2)
            return Plan(wake_at=again_at) if now < again_at else Plan(actions=(ReadRequest(),))
        return _finish(seen, now, ending)
    if spec.session_ref:
        waiting = Ending(Event.ACCEPTED, Reason.WAITING_FOR_SESSION, f"waits for its turn in {spec.session_ref.name}")
        return Plan(status=_moved(seen, now, waiting, ConditionType.ACCEPTED))
    manifest = _manifest(seen, now, timing, image=verdict.image, runtime_class_name=verdict.runtime_class_name)
    status = _moved(seen, now, Ending(Event.ACCEPTED, None, verdict.message), ConditionType.ACCEPTED)
    facts = {
        "pod_name": manifest["metadata"]["name"],
        "image": verdict.image,
        "runtime_class_name": verdict.runtime_class_name or "",
    }
    return Plan(status=status.model_copy(update=facts), actions=(CreatePod(manifest),))


def _missing(seen: Observed) -> Ending | None:
    """What the execution refers to and can't have, if there is such a thing."""
    if isinstance(seen.payload, PayloadProblem):
        return Ending(Event.REFUSED, seen.payload.reason, seen.payload.message)
    spec = seen.execution.spec
    if spec.session_ref is None:
        return None
    if seen.session is None:
        message = (
            f"spec.sessionRef: there is no CodeSession {spec.session_ref.name!r} in namespace "
            f"{seen.execution.metadata.namespace!r}; create it before or together with the CodeExecution"
        )
        return Ending(Event.REFUSED, Reason.SESSION_NOT_FOUND, message)
    return _over(seen.session) or _mismatch(seen, seen.session)


def _over(view: SessionView) -> Ending | None:
    session = view.session
    if not session.status.phase.terminal and not session.spec.ended:
        return None
    message = (
        f"spec.sessionRef: session {session.metadata.name!r} is over ({session.status.reason or 'EndRequested'}: "
        f"{session.status.message or 'ended, as was asked for'}); start a new one. Nothing was run"
    )
    return Ending(Event.REFUSED, Reason.SESSION_ENDED, message)


def _mismatch(seen: Observed, view: SessionView) -> Ending | None:
    """The limits of a pod that exists already can't be chosen any more."""
    asked, given = seen.execution.spec.limits, view.session.spec.limits
    for field in ("cpu", "memory", "ephemeral_storage"):
        found, allowed = getattr(asked, field), getattr(given, field)
        if parse_quantity(found) != parse_quantity(allowed):
            name = {"ephemeral_storage": "ephemeralStorage"}.get(field, field)
            message = f"spec.limits.{name}: {found} is not what the session was made with (allowed: {allowed})"
            return Ending(Event.REFUSED, Reason.SESSION_MISMATCH, message)
    return None


def _manifest(
    seen: Observed, now: datetime, timing: Timing, *, image: str, runtime_class_name: str | None
) -> dict[str, Any]:
    """The pod, with a deadline behind those of the runner and of this operator."""
    spec = seen.execution.spec
    seconds = timing.start_timeout + _seconds_to_run(spec, timing) + timing.grace
    return build_pod(
        seen.execution,
        image=image,
        deadline_seconds=int(seconds),
        runtime_class_name=runtime_class_name,
        user_namespace=seen.surroundings.user_namespace(runtime_class_name),
        egress_targets=[target.dump() for target in seen.surroundings.targets(now)],
    )


# --- Starting ------------------------------------------------------------------------------------------------------

_CANCELLED_BEFORE: Final = Ending(Event.CANCEL, None, "cancelled before the code started")


def _start(seen: Observed, now: datetime, timing: Timing) -> Plan:
    if seen.execution.spec.cancelled:
        return _finish(seen, now, _CANCELLED_BEFORE)
    if ending := startup.failure(seen.sandbox):
        return _finish(seen, now, ending)
    give_up_at = startup.give_up_at(seen.execution.status.conditions, now, timing)
    if now >= give_up_at:
        return _finish(seen, now, startup.late(seen.sandbox, timing))
    if plan := _without_payload(seen, now):
        return plan
    if seen.sandbox.pod is None and not seen.sandbox.requested:  # after a restart: the pod may or may not exist
        status = seen.execution.status
        manifest = _manifest(
            seen, now, timing, image=status.image, runtime_class_name=status.runtime_class_name or None
        )
        return Plan(actions=(CreatePod(manifest),), wake_at=give_up_at)
    if plan := startup.connect(seen.sandbox, now, timing, give_up_at):
        return plan
    pod, ready = seen.sandbox.pod, seen.sandbox.runner.ready
    if pod is None or ready is None:  # `connect` has seen to it
        return Plan(wake_at=give_up_at)
    proven = startup.prove(pod, ready, seen.surroundings, now, seen.execution.metadata.generation)
    status = seen.execution.status
    seen = _knowing(seen, proven.facts | {"conditions": set_condition(status.conditions, proven.condition)})
    if ending := startup.refuses(proven, seen.policy):
        return _finish(seen, now, ending)
    if isinstance(seen.payload, HeldPayload):
        return Plan(actions=(ReadRequest(),))
    return _hand_over(seen, now)


def _start_in_session(seen: Observed, now: datetime, timing: Timing) -> Plan:
    if seen.execution.spec.cancelled:
        return _finish(seen, now, _CANCELLED_BEFORE)
    view = seen.session
    if view is None:  # after a restart of the operator
        if seen.payload is None:
            return Plan(actions=(ReadRequest(),))
        give_up_at = seen.since + timedelta(seconds=timing.list_grace)
        message = "the session is not there any more; nothing was run"
        gone = Ending(Event.REFUSED, Reason.SESSION_NOT_FOUND, message)
        return Plan(wake_at=give_up_at) if now < give_up_at else _finish(seen, now, gone)
    if ending := _over(view):
        return _finish(seen, now, ending)
    runner = view.sandbox.runner
    ready = view.session.status.phase is SessionPhase.READY and runner.ready and runner.link is PodLink.OPEN
    if not view.turn or not ready:
        return Plan()  # the session sees to it that it comes
    if isinstance(seen.payload, HeldPayload):
        return Plan(actions=(ReadRequest(),))
    if plan := _without_payload(seen, now):
        return plan
    session = view.session.status
    conditions = seen.execution.status.conditions
    if shown := find_condition(session.conditions, ConditionType.EGRESS_CLOSED):
        conditions = set_condition(conditions, shown)
    facts = {
        name: getattr(session, name)
        for name in ("pod_name", "node_name", "image", "image_id", "runtime_class_name", "layers", "egress_proof")
    }
    seen = _knowing(seen, facts | {"conditions": conditions})
    if _egress_may_be_open(session) and not startup.warns(seen.policy):
        message = "the network of the session was not shown to be closed, and the policy asks for that. No code was run"
        return _finish(seen, now, Ending(Event.REFUSED, Reason.EGRESS_NOT_ENFORCED, message))
    return _hand_over(seen, now)


def _without_payload(seen: Observed, now: datetime) -> Plan | None:
    """What to do as long as the code isn't there."""
    if seen.payload is None:
        return Plan(actions=(ReadRequest(),))
    if isinstance(seen.payload, PayloadProblem):
        message = f"the payload was there when the execution was accepted, and then: {seen.payload.message}"
        missing = seen.payload.reason is Reason.PAYLOAD_MISSING  # an operator before this one has deleted it
        reason = Reason.OPERATOR_RESTARTED if missing else seen.payload.reason
        return _finish(seen, now, Ending(Event.VANISHED, reason, message))
    return None


def _knowing(seen: Observed, facts: dict[str, Any]) -> Observed:
    status = seen.execution.status.model_copy(update=facts)
    return replace(seen, execution=seen.execution.model_copy(update={"status": status}))


def _hand_over(seen: Observed, now: datetime) -> Plan:
    """The sandbox is ready: record that the code goes in, then hand it over."""
    payload = seen.payload if isinstance(seen.payload, Payload) else Payload()
    try:
        messages = build_messages(seen.execution, payload, stateful=_stateful(seen))
    except UnicodeDecodeError as error:
        message = f"a block is not UTF-8 text ({error.reason} at byte {error.start}); nothing was run"
        return _finish(seen, now, Ending(Event.FAULT, Reason.PAYLOAD_MISMATCH, message))
    handed = Ending(Event.STARTED, None, "the code was handed to the runner")
    status = _moved(seen, now, handed, ConditionType.STARTED).model_copy(update={"started_at": now})
    delete: tuple[Action, ...] = (DeletePayload(payload.secrets),) if payload.secrets else ()
    return Plan(status=status, actions=(*delete, StartCode(messages)))


def _stateful(seen: Observed) -> bool:
    return seen.session is not None and seen.session.session.spec.stateful


# --- Running -------------------------------------------------------------------------------------------------------


def _supervise(seen: Observed, now: datetime, timing: Timing) -> Plan:
    if ending := _ended(seen):
        return _finish(seen, now, ending)
    spec = seen.execution.spec
    started = seen.execution.status.started_at or now
    seconds = _seconds_to_run(spec, timing) + (timing.kernel_start if _stateful(seen) else 0)
    stop_at = started + timedelta(seconds=seconds)
    if now >= stop_at:
        message = "the runner did not end the code within its limit; the pod was deleted"
        return _finish(seen, now, Ending(Event.DEADLINE, None, message))
    if seen.cut_off_at:
        return _after_disconnect(seen, now, seen.cut_off_at + timedelta(seconds=timing.grace))
    if spec.cancelled:
        if seen.cancel_sent_at is None:
            return Plan(actions=(CancelCode(),), wake_at=now + timedelta(seconds=timing.grace))
        if now >= seen.cancel_sent_at + timedelta(seconds=timing.grace):
            message = "cancelled; the runner did not answer, the pod was deleted"
            return _finish(seen, now, Ending(Event.CANCEL, None, message))
        stop_at = min(stop_at, seen.cancel_sent_at + timedelta(seconds=timing.grace))
    return Plan(wake_at=stop_at)


def _seconds_to_run(spec: CodeExecutionSpec, timing: Timing) -> float:
    """How long the runner may take, from being handed the job to its last word."""
    files = timing.transfer if spec.files or spec.artifacts.fetch else 0
    return len(spec.blocks) * spec.timeout_seconds + files + timing.grace


def _ended(seen: Observed) -> Ending | None:
    """The end that was reported, or that follows from who knows of the code."""
    transcript = seen.transcript
    if transcript.done:
        return _how(seen)
    if transcript.fault:
        return Ending(Event.FAULT, Reason.FILE_REFUSED, transcript.fault.message)
    if transcript.problem:
        return Ending(Event.FAULT, None, f"{transcript.problem}; there is no result")
    if not seen.handed_over:
        message = "the operator was restarted, or cut off, while the code ran; it was stopped and is not run again"
        return Ending(Event.VANISHED, Reason.OPERATOR_RESTARTED, message)
    return _without_session(seen)


def _without_session(seen: Observed) -> Ending | None:
    """The session ended while code ran in it."""
    if seen.session is None:
        return None
    session = seen.session.session
    if session.spec.ended:  # or deleted
        return Ending(Event.CANCEL, None, "the session was ended while the code ran")
    if not session.status.phase.terminal:
        return None
    why = f"the session ended while the code ran: {session.status.message}"
    if session.status.reason == Reason.LIFETIME_EXCEEDED.value:
        return Ending(Event.DEADLINE, None, why)
    return _with_pod(seen.place) or Ending(Event.VANISHED, None, why)


def _how(seen: Observed) -> Ending:
    """The runner has reported the end: the last block that ran tells how."""
    spec, blocks = seen.execution.spec, seen.transcript.blocks
    if not spec.blocks and not blocks:
        return Ending(Event.EXITED_ZERO, None, "the files were handed over")
    if not blocks or len(blocks) > len(spec.blocks):
        return Ending(Event.FAULT, None, f"the runner reported {len(blocks)} blocks, but there are {len(spec.blocks)}")
    last = blocks[-1]
    event = _BLOCK_EVENTS.get(last.reason, Event.EXITED_NONZERO)
    if event is Event.EXITED_ZERO and last.exit_code != 0:
        event = Event.EXITED_NONZERO
    if event is Event.EXITED_ZERO and len(blocks) < len(spec.blocks):
        if not spec.cancelled:
            message = f"the runner reported the end after {len(blocks)} of {len(spec.blocks)} blocks"
            return Ending(Event.FAULT, None, message)
        event = Event.CANCEL  # it arrived between two blocks
    return Ending(event, None, _how_it_ended(event, last.exit_code, spec.timeout_seconds))


def _after_disconnect(seen: Observed, now: datetime, give_up_at: datetime) -> Plan:
    """The connection ended without a result: the pod's status, which may come a little later, tells why."""
    if ending := _with_pod(seen.place):
        return _finish(seen, now, ending)
    if now >= give_up_at:
        message = "the connection to the pod was lost; the code was stopped"
        return _finish(seen, now, Ending(Event.VANISHED, None, message))
    return Plan(wake_at=give_up_at)


def _with_pod(sandbox: Sandbox) -> Ending | None:
    """The end of the code that follows from that of its pod."""
    pod = sandbox.pod
    if sandbox.gone or pod is None:
        return Ending(Event.VANISHED, None, "the pod was deleted while the code ran")
    if pod.terminated == "OOMKilled":
        return Ending(Event.OUT_OF_MEMORY, None, _how_it_ended(Event.OUT_OF_MEMORY, 137, 0))
    if pod.terminated == "DeadlineExceeded":
        return Ending(Event.DEADLINE, None, "the kubelet ended the pod at its deadline")
    if pod.terminated:
        message = f"the pod ended without a result ({pod.terminated}, exit code {pod.exit_code})"
        if pod.exit_code in _KILLED:
            message += "; the runner was killed, perhaps by the code itself"
        return Ending(Event.FAULT, None, message)
    return None


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
    sandbox = seen.sandbox
    if sandbox.pod is None or sandbox.gone:
        return Plan(actions=(Forget(),))
    ttl = seen.execution.spec.ttl_seconds_after_finished
    finished = seen.execution.status.finished_at or now
    longest = 0 if isinstance(seen.policy, PolicyProblem) else seen.policy.pod_ttl_seconds
    delete_at = finished + timedelta(seconds=longest if ttl is None else min(ttl, longest))
    if not sandbox.pod.terminated:  # the runner is about to exit; one that doesn't is not waited for
        delete_at = min(delete_at, finished + timedelta(seconds=timing.exit_grace))
    return Plan(wake_at=delete_at) if now < delete_at else Plan(actions=(DeletePod(),))


def _finish(seen: Observed, now: datetime, ending: Ending) -> Plan:
    """End the execution: everything that is known goes into the record, what still runs is stopped."""
    transcript, message = seen.transcript, ending.message
    if _egress_may_be_open(seen.execution.status) and ending.reason is not Reason.EGRESS_NOT_ENFORCED:
        message += f"; {_WARNING}"
    if transcript.lost:
        message += f"; not all output could be kept: {transcript.lost}"
    ending = replace(ending, message=message)
    status = _moved(seen, now, ending, ConditionType.FINISHED)
    started = status.started_at
    update: dict[str, Any] = {"finished_at": now}
    if not started:
        never_accepted = seen.execution.status.phase is Phase.PENDING and ending.event is Event.REFUSED
        failed = condition(
            ConditionType.ACCEPTED if never_accepted else ConditionType.STARTED,
            holds=False,
            reason=status.reason,
            message=status.message,
            now=now,
            generation=seen.execution.metadata.generation,
        )
        update["conditions"] = set_condition(status.conditions, failed)
    else:
        update |= _result(seen, ending.event)
        duration = _duration((now - started).total_seconds())
        update["summary"] = status.summary.model_copy(update={"duration": duration})
    return Plan(status=status.model_copy(update=update), actions=tuple(_cleanup(seen)))


def _result(seen: Observed, event: Event) -> dict[str, Any]:
    """What came out, as fields of the status."""
    transcript, meta = seen.transcript, seen.execution.metadata
    blocks = tuple(transcript.blocks)
    return {
        "blocks": blocks,
        "exit_code": _exit_code(event, blocks[-1].exit_code if blocks else None),
        "stdout": transcript.stream("stdout"),
        "stderr": transcript.stream("stderr"),
        "output_order": transcript.order(),
        "artifacts": transcript.kept_artifacts(),
        "artifacts_omitted": transcript.artifacts_omitted,
        "output_refs": tuple(
            OutputRef(name=output_name(meta.name, meta.uid, index)) for index in range(transcript.part_count)
        ),
    }


def _cleanup(seen: Observed) -> list[Action]:
    """What is left of an execution that ends, and must not be."""
    started, transcript = seen.execution.status.started_at, seen.transcript
    actions: list[Action] = []
    if seen.payload and seen.payload.secrets and not started:
        actions.append(DeletePayload(seen.payload.secrets))
    if transcript.done or transcript.fault:
        return actions  # the runner exits by itself once that is acknowledged, or waits for the next job
    if seen.execution.spec.session_ref:
        # When the session connects again, it stops whatever runs.
        if seen.handed_over and seen.cut_off_at is None:
            actions.append(GiveUpSession("its runner did not end an execution as it was told"))
    elif seen.sandbox.pod or seen.sandbox.requested or started:
        actions.append(DeletePod())
    return actions


def _egress_may_be_open(status: CodeExecutionStatus | CodeSessionStatus) -> bool:
    return status.egress_proof is not None and status.egress_proof.verdict is not EgressVerdict.CLOSED


def _exit_code(event: Event, last: int | None) -> int | None:
    """Exit code of the record: the last block's; where it has none, the one that shells use for what happened."""
    if event is Event.DEADLINE:
        return 124
    if event is Event.OUT_OF_MEMORY:
        return last or 137
    if event is Event.CANCEL:
        return last or 130
    if event is Event.EXITED_ZERO:
        return 0
    return last if event is Event.EXITED_NONZERO else None


def _moved(seen: Observed, now: datetime, ending: Ending, kind: ConditionType) -> CodeExecutionStatus:
    execution = seen.execution
    move = advance(execution.status.phase, ending.event)
    reason, message = (ending.reason or move.reason).value, ending.message[:MESSAGE_LENGTH]
    observed = condition(
        kind, holds=True, reason=reason, message=message, now=now, generation=execution.metadata.generation
    )
    return execution.status.model_copy(
        update={
            "phase": move.phase,
            "reason": reason,
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


def _duration(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 60 else f"{int(seconds // 60)}m{int(seconds % 60)}s"
