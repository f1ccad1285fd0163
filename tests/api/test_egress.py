"""What the API server keeps from whoever asks for permits and mounts, and from an operator in the wrong hands."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from cluster_tools import SANDBOX, SYSTEM, a_name, an_execution
from kube import Kube
from weaker_pods import AN_IMAGE

from codeexec_api import CodeExecution
from codeexec_operator.manifests.pod import build_pod

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
PERMIT = {"cidr": "10.1.2.3/32", "port": 443}
MOUNT = {"name": "one", "configMap": {"name": "one"}, "mountPath": "/mnt/one"}
MOUNT_OF_A_CLAIM = {"name": "two", "persistentVolumeClaim": {"claimName": "data"}, "mountPath": "/mnt/two"}
DENY_ALL = "codeexec-deny-all"


@pytest.fixture(scope="module")
def operator(kubeconfig) -> Kube:
    return Kube(kubeconfig, f"system:serviceaccount:{SYSTEM}:codeexec-operator")


def objection(user: Kube, thing: dict[str, Any]) -> str:
    """What the API server says to a dry run; empty if it accepts."""
    return getattr(user.try_create(thing, dry_run=True), "message", "")


# --- what is asked for --------------------------------------------------------------------------------------------

BAD_SPECS = {
    "nothing named": ({"egress": [{"port": 443}]}, "there must be one of cidr, host, and podSelector"),
    "two named": ({"egress": [{"cidr": "10.1.2.3/32", "host": "a.b", "port": 443}]}, "there must be one of cidr, host"),
    "no port": ({"egress": [{"cidr": "10.1.2.3/32"}]}, "spec.egress[0].port: Required value"),
    "a protocol that is none": (
        {"egress": [{"cidr": "10.1.2.3/32", "port": 443, "protocol": "SCTP"}]},
        "spec.egress[0].protocol: Unsupported value",
    ),
    "no labels": (
        {"egress": [{"podSelector": {"matchLabels": {}}, "port": 443}]},
        "spec.egress[0].podSelector.matchLabels",
    ),
    "a long key": (
        {"egress": [{"podSelector": {"matchLabels": {"k" * 64: "v"}}, "port": 443}]},
        "keys must have 1 to 63",
    ),
    "too many": ({"egress": [{"cidr": "10.1.2.3/32", "port": 443}] * 17}, "spec.egress: Too many: 17"),
    "in a session": (
        {"sessionRef": {"name": "work"}, "egress": [{"cidr": "10.1.2.3/32", "port": 443}]},
        "with a sessionRef, egress and mounts must be absent",
    ),
    "a mount of nothing": (
        {"mounts": [{"name": "one", "mountPath": "/mnt/one"}]},
        "there must be one of persistentVolumeClaim",
    ),
    "a folder of the host": (
        {"mounts": [{"name": "one", "hostPath": {"path": "/etc"}, "mountPath": "/mnt/one"}]},
        'unknown field "spec.mounts[0].hostPath"',
    ),
    "elsewhere": (
        {"mounts": [{"name": "one", "configMap": {"name": "one"}, "mountPath": "/etc/one"}]},
        "spec.mounts[0].mountPath",
    ),
    "two in one place": (
        {"mounts": [{"name": name, "configMap": {"name": "one"}, "mountPath": "/mnt/one"} for name in ("one", "two")]},
        "mountPath must differ from mount to mount",
    ),
    "two of one name": (
        {
            "mounts": [
                {"name": "one", "configMap": {"name": "one"}, "mountPath": f"/mnt/{name}"} for name in ("one", "two")
            ]
        },
        "Duplicate value",
    ),
}


@pytest.mark.parametrize(
    "spec", [{"egress": [PERMIT]}, {"mounts": [MOUNT, MOUNT_OF_A_CLAIM]}], ids=["permit", "mounts"]
)
def test_what_means_something_is_accepted(admin, spec):
    """The control."""
    assert objection(admin, an_execution(a_name("good"), [BLOCK], **spec)) == ""


@pytest.mark.parametrize(("spec", "said"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_what_means_nothing_is_refused(admin, spec, said):
    assert said in objection(admin, an_execution(a_name("bad"), [BLOCK], **spec))


@pytest.mark.parametrize(
    "change",
    [{"egress": [{**PERMIT, "port": 80}]}, {"egress": None}, {"mounts": [MOUNT]}],
    ids=["another port", "no permit", "a mount"],
)
def test_permits_and_mounts_can_not_be_changed(admin, change):
    name = a_name("permitted")
    admin.create(an_execution(name, [BLOCK], egress=[PERMIT]))
    refusal = admin.try_patch("codeexecution", name, {"spec": change})
    assert "is immutable: create a new CodeExecution instead" in refusal.message


# --- what the operator may open -----------------------------------------------------------------------------------

OPENING: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {
        "name": "opening",
        "namespace": SANDBOX,
        "ownerReferences": [
            {
                "apiVersion": "codeexec.dev/v1alpha1",
                "kind": "CodeExecution",
                "name": "one",
                "uid": "1-2",
                "controller": True,
            }
        ],
    },
    "spec": {
        "podSelector": {"matchLabels": {"egress.codeexec.dev/execution": "1-2"}},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 443, "protocol": "TCP"}]}],
    },
}

WIDER: dict[str, dict[str, Any]] = {
    "every pod": {"podSelector": {}},
    "another label": {"podSelector": {"matchLabels": {"app": "one"}}},
    "a label more": {"podSelector": {"matchLabels": {"egress.codeexec.dev/execution": "1-2", "app": "one"}}},
    "another execution's pod": {"podSelector": {"matchLabels": {"egress.codeexec.dev/execution": "3-4"}}},
    "what comes in": {"ingress": [{}]},
    "only outwards": {"policyTypes": ["Egress"]},
    "everything": {"egress": [{}]},
    "every address": {"egress": [{"ports": [{"port": 443}]}]},
    "every port": {"egress": [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]}]},
    "many ports": {"egress": [{"to": OPENING["spec"]["egress"][0]["to"], "ports": [{"port": 1, "endPort": 65535}]}]},
    "every pod of all namespaces": {"egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": 443}]}]},
}


def test_a_way_out_of_one_pod_may_be_opened_and_closed(admin, operator):
    """The control of those below. Its owner is there: else the garbage collector may be the one who closes it."""
    name = a_name("opening")
    uid = admin.create(an_execution(name, [BLOCK]))["metadata"]["uid"]
    opening = deepcopy(OPENING)
    opening["metadata"]["name"] = name
    opening["metadata"]["ownerReferences"][0] |= {"name": name, "uid": uid}
    opening["spec"]["podSelector"] = {"matchLabels": {"egress.codeexec.dev/execution": uid}}
    operator.create(opening)
    operator.delete("networkpolicy", name, missing_ok=False)


@pytest.mark.parametrize("spec", WIDER.values(), ids=WIDER)
def test_a_compromised_operator_opens_nothing_else(operator, spec):
    assert "codeexec-egress" in objection(operator, OPENING | {"spec": OPENING["spec"] | spec})


def test_a_compromised_operator_closes_nothing_else(operator, admin):
    assert admin.try_delete("networkpolicy", DENY_ALL, dry_run=True) is None, "control"
    assert "codeexec-egress" in operator.try_delete("networkpolicy", DENY_ALL, dry_run=True).message


# --- what a pod may mount -----------------------------------------------------------------------------------------

WEAKER: dict[str, Callable[[dict[str, Any]], None]] = {
    "a claim that is not read-only": lambda spec: spec["volumes"][-1].update(
        configMap=None, persistentVolumeClaim={"claimName": "data"}
    ),
    "a Secret": lambda spec: spec["volumes"][-1].update(configMap=None, secret={"secretName": "one"}),
    "a folder of the node": lambda spec: spec["volumes"][-1].update(configMap=None, hostPath={"path": "/etc"}),
    "keys of the map": lambda spec: spec["volumes"][-1]["configMap"].update(items=[{"key": "words.txt", "path": "x"}]),
    "a mount that is not read-only": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(readOnly=False),
    "a mount elsewhere": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(mountPath="/opt/codeexec"),
    "a mount over the workspace": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(
        mountPath="/workspace/x"
    ),
    "a part of it": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(subPath="words.txt"),
}


def a_pod_with_mounts() -> dict[str, Any]:
    """As the operator makes it for an execution with a mount of a ConfigMap."""
    name = a_name("mounts")
    execution = an_execution(name, [BLOCK], mounts=[MOUNT], limits={"cpu": "50m", "memory": "64Mi"})
    execution["metadata"]["uid"] = "0badcafe-0000"
    return build_pod(CodeExecution.parse(execution), image=AN_IMAGE, deadline_seconds=60)


def test_a_pod_with_mounts_is_made_by_the_operator_only(operator, admin):
    pod = a_pod_with_mounts()
    assert objection(operator, pod) == "", "control"
    pod["metadata"] = {name: pod["metadata"][name] for name in ("name", "namespace")}  # else that is refused first
    assert "spec.volumes must be emptyDirs" in objection(admin, pod)


@pytest.mark.parametrize("weaken", WEAKER.values(), ids=WEAKER)
def test_the_operator_mounts_only_what_is_read_and_where_it_is_seen(operator, weaken):
    pod = a_pod_with_mounts()
    weaken(pod["spec"])
    said = objection(operator, pod)
    assert "violates PodSecurity" in said or "ValidatingAdmissionPolicy 'codeexec-pods'" in said
