"""Which of the approvals that name an execution counts: one pure function, for the operator, the client and the CLI.

An approval counts if it names this very execution (its UID), was given by somebody else than who requested it, covers
exactly what is asked for, and is neither revoked nor expired. A denial counts if it names this execution and isn't
revoked; one is enough.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from codeexec_api.names import review_name
from codeexec_api.phases import Event, Reason
from codeexec_api.policy import Verdict
from codeexec_api.v1alpha1.approval import ApprovalStatus, ExecutionApproval, Grant, UnusedApproval
from codeexec_api.v1alpha1.bounds import MAX_UNUSED_APPROVALS
from codeexec_api.v1alpha1.execution import CodeExecution

OTHER_EXECUTION: Final = "OtherExecution"
SELF_APPROVAL: Final = "SelfApproval"
OTHER_GRANTS: Final = "OtherGrants"
REVOKED: Final = "Revoked"
EXPIRED: Final = "Expired"

_MESSAGE_LENGTH: Final = 1024
_SHORT: Final = 512
"""Characters that the grants may take in a question, so that what is behind them is there, too."""


@dataclass(frozen=True)
class Ruling:
    """What was decided about an execution."""

    counts: ExecutionApproval | None = None
    """The decision; None if there is none that counts."""
    unused: tuple[UnusedApproval, ...] = ()
    """Those that don't count, oldest first, and why; the newest 8."""

    @property
    def approved(self) -> bool:
        """True if the code may run."""
        return self.counts is not None and self.counts.spec.decision == "Approve"

    @property
    def denied(self) -> bool:
        """True if it may not."""
        return self.counts is not None and self.counts.spec.decision == "Deny"


def judge(
    approvals: Iterable[ExecutionApproval], execution: CodeExecution, grants: Collection[Grant], now: datetime
) -> Ruling:
    """Hold decisions against the execution that they name.

    Args:
        approvals: those whose executionRef has the name of the execution.
        execution: what they are about.
        grants: what it asks for beyond the policy.
        now: the time.
    """
    counting: list[ExecutionApproval] = []
    unused: list[UnusedApproval] = []
    for one in sorted(approvals, key=_by_age):
        if fault := _fault(one, execution, grants, now):
            reason, message = fault
            message = message[:_MESSAGE_LENGTH]
            unused.append(
                UnusedApproval(name=one.metadata.name, approver=one.spec.approver, reason=reason, message=message)
            )
        else:
            counting.append(one)
    denials = [one for one in counting if one.spec.decision == "Deny"]
    first = next(iter(denials or counting), None)
    return Ruling(first, tuple(unused[-MAX_UNUSED_APPROVALS:]))


def asking(execution: CodeExecution, grants: tuple[Grant, ...], now: datetime, until: datetime) -> ApprovalStatus:
    """What is on record of an execution that a human is asked about."""
    meta, spec = execution.metadata, execution.spec
    payload = spec.payload_ref.name if spec.payload_ref else ""
    secret = review_name(meta.name, meta.uid) if spec.sealed_payload else payload
    return ApprovalStatus(grants=grants, requested_at=now, wait_until=until, code_secret=secret)


def question(execution: CodeExecution, verdict: Verdict) -> str:
    """The same in words: what is asked for, how to approve it, and what the policy says."""
    names = ", ".join(map(str, verdict.grants))
    short = names if len(names) <= _SHORT else f"{len(verdict.grants)} things"
    meta = execution.metadata
    how = f"`kubectl codeexec approve {meta.name} -n {meta.namespace} --uid {meta.uid}`"
    return f"a human has to approve {short}: {how}. {verdict.message}"


def by_whom(decision: ApprovalStatus) -> str:
    """Who has decided, and why if they say so, behind the word for what they have decided."""
    return f"by {decision.approver}: {decision.reason}" if decision.reason else f"by {decision.approver}"


def undecided(asked: ApprovalStatus) -> str:
    """How an execution ends that nobody has decided about in time."""
    times = (asked.requested_at, asked.wait_until)
    limit = f"{(times[1] - times[0]).total_seconds():g} s" if times[0] and times[1] else "the time"
    return f"nobody approved or denied it within {limit} (approvalTimeoutSeconds of the policy). Nothing was run"


def decided(asked: ApprovalStatus, by: ExecutionApproval) -> ApprovalStatus:
    """What is on record of an execution that a human was asked about, when one has decided."""
    return asked.model_copy(
        update={
            "name": by.metadata.name,
            "uid": by.metadata.uid,
            "decision": by.spec.decision,
            "approver": by.spec.approver,
            "reason": by.spec.reason,
            "decided_at": by.metadata.creation_timestamp,
            "expires_at": by.spec.expires_at,
        }
    )


@dataclass(frozen=True)
class Lapse:
    """Why an execution that was approved ends before its code starts."""

    approval: ApprovalStatus
    """What is on record then."""
    event: Event
    reason: Reason
    message: str


def lapsed(
    approvals: Collection[ExecutionApproval], execution: CodeExecution, approval: ApprovalStatus, now: datetime
) -> Lapse | None:
    """Whether an execution that was approved may not start any more; None if it may.

    Args:
        approvals: those whose executionRef has the name of the execution.
        execution: what they are about.
        approval: what is on record of the decision.
        now: the time.
    """
    denied = judge(approvals, execution, approval.grants, now)
    if denied.denied and denied.counts:
        heard = decided(approval, denied.counts)
        message = f"denied {by_whom(heard)}. It had been approved before. Nothing was run"
        return Lapse(heard, Event.REFUSED, Reason.APPROVAL_DENIED, message)
    if approval.decision != "Approve":  # the policy was changed, and nobody had to decide any more
        return None
    named = [one for one in approvals if (one.metadata.name, one.metadata.uid) == (approval.name, approval.uid)]
    ruling = judge(named, execution, approval.grants, now)
    expired = approval.expires_at is not None and now >= approval.expires_at
    if ruling.approved and not expired:
        return None
    if ruling.approved or any(unused.reason == EXPIRED for unused in ruling.unused):
        message = f"the approval {approval.name} expired before the code could start. Nothing was run"
        return Lapse(approval, Event.EXPIRED, Reason.APPROVAL_EXPIRED, message)
    revoked = next((one.spec for one in named if one.spec.revoked), None)
    who = f"revoked by {revoked.revoked_by}" if revoked else "deleted"  # or made anew, as another one
    message = f"the approval {approval.name} of {approval.approver} was {who}. Nothing was run"
    return Lapse(approval, Event.REFUSED, Reason.APPROVAL_REVOKED, message)


def _by_age(approval: ExecutionApproval) -> tuple[str, str]:
    return (str(approval.metadata.creation_timestamp), approval.metadata.name)


def _fault(
    approval: ExecutionApproval, execution: CodeExecution, grants: Collection[Grant], now: datetime
) -> tuple[str, str] | None:
    """Why this decision doesn't count: the reason for programs, and for people."""
    spec, requested_by = approval.spec, execution.spec.requested_by
    ref = spec.execution_ref
    if ref.uid != execution.metadata.uid:
        return OTHER_EXECUTION, f"it names UID {ref.uid}, but this execution has UID {execution.metadata.uid}"
    if ref.requested_by != requested_by:
        found = f"it says that {ref.requested_by!r} requested the execution, but {requested_by or 'nobody'!r} did"
        return OTHER_EXECUTION, found
    if spec.approver == requested_by:
        return SELF_APPROVAL, f"{spec.approver!r} requested the execution, so another user has to decide"
    if spec.revoked:
        return REVOKED, f"it was revoked by {spec.revoked_by or 'somebody'!r}"
    if spec.decision == "Deny":
        return None
    if set(spec.grants or ()) != set(grants):
        named, asked = (", ".join(map(str, one)) or "nothing" for one in (spec.grants or (), grants))
        return OTHER_GRANTS, f"it approves {named}, but the execution asks for {asked}"
    if spec.expires_at is None or spec.expires_at <= now:
        return EXPIRED, f"it expired at {spec.expires_at}" if spec.expires_at else "it has no spec.expiresAt"
    return None
