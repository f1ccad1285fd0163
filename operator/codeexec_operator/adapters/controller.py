"""All executions and sessions that are not over, or whose pod is still there, and all pools."""

import asyncio
import sys
from collections import ChainMap
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from codeexec_api import (
    CodeExecution,
    CodeSession,
    ExecutionApproval,
    Phase,
    PodLimits,
    SandboxPool,
    Verdict,
)
from codeexec_api.names import EXECUTION_LABEL, EXECUTION_PLURAL, POOL_LABEL, SESSION_LABEL, SESSION_PLURAL
from codeexec_operator.adapters import needs
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.placement import Register
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.reception import Reception
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.tombstones import Tombstones
from codeexec_operator.adapters.worker import Context, end_all, parse_or_log
from codeexec_operator.adapters.worker_index import WorkerIndex
from codeexec_operator.core.measures import Census
from codeexec_operator.core.observed import Room
from codeexec_operator.core.starts import Starts

_Record: TypeAlias = CodeExecution | CodeSession
_Kind: TypeAlias = type[CodeExecution] | type[CodeSession]
_RecordWorker: TypeAlias = ExecutionWorker | SessionWorker


@dataclass(frozen=True)
class Known:
    """Objects of a namespace that are not over, by UID, and pods, by name, each with its version as it was seen."""

    objects: Mapping[str, int]
    pods: Mapping[str, int]


class Controller:
    """Passes what is observed to the worker of the object that it is about, and starts one where there is none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._executions: WorkerIndex[ExecutionWorker] = WorkerIndex()
        self._sessions: WorkerIndex[SessionWorker] = WorkerIndex()
        self._pools: WorkerIndex[PoolWorker] = WorkerIndex()
        self._starts = Starts(self._wake_pool)
        self._tombstones = Tombstones()
        self._reception = Reception(self._read, self._enter, context)
        self._rooms = Rooms(self._look_around, self._wake_pools)
        self._register = Register(self._find_session, self._adopt_session, self._find_pool, self._rooms)

    async def turn(self, raw: Mapping[str, Any]) -> None:
        """Wait until it is the turn of an object's namespace. To read an object takes time of the one thread."""
        await self._reception.turn(raw["metadata"], self._worker)

    def waits(self, kind: _Kind, raw: Mapping[str, Any]) -> bool:
        """True if nobody looks after a request yet, and it is not its turn."""
        uid, version = raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])
        known = self._executions.get(uid) or self._sessions.get(uid) or self._tombstones.outlived(uid, version)
        return not (known or self._reception.lets_in(kind.plural, raw))

    def on_execution(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeExecution that isn't over was seen or changed, or it is over or deleted by now."""
        self._on_record(CodeExecution, self._executions.get(raw["metadata"]["uid"]), raw, left=deleted)

    def on_session(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeSession that isn't over was seen or changed, or it is over or deleted by now."""
        self._on_record(CodeSession, self._sessions.get(raw["metadata"]["uid"]), raw, left=deleted)

    def _on_record(self, kind: _Kind, worker: _RecordWorker | None, raw: Mapping[str, Any], *, left: bool) -> None:
        meta = raw["metadata"]
        uid, version = meta["uid"], int(meta["resourceVersion"])
        if left:
            self._reception.leave(meta["namespace"], uid)
        elif worker:
            self._reception.changed(raw)
        if version <= worker.version if worker else self._tombstones.outlived(uid, version):
            return  # most are what was written here, and some are late
        if left:
            if worker:
                worker.observe_leaving(version)
            return
        if self.waits(kind, raw):
            return
        if (record := parse_or_log(kind.parse, raw)) is None:
            self._reception.leave(meta["namespace"], uid)
            return
        self._take(worker, record)

    def _take(self, worker: _RecordWorker | None, record: Any) -> None:
        self._context.audit.heard(record.metadata.namespace, record.status.audit)
        if worker:
            worker.observe(record)
        elif record.status.phase.terminal:
            self._reception.leave(record.metadata.namespace, record.metadata.uid)
        else:
            self._start(record)

    def on_approval(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """An ExecutionApproval was seen, changed or deleted. Whoever waits for one lists those that were there."""
        name = raw["metadata"].get("labels", {}).get(EXECUTION_LABEL, "")
        worker = self._executions.named(raw["metadata"]["namespace"], name)
        if worker and (approval := parse_or_log(ExecutionApproval.parse, raw)):
            worker.approvals.observe(approval, deleted=deleted)

    def on_pool(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A SandboxPool was seen, changed or deleted."""
        worker = self._pools.get(raw["metadata"]["uid"])
        if deleted:
            if worker:
                worker.observe_deletion()
            return
        if (pool := parse_or_log(SandboxPool.parse, raw)) is None:
            return
        if worker:
            worker.observe(pool)
            return
        worker = PoolWorker(
            self._context,
            pool,
            starts=self._starts,
            rooms=self._rooms,
            forget=self._forget_pool,
            opened=self._pool_opened,
        )
        self._pools.add(worker)

    def on_policy(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """An ExecutionPolicy was seen, changed or deleted."""
        if self._context.policies.observe(raw, deleted=deleted):  # and not only its status
            self.policy_changed(raw["metadata"]["namespace"])

    def policy_changed(self, namespace: str) -> None:
        """The policy of a namespace is another one."""
        for pool in self._pools.of(namespace):
            pool.policy_changed()
        for execution in self._executions.of(namespace):  # a human may be asked for something else, or not any more
            execution.wake()

    async def on_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A sandbox pod was seen, changed or deleted."""
        owners = [owner["uid"] for owner in raw["metadata"].get("ownerReferences") or () if owner.get("controller")]
        if not owners:
            return
        worker = self._worker(owners[0])
        if worker is None and POOL_LABEL in raw["metadata"]["labels"]:
            return  # the worker of a pool lists its pods when it starts
        if worker is None and not deleted:
            # Left over from before this process started; the record says whether and when it goes.
            await self._look_up(raw["metadata"], owners[0])
            worker = self._worker(owners[0])
        if worker:  # else the garbage collector takes the pod
            worker.observe_pod(raw, deleted=deleted)

    def known(self, namespace: str) -> Known:
        """What is known of a namespace at this moment."""
        workers = self._of(namespace)
        live = {one.meta.uid: one.version for one in workers if isinstance(one, PoolWorker) or not one.phase.terminal}
        waiting = {one.uid: sys.maxsize for one in self._reception.waiting(namespace)}  # they are read on their turn
        return Known(waiting | live, dict(ChainMap(*(one.pods() for one in workers))))

    def missed(self, namespace: str, objects: Set[str], pods: Set[str]) -> None:
        """These objects and pods aren't listed any more: their deletion, or their end, was missed."""
        for worker in self._of(namespace):
            if worker.meta.uid in objects:
                worker.recheck()
            if gone := worker.pods().keys() & pods:
                worker.lose_pods(gone)

    async def release(self, namespace: str) -> None:
        """Begin nothing more in a namespace. What runs there is left to end; other records stay as they are.

        Returns when nobody looks after anything there any more. When cancelled, what is left is looked after as before.
        """
        await self._reception.release(namespace)
        here = self._of(namespace)
        running = [worker for worker in here if isinstance(worker, ExecutionWorker) and worker.phase is Phase.RUNNING]
        await end_all([one for one in here if one not in running and not isinstance(one, SessionWorker)])
        await end_all([one for one in here if isinstance(one, SessionWorker) and not one.busy])
        left = self._of(namespace)
        try:
            for worker in left:
                worker.released = True
            await asyncio.gather(*(asyncio.wait([worker.task]) for worker in running))
        finally:
            for worker in left:
                worker.released = False
        await end_all(self._of(namespace))

    def _of(self, namespace: str) -> "list[ExecutionWorker | SessionWorker | PoolWorker]":
        return [*self._executions.of(namespace), *self._sessions.of(namespace), *self._pools.of(namespace)]

    def _worker(self, uid: str) -> ExecutionWorker | SessionWorker | PoolWorker | None:
        return self._executions.get(uid) or self._sessions.get(uid) or self._pools.get(uid)

    async def _look_up(self, meta: Mapping[str, Any], uid: str) -> None:
        """Start a worker for the owner of a pod, whatever its phase is."""
        in_session = SESSION_LABEL in meta["labels"]
        plural, label = (SESSION_PLURAL, SESSION_LABEL) if in_session else (EXECUTION_PLURAL, EXECUTION_LABEL)
        record = await self._read(plural, meta["namespace"], meta["labels"][label], uid)
        if record and self._worker(uid) is None:
            self._start(record)

    async def _read(self, plural: str, namespace: str, name: str, uid: str) -> _Record | None:
        cluster = self._context.cluster
        get: Any = cluster.get_execution if plural == EXECUTION_PLURAL else cluster.get_session
        record: _Record | None = await self._tombstones.ask(uid, partial(get, namespace, name))
        return record if record and record.metadata.uid == uid else None

    def _enter(self, record: _Record) -> None:
        """A request has been read. It may have been heard of meanwhile, too."""
        worker = self._executions.get(record.metadata.uid) or self._sessions.get(record.metadata.uid)
        if worker is None or worker.version < int(record.metadata.resource_version):
            self._take(worker, record)

    def _start(self, record: _Record) -> None:
        self._reception.let_in(record)
        if isinstance(record, CodeExecution):
            self._executions.add(ExecutionWorker(self._context, record, self._register, self._forget))
        else:
            self._sessions.add(SessionWorker(self._context, record, self._forget, self._rooms, self._find_pool))

    def _forget(self, worker: _RecordWorker) -> None:
        self._tombstones.let_go(worker.meta.uid, worker.version)
        self._reception.leave(worker.meta.namespace, worker.meta.uid)
        if isinstance(worker, ExecutionWorker):
            self._executions.remove(worker)
        else:
            self._sessions.remove(worker)

    def _adopt_session(self, session: CodeSession) -> None:
        uid, version = session.metadata.uid, int(session.metadata.resource_version)
        late = session.status.phase.terminal or self._tombstones.outlived(uid, version)
        if not late and self._sessions.get(uid) is None:
            self._start(session)

    def _find_session(self, namespace: str, name: str) -> SessionWorker | None:
        worker = self._sessions.named(namespace, name)
        return None if worker is None or worker.over else worker

    def _find_pool(
        self, namespace: str, verdict: Verdict, limits: PodLimits, *, stateful: bool = False
    ) -> PoolWorker | None:
        here = sorted(self._pools.of(namespace), key=lambda pool: pool.order)
        return next((pool for pool in here if pool.serves(verdict, limits, stateful=stateful)), None)

    def _look_around(self, namespace: str) -> Room:
        sessions, executions = self._sessions.of(namespace), self._executions.of(namespace)
        return needs.room(sessions, executions, self._pools.of(namespace))

    def _wake_pools(self, namespace: str) -> None:
        for pool in self._pools.of(namespace):
            pool.wake()

    def _forget_pool(self, worker: PoolWorker) -> None:
        self._starts.forget(worker.meta.uid)
        self._pools.remove(worker)

    def _pool_opened(self, namespace: str) -> None:
        for execution in self._executions.of(namespace):
            execution.place.pool_opened()

    def _wake_pool(self, uid: str) -> None:
        if pool := self._pools.get(uid):
            pool.wake()

    def on_payload(self, namespace: str, execution: str) -> None:
        """The payload of an execution was created."""
        if worker := self._executions.named(namespace, execution):
            worker.payload_arrived()

    def awaited_payloads(self, namespace: str) -> set[str]:
        """Names of the Secrets that an execution still needs."""
        return needs.payloads(self._executions.of(namespace), self._reception.waiting(namespace))

    def awaited_keys(self) -> frozenset[str]:
        """Names of the sealing keys that an execution still needs."""
        return needs.keys(self._executions, self._reception.all_waiting())

    def census(self) -> Census:
        """How many there are of what is not over."""
        return needs.census(self._executions, self._sessions, self._pools, self._reception.all_waiting())

    async def stop(self) -> None:
        """End all work. Code that runs goes on; the next operator takes it up."""
        await self._reception.stop()
        await end_all([*self._executions, *self._sessions, *self._pools])
