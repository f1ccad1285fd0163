"""Pods of pools that are used more than once: whose they are, who gets one, and which are given up.

Off unless the policy says otherwise. A pod goes from one execution to the next of the same tenant only, never to two
at a time, and only after its runner has shown that nothing of the one before is left. `placement.assign_kept` gives
them to executions, and `adapters/kept_pods.py` holds them.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from codeexec_api import CodeExecution, ExecutionPolicySpec, PodLimits, Reason, Verdict
from codeexec_api.quantities import parse_quantity
from codeexec_operator.core import startup
from codeexec_operator.core.actions import DropMember
from codeexec_operator.core.observed_pool import ObservedPool, Tenant
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.pod_template import Template
from codeexec_operator.core.timing import Timing

_ORDINARY_ENDS: Final = (Reason.COMPLETED.value, Reason.NON_ZERO_EXIT.value)


def tenant_of(execution: CodeExecution, asked: Verdict | None) -> Tenant | None:
    """Whose a pod would be that this execution has used; None if nobody may have it after that."""
    spec = execution.spec
    special = spec.session_ref or spec.egress or spec.mounts or execution.status.approval
    if asked is None or special or not spec.requested_by:
        return None
    return Tenant(spec.requested_by, spec.source.agent, asked.image, asked.runtime_class_name, _limits(spec.limits))


def _limits(limits: PodLimits) -> tuple[Decimal, Decimal, Decimal, int]:
    cpu, memory, disk = (parse_quantity(one) for one in (limits.cpu, limits.memory, limits.ephemeral_storage))
    return cpu, memory, disk, limits.pids


def most_uses(seen: ObservedPool) -> int:
    """How many executions a pod may have, as the policy is now."""
    return seen.policy.pod_reuse.max_executions if isinstance(seen.policy, ExecutionPolicySpec) else 1


def may_follow(seen: ObservedPool, uses: int, execution: CodeExecution) -> bool:
    """True if a pod that has had so many executions may be cleaned and kept after this one, which has just ended."""
    return uses < most_uses(seen) and execution.status.reason in _ORDINARY_ENDS


def give_up(
    seen: ObservedPool, template: Template | Ending, spare: int, now: datetime, timing: Timing
) -> tuple[dict[str, DropMember], list[datetime]]:
    """Kept pods that are of no use any more, by name, and when to look again at the others.

    The pool lacks `spare` pods. More aren't kept, so it never has more than it should that are ready or kept.
    """
    dropped: dict[str, DropMember] = {}
    wakes: list[datetime] = []
    for name, one in seen.kept.items():
        until = min(one.until(timing), one.member.created_at + timedelta(seconds=seen.pool.spec.max_age_seconds))
        made_otherwise = isinstance(template, Ending) or one.member.template != template.digest
        soiled = one.answered and not one.clean
        worn = one.uses >= most_uses(seen)
        open_now = one.member.proven and startup.refuses(one.member.proven, seen.policy)
        if made_otherwise or soiled or worn or open_now or now >= until or not one.member.ready:
            dropped[name] = DropMember(name)
        else:
            wakes.append(until)
    staying = [name for name in seen.kept if name not in dropped]  # the first has waited longest
    return dropped | {name: DropMember(name) for name in staying[: max(0, len(staying) - spare)]}, wakes
