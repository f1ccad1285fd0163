"""Every name that the operator, the client and the chart have to agree on.

Group, kinds, labels and annotations are written here and nowhere else; a test looks for stray literals.
"""

from typing import Final

GROUP: Final = "codeexec.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

EXECUTION_KIND: Final = "CodeExecution"
EXECUTION_PLURAL: Final = "codeexecutions"
POLICY_KIND: Final = "ExecutionPolicy"
POLICY_PLURAL: Final = "executionpolicies"

POLICY_NAME: Final = "default"
"""The one ExecutionPolicy that governs a namespace has this name; without it the cluster's default counts."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "codeexec"
EXECUTION_LABEL: Final = f"{GROUP}/execution"
"""On sandbox pods and payload Secrets: name of the CodeExecution they belong to."""

PAYLOAD_SECRET_TYPE: Final = f"{GROUP}/payload"
"""Type of the Secrets that carry code. The operator reads and deletes no Secret of another type."""

SANDBOX_CONTAINER: Final = "sandbox"

POD_SUFFIX_LENGTH: Final = 8
MAX_EXECUTION_NAME: Final = 63 - POD_SUFFIX_LENGTH - 1
"""Longest name of a CodeExecution: the pod's name adds a suffix and must stay a valid label and host name."""


def pod_name(execution_name: str, uid: str) -> str:
    """Name of the sandbox pod: that of the execution and the start of its UID, so it is never used twice."""
    return f"{execution_name}-{uid.replace('-', '')[:POD_SUFFIX_LENGTH]}"


def block_key(index: int) -> str:
    """Key under which a payload Secret holds the block with this index."""
    return f"block-{index}"


def file_key(index: int) -> str:
    """Key under which a payload Secret holds the file with this index."""
    return f"file-{index}"
