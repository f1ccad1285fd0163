"""Which of the approvals that name an execution counts: one pure function, for the operator, the client and the CLI.

An approval counts if it names this very execution (its UID), was given by somebody else than who requested it, covers
exactly what is asked for, and is neither revoked nor expired. A denial counts if it names this execution and isn't
revoked; one is enough.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from codeexec_api.v1alpha1 import (
    MAX_UNUSED_APPROVALS,
    ApprovalStatus,
    CodeExecution,
    ExecutionApproval,
    Grant,
    UnusedApproval,
)

OTHER_EXECUTION: Final = "OtherExecution"
SELF_APPROVAL: Final = "SelfApproval"
OTHER_GRANTS: Final = "OtherGrants"
REVOKED: Final = "Revoked"
EXPIRED: Final = "Expired"

_MESSAGE_LENGTH: Final = 1024


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


def _by_age(approval: ExecutionApproval) -> tuple[str, str]:
    return (str(approval.metadata.creation_timestamp), approval.metadata.name)


def _fault(
    approval: ExecutionApproval, execution: CodeExecution, grants: Collection[Grant], now: datetime
) -> tuple[str, str] | None:
    """Why this decision doesn't count: the reason for programs, and for people."""
    spec, requested_by = approval.spec, execution.spec.requested_by
    ref = spec.execution_ref
    if ref.uid != execution.metadata.uid:
        return OTHER_EXECUTION, f"it names the UID {ref.uid}; that of this execution is {execution.metadata.uid}"
    if ref.requested_by != requested_by:
        found = f"it names {ref.requested_by!r} as who requested it; that is {requested_by or 'not known'!r}"
        return OTHER_EXECUTION, found
    if spec.approver == requested_by:
        return SELF_APPROVAL, f"{spec.approver!r} has requested the execution; somebody else has to decide"
    if spec.revoked:
        return REVOKED, f"{spec.revoked_by or 'somebody'!r} has revoked it"
    if spec.decision == "Deny":
        return None
    if set(spec.grants or ()) != set(grants):
        named, asked = (", ".join(map(str, one)) or "nothing" for one in (spec.grants or (), grants))
        return OTHER_GRANTS, f"it approves {named}; asked for is {asked}"
    if spec.expires_at is None or spec.expires_at <= now:
        return EXPIRED, f"it expired at {spec.expires_at}"
    return None
