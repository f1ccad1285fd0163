"""Requests to the API server that only `codeexec audit export` makes."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from codeexec_api.audit_export import Cursor
from codeexec_api.names import EXPORT_CURSOR
from executor_client.transport.kube_api import CORE, LONG_SECONDS, OURS, KubeApi

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
        version = 0
        # Where the list began too long ago, what has changed since then has a newer version, and is in the next export.
        query = {"limit": _PAGE, "fieldSelector": selector}
        with self.errors(f"list {plural}"):
            async for page in self.pages(self.path(OURS, plural), query, _ONLY_METADATA):
                version = version or int(page["metadata"]["resourceVersion"])
                metas = [one["metadata"] for one in page.get("items") or ()]
                found += [Name(one["name"], one["uid"], int(one["resourceVersion"])) for one in metas]
        return found, version

    async def read(self, plural: str, kind: str, names: Sequence[Name]) -> list[Mapping[str, Any]]:
        """Those records that are as they were listed, and have a phase.

        A list also has records without a status: the phase of a new record is none of the unfinished ones.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def read(one: Name) -> Mapping[str, Any] | None:
            async with turns:
                raw = await self.find(self.path(OURS, plural, one.name), seconds=LONG_SECONDS)
            if raw is None:
                return None
            meta = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
            phase = (raw.get("status") or {}).get("phase")
            unchanged = (meta["uid"], int(meta["resourceVersion"])) == (one.uid, one.version)
            return {**raw, "kind": kind, "metadata": meta} if unchanged and phase else None

        with self.errors(f"get {plural}"):
            return [one for one in await asyncio.gather(*map(read, names)) if one]

    async def cursor(self) -> Cursor:
        """How far the export got.

        Raises:
            NotFound: the namespace has no such ConfigMap.
        """
        with self.errors(f"get the ConfigMap {EXPORT_CURSOR}"):
            found = await self.request("GET", self.path(CORE, "configmaps", EXPORT_CURSOR), seconds=LONG_SECONDS)
        return Cursor.parse(found.get("data") or {})

    async def confirm(self, cursor: Cursor) -> None:
        """Write down how far the export got, for the operator and for the next export."""
        body = {"data": cursor.data}
        with self.errors(f"write the ConfigMap {EXPORT_CURSOR}"):
            path = self.path(CORE, "configmaps", EXPORT_CURSOR)
            await self.request("PATCH", path, body=body, seconds=LONG_SECONDS)
