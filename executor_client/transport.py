"""The one doorway of the client to the API server.

Every error of the API server or of the network leaves here as one of `exceptions`, with what to do about it.
"""

import asyncio
import base64
import json
import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from kubernetes.aio import client, config, watch
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeExecutionSpec, execution_manifest
from codeexec_api.names import (
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    GROUP,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    PAYLOAD_SECRET_TYPE,
    VERSION,
)
from executor_client.exceptions import (
    ClusterUnreachable,
    CodeExecError,
    InvalidExecution,
    NotInstalled,
    NotPermitted,
)

_REQUEST_SECONDS: Final = 15
_WATCH_SECONDS: Final = 240
_RECONNECT_SECONDS: Final = 0.5
_OUTAGE_SECONDS: Final = 30
"""How long the API server may be away while an execution is waited for."""
_TOKEN_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class Transport:
    """A connection to one cluster, for one event loop."""

    def __init__(self, configuration: client.Configuration, namespace: str) -> None:
        self.namespace = namespace
        self._host = configuration.host
        self._api = client.ApiClient(configuration)
        self._core = client.CoreV1Api(self._api)
        self._custom = client.CustomObjectsApi(self._api)

    @classmethod
    async def connect(cls, *, kubeconfig: str | None, context: str | None, namespace: str) -> "Transport":
        """With the kubeconfig that is named; else with the pod's service account; else with the user's kubeconfig.

        Raises:
            ClusterUnreachable: there is no configuration, or it can't be read.
        """
        configuration = client.Configuration()
        in_cluster = "KUBERNETES_SERVICE_HOST" in os.environ and _TOKEN_FILE.exists()
        try:
            if kubeconfig is None and context is None and in_cluster:
                config.load_incluster_config(client_configuration=configuration)
            else:
                await config.load_kube_config(kubeconfig, context, client_configuration=configuration)
        except (config.ConfigException, OSError, yaml.YAMLError) as error:
            where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
            raise ClusterUnreachable(
                f"no usable kubeconfig at {where} (context: {context or 'current'}): {error}; "
                "pass kubeconfig= or context=, or set KUBECONFIG"
            ) from error
        return cls(configuration, namespace)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

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
        """Create the payload Secret and the CodeExecution, at the same time.

        Args:
            name: of both objects.
            spec: announces what is in the payload.
            payload: content of each block and file by its key in the Secret.

        Raises:
            CodeExecError: see `exceptions`; nothing is run then.
        """
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": PAYLOAD_SECRET_TYPE,
            "immutable": True,
            "metadata": {
                "name": name,
                "labels": {EXECUTION_LABEL: name, MANAGED_BY_LABEL: MANAGED_BY},
            },
            "data": {key: base64.b64encode(content).decode() for key, content in payload.items()},
        }
        results = await asyncio.gather(
            self._create_secret(secret), self._create_execution(name, spec), return_exceptions=True
        )
        secret_error, execution = results
        if isinstance(execution, BaseException):
            raise execution
        if isinstance(secret_error, BaseException):
            # The operator would deny it anyway; what the caller has to hear of is the first error.
            with suppress(CodeExecError):
                await self.cancel(name)
            raise secret_error
        return execution

    async def _create_secret(self, secret: Any) -> None:
        with self._errors("create the payload Secret"):
            await self._core.create_namespaced_secret(self.namespace, secret, _request_timeout=_REQUEST_SECONDS)

    async def _create_execution(self, name: str, spec: CodeExecutionSpec) -> CodeExecution:
        manifest = execution_manifest(name=name, namespace=self.namespace, spec=spec)
        with self._errors("create the CodeExecution"):
            raw: Any = await self._custom.create_namespaced_custom_object(
                GROUP, VERSION, self.namespace, EXECUTION_PLURAL, manifest, _request_timeout=_REQUEST_SECONDS
            )
        return CodeExecution.parse(raw)

    async def cancel(self, name: str) -> None:
        """Ask the operator to stop an execution.

        Raises:
            CodeExecError: see `exceptions`.
        """
        with self._errors("cancel the CodeExecution"):
            await self._custom.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                EXECUTION_PLURAL,
                name,
                {"spec": {"cancelled": True}},
                _content_type="application/merge-patch+json",
                _request_timeout=_REQUEST_SECONDS,
            )

    async def changes(self, execution: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        """Each version of the object from now on, until it is deleted. Lost watches are resumed, for a while.

        Raises:
            CodeExecError: see `exceptions`.
        """
        version: str | None = execution.metadata.resource_version
        clock = asyncio.get_running_loop().time
        lost_at = clock()
        while True:
            opened_at = clock()
            try:
                async with aclosing(self._watch_once(execution.metadata.name, version)) as events:
                    async for kind, current in events:
                        version = current.metadata.resource_version
                        yield current
                        if kind == "DELETED":
                            return
            except ApiException as error:
                if error.status != 410:
                    raise self._translate("watch the CodeExecution", error) from error
                version = None  # too old for the API server: start from the current state
            except ClusterUnreachable:
                if clock() - opened_at > _REQUEST_SECONDS:  # it was open for a while, so this is another outage
                    lost_at = clock()
                if clock() - lost_at > _OUTAGE_SECONDS:
                    raise
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _watch_once(self, name: str, version: str | None) -> AsyncGenerator[tuple[str, CodeExecution], None]:
        """One watch, until the server ends it. When the caller has seen enough, its connection is dropped at once."""
        stream = watch.Watch().stream(
            self._custom.list_namespaced_custom_object,
            GROUP,
            VERSION,
            self.namespace,
            EXECUTION_PLURAL,
            field_selector=f"metadata.name={name}",
            timeout_seconds=_WATCH_SECONDS,
            **({"resource_version": version} if version else {}),
        )
        with self._network_errors("watch the CodeExecution"):
            async with stream as events:
                try:
                    async for event in events:
                        yield event["type"], CodeExecution.parse(event["raw_object"])
                finally:
                    if events.resp and events.resp.connection:  # an orderly end of TLS would outlive the event loop
                        events.resp.connection.transport.abort()

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
                f"({type(error).__name__}: {error}); does the cluster run, are kubeconfig and context right?"
            ) from error

    def _translate(self, doing: str, error: ApiException) -> CodeExecError:
        body = str(error.body or error.reason)
        text = f"could not {doing} in namespace {self.namespace!r}: {error.status} {_message(body)}"
        if error.status == 401:
            return NotPermitted(f"{text}; the credentials in the kubeconfig are not valid (any more)")
        if error.status == 403 and "status unknown for quota" in body:
            return NotPermitted(f"{text}; the namespace or its quota is new: try again in a few minutes")
        if error.status == 403 and "exceeded quota" in body:
            return NotPermitted(
                f"{text}; wait until other executions end, or ask the platform owner to raise it or to delete records"
            )
        if error.status == 403:
            return NotPermitted(f"{text}; ask the platform owner to bind the Role 'codeexec-agent' to this identity")
        if error.status == 404 and "namespaces" in body:
            return NotInstalled(f"{text}; pass namespace= with a sandbox namespace of the codeexec installation")
        if error.status == 404:
            return NotInstalled(f"{text}; the CRDs are missing: install the codeexec Helm chart into this cluster")
        if error.status in (400, 422):
            return InvalidExecution(text)
        return CodeExecError(text)


def _message(body: str) -> str:
    try:
        status = json.loads(body)
    except ValueError:
        return body
    return str(status.get("message", body)) if isinstance(status, dict) else body
