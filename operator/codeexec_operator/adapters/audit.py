"""The operator's audit log: a line on standard output for each status that is written, ahead of it.

What a line holds and how lines are chained is said by `codeexec_api.audit`. A line that can't be written is a status
that is not written, and code that does not start: nothing happens without its line.
"""

import asyncio
import heapq
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from codeexec_api import AuditAnchor, CodeExecution, CodeSession
from codeexec_api.audit import (
    MEMBER,
    AuditEvent,
    Line,
    Segment,
    log_entry,
    of_a_deletion,
    of_a_failure,
    of_a_write,
    of_the_last_one,
)
from codeexec_api.audit_file import LogFile
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.metrics import AUDIT_FAILED, AUDIT_WRITTEN, Metrics
from codeexec_operator.adapters.supervision import JobFailure

logger = logging.getLogger(__name__)

_STANDARD_OUTPUT: Final = 1
_PAUSE_SECONDS: Final = 0.02
"""After each page: there may be thousands, and at the start the API server has other work for this operator."""
_NEWEST: Final = 100
"""Records that are looked at, at most: the first few may be this process's own."""

Record = TypeVar("Record", CodeExecution, CodeSession)


class AuditFailure(JobFailure):
    """A line could not be written, so what it tells of did not happen."""


class AuditLog:
    """One chain for each sandbox namespace, from when this process begins to serve it until the process ends.

    Args:
        version: of the operator.
        metrics: counts lines.
        write: takes one line of text, or raises OSError.
    """

    def __init__(self, version: str, metrics: Metrics, write: Callable[[str], None] | None = None) -> None:
        self._write = write or LogFile(_STANDARD_OUTPUT)
        self._version, self._metrics = version, metrics
        self._segments: dict[str, Segment] = {}
        self._earlier: dict[str, AuditAnchor] = {}
        self._fault = ""

    def begin(self, namespace: str) -> None:
        """Begin the chain of a namespace. One that is served again goes on with its chain.

        Raises:
            AuditFailure: the first line can't be written.
        """
        if not self._segment(namespace).sequence:
            self._append(namespace, AuditEvent.OPERATOR_STARTED, {})

    def tell_of_earlier(self, namespace: str) -> None:
        """Tell, once, how far the chain before this one went, as records say.

        Raises:
            AuditFailure: the line can't be written.
        """
        if earlier := self._earlier.get(namespace):
            self._append(namespace, AuditEvent.CONTINUES, of_the_last_one(earlier))
            del self._earlier[namespace]

    def close(self) -> None:
        """The same for all namespaces. That it could not be is logged and nothing more: it's an extra."""
        try:
            for namespace in tuple(self._earlier):
                self.tell_of_earlier(namespace)
        except AuditFailure as error:
            logger.error("could not log which chain of the audit log came before: %s", error)

    def _segment(self, namespace: str) -> Segment:
        if namespace not in self._segments:
            self._segments[namespace] = Segment(secrets.token_hex(16), namespace, self._version)
        return self._segments[namespace]

    def heard(self, namespace: str, anchor: AuditAnchor | None) -> bool:
        """A record names this line. True if another process wrote it."""
        if anchor is None or anchor.chain == self._segment(namespace).chain:
            return False
        newest = self._earlier.get(namespace)
        if newest is None or anchor.time > newest.time:
            self._earlier[namespace] = anchor
        return True

    async def hear_of_all(self, cluster: Cluster, namespace: str) -> None:
        """Look in all records of a namespace, also in those that are over, for the newest line of an earlier chain."""
        kinds: tuple[type[CodeExecution | CodeSession], ...] = (CodeExecution, CodeSession)
        for kind in kinds:
            newest: list[tuple[str, str]] = []
            async for page in cluster.list_columns(kind.plural, namespace, finished=False):
                rows = [(str(row["Audited"]), str(row["Name"])) for row in page.rows if row["Audited"]]
                newest = heapq.nlargest(_NEWEST, newest + rows)
                await asyncio.sleep(_PAUSE_SECONDS)
            for _, name in newest:
                record = await cluster.read_back(kind, namespace, name)
                if record and self.heard(namespace, record.status.audit):
                    break

    def check(self) -> None:
        """Raise what the last line has failed with, if it has.

        Raises:
            AuditFailure: nothing can be written at present.
        """
        if self._fault:
            raise AuditFailure(self._fault)

    async def record(self, before: Record, after: Record, write: Callable[[Record, Any], Awaitable[Record]]) -> Record:
        """Write a line, then the status, which says which line is its own. Returns the record as it was written.

        Args:
            before: the record as it was seen last.
            after: the same with its new status.
            write: sends that status; whatever it raises is raised here, and stands in the log, too.

        Raises:
            AuditFailure: the line could not be written; nothing was sent then.
        """
        with self._line(after.metadata.namespace, AuditEvent.STATUS_WRITE, of_a_write(before.status, after)) as line:
            return await write(before, after.status.model_copy(update={MEMBER: line.anchor}))

    async def delete(
        self, record: CodeExecution | CodeSession, why: str, delete: Callable[[], Awaitable[None]]
    ) -> None:
        """Write a line, then delete the record that it tells of. Whatever `delete` raises is raised here, and logged.

        Raises:
            AuditFailure: the line could not be written; nothing was sent then.
        """
        with self._line(record.metadata.namespace, AuditEvent.RECORD_DELETED, of_a_deletion(record, why)):
            await delete()

    @contextmanager
    def _line(self, namespace: str, event: AuditEvent, more: Mapping[str, Any]) -> Iterator[Line]:
        """Write it, and another one if what it tells of fails, or is not waited for: this process may be ending."""
        line = self._append(namespace, event, more)
        try:
            yield line
        except BaseException as error:
            failed, number = of_a_failure(line, getattr(error, "status", None)), line.body["sequence"]
            try:
                self._append(namespace, AuditEvent.NOT_WRITTEN, failed)
            except AuditFailure as why:  # the worker tries again, and learns it then
                logger.error("could not log that what audit line %s tells of was not done: %s", number, why)
            raise

    def _append(self, namespace: str, event: AuditEvent, more: Mapping[str, Any]) -> Line:
        segment, line = self._segment(namespace).append(event, datetime.now(UTC), more)
        try:
            self._write(log_entry(line))
        except OSError as error:
            self._metrics.audit_lines(AUDIT_FAILED)
            self._fault = f"the audit log can't be written ({error.strerror or type(error).__name__})"
            raise AuditFailure(self._fault) from error
        self._fault = ""
        self._segments[namespace] = segment
        self._metrics.audit_lines(AUDIT_WRITTEN)
        return line
