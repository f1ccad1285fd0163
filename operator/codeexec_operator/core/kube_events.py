"""What `kubectl describe` tells of an execution or a session as Events: what somebody has to know or to do.

Nothing of the usual way: an execution that is accepted, runs and ends by itself is told of by its record alone. No
Event holds code or output, or a text that could quote them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from codeexec_api import (
    CodeExecution,
    CodeSession,
    Condition,
    ConditionType,
    EgressVerdict,
    Phase,
    Reason,
    SessionPhase,
    find_condition,
    true_condition,
)
from codeexec_api.audit import in_utc
from codeexec_api.names import API_VERSION, GROUP

_NOTE_LENGTH: Final = 1024
"""That the API server takes, in bytes."""
_REASON_LENGTH: Final = 128
_FROM_THE_CONTRACT: Final = frozenset(
    {
        Reason.POLICY_VIOLATION,
        Reason.POLICY_INVALID,
        Reason.APPROVAL_TIMEOUT,
        Reason.APPROVAL_EXPIRED,
        Reason.SESSION_NOT_FOUND,
        Reason.SESSION_MISMATCH,
        Reason.QUEUE_TIMEOUT,
        Reason.IMAGE_NOT_VERIFIED,
        Reason.IMAGE_PULL_FAILED,
        Reason.QUOTA_EXCEEDED,
        Reason.POD_REFUSED,
        Reason.RUNTIME_CLASS_NOT_FOUND,
        Reason.EGRESS_NOT_ENFORCED,
        Reason.ISOLATION_NOT_ENFORCED,
        Reason.START_TIMEOUT,
    }
)
"""Reasons whose message is made of limits, names of objects and what Kubernetes says of a pod, before any code ran."""
_LOST: Final = {
    Reason.POD_LOST.value: "its pod was deleted",
    Reason.OPERATOR_RESTARTED.value: "the operator was restarted while the code ran",
}
_NOT_STORED: Final = frozenset({Reason.FILES_NOT_STORED.value, Reason.STORE_UNAVAILABLE.value})
_PERMITTED: Final = "EgressPermitted"
_SEE: Final = "see status.message"


class Allowance:
    """How fast something may be done: a burst at once, and after that so many in each second."""

    def __init__(self, burst: int, per_second: float, now: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._left, self._since = float(burst), now

    def take(self, now: float) -> float:
        """Take one, and return in how many seconds it may be done. `now` is in seconds, on a clock that never jumps."""
        self._left = min(self._burst, self._left + (now - self._since) * self._per_second) - 1
        self._since = now
        return max(0.0, -self._left / self._per_second)


@dataclass(frozen=True)
class KubeEvent:
    """An Event, without what it is about."""

    reason: str
    note: str
    action: str
    """What was being done: Approve, Start, Run or Sleep."""
    warning: bool = True


def event_of(before: Phase | SessionPhase, record: CodeExecution | CodeSession) -> KubeEvent | None:
    """What is to be told of a status that was written; None if nothing is. `before` is the phase that it had."""
    if record.status.phase is before:
        return None
    return _of_execution(record, before) if isinstance(record, CodeExecution) else _of_session(record)


def event_of_wait(before: Sequence[Condition], record: CodeExecution | CodeSession) -> KubeEvent | None:
    """What is to be told of something that has begun to wait, or waits for another reason; `before` is what it had."""
    if awake := _stays_awake(before, record.status.conditions):
        return awake
    for kind in (ConditionType.DELAYED, ConditionType.QUEUED):
        known, new = true_condition(before, kind), true_condition(record.status.conditions, kind)
        if new and not (known and known.reason == new.reason):
            return KubeEvent(new.reason, new.message, "Start", warning=kind is ConditionType.DELAYED)
    return None


def _stays_awake(before: Sequence[Condition], after: Sequence[Condition]) -> KubeEvent | None:
    """A session that was to sleep, and can't. Why may quote names of files."""
    known, new = find_condition(before, ConditionType.ASLEEP), find_condition(after, ConditionType.ASLEEP)
    if new is None or new.reason not in _NOT_STORED or new.status == "True" or (known and known.reason == new.reason):
        return None
    note = "the session stays awake, because its files could not be stored; see the condition Asleep"
    return KubeEvent(new.reason, note, "Sleep")


def build_event(about: CodeExecution | CodeSession, what: KubeEvent, now: datetime, instance: str) -> dict[str, Any]:
    """The Event (events.k8s.io/v1) for `kubectl describe`; `instance` is the name of the operator's pod."""
    meta = about.metadata
    return {
        "metadata": {"generateName": f"{meta.name}-", "namespace": meta.namespace},
        # The client writes a time anew, and leaves out the microseconds of a whole second, which the API server wants.
        "eventTime": in_utc(now.replace(microsecond=now.microsecond or 1)),
        "reportingController": f"{GROUP}/operator",
        "reportingInstance": instance[:_REASON_LENGTH],
        "action": what.action,
        "reason": what.reason,
        "note": what.note.encode()[:_NOTE_LENGTH].decode(errors="ignore"),
        "type": "Warning" if what.warning else "Normal",
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": about.kind,
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        },
    }


def _of_execution(record: CodeExecution, before: Phase | SessionPhase) -> KubeEvent | None:
    spec, status = record.spec, record.status
    match status.phase:
        case Phase.AWAITING_APPROVAL | Phase.APPROVED:
            return _of_approval(record)
        case Phase.RUNNING:
            return _open_network(record)
        case Phase.DENIED | Phase.EXPIRED:
            return KubeEvent(status.reason, _why(record), "Start" if before is Phase.STARTING else "Accept")
        case Phase.FAILED if status.started_at is None:
            return KubeEvent(status.reason, _why(record), "Start")
        case Phase.FAILED if status.reason != Reason.NON_ZERO_EXIT.value:
            return KubeEvent(status.reason, f"the sandbox failed while the code ran; {_SEE}", "Run")
        case Phase.TIMED_OUT:
            note = f"a block ran longer than spec.timeoutSeconds ({spec.timeout_seconds} s)"
            return KubeEvent(status.reason, note, "Run")
        case Phase.OUT_OF_MEMORY:
            note = f"the code used more memory than spec.limits.memory ({spec.limits.memory})"
            return KubeEvent(status.reason, note, "Run")
        case Phase.LOST:
            return KubeEvent(status.reason, f"{_LOST.get(status.reason, _SEE)}. It is not run again", "Run")
    return None


def _of_session(record: CodeSession) -> KubeEvent | None:
    status = record.status
    match status.phase:
        case SessionPhase.READY:
            return _open_network(record)
        case SessionPhase.DENIED | SessionPhase.FAILED:
            return KubeEvent(status.reason, _why(record), "Start")
        case SessionPhase.LOST:
            return KubeEvent(status.reason, f"{_LOST.get(status.reason, _SEE)}. Its files are lost", "Run")
    return None


def _of_approval(record: CodeExecution) -> KubeEvent | None:
    approval = record.status.approval
    if approval is None:
        return None
    grants = ", ".join(map(str, approval.grants))
    reason, note = Reason.APPROVAL_REQUIRED, f"waits for approval of {grants}"
    if record.status.phase is Phase.APPROVED:
        reason, note = Reason.APPROVED, f"{approval.approver} approved {grants}"
    return KubeEvent(reason.value, note, "Approve", warning=False)


def _open_network(record: CodeExecution | CodeSession) -> KubeEvent | None:
    proof = record.status.egress_proof
    if proof is None or proof.verdict is EgressVerdict.CLOSED:
        return None
    if isinstance(record, CodeExecution) and proof.verdict is EgressVerdict.RESTRICTED:
        permitted = ", ".join(opened.permit for opened in record.status.egress or ())
        note = f"the sandbox can connect to {permitted} and to nothing else"
        return KubeEvent(_PERMITTED, note, "Start", warning=False)
    shown = f"the network of the sandbox was not shown to be closed ({proof.verdict.value})"
    return KubeEvent(Reason.EGRESS_NOT_ENFORCED.value, f"{shown}, and the policy lets code run anyway", "Start")


def _why(record: CodeExecution | CodeSession) -> str:
    """Why nothing runs."""
    status = record.status
    approval = record.status.approval if isinstance(record, CodeExecution) else None
    if approval and status.reason == Reason.APPROVAL_DENIED.value:
        return f"denied by {approval.approver}"
    if approval and status.reason == Reason.APPROVAL_REVOKED.value:
        return f"the approval of {approval.approver} was revoked"
    return status.message if status.reason in _FROM_THE_CONTRACT else f"nothing was run; {_SEE}"
