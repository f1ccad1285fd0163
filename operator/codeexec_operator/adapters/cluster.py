"""The one doorway to the API server: every request that the operator makes itself is in this file.

(kopf's own requests are lists and watches.) Each method names the RBAC verb that it needs; the chart's Role is their
union.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from kubernetes.aio import client, config, stream
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import (
    CodeExecution,
    CodeExecutionStatus,
    CodeSession,
    CodeSessionStatus,
    Phase,
    Reason,
    SandboxPool,
    SandboxPoolSpec,
    SandboxPoolStatus,
    SessionPhase,
    manifest,
)
from codeexec_api.names import (
    API_VERSION,
    APPROVAL_PLURAL,
    EXECUTION_KIND,
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    EXPIRES_ANNOTATION,
    GROUP,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    PAYLOAD_SECRET_TYPE,
    POLICY_NAME,
    POLICY_PLURAL,
    POOL_PLURAL,
    SANDBOX_CONTAINER,
    SEALING_KEY,
    SESSION_PLURAL,
    VERSION,
    block_key,
    file_key,
    output_name,
    payload_name,
    review_name,
)
from codeexec_operator.adapters.runner_link import RunnerLink
from codeexec_operator.core.leadership import LeaseRecord
from codeexec_operator.core.observed import Fault
from codeexec_operator.core.payload import Payload
from codeexec_operator.core.surroundings import NodeView, parse_endpoints, parse_node
from codeexec_operator.core.transcript import OutputPart

_MERGE_PATCH: Final = "application/merge-patch+json"
_KEYS: Final = "keys.json"
_NODES: Final = 10
"""Nodes that are listed at a time; they are large."""
_ANSWER_SECONDS: Final = 15
_WATCH_SECONDS: Final = 300
_PODS: Final = 100
"""Pods that are listed at a time."""
_PAYLOADS: Final = 8
"""Read at the same time: each may be 16 MB, and after a restart many may be asked for at once."""
_METADATA: Final = 200
"""Objects whose metadata is listed at a time."""
_ONLY_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""What to accept, so that the API server leaves out what the objects hold (Kubernetes API concepts)."""
_ONLY_COLUMNS: Final = "application/json;as=Table;g=meta.k8s.io;v=v1"
"""The same, for what `kubectl get` prints."""
UNFINISHED: Final = {
    plural: ",".join(f"status.phase!={phase.value}" for phase in phases if phase.terminal)
    for plural, phases in ((EXECUTION_PLURAL, Phase), (SESSION_PLURAL, SessionPhase))
}
"""Field selectors: records that are over are many, and some are large."""
_ROWS: Final = 50
"""Rows that are listed at a time: the API server reads the objects for them, and they may be large."""


class Cluster:
    """Requests to the API server, with the operator's own service account."""

    def __init__(self, configuration: client.Configuration) -> None:
        # Else proxies and their passwords are looked for in the environment and in files, with each request.
        configuration.client_session_kwargs = {"trust_env": False, "middlewares": (self._fence,)}
        self._may_send: Callable[[], object] = lambda: None
        self._api = client.ApiClient(configuration)
        # What stays open, as for each sandbox and each namespace, has connections of its own, in any number: beside
        # them, requests would wait for a free one for ever.
        configuration.connection_pool_maxsize = 0
        self._streams = client.ApiClient(configuration)
        self._sockets = stream.WsApiClient(configuration)
        self._core = client.CoreV1Api(self._api)
        self._nodes = client.NodeV1Api(self._api)
        self._events = client.EventsV1Api(self._api)
        self._discovery = client.DiscoveryV1Api(self._api)
        self._networking = client.NetworkingV1Api(self._api)
        self._leases = client.CoordinationV1Api(self._api)
        self._custom = client.CustomObjectsApi(self._api)
        self._attach = client.CoreV1Api(self._sockets)
        self._watched = client.CoreV1Api(self._streams)
        self._reading_payloads = asyncio.Semaphore(_PAYLOADS)

    @classmethod
    async def connect(cls) -> "Cluster":
        """With the service account of the pod; outside a cluster, with the kubeconfig.

        Raises:
            kubernetes.aio.config.ConfigException: there is neither.
        """
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        return cls(configuration)

    def ask_first(self, may_send: Callable[[], object]) -> None:
        """From now on call this before each request; it must not return if the request may not be sent."""
        self._may_send = may_send

    async def _fence(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        self._may_send()
        return await send(request)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()
        await self._streams.close()
        await self._sockets.close()

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        """codeexecutions: get."""
        raw = await _found(self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, EXECUTION_PLURAL, name))
        return CodeExecution.parse(raw) if raw else None

    async def get_session(self, namespace: str, name: str) -> CodeSession | None:
        """codesessions: get."""
        raw = await _found(self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, SESSION_PLURAL, name))
        return CodeSession.parse(raw) if raw else None

    async def pods_of_running_executions(self, namespace: str) -> set[str]:
        """codeexecutions: list. Names of the pods in which code runs."""
        running: Any = await self._custom.list_namespaced_custom_object(
            GROUP,
            VERSION,
            namespace,
            EXECUTION_PLURAL,
            field_selector=f"status.phase={Phase.RUNNING.value}",
            _request_timeout=_ANSWER_SECONDS,
        )
        return {one["status"].get("podName", "") for one in running["items"]}

    async def audited_executions(self, namespace: str) -> list[str]:
        """codeexecutions: list. Names of those with an audit line, the newest line first."""
        return await self._list_audited(EXECUTION_PLURAL, namespace)

    async def audited_sessions(self, namespace: str) -> list[str]:
        """codesessions: list. Names of those with an audit line, the newest line first."""
        return await self._list_audited(SESSION_PLURAL, namespace)

    async def _list_audited(self, plural: str, namespace: str) -> list[str]:
        found: list[tuple[str, str]] = []
        token: str | None = None
        while token != "":
            page = await self._table(plural, namespace, token)
            columns = [one["name"] for one in page["columnDefinitions"]]
            name, audited = columns.index("Name"), columns.index("Audited")
            found += [(row["cells"][audited], row["cells"][name]) for row in page["rows"] if row["cells"][audited]]
            token = page["metadata"].get("continue", "")
        return [name for _, name in sorted(found, reverse=True)]

    async def _table(self, plural: str, namespace: str, token: str | None) -> Any:
        """A page of a list as columns. The generated methods have no includeObject, so rows would bring metadata."""
        request = await self._api.param_serialize(
            "GET",
            f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{plural}",
            path_params={"namespace": namespace},
            query_params=[("limit", _ROWS), ("includeObject", "None"), *([("continue", token)] if token else [])],
            header_params={"Accept": _ONLY_COLUMNS},
            auth_settings=["BearerToken"],
        )
        asked = await self._api.call_api(*request, _request_timeout=_ANSWER_SECONDS)
        return json.loads(await self._body(asked.response))

    async def ensure_pool(self, namespace: str, name: str, spec: SandboxPoolSpec) -> None:
        """sandboxpools: create. One of that name that is there already is left as it is.

        Raises:
            ApiException: it was refused.
        """
        body = manifest(name=name, namespace=namespace, spec=spec)
        try:
            await self._custom.create_namespaced_custom_object(GROUP, VERSION, namespace, POOL_PLURAL, body)
        except ApiException as error:
            if error.status != 409:
                raise

    async def find_pool(self, namespace: str, name: str) -> SandboxPool | None:
        """sandboxpools: list."""
        found: Any = await self._custom.list_namespaced_custom_object(
            GROUP,
            VERSION,
            namespace,
            POOL_PLURAL,
            field_selector=f"metadata.name={name}",
            _request_timeout=_ANSWER_SECONDS,
        )
        return SandboxPool.parse(found["items"][0]) if found["items"] else None

    async def write_execution(self, execution: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        """codeexecutions/status: patch. Refused with 409 if the object has changed since it was seen.

        Raises:
            ApiException: 409 the object has changed; 404 it is gone.
        """
        return CodeExecution.parse(await self._write_status(EXECUTION_PLURAL, execution, status))

    async def write_session(self, session: CodeSession, status: CodeSessionStatus) -> CodeSession:
        """codesessions/status: patch. Refused with 409 if the object has changed since it was seen.

        Raises:
            ApiException: 409 the object has changed; 404 it is gone.
        """
        return CodeSession.parse(await self._write_status(SESSION_PLURAL, session, status))

    async def write_pool(self, pool: SandboxPool, status: SandboxPoolStatus) -> SandboxPool:
        """sandboxpools/status: patch. Whatever has become of its spec meanwhile: nobody else writes this.

        Raises:
            ApiException: 404 it is gone.
        """
        return SandboxPool.parse(await self._write_status(POOL_PLURAL, pool, status, unless_changed=False))

    async def _write_status(
        self,
        plural: str,
        owner: CodeExecution | CodeSession | SandboxPool,
        status: CodeExecutionStatus | CodeSessionStatus | SandboxPoolStatus,
        *,
        unless_changed: bool = True,
    ) -> Any:
        meta, new = owner.metadata, status.dump()
        version = {"resourceVersion": meta.resource_version} if unless_changed else {}
        body = {"metadata": {"uid": meta.uid} | version, "status": _merge_patch(owner.status.dump(), new)}
        return await self._custom.patch_namespaced_custom_object_status(
            GROUP,
            VERSION,
            meta.namespace,
            plural,
            meta.name,
            body,
            _content_type=_MERGE_PATCH,
            _request_timeout=_ANSWER_SECONDS,
        )

    async def get_policy(self, namespace: str) -> Mapping[str, Any] | None:
        """executionpolicies: get."""
        policy: Mapping[str, Any] | None = await _found(
            self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, POLICY_PLURAL, POLICY_NAME)
        )
        return policy

    async def list_approvals(self, namespace: str, execution: str) -> list[Mapping[str, Any]]:
        """executionapprovals: list. Those that name this execution."""
        found: Any = await self._custom.list_namespaced_custom_object(
            GROUP,
            VERSION,
            namespace,
            APPROVAL_PLURAL,
            label_selector=f"{EXECUTION_LABEL}={execution}",
            _request_timeout=_ANSWER_SECONDS,
        )
        items: list[Mapping[str, Any]] = found["items"]
        return items

    async def publish_code(self, execution: CodeExecution, payload: Payload) -> None:
        """secrets: create. One of that name is the one that was asked for: admission lets nobody else make it."""
        meta = execution.metadata
        contents = {block_key(index): block for index, block in enumerate(payload.blocks)}
        contents |= {file_key(index): file for index, file in enumerate(payload.files)}
        secret: Any = {
            "metadata": _belonging(review_name(meta.name, meta.uid), execution),
            "type": PAYLOAD_SECRET_TYPE,
            "immutable": True,
            "data": {key: base64.b64encode(content).decode() for key, content in contents.items()},
        }
        try:
            await self._core.create_namespaced_secret(meta.namespace, secret, _request_timeout=_ANSWER_SECONDS)
        except ApiException as error:
            if error.status != 409 or "AlreadyExists" not in str(error.body):
                raise

    async def withdraw_code(self, execution: CodeExecution) -> None:
        """secrets: delete. One that is gone already is fine."""
        meta = execution.metadata
        await self._delete(self._core.delete_namespaced_secret, review_name(meta.name, meta.uid), meta.namespace, {})

    async def get_payload(self, namespace: str, name: str, parts: int) -> list[Mapping[str, Any] | None]:
        """secrets: get. One for each part, or None for one that isn't there. Only a few are read at the same time."""
        names = [payload_name(name, index) for index in range(parts)]
        async with self._reading_payloads:
            secrets = [await _found(self._core.read_namespaced_secret(one, namespace)) for one in names]
        return [self._plain(secret) if secret else None for secret in secrets]

    async def watch_payloads(self, namespace: str) -> AsyncGenerator[tuple[str, Mapping[str, Any], int], None]:
        """secrets: list, watch. What becomes of payload Secrets from now on, until the server ends the watch.

        Yields the kind of each change, the Secret, and how large it is as it came.

        Raises:
            ValueError: the server sent what is no event.
        """
        selector = f"type={PAYLOAD_SECRET_TYPE}"
        call = self._watched.list_namespaced_secret_without_preload_content
        listed = await call(namespace, limit=1, field_selector=selector, _headers={"Accept": _ONLY_METADATA})
        version = json.loads(await self._body(listed))["metadata"]["resourceVersion"]
        response: Any = await call(
            namespace,
            watch=True,
            resource_version=version,
            field_selector=selector,
            timeout_seconds=_WATCH_SECONDS,
            _request_timeout=_WATCH_SECONDS + _ANSWER_SECONDS,
        )
        try:
            if response.status != 200:
                await self._body(response)
            while line := await response.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiException(status=event["object"].get("code"), reason=event["object"].get("message"))
                yield event["type"], event["object"], len(line)
        finally:
            response.close()

    async def delete_payload(self, namespace: str, name: str, uid: str) -> None:
        """secrets: delete. Only the Secret with this UID; one that is gone already is fine."""
        await self._delete(self._core.delete_namespaced_secret, name, namespace, {"preconditions": {"uid": uid}})

    async def list_payloads(self, namespace: str) -> list[Mapping[str, Any]]:
        """secrets: list. The metadata of payload Secrets only: all that is in them would not fit into memory."""
        return await self._list_metadata(
            self._core.list_namespaced_secret_without_preload_content,
            namespace,
            field_selector=f"type={PAYLOAD_SECRET_TYPE}",
        )

    async def get_configuration(self, namespace: str, name: str) -> Mapping[str, str]:
        """configmaps: get. What the operator's own ConfigMap holds.

        Raises:
            ApiException: it isn't there, or the API server can't be used.
        """
        found = await self._core.read_namespaced_config_map(name, namespace, _request_timeout=_ANSWER_SECONDS)
        return found.data or {}

    async def get_keys(self, namespace: str, name: str) -> tuple[str, str]:
        """secrets: get. What the operator's own Secret holds, and its resource version.

        Raises:
            ApiException: it isn't there.
        """
        secret = self._plain(await self._core.read_namespaced_secret(name, namespace))
        held = (secret.get("data") or {}).get(_KEYS, "")
        return base64.b64decode(held).decode(), secret["metadata"]["resourceVersion"]

    async def write_keys(self, namespace: str, name: str, keys: str, version: str) -> None:
        """secrets: patch.

        Raises:
            ApiException: 409 it has changed since it was read.
        """
        body: Any = {"metadata": {"resourceVersion": version}, "stringData": {_KEYS: keys}}
        await self._core.patch_namespaced_secret(name, namespace, body, _content_type=_MERGE_PATCH)

    async def publish_key(self, namespace: str, data: Mapping[str, str]) -> None:
        """configmaps: patch.

        Raises:
            ApiException: it isn't there.
        """
        body: Any = {"data": dict(data)}
        await self._core.patch_namespaced_config_map(SEALING_KEY, namespace, body, _content_type=_MERGE_PATCH)

    async def create_output(self, execution: CodeExecution, part: OutputPart, expires_at: datetime) -> Fault | None:
        """configmaps: create. A fault is a refusal for good; one of that name is the one that was asked for."""
        meta = execution.metadata
        body = {
            "metadata": _belonging(output_name(meta.name, meta.uid, part.index), execution)
            | {"annotations": {EXPIRES_ANNOTATION: expires_at.isoformat()}},
            "immutable": True,
            "binaryData": {key: base64.b64encode(data).decode() for key, data in part.contents.items()},
        }
        try:
            await self._core.create_namespaced_config_map(meta.namespace, body)  # type: ignore[arg-type]
        except ApiException as error:
            if error.status == 409 and "AlreadyExists" in str(error.body):
                return None
            if error.status in (400, 403, 413, 422) and not _new_quota(error):
                return Fault(Reason.QUOTA_EXCEEDED, _message(error))
            raise
        return None

    async def get_lease(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """leases: get. The spec of a Lease; None if there is none of this name."""
        lease = await _found(self._leases.read_namespaced_lease(name, namespace, _request_timeout=_ANSWER_SECONDS))
        return self._plain(lease.spec) if lease else None

    async def get_leadership(self, namespace: str, name: str) -> LeaseRecord | None:
        """leases: get. The Lease that the leading replica holds; None if there is none yet."""
        lease = await _found(self._leases.read_namespaced_lease(name, namespace))
        return LeaseRecord.parse(self._plain(lease)) if lease else None

    async def write_leadership(self, namespace: str, name: str, record: LeaseRecord) -> LeaseRecord:
        """leases: create, patch. Returns the Lease as it is stored.

        Raises:
            ApiException: 409 it has changed since it was read, or another was created; 404 it is gone.
        """
        body: Any = record.dump()
        if record.version:
            lease = await self._leases.patch_namespaced_lease(name, namespace, body, _content_type=_MERGE_PATCH)
        else:
            body["metadata"]["name"] = name
            lease = await self._leases.create_namespaced_lease(namespace, body)
        return LeaseRecord.parse(self._plain(lease))

    async def get_service_targets(self, namespace: str, name: str) -> list[tuple[str, int]]:
        """services: get. Address and port of a Service, in each of its address families.

        Raises:
            ApiException: it isn't there.
        """
        spec = self._plain(await self._core.read_namespaced_service(name, namespace, _request_timeout=_ANSWER_SECONDS))
        addresses = spec["spec"].get("clusterIPs") or ()
        return [(address, one["port"]) for address in addresses for one in spec["spec"]["ports"]]

    async def list_leases(self, namespace: str) -> list[Mapping[str, Any]]:
        """leases: list. Those of the namespace."""
        pages = _pages(self._leases.list_namespaced_lease, namespace, limit=_METADATA, _request_timeout=_ANSWER_SECONDS)
        return [self._plain(lease) async for page in pages for lease in page.items]

    async def delete_lease(self, namespace: str, name: str, uid: str) -> None:
        """leases: delete. Only the Lease with this UID; one that is gone already is fine."""
        await self._delete(self._leases.delete_namespaced_lease, name, namespace, {"preconditions": {"uid": uid}})

    async def list_outputs(self, namespace: str) -> list[Mapping[str, Any]]:
        """configmaps: list. The metadata of those that hold output."""
        return await self._list_metadata(
            self._core.list_namespaced_config_map_without_preload_content,
            namespace,
            label_selector=f"{MANAGED_BY_LABEL}={MANAGED_BY},{EXECUTION_LABEL}",
        )

    async def delete_output(self, namespace: str, name: str, uid: str) -> None:
        """configmaps: delete. Only the ConfigMap with this UID; one that is gone already is fine."""
        await self._delete(self._core.delete_namespaced_config_map, name, namespace, {"preconditions": {"uid": uid}})

    @staticmethod
    async def _list_metadata(call: Callable[..., Awaitable[Any]], *where: str, **selector: str | None) -> list[Any]:
        items: list[Any] = []
        token: str | None = None
        while token != "":
            response = await call(
                *where,
                limit=_METADATA,
                _continue=token,
                _headers={"Accept": _ONLY_METADATA},
                _request_timeout=_ANSWER_SECONDS,
                **selector,
            )
            page = json.loads(await Cluster._body(response))
            items += page["items"] or ()  # null where there is none
            token = page["metadata"].get("continue", "")
        return items

    @staticmethod
    async def _body(response: Any) -> bytes:
        body: bytes = await response.read()
        if response.status != 200:
            raise ApiException(status=response.status, reason=body.decode(errors="replace"))
        return body

    async def create_pod(self, pod: Any) -> Fault | None:
        """pods: create. A fault is a refusal for good; a pod of that name is the one that was asked for.

        Pod names contain the start of the execution's UID, and only the operator may create pods.
        """
        try:
            await self._core.create_namespaced_pod(pod["metadata"]["namespace"], pod, _request_timeout=_ANSWER_SECONDS)
        except ApiException as error:
            if error.status == 409 and "AlreadyExists" in str(error.body):
                return None  # any other conflict is a race for the quota, which is worth another try
            if error.status in (400, 403, 422) and not _new_quota(error):
                return _refusal(error)
            raise
        return None

    async def create_network_policy(self, policy: Any) -> Fault | None:
        """networkpolicies: create. A fault is a refusal for good; one of that name is the one that was asked for."""
        namespace = policy["metadata"]["namespace"]
        try:
            await self._networking.create_namespaced_network_policy(namespace, policy, _request_timeout=_ANSWER_SECONDS)
        except ApiException as error:
            if error.status == 409 and "AlreadyExists" in str(error.body):
                return None
            if error.status in (400, 403, 422) and not _new_quota(error):
                message = f"the API server refused the NetworkPolicy that spec.egress needs: {_message(error)}"
                return Fault(Reason.EGRESS_NOT_ENFORCED, message)
            raise
        return None

    async def delete_network_policy(self, namespace: str, name: str, uid: str | None = None) -> None:
        """networkpolicies: delete. Only the one with this UID, if one is given; one that is gone already is fine."""
        options = {"preconditions": {"uid": uid}} if uid else {}
        await self._delete(self._networking.delete_namespaced_network_policy, name, namespace, options)

    async def list_network_policies(self, namespace: str) -> list[Mapping[str, Any]]:
        """networkpolicies: list. The metadata of those of executions."""
        return await self._list_metadata(
            self._networking.list_namespaced_network_policy_without_preload_content,
            namespace,
            label_selector=f"{MANAGED_BY_LABEL}={MANAGED_BY},{EXECUTION_LABEL}",
        )

    async def list_unfinished(self, namespace: str) -> list[Mapping[str, Any]]:
        """codeexecutions, codesessions, sandboxpools: list. The metadata of all that isn't over."""
        call = self._custom.list_namespaced_custom_object_without_preload_content
        lists = [
            self._list_metadata(call, GROUP, VERSION, namespace, plural, field_selector=UNFINISHED.get(plural))
            for plural in (EXECUTION_PLURAL, SESSION_PLURAL, POOL_PLURAL)
        ]
        return [one for found in await asyncio.gather(*lists) for one in found]

    async def list_pod_names(self, namespace: str) -> set[str]:
        """pods: list. Names of all that are there."""
        call = self._core.list_namespaced_pod_without_preload_content
        return {one["metadata"]["name"] for one in await self._list_metadata(call, namespace)}

    async def list_pods(self, namespace: str, labels: str = "", fields: str = "") -> list[Mapping[str, Any]]:
        """pods: list. Those that these selectors select."""
        selectors = {"label_selector": labels, "field_selector": fields}
        pages = _pages(self._core.list_namespaced_pod, namespace, **selectors, limit=_PODS)
        return [self._plain(pod) async for page in pages for pod in page.items]

    async def patch_pod(self, namespace: str, name: str, patch: Any) -> None:
        """pods: patch. One that is gone is fine."""
        await _found(
            self._core.patch_namespaced_pod(
                name,
                namespace,
                patch,
                _content_type=_MERGE_PATCH,
                _request_timeout=_ANSWER_SECONDS,
            )
        )

    async def delete_pod(self, namespace: str, name: str) -> None:
        """pods: delete. At once, without a grace period; one that is gone already is fine."""
        await self._delete(self._core.delete_namespaced_pod, name, namespace, {"gracePeriodSeconds": 0})

    @asynccontextmanager
    async def attach(self, namespace: str, pod: str) -> AsyncIterator[RunnerLink]:
        """pods/attach: get (a websocket is opened by GET)."""
        opening: Any = await self._attach.connect_get_namespaced_pod_attach_without_preload_content(
            pod, namespace, container=SANDBOX_CONTAINER, stdin=True, stdout=True, stderr=False, tty=False
        )
        async with opening as socket:
            yield RunnerLink(socket)

    async def list_nodes(self) -> list[NodeView]:
        """nodes: list."""
        pages = _pages(self._core.list_node, limit=_NODES)
        return [parse_node(self._plain(node)) async for page in pages for node in page.items]

    async def list_api_servers(self) -> frozenset[str]:
        """endpointslices: list, in the namespace `default`. Addresses of the API server, besides its Service's."""
        selector = "kubernetes.io/service-name=kubernetes"
        listed = await self._discovery.list_namespaced_endpoint_slice(
            "default", label_selector=selector, _request_timeout=_ANSWER_SECONDS
        )
        return parse_endpoints(self._plain(listed)["items"])

    async def list_runtime_handlers(self) -> dict[str, str]:
        """runtimeclasses: list. Name of each RuntimeClass to the handler that it stands for."""
        classes = self._plain(await self._nodes.list_runtime_class())
        return {one["metadata"]["name"]: one["handler"] for one in classes["items"]}

    async def create_event(self, event: Any) -> None:
        """On events of events.k8s.io: create.

        Raises:
            ApiException: it was refused.
        """
        namespace = event["metadata"]["namespace"]
        await self._events.create_namespaced_event(namespace, event, _request_timeout=_ANSWER_SECONDS)

    async def ready(self, namespace: str) -> None:
        """codeexecutions: list. Raises what the API server answers if the operator could not work there."""
        call = self._custom.list_namespaced_custom_object_without_preload_content
        where = (GROUP, VERSION, namespace, EXECUTION_PLURAL)
        listed = await call(*where, limit=1, _headers={"Accept": _ONLY_METADATA}, _request_timeout=_ANSWER_SECONDS)
        await self._body(listed)

    def _plain(self, model: Any) -> Mapping[str, Any]:
        plain: Mapping[str, Any] = self._api.sanitize_for_serialization(model)
        return plain

    @staticmethod
    async def _delete(call: Any, name: str, namespace: str, options: Mapping[str, Any]) -> None:
        if not name:
            raise ValueError("without a name this would delete all of them")
        try:
            await call(name, namespace, body=options, _request_timeout=_ANSWER_SECONDS)
        except ApiException as error:
            if error.status not in (404, 409):  # 409: the UID is another object's
                raise


def _belonging(name: str, execution: CodeExecution) -> dict[str, Any]:
    """Metadata of what goes with the record of an execution, at the latest."""
    meta = execution.metadata
    return {
        "name": name,
        "labels": {MANAGED_BY_LABEL: MANAGED_BY, EXECUTION_LABEL: meta.name},
        "ownerReferences": [{"apiVersion": API_VERSION, "kind": EXECUTION_KIND, "name": meta.name, "uid": meta.uid}],
    }


def _merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What makes new of old, by RFC 7396: what is no longer so has to be taken back by name, else a merge leaves it."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch[key] = _merge_patch(before, value)
        else:
            patch[key] = value
    return patch


async def _pages(call: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:
    """A list, one page after the other."""
    token: str | None = None
    while token != "":
        page = await call(*arguments, _continue=token, **options)
        yield page
        token = (page.metadata and page.metadata.var_continue) or ""


async def _found(request: Awaitable[Any]) -> Any:
    """What was asked for, or None if it isn't there."""
    try:
        return await request
    except ApiException as error:
        if error.status == 404:
            return None
        raise


def _refusal(error: ApiException) -> Fault:
    message = _message(error)
    if "exceeded quota" in message:
        hint = "the ResourceQuota of the namespace is used up: wait until other executions end, or raise the quota"
        return Fault(Reason.QUOTA_EXCEEDED, f"{hint}. {message}")
    if "RuntimeClass" in message and "not found" in message:
        hint = (
            "the cluster has no such RuntimeClass: choose another one in spec.runtimeClassName or in the policy, or "
            "install it"
        )
        return Fault(Reason.RUNTIME_CLASS_NOT_FOUND, f"{hint}. {message}")
    return Fault(Reason.POD_REFUSED, f"the API server refused the pod: {message}")


def _new_quota(error: ApiException) -> bool:
    """True if Kubernetes hasn't counted yet what there is; it is worth another try."""
    return "status unknown for quota" in str(error.body)


def _message(error: ApiException) -> str:
    """What the API server says: the message of its Status object."""
    body = str(error.body or error.reason)
    try:
        status = json.loads(body)
    except ValueError:
        return body
    return str(status.get("message") or body) if isinstance(status, dict) else body
