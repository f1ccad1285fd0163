"""How code gets into the cluster: sealed in the record if it is small, else in Secrets."""

import asyncio
import base64
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecutionSpec
from codeexec_api.names import (
    EXECUTION_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    PAYLOAD_SECRET_TYPE,
    SEALING_KEY,
    payload_name,
)
from codeexec_api.sealing import is_sealable, seal
from executor_client.exceptions import ClusterUnreachable, CodeExecError
from executor_client.model.blocks import split_payload
from executor_client.runtime.asyncio_tasks import SingleFlight, together
from executor_client.transport.creation import created_once
from executor_client.transport.kube_api import CORE, KubeApi

_KEY_SECONDS: Final = 60
"""After which the cluster is asked again which key counts; it keeps each for a day after that."""
_KEPT_SECONDS: Final = 43_200
"""How long a key counts without an answer of the API server: half of that day, so that the operator has the rest."""
_PARTS_AT_ONCE: Final = 4
"""How many Secrets of a payload are created at the same time."""


class Payloads:
    """Those of one connection."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._asking_for_key = SingleFlight(self._ask_for_key)
        self._key: Mapping[str, str] | None = None
        self._key_read_at: float | None = None

    async def key_for(self, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> Mapping[str, str] | None:
        """The key to seal the payload with; None if the payload is large or the cluster has no key."""
        return None if spec.payload_ref is None or not is_sealable(payload) else await self.sealing_key()

    def sealed(
        self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes], key: Mapping[str, str] | None
    ) -> CodeExecutionSpec:
        """With the payload in it instead of in Secrets, if there is a key for that."""
        if key is None:
            return spec
        try:
            sealed = seal(payload, key, self._api.namespace, name)
        except ValueError as error:
            raise CodeExecError(
                f"the ConfigMap {SEALING_KEY} in namespace {self._api.namespace!r} holds {error}; ask the platform "
                "owner to delete its data and to restart the operator"
            ) from error
        return spec.model_copy(update={"payload_ref": None, "sealed_payload": sealed})

    async def sealing_key(self) -> Mapping[str, str] | None:
        """The operator's public key, not older than a minute; None where there is none, or it may not be read.

        Where the API server does not answer, the last key counts for some hours.

        Raises:
            ClusterUnreachable: the API server does not answer, and there is no such key.
        """
        age = math.inf if self._key_read_at is None else asyncio.get_running_loop().time() - self._key_read_at
        if age > _KEY_SECONDS:
            try:
                await self._asking_for_key()
            except ClusterUnreachable:
                if self._key is None or age > _KEPT_SECONDS:
                    raise
        return self._key

    async def _ask_for_key(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            with self._api.network_errors("read the sealing key"):
                found = await self._api.request("GET", self._api.path(CORE, "configmaps", SEALING_KEY))
            self._key = found.get("data") or None
        except ApiException:  # whatever the reason is, Secrets are the way without it
            self._key = None
        self._key_read_at = now

    async def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> None:
        """Create the Secrets of an execution, if it has some.

        Raises:
            CodeExecError: see `exceptions`.
        """
        if spec.payload_ref is None:
            return
        at_once, secrets = asyncio.Semaphore(_PARTS_AT_ONCE), self._api.path(CORE, "secrets")

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
                with self._api.errors("create the payload Secret"):
                    post = partial(self._api.request, "POST", secrets, body=secret)
                    await created_once(post, find, self._api.retries)

        ref = spec.payload_ref
        await together(*(create(part, data) for part, data in enumerate(split_payload(payload, ref.parts))))
