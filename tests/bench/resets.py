"""How long the runner takes between two executions in the same pod, by the records."""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any

from cluster_tools import SANDBOX
from kubernetes.aio import client

from codeexec_api.names import EXECUTION_PLURAL, GROUP, VERSION

_PAGE = 500


def seconds_of(records: Iterable[Mapping[str, Any]], agent: str, since: datetime) -> list[float]:
    """Of each reset of a pod in which an execution of this agent then ran, since it was created. Pure."""
    return [
        record["status"]["podReset"]["milliseconds"] / 1000
        for record in records
        if record["spec"]["source"]["agent"] == agent
        and datetime.fromisoformat(record["metadata"]["creationTimestamp"]) >= since.replace(microsecond=0)
        and (record.get("status") or {}).get("podReset")
    ]


async def resets(api: client.ApiClient, agent: str, since: datetime) -> list[float]:
    """The same, of what the cluster has."""
    found = [seconds_of(page, agent, since) async for page in _pages(client.CustomObjectsApi(api))]
    return [seconds for page in found for seconds in page]


async def _pages(custom: client.CustomObjectsApi) -> AsyncIterator[list[Mapping[str, Any]]]:
    more = ""
    while True:
        page: Any = await custom.list_namespaced_custom_object(
            GROUP, VERSION, SANDBOX, EXECUTION_PLURAL, limit=_PAGE, _continue=more
        )
        yield page["items"]
        if not (more := page["metadata"].get("continue", "")):
            return
