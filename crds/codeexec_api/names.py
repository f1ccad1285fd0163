"""Every name that the operator, the client and the chart have to agree on.

Group, kinds, labels and annotations are written here and nowhere else; a test looks for stray literals.
"""

from typing import Final

from codeexec_api.digests import sha256_hex

GROUP: Final = "codeexec.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

EXECUTION_KIND: Final = "CodeExecution"
EXECUTION_PLURAL: Final = "codeexecutions"
SESSION_KIND: Final = "CodeSession"
SESSION_PLURAL: Final = "codesessions"
POLICY_KIND: Final = "ExecutionPolicy"
POLICY_PLURAL: Final = "executionpolicies"
APPROVAL_KIND: Final = "ExecutionApproval"
APPROVAL_PLURAL: Final = "executionapprovals"
POOL_KIND: Final = "SandboxPool"
POOL_PLURAL: Final = "sandboxpools"

POLICY_NAME: Final = "default"
"""The one ExecutionPolicy that governs a namespace has this name; without it the cluster's default counts."""

DEFAULT_POOL: Final = "default"
"""The SandboxPool that the operator makes in each sandbox namespace that has none of this name."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "codeexec"
OPERATOR_SELECTOR: Final = "app.kubernetes.io/part-of=codeexec,app.kubernetes.io/component=operator"
"""Selects the operator's pods, as the chart labels them."""
EXECUTION_LABEL: Final = f"{GROUP}/execution"
"""On sandbox pods, payload Secrets, output ConfigMaps and approvals: name of the CodeExecution they belong to."""
CLIENT_LABEL: Final = f"{GROUP}/client"
"""On CodeExecutions: the connection that created them, which watches all that have this label."""
SESSION_LABEL: Final = f"{GROUP}/session"
"""On the pods of sessions: name of the CodeSession they belong to."""
POOL_LABEL: Final = f"{GROUP}/pool"
"""On pods that wait in a pool: its name. The pod of an execution that got it from there has EXECUTION_LABEL instead."""
EGRESS_LABEL: Final = f"egress.{GROUP}/execution"
"""On the pod of an execution with permits: UID of the execution, by which its NetworkPolicy selects the pod."""
TEMPLATE_LABEL: Final = f"{GROUP}/template"
"""On pods that wait in a pool: digest of what they were made of. One that isn't the pool's any more is replaced."""
EXPIRES_ANNOTATION: Final = f"{GROUP}/expires-at"
"""On output ConfigMaps: when the operator deletes them, RFC 3339."""

PAYLOAD_SECRET_TYPE: Final = f"{GROUP}/payload"
"""Type of the Secrets that carry code. In sandbox namespaces the operator reads and deletes no other Secret."""

SEALING_KEY: Final = "codeexec-sealing-key"
"""ConfigMap in each sandbox namespace with the key that small payloads are sealed with."""
KEY_NAME: Final = "keyName"
"""Key under which it holds the name of that key."""
PUBLIC_KEY: Final = "publicKey"
"""Key under which it holds the X25519 public key, 32 bytes as base64."""

EXPORT_CURSOR: Final = "codeexec-export"
"""ConfigMap in each sandbox namespace that says how far the export of records got: a resource version for each kind, by
its plural."""

LEASE_PREFIX: Final = "codeexec-client-"
"""How the names of the Leases begin that clients renew as long as they are there."""
LEASE_SECONDS: Final = 35
"""How long such a Lease counts after it was renewed, and one that doesn't say how long, or is missing."""

SANDBOX_CONTAINER: Final = "sandbox"

NODE_RUNTIME: Final = "runc"
"""Stands for the node's default runtime where a RuntimeClass is named: then the pod names none."""

POD_SUFFIX_LENGTH: Final = 8
MAX_EXECUTION_NAME: Final = 63 - POD_SUFFIX_LENGTH - 1
"""Longest name of a CodeExecution or CodeSession: the pod's adds a suffix and must stay a valid label and host name."""
POOL_SUFFIX_LENGTH: Final = 12
MAX_POOL_NAME: Final = 63 - POOL_SUFFIX_LENGTH - 1


def pod_name(owner_name: str, uid: str, sleeps: int = 0) -> str:
    """Name of the sandbox pod: that of its execution or session and the start of its UID, so it is never used twice.

    Each pod of a session that sleeps has another suffix, by how often the session has slept.
    """
    suffix = sha256_hex(f"{uid} {sleeps}".encode()) if sleeps else uid.replace("-", "")
    return f"{owner_name}-{suffix[:POD_SUFFIX_LENGTH]}"


def payload_name(name: str, part: int) -> str:
    """Name of the Secret with this part of a payload; `name` is that of the first part, `spec.payloadRef.name`."""
    return f"{name}-{part}" if part else name


def review_name(execution_name: str, uid: str) -> str:
    """Name of the Secret with the code of an execution that waits for approval, if it came sealed."""
    return f"{pod_name(execution_name, uid)}-review"


def output_name(execution_name: str, uid: str, frames: tuple[int, int]) -> str:
    """Name of the ConfigMap with what these frames of the runner brought: the first, and the one after the last.

    What one leader has stored and another one stores again has the same name only if it is the same.
    """
    return f"{pod_name(execution_name, uid)}-{part_name(frames)}"


def part_name(frames: tuple[int, int]) -> str:
    """How these frames are written in the names of parts of the output: `0-37`."""
    return "-".join(map(str, frames))


def block_key(index: int) -> str:
    """Key under which payload Secrets hold the block with this index."""
    return f"block-{index}"


def file_key(index: int) -> str:
    """Key under which payload Secrets hold the file with this index of `spec.files`."""
    return f"file-{index}"


def artifact_key(index: int) -> str:
    """Key under which output ConfigMaps hold the artifact with this index of `status.artifacts`."""
    return f"artifact-{index}"


ORDER_KEY: Final = "order"
"""Key under which an output ConfigMap says how its `stdout` and `stderr` were interleaved: JSON `[["stdout", 12], …]`.

Numbers are bytes. The contents of `stdout`, `stderr` and artifacts are the values of these keys, joined over all parts.
Each key ends with `packing.GZIP_SUFFIX` where its value is compressed.
"""

LOCAL_NAMESPACE: Final = "local"
"""That audit lines of local executors name: there is no namespace of Kubernetes."""
