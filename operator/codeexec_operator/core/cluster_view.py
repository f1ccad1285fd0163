"""What the operator knows of the cluster around the sandboxes: which targets answer, and which runtimes can do what."""

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Final

from codeexec_api.image_signatures import ImageKey
from codeexec_api.permits import Network, Reserved
from codeexec_api.scheduling import PLAIN, Scheduling
from codeexec_api.v1alpha1.bounds import MAX_EGRESS_TARGETS
from codeexec_operator.core.egress import FRESH, Target

KUBELETS: Final = 2
"""How many nodes' kubelets are used as targets; one would do where the network treats all nodes alike."""

USER_NAMESPACES_FROM: Final = (1, 33)
"""From this Kubernetes on pods get user namespaces by default. Kubelets of 1.31 and 1.32 tell what the runtime could
do, but start no pod with `hostUsers: false`, and API servers of that age drop the field. No kubelet is newer than its
API server, so the kubelet's version tells of both."""


@dataclass(frozen=True)
class RuntimeClass:
    """The part of a RuntimeClass that decisions depend on."""

    handler: str
    scheduling: Scheduling = PLAIN


def parse_runtime_class(raw: Mapping[str, Any]) -> RuntimeClass:
    """From a RuntimeClass of the API server."""
    return RuntimeClass(raw["handler"], Scheduling.of(raw))


@dataclass(frozen=True)
class NodeView:
    """The part of a node that decisions depend on."""

    name: str
    address: str
    kubelet_port: int
    meant_for: frozenset[Scheduling]
    """Which pods may land here, now or later. The node's labels and taints, which may be many, are not kept."""
    user_namespace_handlers: frozenset[str]
    """Handlers of the container runtime with which a pod gets its own user namespace; "" is the default one."""
    addresses: frozenset[str] = frozenset()
    """All its addresses that are known: those in its status, and the first ones of its pods' network, where it has its
    own, if it has one there."""
    boot_id: str = ""
    """What its kernel has made up when it was started."""
    closed_to: frozenset[Scheduling] = frozenset()
    """Which of these pods may not land here now: the node is cordoned, for example."""

    @property
    def kubelet(self) -> Target | None:
        """Where its kubelet answers, if that is known."""
        return Target("kubelet", self.address, self.kubelet_port) if self.address and self.kubelet_port else None


@lru_cache(maxsize=256)
def _shared(found: frozenset[Any]) -> frozenset[Any]:
    """One object for all sets that are equal: the nodes of a cluster are of few kinds."""
    return found


def parse_node(raw: Mapping[str, Any], schedulings: Collection[Scheduling] = (PLAIN,)) -> NodeView:
    """From a node of the API server, for pods of which each has one of these schedulings."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    addresses = status.get("addresses") or ()
    internal = [address["address"] for address in addresses if address["type"] == "InternalIP"]
    endpoint = (status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}
    system = status.get("nodeInfo") or {}
    handlers = status.get("runtimeHandlers") or () if _gives_user_namespaces(system.get("kubeletVersion", "")) else ()
    meant_for = [one for one in schedulings if not one.never_because(raw)]
    return NodeView(
        name=raw["metadata"]["name"],
        address=internal[0] if internal else "",
        kubelet_port=endpoint.get("Port") or 0,
        meant_for=_shared(frozenset(meant_for)),
        closed_to=_shared(frozenset(one for one in meant_for if one.closed_because(raw))),
        user_namespace_handlers=_shared(
            frozenset(one.get("name", "") for one in handlers if (one.get("features") or {}).get("userNamespaces"))
        ),
        boot_id=system.get("bootID", ""),
        addresses=frozenset(
            [address["address"] for address in addresses if address["type"] in ("InternalIP", "ExternalIP")]
            + [address for pods in spec.get("podCIDRs") or () for address in _first_addresses(pods)]
        ),
    )


def _gives_user_namespaces(kubelet_version: str) -> bool:
    number = re.match(r"v(\d+)\.(\d+)", kubelet_version)
    return number is not None and (int(number[1]), int(number[2])) >= USER_NAMESPACES_FROM


def _first_addresses(network: str) -> list[str]:
    try:
        return [str(address) for address in islice(ipaddress.ip_network(network), 2)]
    except ValueError:
        return []


def parse_endpoints(slices: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Addresses of all endpoints, from the EndpointSlices of a Service; one that isn't ready may be so again."""
    return frozenset(
        address for part in slices for endpoint in part.get("endpoints") or () for address in endpoint["addresses"]
    )


def _single(address: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The network of one address; None for a name, as some clusters give their API server."""
    try:
        return ipaddress.ip_network(address)
    except ValueError:
        return None


def kubelet_targets(nodes: Iterable[NodeView]) -> list[Target]:
    """Kubelets of the first nodes, by name."""
    known = sorted((node for node in nodes if node.kubelet), key=lambda node: node.name)
    return [node.kubelet for node in known[:KUBELETS] if node.kubelet]


_Places = tuple[int, frozenset[str]]
"""How many nodes pods may land on, and the handlers with which each of these nodes gives a user namespace."""
_NOWHERE: Final[_Places] = (0, frozenset())


@dataclass(frozen=True)
class ClusterView:
    """The cluster, as it was seen last."""

    required: tuple[Target, ...] = ()
    """Targets that every proof has to try, whether they answer the operator at the moment or not."""
    reached_at: Mapping[Target, datetime] = field(default_factory=dict)
    """When each target last answered the operator."""
    nodes: tuple[NodeView, ...] = ()
    runtime_classes: Mapping[str, RuntimeClass] = field(default_factory=dict)
    """By name. Nodes were read for the schedulings of these."""
    api_servers: frozenset[str] = frozenset()
    """Addresses behind the Service of the API server; empty until they are known."""
    image_keys: tuple[ImageKey, ...] = ()
    """Public keys of the owner's, of which one must have signed an image; if there are none, nobody need have."""
    never_permit: tuple[Network, ...] = ()
    """What the platform owner has named besides."""

    def targets(self, now: datetime) -> tuple[Target, ...]:
        """What a sandbox that starts at this time has to try: what is required, and what else answered lately."""
        # Well before FRESH is over: when the proof is judged, some seconds later, it has to have answered since.
        fresh = {target for target, when in self.reached_at.items() if now - when <= FRESH / 3}
        return (*self.required, *sorted(fresh - set(self.required)))[:MAX_EGRESS_TARGETS]

    @cached_property
    def node(self) -> Mapping[str, NodeView]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def kubelets(self) -> frozenset[Target]:
        """Of all nodes."""
        return frozenset(node.kubelet for node in self.nodes if node.kubelet)

    @cached_property
    def reserved(self) -> tuple[Reserved, ...]:
        """Addresses that no permit opens: of what every proof tries, of API servers and nodes, and the owner's."""
        named = [(target.address, f"addresses of the {target.name}") for target in self.required]
        named += [(address, "addresses of the api-server") for address in sorted(self.api_servers)]
        named += [(address, "addresses of nodes") for node in self.nodes for address in sorted(node.addresses)]
        seen = [(network, what) for address, what in dict(reversed(named)).items() if (network := _single(address))]
        return (*seen, *((net, "addresses that the chart's sandbox.neverPermit names") for net in self.never_permit))

    @property
    def unknown(self) -> str:
        """What has not been seen yet of the addresses that no permit may open; empty if all of it has."""
        if not self.nodes:
            return "the nodes"
        return "" if self.api_servers else "the API server's EndpointSlices"

    def handler(self, runtime_class_name: str | None) -> str | None:
        """That of a RuntimeClass; empty for the nodes' default runtime, None for a class that is not known."""
        known = self.runtime_classes.get(runtime_class_name or "")
        return known.handler if known else (None if runtime_class_name else "")

    def scheduling(self, runtime_class_name: str | None) -> Scheduling:
        """What a RuntimeClass adds to its pods for the scheduler; nothing for a class that is not known."""
        known = self.runtime_classes.get(runtime_class_name or "")
        return known.scheduling if known else PLAIN

    def boot_id(self, node_name: str) -> str:
        """That of a node's kernel; empty if the node is not known."""
        return self.node[node_name].boot_id if node_name in self.node else ""

    def open_nodes(self, runtime_class_name: str | None) -> int:
        """How many nodes a pod of this class may land on now."""
        return self._open.get(self.scheduling(runtime_class_name), _NOWHERE)[0]

    def user_namespace(self, runtime_class_name: str | None) -> bool:
        """True if every node that a pod of this class may land on can give it a user namespace of its own.

        If none takes such pods now, those count that will take them again: what pods ask for doesn't change with each
        cordon. If there are none at all, as in a group that is scaled to zero, those of pods without a class count.
        """
        scheduling = self.scheduling(runtime_class_name)
        found = self._open.get(scheduling) or self._all.get(scheduling) or self._open.get(PLAIN, _NOWHERE)
        return self.handler(runtime_class_name) in found[1]

    @cached_property
    def _open(self) -> Mapping[Scheduling, _Places]:
        return _places((node.meant_for - node.closed_to, node.user_namespace_handlers) for node in self.nodes)

    @cached_property
    def _all(self) -> Mapping[Scheduling, _Places]:
        return _places((node.meant_for, node.user_namespace_handlers) for node in self.nodes)


def _places(nodes: Iterable[tuple[frozenset[Scheduling], frozenset[str]]]) -> Mapping[Scheduling, _Places]:
    found: dict[Scheduling, _Places] = {}
    for schedulings, given in nodes:
        for one in schedulings:
            count, handlers = found.get(one, (0, given))
            found[one] = (count + 1, handlers & given)
    return found
