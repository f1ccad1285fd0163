"""All executions and sessions that are not over, or whose pod is still there, and all pools."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from codeexec_api import CodeExecution, CodeSession, ExecutionApproval, Phase, PodLimits, SandboxPool, Verdict
from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL, SESSION_LABEL, payload_name
from codeexec_api.v1alpha1 import MAX_PAYLOAD_PARTS
from codeexec_operator.adapters.executions import ExecutionWorker, Register
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.supervision import end
from codeexec_operator.adapters.worker import Context, understood
from codeexec_operator.core.measures import Census
from codeexec_operator.core.pool import STARTS_PER_NODE, fair_shares

_TURN_SECONDS: Final = 10
"""How long those who got what can't be shared evenly have it: about what a pod takes to start."""

_TRIES: Final = 3
_TRY_AGAIN_SECONDS: Final = 0.2
_REMEMBERED: Final = 10_000
"""Objects that were let go of, of which something may be heard that is older than their end."""
_Owner = TypeVar("_Owner", CodeExecution, CodeSession)
_Worker = TypeVar("_Worker", ExecutionWorker, SessionWorker)


@dataclass(frozen=True)
class Known:
    """Objects of a namespace that are not over, by UID, and pods, by name."""

    objects: frozenset[str]
    pods: frozenset[str]


class Controller:
    """Passes what is observed to the worker of the object that it is about, and starts one where there is none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._executions: dict[str, ExecutionWorker] = {}
        self._by_name: dict[tuple[str, str], ExecutionWorker] = {}
        self._sessions: dict[str, SessionWorker] = {}
        self._sessions_by_name: dict[tuple[str, str], SessionWorker] = {}
        self._pools: dict[str, PoolWorker] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        """Resource versions, by UID, at which executions and sessions were let go of lately."""
        self._register = Register(self._find_session, self._adopt_session, self._find_pool, self._forget_execution)

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
        key = (raw["metadata"]["namespace"], raw["metadata"].get("labels", {}).get(EXECUTION_LABEL, ""))
        worker = self._by_name.get(key)
        if worker and (approval := understood(ExecutionApproval.parse, raw)):
            worker.observe_approval(approval, deleted=deleted)

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
        self._pools[pool.metadata.uid] = PoolWorker(
            self._context,
            pool,
            forget=self._forget_pool,
            allowance=self._allowance,
            started=self._wake_pools,
            opened=self._pool_opened,
        )

    def on_policy(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """An ExecutionPolicy was seen, changed or deleted."""
        self._context.policies.observe(raw, deleted=deleted)
        self.policy_changed(raw["metadata"]["namespace"])

    def policy_changed(self, namespace: str) -> None:
        """The policy of a namespace is another one."""
        for pool in self._pools.values():
            if pool.meta.namespace == namespace:
                pool.policy_changed()
        for execution in self._executions.values():  # a human may be asked for something else now, or not any more
            if execution.meta.namespace == namespace:
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
        await _stop([one for one in here if one not in running and not isinstance(one, SessionWorker)])
        await _stop([one for one in here if isinstance(one, SessionWorker) and not one.busy])
        left = self._of(namespace)
        try:
            for worker in left:
                worker.released = True
            await asyncio.gather(*(asyncio.wait([one.task]) for one in running))
        finally:
            for worker in left:
                worker.released = False
        await _stop(self._of(namespace))

    def _of(self, namespace: str) -> "list[ExecutionWorker | SessionWorker | PoolWorker]":
        every: list[ExecutionWorker | SessionWorker | PoolWorker] = [*self._executions.values()]
        every += [*self._sessions.values(), *self._pools.values()]
        return [one for one in every if one.meta.namespace == namespace]

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
        worker = ExecutionWorker(self._context, execution, self._register)
        self._executions[worker.uid] = self._by_name[worker.meta.namespace, worker.meta.name] = worker

    def _start_session(self, session: CodeSession) -> None:
        worker = SessionWorker(self._context, session, self._forget_session)
        self._sessions[worker.meta.uid] = self._sessions_by_name[worker.meta.namespace, worker.meta.name] = worker

    def _adopt_session(self, session: CodeSession) -> None:
        uid = session.metadata.uid
        late = int(session.metadata.resource_version) < self._ended.get(uid, 0)
        if not session.status.phase.terminal and uid not in self._sessions and not late:
            self._start_session(session)

    def _find_session(self, namespace: str, name: str) -> SessionWorker | None:
        worker = self._sessions_by_name.get((namespace, name))
        return None if worker is None or worker.over else worker

    def _find_pool(self, namespace: str, verdict: Verdict, limits: PodLimits) -> PoolWorker | None:
        here = sorted(
            (one for one in self._pools.values() if one.meta.namespace == namespace), key=lambda one: one.meta.name
        )
        return next((one for one in here if one.serves(verdict, limits)), None)

    def _forget_pool(self, worker: PoolWorker) -> None:
        del self._pools[worker.meta.uid]

    def _pool_opened(self) -> None:
        for execution in self._executions.values():
            execution.pool_opened()

    def _wake_pools(self) -> None:
        for pool in self._pools.values():
            pool.wake()

    def _allowance(self, pool: PoolWorker) -> int:
        """How many pods this pool may have started, besides those that are starting already."""
        wanted: dict[str, int] = {}
        for one in self._pools.values():
            wanted[one.meta.namespace] = wanted.get(one.meta.namespace, 0) + one.wanted
        nodes = sum(node.open_to_sandboxes for node in self._context.lookout.view.nodes)
        turn = int(time.monotonic() / _TURN_SECONDS)
        share = fair_shares(wanted, STARTS_PER_NODE * max(1, nodes), turn)[pool.meta.namespace]
        here = [one for one in self._pools.values() if one.meta.namespace == pool.meta.namespace]
        return share - sum(one.starting for one in here)

    def _forget_execution(self, worker: ExecutionWorker) -> None:
        self._let_go(worker.uid, worker.version)
        del self._executions[worker.uid]
        _forget_name(self._by_name, worker)

    def _forget_session(self, worker: SessionWorker) -> None:
        self._let_go(worker.meta.uid, worker.version)
        del self._sessions[worker.meta.uid]
        _forget_name(self._sessions_by_name, worker)

    def on_payload(self, namespace: str, execution: str) -> None:
        """The payload of an execution was created."""
        if worker := self._by_name.get((namespace, execution)):
            worker.payload_arrived()

    def awaited_payloads(self, namespace: str) -> set[str]:
        """Names of the Secrets that an execution still needs."""
        here = [one for one in self._executions.values() if one.meta.namespace == namespace]
        names = [one.awaited_payload for one in here]
        payloads = {payload_name(name, part) for name in names if name for part in range(MAX_PAYLOAD_PARTS)}
        return payloads | {name for one in here if (name := one.awaited_review)}

    def awaited_keys(self) -> frozenset[str]:
        """Names of the sealing keys that an execution still needs."""
        return frozenset(key for one in self._executions.values() if (key := one.awaited_key))

    def census(self) -> Census:
        """How many there are of what is not over."""
        return Census(
            Counter((one.meta.namespace, one.phase) for one in self._executions.values() if not one.phase.terminal),
            Counter((one.meta.namespace, one.phase) for one in self._sessions.values() if not one.phase.terminal),
            [pool.count for pool in self._pools.values()],
        )

    async def stop(self) -> None:
        """End all work. Code that runs goes on; the next operator takes it up."""
        await _stop([*self._executions.values(), *self._sessions.values(), *self._pools.values()])


async def _stop(workers: "Sequence[ExecutionWorker | SessionWorker | PoolWorker]") -> None:
    await end([worker.task for worker in workers])


def _forget_name(by_name: dict[tuple[str, str], _Worker], worker: _Worker) -> None:
    key = (worker.meta.namespace, worker.meta.name)
    if by_name[key] is worker:  # else one of the same name has come since
        del by_name[key]


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
