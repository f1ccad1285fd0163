"""Who gets which pod."""

from datetime import datetime, timedelta
from typing import Final

from codeexec_api import PodLimits, Reason, Verdict
from codeexec_api.quantities import parse_quantity
from codeexec_operator.core import startup
from codeexec_operator.core.findings import Ending
from codeexec_operator.core.observed_pool import Member, ObservedPool, is_silent
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.startup import Timing

_PASSING: Final = frozenset({Reason.POD_LOST, Reason.RUNNER_FAILED, Reason.START_TIMEOUT})
_TRIES: Final = 3
"""What may pass by itself and doesn't pass for so many pods in a row will not."""


def serves(seen: ObservedPool, verdict: Verdict, limits: PodLimits) -> bool:
    """True if executions with this verdict and these limits get their pods from this pool."""
    template = template_of(seen)
    if isinstance(template, Ending) or seen.pool.spec.replicas == 0 or _is_broken(seen):
        return False
    return fits(template, verdict, limits)


def _is_broken(seen: ObservedPool) -> bool:
    """True if what is wrong will not pass by itself: whoever needs a pod has to hear of it."""
    if seen.problem is None or seen.problem.reason is Reason.QUOTA_EXCEEDED:
        return False
    lasting = seen.problem.reason not in _PASSING or seen.problems >= _TRIES
    return lasting and not any(one.ready for one in (seen.members or {}).values())


def fits(template: Template, verdict: Verdict, limits: PodLimits) -> bool:
    """True if a pod that was made so is one for an execution with this verdict and these limits."""
    if (verdict.image, verdict.runtime_class_name) != (template.image, template.runtime_class_name):
        return False
    same = all(
        parse_quantity(getattr(limits, name)) == parse_quantity(getattr(template.limits, name))
        for name in ("cpu", "memory", "ephemeral_storage")
    )
    return same and limits.pids <= template.limits.pids


def is_for_use(member: Member, seen: ObservedPool, template: Template, now: datetime, timing: Timing) -> bool:
    """True if code may be handed to this pod at this moment: it is as one would be made now, not too old, and heard."""
    if not member.ready or member.proven is None or member.template != template.digest:
        return False
    if now >= member.created_at + timedelta(seconds=seen.pool.spec.max_age_seconds):
        return False
    return not is_silent(member.sandbox.runner, now, timing) and not startup.refuses(member.proven, seen.policy)
