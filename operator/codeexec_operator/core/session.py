"""The decision about one session, as `reconcile.py` makes it about executions."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from codeexec_api import (
    CodeSessionStatus,
    ConditionType,
    Event,
    Reason,
    evaluate,
    records,
    set_condition,
)
from codeexec_api.phases import SessionPhase
from codeexec_operator.core import delay, sleep, startup
from codeexec_operator.core.actions import (
    AdoptPod,
    AskPool,
    CancelStray,
    CreatePod,
    Forget,
    LeavePod,
    Plan,
    ReadLease,
    ReadPod,
    ReadPolicy,
    ReturnPod,
)
from codeexec_operator.core.client_lease import look_after_client
from codeexec_operator.core.image_trust import distrusted, refused_image
from codeexec_operator.core.observed import ObservedSession, PolicyProblem
from codeexec_operator.core.observed_pod import PodView, is_usable
from codeexec_operator.core.observed_pool import MAX_RUN_SECONDS
from codeexec_operator.core.outcome import Ending, Proven
from codeexec_operator.core.readiness import Readiness
from codeexec_operator.core.session_record import end, moved, use
from codeexec_operator.core.timing import Timing
from codeexec_operator.core.workspace_copy import FILES_JOB
from codeexec_operator.manifests.pod import build_adoption, build_pod


def decide_session(seen: ObservedSession, now: datetime, timing: Timing) -> Plan:
    """What to do about one session. Pure: same observation, same time, same plan."""
    phase = seen.session.status.phase
    if phase.terminal:
        return _clear_up(seen, now, timing)
    if seen.session.spec.ended:
        return end(seen, now, Ending(Event.ENDED, None, "ended on request (spec.ended)"))
    if phase is SessionPhase.PENDING:
        return _accept(seen, now, timing)
    if phase is SessionPhase.STARTING:
        return _start(seen, now, timing)
    if phase is SessionPhase.ASLEEP:
        return _sleep_on(seen, now, timing)
    return _keep(seen, now, timing)


def _clear_up(seen: ObservedSession, now: datetime, timing: Timing) -> Plan:
    """Have the pod deleted. Nobody tells of a pod that is still a pool's, and nobody else looks after that one."""
    sandbox = seen.sandbox
    untold = bool(seen.session.status.pool_name) and sandbox.deleted_at is None
    left = not sandbox.gone and (sandbox.pod is not None or untold)
    return startup.delete(sandbox, now, timing) if left else Plan(actions=(Forget(),))


def _accept(seen: ObservedSession, now: datetime, timing: Timing) -> Plan:
    if not seen.policy_read:
        return Plan(actions=(ReadPolicy(),))
    if isinstance(seen.policy, PolicyProblem):
        return end(seen, now, Ending(Event.REFUSED, Reason.POLICY_INVALID, seen.policy.message))
    waking = seen.session.status.phase is SessionPhase.ASLEEP
    spec = sleep.as_it_was(seen.session) if waking else seen.session.spec
    verdict = evaluate(spec, seen.policy, source=seen.policy_source)
    if not verdict.allowed:
        return end(seen, now, Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message))
    if ending := refused_image(seen, verdict.image, verdict.runtime_class_name):
        return end(seen, now, ending)
    if not seen.pool_asked and _lifetime(seen, timing) <= MAX_RUN_SECONDS:
        return Plan(actions=(AskPool(verdict.image, verdict.runtime_class_name),))
    facts: dict[str, Any] = {"image": verdict.image, "runtime_class_name": verdict.runtime_class_name or ""}
    if seen.claimed:
        if not is_usable(seen.sandbox):
            return Plan(actions=(ReturnPod(),))
        facts |= {"pod_name": seen.claimed.pod_name, "pool_name": seen.claimed.pool}
        if waking:
            return Plan(status=sleep.woken(seen, now, facts))
        accepted = Ending(Event.ACCEPTED, Reason.POD_CLAIMED, verdict.message)
        # The pod has shown already that its network is closed: nothing is left to wait for.
        return _ready(_knowing(seen, _accepted(seen, now, accepted, facts)), seen.claimed.proven, now)
    manifest = _manifest(seen, now, timing, verdict.image, verdict.runtime_class_name)
    facts["pod_name"] = manifest["metadata"]["name"]
    accepted = Ending(Event.ACCEPTED, None, verdict.message)
    status = sleep.woken(seen, now, facts) if waking else _accepted(seen, now, accepted, facts)
    return Plan(status=status, actions=(CreatePod(manifest),))


def _accepted(seen: ObservedSession, now: datetime, ending: Ending, facts: dict[str, Any]) -> CodeSessionStatus:
    return moved(seen, now, ending, ConditionType.ACCEPTED).model_copy(update=facts)


def _ready(seen: ObservedSession, proven: Proven, now: datetime) -> Plan:
    """In a pod that has shown this, if the policy lets code run in it."""
    status = seen.session.status
    facts = proven.facts | {"conditions": set_condition(status.conditions, proven.condition)}
    seen = _knowing(seen, status.model_copy(update=facts))
    if ending := startup.refuses(proven, seen.policy):
        return end(seen, now, ending)
    ready = moved(seen, now, Ending(Event.READY, None, "executions can run"), ConditionType.READY)
    used_at = status.last_used_at or now
    return Plan(status=ready.model_copy(update={"started_at": status.started_at or now, "last_used_at": used_at}))


def _knowing(seen: ObservedSession, status: CodeSessionStatus) -> ObservedSession:
    return replace(seen, session=seen.session.model_copy(update={"status": status}))


def _lifetime(seen: ObservedSession, timing: Timing) -> float:
    """For how many seconds from when it is ready its pod has to be there: the kubelet's deadline is behind ours."""
    return seen.session.spec.max_lifetime_seconds + 2 * timing.grace


def _manifest(
    seen: ObservedSession, now: datetime, timing: Timing, image: str, runtime_class_name: str | None
) -> dict[str, Any]:
    """The pod, with a deadline behind that of this operator."""
    seconds = timing.start_timeout + _lifetime(seen, timing) + timing.clock_skew
    parts = startup.parts_of(image, runtime_class_name, seconds, seen.policy, seen.cluster_view, now)
    return build_pod(seen.session, **parts)


def _start(seen: ObservedSession, now: datetime, timing: Timing) -> Plan:
    status = seen.session.status
    fail = sleep.on if status.stored_files else end
    if ending := startup.failure(seen.sandbox):
        return fail(seen, now, ending)
    give_up_at = delay.give_up_at(seen, now, timing)
    late = now >= give_up_at
    if late and not startup.has_reported(seen.sandbox):
        too_late = delay.too_late(seen, timing)
        return delay.look_before(give_up_at, seen.sandbox) or fail(seen, now, too_late)
    if not seen.policy_read:
        return Plan(actions=(ReadPolicy(),))
    if ending := distrusted(seen, status.image):  # an operator before this one may have had other keys
        return end(seen, now, ending)
    if status.pool_name and (plan := _get_hold_of_pod(seen, now, timing, give_up_at)):
        return plan
    if seen.sandbox.pod is None and not seen.sandbox.requested:  # after a restart: the pod may or may not exist
        manifest = _manifest(seen, now, timing, status.image, status.runtime_class_name or None)
        return Plan(actions=(CreatePod(manifest),), wake_at=give_up_at)
    connected = startup.connect(seen.sandbox, now, timing, give_up_at, seen.cluster_view)
    if isinstance(connected, Plan):
        if late:
            return fail(seen, now, delay.too_late(seen, timing))
        return delay.tell(seen, connected, now, timing)
    return _enter(seen, *connected, now, timing)


def _enter(seen: ObservedSession, pod: PodView, ready: Readiness, now: datetime, timing: Timing) -> Plan:
    """The runner has reported. What it has shown is looked at, and the files of a session that wakes come back."""
    status = seen.session.status
    claimed = seen.claimed.proven if seen.claimed else None
    proven = claimed or startup.prove(pod, ready, seen.cluster_view, now, seen.session.metadata.generation)
    give_up_at = delay.give_up_at(seen, now, timing)
    if startup.undecided(proven, seen.policy) and now < give_up_at:
        plan = Plan(wake_at=min(now + timedelta(seconds=timing.proof_retry), give_up_at))
        said = proven.condition.message
        return delay.tell(seen, plan, now, timing, said)
    if status.stored_files and not startup.refuses(proven, seen.policy):
        return sleep.restore(seen, status.stored_files, now, timing) or _ready(seen, proven, now)
    return _ready(seen, proven, now)


def _sleep_on(seen: ObservedSession, now: datetime, timing: Timing) -> Plan:
    """Look at the clock and at the client, until somebody needs the session."""
    status = seen.session.status
    lost = seen.unsure or seen.storing or seen.restoring  # an answer was lost that the session sleeps, or sleeps on
    begun = seen.policy_read or seen.claimed or seen.sandbox.requested or seen.sandbox.pod
    if lost or (begun and not seen.claimants):
        return Plan(actions=(LeavePod(),))
    end_at = _end_at(seen, now)
    if ending := _too_old(seen, now):
        return end(seen, now, ending)
    if seen.claimants:
        wake_at = sleep.wake_at(status, seen.since, now, timing)
        return Plan(wake_at=min(wake_at, end_at)) if now < wake_at else _accept(seen, now, timing)
    if quiet := sleep.needed_no_more(seen, now):
        return quiet
    idle = _idle(seen, status.last_used_at or now, now)
    return idle if isinstance(idle, Plan) else Plan(wake_at=min(end_at, idle))


def _end_at(seen: ObservedSession, now: datetime) -> datetime:
    return (seen.session.status.started_at or now) + timedelta(seconds=seen.session.spec.max_lifetime_seconds)


def _too_old(seen: ObservedSession, now: datetime) -> Ending | None:
    seconds = seen.session.spec.max_lifetime_seconds
    if now < _end_at(seen, now):
        return None
    return Ending(Event.DEADLINE, None, f"the session reached spec.maxLifetimeSeconds ({seconds} s)")


def _keep(seen: ObservedSession, now: datetime, timing: Timing) -> Plan:
    """Keep the connection, and look at the clock."""
    if ending := _loss(seen, now, timing) or _too_old(seen, now):
        return end(seen, now, ending)
    status, end_at = seen.session.status, min((_end_at(seen, now), *_give_up_at(seen, timing)))
    if plan := sleep.stay_awake(seen, now):
        return plan
    used_at = seen.used_at or status.last_used_at or now
    idle_since = max(used_at, seen.since)  # code that ran when the operator was restarted is on record as no use
    if not seen.claimants:
        idle = _idle(seen, idle_since, now)
        if isinstance(idle, Plan):
            return idle
        end_at = min(end_at, idle)
    if plan := _get_hold_of_pod(seen, now, timing, end_at):
        return plan
    answer_by = startup.answer_by(seen.sandbox.runner, timing)
    connected = startup.connect(seen.sandbox, now, timing, min(end_at, answer_by or end_at))
    if isinstance(connected, Plan):
        return connected
    if (stray := connected[1].job) and stray not in seen.claimants:
        return _end_stray(stray, seen, now, timing)
    sleep_at = sleep.fall_asleep(seen, idle_since, now, timing, end_at)
    if isinstance(sleep_at, Plan):
        return sleep_at
    end_at = sleep_at
    if used_at > (status.last_used_at or used_at):
        return _record_use(seen, now, timing, end_at)
    return Plan(wake_at=end_at)


def _get_hold_of_pod(seen: ObservedSession, now: datetime, timing: Timing, end_at: datetime) -> Plan | None:
    """Find the pod after a restart, and make a pod of a pool the session's own; None if neither is left to do."""
    status, pod = seen.session.status, seen.sandbox.pod
    if pod is None:
        # Nobody tells of a pod that was not adopted yet, so it is read soon.
        grace = timing.attach_retry if status.pool_name else timing.list_grace
        listed_at = seen.since + timedelta(seconds=grace)
        return Plan(actions=(ReadPod(),)) if now >= listed_at else Plan(wake_at=min(end_at, listed_at))
    if not status.pool_name or seen.adopting or pod.owner == seen.session.metadata.uid:
        return None
    deadline = startup.deadline_of(seen.sandbox, _lifetime(seen, timing), now, timing)
    return Plan(actions=(AdoptPod(build_adoption(seen.session, deadline_seconds=deadline)),))


def _record_use(seen: ObservedSession, now: datetime, timing: Timing, end_at: datetime) -> Plan:
    """Now and then."""
    status = seen.session.status
    record_at = (status.last_used_at or now) + timedelta(seconds=timing.use_recorded)
    if now >= record_at:
        return Plan(status=status.model_copy(update=use(seen)))
    return Plan(wake_at=min(end_at, record_at))


def _end_stray(uid: str, seen: ObservedSession, now: datetime, timing: Timing) -> Plan:
    """A job that no execution claims, once all executions were heard of."""
    listed_at = (seen.strays_listed_at or seen.since) + timedelta(seconds=timing.list_grace)
    waits = now < listed_at and not uid.startswith(FILES_JOB)
    return Plan(wake_at=listed_at) if waits else Plan(actions=(CancelStray(uid),))


def _give_up_at(seen: ObservedSession, timing: Timing) -> tuple[datetime, ...]:
    """Until when executions wait for the end of a job that nobody wants any more; empty if there is no such job."""
    runner = seen.sandbox.runner
    if not seen.claimants or not runner.handed or runner.handed in seen.claimants:
        return ()
    wanted_until = max(runner.handed_at or seen.since, seen.used_at or seen.since)
    seconds = timing.workspace_transfer if runner.handed.startswith(FILES_JOB) else timing.grace
    return (wanted_until + timedelta(seconds=seconds + timing.transfer),)


def _idle(seen: ObservedSession, since: datetime, now: datetime) -> Plan | datetime:
    """The end of an idle session, or a read of the Lease that decides about it; else when to look again."""
    spec = seen.session.spec
    idle_at = since + timedelta(seconds=spec.idle_timeout_seconds)
    if now >= idle_at:
        message = f"nothing ran in the session for spec.idleTimeoutSeconds ({spec.idle_timeout_seconds} s)"
        return end(seen, now, Ending(Event.ENDED, Reason.IDLE_TIMEOUT, message))
    if not spec.client_lease:
        return idle_at
    client = look_after_client(spec.client_lease, seen.lease, since, now)
    if isinstance(client, Ending):
        return end(seen, now, client)
    return Plan(actions=(client,)) if isinstance(client, ReadLease) else min(client, idle_at)


def _loss(seen: ObservedSession, now: datetime, timing: Timing) -> Ending | None:
    """Why the session can't go on, if so."""
    pod = seen.sandbox.pod
    if seen.unresponsive:
        return Ending(Event.FAULT, None, seen.unresponsive)
    if seen.sandbox.runner.problem:
        return Ending(Event.FAULT, None, seen.sandbox.runner.problem)
    if any(now >= at for at in _give_up_at(seen, timing)):
        message = f"its runner did not end job {seen.sandbox.runner.handed}, which no execution claims any more"
        return Ending(Event.FAULT, None, message)
    if silent := startup.unanswered(seen.sandbox.runner, now, timing):
        return Ending(Event.FAULT, None, silent)
    if startup.was_taken(seen.sandbox):
        return Ending(Event.VANISHED, None, startup.taken(seen.sandbox, ""))
    if ending := startup.unreachable(seen.sandbox.runner, now, timing):
        return ending
    if pod and pod.terminated == "OOMKilled":
        message = records.out_of_memory("the code in the session", seen.session.spec.limits)
        return Ending(Event.FAULT, Reason.OUT_OF_MEMORY, message)
    if pod and pod.terminated == startup.EVICTED:
        return Ending(Event.FAULT, None, startup.evicted("the code in the session", pod, seen.session.spec.limits))
    if pod and pod.terminated:
        return Ending(
            Event.FAULT,
            None,
            f"the pod of the session ended ({pod.terminated}, exit code {pod.exit_code}). The code may have ended the "
            "runner, or the image is no sandbox image. Start a new session",
        )
    return None
