"""What goes into the record of an execution: what is known so far, and its end."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from codeexec_api import (
    CodeExecutionStatus,
    ConditionType,
    Event,
    OutputRef,
    OutputStoreRef,
    Phase,
    Reason,
    StreamStatus,
    advance,
    records,
    set_condition,
)
from codeexec_api.digests import sha256_hex
from codeexec_api.names import output_name, part_name
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.core.actions import Action, CancelCode, DeletePayload, DeletePod, GiveUpSession, Plan
from codeexec_operator.core.observed import FrameStream, Observed
from codeexec_operator.core.outcome import Ending, recordable, transition, waits_no_more, with_condition
from codeexec_operator.core.output_parts import OutputParts


def waiting_no_more(seen: Observed, now: datetime, reason: Reason, message: str) -> Observed:
    """The same, with a record that no longer says that it waits, for its turn or for its pod."""
    execution = seen.execution
    conditions = waits_no_more(execution.status.conditions, reason.value, message, now, execution.metadata)
    return knowing(seen, {"conditions": conditions})


def knowing(seen: Observed, facts: dict[str, Any]) -> Observed:
    """The same, with these fields of the status changed."""
    return with_status(seen, seen.execution.status.model_copy(update=facts))


def with_status(seen: Observed, status: CodeExecutionStatus) -> Observed:
    """The same, with another status."""
    return replace(seen, execution=seen.execution.model_copy(update={"status": status}))


def finish(seen: Observed, now: datetime, ending: Ending) -> Plan:
    """End the execution: everything that is known goes into the record, what still runs is stopped."""
    transcript, message = seen.transcript, ending.message
    if records.egress_may_be_open(seen.execution.status) and ending.reason is not Reason.EGRESS_NOT_ENFORCED:
        message += records.EGRESS_WARNING
    if transcript.parts.lost:
        message += f"; not all output could be kept: {transcript.parts.lost}"
    ending = replace(ending, message=message)
    status = moved(seen, now, ending, ConditionType.FINISHED)
    started, conditions, meta = status.started_at, status.conditions, seen.execution.metadata
    finished = max(now, started or now)  # an operator before this one may have had a clock that was ahead
    update: dict[str, Any] = {"finished_at": finished}
    if not started:
        not_yet = seen.execution.status.phase in (Phase.PENDING, Phase.AWAITING_APPROVAL, Phase.APPROVED)
        never_accepted = not_yet and ending.event in (Event.REFUSED, Event.EXPIRED)
        kind = ConditionType.ACCEPTED if never_accepted else ConditionType.STARTED
        said = (status.reason, status.message, now, meta)
        conditions = with_condition(waits_no_more(conditions, *said), kind, *said)
    else:
        update |= _result(seen, ending.event)
        update["blocks"] = records.within_run(seen.transcript.blocks, started, finished)
        duration = records.duration((finished - started).total_seconds())
        update["summary"] = status.summary.model_copy(update={"duration": duration})
    succeeded = records.succeeded(status.phase, status.reason, now, meta.generation)
    update["conditions"] = set_condition(conditions, succeeded)
    return Plan(status=status.model_copy(update=update), actions=tuple(_cleanup(seen)))


def _result(seen: Observed, event: Event) -> dict[str, Any]:
    """What came out, as fields of the status."""
    transcript, meta = seen.transcript, seen.execution.metadata
    last = transcript.blocks[-1].exit_code if transcript.blocks else None
    return {
        "exit_code": records.exit_code(event, last),
        "stdout": transcript.stream("stdout"),
        "stderr": transcript.stream("stderr"),
        "output_order": transcript.order(),
        "artifacts": transcript.kept_artifacts(),
        "artifacts_omitted": transcript.artifacts_omitted,
        **_places(transcript.parts, meta),
    }


def _places(parts: OutputParts, meta: ObjectMeta) -> dict[str, Any]:
    """Where the output is that doesn't stand in the record, as fields of the status."""
    if not parts.place.url:
        return {"output_refs": tuple(OutputRef(name=output_name(meta.name, meta.uid, one)) for one in parts.frames)}
    names = tuple(part_name(one) for one in parts.frames)
    return {"output_store": OutputStoreRef(url=parts.place.url, parts=names) if names else None}


def _cleanup(seen: Observed) -> list[Action]:
    """What is left of an execution that ends, and must not be."""
    started, transcript = seen.execution.status.started_at, seen.transcript
    actions: list[Action] = []
    handed_over = started and seen.frames is FrameStream.OPEN
    if seen.payload and seen.payload.secrets and not handed_over:
        actions.append(DeletePayload(seen.payload.secrets))
    if transcript.done or transcript.fault:
        return actions  # the runner exits by itself once that is acknowledged, or waits for the next job
    if seen.execution.spec.session_ref:
        if seen.frames is FrameStream.OPEN:
            actions.append(GiveUpSession("its runner did not stop an execution when asked to"))
        elif started:
            actions.append(CancelCode())
    elif seen.sandbox.pod or seen.sandbox.requested or started:
        actions.append(DeletePod())
    return actions


def without_output(status: CodeExecutionStatus) -> CodeExecutionStatus:
    """The status of an execution whose output doesn't fit into the object beside what others have put there."""

    def empty(stream: StreamStatus | None) -> StreamStatus | None:
        if stream is None:
            return None
        update: dict[str, Any] = {"text": ""}
        if not stream.referenced:
            update |= {"sha256": sha256_hex(b""), "kept_bytes": 0, "truncated": True}
        return stream.model_copy(update=update)

    note = f"{status.message}; the output was left out, because it did not fit into the object beside its metadata"
    update = {
        "stdout": empty(status.stdout),
        "stderr": empty(status.stderr),
        "output_order": (),
        "message": recordable(note),
    }
    return status.model_copy(update=update)


def moved(
    seen: Observed, now: datetime, ending: Ending, kind: ConditionType, *, holds: bool = True
) -> CodeExecutionStatus:
    """The status after this event: phase, reason, message, and a condition that says so."""
    execution = seen.execution
    move = advance(execution.status.phase, ending.event)
    facts = transition(execution, move, now, ending, kind, holds=holds)
    known = {"code_digest": execution.spec.code_digest, "summary": execution.spec.summary}
    return execution.status.model_copy(update=facts | known)
