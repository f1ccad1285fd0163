"""The chart's objects in a control plane without a node: what `helm install` would make there, and in force."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from chart.helm import render
from cluster_tools import SYSTEM, wait_for
from kube import Kube, Refusal

from codeexec_api.names import EXPORT_CURSOR, SEALING_KEY

Object = dict[str, Any]

FIRST = ("Namespace", "CustomResourceDefinition")
IMAGE = "registry.example:5000/codeexec/sandbox@sha256:" + "b" * 64
"""The sandbox image of the chart's least values, which `chart.helm.render` takes."""


def install(kube: Kube, namespaces: Sequence[str], *settings: str) -> list[Object]:
    """Apply the chart as a release of the name `codeexec`, with these sandbox namespaces and `--set` these settings.

    Returns its objects once they are in force.
    """
    chosen = ("sandbox.namespaces={" + ",".join(namespaces) + "}", *settings)
    objects = render(*(word for one in chosen for word in ("--set", one)))
    objects = [one for one in objects if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    first = [one for one in objects if one["kind"] in FIRST]
    kube.apply(*first)
    wait_until_served(kube, [one for one in first if one["kind"] == "CustomResourceDefinition"])
    kube.apply(*[one for one in objects if one not in first])
    for namespace in namespaces:
        account = functools.partial(kube.exists, "serviceaccount", "default", namespace)
        wait_for(f"the account of pods in {namespace}", account)
        wait_for(f"the quota of {namespace} to be counted", functools.partial(_counted, kube, namespace))
        wait_until_in_force(kube, namespace)
    return objects


def wait_until_served(kube: Kube, definitions: Sequence[Object]) -> None:
    """Until the API server answers requests for each of these custom resources."""
    for definition in definitions:
        kind = definition["spec"]["names"]["kind"]
        wait_for(f"{kind} to be served", functools.partial(_served, kube, definition["metadata"]["name"], kind))


def _served(kube: Kube, name: str, kind: str) -> bool:
    """Established, in the discovery documents, which follow a moment later, and with its storage initialized.

    Until its cache is filled the API server answers lists by 429, "storage is (re)initializing".
    """
    conditions = kube.get("customresourcedefinition", name).get("status", {}).get("conditions") or []
    if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
        return False
    try:
        return kube.try_list(kind, None) is None
    except AssertionError:
        return False


def _counted(kube: Kube, namespace: str) -> bool:
    quota = kube.get("resourcequota", "codeexec", namespace)
    return quota["spec"].get("hard", {}).keys() == quota.get("status", {}).get("hard", {}).keys()


def wait_until_in_force(kube: Kube, namespace: str, release: str = "codeexec") -> None:
    """Until each of the chart's admission policies refuses what it is there to refuse: that takes them a moment."""
    agent = Kube(kube.kubeconfig, f"system:serviceaccount:{namespace}:codeexec-agent")
    operator = Kube(kube.kubeconfig, f"system:serviceaccount:{SYSTEM}:codeexec-operator")
    name = {"name": "in-force", "namespace": namespace}
    session = {"source": {"agent": "probe"}, "requestedBy": _user(kube)}
    execution = {"name": "in-force", "uid": "0badcafe-0000-4000-8000-000000000000", "requestedBy": "somebody-else"}
    everything = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "none"}}
    attempts = {
        "records": (kube, _ours("CodeSession", {**name, "finalizers": ["example.com/for-ever"]}, session)),
        "requests": (kube, _ours("CodeSession", name, {**session, "requestedBy": "somebody-else"})),
        "approvals": (
            kube,
            _ours(
                "ExecutionApproval",
                {**name, "labels": {"codeexec.dev/execution": "in-force"}},
                {
                    "executionRef": execution,
                    "decision": "Deny",
                    "approver": "another",
                },
            ),
        ),
        "payloads": (agent, {"apiVersion": "v1", "kind": "Secret", "metadata": name, "type": "Opaque"}),
        "egress": (
            operator,
            {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": name, "spec": everything},
        ),
        "pods": (kube, {"apiVersion": "v1", "kind": "Pod", "metadata": name, "spec": _RESTRICTED}),
        "leases": (
            agent,
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {**name, "name": "codeexec-client-in-force"},
                "spec": {"holderIdentity": "somebody-else"},
            },
        ),
        "pod-changes": (kube, {**binding, "metadata": {**name, "annotations": {"example.com/network": "other"}}}),
        "sealing": (
            kube,
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {**name, "name": SEALING_KEY},
                "data": {"publicKey": "x"},
            },
        ),
        "export": (
            kube,
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {**name, "name": EXPORT_CURSOR},
                "data": {"codeexecutions": "1"},
            },
        ),
    }
    for policy, (user, thing) in attempts.items():
        attempt = functools.partial(user.try_create, thing, dry_run=True)
        wait_for(f"{release}-{policy} to refuse", functools.partial(_refuses, attempt, f"'{release}-{policy}'"))
    delete = functools.partial(operator.try_delete, "configmap", "kube-root-ca.crt", namespace, dry_run=True)
    wait_for(f"{release}-deletions to refuse", functools.partial(_refuses, delete, f"'{release}-deletions'"))
    connect = functools.partial(kube.try_connect, "in-force", "exec?command=true", namespace)
    wait_for(f"{release}-connections to refuse", functools.partial(_refuses, connect, f"'{release}-connections'"))
    written = kube.create(_ours("CodeSession", name, session))
    change = functools.partial(_try_change, agent, written)
    wait_for(f"{release}-writes to refuse", functools.partial(_refuses, change, f"'{release}-writes'"))
    kube.delete("codesession", "in-force", namespace)


def _refuses(attempt: Callable[[], Refusal | None], policy: str) -> bool:
    refusal = attempt()
    return refusal is not None and f"ValidatingAdmissionPolicy {policy}" in refusal.message


def _try_change(user: Kube, thing: Object) -> Refusal | None:
    label = {"metadata": {"labels": {"example.com/label": "x"}}}
    meta = thing["metadata"]
    return user.try_patch(thing["kind"], meta["name"], label, meta["namespace"], dry_run=True)


def _user(kube: Kube) -> str:
    """By which name the API server knows who asks."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    asked = kube.connection.json("POST", f"/apis/{review['apiVersion']}/selfsubjectreviews", review)
    return str(asked["status"]["userInfo"]["username"])


def _ours(kind: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": "codeexec.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


# What Pod Security has nothing against.
_RESTRICTED: Object = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": IMAGE,
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}
