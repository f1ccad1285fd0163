"""The way to a real cluster."""

import asyncio
import base64
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Final, Self, TypeVar

import aiohttp
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
from codeexec_api.names import (
    CLIENT_LABEL,
    EXECUTION_LABEL,
    POLICY_NAME,
    SANDBOX_CONTAINER,
)
from executor_client.exceptions import (
    CodeExecError,
    InvalidExecution,
    NotFound,
    NotInstalled,
    NotPermitted,
    OutputUnavailable,
)
from executor_client.runtime.asyncio_tasks import completed, together
from executor_client.transport.creation import past_quota_races
from executor_client.transport.kube_api import CORE, KubeApi
from executor_client.transport.log_lines import lines_of
from executor_client.transport.output_store import OutputStore
from executor_client.transport.payloads import Payloads
from executor_client.transport.protocol import ClusterTransport
from executor_client.transport.shared_watch import SharedWatch
from executor_client.transport.watch import Watcher

_LEASES: Final = "/apis/coordination.k8s.io/v1"
_Object = TypeVar("_Object", CodeExecution, CodeSession)
T = TypeVar("T")


class Transport(ClusterTransport):
    """A connection to one cluster, for one event loop."""

    def __init__(self, api: KubeApi, output_store: str | None = None) -> None:
        self.namespace = api.namespace
        self._store = OutputStore(output_store)
        self._api, self._payloads, self._watcher = api, Payloads(api), Watcher(api)
        mine = {"labelSelector": f"{CLIENT_LABEL}={api.id}"}
        self._shared_watch = SharedWatch(
            lambda: self._watcher.begin(CodeExecution, mine),
            lambda version, names: self._watcher.events(CodeExecution, version, names, mine),
        )

    @classmethod
    async def connect(
        cls, *, kubeconfig: str | None, context: str | None, namespace: str, output_store: str | None = None
    ) -> Self:
        """As `KubeApi.connect`; `output_store` as in `OutputStore`."""
        return cls(await KubeApi.connect(kubeconfig=kubeconfig, context=context, namespace=namespace), output_store)

    @override
    async def close(self) -> None:
        self._api.retries.close()  # no watch is opened again
        try:
            await self._shared_watch.close()
        finally:
            await self._api.close()

    async def renew_lease(self, name: str, seconds: int, now: datetime) -> None:
        """Say that this client is there, in a Lease that is created if it is missing.

        Args:
            name: of the Lease.
            seconds: how long that counts.
            now: the time, UTC.

        Raises:
            CodeExecError: see `exceptions`.
        """
        renewed = {"renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"}
        try:
            with self._api.errors("renew the Lease of this client"):
                await self._api.request("PATCH", self._api.path(_LEASES, "leases", name), body={"spec": renewed})
        except NotFound:
            spec = {"holderIdentity": await self.whoami(), "leaseDurationSeconds": seconds, **renewed}
            lease = {"metadata": {"name": name}, "spec": spec}
            with self._api.errors("create the Lease of this client"):
                leases = self._api.path(_LEASES, "leases")
                await past_quota_races(lambda: self._api.request("POST", leases, body=lease))

    async def delete_lease(self, name: str) -> None:
        """Say that this client is gone.

        Raises:
            CodeExecError: see `exceptions`.
        """
        with suppress(NotFound), self._api.errors("delete the Lease of this client"):
            await self._api.request("DELETE", self._api.path(_LEASES, "leases", name))

    @override
    async def check(self) -> None:
        # What the first call needs is asked for at the same time.
        begun = self._watcher.begin(CodeExecution, {})
        await together(begun, self.whoami(), self._payloads.sealing_key())

    @override
    async def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        try:
            # The first call of a connection asks for all of them: at the same time.
            _, me, key = await together(
                self.patiently(lambda: self._shared_watch.expect(name)),
                self.patiently(self.whoami),
                self.patiently(lambda: self._payloads.key_for(spec, payload)),
            )
            spec = spec.model_copy(update={"requested_by": me})
            # From here on it may be there, so that whoever goes away has to know: no cancellation breaks it off.
            return await completed(self._create(name, self._payloads.sealed(name, spec, payload, key), payload))
        except BaseException:
            self._shared_watch.forget(name)
            raise

    @override
    async def whoami(self) -> str:
        return await self._api.whoami()

    @override
    async def get_policy(self) -> ExecutionPolicy | None:
        try:
            return ExecutionPolicy.read(await self._api.get_object(ExecutionPolicy, POLICY_NAME))
        except NotFound:
            return None

    @override
    async def read_code(self, secret: str) -> Mapping[str, bytes]:
        with self._api.errors("read the code"):
            found = await self._api.request("GET", self._api.path(CORE, "secrets", secret))
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    @override
    async def decide(self, name: str, spec: ExecutionApprovalSpec) -> ExecutionApproval:
        labels = {EXECUTION_LABEL: spec.execution_ref.name}
        return ExecutionApproval.read(await self._api.create_object(ExecutionApproval, name, spec, labels))

    @override
    async def revoke(self, name: str) -> None:
        with self._api.errors("revoke the ExecutionApproval"):
            change = {"spec": {"revoked": True, "revokedBy": await self.whoami()}}
            await self._api.patch_object(ExecutionApproval, name, change)

    async def _create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        if spec.payload_ref and spec.payload_ref.parts > 1:
            # It may take longer than the operator waits for a payload.
            await self._payloads.create(name, spec, payload)
            return await self._create_execution(name, spec)
        payload_error, execution = await asyncio.gather(
            self._payloads.create(name, spec, payload), self._create_execution(name, spec), return_exceptions=True
        )
        if isinstance(execution, BaseException):
            raise execution
        if isinstance(payload_error, BaseException):
            # The operator would deny it anyway; what the caller has to hear of is the first error.
            with suppress(CodeExecError):
                await self.cancel(name)
            raise payload_error
        return execution

    async def _create_execution(self, name: str, spec: CodeExecutionSpec) -> CodeExecution:
        try:
            return CodeExecution.read(await self._api.create_object(CodeExecution, name, spec))
        except (InvalidExecution, NotInstalled, NotPermitted):
            raise
        except (CodeExecError, asyncio.CancelledError):  # it may be there all the same, and nobody would wait for it
            with suppress(CodeExecError):
                await self.cancel(name)
            raise

    @override
    async def patiently(self, ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        return await self._api.retries.patiently(ask, seconds)

    @override
    async def get(self, name: str) -> CodeExecution:
        return CodeExecution.read(await self._api.get_object(CodeExecution, name))

    @override
    def list(self, phase: Phase | None = None) -> AsyncGenerator[CodeExecution, None]:
        fields = f"status.phase={phase.value}" if phase else None
        return self._list(CodeExecution, fields)

    @override
    async def list_stored(self) -> AsyncGenerator[Mapping[str, Any], None]:
        for model in (CodeExecution, CodeSession):
            async with aclosing(self._api.list_raw(model)) as items:
                async for item in items:
                    yield {**item, "kind": model.kind}

    @override
    async def cancel(self, name: str) -> None:
        with self._api.errors("cancel the CodeExecution"):
            await self._api.patch_object(CodeExecution, name, {"spec": {"cancelled": True}})

    @override
    async def changes(self, execution: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        latest = execution
        if self._shared_watch.knows(execution.metadata.name):
            async with aclosing(self._shared_watch.changes(execution)) as changes:
                async for latest in changes:
                    yield latest
            # Deleted, or somebody has taken its label away: a watch of its own tells which.
            try:
                latest = await self.patiently(lambda: self.get(execution.metadata.name))
            except NotFound:
                return
            yield latest
        watched = self._watcher.changes(latest)
        async with aclosing(watched) as changes:
            async for one in changes:
                yield one

    @override
    async def read_output(self, execution: CodeExecution, part: int) -> Mapping[str, bytes]:
        if execution.status.output_store:
            return await self._store.read(execution, part)
        name = execution.status.output_refs[part].name
        try:
            with self._api.errors("read the output"):
                found = await self._api.request("GET", self._api.path(CORE, "configmaps", name))
        except NotFound as error:
            raise OutputUnavailable(
                f"output {name} in namespace {self.namespace!r} is gone: large output and fetched files are deleted "
                "after the outputTTLSeconds of the ExecutionPolicy. The record still has their digests and sizes"
            ) from error
        return {key: base64.b64decode(value) for key, value in found.get("binaryData", {}).items()}

    @override
    async def follow_log(self, pod_name: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
        query = {"container": SANDBOX_CONTAINER, "follow": "true"}
        if last_seconds is not None:  # and no sinceTime, which the kubelet compares with the clock of its node
            query["sinceSeconds"] = str(math.ceil(last_seconds))
        path = self._api.path(CORE, "pods", pod_name, "log")
        with suppress(aiohttp.ClientError, OSError, TimeoutError, CodeExecError):
            response = await self._api.stream(path, query)
            try:
                if response.status == 200:
                    async with aclosing(lines_of(response.content)) as lines:
                        async for line in lines:
                            yield line
            finally:
                response.close()

    @override
    async def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        spec = spec.model_copy(update={"requested_by": await self.patiently(self.whoami)})
        return CodeSession.read(await completed(self._create_session(name, spec)))

    async def _create_session(self, name: str, spec: CodeSessionSpec) -> Any:
        try:
            return await self._api.create_object(CodeSession, name, spec)
        except asyncio.CancelledError:  # the event loop ends
            with suppress(CodeExecError):
                await self.end_session(name)
            raise

    @override
    async def get_session(self, name: str) -> CodeSession:
        return CodeSession.read(await self._api.get_object(CodeSession, name))

    @override
    def list_sessions(self) -> AsyncGenerator[CodeSession, None]:
        return self._list(CodeSession)

    @override
    async def end_session(self, name: str) -> None:
        with self._api.errors("end the CodeSession"):
            await self._api.patch_object(CodeSession, name, {"spec": {"ended": True}})

    @override
    def session_changes(self, session: CodeSession) -> AsyncGenerator[CodeSession, None]:
        return self._watcher.changes(session)

    async def _list(self, model: type[_Object], fields: str | None = None) -> AsyncGenerator[_Object, None]:
        async with aclosing(self._api.list_raw(model, fields)) as items:
            async for item in items:
                yield model.read(item)
