"""The one table of security settings of a sandbox pod.

Every setting that makes a sandbox a sandbox stands here and nowhere else. Together they satisfy the Pod Security
standard `restricted`, and go beyond it where it stops (read-only root, no token, no environment, bounded volumes).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from codeexec_api import Mount

SANDBOX_UID: Final = 65532
"""User of the code in a pod with a user namespace of its own: on the node it is another one for each pod."""
SANDBOX_GID: Final = 65532
OWN_UIDS: Final = range(1_000_000_000, 1_000_000_000 + 2**28)
"""Users of pods without one. A user of its own for each pod, because the kernel counts processes for each user."""

POD: Final = MappingProxyType(
    {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "terminationGracePeriodSeconds": 0,
        # No resolver: DNS is traffic. `None` wants a server: an address reserved for documentation (RFC 5737).
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.1"], "options": [{"name": "timeout", "value": "1"}]},
    }
)

POD_SECURITY_CONTEXT: Final = MappingProxyType(
    {
        "runAsNonRoot": True,
        "runAsGroup": SANDBOX_GID,
        "fsGroup": SANDBOX_GID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
)

CONTAINER_SECURITY_CONTEXT: Final = MappingProxyType(
    {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
)

WRITABLE: Final = MappingProxyType({"workspace": ("/workspace", 2), "tmp": ("/tmp", 4)})  # noqa: S108
"""The only writable folders: volume name to (mount path, divisor of the memory limit for its size).

They are memory-backed: the kernel then enforces their size at once, where a disk-backed emptyDir is only measured
now and then. What is written counts towards the memory limit.
"""


def identity(uid: str, *, user_namespace: bool) -> dict[str, Any]:
    """The fields of a pod's spec and of its security context that say as whom the code runs.

    Args:
        uid: hexadecimal digits that are the pod's own, such as the UID of its execution; dashes are left out.
        user_namespace: the runtime of the pod can give it a user namespace.

    Returns:
        `{"spec": fields of the pod's spec, "securityContext": fields of its security context}`.
    """
    if user_namespace:
        return {"spec": {"hostUsers": False}, "securityContext": {"runAsUser": SANDBOX_UID}}
    return {"spec": {}, "securityContext": {"runAsUser": OWN_UIDS[int(uid.replace("-", "")[:7], 16)]}}


def has_user_namespace(spec: Mapping[str, Any]) -> bool:
    """True if the spec of a pod gives it a user namespace of its own."""
    return spec.get("hostUsers") is False


def volumes(memory_bytes: int) -> list[dict[str, Any]]:
    """The writable volumes of a pod with this memory limit."""
    return [
        {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(memory_bytes // divisor)}}
        for name, (_, divisor) in WRITABLE.items()
    ]


def volume_mounts() -> list[dict[str, Any]]:
    """Where the writable volumes are mounted."""
    return [{"name": name, "mountPath": path} for name, (path, _) in WRITABLE.items()]


def read_only_volumes(mounts: Iterable[Mount]) -> list[dict[str, Any]]:
    """The volumes that an execution asks for. A claim that is read-only keeps its owners and modes as they are."""
    return [{"name": _mount_name(mount), **_source(mount)} for mount in mounts]


def read_only_mounts(mounts: Iterable[Mount]) -> list[dict[str, Any]]:
    """Where they are mounted."""
    return [{"name": _mount_name(mount), "mountPath": mount.mount_path, "readOnly": True} for mount in mounts]


def _mount_name(mount: Mount) -> str:
    return f"mount-{mount.name}"


def _source(mount: Mount) -> dict[str, Any]:
    if mount.persistent_volume_claim:
        return {"persistentVolumeClaim": {"claimName": mount.persistent_volume_claim.claim_name, "readOnly": True}}
    return {"configMap": {"name": mount.config_map.name if mount.config_map else ""}}
