"""What is read from nodes, and what follows for pods."""

from typing import Any

import pytest
from factories import NOW, seconds

from codeexec_api.scheduling import PLAIN, Scheduling
from codeexec_operator.core.cluster_view import (
    KUBELETS,
    ClusterView,
    NodeView,
    RuntimeClass,
    kubelet_targets,
    parse_endpoints,
    parse_node,
    parse_runtime_class,
)
from codeexec_operator.core.egress import Target

RUNC = {"name": "", "features": {"userNamespaces": True}}
RUNSC = {"name": "runsc", "features": {"userNamespaces": False}}


BOXES = {
    "metadata": {"name": "boxes"},
    "handler": "",
    "scheduling": {
        "nodeSelector": {"pool": "sandboxes"},
        "tolerations": [{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
"""A RuntimeClass of dedicated nodes, as docs/install.md has it."""


def a_node(name: str = "node-1", **changes: Any) -> dict[str, Any]:
    status = {
        "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "172.18.0.2"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {"operatingSystem": "linux", "kubeletVersion": "v1.34.4"},
        "runtimeHandlers": [RUNC, RUNSC],
    }
    metadata = {"name": name, "labels": changes.pop("labels", {})}
    return {"metadata": metadata, "spec": changes.pop("spec", {}), "status": status | changes}


def boxes(count: int, **changes: Any) -> list[dict[str, Any]]:
    """Dedicated nodes."""
    taint = {"key": "sandboxes", "value": "only", "effect": "NoSchedule"}
    made = {"labels": {"pool": "sandboxes"}, "spec": {"taints": [taint]}, **changes}
    return [a_node(f"box-{number}", **made) for number in range(count)]


def cluster_view(*nodes: dict[str, Any]) -> ClusterView:
    classes = {"gvisor": RuntimeClass("runsc"), "crun": RuntimeClass(""), "boxes": parse_runtime_class(BOXES)}
    schedulings = {PLAIN, *(one.scheduling for one in classes.values())}
    return ClusterView(nodes=tuple(parse_node(one, schedulings) for one in nodes), runtime_classes=classes)


def test_a_node_is_parsed() -> None:
    assert parse_node(a_node()) == NodeView(
        "node-1", "172.18.0.2", 10250, frozenset({PLAIN}), frozenset({""}), frozenset({"172.18.0.2"})
    )


def test_a_node_answers_at_the_first_addresses_of_its_pods_network_too() -> None:
    node = a_node(spec={"podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64", "none"]})
    assert parse_node(node).addresses == {
        "172.18.0.2",
        "10.244.1.0",
        "10.244.1.1",
        "fd00:10:244:1::",
        "fd00:10:244:1::1",
    }


def test_api_servers_are_all_endpoints_ready_or_not() -> None:
    slices = [
        {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.10"], "conditions": {"ready": False}}]},
        {"addressType": "IPv6", "endpoints": [{"addresses": ["2001:db8::10"]}, {"addresses": ["2001:db8::11"]}]},
        {"addressType": "IPv4", "endpoints": None},
    ]
    assert parse_endpoints(slices) == {"192.0.2.10", "2001:db8::10", "2001:db8::11"}
    assert parse_endpoints([]) == frozenset()


def test_a_node_that_says_nothing_can_do_nothing() -> None:
    view = parse_node({"metadata": {"name": "bare"}})
    assert (view.address, view.kubelet_port, view.user_namespace_handlers) == ("", 0, frozenset())
    assert kubelet_targets([view]) == []
    assert kubelet_targets([parse_node(a_node(addresses=[])), parse_node(a_node(daemonEndpoints={}))]) == []


def test_a_few_kubelets_are_targets() -> None:
    nodes = [parse_node(a_node(f"node-{number}")) for number in (3, 1, 2)]
    assert kubelet_targets(nodes) == [Target("kubelet", "172.18.0.2", 10250)] * KUBELETS


@pytest.mark.parametrize(
    ("nodes", "runtime_class", "expected"),
    [
        ([a_node()], None, True),
        ([a_node(), a_node(runtimeHandlers=[RUNSC])], None, False),
        ([a_node(), a_node(runtimeHandlers=None)], None, False),
        ([a_node()], "gvisor", False),
        ([a_node()], "crun", True),
        ([a_node()], "unknown", False),
        ([], None, False),
    ],
    ids=["all can", "one can't", "one is older", "the runtime can't", "a class of the same handler", "unknown", "none"],
)
def test_a_user_namespace_is_asked_for_where_every_node_has_it(nodes: Any, runtime_class: Any, expected: bool) -> None:
    assert cluster_view(*nodes).user_namespace(runtime_class) is expected


CORDON = {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}
NOT_READY = {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}


@pytest.mark.parametrize("closed", [CORDON, NOT_READY])
def test_a_node_that_takes_no_pods_for_a_while_changes_nothing_that_pods_ask_for(closed: dict[str, Any]) -> None:
    [box] = boxes(1)
    spec = {**closed, "taints": [*box["spec"]["taints"], *closed["taints"]]}
    view = cluster_view(a_node(), *boxes(1, spec=spec))
    assert (view.open_nodes("boxes"), view.user_namespace("boxes")) == (0, True)
    assert not cluster_view(a_node(), *boxes(1, spec=spec, runtimeHandlers=None)).user_namespace("boxes")  # control


@pytest.mark.parametrize(("handlers", "expected"), [([RUNC], True), ([RUNSC], False)])
def test_where_a_class_has_no_nodes_yet_those_of_plain_pods_count(handlers: Any, expected: bool) -> None:
    """A group that an autoscaler has scaled to zero, for example: the first pod that waits brings a node."""
    view = cluster_view(a_node(runtimeHandlers=handlers))
    assert (view.open_nodes("boxes"), view.user_namespace("boxes")) == (0, expected)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.31.14", False),
        ("v1.32.13", False),
        ("v1.32.9-gke.1210000", False),
        ("v1.33.0", True),
        ("v1.33.5-eks-113cf36", True),
        ("v1.34.4+k3s1", True),
        ("v1.100.0", True),
        ("v2.0.0", True),
        ("v0.34.0", False),
        ("unknown v1.34.0", False),
        ("", False),
    ],
)
def test_what_the_runtime_could_do_counts_from_the_kubelet_on_that_lets_it(version: str, expected: bool) -> None:
    node = a_node(nodeInfo={"operatingSystem": "linux", "kubeletVersion": version})
    assert cluster_view(node).user_namespace(None) is expected
    assert cluster_view(a_node(), node).user_namespace(None) is expected


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "control-plane", "effect": "NoSchedule"}]}},
        {"nodeInfo": {"operatingSystem": "windows"}},
    ],
    ids=["cordoned", "tainted", "another system"],
)
def test_nodes_that_get_no_sandboxes_have_no_say(changes: Any) -> None:
    other = a_node("other", runtimeHandlers=[], **changes)
    assert cluster_view(a_node(), other).user_namespace(None)
    assert not cluster_view(other).user_namespace(None)


CONTROL_PLANE = a_node(
    "cp", spec={"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
)


@pytest.mark.parametrize(
    ("nodes", "dedicated", "without_a_class"),
    [
        ([CONTROL_PLANE, *boxes(20)], (20, True), (0, False)),
        ([a_node(runtimeHandlers=[]), *boxes(20)], (20, True), (1, False)),
        ([a_node(), *boxes(20, runtimeHandlers=[])], (20, False), (1, True)),
    ],
    ids=["all workers are dedicated", "the other node lacks it", "dedicated nodes lack it"],
)
def test_the_nodes_of_a_runtime_class_count_for_its_pods(nodes: Any, dedicated: Any, without_a_class: Any) -> None:
    view = cluster_view(*nodes)
    assert (view.open_nodes("boxes"), view.user_namespace("boxes")) == dedicated
    assert (view.open_nodes(None), view.user_namespace(None)) == without_a_class


def test_pods_of_a_class_that_is_not_known_get_no_user_namespace_and_start_as_those_without_a_class() -> None:
    view = cluster_view(a_node(), *boxes(2))
    assert (view.user_namespace("unknown"), view.open_nodes("unknown")) == (False, 1)
    assert view.scheduling("unknown") == view.scheduling(None) == view.scheduling("gvisor") == PLAIN
    assert view.scheduling("boxes") == Scheduling.of(BOXES)


def test_nodes_of_one_kind_share_what_is_kept_of_them() -> None:
    one, other = (parse_node(node, [PLAIN, Scheduling.of(BOXES)]) for node in boxes(2))
    assert one.meant_for is other.meant_for
    assert one.user_namespace_handlers is other.user_namespace_handlers


def test_targets_are_those_that_answered_lately() -> None:
    old, new = Target("dns", "10.96.0.10", 53), Target("api-server", "10.96.0.1", 443)
    seen = ClusterView(reached_at={old: NOW, new: NOW + seconds(10)})
    assert seen.targets(NOW + seconds(20)) == (new, old)
    assert seen.targets(NOW + seconds(21)) == (new,)


def test_what_is_required_is_tried_even_if_it_does_not_answer_now() -> None:
    name_server, kubelet = Target("dns", "10.96.0.10", 53), Target("kubelet", "172.18.0.2", 10250)
    seen = ClusterView(required=(name_server,), reached_at={kubelet: NOW})
    assert seen.targets(NOW) == (name_server, kubelet)
