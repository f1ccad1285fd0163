"""Where one execution runs: in the pod of a session, in one of a pool, or in its own.

`core/placement.py` decides; here it is carried out.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from codeexec_api import CodeExecution, CodeSession, Phase, Verdict
from codeexec_operator.adapters.api_server import NETWORK_ERRORS
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.pod_worker import PodWorker
from codeexec_operator.adapters.pool_claimant import FindPool, PoolClaimant
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.observed import PoolView, Room, SessionView
from codeexec_operator.core.observed_pod import is_blocked, lacks_room
from codeexec_operator.core.placement import Claim, Step, next_step
from codeexec_operator.core.reuse import tenant_of


@dataclass(frozen=True)
class Register:
    """Where sessions and pools are found."""

    find_session: Callable[[str, str], SessionWorker | None]
    """By namespace and name; None if none is known that is not over."""
    adopt_session: Callable[[CodeSession], None]
    find_pool: FindPool
    rooms: Rooms


class Placement(PoolClaimant):
    """Stands for the execution in the queue of its session or its pool, where it is a `PodClaimant`.

    `worker` has the pod of the execution, be it its own or one of a pool; `execution` is what is known of it now.
    """

    def __init__(self, worker: PodWorker, execution: Callable[[], CodeExecution], register: Register) -> None:
        super().__init__(worker, register.find_pool)
        self.asked: Verdict | None = None
        self._execution, self._register = execution, register
        self._session: SessionWorker | None = None
        self._adopts = self.handed_back = False
        self._joined_at = self._since = now()

    # --- PodClaimant ---

    @property
    def claim(self) -> Claim:
        """What its place depends on."""
        meta, spec = self._worker.meta, self._execution().spec
        created = meta.creation_timestamp or self._since
        tenant = tenant_of(self._execution(), self.asked)
        return Claim(meta.uid, created, self.started, self.asked, spec.limits, tenant=tenant)

    @property
    def started(self) -> bool:
        """True if its record says that its code was started."""
        return self._execution().status.started_at is not None

    # --- what the worker sees ---

    @property
    def connection(self) -> Connection | None:
        """To the runner that has its code, or will have."""
        return self._session.connection if self._session else self._worker.connection

    @property
    def waits(self) -> bool:
        """True if it is on record as one that gets a pod of a pool, and has none."""
        status = self._execution().status
        return bool(status.pool_name) and not self._claimed and not status.started_at

    def view_session(self) -> SessionView | None:
        """The session, if it is in line there."""
        over = self._execution().status.phase.terminal
        return self._session.view_for(self, self._joined_at) if self._session and not over else None

    def view_pool(self) -> PoolView | None:
        """The pool that was asked, with the pod that it has given, until the code starts."""
        status = self._execution().status
        if self._pool is None or status.phase.terminal or status.started_at:
            return None
        view = self._pool.view_for(self, self._joined_at)
        if claimed := self._claimed:
            of, name, proven = claimed.template, claimed.pod_name, claimed.proven
            view = replace(view, pod_name=name, proven=proven, use=claimed.uses, reset=claimed.reset)
            return replace(view, image=of.image, runtime_class_name=of.runtime_class_name)
        asked = self.asked or Verdict("", None)
        return replace(view, image=asked.image, runtime_class_name=asked.runtime_class_name)

    def room(self) -> Room:
        """What has pods in its namespace, if no node has room for its own."""
        return self._register.rooms.of(self._worker.meta.namespace) if is_blocked(self._worker.sandbox) else Room()

    def ask_for_room(self) -> None:
        """Have pools make room if no node has any for its pod, as long as its code may start."""
        meta, starting = self._worker.meta, self._execution().status.phase is Phase.STARTING
        needs = starting and not self._worker.deleted and lacks_room(self._worker.sandbox)
        self._register.rooms.know(meta.namespace, meta.uid, now(), needs=needs)

    # --- what is done ---

    def step(self) -> None:
        """Change what has to be changed before it is decided what else is to be done."""
        self.ask_for_room()
        session, pool, claimed = self._session, self._pool, self._claimed
        served = bool(pool and self.asked and not claimed and pool.serves(self.asked, self.claim.limits))
        pod = self._worker.sandbox if claimed else None
        step = next_step(self._execution(), session=bool(session), pool=bool(pool), served=served, pod=pod)
        if step is Step.JOIN_SESSION:
            self._join_session()
        elif step is Step.LEAVE_SESSION and session:
            session.leave(self, ran=False)
            self._session = None
        elif step is Step.RETURN_POD and pool:
            self.give_back()
            self._join(pool)
        elif step is Step.LEAVE_POOL and pool:
            pool.leave(self, None)
            self._pool = self.asked = None

    def _join_session(self) -> None:
        ref = self._execution().spec.session_ref
        if ref and (found := self._register.find_session(self._worker.meta.namespace, ref.name)):
            self._session, self._joined_at = found, now()
            found.join(self)

    def let_in(self) -> None:
        """Its start is decided, and is on its way to its record: whoever joins its session later waits."""
        if self._session:
            self._session.let_in(self)

    async def look_up_session(self) -> SessionView | None:
        """The session as the API server has it, if it is not in line there; None if there is none."""
        ref, worker = self._execution().spec.session_ref, self._worker
        if ref is None or self._session:
            return None
        session = await worker.context.cluster.get_session(worker.meta.namespace, ref.name)
        if session is None:
            return None
        self._register.adopt_session(session)
        return SessionView(session)

    def pool_opened(self) -> None:
        """There is a pool that wasn't there before."""
        if self._pool is None and not self._execution().status.pod_name:
            self.asked = None
            self.wake()

    def ask(self, verdict: Verdict) -> None:
        """Leave the pool and the pod of the last request, then ask a pool for this verdict."""
        self._leave_pool()
        self.asked = verdict
        self._pool = self._find_pool(self._worker.meta.namespace, verdict, self.claim.limits)
        if self._pool:
            self._join(self._pool)
        self.wake()

    @property
    def may_hand_back(self) -> bool:
        """True if its pod can go back to the pool after it: then the pod doesn't become its own at once.

        A pod that had to be connected to anew can't: the pool would keep the connection that it has handed out.
        """
        pool, pod = self._pool, self._claimed
        same = bool(pool and pool.keeps_pods and pod and pod.connection is self._worker.connection)
        return same and not self._adopts and self.claim.tenant is not None

    def hand_back(self) -> None:
        """It is over: leave its pod to the pool, if that keeps it for the same tenant."""
        pool, claimed, tenant = self._pool, self._claimed, self.claim.tenant
        if not (pool and claimed and tenant and self.may_hand_back):
            return
        if pool.take_back(replace(claimed, sandbox=self._worker.sandbox), self._execution(), tenant):
            self.handed_back = True
            self._pool = None
            self._has_none()

    async def adopt(self, patch: Mapping[str, Any]) -> bool:
        """Make the pod its own: from now on nobody else gets it. Unless it has none any more."""
        if self.handed_back or self._worker.deleted:
            return False
        self._adopts = True
        return await super().adopt(patch)

    def give_up_session(self, why: str) -> None:
        """Nothing may run there any more."""
        if self._session:
            self._session.give_up(why)

    async def abandon_session(self) -> None:
        """Stop what runs of it there: nobody wants to hear of it."""
        if self._session and (runner := self._session.connection):
            runner.abandon(self._worker.meta.uid)
            with suppress(*NETWORK_ERRORS):  # else the session sees to it, once it is connected again
                await runner.cancel(self._worker.meta.uid)

    def leave(self) -> None:
        """It is over, or nobody looks after it here any more."""
        self._register.rooms.know(self._worker.meta.namespace, self._worker.meta.uid, now(), needs=False)
        if self._session:
            self._session.leave(self, ran=self.started)
        self._leave_pool()

    def _join(self, pool: PoolWorker) -> None:
        self._joined_at = now()
        pool.join(self)

    def _leave_pool(self) -> None:
        if self._claimed and not self.started:
            self.give_back()
        elif self._pool:
            self._pool.leave(self, self._claimed)
