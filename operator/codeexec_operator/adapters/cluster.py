"""The one doorway to the API server: every request that the operator makes itself is in this file.

(kopf's own requests are lists and watches of CodeExecutions and pods.) Each method names the RBAC
verb that it needs; the chart's Role is their union.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from kubernetes.aio import client, config, stream
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeExecutionStatus, Reason
from codeexec_api.names import (
    EXECUTION_PLURAL,
    GROUP,
    PAYLOAD_SECRET_TYPE,
    POLICY_NAME,
    POLICY_PLURAL,
    SANDBOX_CONTAINER,
    VERSION,
)
from codeexec_operator.adapters.runner_link import RunnerLink
from codeexec_operator.core.observed import Fault
from codeexec_operator.core.surroundings import NodeView, parse_node

_PAGE: Final = 10
"""Payloads that are listed at a time, each of up to 1 MB; and nodes, which are large, too."""


class Cluster:
    """Requests to the API server, with the operator's own service account."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._api = client.ApiClient(configuration)
        self._sockets = stream.WsApiClient(configuration)
        self._core = client.CoreV1Api(self._api)
        self._nodes = client.NodeV1Api(self._api)
        self._custom = client.CustomObjectsApi(self._api)
        self._attach = client.CoreV1Api(self._sockets)

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

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()
        await self._sockets.close()

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        """codeexecutions: get."""
        raw = await _found(self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, EXECUTION_PLURAL, name))
        return CodeExecution.parse(raw) if raw else None

    async def write_status(self, execution: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        """codeexecutions/status: patch. Refused with 409 if the object has changed since it was seen.

        Raises:
            ApiException: 409 the object has changed; 404 it is gone.
        """
        meta = execution.metadata
        body = {
            "metadata": {"resourceVersion": meta.resource_version, "uid": meta.uid},
            "status": status.dump(),
        }
        raw: Any = await self._custom.patch_namespaced_custom_object_status(
            GROUP,
            VERSION,
            meta.namespace,
            EXECUTION_PLURAL,
            meta.name,
            body,
            _content_type="application/merge-patch+json",
        )
        return CodeExecution.parse(raw)

    async def get_policy(self, namespace: str) -> Mapping[str, Any] | None:
        """executionpolicies: get."""
        policy: Mapping[str, Any] | None = await _found(
            self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, POLICY_PLURAL, POLICY_NAME)
        )
        return policy

    async def get_payload(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """secrets: get."""
        secret = await _found(self._core.read_namespaced_secret(name, namespace))
        return self._plain(secret) if secret else None

    async def delete_payload(self, namespace: str, name: str, uid: str) -> None:
        """secrets: delete. Only the Secret with this UID; one that is gone already is fine."""
        await self._delete(self._core.delete_namespaced_secret, name, namespace, {"preconditions": {"uid": uid}})

    async def list_payloads(self, namespace: str) -> list[Mapping[str, Any]]:
        """secrets: list. Payload Secrets only, without what is in them: all of them would not fit into memory."""
        payloads: list[Mapping[str, Any]] = []
        token: str | None = None
        while token != "":
            page = await self._core.list_namespaced_secret(
                namespace, field_selector=f"type={PAYLOAD_SECRET_TYPE}", limit=_PAGE, _continue=token
            )
            for secret in page.items:
                secret.data = None
                payloads.append(self._plain(secret))
            token = (page.metadata and page.metadata.var_continue) or ""
        return payloads

    async def create_pod(self, manifest: Any) -> Fault | None:
        """pods: create. A fault is a refusal for good; a pod of that name is the one that was asked for.

        Pod names contain the start of the execution's UID, and only the operator may create pods.
        """
        try:
            await self._core.create_namespaced_pod(manifest["metadata"]["namespace"], manifest)
        except ApiException as error:
            if error.status == 409 and "AlreadyExists" in str(error.body):
                return None  # any other conflict is a race for the quota, which is worth another try
            new_quota = "status unknown for quota" in str(error.body)  # Kubernetes hasn't counted yet
            if error.status in (400, 403, 422) and not new_quota:
                return _refusal(error)
            raise
        return None

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
        nodes: list[NodeView] = []
        token: str | None = None
        while token != "":
            page = await self._core.list_node(limit=_PAGE, _continue=token)
            nodes += [parse_node(self._plain(node)) for node in page.items]
            token = (page.metadata and page.metadata.var_continue) or ""
        return nodes

    async def list_runtime_handlers(self) -> dict[str, str]:
        """runtimeclasses: list. Name of each RuntimeClass to the handler that it stands for."""
        classes = self._plain(await self._nodes.list_runtime_class())
        return {one["metadata"]["name"]: one["handler"] for one in classes["items"]}

    async def ready(self, namespace: str) -> None:
        """codeexecutions: list. Raises what the API server answers if the operator could not work."""
        await self._custom.list_namespaced_custom_object(GROUP, VERSION, namespace, EXECUTION_PLURAL, limit=1)

    def _plain(self, model: Any) -> Mapping[str, Any]:
        plain: Mapping[str, Any] = self._api.sanitize_for_serialization(model)
        return plain

    @staticmethod
    async def _delete(call: Any, name: str, namespace: str, options: Mapping[str, Any]) -> None:
        if not name:
            raise ValueError("without a name this would delete all of them")
        try:
            await call(name, namespace, body=options)
        except ApiException as error:
            if error.status not in (404, 409):  # 409: the UID is another object's
                raise


async def _found(request: Awaitable[Any]) -> Any:
    """What was asked for, or None if it isn't there."""
    try:
        return await request
    except ApiException as error:
        if error.status == 404:
            return None
        raise


def _refusal(error: ApiException) -> Fault:
    message = str(error.body or error.reason)
    if "exceeded quota" in message:
        hint = "the ResourceQuota of the namespace is used up: wait until other executions end, or raise it"
        return Fault(Reason.QUOTA_EXCEEDED, f"{hint}. {message}")
    if "RuntimeClass" in message and "not found" in message:
        hint = (
            "the cluster has no such RuntimeClass: ask for another one in spec.runtimeClassName or in the policy, or "
            "have it installed"
        )
        return Fault(Reason.RUNTIME_CLASS_NOT_FOUND, f"{hint}. {message}")
    return Fault(Reason.POD_REFUSED, f"the API server refused the pod: {message}")
