"""From a pod that was asked for to a runner that is ready: what executions and sessions have in common."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from codeexec_api import (
    Condition,
    ConditionType,
    EgressMode,
    EgressVerdict,
    Event,
    ExecutionPolicySpec,
    OpenedEgress,
    PodLimits,
    PodRequests,
    Reason,
    SessionPhase,
    condition,
    find_condition,
)
from codeexec_operator.core.actions import Attach, DeletePod, Plan
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.egress import explain, judge
from codeexec_operator.core.isolation import USER_NAMESPACE, awaits_node, insufficient, look_at
from codeexec_operator.core.observed import PolicyProblem, SessionView
from codeexec_operator.core.observed_pod import PodLink, PodView, RunnerView, Sandbox
from codeexec_operator.core.outcome import Ending, Proven, recordable
from codeexec_operator.core.readiness import Readiness
from codeexec_operator.core.timing import Timing
from codeexec_operator.manifests.pod import PodParts

_WAITING_FAULTS: Final = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.POD_REFUSED,
    "CreateContainerError": Reason.POD_REFUSED,
    "RunContainerError": Reason.POD_REFUSED,
}
_EVENTS: Final = "the pod's events may say why"
_NO_ROOM: Final = "OutOf"
"""How the kubelet's reasons begin, such as `OutOfcpu`, when the scheduler has promised too much of its node."""
EVICTED: Final = "Evicted"
_NOT_STARTED: Final = "StartError"  # the container runtime's, before any program ran


def delete(sandbox: Sandbox, now: datetime, timing: Timing) -> Plan:
    """Have the pod deleted, once. A pod that isn't seen to go then is deleted again after some seconds."""
    again_at = sandbox.deleted_at and sandbox.deleted_at + timedelta(seconds=timing.grace)
    return Plan(wake_at=again_at) if again_at and now < again_at else Plan(actions=(DeletePod(),))


def failure(sandbox: Sandbox) -> Ending | None:
    """Why no code can run in this pod any more, if so."""
    pod = sandbox.pod
    if sandbox.fault:
        return Ending(Event.FAULT, sandbox.fault.reason, sandbox.fault.message)
    if was_taken(sandbox) or (pod and pod.deleting):
        return Ending(Event.VANISHED, Reason.POD_LOST, taken(sandbox, "before the code started"))
    if sandbox.runner.problem:
        return Ending(Event.FAULT, Reason.RUNNER_FAILED, sandbox.runner.problem)
    if pod is None:
        return None
    if pod.waiting_reason in _WAITING_FAULTS:
        reason = _WAITING_FAULTS[pod.waiting_reason]
        hint = "check that the image exists and that the node may pull it; " if "Image" in reason.value else ""
        return Ending(Event.FAULT, reason, f"{pod.waiting_reason}: {hint}{pod.waiting_message}")
    if pod.terminated and pod.terminated.startswith(_NO_ROOM):
        message = f"node {pod.node_name!r} had no room for the pod ({pod.terminated}): {pod.end_message}"
        return Ending(Event.FAULT, Reason.START_TIMEOUT, message)
    if pod.terminated and pod.end_message:
        said = f"{pod.terminated}: {pod.end_message.strip().removesuffix('.')}"
        message = f"node {pod.node_name!r} ended the pod before the code started ({said})"
        return Ending(Event.FAULT, Reason.RUNNER_FAILED, message)
    if pod.terminated:
        message = f"the runner ended before the code started ({pod.terminated}, exit code {pod.exit_code})"
        hint = "" if pod.terminated == _NOT_STARTED else "; check that the image is a codeexec sandbox image"
        said = f". Its last output: {pod.last_words}" if pod.last_words else ""
        return Ending(Event.FAULT, Reason.RUNNER_FAILED, f"{message}{hint}{said}")
    return None


def was_taken(sandbox: Sandbox) -> bool:
    """True if the pod ended because Kubernetes or a person took it away, and not by what ran in it."""
    pod = sandbox.pod
    return sandbox.gone or (pod is not None and bool(pod.terminated) and (pod.deleting or bool(pod.disruption)))


def taken(sandbox: Sandbox, when: str) -> str:
    """What the record says of a pod that was taken away."""
    pod = sandbox.pod
    deleted = sandbox.gone or (pod is not None and pod.deleting)
    why = f": {pod.disruption}" if pod and pod.disruption else ""
    return f"the pod was {'deleted' if deleted else 'stopped'} {when}".strip() + why


def parts_of(
    image: str,
    runtime_class_name: str | None,
    seconds: float,
    policy: ExecutionPolicySpec | PolicyProblem | None,
    cluster_view: ClusterView,
    now: datetime,
) -> PodParts:
    """What a pod is made of that is to end by itself after so many seconds."""
    return {
        "image": image,
        "requests": requests_of(policy),
        "deadline_seconds": int(seconds),
        "runtime_class_name": runtime_class_name,
        "user_namespace": cluster_view.user_namespace(runtime_class_name),
        "egress_targets": [target.dump() for target in cluster_view.targets(now)],
    }


def deadline_of(sandbox: Sandbox, seconds: float, now: datetime, timing: Timing) -> int | None:
    """Of a pod that was there before, and is needed for so many seconds more: `activeDeadlineSeconds`.

    The kubelet counts from the pod's start, by the clock of its node. None: the deadline stays, because it is not known
    when that was, or is sooner already. Kubernetes refuses a later one.
    """
    pod = sandbox.pod
    if pod is None or pod.started_at is None:
        return None
    age = max(0, (now - min(pod.started_at, sandbox.placed_at or pod.started_at)).total_seconds())
    deadline = int(age + timing.clock_skew + seconds)
    return deadline if deadline < (pod.deadline_seconds or math.inf) else None


def ends_before(
    pod: PodView | None,
    seconds: float,
    conditions: Sequence[Condition],
    since: datetime,
    now: datetime,
    timing: Timing,
) -> bool:
    """True if the kubelet may end a pod before code in it had so many seconds.

    The pod was made after it was requested, which is known by the clock of operators. That of its node doesn't count.
    """
    if pod is None or pod.deadline_seconds is None:
        return False
    requested = requested_at(conditions, since, now, timing)
    return now + timedelta(seconds=seconds) > requested + timedelta(seconds=pod.deadline_seconds)


def requests_of(policy: ExecutionPolicySpec | PolicyProblem | None) -> PodRequests:
    """What pods request under this policy."""
    return policy.requests if isinstance(policy, ExecutionPolicySpec) else PodRequests()


def requested_at(conditions: Sequence[Condition], since: datetime, now: datetime, timing: Timing) -> datetime:
    """When the pod was requested: after it was accepted, after it waited for a pool in vain, or when it was woken."""
    kinds = (ConditionType.ACCEPTED, ConditionType.QUEUED, ConditionType.ASLEEP)
    found = (find_condition(conditions, kind) for kind in kinds)
    return by_this_clock(max((one.last_transition_time for one in found if one), default=now), since, now, timing)


def by_this_clock(time: datetime, since: datetime, now: datetime, timing: Timing) -> datetime:
    """A time of a record, whose operator may have had a clock that is ahead. What that one wrote was there `since`."""
    ahead = now + timedelta(seconds=timing.grace) < time <= since + timedelta(seconds=timing.clock_skew)
    return since if ahead else time


def unreachable(runner: RunnerView, now: datetime, timing: Timing) -> Ending | None:
    """The end of what runs in a pod that may be there, if connections to it were refused for too long."""
    if runner.refused_since is None or now < runner.refused_since + timedelta(seconds=timing.unreachable):
        return None
    message = (
        f"no connection to the pod could be made for {timing.unreachable:g} s; its node may be lost. Check the code's "
        "effects, then submit it again"
    )
    return Ending(Event.VANISHED, Reason.POD_LOST, message)


def answer_by(runner: RunnerView, timing: Timing) -> datetime | None:
    """Until when a runner that was asked for its report has to give it; None if it has, or was not asked."""
    if runner.link is not PodLink.OPEN or runner.ready or runner.asked_at is None:
        return None
    return runner.asked_at + timedelta(seconds=timing.start_timeout)


def unanswered(runner: RunnerView, now: datetime, timing: Timing) -> str:
    """What to say of a runner that was asked for its report, and did not give it in time; empty if there is time."""
    late_at = answer_by(runner, timing)
    return f"the runner did not answer within {timing.start_timeout:g} s" if late_at and now >= late_at else ""


def evicted(what: str, pod: PodView, limits: PodLimits) -> str:
    """How something ended that the kubelet evicted, though its node had room."""
    limit = f"spec.limits.ephemeralStorage ({limits.ephemeral_storage})"
    said = pod.end_message.strip().removesuffix(".") or "no reason was given"
    return (
        f"the kubelet evicted the pod ({said}). Usually {what} used more disk than {limit}; output counts as disk, too"
    )


def has_reported(sandbox: Sandbox) -> bool:
    """True if the runner is ready, and can be given code at this moment."""
    return sandbox.runner.ready is not None and sandbox.runner.link is PodLink.OPEN


def takes_code(view: SessionView) -> bool:
    """True if the session is ready, and code can be handed to its runner at this moment."""
    return view.session.status.phase is SessionPhase.READY and has_reported(view.sandbox)


def late(sandbox: Sandbox, timing: Timing) -> Ending:
    """The pod did not become ready in time, with what is known of why."""
    message = f"the pod did not start within {timing.start_timeout:g} s: {why(sandbox)}"
    return Ending(Event.DEADLINE, None, message)


def why(sandbox: Sandbox) -> str:
    """Why the pod is not ready, in the words of the scheduler or the kubelet, where they say anything."""
    pod = sandbox.pod
    if pod is None:
        return "the API server has not reported it"
    if pod.running:
        unknown = f"its container runs, but the operator has not heard of node {pod.node_name!r}"
        return unknown if sandbox.runner.ready else "its container runs, but the runner did not answer"
    if pod.unschedulable:
        return f"the scheduler found no node: {pod.unschedulable}"
    if pod.waiting_message:
        return f"its container is waiting ({pod.waiting_reason}: {pod.waiting_message})"
    if pod.refused:
        return f"the scheduler found a node late; before that it said: {pod.refused}"
    if pod.waiting_reason:
        return f"its container is waiting ({pod.waiting_reason}); {_EVENTS}"
    if not pod.node_name:
        return "the scheduler has assigned no node"
    return f"node {pod.node_name!r} has not started its container; {_EVENTS}"


def connect(
    sandbox: Sandbox,
    now: datetime,
    timing: Timing,
    give_up_at: datetime | None,
    cluster_view: ClusterView | None = None,
) -> Plan | tuple[PodView, Readiness]:
    """What to do until the runner has reported, and its node is known; the pod and the report once that is so.

    Without `cluster_view` its node was known before. Nobody waits any more from `give_up_at` on.
    """
    if sandbox.pod is None or not sandbox.pod.running:
        return Plan(wake_at=give_up_at)
    runner = sandbox.runner
    if runner.link is not PodLink.OPEN:
        attach_at = (runner.closed_at or now) + timedelta(seconds=timing.attach_retry)
        wait = runner.link is PodLink.CLOSED and now < attach_at
        return Plan(wake_at=attach_at) if wait else Plan(actions=(Attach(),), wake_at=give_up_at)
    if runner.ready and cluster_view and awaits_node(sandbox.pod, cluster_view):
        return Plan(wake_at=now + timedelta(seconds=timing.node_retry))
    return (sandbox.pod, runner.ready) if runner.ready else Plan(wake_at=give_up_at)


def prove(
    pod: PodView,
    ready: Readiness,
    cluster_view: ClusterView,
    now: datetime,
    generation: int,
    opened: Sequence[OpenedEgress] = (),
) -> Proven:
    """What the runner's report shows about the pod, for which this was opened."""
    proof = judge(pod.egress_targets, ready.answered, cluster_view.reached_at, now, opened=opened)
    closed = proof.verdict.holds
    shown = condition(
        ConditionType.EGRESS_CLOSED,
        holds=closed,
        reason=proof.verdict.value,
        message=recordable(explain(proof, opened)),
        now=now,
        generation=generation,
    )
    isolation = look_at(pod, ready, cluster_view)
    layers = (USER_NAMESPACE,) * isolation.user_namespace + ("NetworkPolicy",) * closed + ready.layers
    facts = {
        "node_name": pod.node_name,
        "image_id": pod.image_id,
        "boundary": isolation.boundary,
        "layers": layers,
        "egress_proof": proof,
    }
    return Proven(shown, proof, facts, isolation.problem)


def undecided(proven: Proven, policy: ExecutionPolicySpec | PolicyProblem | None) -> bool:
    """True if the proof has to be made again: nothing answered inside, but the operator did not reach all targets.

    After a restart, or when the API server was away, it reaches them some seconds later.
    """
    return proven.proof.verdict is EgressVerdict.UNPROVEN and not warns(policy)


def warns(policy: ExecutionPolicySpec | PolicyProblem | None) -> bool:
    """True if the policy runs code in a network that may be open."""
    return isinstance(policy, ExecutionPolicySpec) and policy.egress_proof is EgressMode.WARN


def refuses(proven: Proven, policy: ExecutionPolicySpec | PolicyProblem | None) -> Ending | None:
    """The end, if the pod was not shown to be as closed as it has to be."""
    if not proven.closed and not warns(policy):
        message = f"{proven.condition.message}. Nothing was run"
        return Ending(Event.REFUSED, Reason.EGRESS_NOT_ENFORCED, message)
    if proven.weaker:
        return Ending(Event.REFUSED, Reason.ISOLATION_NOT_ENFORCED, f"{proven.weaker}. Nothing was run")
    return insufficient(policy, proven.facts["layers"])
