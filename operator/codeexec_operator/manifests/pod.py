"""The sandbox pod of an execution, of a session, or of a pool."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from codeexec_api import CodeExecution, CodeSession, Mount, PodLimits, SandboxPool
from codeexec_api.names import (
    API_VERSION,
    EGRESS_LABEL,
    EXECUTION_KIND,
    EXECUTION_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    POOL_KIND,
    POOL_LABEL,
    POOL_SUFFIX_LENGTH,
    SANDBOX_CONTAINER,
    SESSION_KIND,
    SESSION_LABEL,
    TEMPLATE_LABEL,
    pod_name,
)
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1 import ObjectMeta
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
    """The hardened pod that waits for the code of one execution or session.

    Args:
        owner: the request; it owns the pod, so the pod goes when the record is deleted.
        image: image reference by digest, as the policy chose it.
        deadline_seconds: the kubelet ends the pod after this time, whatever else happens.
        runtime_class_name: RuntimeClass, as the policy chose it; None is the node's default.
        user_namespace: every node that may get the pod can give it a user namespace of its own.
        egress_targets: what the runner tries to reach, to show that it can't: name, address, port, protocol of each.
    """
    meta = owner.metadata
    session = isinstance(owner, CodeSession)
    permitted = isinstance(owner, CodeExecution) and owner.spec.egress
    labels = {MANAGED_BY_LABEL: MANAGED_BY, SESSION_LABEL if session else EXECUTION_LABEL: meta.name}
    metadata = {
        "name": pod_name(meta.name, meta.uid),
        "namespace": meta.namespace,
        "labels": labels | ({EGRESS_LABEL: meta.uid} if permitted else {}),
        "ownerReferences": [owner_reference(SESSION_KIND if session else EXECUTION_KIND, meta)],
    }
    return _pod(
        metadata,
        owner.spec.limits,
        user_of=meta.uid,
        image=image,
        deadline_seconds=deadline_seconds,
        runtime_class_name=runtime_class_name,
        user_namespace=user_namespace,
        egress_targets=egress_targets,
        mounts=(owner.spec.mounts or ()) if isinstance(owner, CodeExecution) else (),
    )


def build_pool_pod(
    pool: SandboxPool,
    *,
    name: str,
    template: str,
    image: str,
    deadline_seconds: int,
    runtime_class_name: str | None = None,
    user_namespace: bool = False,
    egress_targets: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The hardened pod that waits in a pool.

    Args:
        pool: it owns the pod until an execution takes it.
        name: of the pod; ends in twelve random hexadecimal digits.
        template: digest of what the pod is made of.
        image: see `build_pod`, as for the rest.
        deadline_seconds: see `build_pod`.
        runtime_class_name: see `build_pod`.
        user_namespace: see `build_pod`.
        egress_targets: see `build_pod`.
    """
    metadata = {
        "name": name,
        "namespace": pool.metadata.namespace,
        "labels": {MANAGED_BY_LABEL: MANAGED_BY, POOL_LABEL: pool.metadata.name, TEMPLATE_LABEL: template},
        "ownerReferences": [owner_reference(POOL_KIND, pool.metadata)],
    }
    return _pod(
        metadata,
        pool.spec.limits,
        user_of=name[-POOL_SUFFIX_LENGTH:],
        image=image,
        deadline_seconds=deadline_seconds,
        runtime_class_name=runtime_class_name,
        user_namespace=user_namespace,
        egress_targets=egress_targets,
    )


def build_adoption(execution: CodeExecution, *, deadline_seconds: int | None) -> dict[str, Any]:
    """The patch (JSON merge patch, RFC 7396) that makes a pod of a pool the execution's own.

    Args:
        execution: from now on it owns the pod.
        deadline_seconds: the deadline, lowered; None leaves it as it is.
    """
    meta = execution.metadata
    patch: dict[str, Any] = {
        "metadata": {
            "labels": {POOL_LABEL: None, EXECUTION_LABEL: meta.name},
            "ownerReferences": [owner_reference(EXECUTION_KIND, meta)],
        }
    }
    return patch | ({} if deadline_seconds is None else {"spec": {"activeDeadlineSeconds": deadline_seconds}})


def owner_reference(kind: str, meta: ObjectMeta) -> dict[str, Any]:
    """Has the garbage collector take what is made for an object when that is deleted."""
    return {"apiVersion": API_VERSION, "kind": kind, "name": meta.name, "uid": meta.uid, "controller": True}


def _pod(
    metadata: Mapping[str, Any],
    limits: PodLimits,
    *,
    user_of: str,
    image: str,
    deadline_seconds: int,
    runtime_class_name: str | None,
    user_namespace: bool,
    egress_targets: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mount] = (),
) -> dict[str, Any]:
    identity = hardening.identity(user_of, user_namespace=user_namespace)
    resources = {"cpu": limits.cpu, "memory": limits.memory, "ephemeral-storage": limits.ephemeral_storage}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": dict(metadata),
        "spec": {
            **deepcopy(dict(hardening.POD)),
            **identity["spec"],
            **({"runtimeClassName": runtime_class_name} if runtime_class_name else {}),
            "activeDeadlineSeconds": deadline_seconds,
            "securityContext": deepcopy(dict(hardening.POD_SECURITY_CONTEXT)) | identity["securityContext"],
            "volumes": hardening.volumes(int(parse_quantity(limits.memory))) + hardening.read_only_volumes(mounts),
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
                    "volumeMounts": hardening.volume_mounts() + hardening.read_only_mounts(mounts),
                }
            ],
        },
    }
