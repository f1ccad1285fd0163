"""The one doorway of the client to the API server.

Every error of the API server or of the network leaves here as one of `exceptions`, with what to do about it.
"""

import asyncio
import base64
import json
import os
import random
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from datetime import datetime
from typing import Any, Final, Protocol, Self, TypeVar

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    CodeSessionSpec,
    ExecutionApproval,
    ExecutionApprovalSpec,
    ExecutionPolicy,
    Phase,
    manifest,
)
from codeexec_api.names import (
    APPROVAL_KIND,
    APPROVAL_PLURAL,
    CLIENT_LABEL,
    EXECUTION_KIND,
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    GROUP,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    PAYLOAD_SECRET_TYPE,
    POLICY_KIND,
    POLICY_NAME,
    POLICY_PLURAL,
    SANDBOX_CONTAINER,
    SEALING_KEY,
    SESSION_KIND,
    SESSION_PLURAL,
    VERSION,
    payload_name,
)
from codeexec_api.sealing import is_sealable, seal
from executor_client.exceptions import (
    ClusterUnreachable,
    CodeExecError,
    InvalidExecution,
    NotFound,
    NotInstalled,
    NotPermitted,
    OutputUnavailable,
)
from executor_client.model.blocks import split_payload
from executor_client.model.words import option
from executor_client.transport.connections import Connections
from executor_client.transport.credentials import Credentials, Identity, find
from executor_client.transport.proxies import bypasses_proxy
from executor_client.transport.shared_watch import Feed

_REQUEST_SECONDS: Final = 15
_WATCH_SECONDS: Final = 240
_SILENT_SECONDS: Final = 90
"""After which a watch that says nothing counts as broken: bookmarks come every minute."""
_RECONNECT_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 8
"""Before a watch is opened again if those before it gave nothing at all."""
_PASSING: Final = (429, 500, 502, 503, 504)
"""What is answered while the API server, a load balancer before it, or a CRD that is being replaced is not ready."""
_INVALID: Final = (400, 422)
"""What it answers to an object that breaks a rule."""
_OUTAGE_SECONDS: Final = 30
"""How long the API server may be away while an execution is waited for, or created."""
_REFUSAL_SECONDS: Final = 5
"""How long it may refuse a watch: one that has just started doesn't know all rights yet."""
_AGAIN_SECONDS: Final = (0.5, 1.0, 2.0)
"""Before each further try to create something."""
_KEY_SECONDS: Final = 60
"""After which the cluster is asked again which key counts; it keeps each for a day after that."""
_PARTS_AT_ONCE: Final = 4
"""How many Secrets of a payload are created at the same time."""
_RACE_SECONDS: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Before each further try at most; in all much less than the operator waits for a payload."""
_PAGE: Final = 50
"""Objects a page of a list: each may hold half a megabyte of output."""
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Longest line of a log that is looked at; those of the runner are much shorter."""
_MERGE_PATCH: Final = "application/merge-patch+json"
_OF_NO_USE: Final = re.compile(
    r'Invalid value: (?:"(?:object|array|string|integer|number|boolean)": |(?!["\d\[{-]|true|false|null))'
    r"|ValidatingAdmissionPolicy .* denied request: "
)
"""What the API server puts before the words of a rule: the type (not in 1.36), and the value where that is wrong."""

_Object = TypeVar("_Object", CodeExecution, CodeSession)

SEEN: Final = "SEEN"
GONE: Final = "GONE"
"""Beside the changes that a watch tells of."""


class Outage:
    """How long watches have been failing, and whether there is hope.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._opened_at = self._since = clock()
        self._pause = _RECONNECT_SECONDS
        self._of_no_use = False
        self.said = False
        """True if the watch has said something."""

    def opens(self) -> None:
        """A watch is about to be opened."""
        self._opened_at, self.said, self._of_no_use = self._clock(), False, False

    def ended(self) -> bool:
        """The watch has ended in order, and from now on it is missing. True if it was of no use at all."""
        self._since = self._clock()
        self._of_no_use = self._short and not self.said
        return self._of_no_use

    def passes(self, error: Exception) -> bool:
        """True if the watch is to be opened again after this error."""
        if not self._short:  # it was open for a while, so this is another outage
            self._since = self._clock()
        lasting = isinstance(error, ApiException) and error.status not in _PASSING
        lasting |= isinstance(error, CodeExecError) and not isinstance(error, ClusterUnreachable)
        return self._clock() - self._since <= (_REFUSAL_SECONDS if lasting else _OUTAGE_SECONDS)

    def pause(self) -> float:
        """Seconds until the next one is opened: more and more as long as they are of no use."""
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS) if self._of_no_use else _RECONNECT_SECONDS
        return self._pause if self._short else 0

    @property
    def _short(self) -> bool:
        return self._clock() - self._opened_at < _REQUEST_SECONDS


class ClusterTransport(Protocol):
    """What `CodeExecutionClient` needs of a cluster. Used in one event loop only.

    `Transport` is the real one; `executor_client.testing` has one in memory. Every method raises errors of
    `executor_client.exceptions`, and no others.
    """

    namespace: str

    async def check(self) -> None:
        """Make sure that the cluster answers and knows CodeExecutions."""

    async def close(self) -> None:
        """Close all connections."""

    async def whoami(self) -> str:
        """Name by which the cluster knows who this connection belongs to."""

    async def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        """Create a CodeExecution, and its payload in `spec.payload_ref.parts` Secrets.

        Args:
            name: of the CodeExecution; `spec.payload_ref` names the Secrets.
            spec: announces what is in the payload.
            payload: content of each block and file by its key; empty if there is no `spec.payload_ref`.
        """

    async def get(self, name: str) -> CodeExecution:
        """The CodeExecution of this name; `NotFound` if there is none."""

    def list(self, phase: Phase | None = None) -> AsyncGenerator[CodeExecution, None]:
        """All CodeExecutions of the namespace, or those in this phase, in no particular order."""

    def list_stored(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """All CodeExecutions and CodeSessions of the namespace as they are stored, each with its `kind`."""

    async def cancel(self, name: str) -> None:
        """Ask the operator to stop an execution."""

    def changes(self, execution: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        """Each version of the object after the given one, until it is deleted."""

    async def read_output(self, name: str) -> Mapping[str, bytes]:
        """The binaryData of one output ConfigMap; `OutputUnavailable` if it is gone."""

    def follow_log(self, pod_name: str, since: datetime | None) -> AsyncGenerator[bytes, None]:
        """Lines of the log of a sandbox pod as they come, without their ends, until its container ends.

        A log that can't be read, or no longer, is an end and no error: what is missing stands in the record.
        """

    async def get_policy(self) -> ExecutionPolicy | None:
        """The namespace's own policy; None if it has none."""

    async def read_code(self, secret: str) -> Mapping[str, bytes]:
        """What a Secret with code holds; `NotPermitted` to most."""

    async def decide(self, name: str, spec: ExecutionApprovalSpec) -> ExecutionApproval:
        """Create an ExecutionApproval."""

    async def revoke(self, name: str) -> None:
        """Take an ExecutionApproval back."""

    async def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        """Create a CodeSession."""

    async def get_session(self, name: str) -> CodeSession:
        """The CodeSession of this name; `NotFound` if there is none."""

    def list_sessions(self) -> AsyncGenerator[CodeSession, None]:
        """All CodeSessions of the namespace, in no particular order."""

    async def end_session(self, name: str) -> None:
        """Ask the operator to end a session."""

    def session_changes(self, session: CodeSession) -> AsyncGenerator[CodeSession, None]:
        """Each version of the object after the given one, until it is deleted."""


async def past_quota_races(create: Callable[[], Awaitable[Any]]) -> Any:
    """What `create` returns. Where it lost a race for the count of a ResourceQuota, it is called again, a few times.

    The API server counts with optimistic locks and gives up itself after three tries.

    Raises:
        ApiException: it was refused for another reason, or lost each time.
    """
    for longest in _RACE_SECONDS:
        try:
            return await create()
        except ApiException as error:
            if error.status != 409 or "resourcequotas" not in str(error.body):
                raise
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 it is no secret
    return await create()


async def created_once(create: Callable[[], Awaitable[Any]], find: Callable[[bool], Awaitable[Any]]) -> Any:
    """What `create` returns. It is called again where its answer may have been lost: the name is the caller's own.

    Args:
        create: makes an object of this name.
        find: returns the object if it is there and the caller's own, and None otherwise. Is told whether the API
            server has said that there is one of this name.

    Raises:
        ApiException: it was refused, or whether it was made can't be found out.
        aiohttp.ClientError: whether it was made can't be found out.
        OSError: the same.
    """
    clock = asyncio.get_running_loop().time
    last, lost = clock() + _OUTAGE_SECONDS, False
    for pause in (*_AGAIN_SECONDS, 0):
        try:
            return await past_quota_races(create)
        except (ApiException, aiohttp.ClientError, OSError) as error:
            status = error.status if isinstance(error, ApiException) else None
            is_there = lost and status == 409
            if status and status not in _PASSING and not is_there:
                raise
            lost = lost or status != 429
            if is_there or not pause or clock() >= last:
                if found := await find(is_there):
                    return found
                raise
        await asyncio.sleep(pause)


class Transport:
    """A connection to one cluster, for one event loop."""

    def __init__(
        self, configuration: client.Configuration, namespace: str, credentials: Credentials | None = None
    ) -> None:
        self.namespace = namespace
        self._host = configuration.host
        self._api = client.ApiClient(configuration)
        self._api.rest_client = Connections(configuration, credentials)
        self._core = client.CoreV1Api(self._api)
        self._authentication = client.AuthenticationV1Api(self._api)
        self._leases = client.CoordinationV1Api(self._api)
        self._closed = False
        self._asking_who = asyncio.Lock()
        self._credentials = credentials
        self._me: tuple[Identity | None, str] | None = None
        self._custom = client.CustomObjectsApi(self._api)
        self._id = secrets.token_hex(8)
        mine = {"labelSelector": f"{CLIENT_LABEL}={self._id}"}
        self._asking_for_key = asyncio.Lock()
        self._key: Mapping[str, str] | None = None
        self._key_read_at: float | None = None
        self._feed = Feed(
            lambda: self._begin(EXECUTION_KIND, EXECUTION_PLURAL, mine),
            lambda version, names: self._events(EXECUTION_KIND, EXECUTION_PLURAL, version, names, mine),
        )

    @classmethod
    async def connect(cls, *, kubeconfig: str | None, context: str | None, namespace: str) -> Self:
        """With the kubeconfig that is named; else with the pod's service account; else with the user's kubeconfig.

        Raises:
            ClusterUnreachable: there is no configuration, or it can't be read.
        """
        configuration, credentials = await find(kubeconfig, context)
        if configuration.proxy is None and bypasses_proxy(configuration.host, os.environ):
            configuration.client_session_kwargs = {"trust_env": False}
        return cls(configuration, namespace, credentials)

    async def close(self) -> None:
        """Close all connections. What is waited for is an error from then on."""
        self._closed = True
        await self._feed.close()
        await self._api.close()
        await asyncio.sleep(0)  # what was dropped is closed in the next turn of the loop, which may be its last

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
            with self._errors("renew the Lease of this client"):
                await self._leases.patch_namespaced_lease(
                    name,
                    self.namespace,
                    {"spec": renewed},
                    _content_type=_MERGE_PATCH,
                    _request_timeout=_REQUEST_SECONDS,
                )
        except NotFound:
            spec = {"holderIdentity": await self.whoami(), "leaseDurationSeconds": seconds, **renewed}
            lease: Any = {"metadata": {"name": name}, "spec": spec}
            with self._errors("create the Lease of this client"):
                await self._leases.create_namespaced_lease(self.namespace, lease, _request_timeout=_REQUEST_SECONDS)

    async def delete_lease(self, name: str) -> None:
        """Say that this client is gone.

        Raises:
            CodeExecError: see `exceptions`.
        """
        with suppress(NotFound), self._errors("delete the Lease of this client"):
            await self._leases.delete_namespaced_lease(name, self.namespace, _request_timeout=_REQUEST_SECONDS)

    async def check(self) -> None:
        """Ask for one CodeExecution, so that what is wrong with the cluster is known at once.

        Raises:
            CodeExecError: see `exceptions`.
        """
        with self._errors("list CodeExecutions"):
            await self._custom.list_namespaced_custom_object(
                GROUP, VERSION, self.namespace, EXECUTION_PLURAL, limit=1, _request_timeout=_REQUEST_SECONDS
            )

    async def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        """Create the CodeExecution with its payload sealed in it, or beside Secrets if it is large.

        Args:
            name: of the CodeExecution.
            spec: announces what is in the payload.
            payload: content of each block and file by its key in the Secrets.

        Raises:
            ClusterUnreachable: no answer came for a while. Code that may have been created was told to stop, if that
                was possible.
            CodeExecError: see `exceptions`; nothing is run then.
        """
        await self._feed.expect(name)
        try:
            spec = spec.model_copy(update={"requested_by": await self.whoami()})
            return await self._create(name, await self._sealed(name, spec, payload), payload)
        except BaseException:
            self._feed.forget(name)
            raise

    async def whoami(self) -> str:
        """Name by which the cluster knows who this connection belongs to, as the record has to say.

        Asked once for each credential.

        Raises:
            CodeExecError: see `exceptions`.
        """
        async with self._asking_who:
            shown = self._credentials.identity if self._credentials else None
            if self._me is None or self._me[0] != shown:
                with self._errors("look up this identity"):
                    review: Any = await self._authentication.create_self_subject_review(
                        client.V1SelfSubjectReview(), _request_timeout=_REQUEST_SECONDS
                    )
                shown = self._credentials.identity if self._credentials else None
                self._me = shown, str(review.status.user_info.username)
            return self._me[1]

    async def get_policy(self) -> ExecutionPolicy | None:
        """The namespace's own policy; None if it has none.

        Raises:
            CodeExecError: see `exceptions`.
        """
        try:
            return ExecutionPolicy.read(await self._get_object(POLICY_KIND, POLICY_PLURAL, POLICY_NAME))
        except NotFound:
            return None

    async def read_code(self, secret: str) -> Mapping[str, bytes]:
        """What a Secret with code holds.

        Raises:
            NotFound: it is gone: the code has started, or was decided about.
            NotPermitted: who may decide need not be who may read code.
            CodeExecError: see `exceptions`.
        """
        with self._errors("read the code"):
            found = await self._core.read_namespaced_secret(secret, self.namespace, _request_timeout=_REQUEST_SECONDS)
        return {key: base64.b64decode(value) for key, value in (found.data or {}).items()}

    async def decide(self, name: str, spec: ExecutionApprovalSpec) -> ExecutionApproval:
        """Create an ExecutionApproval.

        Raises:
            CodeExecError: see `exceptions`.
        """
        labels = {EXECUTION_LABEL: spec.execution_ref.name}
        return ExecutionApproval.read(await self._create_object(APPROVAL_KIND, APPROVAL_PLURAL, name, spec, labels))

    async def revoke(self, name: str) -> None:
        """Take an ExecutionApproval back.

        Raises:
            CodeExecError: see `exceptions`.
        """
        with self._errors("revoke the ExecutionApproval"):
            change = {"spec": {"revoked": True, "revokedBy": await self.whoami()}}
            await self._patch_object(APPROVAL_PLURAL, name, change)

    async def _sealed(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecutionSpec:
        """With the payload in it instead of in Secrets, if it is small and the cluster has a key for that."""
        if spec.payload_ref is None or not is_sealable(payload) or (key := await self._sealing_key()) is None:
            return spec
        try:
            sealed = seal(payload, key, self.namespace, name)
        except ValueError as error:
            raise CodeExecError(
                f"the ConfigMap {SEALING_KEY} in namespace {self.namespace!r} holds {error}; ask the platform owner to "
                "delete its data and to restart the operator"
            ) from error
        return spec.model_copy(update={"payload_ref": None, "sealed_payload": sealed})

    async def _sealing_key(self) -> Mapping[str, str] | None:
        """The operator's public key, not older than a minute; None where there is none, or it may not be read."""
        now = asyncio.get_running_loop().time()
        async with self._asking_for_key:
            if self._key_read_at is None or now - self._key_read_at > _KEY_SECONDS:
                try:
                    with self._network_errors("read the sealing key"):
                        found = await self._core.read_namespaced_config_map(
                            SEALING_KEY, self.namespace, _request_timeout=_REQUEST_SECONDS
                        )
                    self._key = found.data or None
                except ApiException:  # whatever the reason is, Secrets are the way without it
                    self._key = None
                self._key_read_at = now
        return self._key

    async def _create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        if spec.payload_ref and spec.payload_ref.parts > 1:
            # It may take longer than the operator waits for a payload.
            await self._create_payload(name, spec, payload)
            return await self._create_execution(name, spec)
        payload_error, execution = await asyncio.gather(
            self._create_payload(name, spec, payload), self._create_execution(name, spec), return_exceptions=True
        )
        if isinstance(execution, BaseException):
            raise execution
        if isinstance(payload_error, BaseException):
            # The operator would deny it anyway; what the caller has to hear of is the first error.
            with suppress(CodeExecError):
                await self.cancel(name)
            raise payload_error
        return execution

    async def _create_payload(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> None:
        if spec.payload_ref is None:
            return
        at_once = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def create(part: int, data: Mapping[str, bytes]) -> None:
            secret: Any = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": PAYLOAD_SECRET_TYPE,
                "immutable": True,
                "metadata": {
                    "name": payload_name(ref.name, part),
                    "labels": {EXECUTION_LABEL: name, MANAGED_BY_LABEL: MANAGED_BY},
                },
                "data": {key: base64.b64encode(content).decode() for key, content in data.items()},
            }

            async def find(is_there: bool) -> bool:  # an agent may read no Secret
                return is_there

            async with at_once:
                with self._errors("create the payload Secret"):
                    await created_once(
                        lambda: self._core.create_namespaced_secret(
                            self.namespace, secret, _request_timeout=_REQUEST_SECONDS
                        ),
                        find,
                    )

        ref = spec.payload_ref
        outcomes = await asyncio.gather(
            *(create(part, data) for part, data in enumerate(split_payload(payload, ref.parts))), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _create_execution(self, name: str, spec: CodeExecutionSpec) -> CodeExecution:
        try:
            return CodeExecution.read(await self._create_object(EXECUTION_KIND, EXECUTION_PLURAL, name, spec))
        except (InvalidExecution, NotInstalled, NotPermitted):
            raise
        except CodeExecError:  # it may be there all the same, and nobody would wait for it
            with suppress(CodeExecError):
                await self.cancel(name)
            raise

    async def get(self, name: str) -> CodeExecution:
        """The CodeExecution of this name.

        Raises:
            NotFound: there is none.
            CodeExecError: see `exceptions`.
        """
        return CodeExecution.read(await self._get_object(EXECUTION_KIND, EXECUTION_PLURAL, name))

    def list(self, phase: Phase | None = None) -> AsyncGenerator[CodeExecution, None]:
        """All CodeExecutions of the namespace, or those in this phase, in no particular order.

        Raises:
            CodeExecError: see `exceptions`.
        """
        fields = f"status.phase={phase.value}" if phase else None
        return self._list_objects(EXECUTION_KIND, EXECUTION_PLURAL, CodeExecution.read, fields)

    async def list_stored(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """All CodeExecutions and CodeSessions of the namespace as they are stored, each with its `kind`.

        Raises:
            CodeExecError: see `exceptions`.
        """
        for kind, plural in ((EXECUTION_KIND, EXECUTION_PLURAL), (SESSION_KIND, SESSION_PLURAL)):
            async with aclosing(self._list_raw(kind, plural)) as items:
                async for item in items:
                    yield {**item, "kind": kind}

    async def cancel(self, name: str) -> None:
        """Ask the operator to stop an execution.

        Raises:
            CodeExecError: see `exceptions`.
        """
        with self._errors("cancel the CodeExecution"):
            await self._patch_object(EXECUTION_PLURAL, name, {"spec": {"cancelled": True}})

    async def changes(self, execution: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        """Each version of the object from now on, until it is deleted. Lost watches are resumed, for a while.

        Raises:
            CodeExecError: see `exceptions`.
        """
        latest = execution
        if self._feed.knows(execution.metadata.name):
            async with aclosing(self._feed.changes(execution)) as changes:
                async for latest in changes:
                    yield latest
            # Deleted, or somebody has taken its label away: a watch of its own tells which.
            try:
                latest = await self.get(execution.metadata.name)
            except NotFound:
                return
            yield latest
        async with aclosing(self._changes(EXECUTION_KIND, EXECUTION_PLURAL, latest, CodeExecution.read)) as changes:
            async for one in changes:
                yield one

    async def read_output(self, name: str) -> Mapping[str, bytes]:
        """What one output ConfigMap holds.

        Raises:
            OutputUnavailable: it is gone.
            CodeExecError: see `exceptions`.
        """
        try:
            with self._errors("read the output"):
                config_map = await self._core.read_namespaced_config_map(
                    name, self.namespace, _request_timeout=_REQUEST_SECONDS
                )
        except NotFound as error:
            raise OutputUnavailable(
                f"output {name} in namespace {self.namespace!r} is gone: large output and fetched files are deleted "
                "after the outputTTLSeconds of the ExecutionPolicy. The record still has their digests and sizes"
            ) from error
        return {key: base64.b64decode(value) for key, value in (config_map.binary_data or {}).items()}

    async def follow_log(self, pod_name: str, since: datetime | None) -> AsyncGenerator[bytes, None]:
        """Lines of the log of a sandbox pod as they come, until its container ends.

        A log that can't be read, or no longer, is an end and no error: what is missing stands in the record.

        Args:
            pod_name: of the sandbox pod.
            since: leave out what is older; time of the node.
        """
        query = {"container": SANDBOX_CONTAINER, "follow": "true"}
        if since:  # the generated method has only sinceSeconds, which depends on when the request arrives
            query["sinceTime"] = since.isoformat().replace("+00:00", "Z")
        path = "/api/v1/namespaces/{namespace}/pods/{name}/log"
        with suppress(aiohttp.ClientError, OSError, TimeoutError, CodeExecError):
            response = await self._stream(path, {"name": pod_name}, query)
            try:
                if response.status == 200:
                    async with aclosing(_lines(response.content)) as lines:
                        async for line in lines:
                            yield line
            finally:
                response.close()

    async def _stream(
        self, path: str, places: Mapping[str, str], query: Mapping[str, str], *, silent: float | None = None
    ) -> aiohttp.ClientResponse:
        """An answer that comes piece by piece, for as long as it takes; the generated methods limit that.

        Args:
            path: with names of places in braces.
            places: what stands in them, beside the namespace.
            query: parameters.
            silent: seconds after which an answer of which nothing comes is over; None for never.
        """
        method, url, headers, body, form = await self._api.param_serialize(
            "GET",
            path,
            path_params={"namespace": self.namespace, **places},
            query_params=list(query.items()),
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
        )
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS, sock_read=silent)
        answer = await self._api.call_api(method, url, headers, body, form, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        """Create a CodeSession.

        Raises:
            CodeExecError: see `exceptions`.
        """
        spec = spec.model_copy(update={"requested_by": await self.whoami()})
        return CodeSession.read(await self._create_object(SESSION_KIND, SESSION_PLURAL, name, spec))

    async def get_session(self, name: str) -> CodeSession:
        """The CodeSession of this name.

        Raises:
            NotFound: there is none.
            CodeExecError: see `exceptions`.
        """
        return CodeSession.read(await self._get_object(SESSION_KIND, SESSION_PLURAL, name))

    def list_sessions(self) -> AsyncGenerator[CodeSession, None]:
        """All CodeSessions of the namespace, in no particular order.

        Raises:
            CodeExecError: see `exceptions`.
        """
        return self._list_objects(SESSION_KIND, SESSION_PLURAL, CodeSession.read)

    async def end_session(self, name: str) -> None:
        """Ask the operator to end a session, which deletes its workspace.

        Raises:
            NotFound: there is none.
            CodeExecError: see `exceptions`.
        """
        with self._errors("end the CodeSession"):
            await self._patch_object(SESSION_PLURAL, name, {"spec": {"ended": True}})

    def session_changes(self, session: CodeSession) -> AsyncGenerator[CodeSession, None]:
        """Each version of the object from now on, until it is deleted. Lost watches are resumed, for a while.

        Raises:
            CodeExecError: see `exceptions`.
        """
        return self._changes(SESSION_KIND, SESSION_PLURAL, session, CodeSession.read)

    async def _create_object(
        self,
        kind: str,
        plural: str,
        name: str,
        spec: CodeExecutionSpec | CodeSessionSpec | ExecutionApprovalSpec,
        labels: Mapping[str, str] | None = None,
    ) -> Any:
        body = manifest(name=name, namespace=self.namespace, spec=spec)
        body["metadata"]["labels"] = {CLIENT_LABEL: self._id, **(labels or {})}

        async def find(_: bool) -> Any:
            with suppress(CodeExecError):
                raw = await self._get_object(kind, plural, name)
                return raw if raw["metadata"].get("labels", {}).get(CLIENT_LABEL) == self._id else None

        with self._errors(f"create the {kind}"):
            return await created_once(
                # Strict: what an older cluster doesn't know is refused, where it would be dropped in silence.
                lambda: self._custom.create_namespaced_custom_object(
                    GROUP,
                    VERSION,
                    self.namespace,
                    plural,
                    body,
                    field_validation="Strict",
                    _request_timeout=_REQUEST_SECONDS,
                ),
                find,
            )

    async def _get_object(self, kind: str, plural: str, name: str) -> Any:
        with self._errors(f"get the {kind}"):
            return await self._custom.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, plural, name, _request_timeout=_REQUEST_SECONDS
            )

    async def _patch_object(self, plural: str, name: str, patch: Any) -> None:
        await self._custom.patch_namespaced_custom_object(
            GROUP,
            VERSION,
            self.namespace,
            plural,
            name,
            patch,
            _content_type=_MERGE_PATCH,
            _request_timeout=_REQUEST_SECONDS,
        )

    async def _list_objects(
        self, kind: str, plural: str, parse: Callable[[Any], _Object], fields: str | None = None
    ) -> AsyncGenerator[_Object, None]:
        async with aclosing(self._list_raw(kind, plural, fields)) as items:
            async for item in items:
                yield parse(item)

    async def _list_raw(
        self, kind: str, plural: str, fields: str | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        chosen: dict[str, Any] = {"field_selector": fields} if fields else {}
        following: dict[str, Any] = chosen
        while True:
            with self._errors(f"list {kind}s"):
                page: Any = await self._custom.list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, plural, limit=_PAGE, _request_timeout=_REQUEST_SECONDS, **following
                )
            for item in page["items"]:
                yield item
            if not (token := page["metadata"].get("continue")):
                return
            following = {**chosen, "_continue": token}

    async def _changes(
        self, kind: str, plural: str, start: _Object, parse: Callable[[Any], _Object]
    ) -> AsyncGenerator[_Object, None]:
        name, seen = start.metadata.name, int(start.metadata.resource_version)
        version = start.metadata.resource_version
        events = self._events(kind, plural, version, lambda: [name], {"fieldSelector": f"metadata.name={name}"})
        async with aclosing(events):
            async for change, raw in events:
                if change == GONE:
                    return
                current = parse(raw)
                if int(current.metadata.resource_version) > seen:
                    seen = int(current.metadata.resource_version)
                    yield current
                if change == "DELETED":
                    return

    async def _begin(self, kind: str, plural: str, selector: Mapping[str, str]) -> str:
        """The resource version from which on nothing will be missed."""
        with self._errors(f"list {kind}s"):
            listed: Any = await self._custom.list_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                plural,
                limit=1,
                label_selector=selector.get("labelSelector"),
                field_selector=selector.get("fieldSelector"),
                _request_timeout=_REQUEST_SECONDS,
            )
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _look(self, kind: str, plural: str, names: Collection[str]) -> AsyncGenerator[tuple[str, Any], None]:
        """The objects of these names as they are, or GONE with the name."""
        for name in names:
            try:
                yield SEEN, await self._get_object(kind, plural, name)
            except NotFound:
                yield GONE, {"metadata": {"name": name}}

    async def _events(
        self, kind: str, plural: str, version: str, names: Callable[[], Collection[str]], selector: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """What changes from a resource version on: the kind of the change, and the object. Lost watches are resumed.

        Where a change may have been missed, the objects of these names are looked at: SEEN or GONE.
        """
        outage, missed = Outage(asyncio.get_running_loop().time), False
        while True:
            outage.opens()
            try:
                if missed:
                    version = await self._begin(kind, plural, selector)
                    async with aclosing(self._look(kind, plural, names())) as found:
                        async for seen in found:
                            yield seen
                async with aclosing(self._watch_once(kind, plural, version, selector)) as events:
                    async for change, raw in events:
                        outage.said = True
                        version = raw["metadata"]["resourceVersion"]
                        if change != "BOOKMARK":
                            yield change, raw
                missed = outage.ended()
            except (ApiException, CodeExecError) as error:
                too_old = isinstance(error, ApiException) and error.status == 410
                missed = missed or too_old
                if self._closed or (not too_old and not outage.passes(error)):
                    if isinstance(error, ApiException):
                        raise self._translate(f"watch the {kind}", error) from error
                    raise
            await asyncio.sleep(outage.pause())

    async def _watch_once(
        self, kind: str, plural: str, version: str, selector: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """One watch, until the server ends it. When the caller has seen enough, its connection is dropped at once."""
        with self._network_errors(f"watch the {kind}"):
            query = {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(_WATCH_SECONDS),
                "resourceVersion": version,
                **selector,
            }
            path = f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{plural}"
            async with asyncio.timeout(_REQUEST_SECONDS):
                response = await self._stream(path, {}, query, silent=_SILENT_SECONDS)
            try:
                if response.status != 200:
                    raise ApiException(status=response.status, reason=await response.text())
                while line := await response.content.readline():
                    event = _parsed_event(line)
                    if event["type"] == "ERROR":
                        raise ApiException(status=event["object"].get("code"), reason=event["object"].get("message"))
                    yield event["type"], event["object"]
            finally:
                response.close()

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            with self._network_errors(doing):
                yield
        except ApiException as error:
            raise self._translate(doing, error) from error

    @contextmanager
    def _network_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ClusterUnreachable(
                f"could not {doing}: no answer from the API server at {self._host} "
                f"({type(error).__name__}: {error}); check that the cluster is running, and that kubeconfig and "
                "context are right"
            ) from error

    def _translate(self, doing: str, error: ApiException) -> CodeExecError:
        body = str(error.body or error.reason)
        broken = _broken_rules(body) if error.status in _INVALID else ""
        why = broken or f"{error.status} {_message(body)}"
        text = f"could not {doing} in namespace {self.namespace!r}: {why}"
        if error.status == 401:
            return NotPermitted(f"{text}; the credentials in the kubeconfig are not valid, or have expired")
        if error.status == 403 and "status unknown for quota" in body:
            return NotPermitted(f"{text}; the namespace or its quota is new: try again in a few minutes")
        if error.status == 403 and "exceeded quota" in body:
            return NotPermitted(
                f"{text}; wait until other executions end, or ask the platform owner to raise the quota or to delete "
                "records"
            )
        if error.status == 403:
            return NotPermitted(
                f"{text}; ask the platform owner to bind the Role 'codeexec-agent' to this identity, or the Role "
                "'codeexec-approver' if it only approves and denies"
            )
        if error.status == 404 and (what := _missing(body)):
            return NotFound(f"{text}; list them with `kubectl -n {self.namespace} get {what}`")
        if error.status == 404 and "namespaces" in body:
            return NotInstalled(
                f"{text}; pass {option('namespace')} with a sandbox namespace of the codeexec installation"
            )
        if error.status == 404:
            return NotInstalled(f"{text}; the CRDs are missing: install the codeexec Helm chart into this cluster")
        if error.status in _INVALID:
            return InvalidExecution(text)
        return CodeExecError(text)


def _status(body: str) -> dict[str, Any]:
    """The API server's Status object, empty if the body is none."""
    try:
        status = json.loads(body)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def _message(body: str) -> str:
    return str(_status(body).get("message", body))


def _broken_rules(body: str) -> str:
    """The messages of the rules that an object breaks, each with its field; empty if the answer is about no rule."""
    details = _status(body).get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return "; ".join(_broken_rule(cause) for cause in causes or ())


def _broken_rule(cause: Mapping[str, Any]) -> str:
    field, message = str(cause.get("field", "")), str(cause.get("message", ""))
    told = _OF_NO_USE.sub("", message, count=1)
    return told if field in ("", "<nil>", "spec") or field in told else f"{field}: {told}"


def _missing(body: str) -> str:
    """Kind (plural) of the one object that is missing; empty if it is its whole kind or its namespace."""
    details = _status(body).get("details")
    kind = str(details.get("kind", "")) if isinstance(details, dict) and details.get("name") else ""
    return "" if kind == "namespaces" else kind


def _parsed_event(line: bytes) -> dict[str, Any]:
    """One line of a watch. One that was cut off is an end of the connection like any other."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise aiohttp.ClientPayloadError(f"a line of the watch is not JSON: {error}") from None
    return event


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Whole lines without their ends; one that is longer than _MAX_LINE_BYTES is left out."""
    rest = bytearray()
    too_long = False
    async for data in content.iter_any():
        *whole, last = data.split(b"\n")
        for piece in whole:
            rest += piece
            if not too_long:
                yield bytes(rest)
            rest.clear()
            too_long = False
        rest += last
        if len(rest) > _MAX_LINE_BYTES:
            rest.clear()
            too_long = True
