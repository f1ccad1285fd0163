"""What the status of an ExecutionPolicy says of it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from codeexec_api import ConditionType, ExecutionPolicySpec, ExecutionPolicyStatus, Reason
from codeexec_api.leniency import read
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.outcome import with_condition

IN_FORCE: Final = "the policy is in force for executions that have not started"


def status_due(
    raw: Mapping[str, Any], policy: ExecutionPolicySpec | PolicyProblem, now: datetime
) -> ExecutionPolicyStatus | None:
    """What the status has to say of a policy that was read; None if it says so already.

    Args:
        raw: the ExecutionPolicy as the API server has it.
        policy: what was read of it.
        now: the time.
    """
    holds, reason, message = True, Reason.POLICY_IN_FORCE, IN_FORCE
    if isinstance(policy, PolicyProblem):
        holds, reason, message = False, Reason.POLICY_INVALID, policy.message
    meta, before = ObjectMeta.model_validate(raw["metadata"]), _before(raw)
    conditions = with_condition(before.conditions, ConditionType.READY, reason.value, message, now, meta, holds=holds)
    due = ExecutionPolicyStatus(observed_generation=meta.generation, conditions=conditions)
    return None if due == before else due


def _before(raw: Mapping[str, Any]) -> ExecutionPolicyStatus:
    """The status that there is. One that another version has written, and this one can't read, is replaced."""
    try:
        return read(ExecutionPolicyStatus, raw.get("status") or {})
    except ValidationError:
        return ExecutionPolicyStatus()
