"""What can go wrong between the caller and the cluster.

    CodeExecError(RuntimeError)         something other than the code failed; the text says what to do
    ├── ClusterUnreachable              no answer from the API server
    ├── NotInstalled                    CRDs or namespace are missing, or no operator answers
    ├── NotPermitted                    RBAC or a quota refuses to create the objects
    ├── InvalidExecution                the API server refuses the CodeExecution; the text names the field
    ├── ExecutionNotStarted             the sandbox could not be started (image, quota, scheduling, open network)
    └── ExecutionLost                   the sandbox or its result was lost; the code may have run in part

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
    """RBAC or a quota refuses to create the objects."""


class InvalidExecution(CodeExecError):
    """The API server refuses the CodeExecution; the text names the field."""


class ExecutionNotStarted(CodeExecError):
    """The sandbox could not be started."""


class ExecutionLost(CodeExecError):
    """The sandbox or its result was lost; the code may have run in part."""
