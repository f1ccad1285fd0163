"""Runs the code of AI agents in hardened pods of a Kubernetes cluster.

`KubernetesCodeExecutor` is AutoGen's face of it, `CodeExecutionClient` the framework-neutral one. Each name
is loaded when it is asked for: AutoGen only for an executor, and what talks to a cluster only for a client.
`LocalSandboxExecutor` runs code on this machine instead; nothing else here uses it.
"""

from typing import TYPE_CHECKING, Any

from executor_client.exceptions import (
    AuditLogUnavailable,
    ClusterUnreachable,
    CodeExecError,
    ExecutionLost,
    ExecutionNotStarted,
    FileMissing,
    FileTransferError,
    InvalidExecution,
    LocalRunNotApproved,
    LocalSandboxUnavailable,
    NotFound,
    NothingToDecide,
    NotInstalled,
    NotPermitted,
    NotSupported,
    OutputUnavailable,
    SessionDenied,
    SessionEnded,
    Timeout,
)
from executor_client.runtime.extras import load

if TYPE_CHECKING:
    from codeexec_api import Limits
    from executor_client.autogen.kubernetes import (
        KubernetesCodeExecutor,
        KubernetesCodeExecutorConfig,
        KubernetesCodeResult,
    )
    from executor_client.client.approvals import ApprovalRequest, ApprovalWait
    from executor_client.client.client import CodeExecutionClient
    from executor_client.client.execution import Execution
    from executor_client.client.request import ClusterRef, Request
    from executor_client.client.session import Session
    from executor_client.client.waiting import WaitNotice
    from executor_client.local.approval import LocalApproval
    from executor_client.local.executor import LocalCodeResult, LocalSandboxExecutor, LocalSandboxExecutorConfig
    from executor_client.model.blocks import PreparedBlock, SourceBlock, WorkspaceFile, prepare
    from executor_client.model.results import Artifact, ExecutionResult, OutputChunk

__all__ = [
    "ApprovalRequest",
    "ApprovalWait",
    "Artifact",
    "AuditLogUnavailable",
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
    "LocalApproval",
    "LocalCodeResult",
    "LocalRunNotApproved",
    "LocalSandboxExecutor",
    "LocalSandboxExecutorConfig",
    "LocalSandboxUnavailable",
    "NotFound",
    "NotInstalled",
    "NotPermitted",
    "NotSupported",
    "NothingToDecide",
    "OutputChunk",
    "OutputUnavailable",
    "PreparedBlock",
    "Request",
    "Session",
    "SessionDenied",
    "SessionEnded",
    "SourceBlock",
    "Timeout",
    "WaitNotice",
    "WorkspaceFile",
    "prepare",
]

_MODULES = {
    "Limits": "codeexec_api",
    **dict.fromkeys(("ApprovalRequest", "ApprovalWait"), "executor_client.client.approvals"),
    **dict.fromkeys(("Artifact", "ExecutionResult", "OutputChunk"), "executor_client.model.results"),
    **dict.fromkeys(("PreparedBlock", "SourceBlock", "WorkspaceFile", "prepare"), "executor_client.model.blocks"),
    **dict.fromkeys(("ClusterRef", "Request"), "executor_client.client.request"),
    "CodeExecutionClient": "executor_client.client.client",
    "Execution": "executor_client.client.execution",
    "Session": "executor_client.client.session",
    "WaitNotice": "executor_client.client.waiting",
    **dict.fromkeys(
        ("KubernetesCodeExecutor", "KubernetesCodeExecutorConfig", "KubernetesCodeResult"),
        "executor_client.autogen.kubernetes",
    ),
    **dict.fromkeys(
        ("LocalCodeResult", "LocalSandboxExecutor", "LocalSandboxExecutorConfig"), "executor_client.local.executor"
    ),
    "LocalApproval": "executor_client.local.approval",
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _MODULES)
