"""How an execution gets to its sandbox: a pod of its own, one from a pool, or that of a session."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import (
    CodeExecutionSpec,
    ConditionType,
    Event,
    ExecutionPolicySpec,
    Reason,
    Verdict,
    find_condition,
    records,
    set_condition,
)
from codeexec_api.permits import opening
from codeexec_api.phases import SessionPhase
from codeexec_api.policy import session_refusal
from codeexec_api.v1alpha1.sandbox import SANDBOX_FIELDS
from codeexec_operator.core import delay, startup
from codeexec_operator.core.actions import (
    AdoptPod,
    AskPool,
    CreatePod,
    DeletePayload,
    Plan,
    ReadRequest,
    StartCode,
)
from codeexec_operator.core.approving import consult, permits
from codeexec_operator.core.image_trust import distrusted, refused_image
from codeexec_operator.core.isolation import insufficient
from codeexec_operator.core.observed import Observed, PoolView, SessionView
from codeexec_operator.core.observed_pod import PodView
from codeexec_operator.core.outcome import Ending, Proven, recordable, waits_no_more, with_condition
from codeexec_operator.core.payload import Payload, PayloadProblem, build_messages
from codeexec_operator.core.record import finish, knowing, moved, waiting_no_more
from codeexec_operator.core.timing import Timing
from codeexec_operator.manifests.network_policy import build_network_policy
from codeexec_operator.manifests.pod import build_adoption, build_pod

_CANCELLED_BEFORE: Final = Ending(Event.CANCEL, None, "cancelled before the code started")


def request_pod(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """Record the pod's name, and what is opened for it, and make it."""
    if seen.execution.spec.egress:
        opened, _ = opening(seen.execution.spec.egress, seen.cluster_view.reserved)
        seen = knowing(seen, {"egress": opened})
    create = _create(seen, now, timing)
    status = seen.execution.status.model_copy(update={"pod_name": create.manifest["metadata"]["name"]})
    return Plan(status=status, actions=(create,))


def _create(seen: Observed, now: datetime, timing: Timing) -> CreatePod:
    execution = seen.execution
    policy = build_network_policy(execution, execution.status.egress) if execution.status.egress else None
    return CreatePod(_manifest(seen, now, timing), policy)


def needs_own_pod(spec: CodeExecutionSpec) -> bool:
    """True if no pod of a pool or a session will do: those are made without permits and mounts."""
    return bool(spec.egress or spec.mounts)


def not_to_be_had(seen: Observed, verdict: Verdict) -> Ending | None:
    """The refusal, if something is asked for that nobody can permit here, or that no pod of this class would have."""
    spec = seen.execution.spec
    if spec.session_ref and needs_own_pod(spec):  # the CRD says so, too; the pod of a session would not hold to it
        message = (
            "spec.sessionRef: an execution with spec.egress or spec.mounts needs its own pod, and can't run in a "
            "session. Nothing was run"
        )
        return Ending(Event.REFUSED, Reason.POLICY_VIOLATION, message)
    if not spec.session_ref and (refusal := refused_image(seen, verdict.image, verdict.runtime_class_name)):
        return refusal
    asked = spec.egress
    if not asked:
        return None
    if any(one.cidr is not None for one in asked) and (unknown := seen.cluster_view.unknown):
        message = (
            f"spec.egress: the operator could not list {unknown}, whose addresses no permit may open; see the "
            "operator's log. Nothing was run"
        )
        return Ending(Event.REFUSED, Reason.EGRESS_NOT_ENFORCED, message)
    _, refused = opening(asked, seen.cluster_view.reserved)
    return Ending(Event.REFUSED, Reason.POLICY_VIOLATION, f"{refused}. Nothing was run") if refused else None


def session_over(view: SessionView) -> Ending | None:
    """The end, if the session takes nothing more: its own failure if it could not start, else a refusal."""
    session = view.session
    if not session.status.phase.terminal and not session.spec.ended:
        return None
    return Ending(*records.session_over(session))


def _manifest(seen: Observed, now: datetime, timing: Timing) -> dict[str, Any]:
    """The pod, with a deadline behind those of the runner and of this operator.

    There is a while between for which no operator is there, and for which their clocks differ.
    """
    spec, status = seen.execution.spec, seen.execution.status
    seconds = timing.start_timeout + seconds_to_run(spec, timing) + timing.grace + 2 * timing.clock_skew
    runtime_class = status.runtime_class_name or None
    parts = startup.parts_of(status.image, runtime_class, seconds, seen.policy, seen.cluster_view, now)
    return build_pod(seen.execution, **parts)


def start_alone(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """In a pod of its own, which was asked for."""
    if seen.execution.spec.cancelled:
        return finish(seen, now, _CANCELLED_BEFORE)
    if ending := startup.failure(seen.sandbox):
        return finish(seen, now, ending)
    give_up_at = delay.give_up_at(seen, now, timing)
    late = now >= give_up_at
    if late and not startup.has_reported(seen.sandbox):
        return delay.look_before(give_up_at, seen.sandbox) or finish(seen, now, _late(seen, timing))
    if plan := _without_payload(seen, now):
        return plan
    if ending := distrusted(seen, seen.execution.status.image):  # an operator before this one may have had other keys
        return finish(seen, now, ending)
    if seen.sandbox.pod is None and not seen.sandbox.requested:  # after a restart: the pod may or may not exist
        return Plan(actions=(_create(seen, now, timing),), wake_at=give_up_at)
    connected = startup.connect(seen.sandbox, now, timing, give_up_at, seen.cluster_view)
    if isinstance(connected, Plan):
        waits = delay.tell(seen, connected, now, timing)
        return finish(seen, now, _late(seen, timing)) if late else waits
    pod, ready = connected
    status = seen.execution.status
    generation = seen.execution.metadata.generation
    proven = startup.prove(pod, ready, seen.cluster_view, now, generation, status.egress)
    if startup.undecided(proven, seen.policy) and not late:
        plan = Plan(wake_at=min(now + timedelta(seconds=timing.proof_retry), give_up_at))
        said = proven.condition.message
        return delay.tell(seen, plan, now, timing, said)
    seen = knowing(seen, proven.facts | {"conditions": set_condition(status.conditions, proven.condition)})
    if ending := startup.refuses(proven, seen.policy) or _too_late(seen, pod, now, timing):
        return finish(seen, now, ending)
    return _hand_over(seen, now)


def _too_late(seen: Observed, pod: PodView, now: datetime, timing: Timing) -> Ending | None:
    """The end, if no operator was there for so long that the kubelet may end the pod before its code."""
    seconds = seconds_to_run(seen.execution.spec, timing)
    if not startup.ends_before(pod, seconds, seen.execution.status.conditions, seen.since, now, timing):
        return None
    message = (
        f"the pod was requested long ago and may reach its deadline (activeDeadlineSeconds: {pod.deadline_seconds}) "
        f"before the code's limit of {seconds:g} s. Nothing was run"
    )
    return Ending(Event.FAULT, Reason.START_TIMEOUT, message)


def _late(seen: Observed, timing: Timing) -> Ending:
    """The pod did not become ready in time. Kubernetes says in no status of a pod that a ConfigMap is missing."""
    ending = delay.too_late(seen, timing)
    if not seen.execution.spec.mounts:
        return ending
    sources = ", ".join(one.source for one in seen.execution.spec.mounts)
    return replace(ending, message=f"{ending.message}. The pod mounts {sources}: check that each exists")


def start_from_pool(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """In line for a pod that is ready already."""
    spec, status = seen.execution.spec, seen.execution.status
    if spec.cancelled:
        return finish(seen, now, _CANCELLED_BEFORE)
    if plan := _without_payload(seen, now):
        return plan
    # The policy may be another one than when it got in line.
    verdict = verdict_now(seen)
    if isinstance(verdict, Ending):
        return finish(seen, now, verdict)
    if ending := distrusted(seen, verdict.image):
        return finish(seen, now, ending)
    if not seen.pool_asked:  # after a restart of the operator, or when the pool serves it no more
        return Plan(actions=(AskPool(verdict.image, verdict.runtime_class_name),))
    facts = {"image": verdict.image, "runtime_class_name": verdict.runtime_class_name or ""}
    if seen.pool is None:
        listed_at = seen.since + timedelta(seconds=timing.list_grace)
        if status.observed_generation and now < listed_at:  # pools are heard of later than executions
            return Plan(wake_at=listed_at)
        seen = waiting_no_more(seen, now, Reason.POD_REQUESTED, "the pool was deleted, or its pods no longer match")
        return request_pod(knowing(seen, facts | {"pool_name": ""}), now, timing)
    pool = seen.pool
    if (pool.image, pool.runtime_class_name) != (verdict.image, verdict.runtime_class_name):
        return Plan(actions=(AskPool(verdict.image, verdict.runtime_class_name),))  # what it was asked for is not it
    seen = knowing(seen, facts | {"pool_name": pool.name})
    if pool.proven:
        return _start_claimed(seen, pool, pool.proven, now, timing)
    return _stand_in_line(seen, pool, now, timing)


def _stand_in_line(seen: Observed, pool: PoolView, now: datetime, timing: Timing) -> Plan:
    """Wait, for a time if it is limited, and now and then record at which place."""
    execution = seen.execution
    leave_at, limit = None, execution.spec.queue_timeout_seconds
    place = records.place_in_line(pool.position, pool.length, f"pool {pool.name!r}")
    place += f"; {pool.problem}" if pool.problem else ""
    if limit:
        approved = find_condition(execution.status.conditions, ConditionType.APPROVED)
        since = approved.last_transition_time if approved else execution.metadata.creation_timestamp or now
        leave_at = since + timedelta(seconds=limit)
        if now >= leave_at:
            message = f"no pod was free within spec.queueTimeoutSeconds ({limit} s): {place}"
            return finish(seen, now, Ending(Event.DEADLINE, Reason.QUEUE_TIMEOUT, message))
    tell_at = pool.since + timedelta(seconds=timing.queue_notice)
    plan = _record_place(seen, Reason.WAITING_FOR_POOL, place, tell_at, pool.length, now, timing)
    return replace(plan, wake_at=min(plan.wake_at, leave_at or plan.wake_at)) if plan.wake_at else plan


def _wait_for_session(seen: Observed, view: SessionView, now: datetime, timing: Timing) -> Plan:
    """Until the session starts, and then until it is its turn. The session wakes it."""
    if view.session.status.phase is not SessionPhase.READY:
        return delay.tell_of_session(seen.execution, view.session, now)
    if view.position == 0:
        return Plan()
    place = records.place_in_session(view.position, view.length, view.session.metadata.name)
    tell_at = (view.since or now) + timedelta(seconds=timing.start_notice)
    return _record_place(seen, Reason.WAITING_FOR_SESSION, place, tell_at, view.length, now, timing)


def _record_place(
    seen: Observed, reason: Reason, place: str, tell_at: datetime, length: int, now: datetime, timing: Timing
) -> Plan:
    """Record the place in a queue from `tell_at` on; in a long queue less often."""
    execution = seen.execution
    before = find_condition(execution.status.conditions, ConditionType.QUEUED)
    pause = timedelta(seconds=max(timing.queue_recorded, timing.queue_write * length))
    place = recordable(place)
    record_at = seen.recorded_at + pause if before and seen.recorded_at else tell_at
    if now >= record_at and before and before.message == place:
        record_at = now + pause
    if now < record_at:
        return Plan(wake_at=record_at)
    meta, why = execution.metadata, reason.value
    conditions = waits_no_more(execution.status.conditions, why, place, now, meta, [ConditionType.DELAYED])
    conditions = with_condition(conditions, ConditionType.QUEUED, why, place, now, meta, holds=True)
    update = {"reason": why, "message": place, "conditions": conditions}
    return Plan(status=execution.status.model_copy(update=update))


def _start_claimed(seen: Observed, pool: PoolView, proven: Proven, now: datetime, timing: Timing) -> Plan:
    """The pod is there and its network was shown to be closed: all that is left to do is to hand over the code."""
    seen = waiting_no_more(seen, now, Reason.POD_CLAIMED, f"got pod {pool.pod_name}")
    conditions = set_condition(seen.execution.status.conditions, proven.condition)
    reset = pool.reset.recorded(pool.use) if pool.reset else None
    seen = knowing(seen, proven.facts | {"pod_name": pool.pod_name, "pod_reset": reset, "conditions": conditions})
    if ending := startup.refuses(proven, seen.policy):
        return finish(seen, now, ending)
    plan = _hand_over(seen, now)
    if not any(isinstance(action, StartCode) for action in plan.actions):
        return plan
    adoption = AdoptPod(build_adoption(seen.execution, deadline_seconds=deadline_of(seen, now, timing)))
    return replace(plan, actions=(adoption, *plan.actions))


def deadline_of(seen: Observed, now: datetime, timing: Timing) -> int | None:
    """Of a pod of a pool in which the code runs: behind those of the runner and of this operator."""
    seconds = seconds_to_run(seen.execution.spec, timing) + timing.grace
    return startup.deadline_of(seen.sandbox, seconds, now, timing)


def _refused_by_rule(seen: Observed, view: SessionView) -> Ending | None:
    """The refusal, if the pod is one that the requester's own rule doesn't allow."""
    if not isinstance(seen.policy, ExecutionPolicySpec):
        return None  # nothing is approved without a policy
    message = session_refusal(seen.execution.spec, view.session, seen.policy)
    return Ending(Event.REFUSED, Reason.SESSION_MISMATCH, f"{message}. Nothing was run") if message else None


def start_in_session(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """In the pod of a session, when it is its turn."""
    if seen.execution.spec.cancelled:
        return finish(seen, now, _CANCELLED_BEFORE)
    view = seen.session
    if view is None:
        ref = seen.execution.spec.session_ref
        message = (
            f"spec.sessionRef: session {ref.name if ref else ''!r} was deleted. Nothing was run. Start a new session"
        )
        return look_for_session(seen, now, timing, Ending(Event.REFUSED, Reason.SESSION_NOT_FOUND, message))
    if ending := session_over(view):
        return finish(seen, now, ending)
    if not view.turn or not startup.takes_code(view):
        return _wait_for_session(seen, view, now, timing)
    if plan := _without_payload(seen, now):
        return plan
    session = view.session.status
    conditions = seen.execution.status.conditions
    if shown := find_condition(session.conditions, ConditionType.EGRESS_CLOSED):
        conditions = set_condition(conditions, shown)
    facts = {name: getattr(session, name) for name in SANDBOX_FIELDS}
    seen = knowing(seen, facts | {"conditions": conditions})
    if ending := _refused_by_rule(seen, view) or insufficient(seen.policy, session.layers):
        return finish(seen, now, ending)
    if records.egress_may_be_open(session) and not startup.warns(seen.policy):
        message = (
            "the network of the session was not shown to be closed, and the policy requires that (egressProof: "
            "Enforce). Nothing was run"
        )
        return finish(seen, now, Ending(Event.REFUSED, Reason.EGRESS_NOT_ENFORCED, message))
    return _hand_over(seen, now)


def look_for_session(seen: Observed, now: datetime, timing: Timing, gone: Ending) -> Plan:
    """After a restart of the operator: it ends so, if the session isn't there once all of them were heard of."""
    if seen.payload is None:
        return Plan(actions=(ReadRequest(),))
    give_up_at = seen.since + timedelta(seconds=timing.list_grace)
    return Plan(wake_at=give_up_at) if now < give_up_at else finish(seen, now, gone)


def _without_payload(seen: Observed, now: datetime) -> Plan | None:
    """What to do as long as the code isn't there."""
    if seen.payload is None:
        return Plan(actions=(ReadRequest(),))
    if isinstance(seen.payload, PayloadProblem):
        message = f"the payload was changed after the execution was accepted: {seen.payload.message}"
        missing = seen.payload.reason is Reason.PAYLOAD_MISSING  # an operator before this one has deleted it
        reason = Reason.OPERATOR_RESTARTED if missing else seen.payload.reason
        return finish(seen, now, Ending(Event.VANISHED, reason, message))
    return None


def verdict_now(seen: Observed) -> Verdict | Ending:
    """What the policy says now, together with the approval if there is one; or why it must not run any more."""
    verdict = consult(seen)
    if isinstance(verdict, Verdict) and not permits(seen, verdict):
        return Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message)
    return verdict


def _hand_over(seen: Observed, now: datetime) -> Plan:
    """The sandbox is ready: record that the code goes in, then hand it over, if the policy still lets it."""
    payload = seen.payload
    if not isinstance(payload, Payload):  # it was let go of meanwhile
        return Plan(actions=(ReadRequest(),))
    seen = waiting_no_more(seen, now, Reason.SANDBOX_READY, "the sandbox is ready")
    verdict = verdict_now(seen)
    if isinstance(verdict, Ending):
        return finish(seen, now, verdict)
    if ending := distrusted(seen, seen.execution.status.image):  # in a session, that of its pod
        return finish(seen, now, ending)
    try:
        messages = job_of(seen, payload)
    except UnicodeDecodeError as error:
        message = f"spec.blocks: a block is not UTF-8 text ({error.reason} at byte {error.start}). Nothing was run"
        return finish(seen, now, Ending(Event.FAULT, Reason.PAYLOAD_MISMATCH, message))
    handed = Ending(Event.STARTED, None, "the code was handed to the runner")
    status = moved(seen, now, handed, ConditionType.STARTED).model_copy(update={"started_at": now})
    return Plan(status=status, actions=(*deletion_of(payload), StartCode(messages)))


def deletion_of(payload: Payload) -> tuple[DeletePayload, ...]:
    """What goes once the runner has the code."""
    return (DeletePayload(payload.secrets),) if payload.secrets else ()


def job_of(seen: Observed, payload: Payload) -> tuple[dict[str, Any], ...]:
    """What the runner is told of this execution.

    Raises:
        UnicodeDecodeError: as `build_messages`.
    """
    fetch_bytes = seen.transcript.parts.place.fetch_bytes
    return build_messages(seen.execution, payload, stateful=is_stateful(seen), fetch_bytes=fetch_bytes)


def is_stateful(seen: Observed) -> bool:
    """True if variables live on between the executions of its session."""
    return seen.session is not None and seen.session.session.spec.stateful


def seconds_to_run(spec: CodeExecutionSpec, timing: Timing) -> float:
    """How long the runner may take, from being handed the job to its last word."""
    return len(spec.blocks) * spec.timeout_seconds + seconds_to_stop(spec, timing)


def seconds_to_stop(spec: CodeExecutionSpec, timing: Timing) -> float:
    """How long the runner may take beside its blocks, and so from a cancellation to its last word."""
    return (timing.transfer if spec.files or spec.artifacts.fetch else 0) + timing.grace
