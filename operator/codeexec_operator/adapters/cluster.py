"""The one doorway to the API server. Each method names the RBAC verb that it needs; the chart's Role is their union.

What concerns the kinds of codeexec.dev is in `records`, Secrets and ConfigMaps are in `contents`. How a request is made
is in `api_server`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final

import aiohttp

from codeexec_api import Reason
from codeexec_api.names import (
    API_VERSION,
    EXECUTION_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    POOL_LABEL,
    SANDBOX_CONTAINER,
    SESSION_LABEL,
)
from codeexec_api.scheduling import Scheduling
from codeexec_operator.adapters.api_server import (
    ONLY_ITS_METADATA,
    ONLY_METADATA,
    ApiServer,
    Resource,
    create,
    delete,
    found,
)
from codeexec_operator.adapters.contents import Contents
from codeexec_operator.adapters.records import Records
from codeexec_operator.core.cluster_view import (
    NodeView,
    RuntimeClass,
    parse_endpoints,
    parse_node,
    parse_runtime_class,
)
from codeexec_operator.core.leadership import LeaseRecord
from codeexec_operator.core.observed_pod import Fault

_PODS: Final = Resource("api/v1", "pods")
_NODES: Final = Resource("api/v1", "nodes")
_LEASES: Final = Resource("apis/coordination.k8s.io/v1", "leases")
_NETWORK_POLICIES: Final = Resource("apis/networking.k8s.io/v1", "networkpolicies")
_ENDPOINT_SLICES: Final = Resource("apis/discovery.k8s.io/v1", "endpointslices")
_RUNTIME_CLASSES: Final = Resource("apis/node.k8s.io/v1", "runtimeclasses")
_SERVICES: Final = Resource("api/v1", "services")
_EVENTS: Final = Resource("apis/events.k8s.io/v1", "events")
_NODES_AT_A_TIME: Final = 10
"""They are large."""
_AT_A_TIME: Final = 100
"""Objects of other kinds that are listed at a time."""
_STDIN: Final = b"\x00"
_STDOUT: Final = 1
_CHUNK: Final = 64 * 1024
_PING_SECONDS: Final = 30
"""After so much silence the far end is pinged; half of that later it counts as dead."""
_ENDS: Final = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)


def _is_ours(pod: Mapping[str, Any]) -> bool:
    return any(one["apiVersion"] == API_VERSION for one in pod["metadata"].get("ownerReferences") or ())


class RunnerLink:
    """Messages out, bytes in. The protocol is Kubernetes' `v4.channel.k8s.io`: one byte of channel, then data."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one line of JSON to the runner."""
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        for start in range(0, len(line), _CHUNK):
            await self._socket.send_bytes(_STDIN + line[start : start + _CHUNK])

    async def end_line(self) -> None:
        """End a line that somebody else may have begun. The runner ignores empty ones."""
        await self._socket.send_bytes(_STDIN + b"\n")

    async def received(self) -> AsyncIterator[bytes]:
        """What the runner writes, in pieces of any size, until the connection ends.

        If the far end is gone without a word, that is an end, too. Only while somebody reads is it silence that
        nothing comes: whoever takes long over a piece finds the rest as it was.
        """
        while (message := await self._next()) and message.type not in _ENDS:
            if message.type is aiohttp.WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is aiohttp.WSMsgType.BINARY and message.data and message.data[0] == _STDOUT:
                yield message.data[1:]

    async def _next(self) -> aiohttp.WSMessage | None:
        """What comes next; None if the far end doesn't even answer a ping."""
        with suppress(TimeoutError):
            return await self._socket.receive(_PING_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PING_SECONDS / 2):
                await self._socket.ping()
                return await self._socket.receive()
        return None


class Cluster(Records, Contents):
    """Requests to the API server, with the operator's own service account."""

    def __init__(self, api: ApiServer) -> None:
        Records.__init__(self, api)
        Contents.__init__(self, api)

    @classmethod
    async def connect(cls) -> "Cluster":
        """With the service account of the pod; outside a cluster, with the kubeconfig.

        Raises:
            kubernetes.aio.config.ConfigException: there is neither.
        """
        return cls(await ApiServer.connect())

    @property
    def date(self) -> datetime:
        """The time by the API server's clock, in whole seconds, as its last answer told it."""
        return self._api.date

    def ask_first(self, may_send: Callable[[], object]) -> None:
        """From now on call this before each request; it must not return if the request may not be sent."""
        self._api.may_send = may_send

    def measure_writes(self, patched: Callable[[float], object]) -> None:
        """From now on tell how many seconds each PATCH took."""
        self._api.patched = patched

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def create_pod(self, pod: Any) -> Fault | None:
        """pods: create. A fault is a refusal for good; a pod of that name is the one that was asked for.

        Pod names contain the start of the execution's UID. A pod of somebody else of that name has no owner of ours, so
        no code gets there (admission-pods.yaml).
        """
        return await create(self._api, _PODS.path(pod["metadata"]["namespace"]), pod, _pod_refused)

    async def list_pods(self, namespace: str, labels: str = "") -> list[Mapping[str, Any]]:
        """pods: list. Those that this selector selects."""
        return await self._api.list(_PODS.path(namespace), _AT_A_TIME, query={"labelSelector": labels})

    async def find_pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """pods: list. The pod of this name, if it is there; the operator has no right to get one.

        A pod that belongs to no object of ours is somebody else's, who has taken the name: it is none.
        """
        found = await self._api.named(_PODS.path(namespace), name)
        return found if found and _is_ours(found) else None

    async def list_pod_metadata(self, namespace: str) -> list[Mapping[str, Any]]:
        """pods: list. The metadata of all that are there, with whose they are."""
        also = (EXECUTION_LABEL, SESSION_LABEL, POOL_LABEL, "ownerReferences")
        return [pod["metadata"] for pod in await self._api.metadata(_PODS.path(namespace), also=also)]

    async def patch_pod(self, namespace: str, name: str, patch: Any) -> None:
        """pods: patch. A pod that is gone is fine."""
        await found(self._api.request("PATCH", _PODS.path(namespace, name), patch, accept=ONLY_ITS_METADATA))

    async def delete_pod(self, namespace: str, name: str) -> bool:
        """pods: delete. At once, without a grace period. False if the pod was gone already."""
        return await delete(self._api, _PODS, namespace, name, grace=0)

    @asynccontextmanager
    async def attach(self, namespace: str, pod: str) -> AsyncIterator[RunnerLink]:
        """pods/attach: get (a websocket is opened by GET)."""
        query = {"container": SANDBOX_CONTAINER, "stdin": "true", "stdout": "true", "stderr": "false", "tty": "false"}
        async with self._api.attach(_PODS.path(namespace, pod, "attach"), query) as websocket:
            yield RunnerLink(websocket)

    async def create_network_policy(self, policy: Any) -> Fault | None:
        """networkpolicies: create. A fault is a refusal for good; one of that name is the one that was asked for."""
        path = _NETWORK_POLICIES.path(policy["metadata"]["namespace"])
        return await create(self._api, path, policy, _network_policy_refused)

    async def delete_network_policy(self, namespace: str, name: str, uid: str = "") -> None:
        """networkpolicies: delete. Only that with this UID, if one is given; one that is gone already is fine."""
        await delete(self._api, _NETWORK_POLICIES, namespace, name, uid=uid)

    async def list_network_policies(self, namespace: str) -> list[Mapping[str, Any]]:
        """networkpolicies: list. The metadata of those of executions, with whose they are."""
        query = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY},{EXECUTION_LABEL}"}
        also = (EXECUTION_LABEL, "ownerReferences")
        return await self._api.metadata(_NETWORK_POLICIES.path(namespace), query, also=also)

    async def get_leadership(self, namespace: str, name: str) -> LeaseRecord | None:
        """leases: get. The Lease of the leading replica; None if there is none yet. Waits for no other request."""
        lease = await found(self._api.request("GET", _LEASES.path(namespace, name), at_once=True))
        return LeaseRecord.parse(lease) if lease else None

    async def write_leadership(self, namespace: str, name: str, record: LeaseRecord) -> LeaseRecord:
        """leases: create, patch. Returns the Lease as it is stored. Waits for no other request.

        Raises:
            ApiException: 409 it has changed since it was read, or another was created; 404 it is gone.
        """
        body = record.dump()
        if record.version:
            path = _LEASES.path(namespace, name)
            return LeaseRecord.parse(await self._api.request("PATCH", path, body, at_once=True))
        body["metadata"]["name"] = name
        return LeaseRecord.parse(await self._api.request("POST", _LEASES.path(namespace), body, at_once=True))

    async def get_service_targets(self, namespace: str, name: str) -> list[tuple[str, int]]:
        """services: get. Address and port of a Service, in each of its address families.

        Raises:
            ApiException: it isn't there.
        """
        spec = (await self._api.request("GET", _SERVICES.path(namespace, name)))["spec"]
        return [(address, port["port"]) for address in spec.get("clusterIPs") or () for port in spec["ports"]]

    async def get_lease(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """leases: get. The spec of a Lease; None if there is none of this name."""
        lease = await found(self._api.request("GET", _LEASES.path(namespace, name)))
        return (lease.get("spec") or {}) if lease else None

    def list_leases(self, namespace: str) -> AsyncGenerator[Any, None]:
        """leases: list. The metadata of those of the namespace, page by page."""
        return self._api.pages(_LEASES.path(namespace), _AT_A_TIME, accept=ONLY_METADATA)

    async def delete_lease(self, namespace: str, name: str, uid: str) -> None:
        """leases: delete. Only the Lease with this UID; a Lease that is gone already is fine."""
        await delete(self._api, _LEASES, namespace, name, uid=uid)

    async def list_nodes(self, schedulings: Collection[Scheduling]) -> list[NodeView]:
        """nodes: list. For pods of which each has one of these schedulings."""
        pages = self._api.pages(_NODES.path(), _NODES_AT_A_TIME)
        return [parse_node(node, schedulings) async for page in pages for node in page["items"] or ()]

    async def list_runtime_classes(self) -> dict[str, RuntimeClass]:
        """runtimeclasses: list. By name."""
        classes = await self._api.list(_RUNTIME_CLASSES.path(), _AT_A_TIME)
        return {each["metadata"]["name"]: parse_runtime_class(each) for each in classes}

    async def list_api_servers(self) -> frozenset[str]:
        """endpointslices: list, in the namespace `default`. Addresses of the API server, besides its Service's."""
        query = {"labelSelector": "kubernetes.io/service-name=kubernetes"}
        return parse_endpoints(await self._api.list(_ENDPOINT_SLICES.path("default"), _AT_A_TIME, query=query))

    async def create_event(self, event: Any) -> None:
        """On events of events.k8s.io: create.

        Raises:
            ApiException: it was refused.
        """
        path = _EVENTS.path(event["metadata"]["namespace"])
        await self._api.request("POST", path, event, accept=ONLY_ITS_METADATA)


def _pod_refused(message: str) -> Fault:
    if "exceeded quota" in message:
        hint = "the ResourceQuota of the namespace is used up: wait until other executions end, or raise the quota"
        return Fault(Reason.QUOTA_EXCEEDED, f"{hint}. {message}")
    if "RuntimeClass" in message and "not found" in message:
        hint = (
            "the cluster has no such RuntimeClass: choose another one in spec.runtimeClassName or in the policy, or "
            "install it"
        )
        return Fault(Reason.RUNTIME_CLASS_NOT_FOUND, f"{hint}. {message}")
    admission = "ValidatingAdmissionPolicy 'codeexec-" in message
    return Fault(Reason.POD_REFUSED, f"the API server refused the pod: {message}", admission)


def _network_policy_refused(message: str) -> Fault:
    return Fault(
        Reason.EGRESS_NOT_ENFORCED, f"the API server refused the NetworkPolicy that spec.egress needs: {message}"
    )
