"""Requests about records that are over. They are not watched, because they are many and some are large.

Lists of them are columns, in pages: the API server leaves the rest out.
"""

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Any, Final

from codeexec_api import CodeExecution, CodeSession
from codeexec_api.names import EXPORT_CURSOR
from codeexec_operator.adapters.api_server import ONLY_COLUMNS, ApiServer, Resource, found
from codeexec_operator.adapters.records import EXECUTIONS, FINISHED, SESSIONS

_CONFIG_MAPS: Final = Resource("api/v1", "configmaps")
_RECORDS: Final = {one.plural: one for one in (EXECUTIONS, SESSIONS)}
_ROWS: Final = 50
"""Rows that are listed at a time: the API server reads the objects for them, and they may be large."""

Cells = dict[str, Any]
"""A row by the names of its columns."""


class Page:
    """A page of a list."""

    def __init__(self, body: Mapping[str, Any], date: datetime) -> None:
        columns = [column["name"] for column in body["columnDefinitions"]]
        self.rows: list[Cells] = [dict(zip(columns, row["cells"], strict=True)) for row in body["rows"] or ()]
        self.date = date
        """The time by the API server's clock."""


class FinishedRecords:
    """Those of all sandbox namespaces."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def pages(self, plural: str, namespace: str, *, finished: bool = True) -> AsyncGenerator[Page, None]:
        """codeexecutions, codesessions: list. Columns of the finished records, or of all.

        Raises:
            ApiException: it was refused.
        """
        query = {"includeObject": "None"} | ({"fieldSelector": FINISHED[plural]} if finished else {})
        path = _RECORDS[plural].path(namespace)
        async for body in self._api.pages(path, _ROWS, query=query, accept=ONLY_COLUMNS):
            yield Page(body, self._api.date)

    async def delete(self, plural: str, record: CodeExecution | CodeSession) -> None:
        """codeexecutions, codesessions: delete. Only the record as it was seen.

        Raises:
            ApiException: 409 it has changed; 404 it is gone.
        """
        meta = record.metadata
        seen = {"preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version}}
        await self._api.request("DELETE", _RECORDS[plural].path(meta.namespace, meta.name), seen)

    async def export_cursor(self, namespace: str) -> Mapping[str, str]:
        """configmaps: get. How far the export of records got; empty if there is none."""
        cursor = await found(self._api.request("GET", _CONFIG_MAPS.path(namespace, EXPORT_CURSOR)))
        return (cursor.get("data") or {}) if cursor else {}
