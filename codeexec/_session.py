"""A session: a workspace, and variables, that several calls share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self

from typing_extensions import override

from codeexec._backend import Backend
from codeexec._files import Files
from codeexec._result import Result, is_display
from codeexec_api import Limits
from codeexec_api.v1alpha1.bounds import MAX_FETCH_BYTES, MAX_TIMEOUT_SECONDS
from executor_client.client.request import OnOutput, Request
from executor_client.client.session_handle import SessionHandle
from executor_client.model.arguments import contents, seconds, to_fetch, whole_seconds
from executor_client.model.blocks import SourceBlock, WorkspaceFile, all_prepared
from executor_client.workspace.batches import fetch_after


class UseDefault(Enum):
    """What an argument has that takes None for something else; see `USE_DEFAULT`."""

    USE_DEFAULT = "USE_DEFAULT"

    @override
    def __repr__(self) -> str:
        return self.value


USE_DEFAULT: Final = UseDefault.USE_DEFAULT
"""`start_timeout=USE_DEFAULT` of a call: that of its session or client. `start_timeout=None` is no limit."""


class Session:
    """A workspace that several calls share, one after the other; see `Client.session`.

        async with client.session() as session:
            await session.run("x = 41")
            print((await session.run("x + 1")).text)

    A session of `Client.session` ends with `async with`; one of `client.sessions.attach` goes on.
    """

    def __init__(self, backend: Backend, handle: SessionHandle, request: Request, *, mine: bool = True) -> None:
        self._backend = backend
        self._handle = handle
        self._request = request
        self._mine = mine
        self.name: Final = handle.name
        """Name of the CodeSession, the record."""
        self.files: Final = Files(handle)
        """The files of the workspace."""

    async def __aenter__(self) -> Self:
        if self._mine:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mine:
            await self._handle.__aexit__(kind, error, trace)

    async def start(self) -> None:
        """Ask for the session. `async with` does this. Calls wait until the session is ready.

        Raises:
            Error: the session can't be created; `codeexec` lists the kinds.
        """
        await self._handle.create()

    async def end(self) -> None:
        """End the session: what runs in it is stopped, and its workspace deleted. Can be called more than once.

        Raises:
            Error: the cluster can't be asked; `codeexec` lists the kinds.
        """
        await self._handle.end()

    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        start_timeout: float | UseDefault | None = USE_DEFAULT,
        files: Mapping[str, bytes | str] | None = None,
        fetch: Sequence[str] = (),
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run code in the session, and return what came out. Calls run one after the other.

        Args:
            code: the source; at most 1,000,000 bytes.
            language: `python`, `bash`, `sh`, or another language of the image. Only Python keeps variables.
            timeout: how long the code may run, in whole seconds; default: that of the session.
            start_timeout: how long to wait for the start, in seconds; None: no limit; default: that of the session.
            files: put into the workspace before; content by path. At most 64, and with the code 16,000,000 bytes.
            fetch: which files to bring back in `Result.files`: paths, or patterns with *, ? and [abc]. At most 64,
                and 16 MiB together, or 128 MiB if the cluster has an output store; what is larger stands only in
                `Result.artifacts`.
            on_output: called in a worker thread with each piece of output as it comes.

        Raises:
            ValueError: the code can't be run: an unknown language, a path outside the workspace, or too large.
            Timeout: the code did not start within `start_timeout`; it was cancelled.
            SessionEnded: the session is over; nothing was run.
            Error: something other than the code failed; `codeexec` lists the kinds.
        """
        request = asking(self._request, timeout, start_timeout)
        wanted = to_fetch(fetch)
        blocks, sent = all_prepared([SourceBlock(language, code)]), workspace_files(files)
        result = await self._backend.execute(
            blocks,
            request,
            files=sent,
            fetch=wanted,
            session=self.name,
            on_output=on_output,
        )
        shown = [one for one in result.artifacts if is_display(one.path) and not one.fetched]
        left = [one for one in shown if one.size_bytes <= MAX_FETCH_BYTES]
        return Result.of(
            result,
            wanted,
            (one.announce() for one in blocks),
            (one.announce() for one in sent),
            await fetch_after(self._handle, result.name, left),
        )


def asking(
    request: Request, timeout: float | None, start_timeout: float | UseDefault | None, limits: Limits | None = None
) -> Request:
    """The request with what a call gives in its place.

    Raises:
        ValueError: a number is out of range.
    """
    given: dict[str, Any] = {}
    if timeout is not None:
        given["timeout_seconds"] = whole_seconds("timeout", timeout, MAX_TIMEOUT_SECONDS)
    if not isinstance(start_timeout, UseDefault):
        given["start_seconds"] = seconds("start_timeout", start_timeout)
    if limits is not None:
        given["limits"] = limits
    return replace(request, **given)


def workspace_files(files: Mapping[str, bytes | str] | None) -> list[WorkspaceFile]:
    """Files as they are sent.

    Raises:
        ValueError: see `contents`.
    """
    return [WorkspaceFile(path, content) for path, content in contents(files or {}).items()]
