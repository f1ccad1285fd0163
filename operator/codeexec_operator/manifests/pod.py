"""The sandbox pod of an execution, of a session, or of a pool."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, Required, TypedDict, Unpack

from codeexec_api import CodeExecution, CodeSession, Mount, PodLimits, PodRequests, SandboxPool
from codeexec_api.names import (
    API_VERSION,
    EGRESS_LABEL,
    EXECUTION_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    POOL_LABEL,
    POOL_SUFFIX_LENGTH,
    SANDBOX_CONTAINER,
    SESSION_LABEL,
    TEMPLATE_LABEL,
    pod_name,
)
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1.bounds import DEFAULT_REQUESTS
from codeexec_operator.manifests import hardening

_RESOURCES: Final = {"cpu": "cpu", "memory": "memory", "ephemeral_storage": "ephemeral-storage"}
"""Fields of limits and requests, and what Kubernetes calls them."""
EGRESS_TARGETS: Final = "CODEEXEC_EGRESS_TARGETS"
"""The one variable of a sandbox pod. Only the runner can read it; code gets an environment of the runner's making."""


def egress_targets_of(spec: Mapping[str, Any]) -> str:
    """What the spec of a sandbox pod tells its runner to try: a list in JSON, if the operator has made the pod."""
    containers = spec.get("containers") or [{}]
    variables = {variable["name"]: variable.get("value") for variable in containers[0].get("env") or ()}
    return variables.get(EGRESS_TARGETS) or "[]"


class PodParts(TypedDict, total=False):
    """What all sandbox pods are made of."""

    image: Required[str]
    """Image reference by digest, as the policy chose it."""
    deadline_seconds: Required[int]
    """The kubelet ends the pod after this time, whatever else happens."""
    requests: PodRequests
    """What it requests of its node, at most its limits."""
    runtime_class_name: str | None
    """RuntimeClass, as the policy chose it; None is the node's default."""
    user_namespace: bool
    """Every node that may get the pod can give it a user namespace of its own."""
    egress_targets: Sequence[Mapping[str, Any]]
    """What the runner tries to reach, to show that it can't: name, address, port, protocol of each."""


def build_pod(owner: CodeExecution | CodeSession, **parts: Unpack[PodParts]) -> dict[str, Any]:
    """The hardened pod that waits for the code of one execution or session.

    The request owns the pod, so the pod goes when the record is deleted.
    """
    meta = owner.metadata
    session = isinstance(owner, CodeSession)
    permitted = isinstance(owner, CodeExecution) and owner.spec.egress
    labels = {MANAGED_BY_LABEL: MANAGED_BY, SESSION_LABEL if session else EXECUTION_LABEL: meta.name}
    metadata = {
        "name": pod_name(meta.name, meta.uid, owner.status.sleeps if isinstance(owner, CodeSession) else 0),
        "namespace": meta.namespace,
        "labels": labels | ({EGRESS_LABEL: meta.uid} if permitted else {}),
        "ownerReferences": [owner_reference(owner)],
    }
    return _pod(
        metadata,
        owner.spec.limits,
        user_of=meta.uid,
        mounts=(owner.spec.mounts or ()) if isinstance(owner, CodeExecution) else (),
        **parts,
    )


def build_pool_pod(pool: SandboxPool, *, name: str, template: str, **parts: Unpack[PodParts]) -> dict[str, Any]:
    """The hardened pod that waits in a pool, which owns the pod until an execution or a session takes it.

    `name` ends in twelve random hexadecimal digits, and `template` is the digest of what the pod is made of.
    """
    metadata = {
        "name": name,
        "namespace": pool.metadata.namespace,
        "labels": {MANAGED_BY_LABEL: MANAGED_BY, POOL_LABEL: pool.metadata.name, TEMPLATE_LABEL: template},
        "ownerReferences": [owner_reference(pool)],
    }
    return _pod(metadata, pool.spec.limits, user_of=name[-POOL_SUFFIX_LENGTH:], **parts)


def build_adoption(owner: CodeExecution | CodeSession, *, deadline_seconds: int | None) -> dict[str, Any]:
    """The patch (JSON merge patch, RFC 7396) that makes a pod of a pool the own pod of an execution or a session.

    It lowers the deadline, or leaves it as it is.
    """
    label = SESSION_LABEL if isinstance(owner, CodeSession) else EXECUTION_LABEL
    patch: dict[str, Any] = {
        "metadata": {
            "labels": {POOL_LABEL: None, label: owner.metadata.name},
            "ownerReferences": [owner_reference(owner)],
        }
    }
    return patch | ({} if deadline_seconds is None else {"spec": {"activeDeadlineSeconds": deadline_seconds}})


def owner_reference(owner: CodeExecution | CodeSession | SandboxPool) -> dict[str, Any]:
    """Has the garbage collector take what is made for an object when that is deleted."""
    meta = owner.metadata
    return {"apiVersion": API_VERSION, "kind": owner.kind, "name": meta.name, "uid": meta.uid, "controller": True}


def _pod(
    metadata: Mapping[str, Any],
    limits: PodLimits,
    *,
    user_of: str,
    mounts: Sequence[Mount] = (),
    **parts: Unpack[PodParts],
) -> dict[str, Any]:
    runtime_class_name, egress_targets = parts.get("runtime_class_name"), list(parts.get("egress_targets", ()))
    identity = hardening.identity(user_of, user_namespace=parts.get("user_namespace", False))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": dict(metadata),
        "spec": {
            **deepcopy(dict(hardening.POD)),
            **identity["spec"],
            **({"runtimeClassName": runtime_class_name} if runtime_class_name else {}),
            "activeDeadlineSeconds": parts["deadline_seconds"],
            "securityContext": deepcopy(dict(hardening.POD_SECURITY_CONTEXT)) | identity["securityContext"],
            "volumes": hardening.volumes(int(parse_quantity(limits.memory))) + hardening.read_only_volumes(mounts),
            "containers": [
                {
                    "name": SANDBOX_CONTAINER,
                    "image": parts["image"],
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": EGRESS_TARGETS, "value": json.dumps(egress_targets, separators=(",", ":"))}],
                    "stdin": True,
                    # What a runner that can't start says reaches the record.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": deepcopy(dict(hardening.CONTAINER_SECURITY_CONTEXT)),
                    "resources": _resources(limits, parts.get("requests", PodRequests())),
                    "volumeMounts": hardening.volume_mounts() + hardening.read_only_mounts(mounts),
                }
            ],
        },
    }


def _resources(limits: PodLimits, requests: PodRequests) -> dict[str, dict[str, str]]:
    """Kubernetes refuses a request above the limit, so a pod with a low limit requests its limit."""
    highest = {kind: getattr(limits, field) for field, kind in _RESOURCES.items()}
    asked = {kind: getattr(requests, field) or DEFAULT_REQUESTS[field] for field, kind in _RESOURCES.items()}
    return {
        "requests": {kind: min(asked[kind], limit, key=parse_quantity) for kind, limit in highest.items()},
        "limits": highest,
    }
