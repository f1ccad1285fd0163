"""How the blocks of one call are run: in the session that all calls share, or in a pod of their own."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from codeexec_api import Phase
from codeexec_api.v1alpha1.bounds import MAX_FILES, MAX_PAYLOAD_BYTES
from executor_client.autogen.base import FunctionModule
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import OnOutput, Request
from executor_client.model.blocks import PreparedBlock, WorkspaceFile
from executor_client.model.results import ExecutionResult
from executor_client.workspace.batches import groups
from executor_client.workspace.shared_session import OpenSession
from executor_client.workspace.transfers import bring_back, keep_made
from executor_client.workspace.work_dir import Stamp, WorkDir

_NOT_RUN: Final = (Phase.CANCELLED, Phase.AWAITING_APPROVAL, Phase.EXPIRED)
"""How a call can end whose code has, or may have, not run at all."""
_AFTER_CANCELLATION_SECONDS: Final = 5
"""How long a call that was cancelled waits for the files that its code has made or changed."""


@dataclass(eq=False)
class Calls:
    """Runs blocks with the functions of the executor, and keeps its folder and the workspace alike."""

    folder: WorkDir | None
    module: FunctionModule
    uploads: bool
    """True if what the caller puts into the folder is sent."""
    on_output: OnOutput | None
    _functions_checked: bool = False

    async def run_in_session(
        self, blocks: Sequence[PreparedBlock], cancelled: asyncio.Event, opened: OpenSession
    ) -> ExecutionResult:
        """In the shared session, with what the caller has put into the folder."""
        session = opened.session
        if self.module and not opened.prepared:
            check, file = self.module.check(), self.module.file()
            checked = await session.execute((check,), files=(file,), list_files="None", cancelled=cancelled)
            if checked.phase in _NOT_RUN:
                return checked
            self._demand(checked)
            opened.prepared = True
        if self.folder is None:
            return await session.execute(blocks, cancelled=cancelled, on_output=self.on_output)
        *before, last = await self._next_uploads(opened, blocks, cancelled)
        uploading = opened.uploading if before or last else None
        try:
            for group in before:
                files = self.folder.read(group)
                uploaded = await session.execute((), files=files, list_files="None", cancelled=cancelled)
                if uploaded.phase is not Phase.SUCCEEDED:
                    return uploaded
                opened.sent |= group
            files = self.folder.read(last)
            result = await session.execute(blocks, files=files, cancelled=cancelled, on_output=self.on_output)
            if result.blocks or result.phase not in (*_NOT_RUN, Phase.DENIED):
                opened.sent |= last
            if not result.artifacts:
                return result
            if not cancelled.is_set():
                return await bring_back(self.folder, opened, result, cancelled)
            too_late = asyncio.Event()  # what the code did before it was stopped is fetched, too
            timer = asyncio.get_running_loop().call_later(_AFTER_CANCELLATION_SECONDS, too_late.set)
            try:
                return await bring_back(self.folder, opened, result, too_late)
            finally:
                timer.cancel()
        finally:
            if uploading:
                uploading.set_result(None)

    async def _next_uploads(
        self, opened: OpenSession, blocks: Sequence[PreparedBlock], cancelled: asyncio.Event
    ) -> list[dict[str, Stamp]]:
        """What this call has to send. One call sends at a time, so that none undoes what the code of another did."""
        while not cancelled.is_set():
            with opened.sending:
                earlier = opened.uploading
                if earlier is None or earlier.done():
                    pieces = self._uploads(opened, blocks)
                    opened.uploading = Future() if any(pieces) else None
                    return pieces
            told = asyncio.create_task(cancelled.wait())
            either: set[asyncio.Future[Any]] = {asyncio.wrap_future(earlier), told}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                told.cancel()
        return [{}]

    def _uploads(self, opened: OpenSession, blocks: Sequence[PreparedBlock]) -> list[dict[str, Stamp]]:
        """What the caller has put into work_dir and the workspace lacks, in pieces; the last leaves room for blocks."""
        lacks = self.module.unsent(self.folder, opened.sent, blocks) if self.folder and self.uploads else {}
        sizes = {name: stamp.size for name, stamp in lacks.items()}
        pieces = [{name: lacks[name] for name in group} for group in groups(sizes, MAX_PAYLOAD_BYTES, MAX_FILES)]
        code = sum(len(block.content) for block in blocks)
        if not pieces or sum(stamp.size for stamp in pieces[-1].values()) + code > MAX_PAYLOAD_BYTES:
            pieces.append({})
        return pieces

    async def run_alone(
        self, client: CodeExecutionClient, request: Request, blocks: Sequence[PreparedBlock], cancelled: asyncio.Event
    ) -> ExecutionResult:
        """In a pod that is made for it."""
        files: tuple[WorkspaceFile, ...] = ()
        if self.module:
            files = (self.module.file(),)
            if not self._functions_checked:
                # Whether the functions can be loaded is found out without what only the code was to have.
                bare = replace(request, egress=(), mounts=())
                checked = await client.execute((self.module.check(),), bare, files=files, cancelled=cancelled)
                if checked.phase in _NOT_RUN:
                    return checked
                self._demand(checked)
                self._functions_checked = True
        result = await client.execute(
            blocks,
            request,
            files=files,
            fetch=("*",) if self.folder else (),
            cancelled=cancelled,
            on_output=self.on_output,
        )
        if not self.folder:
            return result
        return keep_made(self.folder, result, (one.announce() for one in blocks), (one.announce() for one in files))

    def _demand(self, checked: ExecutionResult) -> None:
        if checked.exit_code != 0:
            raise self.module.failed(checked.output)
