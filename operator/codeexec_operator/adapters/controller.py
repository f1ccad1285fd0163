"""All executions and sessions that are not over, or whose pod is still there."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from codeexec_api import CodeExecution, CodeSession
from codeexec_api.names import EXECUTION_LABEL, SESSION_LABEL, payload_name
from codeexec_api.v1alpha1 import MAX_PAYLOAD_PARTS
from codeexec_operator.adapters.executions import ExecutionWorker, Register
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.worker import Context

logger = logging.getLogger(__name__)

_Parsed = TypeVar("_Parsed", CodeExecution, CodeSession)


class Controller:
    """Passes what is observed to the worker of the object that it is about, and starts one where there is none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._executions: dict[str, ExecutionWorker] = {}
        self._sessions: dict[str, SessionWorker] = {}
        self._register = Register(self._find_session, self._adopt_session, self._forget_execution)

    def on_execution(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeExecution was seen, changed or deleted."""
        worker = self._executions.get(raw["metadata"]["uid"])
        if deleted:
            if worker:
                worker.observe_deletion()
            return
        execution = _parsed(CodeExecution.parse, raw)
        if execution is None:
            return
        if worker:
            worker.observe_execution(execution)
        elif not execution.status.phase.terminal:
            self._start_execution(execution)

    def on_session(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeSession was seen, changed or deleted."""
        worker = self._sessions.get(raw["metadata"]["uid"])
        if deleted:
            if worker:
                worker.observe_deletion()
            return
        session = _parsed(CodeSession.parse, raw)
        if session is None:
            return
        if worker:
            worker.observe_session(session)
        else:
            self._adopt_session(session)

    async def on_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A sandbox pod was seen, changed or deleted."""
        owners = [one["uid"] for one in raw["metadata"].get("ownerReferences") or () if one.get("controller")]
        if not owners:
            return
        worker = self._worker(owners[0])
        if worker is None and not deleted:
            # Left over from before this process started; the record says whether and when it goes.
            await self._look_up(raw["metadata"], owners[0])
            worker = self._worker(owners[0])
        if worker:  # else the garbage collector takes the pod
            worker.observe_pod(raw, deleted=deleted)

    def _worker(self, uid: str) -> ExecutionWorker | SessionWorker | None:
        return self._executions.get(uid) or self._sessions.get(uid)

    async def _look_up(self, meta: Mapping[str, Any], uid: str) -> None:
        """Start a worker for the owner of a pod, whatever its phase is."""
        labels, cluster = meta["labels"], self._context.cluster
        if SESSION_LABEL in labels:
            session = await cluster.get_session(meta["namespace"], labels[SESSION_LABEL])
            if session and session.metadata.uid == uid and uid not in self._sessions:
                self._start_session(session)
            return
        execution = await cluster.get_execution(meta["namespace"], labels[EXECUTION_LABEL])
        if execution and execution.metadata.uid == uid and uid not in self._executions:
            self._start_execution(execution)

    def _start_execution(self, execution: CodeExecution) -> None:
        self._executions[execution.metadata.uid] = ExecutionWorker(self._context, execution, self._register)

    def _start_session(self, session: CodeSession) -> None:
        self._sessions[session.metadata.uid] = SessionWorker(self._context, session, self._forget_session)

    def _adopt_session(self, session: CodeSession) -> None:
        if not session.status.phase.terminal and session.metadata.uid not in self._sessions:
            self._start_session(session)

    def _find_session(self, namespace: str, name: str) -> SessionWorker | None:
        for one in self._sessions.values():
            if (one.meta.namespace, one.meta.name) == (namespace, name) and not one.over:
                return one
        return None

    def _forget_execution(self, worker: ExecutionWorker) -> None:
        del self._executions[worker.meta.uid]

    def _forget_session(self, worker: SessionWorker) -> None:
        del self._sessions[worker.meta.uid]

    def awaited_payloads(self, namespace: str) -> set[str]:
        """Names of the Secrets that an execution still needs."""
        names = [one.awaited_payload for one in self._executions.values() if one.meta.namespace == namespace]
        return {payload_name(name, part) for name in names if name for part in range(MAX_PAYLOAD_PARTS)}

    async def stop(self) -> None:
        """End all work; what was running is marked as lost when the operator starts again."""
        workers = [worker.task for worker in (*self._executions.values(), *self._sessions.values())]
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await self._context.cluster.close()


def _parsed(parse: Callable[[Mapping[str, Any]], _Parsed], raw: Mapping[str, Any]) -> _Parsed | None:
    try:
        return parse(raw)
    except ValidationError as error:  # the schema of the CRD is the same model, so it is newer than this operator
        name = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
        logger.error("%s: not understood, left alone: %s", name, error.errors(include_input=False))
        return None
