"""Runs code blocks through the cluster: submit, wait on a watch, return the result. Knows no agent framework."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import asyncio_atexit

from codeexec_api import (
    ArtifactRequest,
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    CodeSessionSpec,
    ExecutionApproval,
    ExecutionApprovalSpec,
    ExecutionPolicySpec,
    ExecutionRef,
    Grant,
    Limits,
    Mount,
    PayloadRef,
    Permit,
    Phase,
    SessionRef,
    Source,
)
from codeexec_api.digests import sha256_hex
from codeexec_api.names import block_key, file_key, payload_name
from codeexec_api.permits import parse_mount, parse_permit
from executor_client.client.approvals import ApprovalWait, ReviewedCode
from executor_client.client.execution import Execution, read_contents
from executor_client.client.lease import ClientLease
from executor_client.client.session import Session
from executor_client.client.waiting import OnWait
from executor_client.exceptions import CodeExecError, NotFound, NothingToDecide, OutputUnavailable
from executor_client.model.blocks import (
    PreparedBlock,
    SourceBlock,
    WorkspaceFile,
    all_prepared,
    check_size,
    count_parts,
    payload_of,
)
from executor_client.model.images import check_image
from executor_client.model.results import ExecutionResult, OutputChunk, artifact_content
from executor_client.runtime import forks, telemetry
from executor_client.transport.cluster import Transport
from executor_client.transport.protocol import ClusterTransport

logger = logging.getLogger(__name__)

DEFAULT_NAMESPACE: Final = "codeexec-sandbox"
ListFiles: TypeAlias = Literal["None", "Changed", "All"]
OnOutput: TypeAlias = Callable[[OutputChunk], None]


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
        ValueError: the image is not named by digest (see `model.images`), or a permit or a mount is none.
    """

    agent: str
    timeout_seconds: int = 60
    image: str | None = None
    runtime_class_name: str | None = None
    limits: Limits = field(default_factory=Limits)
    executor: str = "executor_client"
    approval: ApprovalWait = field(default_factory=ApprovalWait)
    """What to do when a human has to approve what is asked for."""
    egress: Sequence[Permit | str] = ()
    """Ways out of the sandbox that are asked for, such as `10.1.2.3/32:443`; see `codeexec_api.permits.parse_permit`.

    Like mounts, these need a pod of the execution's own: there are none in a session."""
    mounts: Sequence[Mount | str] = ()
    """What code is to read besides its files, such as `pvc:data:/mnt/data`; see `codeexec_api.permits.parse_mount`."""
    on_wait: OnWait | None = None
    """Called in a worker thread when the code waits for room or for its turn, each time that there is something new to
    say. What it raises stops the code and is raised. None: each reason is logged once."""

    def __post_init__(self) -> None:
        if self.image is not None:
            check_image(self.image)
        object.__setattr__(self, "egress", tuple(_read(self.egress, parse_permit)))
        object.__setattr__(self, "mounts", tuple(_read(self.mounts, parse_mount)))

    def check_alone(self, session: str | None) -> None:
        """Make sure that what is asked for can be had in this session.

        Raises:
            ValueError: it needs a pod of its own.
        """
        if session is not None and (self.egress or self.mounts):
            raise ValueError(
                "egress and mounts need a pod of their own, so they can't be used in a session: run this without a "
                "session, or leave them out"
            )

    @property
    def source(self) -> Source:
        """Who asks, as the record says."""
        return Source(agent=self.agent, executor=self.executor)


_Parsed = TypeVar("_Parsed", Permit, Mount)


def _read(given: Sequence[_Parsed | str], parse: Callable[[str], _Parsed]) -> Iterator[_Parsed]:
    yield from (parse(one) if isinstance(one, str) else one for one in given)


_Record = TypeVar("_Record", CodeExecution, CodeSession)


class CodeExecutionClient:
    """Creates CodeExecutions and CodeSessions, and waits for results.

        async with CodeExecutionClient() as client:
            result = await client.execute([SourceBlock("python", "print(1)")], Request(agent="me"))

    Connections are opened when they are first needed, one for each event loop, and closed by `close()`, at the end of
    `async with` or with the loop. Concurrent calls are independent of each other.

    Args:
        cluster: which cluster and namespace; default: as the environment says.
        transport: makes the connection instead, for one event loop; see `executor_client.testing`.
    """

    def __init__(
        self,
        cluster: ClusterRef | None = None,
        *,
        transport: Callable[[], Awaitable[ClusterTransport]] | None = None,
    ) -> None:
        self.cluster: Final = None if transport else cluster or ClusterRef()
        """The cluster that this client connects to by itself; None if it was given its transport."""
        self._connect: Callable[[], Awaitable[ClusterTransport]]
        self._lease: ClientLease | None = None
        if self.cluster:
            connect = partial(_connect, self.cluster)
            self._connect, self._lease = connect, ClientLease(connect)
            forks.finalize(self, self._lease.release)
        elif transport:
            self._connect = transport
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Use no connection that there is; see `executor_client.runtime.forks`."""
        self._transports: WeakKeyDictionary[asyncio.AbstractEventLoop, ClusterTransport] = WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Make sure that the cluster answers and that codeexec is installed there.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self.connect()).check()

    async def close(self) -> None:
        """Close the connections of the running event loop, and stop keeping sessions alive.

        A later call opens connections again. Idle sessions that don't outlive the client end within a minute.
        """
        await self._disconnect()
        if self._lease:
            await self._lease.close()

    async def _disconnect(self) -> None:
        loop = asyncio.get_running_loop()
        if transport := self._transports.pop(loop, None):
            asyncio_atexit.unregister(transport.close, loop=loop)
            await transport.close()

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
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        blocks = all_prepared(blocks)
        check_size(blocks, files)
        with telemetry.execution_span() as span:
            transport = await self.connect()
            name, spec = self._specify(blocks, request, files, fetch, list_files, session)
            telemetry.describe_request(span, namespace=transport.namespace, name=name, spec=spec)
            created = await self._create(transport, name, spec, payload_of(blocks, files))
            handle = Execution(self.connect, name, created, approval=request.approval, on_wait=request.on_wait)
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
        blocks = all_prepared(blocks)
        check_size(blocks, files)
        with telemetry.execution_span(telemetry.SUBMIT_SPAN_NAME) as span:
            transport = await self.connect()
            name, spec = self._specify(blocks, request, files, fetch, list_files, session)
            telemetry.describe_request(span, namespace=transport.namespace, name=name, spec=spec)
            created = await self._create(transport, name, spec, payload_of(blocks, files))
            return Execution(self.connect, name, created, approval=request.approval, on_wait=request.on_wait)

    def attach(self, name: str) -> Execution:
        """A handle on an execution that exists already. Does no I/O."""
        return Execution(self.connect, name)

    async def get(self, name: str) -> CodeExecution:
        """The record of an execution.

        Raises:
            NotFound: there is none of this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        return await (await self.connect()).get(name)

    async def list_executions(
        self,
        *,
        phase: Phase | None = None,
        takes: Callable[[CodeExecution], bool] = lambda _: True,
        limit: int | None = None,
    ) -> list[CodeExecution]:
        """The records of executions of the namespace, oldest first. What is not asked for is not held in memory.

        Args:
            phase: only those in this phase.
            takes: only those for which this is true.
            limit: only so many, the newest.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        return await _oldest_first((await self.connect()).list(phase), takes, limit)

    async def list_stored(self) -> list[Mapping[str, Any]]:
        """All executions and sessions of the namespace as the API server has them, each with its `kind`.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        return [one async for one in (await self.connect()).list_stored()]

    async def cancel(self, name: str) -> None:
        """Stop an execution. Nothing happens if it has ended.

        Raises:
            NotFound: there is none of this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self.connect()).cancel(name)

    async def get_policy(self) -> ExecutionPolicySpec | None:
        """The policy of the namespace; None if it has none of its own, and the cluster's default counts.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        policy = await (await self.connect()).get_policy()
        return policy.spec if policy else None

    async def list_waiting(self) -> list[CodeExecution]:
        """The records of all executions of the namespace that wait for a human's decision, oldest first.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        return await self.list_executions(phase=Phase.AWAITING_APPROVAL)

    async def approve(
        self, execution: CodeExecution, *, reason: str = "", valid: timedelta = timedelta(minutes=15)
    ) -> ExecutionApproval:
        """Approve exactly what this record asks for. Nothing else: not what another execution of this name asks for.

        Args:
            execution: the record as whoever decides has seen it.
            reason: why, for the record and the agent; at most 1024 characters.
            valid: the code has to start within this time.

        Raises:
            NothingToDecide: it does not wait for approval.
            NotPermitted: the identity in use may not decide.
            InvalidExecution: it has requested the execution itself.
            CodeExecError: see `executor_client.exceptions`.
        """
        if execution.status.phase is not Phase.AWAITING_APPROVAL or execution.status.approval is None:
            raise _nothing_to_decide(execution)
        until = datetime.now(UTC) + valid  # noqa: TID251 - the caller's clock; the operator holds it against its own
        return await self._decide(
            execution, decision="Approve", grants=execution.status.approval.grants, reason=reason, expires_at=until
        )

    async def deny(self, execution: CodeExecution, *, reason: str = "") -> ExecutionApproval:
        """Have this execution not run. Can be called as long as the code has not started.

        Args:
            execution: the record as whoever decides has seen it.
            reason: why, for the record and the agent; at most 1024 characters.

        Raises:
            NothingToDecide: it does not wait for approval, and was not approved either, or the code has started.
            CodeExecError: as `approve`.
        """
        status = execution.status
        if status.phase.terminal or status.started_at or status.approval is None:
            raise _nothing_to_decide(execution)
        return await self._decide(execution, decision="Deny", reason=reason)

    async def revoke(self, execution: CodeExecution) -> None:
        """Take the approval back that counts for this execution. Has no effect on code that has started: cancel that.

        Raises:
            NothingToDecide: it was not approved, or the code has started.
            CodeExecError: as `approve`.
        """
        status = execution.status
        if status.phase.terminal or status.started_at or status.approval is None or not status.approval.name:
            raise _nothing_to_decide(execution)
        await (await self.connect()).revoke(status.approval.name)

    async def read_code(self, execution: CodeExecution) -> ReviewedCode:
        """Blocks and files of an execution that waits for approval, checked against the digests in its record.

        Raises:
            NothingToDecide: it does not wait for approval: its code can't be read.
            NotPermitted: the identity in use may decide, but not read code.
            OutputUnavailable: the code is gone, or isn't what the record says.
            CodeExecError: see `executor_client.exceptions`.
        """
        status, spec = execution.status, execution.spec
        if status.phase is not Phase.AWAITING_APPROVAL or status.approval is None:
            raise _nothing_to_decide(execution)
        if not spec.blocks and not spec.files:
            return ReviewedCode()
        if not status.approval.code_secret:
            raise OutputUnavailable(
                f"the code of execution {execution.metadata.name} can't be read: the operator could not store it in a "
                "Secret, for example because the namespace's quota for Secrets is used up. The operator's log says why"
            )
        transport = await self.connect()
        names = [payload_name(status.approval.code_secret, part) for part in range(_parts(spec))]
        try:
            parts = [await transport.read_code(name) for name in names]
        except NotFound as error:
            raise OutputUnavailable(f"the code of execution {execution.metadata.name} is gone: {error}") from error

        def content(key: str, what: str, sha256: str) -> bytes:
            found = b"".join(part.get(key, b"") for part in parts)
            if sha256_hex(found) != sha256:
                raise OutputUnavailable(
                    f"{what} of execution {execution.metadata.name} does not match its record: SHA-256 "
                    f"{sha256_hex(found)} instead of {sha256}; deny it"
                )
            return found

        blocks = (content(block_key(i), f"block {i}", one.sha256) for i, one in enumerate(spec.blocks))
        files = {
            one.path: content(file_key(i), f"file {one.path!r}", one.sha256) for i, one in enumerate(spec.files or ())
        }
        return ReviewedCode(tuple(blocks), files)

    async def _decide(
        self,
        execution: CodeExecution,
        *,
        decision: Literal["Approve", "Deny"],
        reason: str,
        grants: tuple[Grant, ...] | None = None,
        expires_at: datetime | None = None,
    ) -> ExecutionApproval:
        transport, meta = await self.connect(), execution.metadata
        ref = ExecutionRef(name=meta.name, uid=meta.uid, requested_by=execution.spec.requested_by or "unknown")
        spec = ExecutionApprovalSpec(
            execution_ref=ref,
            decision=decision,
            grants=grants,
            approver=await transport.whoami(),
            reason=reason,
            expires_at=expires_at,
        )
        return await transport.decide(f"{meta.name}-{secrets.token_hex(4)}", spec)

    async def read_artifact(self, execution: CodeExecution, path: str) -> bytes:
        """The content of a file that a finished execution has fetched.

        Raises:
            FileTransferError: it has not fetched this file; the text says which it has.
            OutputUnavailable: the content is gone, or isn't what the record says.
            CodeExecError: see `executor_client.exceptions`.
        """
        return artifact_content(execution, path, await read_contents(await self.connect(), execution))

    async def open_session(
        self,
        request: Request,
        *,
        idle_timeout_seconds: int = 1800,
        max_lifetime_seconds: int = 28_800,
        stateful: bool = False,
        outlives_client: bool = False,
        wait: bool = False,
    ) -> Session:
        """Ask for a new workspace that several executions share.

        Executions can be submitted at once; they wait until the session is ready.

        Args:
            request: limits, image, runtime class and source of the session and of what runs in it.
            idle_timeout_seconds: the session ends when nothing has run in it for this long.
            max_lifetime_seconds: the session ends this long after it became ready.
            stateful: Python blocks share one interpreter, so that variables live as long as the session.
            outlives_client: the session stays when this client is closed or its process ends. Otherwise it ends within
                a minute of that, unless an execution is running in it.
            wait: return when the session is ready.

        Raises:
            ValueError: the request has egress or mounts.
            CodeExecError: see `executor_client.exceptions`; with `wait` also if the session can't start.
        """
        session = self.new_session(
            request,
            idle_timeout_seconds=idle_timeout_seconds,
            max_lifetime_seconds=max_lifetime_seconds,
            stateful=stateful,
            outlives_client=outlives_client,
        )
        await session.create()
        if wait:
            await session.ready()
        return session

    def new_session(
        self,
        request: Request,
        *,
        idle_timeout_seconds: int = 1800,
        max_lifetime_seconds: int = 28_800,
        stateful: bool = False,
        outlives_client: bool = False,
    ) -> Session:
        """A session that has its name but is not asked for yet: `Session.create` does that. Does no I/O.

        Raises:
            ValueError: the request has egress or mounts.
        """
        request.check_alone("")
        spec = CodeSessionSpec(
            source=request.source,
            limits=request.limits,
            image=request.image,
            runtime_class_name=request.runtime_class_name,
            stateful=stateful,
            idle_timeout_seconds=idle_timeout_seconds,
            max_lifetime_seconds=max_lifetime_seconds,
        )
        keep_alive = self._lease.hold if self._lease and not outlives_client else None
        return Session(self, f"session-{secrets.token_hex(6)}", request, spec, keep_alive)

    async def join_session(self, name: str, request: Request) -> Session:
        """A session that exists already. Of `request`, limits, image and runtime class are replaced by the session's.

        Raises:
            ValueError: the request has egress or mounts.
            NotFound: there is none of this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        request.check_alone(name)
        spec = (await self.get_session(name)).spec
        # Output is limited for each execution; the rest of the limits are the pod's.
        limits = spec.limits.model_copy(update={"output_bytes": request.limits.output_bytes})
        return Session(self, name, replace(request, limits=limits, image=None, runtime_class_name=None), spec)

    async def get_session(self, name: str) -> CodeSession:
        """The record of a session.

        Raises:
            NotFound: there is none of this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        return await (await self.connect()).get_session(name)

    async def list_sessions(self) -> list[CodeSession]:
        """The records of all sessions of the namespace, oldest first.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        return await _oldest_first((await self.connect()).list_sessions())

    async def end_session(self, name: str) -> None:
        """End a session: what runs in it is stopped and its workspace deleted. Nothing happens if it has ended.

        Raises:
            NotFound: there is none of this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self.connect()).end_session(name)

    @staticmethod
    def _specify(
        blocks: Sequence[PreparedBlock],
        request: Request,
        files: Sequence[WorkspaceFile],
        fetch: Sequence[str],
        list_files: ListFiles,
        session: str | None,
    ) -> tuple[str, CodeExecutionSpec]:
        request.check_alone(session)
        name = f"run-{secrets.token_hex(6)}"
        payload = payload_of(blocks, files)
        return name, CodeExecutionSpec(
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
            egress=tuple(_read(request.egress, parse_permit)) or None,
            mounts=tuple(_read(request.mounts, parse_mount)) or None,
            traceparent=telemetry.traceparent(),
        )

    async def _create(
        self, transport: ClusterTransport, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]
    ) -> CodeExecution:
        """Submit. A caller that goes away meanwhile doesn't leave code behind that nobody waits for."""
        creation = asyncio.create_task(transport.create(name, spec, payload))
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            await asyncio.shield(self._undo(transport, name, creation))
            raise

    async def _undo(self, transport: ClusterTransport, name: str, creation: asyncio.Task[CodeExecution]) -> None:
        with suppress(CodeExecError):
            await creation
            await self._cancel(transport, name)

    async def _cancel_when(self, transport: ClusterTransport, name: str, cancelled: asyncio.Event) -> None:
        await cancelled.wait()
        await self._cancel(transport, name)

    @staticmethod
    async def _cancel(transport: ClusterTransport, name: str) -> None:
        """Stop an execution that something else has ended the wait for; that something is what the caller hears of."""
        try:
            await transport.cancel(name)
        except CodeExecError as error:
            logger.warning("could not cancel execution %s, which runs until its timeout: %s", name, error)

    async def connect(self) -> ClusterTransport:
        """The connection of the running event loop; it is opened if there is none.

        Raises:
            ClusterUnreachable: there is no usable configuration.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._transports:
            transport = await self._connect()
            if loop in self._transports:  # a concurrent call was faster
                await transport.close()
            else:
                self._transports[loop] = transport
                asyncio_atexit.register(transport.close, loop=loop)  # holds on to nothing that holds the client
        return self._transports[loop]


async def _connect(ref: ClusterRef) -> Transport:
    return await Transport.connect(kubeconfig=ref.kubeconfig, context=ref.context, namespace=ref.namespace)


def _parts(spec: CodeExecutionSpec) -> int:
    return spec.payload_ref.parts if spec.payload_ref else 1


def _nothing_to_decide(execution: CodeExecution) -> NothingToDecide:
    status = execution.status
    return NothingToDecide(
        f"execution {execution.metadata.name} does not wait for a decision: it is {status.phase.value}"
        f"{f' ({status.reason})' if status.reason else ''}"
    )


async def _oldest_first(
    records: AsyncIterator[_Record], takes: Callable[[_Record], bool] = lambda _: True, limit: int | None = None
) -> list[_Record]:
    found: list[_Record] = []
    async for one in records:
        if takes(one):
            found.append(one)
            if limit and len(found) >= 2 * limit:
                found = _by_age(found)[-limit:]
    return _by_age(found)[-limit if limit else 0 :]


def _by_age(records: list[_Record]) -> list[_Record]:
    return sorted(records, key=lambda one: (str(one.metadata.creation_timestamp), one.metadata.name))
