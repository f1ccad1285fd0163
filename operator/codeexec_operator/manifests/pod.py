"""The sandbox pod of an execution or of a session."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from codeexec_api import CodeExecution, CodeSession
from codeexec_api.names import (
    API_VERSION,
    EXECUTION_KIND,
    EXECUTION_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    SANDBOX_CONTAINER,
    SESSION_KIND,
    SESSION_LABEL,
    pod_name,
)
from codeexec_api.quantities import parse_quantity
from codeexec_operator.manifests import hardening

EGRESS_TARGETS: Final = "CODEEXEC_EGRESS_TARGETS"
"""The one variable of a sandbox pod. Only the runner can read it; code gets an environment of the runner's making."""


def egress_targets_of(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The targets that the spec of a sandbox pod tells its runner to try."""
    containers = spec.get("containers") or [{}]
    variables = {one["name"]: one.get("value") for one in containers[0].get("env") or ()}
    targets: list[Mapping[str, Any]] = json.loads(variables.get(EGRESS_TARGETS) or "[]")
    return targets


def build_pod(
    owner: CodeExecution | CodeSession,
    *,
    image: str,
    deadline_seconds: int,
    runtime_class_name: str | None = None,
    user_namespace: bool = False,
    egress_targets: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The hardened pod that waits for code.

    Args:
        owner: the request; it owns the pod, so the pod goes when the record is deleted.
        image: image reference by digest, as the policy chose it.
        deadline_seconds: the kubelet ends the pod after this time, whatever else happens.
        runtime_class_name: RuntimeClass, as the policy chose it; None is the node's default.
        user_namespace: every node that may get the pod can give it a user namespace of its own.
        egress_targets: what the runner tries to reach, to show that it can't: name, address, port, protocol of each.
    """
    meta, limits = owner.metadata, owner.spec.limits
    session = isinstance(owner, CodeSession)
    identity = hardening.identity(meta.uid, user_namespace=user_namespace)
    resources = {"cpu": limits.cpu, "memory": limits.memory, "ephemeral-storage": limits.ephemeral_storage}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(meta.name, meta.uid),
            "namespace": meta.namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY, SESSION_LABEL if session else EXECUTION_LABEL: meta.name},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": SESSION_KIND if session else EXECUTION_KIND,
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                }
            ],
        },
        "spec": {
            **deepcopy(dict(hardening.POD)),
            **identity["spec"],
            **({"runtimeClassName": runtime_class_name} if runtime_class_name else {}),
            "activeDeadlineSeconds": deadline_seconds,
            "securityContext": deepcopy(dict(hardening.POD_SECURITY_CONTEXT)) | identity["securityContext"],
            "volumes": hardening.volumes(int(parse_quantity(limits.memory))),
            "containers": [
                {
                    "name": SANDBOX_CONTAINER,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": EGRESS_TARGETS, "value": json.dumps(list(egress_targets), separators=(",", ":"))}],
                    "stdin": True,
                    # What a runner that can't start says reaches the record.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": deepcopy(dict(hardening.CONTAINER_SECURITY_CONTEXT)),
                    "resources": {"requests": resources, "limits": resources},
                    "volumeMounts": hardening.volume_mounts(),
                }
            ],
        },
    }
