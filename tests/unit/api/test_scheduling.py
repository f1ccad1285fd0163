"""On which nodes pods of a RuntimeClass may land: as the scheduler decides, and as operator and client count them."""

from typing import Any

import pytest

from codeexec_api import Limits, PodRequests
from codeexec_api.scheduling import PLAIN, Scheduling
from codeexec_operator.core.cluster_view import ClusterView, parse_node, parse_runtime_class
from executor_client.cli.capacity import Sandbox, fits

TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
LABELS = {"kind": "kata", "zone": "a"}


def a_node(*, labels: dict[str, str] | None = None, system: str | None = "linux", **spec: Any) -> dict[str, Any]:
    status: dict[str, Any] = {
        "nodeInfo": {"operatingSystem": system, "kubeletVersion": "v1.34.4"},
        "runtimeHandlers": [{"name": "kata", "features": {"userNamespaces": True}}],
        "allocatable": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": "one", "labels": labels}, "spec": spec, "status": status}


def a_class(**scheduling: Any) -> dict[str, Any]:
    return {"metadata": {"name": "boxes"}, "handler": "kata", "scheduling": scheduling}


NODES = {
    "": a_node(labels=LABELS),
    "cordoned": a_node(labels=LABELS, unschedulable=True),
    "lacks the label kind=kata": a_node(labels={"kind": "runc"}),
    "taint gpu:NoSchedule": a_node(labels=LABELS, taints=[TAINT]),
    "taint gpu:NoExecute": a_node(labels=LABELS, taints=[{**TAINT, "effect": "NoExecute"}]),
    "runs windows, not linux": a_node(labels=LABELS, system="windows"),
}


@pytest.mark.parametrize("why", NODES)
def test_a_node_that_takes_no_pods_says_why(why: str) -> None:
    assert Scheduling.of(a_class(nodeSelector={"kind": "kata"})).closed_because(NODES[why]) == why


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (a_node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), ""),
        (a_node(taints=[{"key": "full", "effect": "NoSchedule"}]), "taint full:NoSchedule"),
        (a_node(system=""), ""),
        ({"metadata": {"name": "bare"}}, ""),
    ],
    ids=["only a preference", "a taint without a value", "a system that is not known", "bare"],
)
def test_pods_without_a_class_go_where_nothing_keeps_them_off(node: Any, why: str) -> None:
    assert PLAIN.closed_because(node) == why


def test_each_label_and_each_taint_counts() -> None:
    both = Scheduling.of(a_class(nodeSelector={"zone": "a", "kind": "kata"}))
    assert both.closed_because(a_node(labels={"kind": "kata"})) == "lacks the label zone=a"
    one = Scheduling.of(a_class(tolerations=[{"key": "gpu", "operator": "Exists"}]))
    assert one.closed_because(a_node(taints=[TAINT])) == ""
    other = {"key": "spot", "effect": "NoExecute"}
    assert one.closed_because(a_node(taints=[TAINT, other])) == "taint spot:NoExecute"


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu"}, False),
        ({"value": "yes"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "other", "value": "yes"}, False),
        ({"key": "gpu", "operator": "Gt", "value": "yes"}, False),
    ],
)
def test_a_toleration_opens_what_the_scheduler_opens_for_it(toleration: Any, tolerated: bool) -> None:
    found = Scheduling.of(a_class(tolerations=[toleration])).closed_because(a_node(taints=[TAINT]))
    assert found == ("" if tolerated else "taint gpu:NoSchedule")


def test_a_taint_without_a_value_has_an_empty_one() -> None:
    node = a_node(taints=[{"key": "gpu", "effect": "NoSchedule"}])
    assert Scheduling.of(a_class(tolerations=[{"key": "gpu"}])).closed_because(node) == ""


def test_classes_that_add_the_same_are_equal() -> None:
    assert Scheduling.of(None) == Scheduling.of({"handler": "runc"}) == Scheduling.of(a_class()) == PLAIN
    one, other = {"kind": "kata", "zone": "a"}, {"zone": "a", "kind": "kata"}
    assert len({Scheduling.of(a_class(nodeSelector=labels)) for labels in (one, other)}) == 1


@pytest.mark.parametrize("tolerations", [[], [{"key": "gpu", "operator": "Exists"}]], ids=["none", "one"])
@pytest.mark.parametrize("node_selector", [{}, {"kind": "kata"}, {"kind": "runc"}], ids=str)
@pytest.mark.parametrize("why", NODES)
def test_operator_and_doctor_count_the_same_nodes(why: str, node_selector: Any, tolerations: Any) -> None:
    raw = a_class(nodeSelector=node_selector, tolerations=tolerations)
    known = parse_runtime_class(raw)
    view = ClusterView(nodes=(parse_node(NODES[why], [PLAIN, known.scheduling]),), runtime_classes={"boxes": known})
    for name, of_class in (("boxes", raw), (None, None)):
        [fit] = fits([NODES[why]], [], Sandbox.make(PodRequests(), Limits(), of_class))
        assert view.open_nodes(name) == fit.open == bool(fit.more)
    assert view.user_namespace("boxes") or not view.open_nodes("boxes")
