"""Executions that ask for more than the policy allows by itself: a human decides."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

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
    evaluate,
    judge,
)
from codeexec_api.approval import asking, by_whom, decided, lapsed, question, undecided
from codeexec_api.code_rules import find, unread
from codeexec_api.policy import policy_for, without_code_rules
from codeexec_operator.core.actions import Action, Plan, PublishCode, ReadApprovals, ReadRequest, WithdrawCode
from codeexec_operator.core.observed import Observed, PolicyProblem
from codeexec_operator.core.outcome import Ending, with_condition
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.record import finish, knowing, moved, with_status

_CANCELLED = Ending(Event.CANCEL, None, "cancelled while it waited for approval")


def ask(seen: Observed, verdict: Verdict, now: datetime) -> Plan:
    """Record what is to be approved. The code is let go of meanwhile."""
    patience = 0 if isinstance(seen.policy, PolicyProblem) else seen.policy.approval_timeout_seconds
    until = now + timedelta(seconds=patience)
    asked = asking(seen.execution, verdict.grants, now, until)
    ending = Ending(Event.NEEDS_APPROVAL, None, question(seen.execution, verdict))
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
    elif isinstance(seen.payload, PayloadProblem):
        plan = _end(seen, now, Ending(Event.REFUSED, seen.payload.reason, seen.payload.message))
    elif isinstance(verdict := consult(seen), Ending):
        plan = _end(seen, now, verdict)
    else:
        plan = _decision(seen, verdict, seen.approvals, now)
    status = plan.status
    decided = isinstance(status, CodeExecutionStatus) and status.phase is not Phase.AWAITING_APPROVAL
    withdraw = (WithdrawCode(),) if decided and seen.execution.spec.sealed_payload else ()
    return replace(plan, actions=(*plan.actions, *withdraw))


def consult(seen: Observed) -> Verdict | Ending:
    """What the policy says now; an end if it is not valid, or denies what nobody can approve."""
    if isinstance(seen.policy, PolicyProblem):
        return Ending(Event.REFUSED, Reason.POLICY_INVALID, seen.policy.message)
    # A payload that is none ends the execution by itself, so nothing is said of its code.
    policy = without_code_rules(seen.policy) if isinstance(seen.payload, PayloadProblem) else seen.policy
    verdict = evaluate(seen.execution.spec, policy, seen.reading, source=seen.policy_source)
    if verdict.decision is Decision.DENIED:
        return Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message)
    return verdict


def look_at_code(seen: Observed) -> Observed | Plan:
    """The same, with what rules for code have found in the record; or how to find that out.

    Rules may come, or list more, while an execution waits. Then its code is read again, and looked at.
    """
    if isinstance(seen.policy, PolicyProblem) or not isinstance(seen.payload, Payload | HeldPayload):
        return seen
    spec = seen.execution.spec
    if to_be_read(seen, seen.policy):
        return Plan(actions=(ReadRequest(),))
    rules = policy_for(spec, seen.policy).code_rules
    if unread(spec, rules, seen.reading):  # and it will not run in any case
        return replace(seen, policy=without_code_rules(seen.policy))
    return knowing(seen, {"code_findings": find(spec, rules, seen.reading)})


def to_be_read(seen: Observed, policy: ExecutionPolicySpec | PolicyProblem) -> bool:
    """True if rules for code ask for its code, of which too little is known, and it may run but for them."""
    spec = seen.execution.spec
    if isinstance(policy, PolicyProblem) or spec.cancelled:
        return False
    if not unread(spec, policy_for(spec, policy).code_rules, seen.reading):
        return False
    return evaluate(spec, without_code_rules(policy)).decision is not Decision.DENIED


def _decision(seen: Observed, verdict: Verdict, approvals: Sequence[ExecutionApproval], now: datetime) -> Plan:
    before, grants = seen.execution.status.approval or ApprovalStatus(), verdict.grants
    ruling = judge(approvals, seen.execution, grants, now)
    known = before.model_copy(update={"grants": grants, "unused": ruling.unused})
    if seen.code_unreadable:
        known = known.model_copy(update={"code_secret": ""})
    if not grants and not ruling.denied:
        message = "the policy was changed and now allows it without approval"
        return _approve(_knowing(seen, known), now, Ending(Event.APPROVED, Reason.APPROVAL_NOT_NEEDED, message))
    if ruling.counts:
        known = decided(known, ruling.counts)
        if ruling.approved:
            return _approve(_knowing(seen, known), now, Ending(Event.APPROVED, None, f"approved {by_whom(known)}"))
        denied = Ending(Event.REFUSED, Reason.APPROVAL_DENIED, f"denied {by_whom(known)}. Nothing was run")
        return _end(_knowing(seen, known), now, denied)
    if before.wait_until is None or now >= before.wait_until:
        message = undecided(before)
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
    found = lapsed_approval(seen, approval, seen.approvals, now)
    return _end(_knowing(seen, found[0]), now, found[1]) if found else None


def lapsed_approval(
    seen: Observed, approval: ApprovalStatus, approvals: Sequence[ExecutionApproval], now: datetime
) -> tuple[ApprovalStatus, Ending] | None:
    """Why the approval doesn't count any more, with what the record says of it then; None if it counts."""
    found = lapsed(approvals, seen.execution, approval, now)
    return (found.approval, Ending(found.event, found.reason, found.message)) if found else None


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


def _knowing(seen: Observed, approval: ApprovalStatus) -> Observed:
    return knowing(seen, {"approval": approval})


def _approve(seen: Observed, now: datetime, ending: Ending) -> Plan:
    return Plan(status=moved(seen, now, ending, ConditionType.APPROVED))


def _end(seen: Observed, now: datetime, ending: Ending) -> Plan:
    """End without having run anything; the condition says that it isn't approved."""
    status = seen.execution.status
    reason, meta = (ending.reason or Reason.APPROVAL_DENIED).value, seen.execution.metadata
    conditions = with_condition(status.conditions, ConditionType.APPROVED, reason, ending.message, now, meta)
    return finish(with_status(seen, status.model_copy(update={"conditions": conditions})), now, ending)
