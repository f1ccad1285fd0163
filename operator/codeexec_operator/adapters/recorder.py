"""The only place that writes statuses, and tells of them.

A status of an execution or a session comes after its line in the audit log. A status that the API server refuses, or
whose answer is lost, leaves a second line that says so (see `audit.py`). Pools have no lines.
"""

from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import (
    CodeExecution,
    CodeExecutionStatus,
    CodeSession,
    CodeSessionStatus,
    SandboxPool,
    SandboxPoolStatus,
)
from codeexec_operator.adapters.audit import AuditLog, Record
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.event_recorder import EventRecorder
from codeexec_operator.core.record import without_output


class Recorder:
    """Writes a status as a change of the record that was decided on, and returns the record as it is stored.

    Each method raises what the API server answers, and `AuditFailure` if the line can't be written; nothing is sent
    then.
    """

    def __init__(self, cluster: Cluster, audit: AuditLog, event_recorder: EventRecorder, version: str) -> None:
        self._cluster, self._audit, self._events = cluster, audit, event_recorder
        self._signature = {"operator_version": version}

    async def write_execution(self, before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        """If the output doesn't fit beside what others have put into the object, the status comes without it."""
        try:
            return await self._write(before, status)
        except ApiException as error:
            if not status.stdout or error.status == 409 or "too large" not in str(error.body):
                raise
            return await self._write(before, without_output(status))

    async def write_session(self, before: CodeSession, status: CodeSessionStatus) -> CodeSession:
        """Write what the session has come to."""
        return await self._write(before, status)

    async def write_pool(self, before: SandboxPool, status: SandboxPoolStatus) -> SandboxPool:
        """Nobody else writes it."""
        return await self._cluster.write_status(before, status.model_copy(update=self._signature))

    async def _write(self, before: Record, status: Any) -> Record:
        after = before.model_copy(update={"status": status.model_copy(update=self._signature)})
        written = await self._audit.record(before, after, self._cluster.write_status)
        self._events.written(before, written)
        return written
