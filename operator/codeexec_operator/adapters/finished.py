"""Requests about records that are over. They are not watched, because they are many and some are large.

Lists of them are columns, in pages: the API server leaves the rest out.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeSession, Phase, SessionPhase
from codeexec_api.names import EXECUTION_PLURAL, EXPORT_CURSOR, GROUP, SESSION_PLURAL, VERSION

_ANSWER_SECONDS: Final = 15
_ONLY_COLUMNS: Final = "application/json;as=Table;g=meta.k8s.io;v=v1"
"""What to accept, so that the API server sends what `kubectl get` prints (Kubernetes API concepts)."""
_ROWS: Final = 50
"""Rows that are listed at a time: the API server reads the objects for them, and they may be large."""
_FINISHED: Final = {
    plural: ",".join(f"status.phase!={phase.value}" for phase in phases if not phase.terminal)
    for plural, phases in ((EXECUTION_PLURAL, Phase), (SESSION_PLURAL, SessionPhase))
}

Cells = dict[str, Any]
"""A row by the names of its columns."""


class Page:
    """A page of a list."""

    def __init__(self, body: Mapping[str, Any], date: datetime) -> None:
        columns = [one["name"] for one in body["columnDefinitions"]]
        self.rows: list[Cells] = [dict(zip(columns, row["cells"], strict=True)) for row in body["rows"] or ()]
        self.following: str = body["metadata"].get("continue", "")
        self.date = date
        """The time by the API server's clock."""


class FinishedRecords:
    """Those of all sandbox namespaces."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._custom = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)

    async def pages(self, plural: str, namespace: str, *, finished: bool = True) -> AsyncGenerator[Page, None]:
        """codeexecutions, codesessions: list. Columns of the finished records, or of all.

        Raises:
            ApiException: it was refused.
        """
        token: str | None = None
        while token != "":
            try:
                page = await self._page(plural, namespace, token, finished=finished)
            except ApiException as error:
                token = _another_token(error) if token else ""
                if not token:
                    raise
                continue
            yield page
            token = page.following

    async def _page(self, plural: str, namespace: str, token: str | None, *, finished: bool) -> Page:
        # The generated methods have no includeObject, so rows would bring metadata.
        query = [("limit", str(_ROWS)), ("includeObject", "None")]
        query += [("fieldSelector", _FINISHED[plural])] if finished else []
        query += [("continue", token)] if token else []
        request = await self._api.param_serialize(
            "GET",
            f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{plural}",
            path_params={"namespace": namespace},
            query_params=query,
            header_params={"Accept": _ONLY_COLUMNS},
            auth_settings=["BearerToken"],
        )
        asked = await self._api.call_api(*request, _request_timeout=_ANSWER_SECONDS)
        body = await asked.response.read()
        if asked.status != 200:
            raise ApiException(status=asked.status, reason=body.decode(errors="replace"))
        return Page(json.loads(body), parsedate_to_datetime(asked.headers["Date"]))

    async def delete(self, plural: str, record: CodeExecution | CodeSession) -> None:
        """codeexecutions, codesessions: delete. Only the record as it was seen.

        Raises:
            ApiException: 409 it has changed; 404 it is gone.
        """
        meta = record.metadata
        preconditions = client.V1Preconditions(uid=meta.uid, resource_version=meta.resource_version)
        await self._custom.delete_namespaced_custom_object(
            GROUP,
            VERSION,
            meta.namespace,
            plural,
            meta.name,
            body=client.V1DeleteOptions(preconditions=preconditions),
            _request_timeout=_ANSWER_SECONDS,
        )

    async def export_cursor(self, namespace: str) -> Mapping[str, str]:
        """configmaps: get. How far the export of records got; empty if there is none."""
        try:
            found = await self._core.read_namespaced_config_map(
                EXPORT_CURSOR, namespace, _request_timeout=_ANSWER_SECONDS
            )
        except ApiException as error:
            if error.status == 404:
                return {}
            raise
        return found.data or {}


def _another_token(error: ApiException) -> str:
    """After some minutes the API server can't continue a list as it began. It sends a token for what is there now."""
    try:
        status = json.loads(str(error.reason))
        return str(status["metadata"]["continue"]) if error.status == 410 else ""
    except (ValueError, KeyError, TypeError):
        return ""
