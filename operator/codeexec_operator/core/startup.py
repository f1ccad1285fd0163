"""From a pod that was asked for to a runner that is ready: what executions and sessions have in common."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import (
    Condition,
    ConditionType,
    EgressMode,
    EgressProof,
    EgressVerdict,
    Event,
    ExecutionPolicySpec,
    Reason,
    condition,
    find_condition,
)
from codeexec_operator.core.actions import Attach, Plan
from codeexec_operator.core.egress import explain, judge
from codeexec_operator.core.observed import PodLink, PodView, PolicyProblem, Sandbox
from codeexec_operator.core.surroundings import Surroundings
from codeexec_operator.core.transcript import Readiness

MESSAGE_LENGTH: Final = 4096


@dataclass(frozen=True)
class Timing:
    """Limits of the operator's own patience, in seconds."""

    payload_grace: float = 5
    """How long payload and session may come after the CodeExecution; clients create them at once."""
    payload_retry: float = 0.1
    start_timeout: float = 60
    """From accepted to running: scheduling, image pull, container start."""
    attach_retry: float = 1
    exit_grace: float = 15
    """How long a runner that has reported its end may take to exit, before its pod is deleted."""
    grace: float = 5
    """What the runner gets beyond its own limits before the pod is deleted under it."""
    kernel_start: float = 30
    """What it gets in addition where a new IPython kernel may have to be started."""
    transfer: float = 60
    """What files that go in or come out may take in addition."""
    list_grace: float = 15
    """How long it may take, after a start of the operator, until what there is was listed."""
    use_recorded: float = 30
    """How old what the record says of a session's use may get."""


@dataclass(frozen=True)
class Ending:
    """How something ends, in the words of the record."""

    event: Event
    reason: Reason | None
    message: str


@dataclass(frozen=True)
class Proven:
    """What is known of a pod whose runner has reported, for the record."""

    condition: Condition
    proof: EgressProof
    facts: dict[str, Any]
    """Fields of the status."""

    @property
    def closed(self) -> bool:
        """True if it was shown that nothing leaves the sandbox."""
        return self.proof.verdict is EgressVerdict.CLOSED


_WAITING_FAULTS: Final = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.POD_REFUSED,
    "CreateContainerError": Reason.POD_REFUSED,
    "RunContainerError": Reason.POD_REFUSED,
}
_NOT_STARTED: Final = "StartError"  # the container runtime's, before any program ran


def failure(sandbox: Sandbox) -> Ending | None:
    """Why no code can run in this pod any more, if so."""
    pod = sandbox.pod
    if sandbox.fault:
        return Ending(Event.FAULT, sandbox.fault.reason, sandbox.fault.message)
    if sandbox.gone:
        return Ending(Event.VANISHED, Reason.POD_LOST, "the pod was deleted before the code started")
    if sandbox.runner.problem:
        return Ending(Event.FAULT, Reason.RUNNER_FAILED, sandbox.runner.problem)
    if pod is None:
        return None
    if pod.waiting_reason in _WAITING_FAULTS:
        reason = _WAITING_FAULTS[pod.waiting_reason]
        hint = "check that the image exists and that the node may pull it; " if "Image" in reason.value else ""
        return Ending(Event.FAULT, reason, f"{pod.waiting_reason}: {hint}{pod.waiting_message}")
    if pod.terminated:
        message = f"the runner ended before the code started ({pod.terminated}, exit code {pod.exit_code})"
        hint = "" if pod.terminated == _NOT_STARTED else "; is it a sandbox image of codeexec?"
        said = f" It said: {pod.last_words}" if pod.last_words else ""
        return Ending(Event.FAULT, Reason.RUNNER_FAILED, f"{message}{hint}{said}")
    return None


def give_up_at(conditions: Iterable[Condition], now: datetime, timing: Timing) -> datetime:
    """Until when the pod has to be ready: so long after it was accepted."""
    accepted = find_condition(conditions, ConditionType.ACCEPTED)
    return (accepted.last_transition_time if accepted else now) + timedelta(seconds=timing.start_timeout)


def late(sandbox: Sandbox, timing: Timing) -> Ending:
    """The pod did not become ready in time, with what is known of why."""
    message = f"the pod did not start within {timing.start_timeout:g} s: {_why(sandbox.pod) or 'no reason was given'}"
    return Ending(Event.DEADLINE, None, message)


def _why(pod: PodView | None) -> str:
    if pod is None:
        return ""
    if pod.running:
        return "its container runs, but the runner did not answer"
    return pod.unschedulable or pod.waiting_message


def connect(sandbox: Sandbox, now: datetime, timing: Timing, give_up_at: datetime | None) -> Plan | None:
    """What to do until the runner has reported; None once it has."""
    if sandbox.pod is None or not sandbox.pod.running:
        return Plan(wake_at=give_up_at)
    runner = sandbox.runner
    if runner.link is not PodLink.OPEN:
        attach_at = (runner.closed_at or now) + timedelta(seconds=timing.attach_retry)
        wait = runner.link is PodLink.CLOSED and now < attach_at
        return Plan(wake_at=attach_at) if wait else Plan(actions=(Attach(),), wake_at=give_up_at)
    return None if runner.ready else Plan(wake_at=give_up_at)


def prove(pod: PodView, ready: Readiness, surroundings: Surroundings, now: datetime, generation: int) -> Proven:
    """What the runner's report shows about the pod."""
    proof = judge(pod.egress_targets, ready.answered, surroundings.reached_at, now)
    closed = proof.verdict is EgressVerdict.CLOSED
    shown = condition(
        ConditionType.EGRESS_CLOSED,
        holds=closed,
        reason=proof.verdict.value,
        message=explain(proof)[:MESSAGE_LENGTH],
        now=now,
        generation=generation,
    )
    layers = ("UserNamespace",) * pod.user_namespace + ("NetworkPolicy",) * closed + ready.layers
    facts = {"node_name": pod.node_name, "image_id": pod.image_id, "layers": layers, "egress_proof": proof}
    return Proven(shown, proof, facts)


def warns(policy: ExecutionPolicySpec | PolicyProblem) -> bool:
    """True if the policy runs code in a network that may be open."""
    return not isinstance(policy, PolicyProblem) and policy.egress_proof is EgressMode.WARN


def refuses(proven: Proven, policy: ExecutionPolicySpec | PolicyProblem) -> Ending | None:
    """The end, if the policy takes no less than a network that was shown to be closed."""
    if proven.closed or warns(policy):
        return None
    message = f"{proven.condition.message}. No code was run"
    return Ending(Event.REFUSED, Reason.EGRESS_NOT_ENFORCED, message)
