"""What was seen of a pod and of its runner, as small frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from codeexec_api import Reason
from codeexec_api.names import SANDBOX_CONTAINER
from codeexec_operator.core.egress import Target, parse_targets
from codeexec_operator.core.pod_reset import Reset
from codeexec_operator.core.readiness import Readiness
from codeexec_operator.manifests.hardening import has_user_namespace
from codeexec_operator.manifests.pod import egress_targets_of


@dataclass(frozen=True)
class PodView:
    """The part of a sandbox pod's status that decisions depend on."""

    version: int = 0
    """Its resource version."""
    running: bool = False
    terminated: str | None = None
    """Reason of the container's or the pod's end, such as `OOMKilled`, `Error` or `DeadlineExceeded`."""
    end_message: str = ""
    """What the kubelet says of the pod's end."""
    exit_code: int | None = None
    last_words: str = ""
    """End of the container's log, if it failed. Until code has started, these are the runner's words."""
    waiting_reason: str = ""
    waiting_message: str = ""
    unschedulable: str = ""
    """Why the scheduler finds no node, in its words."""
    refused: str = ""
    """The same, kept once it has found one: the pod itself doesn't tell it any more."""
    node_name: str = ""
    image_id: str = ""
    runtime_class_name: str | None = None
    user_namespace: bool = False
    """True if it was to have one of its own."""
    started_at: datetime | None = None
    """When the kubelet has taken it up, by the clock of its node; its deadline counts from there."""
    deadline_seconds: int | None = None
    """Its `activeDeadlineSeconds`, which can only be lowered."""
    owner: str = ""
    """UID of the object that it belongs to."""
    deleting: bool = False
    """True if it was deleted, and its node has not yet confirmed that."""
    disruption: str = ""
    """Why Kubernetes takes it away, whatever runs in it; empty if it doesn't."""
    unwell: bool = False
    """True if it is being deleted, is to be evicted, or its node is lost."""
    egress_targets: frozenset[Target] = frozenset()
    """What the runner was told to try."""


def parse_pod(raw: Mapping[str, Any], before: PodView | None = None) -> PodView:
    """From a pod of the API server; `before` is what was seen of it earlier."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    containers = {one["name"]: one for one in status.get("containerStatuses") or ()}
    container = containers.get(SANDBOX_CONTAINER, {})
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    finished = status.get("phase") in ("Succeeded", "Failed")
    # The pod's own reason (DeadlineExceeded, Evicted) explains the container's end, where there is one.
    reason = (status.get("reason") or ended.get("reason") or "Unknown") if finished or ended else None
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    blocked = scheduled.get("message", "") if scheduled.get("status") == "False" else ""
    disruption = _disruption(conditions.get("DisruptionTarget", {}), status)
    return PodView(
        version=int(raw["metadata"].get("resourceVersion", 0)),
        running="running" in state and not finished,
        terminated=reason,
        end_message=status.get("message", "") if finished else "",
        exit_code=ended.get("exitCode"),
        last_words=(ended.get("message") or "").strip()[-500:],
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        unschedulable=blocked,
        refused=blocked or (before.refused if before else ""),
        node_name=spec.get("nodeName", ""),
        image_id=container.get("imageID", ""),
        runtime_class_name=spec.get("runtimeClassName"),
        user_namespace=has_user_namespace(spec),
        started_at=datetime.fromisoformat(status["startTime"]) if status.get("startTime") else None,
        deadline_seconds=spec.get("activeDeadlineSeconds"),
        owner=next((one["uid"] for one in raw["metadata"].get("ownerReferences") or () if one.get("controller")), ""),
        deleting="deletionTimestamp" in raw["metadata"],
        disruption=disruption,
        unwell="deletionTimestamp" in raw["metadata"] or bool(disruption) or _is_lost(conditions, state),
        egress_targets=parse_targets(egress_targets_of(spec)) or frozenset(),
    )


_DISRUPTIONS: Final = {
    "EvictionByEvictionAPI": "it was evicted, as by `kubectl drain`",
    "DeletionByTaintManager": "its node got a taint with effect NoExecute, as a node that is lost does",
    "DeletionByPodGC": "its node no longer exists",
    "PreemptionByScheduler": "a pod of higher priority needed its place",
}
"""By the reason of the condition `DisruptionTarget`."""
_ENDED_BY_NODE: Final = ("Terminated", "NodeShutdown", "Preempting", "NodeLost")
"""The kubelet's reasons that tell the same without the condition."""


def _disruption(target: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """A pod that the kubelet evicts for what the pod itself has used too much of has no such condition."""
    reason, message = target.get("reason", ""), target.get("message", "")
    if target.get("status") != "True":
        if status.get("reason") not in _ENDED_BY_NODE:
            return ""
        reason, message = status["reason"], status.get("message", "")
    said = message.strip().removesuffix(".") or reason or "no reason was given"
    return _DISRUPTIONS.get(reason) or f"its node ended it ({said})"


def _is_lost(conditions: Mapping[str, Mapping[str, Any]], state: Mapping[str, Any]) -> bool:
    # For the kubelet, such a pod is ready if its containers are. Once the node has not answered for a while, the node
    # controller says that the pod is not, and leaves the other condition alone. The two have clocks of their own.
    said = [conditions.get(kind, {}).get("status") for kind in ("ContainersReady", "Ready")]
    return "running" in state and said == ["True", "False"]


class PodLink(Enum):
    """The connection of this process to the runner of a pod."""

    NONE = "none"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True)
class RunnerView:
    """What this process knows of a runner, by its connection to it."""

    link: PodLink = PodLink.NONE
    asked_at: datetime | None = None
    """When the connection was begun, over which it was asked for its report."""
    closed_at: datetime | None = None
    ready: Readiness | None = None
    handed: str = ""
    """The job that was handed over last by this connection, until the runner says that it is over; empty if none.

    Or a job that was found, of which nobody wants to hear, and whose end was asked for.
    """
    handed_at: datetime | None = None
    """When it was handed over, or its end was asked for."""
    heard_at: datetime | None = None
    """When anything last came from it."""
    pinged_at: datetime | None = None
    """When it was last asked whether it is still there."""
    problem: str = ""
    """What came was not what a runner sends."""
    reset: Reset | None = None
    """What it has said of its pod after its latest job, if it was asked."""
    refused_since: datetime | None = None
    """Since when each attempt to connect was refused by the API server, or not answered, because of the pod's node."""


@dataclass(frozen=True)
class Fault:
    """An action that the API server refused for good."""

    reason: Reason
    message: str
    admission: bool = False
    """True if an admission policy of the chart refused it, which may be older than what the operator knows."""


@dataclass(frozen=True)
class Sandbox:
    """A pod, from its creation to its end, and the runner in it."""

    pod: PodView | None = None
    requested: bool = False
    heard_at: datetime | None = None
    """When anything last came of it: its creation, an event, or the answer to a look for it."""
    placed_at: datetime | None = None
    """When it was first seen to have a node, by this process and its clock."""
    runs_since: datetime | None = None
    """When it was first seen to run."""
    gone: bool = False
    over_at: datetime | None = None
    """When its end was first seen."""
    deleted_at: datetime | None = None
    """When this process had it deleted last."""
    fault: Fault | None = None
    runner: RunnerView = field(default_factory=RunnerView)


def placed_since(sandbox: Sandbox, pod: PodView, now: datetime) -> datetime | None:
    """The next `placed_at` of a sandbox whose pod was seen like this."""
    return sandbox.placed_at or (now if pod.node_name else None)


def seen_again(sandbox: Sandbox, raw: Mapping[str, Any], now: datetime, *, deleted: bool) -> Sandbox:
    """The sandbox whose pod was seen like this, changed or deleted.

    A read may be answered after a watch has told of a later version. That version stays.
    """
    pod = parse_pod(raw, sandbox.pod)
    if sandbox.pod and pod.version < sandbox.pod.version and not deleted:
        return sandbox
    return replace(sandbox, pod=pod, gone=deleted, placed_at=placed_since(sandbox, pod, now))


def is_blocked(sandbox: Sandbox) -> bool:
    """True if the scheduler finds no node for the pod."""
    return sandbox.pod is not None and bool(sandbox.pod.unschedulable)


def lacks_room(sandbox: Sandbox) -> bool:
    """True if that is for want of room, which pods that go make."""
    words = sandbox.pod.unschedulable if sandbox.pod else ""
    return "Insufficient" in words or "Too many pods" in words


def is_usable(sandbox: Sandbox) -> bool:
    """True if code can be handed to this pod at this moment."""
    pod, runner = sandbox.pod, sandbox.runner
    here = pod is not None and pod.running and not pod.unwell and not sandbox.gone
    return here and runner.link is PodLink.OPEN and runner.ready is not None and not runner.problem
