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
from executor_client.client.execution import Execution, clocks
from executor_client.client.request import ListFiles, OnOutput, Request
from executor_client.exceptions import CodeExecError, Timeout
from executor_client.model.arguments import to_fetch
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
from executor_client.runtime import asyncio_tasks, telemetry
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
            fetch: which files to bring back: paths, or patterns with *, ? and [abc]; * and ? also match slashes.
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
            async with self.calls.call():
                asked_at = asyncio.get_running_loop().time()
                transport, handle = await self._begin(
                    span, prepared, request, files, fetch, list_files, session, asked_at=asked_at
                )
                canceller = asyncio.create_task(self._cancel_when(transport, handle.name, cancelled or asyncio.Event()))
                try:
                    if on_output:
                        async with aclosing(handle.output()) as chunks:
                            async for chunk in chunks:
                                await asyncio_tasks.in_worker(on_output, chunk)
                    return await handle.result()
                except BaseException:
                    if not handle.ended:  # whatever else ends the wait stops the code, too
                        await self.calls.undone(lambda: self._cancel(transport, handle.name))
                    raise
                finally:
                    canceller.cancel()
                    if handle.outcome:
                        telemetry.describe_outcome(span, handle.outcome)

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
            Timeout: it was not submitted within `request.start_seconds`.
            CodeExecError: it could not be submitted; see `executor_client.exceptions`.
        """
        prepared = all_prepared(blocks)
        check_size(prepared, files)
        with telemetry.execution_span(telemetry.SUBMIT_SPAN_NAME) as span:
            _, handle = await self._begin(span, prepared, request, files, fetch, list_files, session)
            return handle

    def attach(self, name: str) -> Execution:
        """A handle on an execution that exists already. Does no I/O."""
        return Execution(self.connect, name)

    async def _begin(
        self,
        span: Span,
        blocks: Sequence[PreparedBlock],
        request: Request,
        files: Sequence[WorkspaceFile],
        fetch: Sequence[str],
        list_files: ListFiles,
        session: str | None,
        *,
        asked_at: float | None = None,
    ) -> tuple[ClusterTransport, Execution]:
        request.check_alone(session)
        name = f"run-{secrets.token_hex(6)}"
        payload = payload_of(blocks, files)
        spec = CodeExecutionSpec(
            blocks=tuple(block.announce() for block in blocks),
            files=tuple(file.announce() for file in files) or None,
            payload_ref=PayloadRef(name=name, parts=count_parts(payload)) if payload else None,
            session_ref=SessionRef(name=session) if session else None,
            artifacts=ArtifactRequest(list=list_files, fetch=to_fetch(fetch)),
            source=request.source,
            timeout_seconds=request.timeout_seconds,
            limits=request.limits,
            image=None if session else request.image,
            runtime_class_name=None if session else request.runtime_class_name,
            egress=tuple(request.egress) or None,
            mounts=tuple(request.mounts) or None,
            traceparent=telemetry.traceparent(),
        )
        submitted_at = clocks()
        try:
            async with asyncio.timeout(request.start_seconds) as starting:
                transport = await self.connect()
                telemetry.describe_request(span, namespace=transport.namespace, name=name, spec=spec)
                creation = transport.create(name, spec, payload)
                created = await self.calls.created(creation, lambda: self._cancel(transport, name))
        except TimeoutError:
            if not starting.expired():
                raise
            raise Timeout(
                f"execution {name} did not start within {request.start_seconds} s: the API server did not accept it in "
                "this time. Raise start_timeout, or run `codeexec doctor --no-run`"
            ) from None
        return transport, Execution(
            self.connect,
            name,
            created,
            approval=request.approval,
            on_wait=request.on_wait,
            start_seconds=request.start_seconds,
            asked_at=asked_at,
            submitted_at=submitted_at,
        )

    async def _cancel_when(self, transport: ClusterTransport, name: str, cancelled: asyncio.Event) -> None:
        await cancelled.wait()
        await self._cancel(transport, name, None)

    @staticmethod
    async def _cancel(transport: ClusterTransport, name: str, patience: float | None = _PATIENCE_SECONDS) -> None:
        """Stop an execution that something else has ended the wait for; that something is what the caller hears of.

        Args:
            transport: to the cluster.
            name: of the execution.
            patience: as in `ClusterTransport.patiently`.
        """
        try:
            await transport.patiently(lambda: transport.cancel(name), patience)
        except CodeExecError as error:
            logger.warning("could not cancel execution %s, which runs until its timeout: %s", name, error)
