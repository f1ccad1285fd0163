"""Runs code of AI agents in hardened sandboxes of a Kubernetes cluster.

    import codeexec

    async with codeexec.Client(agent="analyst") as client:
        print((await client.run("print(6 * 7)")).stdout)
        async with client.session() as session:
            await session.run("import pandas as pd; df = pd.read_csv('data.csv')")
            result = await session.run("df.plot()")
            result.displays[0].png

`codeexec.sync` has the same without `async`, `codeexec.local` runs code on this machine, and `codeexec.testing` is a
cluster in memory for tests. See docs/api.md. Names are loaded when they are first used, so importing is cheap.

Errors:

    Error(RuntimeError)                 something other than the code failed; the text says what to do
    ├── ClusterUnreachable              no answer from the API server
    ├── NotInstalled                    CRDs or namespace are missing, or no operator answers
    ├── NotPermitted                    RBAC or a quota refuses to create the objects
    ├── NotFound                        there is no execution or session of this name
    ├── NotSupported                    what runs the code can't do this; the text says what can
    ├── NothingToDecide                 the execution does not wait for approval (any more)
    ├── InvalidExecution                the API server refuses the object; the text names the field
    ├── ExecutionNotStarted             the sandbox could not be started (image, quota, scheduling, open network)
    ├── ExecutionLost                   the sandbox or its result was lost; the code may have run in part
    ├── Timeout(TimeoutError)           the code did not start within `start_timeout`
    │   └── CodeTimeout                 `raise_for_error`: the code took longer than `timeout`
    ├── SessionEnded                    the session is over or was never there; nothing was run
    │   └── SessionDenied               the policy doesn't allow the session
    ├── FileTransferError(ValueError)   a file can't be put into the workspace or fetched from it
    │   └── FileMissing(FileNotFoundError)   there is no such file
    ├── OutputUnavailable               large output or a fetched file is gone, or isn't what the record says
    └── CodeFailed                      `raise_for_error`: the call did not succeed
        ├── CodeTimeout                 the code took longer than `timeout`
        ├── CodeDenied                  the policy or an approver refused the call
        └── CodeNotApproved             the call waits for approval; its code has not run yet
"""

from typing import TYPE_CHECKING, Any

from executor_client.exceptions import (
    ClusterUnreachable,
    ExecutionLost,
    ExecutionNotStarted,
    FileMissing,
    FileTransferError,
    InvalidExecution,
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
from executor_client.exceptions import (
    CodeExecError as Error,
)
from executor_client.runtime.extras import load

if TYPE_CHECKING:
    from codeexec._client import Client
    from codeexec._result import CodeDenied, CodeError, CodeFailed, CodeNotApproved, CodeTimeout, Display, Result
    from codeexec._session import USE_DEFAULT, Session
    from codeexec_api import CodeExecution, CodeSession, Limits, Phase
    from executor_client.client.approvals import ApprovalRequest, ApprovalWait, ReviewedCode
    from executor_client.client.waiting import WaitNotice
    from executor_client.model.results import Artifact, OutputChunk

__all__ = [
    "USE_DEFAULT",
    "ApprovalRequest",
    "ApprovalWait",
    "Artifact",
    "Client",
    "ClusterUnreachable",
    "CodeDenied",
    "CodeError",
    "CodeExecution",
    "CodeFailed",
    "CodeNotApproved",
    "CodeSession",
    "CodeTimeout",
    "Display",
    "Error",
    "ExecutionLost",
    "ExecutionNotStarted",
    "FileMissing",
    "FileTransferError",
    "InvalidExecution",
    "Limits",
    "NotFound",
    "NotInstalled",
    "NotPermitted",
    "NotSupported",
    "NothingToDecide",
    "OutputChunk",
    "OutputUnavailable",
    "Phase",
    "Result",
    "ReviewedCode",
    "Session",
    "SessionDenied",
    "SessionEnded",
    "Timeout",
    "WaitNotice",
]

_MODULES = {
    "Client": "codeexec._client",
    **dict.fromkeys(("USE_DEFAULT", "Session"), "codeexec._session"),
    **dict.fromkeys(
        ("CodeDenied", "CodeError", "CodeFailed", "CodeNotApproved", "CodeTimeout", "Display", "Result"),
        "codeexec._result",
    ),
    **dict.fromkeys(("CodeExecution", "CodeSession", "Limits", "Phase"), "codeexec_api"),
    **dict.fromkeys(("ApprovalRequest", "ApprovalWait", "ReviewedCode"), "executor_client.client.approvals"),
    "WaitNotice": "executor_client.client.waiting",
    **dict.fromkeys(("Artifact", "OutputChunk"), "executor_client.model.results"),
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _MODULES)
