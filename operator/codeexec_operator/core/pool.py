"""The decision about one pool: which pods to make, to ask, to let in and to give up.

A pod's name is known before it is asked for, and it counts from then on, so that what the API server has not told yet
is never made twice. What is decided here is carried out by `adapters/pools.py`, which also hands pods out.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import (
    Condition,
    ConditionType,
    Event,
    ExecutionPolicySpec,
    PodLimits,
    Reason,
    SandboxPool,
    SandboxPoolStatus,
    Verdict,
    condition,
    evaluate,
    set_condition,
)
from codeexec_api.names import POOL_LABEL, TEMPLATE_LABEL
from codeexec_api.quantities import parse_quantity
from codeexec_operator.core import startup
from codeexec_operator.core.actions import (
    Action,
    AdmitMember,
    AttachMember,
    CreateMember,
    DropMember,
    PingMember,
    Plan,
    ReadPool,
)
from codeexec_operator.core.findings import Ending, Proven
from codeexec_operator.core.image_trust import unverified
from codeexec_operator.core.isolation import unobtainable
from codeexec_operator.core.observed import PodLink, PolicyProblem, RunnerView, Sandbox
from codeexec_operator.core.startup import MESSAGE_LENGTH, Timing
from codeexec_operator.core.surroundings import Surroundings
from codeexec_operator.manifests.pod import build_pool_pod

MAX_RUN_SECONDS: Final = 86_400
"""How long code may run in a pod of a pool. The deadline of one that waits leaves room for it; it is lowered later."""


@dataclass(frozen=True)
class Member:
    """A pod of the pool that nobody has taken."""

    created_at: datetime
    template: str
    """Digest of what it was made of."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    proven: Proven | None = None
    """What was shown when it was admitted."""
    since: datetime | None = None
    """When this process found it; None if this process has made it."""

    @property
    def starting(self) -> bool:
        """True while it takes the time of a node: not when it is ready, nor while no node has room for it."""
        return self.proven is None and not (self.sandbox.pod and self.sandbox.pod.unschedulable)

    @property
    def ready(self) -> bool:
        """True if it can be handed out at this moment."""
        return self.proven is not None and is_usable(self.sandbox)


def is_usable(sandbox: Sandbox) -> bool:
    """True if code can be handed to this pod at this moment."""
    pod, runner = sandbox.pod, sandbox.runner
    here = pod is not None and pod.running and not pod.unwell and not sandbox.gone
    return here and runner.link is PodLink.OPEN and runner.ready is not None and not runner.problem


@dataclass(frozen=True)
class ObservedPool:
    """Everything known about one pool at one moment."""

    pool: SandboxPool
    policy: ExecutionPolicySpec | PolicyProblem | None = None
    """None: not read yet."""
    policy_source: str = ""
    """Where the policy is kept, for messages."""
    surroundings: Surroundings = field(default_factory=Surroundings)
    members: Mapping[str, Member] | None = None
    """By name; None: not listed yet."""
    claimed: int = 0
    queued: int = 0
    allowance: int = 0
    """How many more may be starting, so that all namespaces get their share of what the nodes can start."""
    names: tuple[str, ...] = ()
    """Names for new pods."""
    last_claim_at: datetime | None = None
    last_refill_ms: int | None = None
    problem: Ending | None = None
    """Why the last pod that was given up was no good; gone as soon as one is."""
    problem_at: datetime | None = None
    problems: int = 0
    """How many there were in a row."""


@dataclass(frozen=True)
class Template:
    """What pods of the pool are made of at the moment."""

    image: str
    runtime_class_name: str | None
    limits: PodLimits
    user_namespace: bool

    @property
    def digest(self) -> str:
        """Changes when anything does that a pod can't change any more."""
        parts = [self.image, self.runtime_class_name, self.limits.dump(), self.user_namespace]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def template_of(seen: ObservedPool) -> Template | Ending:
    """What pods are to be made of now, or why there must be none."""
    if seen.policy is None or isinstance(seen.policy, PolicyProblem):
        message = seen.policy.message if seen.policy else "the policy has not been read yet"
        return Ending(Event.REFUSED, Reason.POLICY_INVALID, message)
    verdict = evaluate(seen.pool.spec, seen.policy, source=seen.policy_source)
    if not verdict.allowed:
        return Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message)
    if ending := unobtainable(seen.policy, seen.surroundings, verdict.runtime_class_name):
        return ending
    if ending := unverified(verdict.image, seen.policy, seen.surroundings.image_keys, seen.policy_source):
        return ending
    return Template(
        verdict.image,
        verdict.runtime_class_name,
        seen.pool.spec.limits,
        seen.surroundings.user_namespace(verdict.runtime_class_name),
    )


def serves(seen: ObservedPool, verdict: Verdict, limits: PodLimits) -> bool:
    """True if executions with this verdict and these limits get their pods from this pool."""
    template = template_of(seen)
    if isinstance(template, Ending) or seen.pool.spec.replicas == 0 or is_broken(seen):
        return False
    return fits(template, verdict, limits)


def fits(template: Template, verdict: Verdict, limits: PodLimits) -> bool:
    """True if a pod that was made so is one for an execution with this verdict and these limits."""
    if (verdict.image, verdict.runtime_class_name) != (template.image, template.runtime_class_name):
        return False
    same = all(
        parse_quantity(getattr(limits, name)) == parse_quantity(getattr(template.limits, name))
        for name in ("cpu", "memory", "ephemeral_storage")
    )
    return same and limits.pids <= template.limits.pids


_PASSING: Final = frozenset({Reason.POD_LOST, Reason.RUNNER_FAILED, Reason.START_TIMEOUT})
_TRIES: Final = 3
"""What may pass by itself and doesn't pass for so many pods in a row will not."""


def is_broken(seen: ObservedPool) -> bool:
    """True if what is wrong will not pass by itself: whoever needs a pod has to hear of it."""
    if seen.problem is None or seen.problem.reason is Reason.QUOTA_EXCEEDED:
        return False
    lasting = seen.problem.reason not in _PASSING or seen.problems >= _TRIES
    return lasting and not any(one.ready for one in (seen.members or {}).values())


def trouble_of(seen: ObservedPool) -> str:
    """Why pods of the pool don't become ready; empty if nothing is known to be wrong."""
    if seen.problem:
        return seen.problem.message
    placeless = [pod.unschedulable for one in (seen.members or {}).values() if (pod := one.sandbox.pod)]
    blocked = [words for words in placeless if words]
    return f"the scheduler found no node for {pods(len(blocked))}: {blocked[0]}" if blocked else ""


def pods(count: int) -> str:
    """So many pods, in words."""
    return f"{count} pod" if count == 1 else f"{count} pods"


def can_start(seen: ObservedPool, now: datetime, timing: Timing) -> bool:
    """True if the pool would start pods now, if it may."""
    wanted = isinstance(template_of(seen), Template) and seen.pool.spec.replicas > 0
    return wanted and (seen.problem_at is None or now >= _try_again_at(seen, seen.problem_at, timing))


def is_for_use(member: Member, seen: ObservedPool, template: Template, now: datetime, timing: Timing) -> bool:
    """True if code may be handed to this pod at this moment: it is as one would be made now, not too old, and heard."""
    if not member.ready or member.proven is None or member.template != template.digest:
        return False
    if now >= member.created_at + timedelta(seconds=seen.pool.spec.max_age_seconds):
        return False
    return not is_silent(member.sandbox.runner, now, timing) and not startup.refuses(member.proven, seen.policy)


def is_silent(runner: RunnerView, now: datetime, timing: Timing) -> bool:
    """True if it was asked whether it is still there and has not answered in time."""
    asked_at = runner.pinged_at if _is_asked(runner) else None
    return asked_at is not None and now >= asked_at + timedelta(seconds=timing.ping_answer)


def decide_pool(seen: ObservedPool, now: datetime, timing: Timing) -> Plan:
    """What to do about one pool. Pure: same observation, same time, same plan."""
    if seen.members is None or seen.policy is None:
        return Plan(actions=(ReadPool(),))
    template = template_of(seen)
    acts: list[Action] = []
    wakes: list[datetime] = []
    kept: dict[str, Member] = {}
    silent_since = _silent_since(seen.members, now, timing)
    for name, member in sorted(seen.members.items(), key=lambda one: one[1].created_at):
        looked = _look_at(name, member, seen, template, silent_since, now, timing)
        if isinstance(looked, DropMember):
            acts.append(looked)
            continue
        action, wake_at = looked
        kept[name] = member
        acts += [action] if action else []
        wakes.append(wake_at)
    used = isinstance(template, Template) and seen.pool.spec.replicas > 0
    wanted = seen.pool.spec.replicas + seen.queued if used else 0
    for name in _surplus(kept, wanted):
        acts = [action for action in acts if not _concerns(action, name)]
        acts.append(DropMember(name))
        del kept[name]
    missing = wanted - len(kept)
    if missing > 0 and isinstance(template, Template):
        create_at = _create_at(seen, kept, now, timing)
        if now < create_at:
            wakes.append(create_at)
        else:
            new = seen.names[: min(missing, max(0, seen.allowance))]
            if len(new) < missing:  # others start, and it may be this one's turn though none of them has ended
                wakes.append(now + timedelta(seconds=timing.start_turn))
            acts += [CreateMember(name, _manifest(name, seen, template, now)) for name in new]
    status = _status(seen, kept, template, now)
    return Plan(
        status=status if status != seen.pool.status else None,
        actions=tuple(acts),
        wake_at=min(wakes) if wakes else None,
    )


def _concerns(action: Action, name: str) -> bool:
    return isinstance(action, AttachMember | AdmitMember | PingMember) and action.name == name


def _look_at(
    name: str,
    member: Member,
    seen: ObservedPool,
    template: Template | Ending,
    silent_since: datetime | None,
    now: datetime,
    timing: Timing,
) -> DropMember | tuple[Action | None, datetime]:
    """That it is given up, or what to do about it and when to look again."""
    stale = isinstance(template, Ending) or member.template != template.digest
    old_at = member.created_at + timedelta(seconds=seen.pool.spec.max_age_seconds)
    if stale or now >= old_at:
        return DropMember(name)
    sandbox = member.sandbox
    # What was let in under a policy that only warns is no good under one that enforces.
    refused = member.proven and startup.refuses(member.proven, seen.policy)
    refused_since = sandbox.runner.refused_since
    lost = refused_since and now >= refused_since + timedelta(seconds=timing.unreachable)
    if refused or lost or (sandbox.pod and sandbox.pod.unwell):  # what is no fault of the pool is no problem of it
        return DropMember(name)
    if ending := startup.failure(sandbox):
        return DropMember(name, ending)
    give_up_at = _give_up_at(member, timing)
    late = give_up_at is not None and now >= give_up_at
    connected = startup.connect(sandbox, now, timing, give_up_at, seen.surroundings)
    if late and isinstance(connected, Plan):
        return DropMember(name, replace(startup.late(sandbox, timing), reason=Reason.START_TIMEOUT))
    if isinstance(connected, Plan):
        act = AttachMember(name) if connected.actions else None
        return act, min(connected.wake_at or old_at, old_at)
    if connected[1].used:  # by an execution that is gone
        return DropMember(name)
    if member.proven:
        return _ping(name, sandbox.runner, silent_since, now, timing, old_at)
    proven = startup.prove(*connected, seen.surroundings, now, seen.pool.metadata.generation)
    if startup.undecided(proven, seen.policy) and not late:
        return None, min(now + timedelta(seconds=timing.proof_retry), give_up_at or old_at, old_at)
    if ending := startup.refuses(proven, seen.policy):
        return DropMember(name, ending)
    return AdmitMember(name, proven), old_at


def _silent_since(members: Mapping[str, Member], now: datetime, timing: Timing) -> datetime | None:
    """Who has said nothing since then is asked, now that somebody has to be: all together, not one after the other."""
    waiting = [one for one in members.values() if one.proven]
    heard = [one.sandbox.runner.heard_at for one in waiting if not _is_asked(one.sandbox.runner)]
    due = any(at and now >= at + timedelta(seconds=timing.ping_every) for at in heard)
    return now - timedelta(seconds=timing.ping_every / 2) if due else None


def _is_asked(runner: RunnerView) -> bool:
    return runner.pinged_at is not None and (runner.heard_at is None or runner.pinged_at > runner.heard_at)


def _ping(
    name: str, runner: RunnerView, silent_since: datetime | None, now: datetime, timing: Timing, old_at: datetime
) -> DropMember | tuple[Action | None, datetime]:
    """See to it that a pod that waits is still there: a node that is lost doesn't close connections."""
    heard_at = runner.heard_at or now
    if runner.pinged_at and _is_asked(runner):
        lost_at = runner.pinged_at + timedelta(seconds=timing.ping_answer)
        return DropMember(name) if now >= lost_at else (None, min(lost_at, old_at))
    ping_at = heard_at + timedelta(seconds=timing.ping_every)
    ask = silent_since is not None and heard_at <= silent_since
    return (PingMember(name) if ask else None), min(ping_at, old_at)


def _give_up_at(member: Member, timing: Timing) -> datetime | None:
    """Until when a pod has to be ready, from when a node has it. One that no node has room for may wait."""
    pod = member.sandbox.pod
    if member.proven or (pod and not pod.node_name):
        return None
    begun = (pod.started_at or pod.scheduled_at) if pod else None
    return max(begun or member.created_at, member.since or member.created_at) + timedelta(seconds=timing.start_timeout)


def _surplus(members: Mapping[str, Member], wanted: int) -> list[str]:
    """Names of pods that are too many: first those that are not ready, then the youngest."""
    by_use = sorted(members, key=lambda name: (members[name].ready, -members[name].created_at.timestamp()))
    return by_use[: max(0, len(members) - wanted)]


def _create_at(seen: ObservedPool, members: Mapping[str, Member], now: datetime, timing: Timing) -> datetime:
    """When to make what is missing: at once if it is needed, else not beside the code that runs at this moment."""
    if seen.problem_at:
        return _try_again_at(seen, seen.problem_at, timing)
    ready = sum(one.ready for one in members.values())
    if seen.queued or seen.last_claim_at is None:
        return now
    low = 2 * ready < seen.pool.spec.replicas
    return seen.last_claim_at + timedelta(seconds=timing.low_refill_pause if low else timing.refill_pause)


def _try_again_at(seen: ObservedPool, problem_at: datetime, timing: Timing) -> datetime:
    # Room in a quota comes back as soon as something ends.
    room = seen.problem is not None and seen.problem.reason is Reason.QUOTA_EXCEEDED
    doubled = min(seen.problems - 1, 2) if room else seen.problems - 1
    pause = min(timing.pool_pause * 2 ** max(0, doubled), timing.pool_longest_pause)
    return problem_at + timedelta(seconds=pause)


def _manifest(name: str, seen: ObservedPool, template: Template, now: datetime) -> dict[str, Any]:
    return build_pool_pod(
        seen.pool,
        name=name,
        template=template.digest,
        image=template.image,
        deadline_seconds=seen.pool.spec.max_age_seconds + MAX_RUN_SECONDS,
        runtime_class_name=template.runtime_class_name,
        user_namespace=template.user_namespace,
        egress_targets=[target.dump() for target in seen.surroundings.targets(now)],
    )


def _status(
    seen: ObservedPool, members: Mapping[str, Member], template: Template | Ending, now: datetime
) -> SandboxPoolStatus:
    pool, ready = seen.pool, sum(one.ready for one in members.values())
    facts: dict[str, Any] = {}
    if isinstance(template, Template):
        facts = {"image": template.image, "runtime_class_name": template.runtime_class_name or ""}
    return pool.status.model_copy(
        update={
            **facts,
            "replicas": len(members),
            "ready_replicas": ready,
            "claimed_replicas": seen.claimed,
            "queued": seen.queued,
            "last_refill_ms": seen.last_refill_ms or pool.status.last_refill_ms,
            "selector": f"{POOL_LABEL}={pool.metadata.name}",
            "observed_generation": pool.metadata.generation,
            "conditions": set_condition(pool.status.conditions, _ready_condition(seen, ready, template, now)),
        }
    )


def _ready_condition(seen: ObservedPool, ready: int, template: Template | Ending, now: datetime) -> Condition:
    replicas = seen.pool.spec.replicas
    if isinstance(template, Ending):
        holds, reason, message = False, template.reason or Reason.POLICY_INVALID, template.message
    elif seen.problem:
        holds, reason, message = False, seen.problem.reason or Reason.RUNNER_FAILED, seen.problem.message
    elif replicas == 0:
        holds, reason, message = False, Reason.POOL_EMPTY, "spec.replicas is 0: each execution gets its own pod"
    elif ready >= replicas:
        holds, reason, message = True, Reason.POOL_READY, "all pods are ready"
    else:
        holds, reason, message = False, Reason.POOL_FILLING, trouble_of(seen) or "pods are starting"
    return condition(
        ConditionType.READY,
        holds=holds,
        reason=reason.value,
        message=message[:MESSAGE_LENGTH],
        now=now,
        generation=seen.pool.metadata.generation,
    )


def template_label(pod: Mapping[str, Any]) -> str:
    """The digest that a pod of a pool carries."""
    return str((pod["metadata"].get("labels") or {}).get(TEMPLATE_LABEL, ""))
