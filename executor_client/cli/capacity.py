"""How many sandboxes fit on the nodes and into the quota: arithmetic on objects of the API server, without I/O.

It counts as Kubernetes' scheduler and its quota do: requests on nodes, and whatever a quota names.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from codeexec_api import PodLimits, PodRequests
from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL, SESSION_LABEL
from codeexec_api.quantities import read_quantity
from codeexec_api.scheduling import PLAIN, Raw, Scheduling
from codeexec_api.v1alpha1.bounds import DEFAULT_REQUESTS

CPU, MEMORY, DISK, PODS = "cpu", "memory", "ephemeral-storage", "pods"
RESOURCES: Final = {"cpu": CPU, "memory": MEMORY, "ephemeral_storage": DISK}
"""Fields of limits and requests, and what Kubernetes calls them."""
_WORDS: Final = {CPU: "CPU requests", MEMORY: "memory requests", DISK: "disk requests", PODS: "pods per node"}
_OURS: Final = (EXECUTION_LABEL, SESSION_LABEL, POOL_LABEL)
_OVER: Final = ("Succeeded", "Failed")

Amounts = Mapping[str, Decimal]
"""By resource, in base units: cores and bytes."""


@dataclass(frozen=True)
class Sandbox:
    """What one sandbox pod requests and may use."""

    requests: Amounts
    """Of the pod, with what its RuntimeClass adds: nodes and quotas count this."""
    limits: Amounts
    container_requests: Amounts
    """Of its one container: LimitRanges count this."""
    container_limits: Amounts
    scheduling: Scheduling = PLAIN

    @classmethod
    def make(cls, requests: PodRequests, limits: PodLimits, runtime_class: Raw | None = None) -> "Sandbox":
        """Of these requests and limits, as the operator makes pods: a pod with a lower limit requests its limit.

        `requests` are those of the policy that counts. Without `runtime_class` it is the node's own runtime.
        """
        overhead = amounts((runtime_class or {}).get("overhead", {}).get("podFixed"))
        most = {kind: read_quantity(getattr(limits, field)) for field, kind in RESOURCES.items()}
        asked = {
            kind: min(read_quantity(getattr(requests, field) or DEFAULT_REQUESTS[field]), most[kind])
            for field, kind in RESOURCES.items()
        }
        return cls(
            requests={kind: amount + overhead.get(kind, 0) for kind, amount in asked.items()},
            limits={kind: amount + overhead.get(kind, 0) for kind, amount in most.items()},
            container_requests=asked,
            container_limits=most,
            scheduling=Scheduling.of(runtime_class),
        )


@dataclass(frozen=True)
class NodeFit:
    """How many sandboxes a node has room for."""

    node: str
    sandboxes: int
    """That are there now, of all namespaces."""
    more: int
    """That fit in addition."""
    bound: str
    """Why not more."""
    at_limits: int
    """That fit, with those that are there, if each of them uses all its limits."""
    open: bool = True
    """False if the scheduler puts no sandboxes there."""


@dataclass(frozen=True)
class QuotaFit:
    """How many sandboxes a ResourceQuota allows in addition; None if this can't be said."""

    quota: str
    more: int | None
    bound: str


@dataclass(frozen=True)
class Total:
    """What holds for all nodes and the namespace together."""

    more: int
    bound: str
    at_limits: int


def amounts(raw: Mapping[str, str] | None) -> dict[str, Decimal]:
    """Quantities by resource, as a node or a container has them."""
    return {kind: read_quantity(value) for kind, value in (raw or {}).items()}


def fits(nodes: Iterable[Raw], pods: Iterable[Raw], sandbox: Sandbox) -> list[NodeFit]:
    """How many sandboxes each node has room for, by name. `pods` are those of all namespaces."""
    by_node: dict[str, list[Raw]] = {}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in _OVER:
            by_node.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
    found = [_fit(node, by_node.get(node["metadata"]["name"], []), sandbox) for node in nodes]
    return sorted(found, key=lambda one: one.node)


def _fit(node: Raw, pods: Sequence[Raw], sandbox: Sandbox) -> NodeFit:
    ours = [pod for pod in pods if any(label in (pod["metadata"].get("labels") or {}) for label in _OURS)]
    name = node["metadata"]["name"]
    if closed := closed_because(node, sandbox):
        return NodeFit(name, len(ours), 0, closed, 0, open=False)
    room = amounts(node["status"].get("allocatable"))
    others = [pod for pod in pods if pod not in ours]
    more, bound = _least(_left(room, pods), {**sandbox.requests, PODS: Decimal(1)})
    at_limits, _ = _least(_left(room, others), {**sandbox.limits, PODS: Decimal(1)})
    return NodeFit(name, len(ours), more, " and ".join(_WORDS[kind] for kind in bound), at_limits)


def _left(room: Amounts, pods: Sequence[Raw]) -> dict[str, Decimal]:
    """What is left of a node's room. A resource that a node doesn't tell of, such as disk, has no bound.

    Only a node that is not set up yet does not tell how many pods it takes: none.
    """
    room = {PODS: Decimal(0), **room}
    asked = [{**requests_of(pod), PODS: Decimal(1)} for pod in pods]
    return {kind: room[kind] - sum(one.get(kind, Decimal(0)) for one in asked) for kind in _WORDS if kind in room}


def _least(left: Amounts, cost: Amounts) -> tuple[int, list[str]]:
    """How often the cost goes into what is left, and which resources are used up first."""
    counts = {kind: max(0, int(have // cost[kind])) for kind, have in left.items() if cost.get(kind)}
    least = min(counts.values())
    return least, [kind for kind, count in counts.items() if count == least]


def closed_because(node: Raw, sandbox: Sandbox) -> str:
    """Why the scheduler puts no sandbox on this node; empty if it may."""
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions") or ()}
    return sandbox.scheduling.closed_because(node) or ("" if conditions.get("Ready") == "True" else "not ready")


def requests_of(pod: Raw) -> dict[str, Decimal]:
    """What a pod requests of its node: as Kubernetes counts containers, sidecars, init containers and overhead."""
    spec = pod["spec"]
    running: Counter[str] = Counter()
    highest: dict[str, Decimal] = {}
    for one in spec.get("initContainers") or ():
        asked = _asked(one)
        if one.get("restartPolicy") == "Always":  # a sidecar, which stays
            running.update(asked)
        peak = running if one.get("restartPolicy") == "Always" else Counter(running) + Counter(asked)
        highest = {kind: max(highest.get(kind, Decimal(0)), Decimal(peak[kind])) for kind in {*highest, *peak}}
    for one in spec.get("containers") or ():
        running.update(_asked(one))
    total = {kind: max(highest.get(kind, Decimal(0)), Decimal(running[kind])) for kind in {*highest, *running}}
    total |= _asked(spec)  # of the pod as a whole, if it has any
    for kind, amount in amounts(spec.get("overhead")).items():
        total[kind] = total.get(kind, Decimal(0)) + amount
    return total


def _asked(thing: Raw) -> Any:
    return amounts((thing.get("resources") or {}).get("requests"))


def quota_fits(quotas: Iterable[Raw], sandbox: Sandbox) -> list[QuotaFit]:
    """How many sandboxes each ResourceQuota allows in addition to what is used."""
    return [_quota_fit(one, sandbox) for one in quotas]


def _quota_fit(quota: Raw, sandbox: Sandbox) -> QuotaFit:
    name, status = quota["metadata"]["name"], quota.get("status") or {}
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        return QuotaFit(name, None, "counts only pods of its scopes")
    if "used" not in status:
        return QuotaFit(name, None, "not counted yet")
    cost = {PODS: Decimal(1), "count/pods": Decimal(1), **sandbox.requests}
    cost |= {f"requests.{kind}": amount for kind, amount in sandbox.requests.items()}
    cost |= {f"limits.{kind}": amount for kind, amount in sandbox.limits.items()}
    used = amounts(status["used"])
    left = {key: hard - used.get(key, 0) for key, hard in amounts(status.get("hard")).items() if cost.get(key)}
    if not left:
        return QuotaFit(name, None, "limits no pods")
    more, bound = _least(left, cost)
    return QuotaFit(name, more, " and ".join(sorted(bound)))


def forbidden(limit_ranges: Iterable[Raw], sandbox: Sandbox) -> list[str]:
    """What LimitRanges have against such a sandbox, which has one container; empty if nothing."""
    return [
        f"LimitRange {one['metadata']['name']!r}: {problem}"
        for one in limit_ranges
        for item in one["spec"]["limits"]
        if item["type"] in ("Container", "Pod")
        for problem in _problems(item, sandbox)
    ]


def _problems(item: Raw, sandbox: Sandbox) -> Iterable[str]:
    requests, limits = sandbox.container_requests, sandbox.container_limits
    for kind, most in amounts(item.get("max")).items():
        if limits.get(kind, Decimal(0)) > most:
            yield f"limits.{kind} is {shown(kind, limits[kind])}, at most {shown(kind, most)} is allowed"
    for kind, least in amounts(item.get("min")).items():
        if kind in requests and requests[kind] < least:
            yield f"requests.{kind} is {shown(kind, requests[kind])}, at least {shown(kind, least)} is allowed"
    for kind, most in amounts(item.get("maxLimitRequestRatio")).items():
        if kind in requests and limits[kind] > most * requests[kind]:
            ratio = limits[kind] / requests[kind]
            yield f"limits.{kind} is {ratio:.1f} times requests.{kind}, at most {most:f} times is allowed"


def total(nodes: Sequence[NodeFit], quotas: Sequence[QuotaFit], problems: Sequence[str] = ()) -> Total:
    """Nodes and quotas together, and what is used up first."""
    at_limits = sum(one.at_limits for one in nodes)
    if problems:
        return Total(0, problems[0], at_limits)
    on_nodes = sum(one.more for one in nodes)
    reasons = Counter(one.bound for one in nodes if one.open)
    bounds = [(on_nodes, reasons.most_common(1)[0][0] if reasons else "no node takes sandboxes")]
    bounds += [(one.more, f"quota {one.quota}, {one.bound}") for one in quotas if one.more is not None]
    more, bound = min(bounds, key=lambda one: one[0])
    return Total(more, bound, at_limits)


def shown(kind: str, amount: Decimal) -> str:
    """An amount for people."""
    if kind == CPU:
        return f"{amount.normalize():f} CPU"
    return f"{amount / 2**20:.0f} MiB" if amount < 10 * 2**30 else f"{amount / 2**30:.0f} GiB"
