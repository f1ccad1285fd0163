"""The NetworkPolicy that opens to one pod what was permitted to its execution. All else stays closed by the chart's."""

from collections.abc import Sequence
from typing import Any

from codeexec_api import CodeExecution, OpenedEgress, Permit
from codeexec_api.names import EGRESS_LABEL, EXECUTION_LABEL, MANAGED_BY, MANAGED_BY_LABEL, pod_name
from codeexec_operator.manifests.pod import owner_reference


def build_network_policy(execution: CodeExecution, opened: Sequence[OpenedEgress]) -> dict[str, Any]:
    """The policy, of the same name as the pod, which it selects by the UID of the execution that owns it.

    `opened` has one for each of the execution's permits, in their order.
    """
    meta = execution.metadata
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": pod_name(meta.name, meta.uid),
            "namespace": meta.namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY, EXECUTION_LABEL: meta.name},
            "ownerReferences": [owner_reference(execution)],
        },
        "spec": {
            "podSelector": {"matchLabels": {EGRESS_LABEL: meta.uid}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [
                {"to": [_peer(permit, egress)], "ports": [{"port": permit.port, "protocol": permit.protocol}]}
                for permit, egress in zip(execution.spec.egress or (), opened, strict=True)
            ],
        },
    }


def _peer(permit: Permit, opened: OpenedEgress) -> dict[str, Any]:
    if permit.cidr is not None:
        return {"ipBlock": {"cidr": permit.cidr, **({"except": list(opened.left_out)} if opened.left_out else {})}}
    selectors = (("namespaceSelector", permit.namespace_selector), ("podSelector", permit.pod_selector))
    return {name: selector.dump() for name, selector in selectors if selector}
