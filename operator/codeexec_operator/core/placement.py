"""Who gets which pod: the order of a queue, the pool that is asked, the pod that is handed out, and whose turn it is.

`adapters/placement.py`, `pools.py` and `sessions.py` carry out what is decided here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

from codeexec_api import CodeExecution, Phase, PodLimits, Reason, Verdict
from codeexec_api.quantities import parse_quantity
from codeexec_operator.core import startup
from codeexec_operator.core.observed import ObservedSession
from codeexec_operator.core.observed_pod import Sandbox, is_usable
from codeexec_operator.core.observed_pool import KeptPod, Member, ObservedPool, Tenant, is_silent
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.reuse import most_uses
from codeexec_operator.core.timing import Timing

_PASSING: Final = frozenset({Reason.POD_LOST, Reason.RUNNER_FAILED, Reason.START_TIMEOUT})
_TRIES: Final = 3
"""What may pass by itself and doesn't pass for so many pods in a row will not."""


@dataclass(frozen=True)
class Claim:
    """What the place of an execution depends on."""

    uid: str
    created: datetime
    """By the API server's clock."""
    started: bool
    """True if its record says that its code was started."""
    asked: Verdict | None
    """What a pod of a pool has to be made of; None if none was asked for."""
    limits: PodLimits
    stateful: bool = False
    """True for a session that keeps Python variables."""
    tenant: Tenant | None = None
    """Whose a pod is that it has used; None if nobody gets that pod afterwards."""


class Claimant(Protocol):
    """Stands for an execution in a queue."""

    wake: Callable[[], None]
    """Called when its place has changed."""

    @property
    def claim(self) -> Claim:
        """As it is now."""


_Claimant = TypeVar("_Claimant", bound=Claimant)


# --- queues ---


def rank(claimant: Claimant) -> tuple[bool, datetime]:
    """What decides who is first in line: who has started, then who was created first.

    An operator that has just started doesn't hear of executions in the order in which they were created. In a session,
    whoever was let in is before all of these: see `Line.let_in`.
    """
    return not claimant.claim.started, claimant.claim.created


def has_turn(first: Claimant, session: ObservedSession, sandbox: Sandbox) -> bool:
    """True if the code of the first in line may be handed to the session: it goes on, and has nothing else to do.

    What was handed to its runner before has to be over, also if nobody wants it any more: time would pass meanwhile.
    """
    storing = session.storing is not None and not session.storing.problem  # a copy would be older than the code
    if session.unresponsive or session.ending or session.unsure or storing or startup.was_taken(sandbox):
        return False
    ready = sandbox.runner.ready
    return ready is None or {ready.job or "", sandbox.runner.handed} <= {"", first.claim.uid}


# --- pools ---


def serves(seen: ObservedPool, verdict: Verdict, limits: PodLimits, *, stateful: bool = False) -> bool:
    """True if executions, or stateful sessions, with this verdict and these limits get their pods from this pool."""
    template = template_of(seen)
    if isinstance(template, Ending) or seen.pool.spec.replicas == 0 or is_broken(seen):
        return False
    return fits(template, verdict, limits, stateful=stateful)


def is_broken(seen: ObservedPool) -> bool:
    """True if what is wrong will not pass by itself: whoever needs a pod has to hear of it."""
    if seen.problem is None or seen.problem.reason is Reason.QUOTA_EXCEEDED:
        return False
    lasting = seen.problem.reason not in _PASSING or seen.problems >= _TRIES
    return lasting and not any(one.ready for one in (seen.members or {}).values())


def fits(template: Template, verdict: Verdict, limits: PodLimits, *, stateful: bool) -> bool:
    """True if a pod that was made so is one for an execution, or a stateful session, with this verdict and limits.

    A kernel that stands by was started under the limits of the pool. So it takes the same number of processes.
    """
    if (verdict.image, verdict.runtime_class_name) != (template.image, template.runtime_class_name):
        return False
    same = all(
        parse_quantity(getattr(limits, name)) == parse_quantity(getattr(template.limits, name))
        for name in ("cpu", "memory", "ephemeral_storage")
    )
    if template.stateful:
        return stateful and same and limits.pids == template.limits.pids
    return same and limits.pids <= template.limits.pids


def _is_for(claim: Claim, template: Template) -> bool:
    return claim.asked is not None and fits(template, claim.asked, claim.limits, stateful=claim.stateful)


def assign(
    queue: Iterable[_Claimant],
    admitted: Iterable[tuple[str, Member]],
    template: Template,
    seen: ObservedPool,
    now: datetime,
    timing: Timing,
) -> list[tuple[_Claimant, str]]:
    """Who gets which pod: the pod that was admitted first goes to the first in line that it is for."""
    takers = (one for one in queue if _is_for(one.claim, template))
    ready = (name for name, member in admitted if is_for_use(member, seen, template, now, timing))
    return [(taker, name) for name, taker in zip(ready, takers, strict=False)]  # no pod: nobody is looked at


def assign_kept(
    queue: Iterable[_Claimant],
    kept: Mapping[str, KeptPod],
    template: Template,
    seen: ObservedPool,
    now: datetime,
    timing: Timing,
) -> list[tuple[_Claimant, str]]:
    """Who gets which pod again. The checks are those of a pod that was never used, and more."""
    free = {name: one for name, one in kept.items() if _is_free(one, seen, template, now, timing)}
    given: list[tuple[_Claimant, str]] = []
    for taker in queue:
        if not free:
            break
        claim = taker.claim
        its = (name for name, one in free.items() if one.tenant == claim.tenant and _is_for(claim, template))
        if name := next(its, None):
            del free[name]
            given.append((taker, name))
    return given


def _is_free(kept: KeptPod, seen: ObservedPool, template: Template, now: datetime, timing: Timing) -> bool:
    if not kept.clean or kept.uses >= most_uses(seen) or now >= kept.until(timing):
        return False
    return is_for_use(kept.member, seen, template, now, timing)


def is_for_use(member: Member, seen: ObservedPool, template: Template, now: datetime, timing: Timing) -> bool:
    """True if code may be handed to this pod at this moment: it is as one would be made now, not too old, and heard."""
    if not member.ready or member.proven is None or member.template != template.digest:
        return False
    if now >= member.created_at + timedelta(seconds=seen.pool.spec.max_age_seconds):
        return False
    return not is_silent(member.sandbox.runner, now, timing) and not startup.refuses(member.proven, seen.policy)


# --- an execution ---


class Step(Enum):
    """What an execution has to change about its place, before it is decided what else is to be done."""

    JOIN_SESSION = auto()
    LEAVE_SESSION = auto()
    """Others go first: it may never run."""
    RETURN_POD = auto()
    """It was lost before any code was in it. The execution gets in line again."""
    LEAVE_POOL = auto()
    """It has no pods for this execution any more."""


def next_step(execution: CodeExecution, *, session: bool, pool: bool, served: bool, pod: Sandbox | None) -> Step | None:
    """What to change about the place of an execution, if anything.

    It is in line of its `session`; it has asked a `pool`, which has pods for it (`served`), and has given it `pod`.
    """
    phase = execution.status.phase
    if phase.terminal:
        return None
    if execution.spec.session_ref:
        if phase is Phase.AWAITING_APPROVAL:
            return Step.LEAVE_SESSION if session else None
        return None if session else Step.JOIN_SESSION
    if not pool or execution.status.started_at:
        return None
    if pod:
        return None if is_usable(pod) else Step.RETURN_POD
    return None if served else Step.LEAVE_POOL
