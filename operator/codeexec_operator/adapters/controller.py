"""All executions and sessions that are not over, or whose pod is still there, and all pools."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

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
from codeexec_operator.adapters.worker import Context, understood
from codeexec_operator.core.measures import Census
from codeexec_operator.core.observed import Room
from codeexec_operator.core.starts import Starts

_TRIES: Final = 3
_TRY_AGAIN_SECONDS: Final = 0.2
_REMEMBERED: Final = 10_000
"""Objects that were let go of, of which something may be heard that is older than their end."""
_Owner = TypeVar("_Owner", CodeExecution, CodeSession)


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
        uid, version = raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])
        worker = self._executions.get(uid)
        if version <= worker.version if worker else version < self._ended.get(uid, 0):
            return  # most are what was written here, and some are late
        execution = _unfinished(worker, CodeExecution.parse, raw, left=deleted)
        if execution is None:
            return
        self._context.audit.heard(execution.metadata.namespace, execution.status.audit)
        if worker:
            worker.observe_execution(execution)
        elif not execution.status.phase.terminal:
            self._start_execution(execution)

    def on_approval(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """An ExecutionApproval was seen, changed or deleted. Whoever waits for one lists those that were there."""
        name = raw["metadata"].get("labels", {}).get(EXECUTION_LABEL, "")
        worker = self._executions.named(raw["metadata"]["namespace"], name)
        if worker and (approval := understood(ExecutionApproval.parse, raw)):
            worker.approvals.observe(approval, deleted=deleted)

    def on_session(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeSession that isn't over was seen or changed, or it is over or deleted by now."""
        worker = self._sessions.get(raw["metadata"]["uid"])
        session = _unfinished(worker, CodeSession.parse, raw, left=deleted)
        if session is None:
            return
        self._context.audit.heard(session.metadata.namespace, session.status.audit)
        if worker:
            worker.observe_session(session)
        else:
            self._adopt_session(session)

    def on_pool(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A SandboxPool was seen, changed or deleted."""
        worker = self._pools.get(raw["metadata"]["uid"])
        if deleted:
            if worker:
                worker.observe_deletion()
            return
        if (pool := understood(SandboxPool.parse, raw)) is None:
            return
        if worker:
            worker.observe_pool(pool)
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
        owners = [one["uid"] for one in raw["metadata"].get("ownerReferences") or () if one.get("controller")]
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
        live = (one.meta.uid for one in workers if isinstance(one, PoolWorker) or not one.phase.terminal)
        return Known(frozenset(live), frozenset(pod for one in workers for pod in one.pods()))

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
        running = [one for one in here if isinstance(one, ExecutionWorker) and one.phase is Phase.RUNNING]
        await end(*(one.task for one in here if one not in running and not isinstance(one, SessionWorker)))
        await end(*(one.task for one in here if isinstance(one, SessionWorker) and not one.busy))
        left = self._of(namespace)
        try:
            for worker in left:
                worker.released = True
            await asyncio.gather(*(asyncio.wait([one.task]) for one in running))
        finally:
            for worker in left:
                worker.released = False
        await end(*(one.task for one in self._of(namespace)))

    def _of(self, namespace: str) -> "list[ExecutionWorker | SessionWorker | PoolWorker]":
        return [*self._executions.of(namespace), *self._sessions.of(namespace), *self._pools.of(namespace)]

    def _worker(self, uid: str) -> ExecutionWorker | SessionWorker | PoolWorker | None:
        return self._executions.get(uid) or self._sessions.get(uid) or self._pools.get(uid)

    async def _look_up(self, meta: Mapping[str, Any], uid: str) -> None:
        """Start a worker for the owner of a pod, whatever its phase is."""
        labels, cluster = meta["labels"], self._context.cluster
        if SESSION_LABEL in labels:
            session = await self._ask(uid, lambda: cluster.get_session(meta["namespace"], labels[SESSION_LABEL]))
            if session and session.metadata.uid == uid and uid not in self._sessions:
                self._start_session(session)
            return
        execution = await self._ask(uid, lambda: cluster.get_execution(meta["namespace"], labels[EXECUTION_LABEL]))
        if execution and execution.metadata.uid == uid and uid not in self._executions:
            self._start_execution(execution)

    async def _ask(self, uid: str, read: Callable[[], Awaitable[_Owner | None]]) -> _Owner | None:
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

    def _start_execution(self, execution: CodeExecution) -> None:
        self._executions.add(ExecutionWorker(self._context, execution, self._register, self._forget_execution))

    def _start_session(self, session: CodeSession) -> None:
        self._sessions.add(
            SessionWorker(self._context, session, self._forget_session, self._rooms, self._register.find_pool)
        )

    def _adopt_session(self, session: CodeSession) -> None:
        uid = session.metadata.uid
        late = int(session.metadata.resource_version) < self._ended.get(uid, 0)
        if not session.status.phase.terminal and uid not in self._sessions and not late:
            self._start_session(session)

    def _find_session(self, namespace: str, name: str) -> SessionWorker | None:
        worker = self._sessions.named(namespace, name)
        return None if worker is None or worker.over else worker

    def _find_pool(self, namespace: str, verdict: Verdict, limits: PodLimits) -> PoolWorker | None:
        here = sorted(self._pools.of(namespace), key=lambda one: one.meta.name)
        return next((one for one in here if one.serves(verdict, limits)), None)

    def _look_around(self, namespace: str) -> Room:
        sessions = [one for one in self._sessions.of(namespace) if one.phase is SessionPhase.READY]
        return Room(
            idle=tuple(one.meta.name for one in sessions if not one.busy),
            busy=sum(one.busy for one in sessions),
            executions=sum(one.phase is Phase.RUNNING and bool(one.pods()) for one in self._executions.of(namespace)),
            ready=sum(one.count.ready for one in self._pools.of(namespace)),
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

    def _forget_execution(self, worker: ExecutionWorker) -> None:
        self._let_go(worker.uid, worker.version)
        self._executions.remove(worker)

    def _forget_session(self, worker: SessionWorker) -> None:
        self._let_go(worker.meta.uid, worker.version)
        self._sessions.remove(worker)

    def on_payload(self, namespace: str, execution: str) -> None:
        """The payload of an execution was created."""
        if worker := self._executions.named(namespace, execution):
            worker.payload_arrived()

    def awaited_payloads(self, namespace: str) -> set[str]:
        """Names of the Secrets that an execution still needs."""
        here = self._executions.of(namespace)
        names = [one.awaited_payload for one in here]
        payloads = {payload_name(name, part) for name in names if name for part in range(MAX_PAYLOAD_PARTS)}
        return payloads | {name for one in here if (name := one.awaited_review)}

    def awaited_keys(self) -> frozenset[str]:
        """Names of the sealing keys that an execution still needs."""
        return frozenset(key for one in self._executions if (key := one.awaited_key))

    def census(self) -> Census:
        """How many there are of what is not over."""
        return Census(
            Counter((one.meta.namespace, one.phase) for one in self._executions if not one.phase.terminal),
            Counter((one.meta.namespace, one.phase) for one in self._sessions if not one.phase.terminal),
            [pool.count for pool in self._pools],
        )

    async def stop(self) -> None:
        """End all work. Code that runs goes on; the next operator takes it up."""
        await end(*(one.task for one in [*self._executions, *self._sessions, *self._pools]))


def _unfinished(
    worker: ExecutionWorker | SessionWorker | None,
    parse: Callable[[Mapping[str, Any]], _Owner],
    raw: Mapping[str, Any],
    *,
    left: bool,
) -> _Owner | None:
    """The record as it is now; None if it is no longer among those that aren't over, or isn't understood."""
    if left:
        if worker:
            worker.observe_leaving(int(raw["metadata"]["resourceVersion"]))
        return None
    return understood(parse, raw)
