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
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

import aiohttp
import yaml
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    CodeSessionSpec,
    ExecutionApproval,
    ExecutionApprovalSpec,
    ExecutionPolicy,
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
from executor_client import tasks
from executor_client.blocks import split_payload
from executor_client.connections import Connections
from executor_client.exceptions import (
    ClusterUnreachable,
    CodeExecError,
    InvalidExecution,
    NotFound,
    NotInstalled,
    NotPermitted,
    OutputUnavailable,
)
from executor_client.feed import Feed
from executor_client.proxies import bypasses_proxy
from executor_client.words import option

_REQUEST_SECONDS: Final = 15
_WATCH_SECONDS: Final = 240
_RECONNECT_SECONDS: Final = 0.5
_PASSING: Final = (429, 500, 503, 504)
"""What the API server answers while it, or a CRD that is being replaced, is not ready."""
_INVALID: Final = (400, 422)
"""What it answers to an object that breaks a rule."""
_OUTAGE_SECONDS: Final = 30
"""How long the API server may be away while an execution is waited for."""
_TOKEN_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
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
_KUBECONFIG: Final = "~/.kube/config"
_OF_NO_USE: Final = re.compile(
    r'Invalid value: (?:"(?:object|array|string|integer|number|boolean)": |(?!["\d\[{-]|true|false|null))'
    r"|ValidatingAdmissionPolicy .* denied request: "
)
"""What the API server puts before the words of a rule: the type (not in 1.36), and the value where that is wrong."""

_Object = TypeVar("_Object", CodeExecution, CodeSession)


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

    def list(self) -> AsyncGenerator[CodeExecution, None]:
        """All CodeExecutions of the namespace, in no particular order."""

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


class Transport:
    """A connection to one cluster, for one event loop."""

    def __init__(self, configuration: client.Configuration, namespace: str) -> None:
        self.namespace = namespace
        self._host = configuration.host
        self._api = client.ApiClient(configuration)
        self._api.rest_client = Connections(configuration)
        self._core = client.CoreV1Api(self._api)
        self._authentication = client.AuthenticationV1Api(self._api)
        self._leases = client.CoordinationV1Api(self._api)
        self._asking_who = asyncio.Lock()
        self._me: str | None = None
        self._custom = client.CustomObjectsApi(self._api)
        self._id = secrets.token_hex(8)
        self._mine = f"{CLIENT_LABEL}={self._id}"
        self._asking_for_key = asyncio.Lock()
        self._key: Mapping[str, str] | None = None
        self._key_read_at: float | None = None
        self._feed = Feed(
            self._begin_feed,
            lambda version: self._events(EXECUTION_KIND, EXECUTION_PLURAL, version, label_selector=self._mine),
        )

    @classmethod
    async def connect(cls, *, kubeconfig: str | None, context: str | None, namespace: str) -> Self:
        """With the kubeconfig that is named; else with the pod's service account; else with the user's kubeconfig.

        Raises:
            ClusterUnreachable: there is no configuration, or it can't be read.
        """
        # Not bounded: each call that is waited for holds a connection, and what it waits for may need another.
        configuration = client.Configuration(connection_pool_maxsize=0)
        configuration.client_go_retries = True  # what is read is read again after the time that a Retry-After says
        if uses_service_account(kubeconfig, context):
            try:
                config.load_incluster_config(client_configuration=configuration)
            except (config.ConfigException, OSError) as error:
                raise ClusterUnreachable(f"can't use the service account of this pod: {error}") from error
        else:
            await _load_kubeconfig(configuration, kubeconfig, context)
        if configuration.proxy is None and bypasses_proxy(configuration.host, os.environ):
            configuration.client_session_kwargs = {"trust_env": False}
        return cls(configuration, namespace)

    async def close(self) -> None:
        """Close all connections."""
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
            CodeExecError: see `exceptions`; nothing is run then.
        """
        try:
            # The first call of a connection asks for all of them: at the same time.
            _, me, key = await tasks.together(self._feed.expect(name), self.whoami(), self._key_for(spec, payload))
            spec = spec.model_copy(update={"requested_by": me})
            return await self._create(name, self._sealed(name, spec, payload, key), payload)
        except BaseException:
            self._feed.forget(name)
            raise

    async def whoami(self) -> str:
        """Name by which the cluster knows who this connection belongs to, as the record has to say. Asked once.

        Raises:
            CodeExecError: see `exceptions`.
        """
        async with self._asking_who:
            if self._me is None:
                with self._errors("look up this identity"):
                    review: Any = await self._authentication.create_self_subject_review(
                        client.V1SelfSubjectReview(), _request_timeout=_REQUEST_SECONDS
                    )
                self._me = str(review.status.user_info.username)
            return self._me

    async def get_policy(self) -> ExecutionPolicy | None:
        """The namespace's own policy; None if it has none.

        Raises:
            CodeExecError: see `exceptions`.
        """
        try:
            return ExecutionPolicy.parse(await self._get_object(POLICY_KIND, POLICY_PLURAL, POLICY_NAME))
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
        return ExecutionApproval.parse(await self._create_object(APPROVAL_KIND, APPROVAL_PLURAL, name, spec, labels))

    async def revoke(self, name: str) -> None:
        """Take an ExecutionApproval back.

        Raises:
            CodeExecError: see `exceptions`.
        """
        with self._errors("revoke the ExecutionApproval"):
            change = {"spec": {"revoked": True, "revokedBy": await self.whoami()}}
            await self._patch_object(APPROVAL_PLURAL, name, change)

    async def _key_for(self, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> Mapping[str, str] | None:
        """The key to seal the payload with; None if the payload is large or the cluster has no key."""
        return None if spec.payload_ref is None or not is_sealable(payload) else await self._sealing_key()

    def _sealed(
        self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes], key: Mapping[str, str] | None
    ) -> CodeExecutionSpec:
        """With the payload in it instead of in Secrets, if there is a key for that."""
        if key is None:
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
            async with at_once:
                with self._errors("create the payload Secret"):
                    await past_quota_races(
                        lambda: self._core.create_namespaced_secret(
                            self.namespace, secret, _request_timeout=_REQUEST_SECONDS
                        )
                    )

        ref = spec.payload_ref
        outcomes = await asyncio.gather(
            *(create(part, data) for part, data in enumerate(split_payload(payload, ref.parts))), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _create_execution(self, name: str, spec: CodeExecutionSpec) -> CodeExecution:
        labels = {CLIENT_LABEL: self._id}
        return CodeExecution.parse(await self._create_object(EXECUTION_KIND, EXECUTION_PLURAL, name, spec, labels))

    async def get(self, name: str) -> CodeExecution:
        """The CodeExecution of this name.

        Raises:
            NotFound: there is none.
            CodeExecError: see `exceptions`.
        """
        return CodeExecution.parse(await self._get_object(EXECUTION_KIND, EXECUTION_PLURAL, name))

    def list(self) -> AsyncGenerator[CodeExecution, None]:
        """All CodeExecutions of the namespace, in no particular order.

        Raises:
            CodeExecError: see `exceptions`.
        """
        return self._list_objects(EXECUTION_KIND, EXECUTION_PLURAL, CodeExecution.parse)

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
        async with aclosing(self._changes(EXECUTION_KIND, EXECUTION_PLURAL, latest, CodeExecution.parse)) as changes:
            async for one in changes:
                yield one

    async def _begin_feed(self) -> str:
        with self._errors(f"list {EXECUTION_KIND}s"):
            listed: Any = await self._custom.list_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                EXECUTION_PLURAL,
                limit=1,
                label_selector=self._mine,
                _request_timeout=_REQUEST_SECONDS,
            )
        version: str = listed["metadata"]["resourceVersion"]
        return version

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
        # The generated method has only sinceSeconds, which depends on when the request arrives.
        method, url, headers, body, form = await self._api.param_serialize(
            "GET",
            "/api/v1/namespaces/{namespace}/pods/{name}/log",
            path_params={"namespace": self.namespace, "name": pod_name},
            query_params=[
                ("container", SANDBOX_CONTAINER),
                ("follow", "true"),
                *([("sinceTime", since.isoformat().replace("+00:00", "Z"))] if since else []),
            ],
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
        )
        unlimited = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS)
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            response = await self._ask(method, url, headers, body, form, _request_timeout=unlimited)
            try:
                if response.status == 200:
                    async with aclosing(_lines(response.content)) as lines:
                        async for line in lines:
                            yield line
            finally:
                response.close()

    async def _ask(self, *request: Any, **options: Any) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = (await self._api.call_api(*request, **options)).response
        return response

    async def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        """Create a CodeSession.

        Raises:
            CodeExecError: see `exceptions`.
        """
        spec = spec.model_copy(update={"requested_by": await self.whoami()})
        return CodeSession.parse(await self._create_object(SESSION_KIND, SESSION_PLURAL, name, spec))

    async def get_session(self, name: str) -> CodeSession:
        """The CodeSession of this name.

        Raises:
            NotFound: there is none.
            CodeExecError: see `exceptions`.
        """
        return CodeSession.parse(await self._get_object(SESSION_KIND, SESSION_PLURAL, name))

    def list_sessions(self) -> AsyncGenerator[CodeSession, None]:
        """All CodeSessions of the namespace, in no particular order.

        Raises:
            CodeExecError: see `exceptions`.
        """
        return self._list_objects(SESSION_KIND, SESSION_PLURAL, CodeSession.parse)

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
        return self._changes(SESSION_KIND, SESSION_PLURAL, session, CodeSession.parse)

    async def _create_object(
        self,
        kind: str,
        plural: str,
        name: str,
        spec: CodeExecutionSpec | CodeSessionSpec | ExecutionApprovalSpec,
        labels: Mapping[str, str] | None = None,
    ) -> Any:
        body = manifest(name=name, namespace=self.namespace, spec=spec)
        body["metadata"] |= {"labels": dict(labels)} if labels else {}
        with self._errors(f"create the {kind}"):
            return await past_quota_races(
                lambda: self._custom.create_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, plural, body, _request_timeout=_REQUEST_SECONDS
                )
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
        self, kind: str, plural: str, parse: Callable[[Any], _Object]
    ) -> AsyncGenerator[_Object, None]:
        async with aclosing(self._list_raw(kind, plural)) as items:
            async for item in items:
                yield parse(item)

    async def _list_raw(self, kind: str, plural: str) -> AsyncGenerator[Mapping[str, Any], None]:
        following: dict[str, Any] = {}
        while True:
            with self._errors(f"list {kind}s"):
                page: Any = await self._custom.list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, plural, limit=_PAGE, _request_timeout=_REQUEST_SECONDS, **following
                )
            for item in page["items"]:
                yield item
            if not (token := page["metadata"].get("continue")):
                return
            following = {"_continue": token}

    async def _changes(
        self, kind: str, plural: str, start: _Object, parse: Callable[[Any], _Object]
    ) -> AsyncGenerator[_Object, None]:
        version, name = start.metadata.resource_version, start.metadata.name
        events = self._events(kind, plural, version, field_selector=f"metadata.name={name}")
        async with aclosing(events):
            async for change, raw in events:
                yield parse(raw)
                if change == "DELETED":
                    return

    async def _events(
        self, kind: str, plural: str, version: str | None, **selector: str
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """What changes from a resource version on: the kind of the change, and the object. Lost watches are resumed."""
        clock = asyncio.get_running_loop().time
        lost_at = clock()
        while True:
            opened_at = clock()
            try:
                async with aclosing(self._watch_once(kind, plural, version, selector)) as events:
                    async for change, raw in events:
                        version = raw["metadata"]["resourceVersion"]
                        if change != "BOOKMARK":
                            yield change, raw
                lost_at = clock()  # from now on it is missing
            except (ApiException, ClusterUnreachable) as error:
                if isinstance(error, ApiException) and error.status == 410:
                    version = None  # too old for the API server: start from the current state
                    continue
                if clock() - opened_at > _REQUEST_SECONDS:  # it was open for a while, so this is another outage
                    lost_at = clock()
                passing = isinstance(error, ClusterUnreachable) or error.status in _PASSING
                if passing and clock() - lost_at <= _OUTAGE_SECONDS:
                    await asyncio.sleep(_RECONNECT_SECONDS)
                elif isinstance(error, ApiException):
                    raise self._translate(f"watch the {kind}", error) from error
                else:
                    raise

    async def _watch_once(
        self, kind: str, plural: str, version: str | None, selector: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """One watch, until the server ends it. When the caller has seen enough, its connection is dropped at once."""
        with self._network_errors(f"watch the {kind}"):
            response = await self._open_watch(plural, version, selector)
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

    async def _open_watch(
        self, plural: str, version: str | None, selector: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        options: dict[str, Any] = {**selector, **({"resource_version": version} if version else {})}
        response: aiohttp.ClientResponse = await self._custom.list_namespaced_custom_object_without_preload_content(
            GROUP,
            VERSION,
            self.namespace,
            plural,
            watch=True,
            timeout_seconds=_WATCH_SECONDS,
            allow_watch_bookmarks=True,
            **options,
        )
        return response

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


def uses_service_account(kubeconfig: str | None, context: str | None) -> bool:
    """True when the credentials are those of the pod that this runs in."""
    in_cluster = "KUBERNETES_SERVICE_HOST" in os.environ and _TOKEN_FILE.exists()
    return kubeconfig is None and context is None and in_cluster


async def _load_kubeconfig(configuration: client.Configuration, kubeconfig: str | None, context: str | None) -> None:
    """Read the kubeconfig that is named, or that of the user, as kubectl finds it.

    Raises:
        ClusterUnreachable: there is none, or it can't be used; the text says which file, and what to do.
    """
    where = _find_kubeconfig(kubeconfig)
    try:
        await config.load_kube_config(where, context, client_configuration=configuration)
    except config.ConfigException as error:
        raise ClusterUnreachable(_what_kubeconfig_lacks(where, context, str(error))) from error
    except (OSError, yaml.YAMLError) as error:
        raise ClusterUnreachable(f"can't read the kubeconfig {where}: {error}") from error
    except (TypeError, AttributeError) as error:  # what the loader raises for an empty file, for example
        raise ClusterUnreachable(
            f"{where} is not a kubeconfig: set KUBECONFIG or pass {option('kubeconfig')}"
        ) from error


def _find_kubeconfig(kubeconfig: str | None) -> str:
    """One path or several, as kubectl takes them.

    Raises:
        ClusterUnreachable: there is no file.
    """
    named = os.environ.get("KUBECONFIG")  # the library takes it as it was when it was imported
    where = kubeconfig or named or _KUBECONFIG
    files = [Path(one).expanduser() for one in where.split(os.pathsep) if one]
    if any(file.exists() for file in files):
        return where
    unset = "KUBECONFIG is not set, and " if not (kubeconfig or named) else ""
    absent = f"{' and '.join(map(str, files))} {'does' if len(files) == 1 else 'do'} not exist"
    raise ClusterUnreachable(
        f"found no kubeconfig: {unset}{absent}; set KUBECONFIG to the path of your kubeconfig, or pass "
        f"{option('kubeconfig')}"
    )


def _what_kubeconfig_lacks(where: str, context: str | None, error: str) -> str:
    if "current-context" in error:
        return (
            f"the kubeconfig {where} has no current context; pass {option('context')}, or run `kubectl config "
            "use-context NAME`"
        )
    if context and f"name {context} in" in error:
        return f"the kubeconfig {where} has no context {context!r}; `kubectl config get-contexts` lists its contexts"
    return f"can't use the kubeconfig {where}: {error}"


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
