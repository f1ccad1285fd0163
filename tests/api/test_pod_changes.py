"""No pod of a sandbox namespace is made weaker while it is there, and each can be deleted.

The places are those of test_pod_admission.py.
"""

from collections.abc import Callable, Iterator

import pytest
from cluster_tools import SANDBOX, wait_for
from pod_places import POLICY, Place
from weaker_pods import a_hardened_pod

from codeexec_api.names import SANDBOX_CONTAINER

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
LARGER = {"cpu": "60m", "memory": "80Mi"}
CHANGES = {
    "another image": ("", "spec.containers", {"containers": [{"name": SANDBOX_CONTAINER, "image": OTHER_IMAGE}]}),
    "an image by tag": ("", "spec.containers", {"containers": [{"name": SANDBOX_CONTAINER, "image": "sandbox:1"}]}),
    "a container to debug": ("ephemeralcontainers", "spec.ephemeralContainers", {"ephemeralContainers": [DEBUGGER]}),
    "larger limits": (
        "resize",
        "spec.containers",
        {"containers": [{"name": SANDBOX_CONTAINER, "resources": {"requests": LARGER, "limits": LARGER}}]},
    ),
    "tolerations": ("", "spec.tolerations", {"tolerations": [*ADDED_BY_KUBERNETES, {"operator": "Exists"}]}),
}


@pytest.fixture(scope="module")
def running(core, guarded, unguarded) -> Iterator[Callable[[Place], str]]:
    """Names of hardened pods, one in each place, bound to a node and running: no node is there to say otherwise."""
    places = (Place(core, SANDBOX), guarded, unguarded)
    names = {place.namespace: place.create(a_hardened_pod()) for place in places}
    for place in places:
        pod, target = names[place.namespace], {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
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


def test_running_pod_does_not_get_the_label_that_opens_the_network_of_another(guarded, unguarded, running):
    patch = {"metadata": {"labels": {"egress.codeexec.dev/execution": "1-2"}}}
    assert unguarded.patch(running(unguarded), patch) == "", "positive control"
    assert "egress.codeexec.dev/execution must not change" in guarded.patch(running(guarded), patch)
    assert guarded.patch(running(guarded), {"metadata": {"labels": {"app": "other"}}}) == "", "other labels may"


def test_deadline_of_a_running_pod_can_be_lowered(guarded, running):
    assert guarded.patch(running(guarded), {"spec": {"activeDeadlineSeconds": 100}}) == ""


def _held_and_let_go(place: Place, name: str) -> None:
    """A finalizer is put on the pod, the pod is deleted, the finalizer is taken away, the pod is gone."""
    gone = {"metadata": {"finalizers": None}}
    assert place.patch(name, {"metadata": {"finalizers": ["example.com/held"]}}, dry_run=None) == ""
    try:
        place.core.delete_namespaced_pod(name, place.namespace, grace_period_seconds=0)
        assert place.core.read_namespaced_pod(name, place.namespace).metadata.deletion_timestamp
    finally:
        assert place.patch(name, gone, dry_run=None) == ""
    wait_for("the pod to be gone", lambda: name not in _pods(place))


def _pods(place: Place) -> list[str]:
    return [pod.metadata.name for pod in place.core.list_namespaced_pod(place.namespace).items]


def test_hardened_pod_can_be_deleted(guarded):
    _held_and_let_go(guarded, guarded.create(a_hardened_pod()))


def test_weak_pod_from_before_the_policy_can_be_deleted_but_not_changed(guarded, old_pod):
    place, name = old_pod
    image_of_others = {"spec": {"containers": [{"name": SANDBOX_CONTAINER, "image": OTHER_IMAGE}]}}
    assert guarded.refuses_as_ours(place.patch(name, image_of_others), "spec.containers")
    assert place.patch(name, {"metadata": {"labels": {"example.com/seen": "yes"}}}) == ""
    _held_and_let_go(place, name)
