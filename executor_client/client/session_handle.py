"""What every session can do, wherever it runs: built on executions. Needs no connection to be loaded."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from codeexec_api import Phase
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_FETCH_BYTES, MAX_STORED_BYTES
from executor_client.client.request import ListFiles, OnOutput, Request
from executor_client.exceptions import CodeExecError, FileTransferError
from executor_client.model.arguments import several
from executor_client.model.blocks import PreparedBlock, SourceBlock, WorkspaceFile
from executor_client.model.results import CANCELLED, Artifact, ExecutionResult

logger = logging.getLogger(__name__)

_ABANDON_SECONDS: Final = 4
"""How long a caller that has an error already waits for the end of its session."""


class Executes(Protocol):
    """What runs code, in sessions and outside: a client of a cluster, or this machine."""

    async def execute(
        self,
        blocks: Sequence[PreparedBlock | SourceBlock],
        request: Request,
        *,
        files: Sequence[WorkspaceFile] = (),
        fetch: Sequence[str] = (),
        list_files: ListFiles = "Changed",
        session: str | None = None,
        cancelled: asyncio.Event | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run blocks in order; see `CodeExecutionClient.execute`."""


class SessionHandle(ABC):
    """A handle on one session; `end` ends the session, and so does `async with`."""

    def __init__(self, name: str, request: Request, executes: Executes) -> None:
        self.name: Final = name
        self.request: Final = request
        self._executes = executes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.end() if error is None else self.abandon())

    async def abandon(self) -> None:
        """End the session after an error, which is what the caller hears of: another one is a line in the log."""
        try:
            async with asyncio.timeout(_ABANDON_SECONDS):
                await self._end()
        except (CodeExecError, TimeoutError) as error:
            told = str(error) or f"no answer within {_ABANDON_SECONDS} s"
            logger.warning("could not end session %s, which ends at its idle timeout: %s", self.name, told)

    async def _end(self) -> None:
        """End the session in the task of the caller."""
        await self.end()

    @abstractmethod
    async def create(self) -> None:
        """Ask for the session."""

    async def execute(
        self,
        blocks: Sequence[PreparedBlock | SourceBlock],
        request: Request | None = None,
        *,
        files: Sequence[WorkspaceFile] = (),
        fetch: Sequence[str] = (),
        list_files: ListFiles = "Changed",
        cancelled: asyncio.Event | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run blocks in order in the workspace; see `CodeExecutionClient.execute`. Default: the session's request.

        Raises:
            SessionEnded: the session is over; nothing was run.
            ValueError: a block can't be run, or blocks and files are too large.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        return await self._executes.execute(
            blocks,
            request or self.request,
            files=files,
            fetch=fetch,
            list_files=list_files,
            session=self.name,
            cancelled=cancelled,
            on_output=on_output,
        )

    @abstractmethod
    async def end(self) -> None:
        """End the session: what runs in it is stopped, and its workspace deleted."""

    async def upload(self, files: Mapping[str, bytes], *, cancelled: asyncio.Event | None = None) -> None:
        """Put files into the workspace, as one operation.

        Args:
            files: content by path, relative to the workspace; what stands there is replaced.
            cancelled: when set, the transfer is stopped.

        Raises:
            ValueError: a path can't be one in the workspace, or the files are too many or too large for one operation.
            SessionEnded: the session is over.
            FileTransferError: a file could not be put there; the text names it.
            CodeExecError: see `executor_client.exceptions`.
        """
        sent = [WorkspaceFile(path, content) for path, content in files.items()]
        demand_success(await self.execute((), files=sent, list_files="None", cancelled=cancelled))

    async def download(self, patterns: Sequence[str], *, cancelled: asyncio.Event | None = None) -> dict[str, bytes]:
        """Content of files in the workspace, by path.

        Args:
            patterns: paths, or patterns with *, ? and [abc]; * and ? also match slashes. What none matches is no error.
            cancelled: when set, the transfer is stopped.

        Raises:
            SessionEnded: the session is over.
            FileTransferError: the files are too large for one operation; the text names them.
            CodeExecError: see `executor_client.exceptions`.
        """
        fetch = several("patterns", patterns)
        result = await self.execute((), fetch=fetch, list_files="None", cancelled=cancelled)
        demand_success(result)
        if left := [f"{one.path} ({one.size_bytes} bytes)" for one in result.artifacts if not one.fetched]:
            raise FileTransferError(
                f"too large to be fetched together (at most {MAX_FETCH_BYTES} bytes at a time, or {MAX_STORED_BYTES} "
                f"if the operator has an output store): {', '.join(left)}. Fetch them in several calls, or let the "
                "code split them"
            )
        return dict(result.files)

    async def list_files(self, *, cancelled: asyncio.Event | None = None) -> list[Artifact]:
        """The files in the workspace, sorted by path; at most 256. How many are left out is a line in the log.

        Raises:
            SessionEnded: the session is over.
            CodeExecError: see `executor_client.exceptions`.
        """
        result = await self.execute((), list_files="All", cancelled=cancelled)
        demand_success(result)
        if result.artifacts_omitted:
            logger.warning(
                "%d files of session %s are not listed: at most %d are, and none with an unusable name",
                result.artifacts_omitted,
                self.name,
                MAX_ARTIFACTS,
            )
        return sorted(result.artifacts, key=lambda one: one.path)


def demand_success(result: ExecutionResult) -> None:
    """Raise a FileTransferError unless the execution, which moved files, has succeeded."""
    if result.phase is not Phase.SUCCEEDED:
        why = CANCELLED if result.phase is Phase.CANCELLED else f"{result.reason}: {result.message}"
        raise FileTransferError(f"execution {result.name}: {why}")
