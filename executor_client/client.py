"""Runs code blocks through the cluster: submit, wait on a watch, return the result. Knows no agent framework."""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import asyncio_atexit

from codeexec_api import CodeExecution, CodeExecutionSpec, Limits, PayloadRef, Source
from codeexec_api.names import block_key, file_key
from executor_client import telemetry
from executor_client.blocks import PreparedBlock, WorkspaceFile, check_size
from executor_client.exceptions import (
    ClusterUnreachable,
    CodeExecError,
    ExecutionLost,
    NotInstalled,
    NotPermitted,
)
from executor_client.images import check_image
from executor_client.results import ExecutionResult, result_of
from executor_client.transport import Transport

logger = logging.getLogger(__name__)

DEFAULT_NAMESPACE: Final = "codeexec-sandbox"
_OPERATOR_SECONDS: Final = 20
"""How long the operator may take to notice an execution before it counts as absent."""
_START_SECONDS: Final = 75
_GRACE_SECONDS: Final = 30


@dataclass(frozen=True)
class ClusterRef:
    """Which cluster and namespace to use; None means: as the environment says."""

    namespace: str = DEFAULT_NAMESPACE
    kubeconfig: str | None = None
    context: str | None = None


@dataclass(frozen=True)
class Request:
    """What every execution of a client has in common.

    Raises:
        ValueError: the image is not named by digest; see `executor_client.images`.
    """

    agent: str
    timeout_seconds: int = 60
    image: str | None = None
    runtime_class_name: str | None = None
    limits: Limits = field(default_factory=Limits)
    executor: str = "executor_client"

    def __post_init__(self) -> None:
        if self.image is not None:
            check_image(self.image)


class CodeExecutionClient:
    """Creates CodeExecutions and waits for their results.

        client = CodeExecutionClient()
        prepared = prepare([SourceBlock("python", "print(1)")])  # prepared.refusal says what can't be run
        result = await client.execute(prepared.blocks, Request(agent="me"))

    Connections are opened when they are first needed, one for each event loop, and closed by `close()` or with the
    loop. Concurrent calls are independent of each other.
    """

    def __init__(self, cluster: ClusterRef | None = None) -> None:
        self._cluster = cluster or ClusterRef()
        self._transports: WeakKeyDictionary[asyncio.AbstractEventLoop, Transport] = WeakKeyDictionary()

    async def check(self) -> None:
        """Make sure that the cluster answers and that codeexec is installed there.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self._transport()).check()

    async def close(self) -> None:
        """Close the connections of the running event loop; a later call opens them again."""
        transport = self._transports.pop(asyncio.get_running_loop(), None)
        if transport:
            await transport.close()

    async def execute(
        self,
        blocks: Sequence[PreparedBlock],
        request: Request,
        *,
        files: Sequence[WorkspaceFile] = (),
        cancelled: asyncio.Event | None = None,
    ) -> ExecutionResult:
        """Run blocks in order in one new pod and return what came out.

        Args:
            blocks: at least one.
            request: limits, image and source of the execution.
            files: put into the workspace before the first block.
            cancelled: when set, the code is stopped, and the result says so.

        Raises:
            ValueError: blocks and files are too large.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        check_size(blocks, files)
        with telemetry.execution_span() as span:
            transport = await self._transport()
            name = f"run-{secrets.token_hex(6)}"
            spec = CodeExecutionSpec(
                blocks=tuple(block.announce() for block in blocks),
                files=tuple(file.announce() for file in files) or None,
                payload_ref=PayloadRef(name=name),
                source=Source(agent=request.agent, executor=request.executor),
                timeout_seconds=request.timeout_seconds,
                limits=request.limits,
                image=request.image,
                runtime_class_name=request.runtime_class_name,
                traceparent=telemetry.traceparent(),
            )
            telemetry.describe_request(span, namespace=transport.namespace, name=name, spec=spec)
            payload = {block_key(index): block.content for index, block in enumerate(blocks)}
            payload |= {file_key(index): file.content for index, file in enumerate(files)}
            execution = await self._create(transport, name, spec, payload)
            finished = await self._wait(transport, execution, cancelled or asyncio.Event())
            telemetry.describe_outcome(span, finished)
            return result_of(finished)

    async def _create(
        self, transport: Transport, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]
    ) -> CodeExecution:
        """Submit. A caller that goes away meanwhile doesn't leave code behind that nobody waits for."""
        creation = asyncio.create_task(transport.create(name, spec, payload))
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            await asyncio.shield(self._undo(transport, name, creation))
            raise

    async def _undo(self, transport: Transport, name: str, creation: asyncio.Task[CodeExecution]) -> None:
        with suppress(CodeExecError):
            await creation
            await self._cancel(transport, name)

    async def _wait(self, transport: Transport, execution: CodeExecution, cancelled: asyncio.Event) -> CodeExecution:
        """Wait for the end. Whatever else ends the wait stops the code, too."""
        canceller = asyncio.create_task(self._cancel_when(transport, execution.metadata.name, cancelled))
        spec = execution.spec
        limit = _START_SECONDS + len(spec.blocks) * spec.timeout_seconds + _GRACE_SECONDS
        try:
            async with (
                asyncio.timeout(limit) as overall,
                asyncio.timeout(_OPERATOR_SECONDS) as unnoticed,
                aclosing(transport.changes(execution)) as changes,
            ):
                async for current in changes:
                    if current.status.observed_generation:
                        unnoticed.reschedule(None)
                    if current.status.phase.terminal:
                        return current
            raise ExecutionLost(f"execution {execution.metadata.name} was deleted before it ended")
        except TimeoutError:
            await self._cancel(transport, execution.metadata.name)
            if not overall.expired():
                raise NotInstalled(
                    f"no operator took up execution {execution.metadata.name} within {_OPERATOR_SECONDS} s; check "
                    f"that the codeexec operator runs and serves namespace {transport.namespace!r}"
                ) from None
            raise ExecutionLost(
                f"execution {execution.metadata.name} did not end within {limit} s; its state is in "
                f"`kubectl -n {transport.namespace} get codeexecution {execution.metadata.name} -o yaml`"
            ) from None
        except (asyncio.CancelledError, ClusterUnreachable, NotPermitted):
            await asyncio.shield(self._cancel(transport, execution.metadata.name))
            raise
        finally:
            canceller.cancel()

    async def _cancel_when(self, transport: Transport, name: str, cancelled: asyncio.Event) -> None:
        await cancelled.wait()
        await self._cancel(transport, name)

    @staticmethod
    async def _cancel(transport: Transport, name: str) -> None:
        """Stop an execution that something else has ended the wait for; that something is what the caller hears of."""
        try:
            await transport.cancel(name)
        except CodeExecError as error:
            logger.warning("execution %s was not cancelled and runs on until its limit: %s", name, error)

    async def _transport(self) -> Transport:
        loop = asyncio.get_running_loop()
        if loop not in self._transports:
            ref = self._cluster
            transport = await Transport.connect(kubeconfig=ref.kubeconfig, context=ref.context, namespace=ref.namespace)
            if loop in self._transports:  # a concurrent call was faster
                await transport.close()
            else:
                self._transports[loop] = transport
                asyncio_atexit.register(self.close, loop=loop)
        return self._transports[loop]
