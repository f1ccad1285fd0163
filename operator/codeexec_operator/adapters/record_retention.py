"""Deletes records of finished executions and sessions, where the policy of their namespace says so."""

import asyncio
import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import Final

from kubernetes.aio.client.exceptions import ApiException
from pydantic import ValidationError

from codeexec_api import CodeExecution, CodeSession, ExecutionPolicySpec, RecordRetention
from codeexec_api.audit_export import Cursor, Versions
from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.supervision import JobFailure
from codeexec_operator.adapters.worker import now as own_time
from codeexec_operator.core.record_retention import Census, Choice, Obstacle, Row, obstacle

logger = logging.getLogger(__name__)

_REST_SHARE: Final = 10
"""A rest is so many times as long as the look before it, so that a look may take its time. It is for all namespaces:
the share of the CPU does not grow with their number."""
_STEP_SECONDS: Final = 0.05
"""Between two requests about records, for all namespaces together. So 20 a second, at most."""
_MOST: Final = 10_000
"""Records that are deleted after one look."""
_UNEXPORTED: Final = 100
"""Records that were not exported, after which the look ends: those that follow are younger."""


class RecordKeeper:
    """Looks at the records of each namespace again and again: at those of one namespace at a time, with a rest between.

    Args:
        cluster: where the records are.
        policies: say how long records are kept.
        audit: gets a line for each deletion.
    """

    def __init__(self, cluster: Cluster, policies: Policies, audit: AuditLog) -> None:
        self._cluster, self._policies, self._audit = cluster, policies, audit
        self._turn, self._lists = asyncio.Lock(), asyncio.Lock()
        self._rests_until = 0.0

    async def run(self, namespace: str) -> None:
        """Look once, when it is the turn of the namespace, and again while there is more.

        Raises:
            ApiException: the API server refused.
            AuditFailure: a deletion could not be told of, so nothing is deleted.
            JobFailure: the operator may not delete records.
        """
        more = True
        while more:
            try:
                more = await self._look(namespace)
            except ApiException as error:
                if error.status != 403:
                    raise
                why = "old records may not be deleted: set the Helm value operator.deleteRecords to true"
                raise JobFailure(why) from error

    async def _look(self, namespace: str) -> bool:
        """True if another look will find more."""
        policy = await self._policies.of(namespace)
        if not isinstance(policy, ExecutionPolicySpec) or not (retention := policy.records).limited:
            return False
        exported: Versions = {}
        if retention.require_export:
            exported = Cursor.parse(await self._cluster.get_export_cursor(namespace)).versions
            if not exported:
                logger.warning("%s: records wait for `codeexec audit export --confirm` before they go", namespace)
                return False
        async with self._lists:
            await asyncio.sleep(self._rests_until - time.monotonic())
            begun = time.monotonic()
            try:
                census, now = await self._list(namespace)
            finally:
                self._rests_until = time.monotonic() + _REST_SHARE * (time.monotonic() - begun)
        deleted = await self._delete(namespace, census.choose(retention, now), retention, exported, now)
        if deleted:
            logger.info("%s: deleted %d old records", namespace, deleted)
        return census.full and deleted > 0

    async def _list(self, namespace: str) -> tuple[Census, datetime]:
        """What there is, and the time by the API server's clock, or by the operator's if that is behind."""
        census, now = Census(_MOST), datetime.min.replace(tzinfo=UTC)
        for plural in (SESSION_PLURAL, EXECUTION_PLURAL):
            async for page in self._cluster.list_columns(plural, namespace):
                now = page.date
                for cells in page.rows:
                    census.add(Row.of(plural, cells))
                await self._pause()
        # The times of records are by the operator's clock. If the API server's is ahead, nothing goes too early.
        return census, min(now, own_time())

    async def _delete(
        self, namespace: str, choices: list[Choice], policy: RecordRetention, exported: Versions, now: datetime
    ) -> int:
        deleted = unexported = 0
        kept_sessions: set[str] = set()
        for choice in choices:
            if choice.row.plural == SESSION_PLURAL and choice.row.name in kept_sessions:
                continue
            await self._pause()
            current = self._policies.known(namespace)
            if not isinstance(current, ExecutionPolicySpec) or current.records != policy or unexported == _UNEXPORTED:
                break
            try:
                record = await self._get(namespace, choice.row)
            except ValidationError:
                logger.warning("%s/%s: its record can't be read, so it stays", namespace, choice.row.name)
                kept_sessions.add(choice.row.session)
                continue
            if record is None:
                continue
            why_not = obstacle(record, choice, policy, exported, now)
            if why_not is None and await self._deleted(record, choice):
                deleted += 1
            else:
                kept_sessions.add(choice.row.session)
                unexported += why_not is Obstacle.NOT_EXPORTED
        return deleted

    async def _deleted(self, record: CodeExecution | CodeSession, choice: Choice) -> bool:
        """False if it has changed at the last moment."""
        try:
            await self._audit.delete(record, choice.why, partial(self._cluster.delete_record, record))
        except ApiException as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def _get(self, namespace: str, row: Row) -> CodeExecution | CodeSession | None:
        kind: type[CodeExecution | CodeSession] = CodeExecution if row.plural == EXECUTION_PLURAL else CodeSession
        return await self._cluster.read_back(kind, namespace, row.name)

    async def _pause(self) -> None:
        async with self._turn:
            await asyncio.sleep(_STEP_SECONDS)
