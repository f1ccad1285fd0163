"""Runs the code of AI agents in hardened pods of a Kubernetes cluster.

`KubernetesCodeExecutor` is AutoGen's face of it, `CodeExecutionClient` the framework-neutral one. AutoGen is loaded
only when its executor is asked for.
"""

from typing import TYPE_CHECKING, Any

from codeexec_api import Limits
from executor_client.approvals import ApprovalRequest, ApprovalWait
from executor_client.blocks import PreparedBlock, SourceBlock, WorkspaceFile, prepare
from executor_client.client import ClusterRef, CodeExecutionClient, Request
from executor_client.exceptions import (
    ClusterUnreachable,
    CodeExecError,
    ExecutionLost,
    ExecutionNotStarted,
    FileMissing,
    FileTransferError,
    InvalidExecution,
    NotFound,
    NothingToDecide,
    NotInstalled,
    NotPermitted,
    OutputUnavailable,
    SessionDenied,
    SessionEnded,
)
from executor_client.execution import Execution
from executor_client.results import Artifact, ExecutionResult, OutputChunk
from executor_client.session import Session

if TYPE_CHECKING:
    from executor_client.executor import (
        KubernetesCodeExecutor,
        KubernetesCodeExecutorConfig,
        KubernetesCodeResult,
    )

__all__ = [
    "ApprovalRequest",
    "ApprovalWait",
    "Artifact",
    "ClusterRef",
    "ClusterUnreachable",
    "CodeExecError",
    "CodeExecutionClient",
    "Execution",
    "ExecutionLost",
    "ExecutionNotStarted",
    "ExecutionResult",
    "FileMissing",
    "FileTransferError",
    "InvalidExecution",
    "KubernetesCodeExecutor",
    "KubernetesCodeExecutorConfig",
    "KubernetesCodeResult",
    "Limits",
    "NotFound",
    "NotInstalled",
    "NotPermitted",
    "NothingToDecide",
    "OutputChunk",
    "OutputUnavailable",
    "PreparedBlock",
    "Request",
    "Session",
    "SessionDenied",
    "SessionEnded",
    "SourceBlock",
    "WorkspaceFile",
    "prepare",
]

_NEEDS_AUTOGEN = frozenset({"KubernetesCodeExecutor", "KubernetesCodeExecutorConfig", "KubernetesCodeResult"})


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_AUTOGEN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from executor_client import executor

    return getattr(executor, name)
