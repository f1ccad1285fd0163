"""The one table of security settings of a sandbox pod.

Every setting that makes a sandbox a sandbox stands here and nowhere else. Together they satisfy the Pod Security
standard `restricted`, and go beyond it where it stops (read-only root, no token, no environment, bounded volumes).
"""

from types import MappingProxyType
from typing import Any, Final

SANDBOX_UID: Final = 65532
SANDBOX_GID: Final = 65532

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
        "runAsUser": SANDBOX_UID,
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


def volumes(memory_bytes: int) -> list[dict[str, Any]]:
    """The writable volumes of a pod with this memory limit."""
    return [
        {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(memory_bytes // divisor)}}
        for name, (_, divisor) in WRITABLE.items()
    ]


def volume_mounts() -> list[dict[str, Any]]:
    """Where the writable volumes are mounted."""
    return [{"name": name, "mountPath": path} for name, (path, _) in WRITABLE.items()]
