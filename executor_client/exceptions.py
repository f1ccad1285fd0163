"""What can go wrong between the caller and the cluster, or the sandbox on the caller's own machine.

    CodeExecError(RuntimeError)         something other than the code failed; the text says what to do
    ├── ClusterUnreachable              no answer from the API server
    ├── NotInstalled                    CRDs or namespace are missing, or no operator answers
    ├── NotPermitted                    RBAC or a quota refuses to create the objects
    ├── NotFound                        there is no CodeExecution or CodeSession of this name
    ├── NothingToDecide                 the execution does not wait for approval (any more)
    ├── InvalidExecution                the API server refuses the object; the text names the field
    ├── ExecutionNotStarted             the sandbox could not be started (image, quota, scheduling, open network)
    ├── ExecutionLost                   the sandbox or its result was lost; the code may have run in part
    ├── Timeout(TimeoutError)           the code did not start in the time that the caller gives it
    ├── SessionEnded                    the session is over or was never there; nothing was run
    │   └── SessionDenied               the policy doesn't allow the session
    ├── FileTransferError(ValueError)   a file can't be put into the workspace or fetched from it
    │   └── FileMissing(FileNotFoundError)   there is no such file
    ├── LocalSandboxUnavailable         this machine can't confine code; there is no way to run it all the same
    ├── LocalRunNotApproved             this machine is in production, and no human has approved of running code on it
    ├── AuditLogUnavailable             the audit log of a local executor can't be written; nothing was run
    ├── NotSupported                    what runs the code can't do this; the text says what can
    └── OutputUnavailable               large output or a fetched file is gone, or isn't what the record says

What the code itself does (exit codes, timeouts, running out of memory) is never an exception but a result; so is a
refusal by policy, because an agent can do something about it.
"""


class CodeExecError(RuntimeError):
    """Root of all errors of this package."""


class ClusterUnreachable(CodeExecError):
    """No answer from the API server."""


class NotInstalled(CodeExecError):
    """CRDs or namespace are missing, or no operator answers."""


class NotPermitted(CodeExecError):
    """The API server refuses the credentials, or RBAC or a quota refuses the request."""


class NotFound(CodeExecError):
    """There is no CodeExecution or CodeSession of this name."""


class NothingToDecide(CodeExecError):
    """The execution does not wait for approval, or not any more; the text says what has become of it."""


class InvalidExecution(CodeExecError):
    """The API server refuses the object; the text names the field."""


class ExecutionNotStarted(CodeExecError):
    """The sandbox could not be started."""


class ExecutionLost(CodeExecError):
    """The sandbox or its result was lost; the code may have run in part."""


class Timeout(CodeExecError, TimeoutError):
    """The code did not start in the time that the caller gives it."""


class SessionEnded(CodeExecError):
    """The session is over or was never there; nothing was run."""


class SessionDenied(SessionEnded):
    """The policy doesn't allow the session; the text says what it allows."""


class FileTransferError(CodeExecError, ValueError):
    """A file can't be put into the workspace or fetched from it."""


class FileMissing(FileTransferError, FileNotFoundError):
    """There is no such file, here or in the workspace."""


class LocalSandboxUnavailable(CodeExecError):
    """This machine can't confine code: another system than Linux, an old kernel, or `sandlock` is not installed."""


class LocalRunNotApproved(CodeExecError):
    """This machine is in production, and no human has approved of running code on it; nothing was run."""


class AuditLogUnavailable(CodeExecError):
    """The audit log of a local executor can't be written; nothing was run."""


class OutputUnavailable(CodeExecError):
    """Large output or a fetched file is gone, or isn't what the record says."""


class NotSupported(CodeExecError):
    """What runs the code can't do this; the text says what can."""
