"""No pod of a sandbox namespace is weaker than the operator's table of settings, whoever makes or changes it.

Pod Security answers before our policy and would hide it. So the deployed policy is bound to a namespace without Pod
Security as well, and every pod is tried in three places: there our policy must refuse it; in a sandbox namespace it
must be refused to the operator; and in a namespace with neither it must be accepted, which is the positive control.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import simulated_kubelets
from cluster_tools import SANDBOX, a_name, wait_for
from pod_places import CHANGES, POLICY, Place, is_pod_security_s_or_ours, part, wait_for_the_policy
from weaker_pods import (
    AN_IMAGE,
    RUN_AS_USER,
    WEAKER,
    Change,
    Pod,
    a_hardened_pod,
    container_context,
    context,
    metadata,
    spec,
    together,
)

from codeexec_api.names import EGRESS_LABEL
from codeexec_operator.core.cluster_view import ClusterView, parse_node
from codeexec_operator.manifests.hardening import OWN_UIDS, SANDBOX_UID

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


def _field(path: tuple[str | int, ...]) -> str:
    return ".".join(["spec", *map(str, path)]).replace(".0", "[0]")


def _opposite(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return SANDBOX_UID if value in OWN_UIDS else value + 1
    return OPPOSITES.get(str(value), f"{value}0")


def _changed(pod: Pod, path: tuple[str | int, ...], *, removed: bool) -> Pod:
    pod = copy.deepcopy(pod)
    node = pod["spec"]
    for key in path[:-1]:
        node = node[key]
    if removed:
        del node[path[-1]]
    else:
        node[path[-1]] = _opposite(node[path[-1]])
        COMPANIONS.get(path, together())(pod)
    return pod


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


@pytest.mark.parametrize("user_namespace", [False, True], ids=["own user", "user namespace"])
def test_the_product_s_pod_is_accepted(core, operator, guarded, unguarded, keeps, user_namespace):
    pod = a_hardened_pod(user_namespace=user_namespace)
    assert unguarded.refusal(pod) == ""
    if keeps("spec.hostUsers") or not user_namespace:
        assert [place.refusal(pod) for place in (guarded, operator, Place(core, SANDBOX))] == [""] * 3
    else:
        assert part(unguarded.stored(pod), "spec.hostUsers") is None
        assert guarded.refuses_as_ours(guarded.refusal(pod), RUN_AS_USER), "it would share its user with others"


def test_the_operator_makes_the_pod_that_this_version_accepts(core, guarded, unguarded, keeps, version):
    """From 1.31 on kubelets tell that a runtime could give user namespaces, whether or not they let it."""
    node = simulated_kubelets.node(a_name("node"), "192.0.2.7", 10250)
    node["status"]["nodeInfo"]["kubeletVersion"] = version.git_version
    stored = core.api_client.sanitize_for_serialization(core.create_node(node, dry_run="All"))
    assert stored["status"]["runtimeHandlers"][0]["features"] == {"userNamespaces": True}, "positive control"

    ready = stored | {"spec": {}}  # without the taints of a node that is new
    asked_for = ClusterView(nodes=(parse_node(ready),)).user_namespace(None)
    assert asked_for is keeps("spec.hostUsers")
    pod = a_hardened_pod(user_namespace=asked_for)
    assert guarded.refusal(pod) == ""
    assert part(unguarded.stored(pod), "spec.hostUsers") is (False if asked_for else None)


@pytest.mark.parametrize("user", [OWN_UIDS[0], OWN_UIDS[-1]], ids=["first", "last"])
def test_every_user_of_the_product_is_accepted(guarded, user):
    pod = a_hardened_pod()
    context(runAsUser=user)(pod)
    assert guarded.refusal(pod) == ""


@pytest.mark.parametrize(("field", "change"), WEAKER.values(), ids=WEAKER)
def test_pod_is_refused_with(unguarded, guarded, operator, keeps, field, change):
    pod = a_hardened_pod()
    change(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    if keeps(field):
        assert guarded.refuses_as_ours(guarded.refusal(pod), field)
        assert is_pod_security_s_or_ours(operator.refusal(pod))
    else:
        arrived = unguarded.stored(pod)
        assert part(pod["spec"], field)
        assert part(arrived, field) in (None, "Default"), "this version drops it"
        nothing_else = arrived == unguarded.stored(a_hardened_pod())
        assert [place.refusal(pod) == "" for place in (guarded, operator)] == [nothing_else] * 2


def test_every_rule_has_a_pod_that_breaks_it(admin):
    """Two rules name no field of their own: the tests of fields that are not listed, and of changes, are theirs."""
    rules = admin.get("validatingadmissionpolicy", POLICY)["spec"]["validations"]
    named = {rule["message"].split()[0] for rule in rules if "message" in rule}
    assert named - {field for field, _ in WEAKER.values()} == {
        "spec.runtimeClassName",
        "metadata.labels",
        "metadata.ownerReferences",
    }, "which have tests of their own"
    assert len(rules) - 2 == len([rule for rule in rules if "message" in rule])


@pytest.mark.parametrize("path", _settings(), ids=lambda path: ".".join(map(str, path)))
def test_setting_is_held_to(unguarded, guarded, operator, keeps, path):
    """Each security setting of the product's pod, turned around and taken away."""
    ours = a_hardened_pod(user_namespace=keeps("spec.hostUsers"))
    spec(hostUsers=False)(ours)  # an older version drops it
    assert guarded.refusal(ours) == "", "negative control"

    turned = _changed(ours, path, removed=False)
    assert unguarded.refusal(turned) == "", "positive control"
    if keeps(_field(path)):
        assert f"'{POLICY}' with binding" in guarded.refusal(turned)
        assert is_pod_security_s_or_ours(operator.refusal(turned))
    else:
        assert unguarded.stored(turned) == unguarded.stored(ours)

    without = _changed(ours, path, removed=True)
    assert (unguarded.refusal(without) == "") is (path not in REQUIRED), "positive control"
    if path not in REQUIRED:
        unchanged = unguarded.stored(without) == unguarded.stored(ours)
        assert (guarded.refusal(without) == "") is unchanged, "what is the default anyway may be left out"


def test_only_the_operator_makes_a_pod_that_a_permit_opens_the_network_for(unguarded, guarded, operator):
    """Else whoever may create pods could borrow what was permitted to an execution."""
    pod = a_hardened_pod()
    metadata(labels={EGRESS_LABEL: "0badcafe-0000"})(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert guarded.refuses_as_ours(guarded.refusal(pod), "metadata.labels")
    assert operator.refusal(pod) == ""


OURS = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "CodeExecution", "name": "run-1", "uid": "0badcafe-0000"}


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"labels": {"codeexec.dev/execution": "run-1"}}, "metadata.labels"),
        ({"labels": {"codeexec.dev/pool": "default"}}, "metadata.labels"),
        ({"labels": {"more.codeexec.dev/new": "x"}}, "metadata.labels"),
        ({"ownerReferences": [OURS | {"controller": True}]}, "metadata.ownerReferences"),
        ({"ownerReferences": [OURS]}, "metadata.ownerReferences"),
        ({"ownerReferences": [OURS | {"kind": "SandboxPool", "controller": True}]}, "metadata.ownerReferences"),
    ],
    ids=str,
)
def test_only_the_operator_makes_a_pod_that_says_it_is_of_an_object_of_ours(unguarded, guarded, operator, said, field):
    """Else the code of an execution would be handed to a pod that somebody else has made."""
    pod = a_hardened_pod()
    metadata(**said)(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert guarded.refuses_as_ours(guarded.refusal(pod), field)
    assert operator.refusal(pod) == ""


def test_other_labels_and_owners_are_free(guarded):
    pod = a_hardened_pod()
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "one", "uid": "0badcafe-0000"}
    metadata(labels={"app": "x", "notcodeexec.dev/x": "1"}, ownerReferences=[owner])(pod)
    assert guarded.refusal(pod) == ""


def test_runtime_class_that_the_chart_does_not_name_is_refused(unguarded, guarded, scheduled_class):
    pod = a_hardened_pod()
    spec(runtimeClassName=scheduled_class)(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert guarded.refuses_as_ours(guarded.refusal(pod), "spec.runtimeClassName")


@pytest.mark.parametrize("tag", ["", ":1", ":v1.2_a-b"])
def test_a_tag_before_the_digest_makes_no_other_repository(guarded, operator, tag):
    pod = a_hardened_pod(image=AN_IMAGE.replace("@", f"{tag}@"))
    assert [place.refusal(pod) for place in (guarded, operator)] == [""] * 2


@pytest.fixture(scope="module")
def wide(make_place, chart_policy) -> Iterator[Place]:
    """The platform owner allows all repositories below a name, and a single one."""
    place = make_place()
    repositories = "{mirror.example/team/,mirror.example/science}"
    with chart_policy(place, "pods", **{"sandbox.allowedRepositories": repositories}):
        wait_for_the_policy(place)
        yield place


@pytest.mark.parametrize(
    ("repository", "allowed"),
    [
        ("mirror.example/team/box", True),
        ("mirror.example/team/deep/box:1", True),
        ("mirror.example/science:1", True),
        ("mirror.example/teams/box", False),
        ("mirror.example/team", False),
        ("mirror.example/science/box", False),
        ("mirror.example:5000/team/box", False),
    ],
)
def test_the_owner_may_allow_more_repositories(wide, guarded, repository, allowed):
    pod = a_hardened_pod(image=f"{repository}@sha256:{'b' * 64}")
    assert (wide.refusal(pod) == "") is allowed
    assert guarded.refuses_as_ours(guarded.refusal(pod), "spec.containers[0].image")


@pytest.fixture(scope="module")
def strict(make_place, chart_policy, scheduled_class) -> Iterator[Place]:
    """A namespace with the chart's policy as it is where the platform owner requires a RuntimeClass."""
    place = make_place()
    with chart_policy(place, "pods", **{"policy.runtimeClassName": scheduled_class}):
        wait_for_the_policy(place)
        yield place


@pytest.fixture(scope="module")
def demanding(make_place, chart_policy, scheduled_class) -> Iterator[Place]:
    """The platform owner requires user namespaces, and allows two runtimes."""
    place = make_place()
    values = {"runtimeClassName": scheduled_class, "runtimeClassNames": "{runc}", "requireUserNamespaces": "true"}
    with chart_policy(place, "pods", **{f"policy.{key}": value for key, value in values.items()}):
        wait_for_the_policy(place)
        yield place


def test_the_nodes_runtime_is_accepted_where_it_is_allowed_by_name(strict, guarded, demanding, keeps):
    pod = a_hardened_pod(user_namespace=True)
    if not keeps("spec.hostUsers"):
        pytest.skip("this version drops hostUsers")
    assert guarded.refusal(pod) == demanding.refusal(pod) == ""
    assert "denied request: spec.runtimeClassName must be" in strict.refusal(pod)


def test_a_pod_without_a_user_namespace_is_refused_where_they_are_required(guarded, demanding):
    pod = a_hardened_pod()
    assert guarded.refusal(pod) == "", "positive control"
    assert "denied request: spec.hostUsers must be false" in demanding.refusal(pod)


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


@pytest.mark.parametrize("policy", [POLICY, CHANGES, "codeexec-connections", "codeexec-sealing"])
def test_the_policy_is_written_for_the_fields_that_there_are(admin, policy):
    """The API server checks the types of the rules against its own kinds, and has nothing to say."""

    def checked() -> dict[str, Any] | None:
        found = admin.get("validatingadmissionpolicy", policy)
        status = found.get("status", {})
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else None

    assert not wait_for("the rules to be checked", checked).get("typeChecking")
