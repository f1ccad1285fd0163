"""The decision about one pool: which pods to make, to ask, to let in and to give up.

A pod's name is known before it is asked for, and it counts from then on, so that what the API server has not told yet
is never made twice. `adapters/pools.py` carries out what is decided here; `placement.py` decides who gets
a pod.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from codeexec_api import Reason
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
from codeexec_operator.core.observed_pod import RunnerView, is_blocked
from codeexec_operator.core.observed_pool import MAX_RUN_SECONDS, Member, ObservedPool, is_asked
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.pool_status import status_of
from codeexec_operator.core.reuse import give_up, most_uses
from codeexec_operator.core.starts import STARTS_PER_NODE, Demand
from codeexec_operator.core.timing import Timing
from codeexec_operator.manifests.pod import build_pool_pod


def demand_of(seen: ObservedPool, starting: int, others: int, now: datetime, timing: Timing) -> tuple[Demand, int]:
    """What it wants to start, and how many pods of all pools may be starting on the nodes that take its pods."""
    template, view, meta = template_of(seen), seen.cluster_view, seen.pool.metadata
    runtime_class = template.runtime_class_name if isinstance(template, Template) else None
    wanted = starts_wanted(seen, template, starting, others, now, timing)
    demand = Demand(meta.uid, meta.namespace, wanted, starting, view.scheduling(runtime_class))
    return demand, STARTS_PER_NODE * max(1, view.open_nodes(runtime_class))


def starts_wanted(
    seen: ObservedPool, template: Template | Ending, starting: int, others: int, now: datetime, timing: Timing
) -> int:
    """How many pods would be starting, if only this pool were there, with so many `others` that don't start."""
    pausing = seen.problem_at is not None and now < _try_again_at(seen, seen.problem_at, timing)
    if isinstance(template, Ending) or pausing or not seen.pool.spec.replicas:
        return starting
    wanted = seen.pool.spec.replicas + seen.queued - others
    bound = _starts_at_most(seen, template, now, timing)
    return max(starting, min(wanted, bound[0]) if bound else wanted)


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
    spare = max(0, wanted - sum(one.ready for one in kept.values()))
    given_up, idle_until = give_up(seen, template, spare, now, timing)
    wakes += idle_until
    held = seen.held_until is not None and now < seen.held_until
    if seen.held_until and held:
        wakes.append(min(seen.held_until, now + timedelta(seconds=timing.give_way_again)))
        yielding = [name for name in seen.kept if name not in given_up][: seen.unserved]
        given_up |= {name: DropMember(name, gives_way=True) for name in yielding}
        seen = replace(seen, unserved=seen.unserved - len(yielding))
    acts += given_up.values()
    too_many = _too_many(kept, wanted, seen, held=held)
    kept = {name: one for name, one in kept.items() if name not in too_many}
    acts = [action for action in acts if not _concerns(action, too_many)] + list(too_many.values())
    missing = (
        0 if held else min(wanted - len(kept) - len(seen.kept) + len(given_up), _likely_to_fit(seen, kept, now, timing))
    )
    if missing > 0 and isinstance(template, Template):
        create_at = _create_at(seen, kept, now, timing)
        if now < create_at:
            wakes.append(create_at)
        else:
            if bound := _starts_at_most(seen, template, now, timing):
                most, until = bound
                missing = min(missing, most - sum(not one.ready for one in kept.values()))
                wakes.append(until)
            new = seen.names[: max(0, min(missing, seen.allowance))]
            if len(new) < missing:  # others start, and it may be this one's turn though none of them has ended
                wakes.append(now + timedelta(seconds=timing.start_turn))
            acts += [CreateMember(name, _manifest(name, seen, template, now, timing)) for name in new]
    status = status_of(seen, kept, template, now)
    return Plan(
        status=status if status != seen.pool.status else None,
        actions=tuple(acts),
        wake_at=min(wakes) if wakes else None,
    )


def _concerns(action: Action, names: Collection[str]) -> bool:
    return isinstance(action, CreateMember | AttachMember | AdmitMember | PingMember) and action.name in names


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
    old_at = member.created_at + timedelta(seconds=seen.pool.spec.max_age_seconds)
    if isinstance(template, Ending) or member.template != template.digest or now >= old_at:
        return DropMember(name)
    if no_good := _no_good(name, member, seen, now, timing):
        return no_good
    sandbox = member.sandbox
    give_up_at = _give_up_at(member, timing)
    late = give_up_at is not None and now >= give_up_at
    if not (sandbox.requested or late):  # nobody knows whether it was made
        return CreateMember(name, _manifest(name, seen, template, now, timing)), give_up_at or old_at
    connected = startup.connect(sandbox, now, timing, give_up_at, seen.cluster_view)
    if late and isinstance(connected, Plan):
        problem = replace(startup.late(sandbox, timing), reason=Reason.START_TIMEOUT)
        return DropMember(name, None if member.proven else problem)
    if isinstance(connected, Plan):
        act = AttachMember(name) if connected.actions else None
        return act, min(connected.wake_at or old_at, old_at)
    if connected[1].used:  # by an execution or a session that is gone
        return DropMember(name)
    if member.proven:
        return _ping(name, sandbox.runner, silent_since, now, timing, old_at)
    proven = startup.prove(*connected, seen.cluster_view, now, seen.pool.metadata.generation)
    if startup.undecided(proven, seen.policy) and not late:
        return None, min(now + timedelta(seconds=timing.proof_retry), give_up_at or old_at, old_at)
    if ending := startup.refuses(proven, seen.policy):
        return DropMember(name, ending)
    return AdmitMember(name, proven), old_at


def _no_good(name: str, member: Member, seen: ObservedPool, now: datetime, timing: Timing) -> DropMember | None:
    """That a pod is given up because of what became of it."""
    sandbox = member.sandbox
    # What was let in under a policy that only warns is no good under one that enforces.
    refused = member.proven and startup.refuses(member.proven, seen.policy)
    lost = startup.unreachable(sandbox.runner, now, timing)
    # An operator before this one may have run code in a pod that was found and has ended.
    used = sandbox.pod and (sandbox.pod.unwell or (sandbox.pod.terminated and member.since))
    if refused or lost or used:  # what is no fault of the pool is no problem of it
        return DropMember(name)
    ending = startup.failure(sandbox)
    return DropMember(name, ending) if ending else None


def _silent_since(members: Mapping[str, Member], now: datetime, timing: Timing) -> datetime | None:
    """Who has said nothing since then is asked, now that somebody has to be: all together, not one after the other."""
    waiting = [one for one in members.values() if one.proven]
    heard = [one.sandbox.runner.heard_at for one in waiting if not is_asked(one.sandbox.runner)]
    due = any(at and now >= at + timedelta(seconds=timing.ping_every) for at in heard)
    return now - timedelta(seconds=timing.ping_every / 2) if due else None


def _ping(
    name: str, runner: RunnerView, silent_since: datetime | None, now: datetime, timing: Timing, old_at: datetime
) -> DropMember | tuple[Action | None, datetime]:
    """See to it that a pod that waits is still there: a node that is lost doesn't close connections."""
    heard_at = runner.heard_at or now
    if runner.pinged_at and is_asked(runner):
        lost_at = runner.pinged_at + timedelta(seconds=timing.ping_answer)
        return DropMember(name) if now >= lost_at else (None, min(lost_at, old_at))
    ping_at = heard_at + timedelta(seconds=timing.ping_every)
    ask = silent_since is not None and heard_at <= silent_since
    return (PingMember(name) if ask else None), min(ping_at, old_at)


def _give_up_at(member: Member, timing: Timing) -> datetime | None:
    """Until when a pod has to be ready, from when a node has it. One that no node has room for may wait.

    When that was is known by this process's clock: that of the node may be another one. A pod that was ready has to
    answer as soon over a new connection.
    """
    pod = member.sandbox.pod
    if member.proven:
        return startup.answer_by(member.sandbox.runner, timing)
    if pod and not pod.node_name:
        return None
    begun = member.sandbox.placed_at or member.since or member.created_at
    return begun + timedelta(seconds=timing.start_timeout)


def _surplus(members: Mapping[str, Member], wanted: int) -> list[str]:
    """Names of pods that are too many: first those that are not ready, then the youngest."""
    by_use = sorted(members, key=lambda name: (members[name].ready, -members[name].created_at.timestamp()))
    return by_use[: max(0, len(members) - wanted)]


def _too_many(members: Mapping[str, Member], wanted: int, seen: ObservedPool, *, held: bool) -> dict[str, DropMember]:
    """By name: pods that are more than wanted, that only compete for room, or that give way to those who need it.

    Of pods that no node has room for, the one that has waited longest stays: it is first when there is room again. If
    executions and sessions need the room, none stays, and as many as they need of those that nobody waits for give way.
    """
    dropped = {name: DropMember(name) for name in _surplus(members, wanted)}
    blocked = [name for name, one in members.items() if is_blocked(one.sandbox) and name not in dropped]
    first = min(blocked, key=lambda name: members[name].created_at, default="")
    dropped |= {name: DropMember(name) for name in blocked if held or name != first}
    if held:
        rest = {name: one for name, one in members.items() if name not in dropped}
        dropped |= {name: DropMember(name, gives_way=True) for name in _surplus(rest, seen.queued)[: seen.unserved]}
    return dropped


def _likely_to_fit(seen: ObservedPool, members: Mapping[str, Member], now: datetime, timing: Timing) -> int:
    """How many more pods nodes may have room for: where there was none lately, it is tried with one at a time."""
    if seen.full_at is None or now >= seen.full_at + timedelta(seconds=timing.crowded):
        return len(seen.names)
    return 0 if any(not one.ready for one in members.values()) else 1


def _starts_at_most(
    seen: ObservedPool, template: Template, now: datetime, timing: Timing
) -> tuple[int, datetime] | None:
    """How many pods may be starting while executions wait, and until when; None: as many as are missing.

    Pods that start take the time from each other. So as many start as wait, or one on each node. Where pods are used
    again, those that run code count for a moment as pods that come back, and one that nobody waits for would push
    another one out.
    """
    since = seen.queued_since or now
    back_at, refill_at = (since + timedelta(seconds=one) for one in (timing.reuse_return, timing.queue_first))
    if not seen.queued or now >= refill_at:
        return None
    if most_uses(seen) == 1:
        return max(seen.queued, seen.cluster_view.open_nodes(template.runtime_class_name)), refill_at
    if now >= back_at:
        return seen.queued, refill_at
    in_use = seen.claimed - sum(one.clean for one in seen.kept.values())  # what is clean is for others, who don't wait
    return max(0, seen.queued - in_use), back_at


def _create_at(seen: ObservedPool, members: Mapping[str, Member], now: datetime, timing: Timing) -> datetime:
    """When to make what is missing: at once if it is needed, else not beside the code that runs at this moment."""
    if seen.problem_at:
        return _try_again_at(seen, seen.problem_at, timing)
    ready = sum(one.ready for one in members.values())
    if seen.queued or seen.last_claim_at is None:
        return now
    low = 2 * ready < seen.pool.spec.replicas and most_uses(seen) == 1  # else a pod that is used may come back
    return seen.last_claim_at + timedelta(seconds=timing.low_refill_pause if low else timing.refill_pause)


def _try_again_at(seen: ObservedPool, problem_at: datetime, timing: Timing) -> datetime:
    # Room in a quota comes back as soon as something ends.
    room = seen.problem is not None and seen.problem.reason is Reason.QUOTA_EXCEEDED
    doubled = min(seen.problems - 1, 2) if room else seen.problems - 1
    pause = min(timing.pool_pause * 2 ** max(0, doubled), timing.pool_longest_pause)
    return problem_at + timedelta(seconds=pause)


def _manifest(name: str, seen: ObservedPool, template: Template, now: datetime, timing: Timing) -> dict[str, Any]:
    seconds = seen.pool.spec.max_age_seconds + MAX_RUN_SECONDS + timing.grace + 2 * timing.clock_skew
    parts = startup.parts_of(template.image, template.runtime_class_name, seconds, seen.policy, seen.cluster_view, now)
    return build_pool_pod(seen.pool, name=name, template=template.digest, **parts)
