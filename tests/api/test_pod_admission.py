"""No pod of a sandbox namespace is weaker than the operator's table of settings, whoever makes or changes it.

Pod Security answers before our policy and would hide it. So the deployed policy is bound to a namespace without Pod
Security as well, and every pod is tried in three places: there our policy must refuse it; in a sandbox namespace it
must be refused to the operator; and in a namespace with neither it must be accepted, which is the positive control.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chart.helm import pick, render
from cluster_tools import SANDBOX, SYSTEM, a_name, wait_for
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError
from weaker_pods import AGENT, WEAKER, Change, Pod, a_hardened_pod, container_context, context, spec, together

from codeexec_api.names import SANDBOX_CONTAINER
from codeexec_operator.manifests.hardening import OWN_UIDS

POLICY = "codeexec-pods"
OPERATOR = f"system:serviceaccount:{SYSTEM}:codeexec-operator"
OTHER_IMAGE = "registry.example/other@sha256:" + "b" * 64
OWN_UID = OWN_UIDS[7]


# Leaves of the pod's spec that may have other values; the table above tells which they may not have.
FREE = {"activeDeadlineSeconds", "volumes", "containers", "runtimeClassName"}
OPPOSITES = {"Never": "Always", "None": "Default", "RuntimeDefault": "Unconfined", "ALL": "NET_RAW"}
# What Kubernetes wants to be changed as well.
COMPANIONS: dict[tuple[str | int, ...], Change] = {
    ("hostNetwork",): together(spec(hostUsers=None), context(runAsUser=OWN_UID)),
    ("hostPID",): together(spec(hostUsers=None), context(runAsUser=OWN_UID)),
    ("hostIPC",): together(spec(hostUsers=None), context(runAsUser=OWN_UID)),
    ("containers", 0, "securityContext", "privileged"): container_context(allowPrivilegeEscalation=None),
}
# What Kubernetes wants to be there; without it there is no pod, so nothing for the policy to refuse.
REQUIRED = {
    ("securityContext", "seccompProfile", "type"),
    ("dnsConfig", "nameservers", 0),
    ("dnsConfig", "options", 0, "name"),
}


def _leaves(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(child, (*path, key))
    else:
        yield path


def _settings() -> list[tuple[str | int, ...]]:
    """Paths of all security settings of the product's pod: a new one gets its cases by being there."""
    whole = a_hardened_pod(user_namespace=True)["spec"]
    [only] = whole["containers"]
    kept = {key: value for key, value in whole.items() if key not in FREE}
    return list(_leaves(kept | {"containers": [{"securityContext": only["securityContext"]}]}))


def _opposite(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else OPPOSITES.get(str(value), f"{value}0")


def _changed(path: tuple[str | int, ...], *, removed: bool) -> Pod:
    pod = a_hardened_pod(user_namespace=True)
    node = pod["spec"]
    for key in path[:-1]:
        node = node[key]
    if removed:
        del node[path[-1]]
    else:
        node[path[-1]] = _opposite(node[path[-1]])
        COMPANIONS.get(path, together())(pod)
    return pod


class Place:
    """A namespace, and how its pods look to whoever asks."""

    def __init__(self, core: client.CoreV1Api, namespace: str) -> None:
        self.core = core
        self.namespace = namespace

    def stored(self, pod: Pod) -> Pod:
        """The spec that would be stored. Raises ApiException if the pod is refused."""
        return self.core.api_client.sanitize_for_serialization(
            self.core.create_namespaced_pod(self.namespace, pod, dry_run="All").spec
        )

    def refusal(self, pod: Pod) -> str:
        """What the API server says to this pod; empty if it would be accepted."""
        return _refusal(lambda: self.stored(pod))

    def create(self, pod: Pod) -> str:
        """Make the pod; its name."""
        return self.core.create_namespaced_pod(self.namespace, pod).metadata.name

    def patch(self, name: str, patch: Pod, subresource: str = "", *, dry_run: str | None = "All") -> str:
        """What the API server says to a strategic merge patch of a pod; empty if it is, or would be, accepted."""
        method = getattr(self.core, f"patch_namespaced_pod{subresource and '_' + subresource}")
        content_type = "application/strategic-merge-patch+json"
        return _refusal(lambda: method(name, self.namespace, patch, dry_run=dry_run, _content_type=content_type))


def _refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except ApiException as error:
        return json.loads(error.body)["message"]
    except ValidationError as error:  # the client's own: it wants the required fields
        return str(error)
    return ""


@pytest.fixture(scope="module")
def core(kubeconfig) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(kubeconfig))


@pytest.fixture(scope="module")
def operator(kubeconfig) -> Place:
    """The sandbox namespace, seen with the rights of the operator."""
    api = config.new_client_from_config(kubeconfig)
    api.set_default_header("Impersonate-User", OPERATOR)
    return Place(client.CoreV1Api(api), SANDBOX)


@pytest.fixture(scope="module")
def make_place(admin, core) -> Callable[[], Place]:
    """Makes namespaces without Pod Security."""

    def make() -> Place:
        name = a_name("pods")
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account = {"name": AGENT, "namespace": name}
        admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        wait_for("its service account", lambda: admin.exists("serviceaccount", "default", name))
        return Place(core, name)

    return make


@pytest.fixture(scope="module")
def unguarded(make_place) -> Place:
    return make_place()


@pytest.fixture(scope="module")
def old_pod(make_place) -> tuple[Place, str]:
    """A weak pod that was there before the policy. No scheduler knows of it, so it never runs."""
    place = make_place()
    weak = a_hardened_pod()
    spec(hostNetwork=True, schedulerName="nobody")(weak)
    return place, place.create(weak)


@pytest.fixture(scope="module")
def guarded(admin, old_pod) -> Iterator[Place]:
    """A namespace that the deployed policy is bound to, and nothing else."""
    place, _ = old_pod
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": place.namespace},
        "spec": {
            "policyName": POLICY,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}}},
        },
    }
    admin.apply(binding)
    try:
        _wait_for_the_policy(place)
        yield place
    finally:
        admin.delete("validatingadmissionpolicybinding", place.namespace)


def _wait_for_the_policy(place: Place) -> None:
    weak = a_hardened_pod()
    spec(hostPID=True)(weak)
    wait_for("the policy to be in force", lambda: "denied request: spec.hostPID" in place.refusal(weak))


@pytest.fixture(scope="module")
def scheduled_class(admin) -> Iterator[str]:
    """A RuntimeClass that adds overhead, a node selector and a toleration to pods, as those of gVisor nodes do."""
    name = a_name("class")
    label = {"example.com/runtime": name}
    toleration = {"key": "example.com/runtime", "operator": "Equal", "value": name, "effect": "NoSchedule"}
    admin.apply(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": "runc",
            "overhead": {"podFixed": {"memory": "8Mi"}},
            "scheduling": {"nodeSelector": label, "tolerations": [toleration]},
        }
    )
    yield name
    admin.delete("runtimeclass", name)


def _is_ours(refusal: str, place: Place, field: str) -> bool:
    """The refusal is our policy's, by the binding of this place, and names the field first."""
    return f"'{POLICY}' with binding '{place.namespace}' denied request: {field} " in refusal


def _is_pod_security_s_or_ours(refusal: str) -> bool:
    return "violates PodSecurity" in refusal or f"'{POLICY}' with binding '{POLICY}' denied request" in refusal


@pytest.mark.parametrize("user_namespace", [False, True], ids=["own user", "user namespace"])
def test_the_product_s_pod_is_accepted(core, operator, guarded, unguarded, user_namespace):
    pod = a_hardened_pod(user_namespace=user_namespace)
    for place in (unguarded, guarded, operator, Place(core, SANDBOX)):
        assert place.refusal(pod) == ""


@pytest.mark.parametrize("user", [OWN_UIDS[0], OWN_UIDS[-1]], ids=["first", "last"])
def test_every_user_of_the_product_is_accepted(guarded, user):
    pod = a_hardened_pod()
    context(runAsUser=user)(pod)
    assert guarded.refusal(pod) == ""


@pytest.mark.parametrize(("field", "change"), WEAKER.values(), ids=WEAKER)
def test_pod_is_refused_with(unguarded, guarded, operator, field, change):
    pod = a_hardened_pod()
    change(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert _is_ours(guarded.refusal(pod), guarded, field)
    assert _is_pod_security_s_or_ours(operator.refusal(pod))


def test_every_rule_has_a_pod_that_breaks_it(admin):
    """Two rules name no field of their own: the tests of fields that are not listed, and of changes, are theirs."""
    rules = admin.get("validatingadmissionpolicy", POLICY)["spec"]["validations"]
    named = {rule["message"].split()[0] for rule in rules if "message" in rule}
    assert named - {field for field, _ in WEAKER.values()} == {"spec.runtimeClassName", "metadata.labels"}, (
        "which have tests of their own"
    )
    assert len(rules) - 2 == len([rule for rule in rules if "message" in rule])


@pytest.mark.parametrize("path", _settings(), ids=lambda path: ".".join(map(str, path)))
def test_setting_is_held_to(unguarded, guarded, operator, path):
    """Each security setting of the product's pod, turned around and taken away."""
    turned = _changed(path, removed=False)
    assert unguarded.refusal(turned) == "", "positive control"
    assert f"'{POLICY}' with binding" in guarded.refusal(turned)
    assert _is_pod_security_s_or_ours(operator.refusal(turned))

    without = _changed(path, removed=True)
    assert (unguarded.refusal(without) == "") is (path not in REQUIRED), "positive control"
    if path not in REQUIRED:
        unchanged = unguarded.stored(without) == unguarded.stored(a_hardened_pod(user_namespace=True))
        assert (guarded.refusal(without) == "") is unchanged, "what is the default anyway may be left out"


def test_runtime_class_that_the_chart_does_not_name_is_refused(unguarded, guarded, scheduled_class):
    pod = a_hardened_pod()
    spec(runtimeClassName=scheduled_class)(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert _is_ours(guarded.refusal(pod), guarded, "spec.runtimeClassName")


@pytest.fixture(scope="module")
def strict(admin, make_place, scheduled_class) -> Iterator[Place]:
    """A namespace with the chart's policy as it is where the platform owner requires a RuntimeClass."""
    place = make_place()
    settings = {
        "fullnameOverride": place.namespace,
        "sandbox.namespaces": "{" + place.namespace + "}",
        "policy.runtimeClassName": scheduled_class,
    }
    values = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    objects = render(*values)
    try:
        for kind in kinds:
            admin.apply(pick(objects, kind, f"{place.namespace}-pods"))
        _wait_for_the_policy(place)
        yield place
    finally:
        for kind in kinds:
            admin.delete(kind, f"{place.namespace}-pods")


def test_required_runtime_class_brings_what_its_nodes_need(strict, scheduled_class):
    pod = a_hardened_pod()
    assert "denied request: spec.runtimeClassName must be" in strict.refusal(pod)
    spec(runtimeClassName=scheduled_class)(pod)
    stored = strict.stored(pod)
    assert stored["overhead"] == {"memory": "8Mi"}
    assert stored["nodeSelector"] == {"example.com/runtime": scheduled_class}
    assert "example.com/runtime" in [toleration.get("key") for toleration in stored["tolerations"]]


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
        {"key": "node.kubernetes.io/network-unavailable", "operator": "Exists"},
        {"key": "node.cilium.io/agent-not-ready", "operator": "Exists"},
    ],
    ids=lambda toleration: toleration.get("key", "any"),
)
def test_runtime_class_is_no_excuse_for_tolerating(unguarded, strict, scheduled_class, toleration):
    pod = a_hardened_pod()
    spec(runtimeClassName=scheduled_class, tolerations=[toleration])(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert "denied request: spec.tolerations must be" in strict.refusal(pod)


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
def test_running_pod_is_not_changed_to_have(core, guarded, unguarded, running, subresource, field, change):
    patch = {"spec": change}
    assert unguarded.patch(running(unguarded), patch, subresource) == "", "positive control"
    assert _is_ours(guarded.patch(running(guarded), patch, subresource), guarded, field)
    sandbox = Place(core, SANDBOX)
    assert f"'{POLICY}'" in sandbox.patch(running(sandbox), patch, subresource)


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
    assert _is_ours(place.patch(name, image_of_others), guarded, "spec.containers")
    assert place.patch(name, {"metadata": {"labels": {"example.com/seen": "yes"}}}) == ""
    _held_and_let_go(place, name)


def test_the_policy_is_written_for_the_fields_that_there_are(admin):
    """The API server checks the types of the rules against its own kinds, and has nothing to say."""

    def checked() -> dict[str, Any] | None:
        policy = admin.get("validatingadmissionpolicy", POLICY)
        status = policy.get("status", {})
        return status if status.get("observedGeneration") == policy["metadata"]["generation"] else None

    assert not wait_for("the rules to be checked", checked).get("typeChecking")
