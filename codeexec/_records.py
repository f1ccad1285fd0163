"""What stands on record in the namespace: executions, sessions, and what waits for a human."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

from codeexec._result import DISPLAY_PATTERN, Result
from codeexec._session import Session
from codeexec_api import CodeExecution, CodeSession, ExecutionApproval, Phase
from executor_client.client.approvals import ReviewedCode
from executor_client.client.request import Request
from executor_client.model.arguments import inside, phase_of
from executor_client.model.results import OutputChunk

if TYPE_CHECKING:
    from executor_client.client.client import CodeExecutionClient


class Executions:
    """The records of what has run in the namespace, and what runs: `client.executions`."""

    def __init__(self, cluster: "CodeExecutionClient") -> None:
        self._cluster = cluster

    async def list(self, *, phase: Phase | str | None = None) -> AsyncGenerator[CodeExecution, None]:
        """Iterate over the records, in no particular order: `async for record in client.executions.list()`.

        Args:
            phase: only those in this phase, such as `codeexec.Phase.FAILED` or `Failed`.

        Raises:
            ValueError: there is no such phase.
            Error: see `codeexec`.
        """
        async with aclosing((await self._cluster.connect()).list(phase_of(phase))) as records:
            async for record in records:
                yield record

    async def get(self, name: str) -> CodeExecution:
        """The record of an execution: `Result.execution` is its name.

        Raises:
            NotFound: the namespace has no object with this name.
            Error: see `codeexec`.
        """
        return await self._cluster.get(name)

    async def result(self, name: str) -> Result:
        """Wait for the end of an execution, and return what came out.

        Displays of an execution in a session stand in `Result.artifacts` only: `session.files.read` has them.

        Raises:
            NotFound: the namespace has no object with this name.
            OutputUnavailable: large output is gone. The cluster keeps it for a limited time.
            Error: see `codeexec`.
        """
        execution = self._cluster.attach(name)
        result = await execution.result()
        spec = (await execution.finished()).spec
        fetch = [one for one in spec.artifacts.fetch if one != DISPLAY_PATTERN]
        return Result.of(result, fetch, spec.blocks, spec.files or ())

    async def output(self, name: str) -> AsyncGenerator[OutputChunk, None]:
        """Iterate over the output of an execution from its beginning, as it comes, until it ends.

        Raises:
            NotFound: the namespace has no object with this name.
            Error: see `codeexec`.
        """
        async with aclosing(self._cluster.attach(name).output()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def file(self, name: str, path: str) -> bytes:
        """The content of a file that an execution has fetched.

        Raises:
            NotFound: there is no execution of this name.
            FileTransferError: the execution has not fetched this file. The message lists the files that it has.
            OutputUnavailable: the content is gone. The cluster keeps it for a limited time.
            Error: see `codeexec`.
        """
        return await self._cluster.read_artifact(await self._cluster.get(name), inside(path))

    async def cancel(self, name: str) -> None:
        """Stop an execution. Nothing happens if it has ended.

        Raises:
            NotFound: the namespace has no object with this name.
            Error: see `codeexec`.
        """
        await self._cluster.cancel(name)


class Sessions:
    """The sessions of the namespace: `client.sessions`."""

    def __init__(self, cluster: "CodeExecutionClient", request: Request) -> None:
        self._cluster = cluster
        self._request = request

    async def list(self) -> AsyncGenerator[CodeSession, None]:
        """Iterate over the records, in no particular order: `async for record in client.sessions.list()`.

        Raises:
            Error: see `codeexec`.
        """
        async with aclosing((await self._cluster.connect()).list_sessions()) as records:
            async for record in records:
                yield record

    async def get(self, name: str) -> CodeSession:
        """The record of a session.

        Raises:
            NotFound: the namespace has no object with this name.
            Error: see `codeexec`.
        """
        return await self._cluster.get_session(name)

    async def attach(self, name: str) -> Session:
        """A session that exists already, with its limits and image. `async with` does not end it.

        Raises:
            NotFound: the namespace has no object with this name.
            Error: see `codeexec`.
        """
        handle = await self._cluster.join_session(name, self._request)
        return Session(self._cluster, handle, handle.request, mine=False)

    async def end(self, name: str) -> None:
        """End a session: what runs in it is stopped and its workspace deleted. Nothing happens if it has ended.

        Raises:
            NotFound: the namespace has no object with this name.
            Error: see `codeexec`.
        """
        await self._cluster.end_session(name)


class Approvals:
    """What waits for the decision of a human in the namespace: `client.approvals`.

    Nobody decides about their own calls: use credentials of an approver. See docs/approval.md.
    """

    def __init__(self, cluster: "CodeExecutionClient") -> None:
        self._cluster = cluster

    async def list(self) -> AsyncGenerator[CodeExecution, None]:
        """Iterate over the records that wait, in no particular order: `async for record in client.approvals.list()`.

        Raises:
            Error: see `codeexec`.
        """
        async with aclosing((await self._cluster.connect()).list(Phase.AWAITING_APPROVAL)) as records:
            async for record in records:
                yield record

    async def get(self, name: str) -> CodeExecution:
        """The record of an execution, to decide about.

        Raises:
            NotFound: the namespace has no object with this name.
            Error: see `codeexec`.
        """
        return await self._cluster.get(name)

    async def code(self, record: CodeExecution) -> ReviewedCode:
        """The code and files of an execution that waits, checked against the digests of its record.

        Raises:
            NothingToDecide: the execution does not wait for approval.
            NotPermitted: the identity in use may not read code.
            OutputUnavailable: the code is gone, or isn't what the record says.
            Error: see `codeexec`.
        """
        return await self._cluster.read_code(record)

    async def approve(
        self, record: CodeExecution, *, reason: str = "", valid: timedelta = timedelta(minutes=15)
    ) -> ExecutionApproval:
        """Approve exactly what this record asks for.

        Args:
            record: the record that the approver has seen.
            reason: why, for the record and the agent; at most 1024 characters.
            valid: the code has to start within this time.

        Raises:
            NothingToDecide: the execution does not wait for approval.
            NotPermitted: the identity in use may not decide.
            InvalidExecution: it has made the call itself.
            Error: see `codeexec`.
        """
        return await self._cluster.approve(record, reason=reason, valid=valid)

    async def deny(self, record: CodeExecution, *, reason: str = "") -> ExecutionApproval:
        """Deny an execution whose code has not started.

        Raises:
            NothingToDecide: the execution needs no approval, or its code has started.
            Error: as `approve`.
        """
        return await self._cluster.deny(record, reason=reason)

    async def revoke(self, record: CodeExecution) -> None:
        """Revoke an approval. Code that has started goes on: cancel the execution to stop it.

        Raises:
            NothingToDecide: the execution was not approved, or its code has started.
            Error: as `approve`.
        """
        await self._cluster.revoke(record)
