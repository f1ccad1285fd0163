"""Requests for code, output and keys: Secrets and ConfigMaps. Each method names the RBAC verb that it needs."""

import base64
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from codeexec_api import CodeExecution, Reason
from codeexec_api.names import (
    API_VERSION,
    EXECUTION_KIND,
    EXECUTION_LABEL,
    EXPIRES_ANNOTATION,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    PAYLOAD_SECRET_TYPE,
    SEALING_KEY,
    block_key,
    file_key,
    output_name,
    payload_name,
    review_name,
)
from codeexec_operator.adapters.api_server import (
    ONLY_ITS_METADATA,
    ApiServer,
    Resource,
    create,
    delete,
    found,
    unless_there,
)
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.core.observed_pod import Fault
from codeexec_operator.core.output_parts import OutputPart
from codeexec_operator.core.output_place import CONFIG_MAPS
from codeexec_operator.core.payload import Payload

_SECRETS: Final = Resource("api/v1", "secrets")
_CONFIG_MAPS: Final = Resource("api/v1", "configmaps")
_KEYS: Final = "keys.json"
_PAYLOADS: Final = 8
"""Read at the same time: each may be 16 MB, and after a restart many may be asked for at once."""
_PAYLOADS_OF_ONE: Final = 4
"""Of these, payloads of one namespace."""
_OF_PAYLOADS: Final = {"fieldSelector": f"type={PAYLOAD_SECRET_TYPE}"}
_OF_OUTPUTS: Final = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY},{EXECUTION_LABEL}"}


class Contents:
    """What executions are made of and leave behind, and the keys that it is sealed with."""

    place: Final = CONFIG_MAPS
    """Of output, see `outputs.Outputs`."""
    files: Final = None
    """Of sessions that sleep: ConfigMaps are no place for them."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._reading_payloads = FairSemaphore(_PAYLOADS, _PAYLOADS_OF_ONE)

    async def publish_code(self, execution: CodeExecution, payload: Payload) -> None:
        """secrets: create. A Secret of that name is the one that was asked for: admission lets nobody else make it."""
        meta = execution.metadata
        contents = {block_key(index): block for index, block in enumerate(payload.blocks)}
        contents |= {file_key(index): file for index, file in enumerate(payload.files)}
        secret = {
            "metadata": _belonging(review_name(meta.name, meta.uid), execution),
            "type": PAYLOAD_SECRET_TYPE,
            "immutable": True,
            "data": {key: base64.b64encode(content).decode() for key, content in contents.items()},
        }
        await unless_there(self._api.request("POST", _SECRETS.path(meta.namespace), secret))

    async def withdraw_code(self, execution: CodeExecution) -> None:
        """secrets: delete. A Secret that is gone already is fine."""
        meta = execution.metadata
        await delete(self._api, _SECRETS, meta.namespace, review_name(meta.name, meta.uid))

    async def get_payload(self, namespace: str, name: str, parts: int) -> list[Mapping[str, Any] | None]:
        """secrets: get. A Secret for each part, or None if it isn't there. Few are read at the same time."""
        names = [payload_name(name, index) for index in range(parts)]
        async with self._reading_payloads.slot(namespace):
            return [await found(self._api.request("GET", _SECRETS.path(namespace, part))) for part in names]

    def watch_payloads(self, namespace: str) -> AsyncGenerator[tuple[str, Mapping[str, Any], int], None]:
        """secrets: list, watch. See `ApiServer.watch`."""
        return self._api.watch(_SECRETS.path(namespace), _OF_PAYLOADS)

    async def delete_payload(self, namespace: str, name: str, uid: str) -> None:
        """secrets: delete. Only the Secret with this UID; a Secret that is gone already is fine."""
        await delete(self._api, _SECRETS, namespace, name, uid=uid)

    async def list_payloads(self, namespace: str) -> list[Mapping[str, Any]]:
        """secrets: list. Names of payload Secrets and of whose they are: their contents would not fit into memory."""
        return await self._api.metadata(_SECRETS.path(namespace), _OF_PAYLOADS, also=(EXECUTION_LABEL,))

    async def get_configuration(self, namespace: str, name: str) -> Mapping[str, str]:
        """configmaps: get. What the operator's own ConfigMap holds.

        Raises:
            ApiException: it isn't there, or the API server can't be used.
        """
        config_map = await self._api.request("GET", _CONFIG_MAPS.path(namespace, name))
        return config_map.get("data") or {}

    async def get_keys(self, namespace: str, name: str) -> tuple[str, str]:
        """secrets: get. What the operator's own Secret holds, and its resource version.

        Raises:
            ApiException: it isn't there.
        """
        secret = await self._api.request("GET", _SECRETS.path(namespace, name))
        keys = (secret.get("data") or {}).get(_KEYS, "")
        return base64.b64decode(keys).decode(), secret["metadata"]["resourceVersion"]

    async def write_keys(self, namespace: str, name: str, keys: str, version: str) -> None:
        """secrets: patch.

        Raises:
            ApiException: 409 it has changed since it was read.
        """
        body = {"metadata": {"resourceVersion": version}, "stringData": {_KEYS: keys}}
        await self._api.request("PATCH", _SECRETS.path(namespace, name), body)

    async def publish_key(self, namespace: str, data: Mapping[str, str]) -> str:
        """configmaps: patch. Gives the UID of the ConfigMap.

        Raises:
            ApiException: it isn't there.
        """
        path = _CONFIG_MAPS.path(namespace, SEALING_KEY)
        written = await self._api.request("PATCH", path, {"data": dict(data)}, accept=ONLY_ITS_METADATA)
        return str(written["metadata"]["uid"])

    async def create_output(self, execution: CodeExecution, part: OutputPart, expires_at: datetime) -> Fault | None:
        """configmaps: create. A fault is a refusal for good; one of that name is the one that was asked for."""
        meta = execution.metadata
        body = {
            "metadata": _belonging(output_name(meta.name, meta.uid, part.frames), execution)
            | {"annotations": {EXPIRES_ANNOTATION: expires_at.isoformat()}},
            "immutable": True,
            "binaryData": {key: base64.b64encode(data).decode() for key, data in part.contents.items()},
        }
        return await create(self._api, _CONFIG_MAPS.path(meta.namespace), body, partial(Fault, Reason.QUOTA_EXCEEDED))

    async def list_outputs(self, namespace: str) -> list[Mapping[str, Any]]:
        """configmaps: list. The metadata of those that hold output, with when that expires."""
        return await self._api.metadata(_CONFIG_MAPS.path(namespace), _OF_OUTPUTS, also=(EXPIRES_ANNOTATION,))

    async def delete_output(self, namespace: str, name: str, uid: str) -> None:
        """configmaps: delete. Only the ConfigMap with this UID; a ConfigMap that is gone already is fine."""
        await delete(self._api, _CONFIG_MAPS, namespace, name, uid=uid)


def _belonging(name: str, execution: CodeExecution) -> dict[str, Any]:
    """Metadata of what goes with the record of an execution, at the latest."""
    meta = execution.metadata
    return {
        "name": name,
        "labels": {MANAGED_BY_LABEL: MANAGED_BY, EXECUTION_LABEL: meta.name},
        "ownerReferences": [{"apiVersion": API_VERSION, "kind": EXECUTION_KIND, "name": meta.name, "uid": meta.uid}],
    }
