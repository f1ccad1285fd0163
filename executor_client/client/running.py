"""Submits executions, and waits for what comes out."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from opentelemetry.trace import Span

from codeexec_api import ArtifactRequest, CodeExecutionSpec, PayloadRef, SessionRef
from executor_client.client.connected import Connected
from executor_client.client.execution import Execution
from executor_client.client.request import ListFiles, OnOutput, Request
from executor_client.exceptions import CodeExecError, InvalidExecution, NotFound, NotInstalled, NotPermitted
from executor_client.model.blocks import (
    PreparedBlock,
    SourceBlock,
    WorkspaceFile,
    all_prepared,
    check_size,
    count_parts,
    payload_of,
)
from executor_client.model.results import ExecutionResult
from executor_client.runtime import telemetry
from executor_client.runtime.asyncio_tasks import created_or_undone
from executor_client.transport.creation import OUTAGE_SECONDS
from executor_client.transport.protocol import ClusterTransport

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 4
"""How long the API server may be away while an execution is cancelled whose caller has gone away."""


class Running(Connected):
    """What runs code; see `CodeExecutionClient`."""

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
        """Run blocks in order, in one new pod or in that of a session, and return what came out.

        Args:
            blocks: at least one; in a session there may be none.
            request: limits, image and source of the execution. In a session image and runtime class are the session's.
            files: put into the workspace before the first block.
            fetch: which files to bring back: paths, or patterns with * and ?, which stand for slashes, too.
            list_files: which files of the workspace the result names.
            session: name of the CodeSession to run in.
            cancelled: when set, the code is stopped, and the result says so.
            on_output: called with output as it comes, in order, in a worker thread, one call after the other. What it
                raises stops the code and is raised here.

        Raises:
            ValueError: a block can't be run, blocks and files are too large, or egress or mounts are asked for in a
                session.
            Timeout: the code has not started within `request.start_seconds`, and was cancelled.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        prepared = all_prepared(blocks)
        check_size(prepared, files)
        with telemetry.execution_span() as span:
            transport = await self.connect()
            handle = await self._begin(transport, span, prepared, request, files, fetch, list_files, session)
            name = handle.name
            canceller = asyncio.create_task(self._cancel_when(transport, name, cancelled or asyncio.Event()))
            try:
                if on_output:
                    async with aclosing(handle.output()) as chunks:
                        async for chunk in chunks:
                            await asyncio.to_thread(on_output, chunk)
                telemetry.describe_outcome(span, await handle.finished())
                return await handle.result()
            except BaseException:
                if not handle.ended:  # whatever else ends the wait stops the code, too
                    await asyncio.shield(self._cancel(transport, name))
                raise
            finally:
                canceller.cancel()

    async def submit(
        self,
        blocks: Sequence[PreparedBlock | SourceBlock],
        request: Request,
        *,
        files: Sequence[WorkspaceFile] = (),
        fetch: Sequence[str] = (),
        list_files: ListFiles = "Changed",
        session: str | None = None,
    ) -> Execution:
        """The same, but without waiting: the execution goes on whatever becomes of the caller.

        Raises:
            ValueError: a block can't be run, blocks and files are too large, or egress or mounts are asked for in a
                session.
            CodeExecError: it could not be submitted; see `executor_client.exceptions`.
        """
        prepared = all_prepared(blocks)
        check_size(prepared, files)
        with telemetry.execution_span(telemetry.SUBMIT_SPAN_NAME) as span:
            transport = await self.connect()
            return await self._begin(transport, span, prepared, request, files, fetch, list_files, session)

    def attach(self, name: str) -> Execution:
        """A handle on an execution that exists already. Does no I/O."""
        return Execution(self.connect, name)

    async def _begin(
        self,
        transport: ClusterTransport,
        span: Span,
        blocks: Sequence[PreparedBlock],
        request: Request,
        files: Sequence[WorkspaceFile],
        fetch: Sequence[str],
        list_files: ListFiles,
        session: str | None,
    ) -> Execution:
        request.check_alone(session)
        name = f"run-{secrets.token_hex(6)}"
        payload = payload_of(blocks, files)
        spec = CodeExecutionSpec(
            blocks=tuple(block.announce() for block in blocks),
            files=tuple(file.announce() for file in files) or None,
            payload_ref=PayloadRef(name=name, parts=count_parts(payload)) if payload else None,
            session_ref=SessionRef(name=session) if session else None,
            artifacts=ArtifactRequest(list=list_files, fetch=tuple(fetch)),
            source=request.source,
            timeout_seconds=request.timeout_seconds,
            limits=request.limits,
            image=None if session else request.image,
            runtime_class_name=None if session else request.runtime_class_name,
            egress=tuple(request.egress) or None,
            mounts=tuple(request.mounts) or None,
            traceparent=telemetry.traceparent(),
        )
        telemetry.describe_request(span, namespace=transport.namespace, name=name, spec=spec)
        created = await created_or_undone(transport.create(name, spec, payload), lambda: self._cancel(transport, name))
        start_seconds = request.start_seconds
        return Execution(
            self.connect, name, created, approval=request.approval, on_wait=request.on_wait, start_seconds=start_seconds
        )

    async def _cancel_when(self, transport: ClusterTransport, name: str, cancelled: asyncio.Event) -> None:
        await cancelled.wait()
        await self._cancel(transport, name, OUTAGE_SECONDS)

    @staticmethod
    async def _cancel(transport: ClusterTransport, name: str, patience: float = _PATIENCE_SECONDS) -> None:
        """Stop an execution that something else has ended the wait for; that something is what the caller hears of.

        Args:
            transport: to the cluster.
            name: of the execution.
            patience: seconds for which the API server may be away.
        """
        clock = asyncio.get_running_loop().time
        give_up, pause = clock() + patience, 0.5
        while True:
            try:
                await transport.cancel(name)
                return
            except CodeExecError as error:
                refused = isinstance(error, NotFound | NotPermitted | NotInstalled | InvalidExecution)
                if refused or clock() + pause > give_up:
                    logger.warning("could not cancel execution %s, which runs until its timeout: %s", name, error)
                    return
            await asyncio.sleep(pause)
            pause *= 2
