"""No pod of a sandbox namespace is made weaker while it is there, and each can be deleted.

The places are those of test_pod_admission.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import simulated_kubelets
from cluster_tools import SANDBOX, a_name, a_session, an_execution, wait_for
from factories import a_raw_spec
from kube import Kube
from pod_places import POLICY, Place
from weaker_pods import a_hardened_pod

from codeexec_api import CodeExecution, CodeSession
from codeexec_api.names import (
    API_VERSION,
    EGRESS_LABEL,
    EXECUTION_KIND,
    EXECUTION_LABEL,
    POOL_KIND,
    POOL_LABEL,
    SANDBOX_CONTAINER,
    SESSION_KIND,
    TEMPLATE_LABEL,
)
from codeexec_operator.manifests.pod import build_adoption, owner_reference

OTHER_IMAGE = "registry.example/other@sha256:" + "b" * 64
DEBUGGER = {
    "name": "debugger",
    "image": OTHER_IMAGE,
    "targetContainerName": SANDBOX_CONTAINER,
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    },
}
ADDED_BY_KUBERNETES = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
]


def resources(**changed: dict[str, str]) -> dict[str, Any]:
    """Limits or requests alone, so that the pod stays Burstable: the API server refuses another class by itself."""
    return {"containers": [{"name": SANDBOX_CONTAINER, "resources": changed}]}


CHANGES = {
    "another image": ("", "spec.containers", {"containers": [{"name": SANDBOX_CONTAINER, "image": OTHER_IMAGE}]}),
    "an image by tag": ("", "spec.containers", {"containers": [{"name": SANDBOX_CONTAINER, "image": "sandbox:1"}]}),
    "a container to debug": ("ephemeralcontainers", "spec.ephemeralContainers", {"ephemeralContainers": [DEBUGGER]}),
    "larger limits": ("resize", "spec.containers", resources(limits={"cpu": "60m", "memory": "80Mi"})),
    "other requests": ("resize", "spec.containers", resources(requests={"cpu": "1m"})),
    "tolerations": ("", "spec.tolerations", {"tolerations": [*ADDED_BY_KUBERNETES, {"operator": "Exists"}]}),
}


@pytest.fixture(scope="module")
def node(core) -> Iterator[str]:
    """A node without a kubelet. From 1.36 on the API server looks what the node of a pod that is resized can do."""
    name = a_name("node")
    core.create_node(simulated_kubelets.node(name, "192.0.2.7", 10250))
    yield name
    core.delete_node(name)


@pytest.fixture(scope="module")
def running(core, node, guarded, unguarded) -> Iterator[Callable[[Place], str]]:
    """Names of hardened pods, one in each place, bound to the node and running: no kubelet says otherwise."""
    places = (Place(core, SANDBOX), guarded, unguarded)
    names = {place.namespace: place.create(a_hardened_pod()) for place in places}
    for place in places:
        pod, target = names[place.namespace], {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"metadata": {"name": pod}, "target": target}
        core.create_namespaced_pod_binding(pod, place.namespace, binding, _preload_content=False)
        core.patch_namespaced_pod_status(pod, place.namespace, {"status": {"phase": "Running"}})
    yield lambda place: names[place.namespace]
    core.delete_namespaced_pod(names[SANDBOX], SANDBOX, grace_period_seconds=0)


@pytest.mark.parametrize(("subresource", "field", "change"), CHANGES.values(), ids=CHANGES)
def test_running_pod_is_not_changed_to_have(core, guarded, unguarded, running, keeps, subresource, field, change):
    places = (unguarded, guarded, Place(core, SANDBOX))
    free, held, deployed = (place.patch(running(place), {"spec": change}, subresource) for place in places)
    if keeps(f"pods/{subresource}"):
        assert free == "", "positive control"
        assert guarded.refuses_as_ours(held, field)
        assert f"'{POLICY}'" in deployed
    else:
        assert {free, held, deployed} == {"the server could not find the requested resource"}


# --- metadata --------------------------------------------------------------------------------------------------------

OWNER = {"apiVersion": API_VERSION, "kind": EXECUTION_KIND, "name": "one", "uid": "0badcafe-0001", "controller": True}
METADATA = {
    "networks of Multus": ("metadata.annotations", {"annotations": {"k8s.v1.cni.cncf.io/networks": "other"}}),
    "settings of Kata": (
        "metadata.annotations",
        {"annotations": {"io.katacontainers.config.hypervisor.kernel_params": "init=/bin/sh"}},
    ),
    "settings of gVisor": ("metadata.annotations", {"annotations": {"dev.gvisor.flag.network": "host"}}),
    "settings of CRI-O": ("metadata.annotations", {"annotations": {"io.kubernetes.cri-o.Devices": "/dev/kmsg"}}),
    "the permit of another": ("metadata.labels", {"labels": {EGRESS_LABEL: "1-2"}}),
    "the name of another execution": ("metadata.labels", {"labels": {EXECUTION_LABEL: "other"}}),
    "any other label": ("metadata.labels", {"labels": {"app": "other"}}),
    "the label of a pool": ("metadata.labels", {"labels": {POOL_LABEL: "default", TEMPLATE_LABEL: "0"}}),
    "an execution for an owner": ("metadata.ownerReferences", {"ownerReferences": [OWNER]}),
    "an owner that takes it along": (
        "metadata.ownerReferences",
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "0badcafe-0001"}]},
    ),
    "a finalizer": ("metadata.finalizers", {"finalizers": ["example.com/for-ever"]}),
}


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize(("field", "change"), METADATA.values(), ids=METADATA)
def test_waiting_pod_is_not_changed_to_have(unguarded, guarded, operator, waiting, field, change, subresource):
    """It is annotated while it waits for a node: what starts it would act on that."""
    patch = {"metadata": change}
    free = unguarded.patch(waiting(unguarded), patch, subresource, kind="merge")
    assert free == "", "positive control"
    if (field, subresource) == ("metadata.ownerReferences", "status"):
        return  # the API server leaves them as they were
    assert guarded.refuses_the_change(guarded.patch(waiting(guarded), patch, subresource, kind="merge"), field)
    if not subresource:  # the operator has no right to `pods/status`
        assert operator.refuses_the_change(operator.patch(waiting(operator), patch, kind="merge"), field)


def test_scheduler_brings_no_annotation_and_no_label_of_ours(unguarded, guarded, waiting, node):
    """Kubernetes copies both from a Binding to the pod."""
    for metadata, field in (
        ({"annotations": {"k8s.v1.cni.cncf.io/networks": "other"}}, "metadata.annotations"),
        ({"labels": {EGRESS_LABEL: "1-2"}}, "metadata.labels"),
    ):
        assert unguarded.bind(waiting(unguarded), node, metadata) == "", "positive control"
        assert guarded.refuses_the_change(guarded.bind(waiting(guarded), node, metadata), field)
    assert guarded.bind(waiting(guarded), node, {"labels": {"topology.kubernetes.io/zone": "a"}}) == "", "as 1.35 does"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"apiVersion": "apps/v1"}, {"apiVersion": API_VERSION}),
        ({"controller": False}, {"controller": True}),
        (None, {}),
    ],
    ids=["of another group", "that controls nothing", "none"],
)
def test_an_owner_does_not_become_one_of_ours(core, unguarded, guarded, before, after):
    """Controllers adopt pods that have no owner. Nobody makes a pod of an execution's of it."""
    owners = [] if before is None else [{**OWNER, "apiVersion": "apps/v1", **before}]
    patch = {"metadata": {"ownerReferences": [OWNER | after]}}
    refusals = []
    for place in (unguarded, guarded):
        pod = a_hardened_pod()
        pod["metadata"]["ownerReferences"] = owners
        name = place.create(pod)
        refusals.append(place.patch(name, patch, kind="merge"))
        core.delete_namespaced_pod(name, place.namespace, grace_period_seconds=0)
    assert refusals[0] == "", "positive control"
    assert guarded.refuses_the_change(refusals[1], "metadata.ownerReferences")


@pytest.fixture(scope="module")
def waiting(core, operator, guarded, unguarded) -> Iterator[Callable[[Place], str]]:
    """Names of hardened pods, one in each place, that wait for a node."""
    places = (operator, guarded, unguarded)
    names = {place.namespace: place.create(a_hardened_pod()) for place in places}
    yield lambda place: names[place.namespace]
    core.delete_namespaced_pod(names[SANDBOX], SANDBOX, grace_period_seconds=0)


def refusal_to(user: Kube, place: Place, name: str, metadata: dict[str, Any], subresource: str = "") -> str:
    patch = {"metadata": metadata}
    return getattr(user.try_patch("pod", name, patch, place.namespace, subresource, dry_run=True), "message", "")


ANNOTATION = {"annotations": {"cni.projectcalico.org/podIP": "192.0.2.7/32"}}


def test_network_plugin_writes_annotations_where_the_chart_names_it(kubeconfig, make_place, chart_policy):
    place, user = make_place(), a_name("plugin")
    plugin = Kube(kubeconfig, user, ("system:masters",))
    name = place.create(a_hardened_pod())
    with chart_policy(place, "pod-changes", **{"sandbox.annotators": "{" + user + "}"}):
        wait_for("the policy to be in force", lambda: place.patch(name, {"metadata": ANNOTATION}) != "")
        assert "metadata.annotations must not change" in place.patch(name, {"metadata": ANNOTATION}, "status")
        assert [refusal_to(plugin, place, name, ANNOTATION, of) for of in ("", "status")] == ["", ""]
        assert "metadata.labels" in refusal_to(plugin, place, name, {"labels": {"app": "x"}}), "nothing else"


def test_kubelet_writes_annotations_with_the_status_only(kubeconfig, guarded, waiting):
    """A network plugin on the node may have the kubelet's identity. NodeRestriction keeps it to the node's own pods."""
    kubelet = Kube(kubeconfig, a_name("kubelet"), ("system:masters", "system:nodes"))
    assert refusal_to(kubelet, guarded, waiting(guarded), ANNOTATION, "status") == ""
    assert guarded.refuses_the_change(
        refusal_to(kubelet, guarded, waiting(guarded), ANNOTATION), "metadata.annotations"
    )


# --- how the operator takes a pod of a pool --------------------------------------------------------------------------

TAKEN = CodeExecution.parse(
    {"metadata": {"name": "taker", "namespace": SANDBOX, "uid": "0badcafe-0002"}, "spec": a_raw_spec()}
)


@pytest.fixture
def pool_pod(core, operator, admin) -> Iterator[str]:
    """Its owner exists, as that of an adopted pod has to: the garbage collector is at work here."""
    metadata = {"name": a_name("pool"), "namespace": SANDBOX}
    owner = admin.create({"apiVersion": API_VERSION, "kind": POOL_KIND, "metadata": metadata, "spec": {"replicas": 0}})
    known = {key: owner["metadata"][key] for key in ("name", "uid")}
    pod = a_hardened_pod()
    pod["metadata"] |= {
        "labels": {POOL_LABEL: known["name"], TEMPLATE_LABEL: "0"},
        "ownerReferences": [{"apiVersion": API_VERSION, "kind": POOL_KIND, "controller": True, **known}],
    }
    name = operator.create(pod)
    yield name
    core.delete_namespaced_pod(name, SANDBOX, grace_period_seconds=0)
    admin.delete("sandboxpool", known["name"])


SESSION = CodeSession.parse(
    {"metadata": {"name": "taker", "namespace": SANDBOX, "uid": "0badcafe-0003"}, "spec": {"source": {"agent": "a"}}}
)
ADOPTION = build_adoption(TAKEN, deadline_seconds=60)
ADOPTION_BY_A_SESSION = build_adoption(SESSION, deadline_seconds=60)
ANOTHER = TAKEN.model_copy(update={"metadata": TAKEN.metadata.model_copy(update={"name": "another"})})


def test_the_operator_takes_a_pod_of_a_pool_once(core, operator, admin, pool_pod):
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    taker = CodeExecution.parse(admin.create(an_execution(a_name("taker"), [block])))
    adoption = build_adoption(taker, deadline_seconds=60)
    assert "metadata.labels" in Place(core, SANDBOX).patch(pool_pod, adoption, kind="merge"), "nobody else does"
    assert operator.patch(pool_pod, adoption, kind="merge", dry_run=None) == ""
    assert operator.patch(pool_pod, adoption, kind="merge") == "", "again, where the answer was lost"
    again = build_adoption(ANOTHER, deadline_seconds=None)
    assert "metadata.labels" in operator.patch(pool_pod, again, kind="merge")


def test_a_session_takes_a_pod_of_a_pool_once(core, operator, admin, pool_pod):
    taker = CodeSession.parse(admin.create(a_session(a_name("taker"))))
    adoption = build_adoption(taker, deadline_seconds=60)
    assert "metadata.labels" in Place(core, SANDBOX).patch(pool_pod, adoption, kind="merge"), "nobody else does"
    assert operator.patch(pool_pod, adoption, kind="merge", dry_run=None) == ""
    assert operator.patch(pool_pod, adoption, kind="merge") == "", "again, where the answer was lost"
    for another in (ADOPTION, ADOPTION_BY_A_SESSION):
        assert "metadata.labels" in operator.patch(pool_pod, another, kind="merge")


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("metadata.labels", {"labels": {**ADOPTION_BY_A_SESSION["metadata"]["labels"], EXECUTION_LABEL: "taker"}}),
        ("metadata.labels", {"labels": {**ADOPTION_BY_A_SESSION["metadata"]["labels"], EGRESS_LABEL: "1-2"}}),
        ("metadata.ownerReferences", {"ownerReferences": [owner_reference(SESSION) | {"kind": EXECUTION_KIND}]}),
        ("metadata.ownerReferences", {"ownerReferences": [owner_reference(ANOTHER) | {"kind": SESSION_KIND}]}),
    ],
    ids=["an execution's label", "a permit", "another kind", "another's owner"],
)
def test_with_the_adoption_by_a_session_nothing_else_comes_in(operator, pool_pod, field, more):
    patch = ADOPTION_BY_A_SESSION | {"metadata": {**ADOPTION_BY_A_SESSION["metadata"], **more}}
    assert operator.refuses_the_change(operator.patch(pool_pod, patch, kind="merge"), field)
    assert operator.patch(pool_pod, ADOPTION_BY_A_SESSION, kind="merge") == "", "control"


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("metadata.labels", {"labels": {**ADOPTION["metadata"]["labels"], EGRESS_LABEL: "1-2"}}),
        ("metadata.labels", {"labels": {**ADOPTION["metadata"]["labels"], TEMPLATE_LABEL: None}}),
        ("metadata.annotations", {"annotations": {"k8s.v1.cni.cncf.io/networks": "other"}}),
        ("metadata.ownerReferences", {"ownerReferences": [owner_reference(ANOTHER)]}),
        ("metadata.ownerReferences", {"ownerReferences": [owner_reference(TAKEN) | {"kind": SESSION_KIND}]}),
        ("metadata.ownerReferences", {"ownerReferences": []}),
        ("metadata.finalizers", {"finalizers": ["example.com/for-ever"]}),
    ],
    ids=["a permit", "a label gone", "an annotation", "another's owner", "another kind", "no owner", "a finalizer"],
)
def test_with_the_adoption_nothing_else_comes_in(operator, pool_pod, field, more):
    patch = ADOPTION | {"metadata": {**ADOPTION["metadata"], **more}}
    assert operator.refuses_the_change(operator.patch(pool_pod, patch, kind="merge"), field)
    assert operator.patch(pool_pod, ADOPTION, kind="merge") == "", "control"


# --- the deadline, and the end ---------------------------------------------------------------------------------------


def test_deadline_of_a_running_pod_can_be_lowered(guarded, running):
    assert guarded.patch(running(guarded), {"spec": {"activeDeadlineSeconds": 100}}) == ""


def _pods(place: Place) -> list[str]:
    return [pod.metadata.name for pod in place.core.list_namespaced_pod(place.namespace).items]


def test_the_garbage_collector_deletes_a_hardened_pod_in_the_foreground(guarded):
    """It removes a finalizer, which the API server has put there."""
    name = guarded.create(a_hardened_pod())
    guarded.core.delete_namespaced_pod(name, guarded.namespace, grace_period_seconds=0, propagation_policy="Foreground")
    wait_for("the pod to be gone", lambda: name not in _pods(guarded))


def test_the_garbage_collector_takes_a_pod_from_an_owner_that_leaves_it_behind(core, guarded):
    metadata = {"name": a_name("owner")}
    owner = core.create_namespaced_config_map(guarded.namespace, {"metadata": metadata}).metadata
    pod = a_hardened_pod()
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name, "uid": owner.uid}
    ]
    name = guarded.create(pod)
    core.delete_namespaced_config_map(owner.name, guarded.namespace, propagation_policy="Orphan")

    def left_alone() -> bool:
        return not core.read_namespaced_pod(name, guarded.namespace).metadata.owner_references

    wait_for("the pod to have no owner", left_alone)


def test_weak_pod_from_before_the_policy_can_be_deleted_but_not_changed(guarded, old_pod):
    place, name = old_pod
    image_of_others = {"spec": {"containers": [{"name": SANDBOX_CONTAINER, "image": OTHER_IMAGE}]}}
    assert guarded.refuses_as_ours(place.patch(name, image_of_others), "spec.containers")
    assert guarded.refuses_the_change(place.patch(name, {"metadata": {"labels": {"app": "x"}}}), "metadata.labels")
    assert place.patch(name, {"status": {"message": "seen"}}, "status") == "", "what the kubelet says"
    place.core.delete_namespaced_pod(name, place.namespace, grace_period_seconds=0)
    assert place.core.read_namespaced_pod(name, place.namespace).metadata.deletion_timestamp, "it is held"
    assert place.patch(name, {"metadata": {"finalizers": None}}, kind="merge", dry_run=None) == ""
    wait_for("the pod to be gone", lambda: name not in _pods(place))
