"""Executions that ask for more than the policy allows by itself: a human decides."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from codeexec_api import (
    ApprovalStatus,
    CodeExecutionStatus,
    ConditionType,
    Decision,
    Event,
    ExecutionApproval,
    ExecutionPolicySpec,
    Phase,
    Reason,
    Verdict,
    condition,
    evaluate,
    judge,
    set_condition,
)
from codeexec_api.approval import EXPIRED, decided
from codeexec_api.names import review_name
from codeexec_operator.core.actions import Action, Plan, PublishCode, ReadApprovals, ReadRequest, WithdrawCode
from codeexec_operator.core.findings import Ending
from codeexec_operator.core.observed import Observed, PolicyProblem
from codeexec_operator.core.payload import Payload, PayloadProblem
from codeexec_operator.core.record import finish, knowing, moved, with_status
from codeexec_operator.core.startup import MESSAGE_LENGTH

_SHORT: Final = 512
"""Characters that the grants may take in a message, so that what is behind them is there, too."""
_CANCELLED = Ending(Event.CANCEL, None, "cancelled before anybody decided about it")


def ask(seen: Observed, policy: ExecutionPolicySpec, verdict: Verdict, now: datetime) -> Plan:
    """Record what is to be approved. The code is let go of meanwhile."""
    until = now + timedelta(seconds=policy.approval_timeout_seconds)
    meta, ref = seen.execution.metadata, seen.execution.spec.payload_ref
    sealed = seen.execution.spec.sealed_payload is not None
    secret = review_name(meta.name, meta.uid) if sealed else ref.name if ref else ""
    asked = ApprovalStatus(grants=verdict.grants, requested_at=now, wait_until=until, code_secret=secret)
    names = ", ".join(map(str, verdict.grants))
    short = names if len(names) <= _SHORT else f"{len(verdict.grants)} things"
    how = f"`kubectl codeexec approve {meta.name} --uid {meta.uid}`"
    message = f"a human has to approve {short}: {how}. {verdict.message}"
    ending = Ending(Event.NEEDS_APPROVAL, None, message)
    status = moved(seen, now, ending, ConditionType.APPROVED, holds=False)
    return Plan(status=status.model_copy(update={"approval": asked}), actions=_publication(seen))


def _publication(seen: Observed) -> tuple[Action, ...]:
    sealed = seen.execution.spec.sealed_payload is not None
    return (PublishCode(seen.payload),) if sealed and isinstance(seen.payload, Payload) else ()


def wait_for_decision(seen: Observed, now: datetime) -> Plan:
    """Until somebody decides, or too much time has passed."""
    if seen.execution.spec.cancelled:
        plan = finish(seen, now, _CANCELLED)
    elif seen.payload is None:
        return Plan(actions=(ReadRequest(),))
    elif seen.approvals is None:
        return Plan(actions=(ReadApprovals(), *_publication(seen)))  # an operator before this one may not have done it
    elif ending := _refused(seen):
        plan = _end(seen, now, ending)
    else:
        plan = _decision(seen, seen.approvals, now)
    status = plan.status
    decided = isinstance(status, CodeExecutionStatus) and status.phase is not Phase.AWAITING_APPROVAL
    withdraw = (WithdrawCode(),) if decided and seen.execution.spec.sealed_payload else ()
    return replace(plan, actions=(*plan.actions, *withdraw))


def _refused(seen: Observed) -> Ending | None:
    """Why nobody needs to decide any more: it can't run in any case."""
    if isinstance(seen.payload, PayloadProblem):
        return Ending(Event.REFUSED, seen.payload.reason, seen.payload.message)
    if isinstance(seen.policy, PolicyProblem):
        return Ending(Event.REFUSED, Reason.POLICY_INVALID, seen.policy.message)
    verdict = evaluate(seen.execution.spec, seen.policy)
    if verdict.decision is Decision.DENIED:
        return Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message)
    return None


def _decision(seen: Observed, approvals: Sequence[ExecutionApproval], now: datetime) -> Plan:
    before = seen.execution.status.approval or ApprovalStatus()
    grants = () if isinstance(seen.policy, PolicyProblem) else evaluate(seen.execution.spec, seen.policy).grants
    ruling = judge(approvals, seen.execution, grants, now)
    known = before.model_copy(update={"grants": grants, "unused": ruling.unused})
    if seen.code_unreadable:
        known = known.model_copy(update={"code_secret": ""})
    if not grants and not ruling.denied:
        message = "the policy was changed meanwhile, and allows it now"
        return _approve(_knowing(seen, known), now, Ending(Event.APPROVED, Reason.APPROVAL_NOT_NEEDED, message))
    if ruling.counts:
        known = decided(known, ruling.counts)
        message = f"by {known.approver}{_because(known)}"
        if ruling.approved:
            return _approve(_knowing(seen, known), now, Ending(Event.APPROVED, None, f"approved {message}"))
        denied = Ending(Event.REFUSED, Reason.APPROVAL_DENIED, f"denied {message}. Nothing was run")
        return _end(_knowing(seen, known), now, denied)
    if before.wait_until is None or now >= before.wait_until:
        message = "nobody decided in time (approvalTimeoutSeconds of the policy). Nothing was run"
        return _end(_knowing(seen, known), now, Ending(Event.EXPIRED, Reason.APPROVAL_TIMEOUT, message))
    if known != before:
        return Plan(status=_knowing(seen, known).execution.status)
    return Plan(wake_at=before.wait_until)


def lapse(seen: Observed, now: datetime) -> Plan | None:
    """What to do if the approval doesn't count any more, or isn't known, and the code has not started yet."""
    approval = seen.execution.status.approval
    if approval is None:
        return None
    if seen.approvals is None:
        return Plan(actions=(ReadApprovals(),))
    denied = judge(seen.approvals, seen.execution, approval.grants, now)
    if denied.denied and denied.counts:
        heard = decided(approval, denied.counts)
        message = f"denied by {heard.approver}{_because(heard)}, after it was approved. Nothing was run"
        return _end(_knowing(seen, heard), now, Ending(Event.REFUSED, Reason.APPROVAL_DENIED, message))
    if approval.decision != "Approve":  # the policy was changed, and nobody had to decide any more
        return None
    named = [one for one in seen.approvals if (one.metadata.name, one.metadata.uid) == (approval.name, approval.uid)]
    ruling = judge(named, seen.execution, approval.grants, now)
    expired = approval.expires_at is not None and now >= approval.expires_at
    if ruling.approved and not expired:
        return None
    if ruling.approved or any(one.reason == EXPIRED for one in ruling.unused):
        message = f"the approval {approval.name} expired before the code could start. Nothing was run"
        return _end(seen, now, Ending(Event.EXPIRED, Reason.APPROVAL_EXPIRED, message))
    revoked = next((one.spec for one in named if one.spec.revoked), None)
    who = f"revoked by {revoked.revoked_by}" if revoked else "deleted"  # or made anew, as another one
    message = f"the approval {approval.name} of {approval.approver} was {who}. Nothing was run"
    return _end(seen, now, Ending(Event.REFUSED, Reason.APPROVAL_REVOKED, message))


def awake_at_expiry(seen: Observed, plan: Plan) -> Plan:
    """The same plan, but it is looked again when the approval expires."""
    approval = seen.execution.status.approval
    if approval is None or approval.expires_at is None:
        return plan
    return replace(plan, wake_at=min(plan.wake_at or approval.expires_at, approval.expires_at))


def permits(seen: Observed, verdict: Verdict) -> bool:
    """True if the policy, or the policy and the approval together, let it run."""
    approval = seen.execution.status.approval
    granted = approval.grants if approval and approval.decision == "Approve" else ()
    return verdict.decision is not Decision.DENIED and set(verdict.grants) <= set(granted)


def _because(approval: ApprovalStatus) -> str:
    return f": {approval.reason}" if approval.reason else ""


def _knowing(seen: Observed, approval: ApprovalStatus) -> Observed:
    return knowing(seen, {"approval": approval})


def _approve(seen: Observed, now: datetime, ending: Ending) -> Plan:
    return Plan(status=moved(seen, now, ending, ConditionType.APPROVED))


def _end(seen: Observed, now: datetime, ending: Ending) -> Plan:
    """End without having run anything; the condition says that it isn't approved."""
    status = seen.execution.status
    refused = condition(
        ConditionType.APPROVED,
        holds=False,
        reason=(ending.reason or Reason.APPROVAL_DENIED).value,
        message=ending.message[:MESSAGE_LENGTH],
        now=now,
        generation=seen.execution.metadata.generation,
    )
    conditions = set_condition(status.conditions, refused)
    return finish(with_status(seen, status.model_copy(update={"conditions": conditions})), now, ending)
