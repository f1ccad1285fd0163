"""Runs the code of AI agents in hardened pods of a Kubernetes cluster.

`KubernetesCodeExecutor` is AutoGen's face of it, `CodeExecutionClient` the framework-neutral one. AutoGen is loaded
only when an executor is asked for, and what talks to a cluster when a client is. `LocalSandboxExecutor` runs code on
this machine instead; nothing else here uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codeexec_api import Limits
from executor_client.client.approvals import ApprovalRequest, ApprovalWait
from executor_client.client.waiting import WaitNotice
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
    OutputUnavailable,
    SessionDenied,
    SessionEnded,
)
from executor_client.model.blocks import PreparedBlock, SourceBlock, WorkspaceFile, prepare
from executor_client.model.results import Artifact, ExecutionResult, OutputChunk
from executor_client.runtime.extras import missing_extra

if TYPE_CHECKING:
    from executor_client.autogen.kubernetes import (
        KubernetesCodeExecutor,
        KubernetesCodeExecutorConfig,
        KubernetesCodeResult,
    )
    from executor_client.client.client import CodeExecutionClient
    from executor_client.client.execution import Execution
    from executor_client.client.request import ClusterRef, Request
    from executor_client.client.session import Session
    from executor_client.local.approval import LocalApproval
    from executor_client.local.executor import LocalCodeResult, LocalSandboxExecutor, LocalSandboxExecutorConfig

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
    "NothingToDecide",
    "OutputChunk",
    "OutputUnavailable",
    "PreparedBlock",
    "Request",
    "Session",
    "SessionDenied",
    "SessionEnded",
    "SourceBlock",
    "WaitNotice",
    "WorkspaceFile",
    "prepare",
]

_LOADED_WHEN_ASKED_FOR = {
    "CodeExecutionClient": "client.client",
    **dict.fromkeys(("ClusterRef", "Request"), "client.request"),
    "Execution": "client.execution",
    "Session": "client.session",
    **dict.fromkeys(
        ("KubernetesCodeExecutor", "KubernetesCodeExecutorConfig", "KubernetesCodeResult"), "autogen.kubernetes"
    ),
    **dict.fromkeys(("LocalCodeResult", "LocalSandboxExecutor", "LocalSandboxExecutorConfig"), "local.executor"),
    "LocalApproval": "local.approval",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_LOADED_WHEN_ASKED_FOR[name]}")
    except ModuleNotFoundError as error:
        raise missing_extra(name, error) from None
    return getattr(module, name)
