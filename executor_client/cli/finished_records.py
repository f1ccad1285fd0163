"""Requests to the API server that only `codeexec audit export` makes."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api.names import EXPORT_CURSOR, GROUP, VERSION
from executor_client.transport.kube_api import LONG_SECONDS, MERGE_PATCH, KubeApi

_PAGE: Final = 200
_AT_ONCE: Final = 8
_ONLY_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Name(NamedTuple):
    """A record, as a list shows it."""

    name: str
    uid: str
    version: int


class FinishedRecords(KubeApi):
    """A connection to a sandbox namespace.

    Raises:
        CodeExecError: of all methods: see `exceptions`.
    """

    async def listed(self, plural: str, unfinished: Iterable[str]) -> tuple[list[Name], int]:
        """The finished records, and the resource version that the list is of.

        Every record that was finished by then is in it.
        """
        selector = ",".join(f"status.phase!={phase}" for phase in unfinished)
        found: list[Name] = []
        version, token = 0, None
        while token != "":
            with self.errors(f"list {plural}"):
                page, token = await self._page(plural, selector, token)
            version = version or int(page["metadata"]["resourceVersion"])
            metas = [one["metadata"] for one in page.get("items") or ()]
            found += [Name(one["name"], one["uid"], int(one["resourceVersion"])) for one in metas]
        return found, version

    async def _page(self, plural: str, selector: str, token: str | None) -> tuple[Mapping[str, Any], str]:
        """A page, and the token of the next one."""
        call: Any = self.custom.list_namespaced_custom_object_without_preload_content
        chosen = {"limit": _PAGE, "field_selector": selector, **({"_continue": token} if token else {})}
        request = partial(call, GROUP, VERSION, self.namespace, plural, _headers={"Accept": _ONLY_METADATA}, **chosen)
        status, body = await self.unparsed(request, *((410,) if token else ()))
        page = json.loads(body)
        following = page.get("metadata", {}).get("continue", "")
        if status == 200:
            return page, following
        if not following:
            raise ApiException(status=status, reason=page.get("message"))
        # The list began too long ago. What has changed since then has a newer version, and is in the next export.
        return await self._page(plural, selector, following)

    async def read(self, plural: str, kind: str, names: Sequence[Name]) -> list[Mapping[str, Any]]:
        """Those records that are as they were listed."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def read(one: Name) -> Mapping[str, Any] | None:
            async with turns:
                try:
                    raw: Any = await self.custom.get_namespaced_custom_object(
                        GROUP, VERSION, self.namespace, plural, one.name, _request_timeout=LONG_SECONDS
                    )
                except ApiException as error:
                    if error.status == 404:
                        return None
                    raise
            meta = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
            unchanged = (meta["uid"], int(meta["resourceVersion"])) == (one.uid, one.version)
            return {**raw, "kind": kind, "metadata": meta} if unchanged else None

        with self.errors(f"get {plural}"):
            return [one for one in await asyncio.gather(*map(read, names)) if one]

    async def cursor(self) -> Mapping[str, str]:
        """What the operator was told of the export so far.

        Raises:
            NotFound: the namespace has no such ConfigMap.
        """
        with self.errors(f"get the ConfigMap {EXPORT_CURSOR}"):
            found = await self.core.read_namespaced_config_map(
                EXPORT_CURSOR, self.namespace, _request_timeout=LONG_SECONDS
            )
        return found.data or {}

    async def confirm(self, up_to: Mapping[str, int]) -> None:
        """Tell the operator how far the export got."""
        body: Any = {"data": {plural: str(version) for plural, version in up_to.items()}}
        with self.errors(f"write the ConfigMap {EXPORT_CURSOR}"):
            await self.core.patch_namespaced_config_map(
                EXPORT_CURSOR, self.namespace, body, _content_type=MERGE_PATCH, _request_timeout=LONG_SECONDS
            )
