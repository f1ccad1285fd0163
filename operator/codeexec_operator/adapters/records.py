"""Requests for the kinds of codeexec.dev. Each method names the RBAC verb that it needs.

Before Kubernetes 1.34 an API server takes the first page of a list from its cache, and each further page from etcd
(`shouldDelegateList` in k8s.io/apiserver, pkg/storage/cacher/delegator.go). There it reads every record until enough
are found that a field selector is for. Among 100,000 finished records that takes longer than a request may. So lists of
what each has a pod are not cut into pages, and those of all that is unfinished seldom need a second one.

Records that are over are not watched, because they are many and some are large. Lists of them are columns, in pages:
the API server leaves the rest out.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from codeexec_api import (
    CodeExecution,
    CodeSession,
    ExecutionPolicyStatus,
    Phase,
    SandboxPool,
    SandboxPoolSpec,
    SessionPhase,
    manifest,
)
from codeexec_api.names import (
    APPROVAL_PLURAL,
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    EXPORT_CURSOR,
    GROUP,
    POLICY_NAME,
    POLICY_PLURAL,
    POOL_PLURAL,
    SESSION_PLURAL,
    VERSION,
)
from codeexec_api.v1alpha1.base import Object, ObjectMeta
from codeexec_operator.adapters.api_server import (
    ONLY_COLUMNS,
    ONLY_ITS_METADATA,
    ONLY_METADATA,
    ApiServer,
    Resource,
    found,
    unless_there,
)
from codeexec_operator.adapters.supervision import JobFailure

_API: Final = f"apis/{GROUP}/{VERSION}"
_EXECUTIONS: Final = Resource(_API, EXECUTION_PLURAL)
_SESSIONS: Final = Resource(_API, SESSION_PLURAL)
_POOLS: Final = Resource(_API, POOL_PLURAL)
_POLICIES: Final = Resource(_API, POLICY_PLURAL)
_APPROVALS: Final = Resource(_API, APPROVAL_PLURAL)
_RESOURCES: Final[Mapping[type, Resource]] = {CodeExecution: _EXECUTIONS, CodeSession: _SESSIONS, SandboxPool: _POOLS}
_CONFIG_MAPS: Final = Resource("api/v1", "configmaps")
_WATCHED: Final = frozenset(resource.plural for resource in (_EXECUTIONS, _SESSIONS, _POOLS, _POLICIES, _APPROVALS))
UNFINISHED, _FINISHED = (
    {
        plural: ",".join(f"status.phase!={phase.value}" for phase in phases if phase.terminal is not over)
        for plural, phases in ((EXECUTION_PLURAL, Phase), (SESSION_PLURAL, SessionPhase))
    }
    for over in (False, True)
)
"""Field selectors: records that are over are many, and some are large."""
AT_A_TIME: Final = 100
"""Unfinished executions and sessions that are listed at a time: 50 MB of JSON, if all are as large as they may be.

Each takes 0.5 MB then: the API server writes `<` and some other characters with six bytes each. While a page is read,
up to three times as much is held (`narrow_json.py`).
"""
_ROWS: Final = 50
"""Rows that are listed at a time: the API server reads the objects for them, and they may be large."""
_APPROVALS_OF_ONE: Final = 500
"""Approvals that are listed at a time; they are small."""

Record = TypeVar("Record", CodeExecution, CodeSession, SandboxPool)
Written = TypeVar("Written", bound=Object)


class Page:
    """A page of a list."""

    def __init__(self, body: Mapping[str, Any], date: datetime) -> None:
        columns = [column["name"] for column in body["columnDefinitions"]]
        self.rows = [dict(zip(columns, row["cells"], strict=True)) for row in body["rows"] or ()]
        """Each by the names of its columns."""
        self.date = date
        """The time by the API server's clock."""


class Records:
    """Executions and sessions with their status, pools, policies and approvals."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def ready(self, namespace: str) -> None:
        """codeexecutions: list. Raises why the operator could not work.

        Raises:
            JobFailure: a CRD is missing. kopf would look for it once, and never watch it.
            ApiException: the API server refuses.
        """
        served = await self._api.request("GET", f"/{_API}")
        if missing := _WATCHED - {kind["name"] for kind in served["resources"]}:
            raise JobFailure(f"the CRD {min(missing)}.{GROUP} is not there: install the chart's CRDs")
        await self._api.request("GET", _EXECUTIONS.path(namespace), query={"limit": 1}, accept=ONLY_METADATA)

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        """codeexecutions: get."""
        raw = await self._get(_EXECUTIONS, namespace, name)
        return CodeExecution.parse(raw) if raw else None

    async def get_session(self, namespace: str, name: str) -> CodeSession | None:
        """codesessions: get."""
        raw = await self._get(_SESSIONS, namespace, name)
        return CodeSession.parse(raw) if raw else None

    async def read_back(self, kind: type[Written], namespace: str, name: str) -> Written | None:
        """codeexecutions, codesessions: get. To look at, not to do what it asks for: any version may have written it.

        Raises:
            pydantic.ValidationError: it is no record at all.
        """
        raw = await self._get(_RESOURCES[kind], namespace, name)
        return kind.read(raw) if raw else None

    async def get_policy(self, namespace: str) -> Mapping[str, Any] | None:
        """executionpolicies: get."""
        return await self._get(_POLICIES, namespace, POLICY_NAME)

    async def write_policy_status(self, meta: ObjectMeta, status: ExecutionPolicyStatus) -> None:
        """executionpolicies/status: patch.

        Raises:
            ApiException: 409 the policy has changed since it was seen; 404 it is gone, or its CRD knows no status.
        """
        seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": seen, "status": status.dump()}
        path = _POLICIES.path(meta.namespace, meta.name, "status")
        await self._api.request("PATCH", path, body, accept=ONLY_ITS_METADATA)

    async def keys_of_unfinished(self, namespace: str) -> set[str]:
        """codeexecutions: list. Names of the keys that the payloads of unfinished executions are sealed with."""
        query = {"fieldSelector": UNFINISHED[EXECUTION_PLURAL]}
        pages = self._api.pages(_EXECUTIONS.path(namespace), AT_A_TIME, query=query)
        specs = (execution["spec"] async for page in pages for execution in page["items"] or ())
        return {payload["keyName"] async for spec in specs if (payload := spec.get("sealedPayload"))}

    async def in_phase(
        self, plural: str, namespace: str, phase: Phase | SessionPhase
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """codeexecutions, codesessions: list. Those of a phase in which each has a pod, so they are not many."""
        query = {"fieldSelector": f"status.phase={phase.value}"}
        async for page in self._api.pages(Resource(_API, plural).path(namespace), None, query=query):
            for record in page["items"] or ():
                yield record

    async def pods_in_use(self, namespace: str) -> set[str]:
        """codeexecutions, codesessions: list. Names of the pods of code that runs, and of sessions that aren't over."""
        users = ((_EXECUTIONS, f"status.phase={Phase.RUNNING.value}"), (_SESSIONS, UNFINISHED[SESSION_PLURAL]))
        lists = [
            self._api.list(resource.path(namespace), None, query={"fieldSelector": selector})
            for resource, selector in users
        ]
        every = [record for listed in await asyncio.gather(*lists) for record in listed]
        return {record.get("status", {}).get("podName", "") for record in every}

    async def list_unfinished(self, namespace: str) -> list[Mapping[str, Any]]:
        """codeexecutions, codesessions, sandboxpools: list. Name, UID and version of all that isn't over; its `plural`.

        One kind after the other, because a page may be large.
        """
        return [
            {**one, "plural": resource.plural}
            for resource in (_EXECUTIONS, _SESSIONS, _POOLS)
            for one in await self._api.metadata(
                resource.path(namespace), {"fieldSelector": UNFINISHED.get(resource.plural, "")}
            )
        ]

    async def find_record(self, plural: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """codeexecutions, codesessions, sandboxpools: list. The object of this name; None if there is none."""
        return await self._api.named(Resource(_API, plural).path(namespace), name)

    async def _get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        raw: Mapping[str, Any] | None = await found(self._api.request("GET", resource.path(namespace, name)))
        return raw

    async def list_columns(self, plural: str, namespace: str, *, finished: bool = True) -> AsyncGenerator[Page, None]:
        """codeexecutions, codesessions: list. Columns of the finished records, or of all.

        Raises:
            ApiException: it was refused.
        """
        query = {"includeObject": "None"} | ({"fieldSelector": _FINISHED[plural]} if finished else {})
        path = Resource(_API, plural).path(namespace)
        async for body in self._api.pages(path, _ROWS, query=query, accept=ONLY_COLUMNS):
            yield Page(body, self._api.date)

    async def delete_record(self, record: CodeExecution | CodeSession) -> None:
        """codeexecutions, codesessions: delete. Only the record as it was seen.

        Raises:
            ApiException: 409 it has changed; 404 it is gone.
        """
        meta = record.metadata
        seen = {"preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version}}
        await self._api.request("DELETE", _RESOURCES[type(record)].path(meta.namespace, meta.name), seen)

    async def get_export_cursor(self, namespace: str) -> Mapping[str, str]:
        """configmaps: get. How far the export of records got; empty if there is none."""
        cursor = await found(self._api.request("GET", _CONFIG_MAPS.path(namespace, EXPORT_CURSOR)))
        return (cursor.get("data") or {}) if cursor else {}

    async def ensure_pool(self, namespace: str, name: str, spec: SandboxPoolSpec) -> None:
        """sandboxpools: create. A pool of that name that is there already is left as it is.

        Raises:
            ApiException: it was refused.
        """
        body = manifest(name=name, namespace=namespace, spec=spec)
        await unless_there(self._api.request("POST", _POOLS.path(namespace), body))

    async def find_pool(self, namespace: str, name: str) -> SandboxPool | None:
        """sandboxpools: list."""
        raw = await self.find_record(POOL_PLURAL, namespace, name)
        return SandboxPool.parse(raw) if raw else None

    async def list_approvals(self, namespace: str, execution: str) -> list[Mapping[str, Any]]:
        """executionapprovals: list. Those that name this execution."""
        query = {"labelSelector": f"{EXECUTION_LABEL}={execution}"}
        return await self._api.list(_APPROVALS.path(namespace), _APPROVALS_OF_ONE, query=query)

    async def write_status(self, record: Record, status: Any) -> Record:
        """codeexecutions/status, codesessions/status, sandboxpools/status: patch.

        Refused with 409 if the record has changed since it was seen, so the answer need not have the rest of it. That
        of a pool is not refused, because nobody else writes it, and its answer has all of it.

        Raises:
            ApiException: 409 the object has changed; 404 it is gone.
        """
        meta = record.metadata
        patch = _merge_patch(record.status.dump(), status.dump())
        path = _RESOURCES[type(record)].path(meta.namespace, meta.name, "status")
        if isinstance(record, SandboxPool):
            body = {"metadata": {"uid": meta.uid}, "status": patch}
            return type(record).parse(await self._api.request("PATCH", path, body))
        seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": seen, "status": patch}
        written = await self._api.request("PATCH", path, body, accept=ONLY_ITS_METADATA)
        return record.model_copy(update={"metadata": ObjectMeta.model_validate(written["metadata"]), "status": status})


def _merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What makes new of old, by RFC 7396: what is no longer so has to be taken back by name, else a merge leaves it."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch[key] = _merge_patch(before, value)
        else:
            patch[key] = value
    return patch
