"""The client's way to the fake: what `ClusterTransport` promises, with the refusals of the API server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Final, TypeVar

from typing_extensions import override

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
from codeexec_api.names import EXECUTION_KIND, MAX_EXECUTION_NAME, SESSION_KIND
from codeexec_api.v1alpha1.bounds import MAX_CODE_BYTES, MAX_PART_BYTES
from executor_client.exceptions import ClusterUnreachable, CodeExecError, InvalidExecution, NotFound, OutputUnavailable
from executor_client.testing.simulation import Simulation
from executor_client.testing.store import Growing, Record
from executor_client.transport.protocol import CLOSED, ClusterTransport

T = TypeVar("T")

_SESSION_GRACE_SECONDS: Final = 0.1
"""How long a session may come after its first execution, in true seconds; clients create both at once."""


class FakeTransport(ClusterTransport):
    """A connection to the fake, for one event loop."""

    def __init__(self, simulation: Simulation, user: str) -> None:
        self._user = user
        self.namespace = simulation.state.namespace
        self._simulation = simulation
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise ClusterUnreachable(CLOSED)
        self._simulation.check()

    @override
    def now(self) -> datetime:
        return self._simulation.state.now

    @override
    async def check(self) -> None:
        self._check()

    @override
    async def close(self) -> None:
        self._closed = True
        self._simulation.wake()

    @override
    async def patiently(self, ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        return await ask()

    @override
    async def whoami(self) -> str:
        self._check()
        return self._user

    @override
    async def get_policy(self) -> ExecutionPolicy | None:
        self._check()
        return self._simulation.state.policy_object()

    @override
    async def read_code(self, secret: str) -> Mapping[str, bytes]:
        self._check()
        for execution in self._simulation.state.executions.all():
            approval = execution.status.approval
            if approval and approval.code_secret == secret and execution.status.phase is Phase.AWAITING_APPROVAL:
                return self._simulation.state.payloads[execution.metadata.name]
        raise NotFound(f"there is no Secret {secret!r} with code that waits for a decision")

    @override
    async def decide(self, name: str, spec: ExecutionApprovalSpec) -> ExecutionApproval:
        self._check()
        if spec.approver == spec.execution_ref.requested_by:
            problem = "spec.approver: nobody approves their own request; another user has to approve"
            _refuse("ExecutionApproval", self.namespace, iter([("spec.approver", problem)]))
        return self._simulation.decide(name, spec)

    @override
    async def revoke(self, name: str) -> None:
        self._check()
        self._simulation.revoke(name, self._user)

    @override
    async def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        self._check()
        _refuse("CodeExecution", self.namespace, _problems(name, spec))
        spec = spec.model_copy(update={"requested_by": self._user})
        created = self._simulation.create(name, spec, dict(payload))
        if spec.session_ref and spec.session_ref.name not in self._simulation.state.sessions:
            loop = asyncio.get_running_loop()
            loop.call_later(_SESSION_GRACE_SECONDS, self._simulation.give_up_on_session, name)
        return created

    @override
    async def get(self, name: str) -> CodeExecution:
        self._check()
        return self._simulation.state.executions[name]

    @override
    async def list(self, phase: Phase | None = None) -> AsyncGenerator[CodeExecution, None]:
        self._check()
        for execution in self._simulation.state.executions.all():
            if phase in (None, execution.status.phase):
                yield execution

    @override
    async def list_stored(self) -> AsyncGenerator[Mapping[str, Any], None]:
        self._check()
        executions, sessions = self._simulation.state.executions.all(), self._simulation.state.sessions.all()
        for kind, records in ((EXECUTION_KIND, executions), (SESSION_KIND, sessions)):
            for record in records:
                stored = record.model_dump(mode="json", by_alias=True, exclude_none=True)
                yield {"kind": kind, **stored, "status": record.status.model_dump(mode="json", by_alias=True)}

    @override
    async def cancel(self, name: str) -> None:
        self._check()
        self._simulation.cancel(name)

    @override
    async def changes(self, execution: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        versions = self._simulation.state.executions.versions(execution.metadata.name)
        async for version in _newer(versions, execution, self._check):
            yield version

    @override
    async def read_output(self, execution: CodeExecution, part: int) -> Mapping[str, bytes]:
        self._check()
        name = execution.status.output_refs[part].name
        if name not in self._simulation.state.outputs:
            raise OutputUnavailable(f"output {name} is not in the fake cluster")
        return self._simulation.state.outputs[name]

    @override
    async def follow_log(self, pod_name: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
        log = self._simulation.state.logs.get(pod_name)
        if log is None:
            return
        with suppress(CodeExecError):  # a log that can't be read is an end and no error
            async for _, line in log.read(self._check):  # the fake's clock is not that of the caller
                yield line

    @override
    async def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        self._check()
        _refuse("CodeSession", self.namespace, _name_problems(name))
        return self._simulation.create_session(name, spec.model_copy(update={"requested_by": self._user}))

    @override
    async def get_session(self, name: str) -> CodeSession:
        self._check()
        return self._simulation.state.sessions[name]

    @override
    async def list_sessions(self) -> AsyncGenerator[CodeSession, None]:
        self._check()
        for session in self._simulation.state.sessions.all():
            yield session

    @override
    async def end_session(self, name: str) -> None:
        self._check()
        self._simulation.end_session(name)

    @override
    async def session_changes(self, session: CodeSession) -> AsyncGenerator[CodeSession, None]:
        versions = self._simulation.state.sessions.versions(session.metadata.name)
        async for version in _newer(versions, session, self._check):
            yield version


async def _newer(versions: Growing[Record], start: Record, check: Callable[[], None]) -> AsyncGenerator[Record, None]:
    known = int(start.metadata.resource_version)
    async with aclosing(versions.read(check)) as all_versions:
        async for version in all_versions:
            if int(version.metadata.resource_version) > known:
                yield version


def _refuse(kind: str, namespace: str, problems: Iterator[tuple[str, str]]) -> None:
    """Refuse what the CRD's rules refuse, beyond what the models do.

    Raises:
        InvalidExecution: names the fields.
    """
    if found := [message if field in message else f"{field}: {message}" for field, message in problems]:
        raise InvalidExecution(f"could not create the {kind} in namespace {namespace!r}: {'; '.join(found)}")


def _name_problems(name: str) -> Iterator[tuple[str, str]]:
    if len(name) > MAX_EXECUTION_NAME or "." in name:
        yield (
            "metadata.name",
            f"metadata.name must have at most {MAX_EXECUTION_NAME} characters and no dots: the pod is named after it",
        )


def _problems(name: str, spec: CodeExecutionSpec) -> Iterator[tuple[str, str]]:
    yield from _name_problems(name)
    code = sum(block.size_bytes for block in spec.blocks)
    files = sum(file.size_bytes for file in spec.files or ())
    if code > MAX_CODE_BYTES:
        yield "spec.blocks", f"blocks together must not exceed {MAX_CODE_BYTES} bytes"
    if spec.payload_ref and code + files > spec.payload_ref.parts * MAX_PART_BYTES:
        yield (
            "spec.payloadRef",
            f"blocks and files together must not exceed {MAX_PART_BYTES} bytes for each of payloadRef.parts",
        )
    if not spec.payload_ref and (spec.blocks or spec.files):
        yield (
            "spec.payloadRef",
            "there must be a payloadRef or a sealedPayload if there are blocks or files, and only then",
        )
    if not spec.blocks and not spec.session_ref:
        yield "spec.blocks", "there must be a block, but in a session, where files alone can be put, listed and fetched"
    if spec.session_ref and (spec.image or spec.runtime_class_name):
        yield (
            "spec.sessionRef",
            "with a sessionRef, image and runtimeClassName are those of the session and must be absent",
        )
