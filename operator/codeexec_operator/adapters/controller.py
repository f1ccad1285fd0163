"""All executions and sessions that are not over, or whose pod is still there, and all pools."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from codeexec_api import (
    CodeExecution,
    CodeSession,
    ExecutionApproval,
    Phase,
    PodLimits,
    SandboxPool,
    SessionPhase,
    Verdict,
)
from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL, SESSION_LABEL, payload_name
from codeexec_api.v1alpha1.bounds import MAX_PAYLOAD_PARTS
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.placement import Register
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.roster import Roster
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.supervision import end
from codeexec_operator.adapters.worker import Context, parse_or_log
from codeexec_operator.core.measures import Census
from codeexec_operator.core.observed import Room
from codeexec_operator.core.starts import Starts

_TRIES: Final = 3
_TRY_AGAIN_SECONDS: Final = 0.2
_REMEMBERED: Final = 10_000
"""Objects that were let go of, of which something may be heard that is older than their end."""
_Record: TypeAlias = CodeExecution | CodeSession


@dataclass(frozen=True)
class Known:
    """Objects of a namespace that are not over, by UID, and pods, by name."""

    objects: frozenset[str]
    pods: frozenset[str]


class Controller:
    """Passes what is observed to the worker of the object that it is about, and starts one where there is none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._executions: Roster[ExecutionWorker] = Roster()
        self._sessions: Roster[SessionWorker] = Roster()
        self._pools: Roster[PoolWorker] = Roster()
        self._starts = Starts(self._wake_pool)
        self._ended: OrderedDict[str, int] = OrderedDict()
        """Resource versions, by UID, at which executions and sessions were let go of lately."""
        self._rooms = Rooms(self._look_around, self._wake_pools)
        self._register = Register(self._find_session, self._adopt_session, self._find_pool, self._rooms)

    async def turn(self, raw: Mapping[str, Any]) -> None:
        """Wait until it is the turn of an object's namespace. To read an object takes time of the one thread."""
        await self._context.turns.turn(raw["metadata"]["namespace"])

    def on_execution(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeExecution that isn't over was seen or changed, or it is over or deleted by now."""
        self._on_record(self._executions.get(raw["metadata"]["uid"]), CodeExecution.parse, raw, left=deleted)

    def on_session(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeSession that isn't over was seen or changed, or it is over or deleted by now."""
        self._on_record(self._sessions.get(raw["metadata"]["uid"]), CodeSession.parse, raw, left=deleted)

    def _on_record(
        self,
        worker: ExecutionWorker | SessionWorker | None,
        parse: Callable[[Mapping[str, Any]], Any],
        raw: Mapping[str, Any],
        *,
        left: bool,
    ) -> None:
        uid, version = raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])
        if version <= worker.version if worker else version < self._ended.get(uid, 0):
            return  # most are what was written here, and some are late
        if left:
            if worker:
                worker.observe_leaving(version)
            return
        if (record := parse_or_log(parse, raw)) is None:
            return
        self._context.audit.heard(record.metadata.namespace, record.status.audit)
        if worker:
            worker.observe(record)
        elif not record.status.phase.terminal:
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
        self._pools.add(
            PoolWorker(
                self._context,
                pool,
                starts=self._starts,
                rooms=self._rooms,
                forget=self._forget_pool,
                opened=self._pool_opened,
            )
        )

    def on_policy(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """An ExecutionPolicy was seen, changed or deleted."""
        self._context.policies.observe(raw, deleted=deleted)
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
        live = (worker.meta.uid for worker in workers if isinstance(worker, PoolWorker) or not worker.phase.terminal)
        return Known(frozenset(live), frozenset(pod for worker in workers for pod in worker.pods()))

    def missed(self, namespace: str, known: Known) -> None:
        """These objects and pods aren't listed any more: their deletion, or their end, was missed."""
        for worker in self._of(namespace):
            if worker.meta.uid in known.objects:
                worker.recheck()
            if gone := worker.pods() & known.pods:
                worker.lose_pods(gone)

    async def release(self, namespace: str) -> None:
        """Begin nothing more in a namespace. What runs there is left to end; other records stay as they are.

        Returns when nobody looks after anything there any more. When cancelled, what is left is looked after as before.
        """
        here = self._of(namespace)
        running = [worker for worker in here if isinstance(worker, ExecutionWorker) and worker.phase is Phase.RUNNING]
        await end(*(worker.task for worker in here if worker not in running and not isinstance(worker, SessionWorker)))
        await end(*(worker.task for worker in here if isinstance(worker, SessionWorker) and not worker.busy))
        left = self._of(namespace)
        try:
            for worker in left:
                worker.released = True
            await asyncio.gather(*(asyncio.wait([worker.task]) for worker in running))
        finally:
            for worker in left:
                worker.released = False
        await end(*(worker.task for worker in self._of(namespace)))

    def _of(self, namespace: str) -> "list[ExecutionWorker | SessionWorker | PoolWorker]":
        return [*self._executions.of(namespace), *self._sessions.of(namespace), *self._pools.of(namespace)]

    def _worker(self, uid: str) -> ExecutionWorker | SessionWorker | PoolWorker | None:
        return self._executions.get(uid) or self._sessions.get(uid) or self._pools.get(uid)

    async def _look_up(self, meta: Mapping[str, Any], uid: str) -> None:
        """Start a worker for the owner of a pod, whatever its phase is."""
        namespace, labels, cluster = meta["namespace"], meta["labels"], self._context.cluster
        if SESSION_LABEL in labels:
            record = await self._ask(uid, partial(cluster.get_session, namespace, labels[SESSION_LABEL]))
        else:
            record = await self._ask(uid, partial(cluster.get_execution, namespace, labels[EXECUTION_LABEL]))
        if record and record.metadata.uid == uid and self._worker(uid) is None:
            self._start(record)

    async def _ask(self, uid: str, read: Callable[[], Awaitable[_Record | None]]) -> _Record | None:
        """What the API server has. Not as it was before a worker has written its end meanwhile, and is gone."""
        for _ in range(_TRIES):
            found = await read()
            if found is None or int(found.metadata.resource_version) >= self._ended.get(uid, 0):
                return found
            await asyncio.sleep(_TRY_AGAIN_SECONDS)
        self._ended.pop(uid, None)  # the API server has gone back to what it was
        return found

    def _let_go(self, uid: str, version: int) -> None:
        self._ended[uid] = version
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def _start(self, record: _Record) -> None:
        if isinstance(record, CodeExecution):
            self._executions.add(ExecutionWorker(self._context, record, self._register, self._forget))
        else:
            self._sessions.add(SessionWorker(self._context, record, self._forget, self._rooms, self._find_pool))

    def _forget(self, worker: ExecutionWorker | SessionWorker) -> None:
        self._let_go(worker.meta.uid, worker.version)
        if isinstance(worker, ExecutionWorker):
            self._executions.remove(worker)
        else:
            self._sessions.remove(worker)

    def _adopt_session(self, session: CodeSession) -> None:
        uid = session.metadata.uid
        late = int(session.metadata.resource_version) < self._ended.get(uid, 0)
        if not session.status.phase.terminal and self._sessions.get(uid) is None and not late:
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
        sessions = [session for session in self._sessions.of(namespace) if session.phase is SessionPhase.READY]
        return Room(
            idle=tuple(session.meta.name for session in sessions if not session.busy),
            busy=sum(session.busy for session in sessions),
            executions=sum(run.phase is Phase.RUNNING and bool(run.pods()) for run in self._executions.of(namespace)),
            ready=sum(pool.count.ready for pool in self._pools.of(namespace)),
        )

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
        needed = [worker.awaited for worker in self._executions.of(namespace)]
        parts = {payload_name(one.payload, part) for one in needed if one.payload for part in range(MAX_PAYLOAD_PARTS)}
        return parts | {one.review for one in needed if one.review}

    def awaited_keys(self) -> frozenset[str]:
        """Names of the sealing keys that an execution still needs."""
        return frozenset(key for worker in self._executions if (key := worker.awaited.key))

    def census(self) -> Census:
        """How many there are of what is not over."""
        return Census(
            Counter((worker.meta.namespace, worker.phase) for worker in self._executions if not worker.phase.terminal),
            Counter((worker.meta.namespace, worker.phase) for worker in self._sessions if not worker.phase.terminal),
            [pool.count for pool in self._pools],
        )

    async def stop(self) -> None:
        """End all work. Code that runs goes on; the next operator takes it up."""
        await end(*(worker.task for worker in [*self._executions, *self._sessions, *self._pools]))
