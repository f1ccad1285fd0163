"""What a client needs of a cluster: the real one in `cluster`, and one in memory in `executor_client.testing`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    CodeSessionSpec,
    ExecutionApproval,
    ExecutionApprovalSpec,
    ExecutionPolicy,
    Phase,
)

T = TypeVar("T")

CLOSED: Final = "the client was closed: make the call before close(), or create a new client"
"""What a request says that comes too late."""


class ClusterTransport(Protocol):
    """What `CodeExecutionClient` needs of a cluster. Used in one event loop only.

    Every method raises errors of `executor_client.exceptions`, and no others.
    """

    namespace: str

    def now(self) -> datetime:
        """The time by the caller's clock. The operator holds times against its own."""
        return datetime.now(UTC)  # noqa: TID251 - the one place where the client reads it

    async def check(self) -> None:
        """Make sure that the cluster answers and knows CodeExecutions."""

    async def close(self) -> None:
        """Close all connections."""

    async def patiently(self, ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """What `ask` returns; see `transport.outage.Retries`. Without it a method fails at the first failure."""

    async def whoami(self) -> str:
        """Name by which the cluster knows who this connection belongs to."""

    async def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        """Create a CodeExecution, and its payload in `spec.payload_ref.parts` Secrets.

        A cancellation counts only as long as nothing was sent; then it is not obeyed.

        Args:
            name: of the CodeExecution; `spec.payload_ref` names the Secrets.
            spec: announces what is in the payload.
            payload: content of each block and file by its key; empty if there is no `spec.payload_ref`.

        Raises:
            ClusterUnreachable: no answer came for a while. Code that may have been created was told to stop, if that
                was possible.
            CodeExecError: see `exceptions`; nothing is run then.
        """

    async def get(self, name: str) -> CodeExecution:
        """The CodeExecution of this name; `NotFound` if there is none."""

    def list(self, phase: Phase | None = None) -> AsyncGenerator[CodeExecution, None]:
        """All CodeExecutions of the namespace, or those in this phase, in no particular order."""

    def list_stored(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """All CodeExecutions and CodeSessions of the namespace as they are stored, each with its `kind`."""

    async def cancel(self, name: str) -> None:
        """Ask the operator to stop an execution."""

    def changes(self, execution: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        """Each version of the object after the given one, until it is deleted."""

    async def read_output(self, execution: CodeExecution, part: int) -> Mapping[str, bytes]:
        """One part of the output of a finished execution; `OutputUnavailable` if it is gone."""

    def follow_log(self, pod_name: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
        """Lines of the log of a sandbox pod as they come, without their ends, until its container ends.

        A log that can't be read, or no longer, is an end and no error: what is missing stands in the record.

        Args:
            pod_name: of the pod.
            last_seconds: how long ago the first line came, by the clock of the node; None: the log from its beginning.
        """

    async def get_policy(self) -> ExecutionPolicy | None:
        """The namespace's own policy; None if it has none."""

    async def read_code(self, secret: str) -> Mapping[str, bytes]:
        """What a Secret with code holds; `NotPermitted` to most."""

    async def decide(self, name: str, spec: ExecutionApprovalSpec) -> ExecutionApproval:
        """Create an ExecutionApproval."""

    async def revoke(self, name: str) -> None:
        """Take an ExecutionApproval back."""

    async def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        """Create a CodeSession. A cancellation counts as in `create`."""

    async def get_session(self, name: str) -> CodeSession:
        """The CodeSession of this name; `NotFound` if there is none."""

    def list_sessions(self) -> AsyncGenerator[CodeSession, None]:
        """All CodeSessions of the namespace, in no particular order."""

    async def end_session(self, name: str) -> None:
        """Ask the operator to end a session."""

    def session_changes(self, session: CodeSession) -> AsyncGenerator[CodeSession, None]:
        """Each version of the object after the given one, until it is deleted."""
