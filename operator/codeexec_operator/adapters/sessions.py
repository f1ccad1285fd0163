"""Looks after one session: its pod, the connection to it, and whose turn it is."""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any

from codeexec_api import CodeSession, CodeSessionStatus, SessionPhase, Verdict
from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.pod_worker import PodWorker
from codeexec_operator.adapters.pool_claimant import FindPool, SessionClaimant
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.session_files import SessionFiles
from codeexec_operator.adapters.worker import Context, all_of, newer, now
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.client_lease import LeaseView, observe, unread
from codeexec_operator.core.line import Line
from codeexec_operator.core.observed import ObservedSession, Room, SessionView
from codeexec_operator.core.observed_pod import Sandbox, is_blocked, lacks_room
from codeexec_operator.core.payload import build_report_request
from codeexec_operator.core.placement import Claimant, has_turn, rank
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.workspace_copy import FILES_JOB

logger = logging.getLogger(__name__)


class SessionWorker(PodWorker):
    """One session. Executions `join` in the order in which they come, and `leave` when they are over."""

    def __init__(
        self,
        context: Context,
        session: CodeSession,
        forget: Callable[["SessionWorker"], None],
        rooms: Rooms,
        find_pool: FindPool,
    ) -> None:
        self._seen = ObservedSession(
            session=session,
            policy=context.policies.default,
            policy_source=context.policies.source(session.metadata.namespace),
            since=now(),
            executions=session.status.executions,
        )
        self._queue: Line[Claimant] = Line(rank)
        self._claimants: dict[str, Claimant] = {}
        """Those in line, by UID."""
        self._forget, self._rooms = forget, rooms
        self._unsure = False
        super().__init__(context, session)
        self._has_no_pod()
        self._files = SessionFiles(self, session.spec.limits)
        self._pool = SessionClaimant(self, lambda: self._seen.session, find_pool)

    @property
    def record(self) -> CodeSession:
        """What is known of the object."""
        return self._seen.session

    @property
    def version(self) -> int:
        """Resource version of what is known here."""
        return int(self._seen.session.metadata.resource_version)

    def observe(self, record: CodeSession) -> None:
        """Take a version of the object, from wherever it comes: a write, too. What its phase asks for is done once."""
        before = self.phase
        self._know(session=record)
        if self.phase in (SessionPhase.STARTING, SessionPhase.READY):
            self._pool.is_in(record.status.pod_name)
        self.discard_others()
        if before is SessionPhase.PENDING and self.phase is SessionPhase.READY:
            self.run_in_background(self._pool.greet())
        if self.phase.terminal and self.phase is not before:
            self.context.telemetry.session_over(record)
            self._pool.leave()

    def _know(self, **facts: Any) -> None:
        self._seen = replace(self._seen, **facts)
        self.wake()

    def join(self, claimant: Claimant) -> None:
        """An execution wants to run in this session; its turn comes when those before it have left."""
        if self._queue.join(claimant):
            self._claimants[claimant.claim.uid] = claimant
            self.wake()

    def let_in(self, claimant: Claimant) -> None:
        """Its start is decided: it is before all others until it leaves."""
        self._queue.let_in(claimant)

    def leave(self, claimant: Claimant, *, ran: bool) -> None:
        """An execution is over."""
        if not self._queue.leave(claimant):
            return
        del self._claimants[claimant.claim.uid]
        if ran:
            self._seen = replace(self._seen, used_at=now(), executions=self._seen.executions + 1)
        self.wake()

    def view_for(self, claimant: Claimant, since: datetime) -> SessionView:
        """What an execution sees of the session that has waited since then."""
        sandbox = replace(self.sandbox, runner=self.connection.view) if self.connection else self.sandbox
        seen = replace(self._seen, storing=self._files.storing)
        turn = self._queue.first is claimant and has_turn(claimant, seen, sandbox)
        place, length = self._queue.place(claimant), len(self._queue)
        return SessionView(self._seen.session, sandbox, turn, since, place, length)

    @property
    def phase(self) -> SessionPhase:
        """As far as is known here."""
        return self._seen.session.status.phase

    @property
    def is_new(self) -> bool:
        """True until something of it is decided."""
        return self.phase is SessionPhase.PENDING

    @property
    def over(self) -> bool:
        """True when nothing can run in it any more."""
        return self.deleted or self._seen.session.status.phase.terminal

    @property
    def busy(self) -> bool:
        """True if executions run or wait in it."""
        return bool(self._claimants)

    def give_up(self, why: str) -> None:
        """Its runner can't be trusted to do anything more."""
        self._know(unresponsive=why)

    async def _step(self) -> Plan:
        plan = await super()._step()
        told = plan.status is not None  # such as why the pod doesn't start
        self._wake_claimants(all_of_them=told or self.over or self._seen.session.spec.ended)
        return plan

    def _wake_claimants(self, *, all_of_them: bool) -> None:
        """Others than the first, and than those whose code has started, only wait, until nothing can run any more."""
        for claimant in self._queue:
            claimant.wake()
            if not (all_of_them or claimant.claim.started):
                return

    def _decide(self) -> Plan:
        needs = self.phase is SessionPhase.STARTING and lacks_room(self.sandbox)
        self._rooms.know(self.meta.namespace, self.meta.uid, now(), needs=needs)
        self._seen = replace(
            self._seen,
            sandbox=self.sandbox,
            cluster_view=self.context.prober.view_from(self.sandbox.pod),
            claimants=self._claimants.keys(),
            pool_asked=self._pool.asked,
            claimed=self._pool.view,
            adopting=self._pool.adopting,
            room=self._rooms.of(self.meta.namespace) if is_blocked(self.sandbox) else Room(),
            ending=False,
            unsure=self._unsure and self.phase in (SessionPhase.READY, SessionPhase.ASLEEP),
            store_url=self.context.outputs.place.url,
            storing=self._files.storing,
            restoring=self._files.restoring,
        )
        return decide_session(self._seen, now(), self.context.timing)

    async def _apply(self, plan: Plan) -> None:
        writes = []
        if isinstance(plan.status, CodeSessionStatus):
            phase = plan.status.phase
            if phase.terminal or phase is SessionPhase.ASLEEP:  # before the pod goes: what runs there has to learn why
                self._seen = replace(self._seen, ending=True)  # nothing is handed over while it is written
                await self._write_status(plan.status)
            else:
                self.pod_name = plan.status.pod_name or self.pod_name
                writes.append(self._write_status(plan.status))
        await all_of([*map(self._act, plan.actions), *writes])

    async def _write_status(self, status: CodeSessionStatus) -> None:
        try:
            written = await self.context.recorder.write_session(self._seen.session, status)
        except Exception as error:
            if self.recheck_unless_refused(error) and status.phase is SessionPhase.ASLEEP:
                self._unsure = True
            raise
        self._unsure = False
        self.observe(newer(written, self._seen.session))

    async def _act(self, action: actions.Action) -> None:
        match action:
            case actions.ReadPolicy():
                policy = await self.context.policies.of(self.meta.namespace)
                source = self.context.policies.source(self.meta.namespace)
                self._know(policy=policy, policy_source=source, policy_read=True)
            case actions.AskPool(image, runtime_class_name):
                self._pool.ask(Verdict(image, runtime_class_name))
            case actions.ReturnPod():
                self._pool.give_back()
                self._has_no_pod()
            case actions.AdoptPod(patch):
                self._pool.adopting = True
                self.run_in_background(self._pool.adopt(patch))
                self.wake()
            case actions.LeavePod():
                self._leave_pod()
            case actions.StoreFiles() | actions.KeepAwake() | actions.RestoreFiles():
                self._files.act(action, self.connection, needed=bool(self._claimants))
            case actions.CancelStray(uid):
                await self._end_stray(uid)
            case actions.ReadLease(name):
                self._know(lease=await self._read_lease(name))
            case _:
                await self.act_on_pod(action, build_report_request(self._seen.session), reusable=True)

    def _leave_pod(self) -> None:
        """It is on record that the session sleeps. A pod that is not deleted now is deleted when it is seen."""
        left, self._unsure = self.pod_name, False
        if self.connection:
            self.connection.close()
        self.sandbox, self.connection = Sandbox(), None
        self._has_no_pod()
        self._files.forget()
        self._pool.begin_anew()
        self._know(policy_read=False)
        if left:
            self.discard(left)

    def _has_no_pod(self) -> None:
        if self.phase is SessionPhase.ASLEEP:
            self.pod_name = ""

    async def _end_stray(self, uid: str) -> None:
        """Unless its execution is there, and only its list takes long. A runner that repeats itself waits, too."""
        claimed = False
        if not uid.startswith(FILES_JOB):
            unfinished = await self.context.cluster.list_unfinished(self.meta.namespace)
            claimed = uid in {execution["metadata"]["uid"] for execution in unfinished}
            self._know(strays_listed_at=now())
            if claimed:
                self._know(since=now())  # the session is not idle
        if self.connection and not claimed:
            logger.warning("%s: ended job %s, which no execution claims", self.name, uid)
            await self.connection.cancel_stray(uid)

    async def _read_lease(self, name: str) -> LeaseView:
        try:
            spec = await self.context.cluster.get_lease(self.meta.namespace, name)
        except REQUEST_ERRORS as error:
            logger.warning("%s: could not read Lease %s (%s)", self.name, name, type(error).__name__)
            return unread(now())
        return observe(self._seen.lease, spec, now())

    async def _get(self) -> CodeSession | None:
        return await self.context.cluster.get_session(self.meta.namespace, self.meta.name)

    async def _end(self) -> None:
        async with AsyncExitStack() as last:  # whatever fails, nobody waits for it, and nobody takes it for known
            last.push_async_callback(super()._end)
            last.callback(self._forget, self)
            await self._leave_all()

    async def _leave_all(self) -> None:
        self._rooms.know(self.meta.namespace, self.meta.uid, now(), needs=False)
        if self.deleted:  # for those who still look at it
            gone = self._seen.session.model_copy(
                update={"spec": self._seen.session.spec.model_copy(update={"ended": True})}
            )
            self._seen = replace(self._seen, session=gone)
        self._wake_claimants(all_of_them=True)
        await self._pool.end()
