"""Looks after one execution, in a pod of its own or in that of a session."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

from codeexec_api import CodeExecution, CodeExecutionStatus, Phase, Reason, Verdict
from codeexec_api.names import pod_name
from codeexec_operator.adapters.approvals import Approvals
from codeexec_operator.adapters.chores import Chores
from codeexec_operator.adapters.code_run import CodeRun
from codeexec_operator.adapters.placement import Placement, Register
from codeexec_operator.adapters.pod_worker import PodWorker
from codeexec_operator.adapters.request_reader import RequestReader
from codeexec_operator.adapters.worker import Context, all_of, newer, now
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.observed import Observed, SessionView
from codeexec_operator.core.payload import (
    Awaited,
    HeldPayload,
    Payload,
    PayloadProblem,
    build_report_request,
    hold,
    may_wait,
)
from codeexec_operator.core.reconcile import decide

_LITTLE_CODE: Final = 4096
"""Sealed code that stays in memory: it takes less than its worker, and another read of the request would delay it."""


def _lean(execution: CodeExecution, payload: object = None) -> CodeExecution:
    """Without what would only fill memory here: its code, once a payload was verified, and all output at its end.

    Whoever needs the code again reads the request again. The digests in the spec say whether that is the same.
    """
    sealed = execution.spec.sealed_payload
    if not execution.status.phase.terminal:
        if sealed is None or len(sealed.data) <= _LITTLE_CODE or not isinstance(payload, Payload | HeldPayload):
            return execution
        spec = execution.spec.model_copy(update={"sealed_payload": sealed.model_copy(update={"data": ""})})
        return execution.model_copy(update={"spec": spec})
    spec = execution.spec.model_copy(update={"sealed_payload": None})
    heavy = {"stdout": None, "stderr": None, "output_order": (), "blocks": (), "artifacts": ()}
    heavy |= {"output_refs": (), "output_store": None}
    return execution.model_copy(update={"spec": spec, "status": execution.status.model_copy(update=heavy)})


def _lets_go(execution: CodeExecution, session: SessionView | None) -> bool:
    """True if it may wait for long, and its code is in Secrets: for a human, or for a session that isn't there.

    Sealed code is little, and counted as a part of its request. If somebody is to approve it, it is published first.
    """
    spec = execution.spec
    asks, lost = execution.status.phase is Phase.AWAITING_APPROVAL, spec.session_ref is not None and session is None
    return spec.payload_ref is not None and (asks or lost)


def _in_order(
    plan: Sequence[actions.Action], *, ends: bool
) -> tuple[Sequence[actions.Action], Sequence[actions.Action], Sequence[actions.Action]]:
    """What is done before the status is written, at the same time, and after that.

    Code that somebody is to approve can be read before the record says so, and until the record has the decision. Pod,
    payload and session of an execution that ends go after the record of its end: if the record has to be written again,
    their absence must not be the reason.
    """
    first = [action for action in plan if isinstance(action, actions.PublishCode)]
    goes = actions.DeletePod | actions.DeletePayload | actions.GiveUpSession
    last = [
        action for action in plan if isinstance(action, actions.WithdrawCode) or (ends and isinstance(action, goes))
    ]
    return first, [action for action in plan if action not in (*first, *last)], last


class ExecutionWorker(PodWorker):
    """One execution. Its parts: where it runs, what it refers to, who approves it, and what its code tells."""

    def __init__(
        self,
        context: Context,
        execution: CodeExecution,
        register: Register,
        forget: Callable[["ExecutionWorker"], None],
    ) -> None:
        self.uid = execution.metadata.uid
        super().__init__(context, execution)
        self._begun = execution.spec.cancelled  # its end makes room, so it comes before what is new
        self._forget = forget
        self._owed: tuple[Phase, Sequence[actions.Action]] = Phase.PENDING, ()
        """What is done once the record has this phase, or an end."""
        self._seen = Observed(execution=_lean(execution), policy=context.policies.default, since=now())
        self.place = Placement(self, lambda: self._seen.execution, register)
        self._request = RequestReader(self, lambda: self._seen)
        self.approvals = Approvals(self)
        self._code = CodeRun(self, lambda: self._seen)
        self._chores = Chores(self, self._code, self._act)
        if self.place.started:  # in line before all that wait: a runner forgets a job when the next one begins
            self.place.step()

    # --- what others ask ---

    @property
    def record(self) -> CodeExecution:
        """What is known of the object."""
        return self._seen.execution

    @property
    def awaited(self) -> Awaited:
        """What it may still need."""
        return Awaited.by(self._seen.execution, handed_over=self._code.arrived)

    @property
    def phase(self) -> Phase:
        """As far as is known here."""
        return self._seen.execution.status.phase

    @property
    def version(self) -> int:
        """Resource version of what is known here."""
        return int(self._seen.execution.metadata.resource_version)

    @property
    def is_new(self) -> bool:
        """True until something of it is decided."""
        return self.phase is Phase.PENDING

    # --- what is observed ---

    def _know(self, **facts: Any) -> None:
        self._seen = replace(self._seen, **facts)
        self.wake()

    def observe(self, record: CodeExecution) -> None:
        """Take a newer version of the object."""
        self._take_in(record)
        self.wake()

    def _take_in(self, record: CodeExecution) -> None:
        """Know a version of the record, and do what its phase asks for, once.

        It comes from a write, from the watch, or from a read after a write whose answer was lost.
        """
        before = self.phase
        self._seen = replace(self._seen, execution=_lean(record, self._seen.payload))
        if isinstance(payload := self._seen.payload, Payload):
            self._seen = replace(self._seen, payload=hold(payload, waits=may_wait(record)))
        if self.phase in (Phase.STARTING, Phase.RUNNING) and record.status.pod_name and not record.spec.session_ref:
            self.place.is_in(record.status.pod_name)
        self.discard_others()
        if self.phase is before:
            return
        if self.phase is Phase.APPROVED:  # its session may have ended meanwhile
            self._seen = replace(self._seen, payload=None, session=None)
        if self.phase.terminal:
            self.context.telemetry.execution_over(record, self._seen.since)
            self._let_go()

    def _let_go(self) -> None:
        """What the execution has had is for others."""
        self._seen = replace(self._seen, payload=None)
        if self._code.transcript.done:
            self.place.hand_back()
        self._code.over()
        self.place.leave()
        self._chores.end(self.place.connection)

    def observe_deletion(self) -> None:
        """What waits for the end of its code need not wait any more."""
        super().observe_deletion()
        self._chores.end()

    def payload_arrived(self) -> None:
        """Its payload was created."""
        if isinstance(self._seen.payload, PayloadProblem) and self._seen.payload.reason is Reason.PAYLOAD_MISSING:
            self._know(payload=None)

    # --- Worker ---

    def _look(self) -> None:
        super()._look()
        self.place.step()

    def _decide(self) -> Plan:
        if self._code.transcript.over:  # before its output is looked at as if all of it could stand in the record
            self._code.transcript.finish()
        facts = self._code.facts
        if self._code.told:
            facts["payload"] = None
        if policy := self.context.policies.known(self.meta.namespace):
            facts |= {"policy": policy, "policy_source": self.context.policies.source(self.meta.namespace)}
        self._seen = replace(
            self._seen,
            sandbox=self.sandbox,
            session=self.place.view_session() or self._seen.session,
            pool=self.place.view_pool(),
            pool_asked=self.place.asked is not None,
            room=self.place.room(),
            approvals=self.approvals.known,
            code_unreadable=self.approvals.unreadable,
            cluster_view=self.context.prober.view_from(self.sandbox.pod),
            **facts,
        )
        return decide(self._seen, now(), self.context.timing)

    def _decide_again(self) -> Plan:
        self._look()
        return self._decide()

    async def _apply(self, plan: Plan) -> None:
        """Write the status and act, in the order of `_in_order`; code starts after the record of its start.

        What follows a decision is done once it is on record, whether the answer to the write or a read has told.
        """
        awaited, owed = self._owed
        if self.phase.terminal or self.phase is awaited:
            await all_of([self._act(action) for action in owed])
            self._owed = awaited, ()
        status = plan.status if isinstance(plan.status, CodeExecutionStatus) else None
        if status and status.phase.terminal and not self._code.kept:
            await self._code.keep()
            await self._apply(self._decide_again())
            return
        if any(isinstance(action, actions.StartCode) for action in plan.actions):
            await self._start(plan)
            return
        first, meanwhile, last = _in_order(plan.actions, ends=status is not None and status.phase.terminal)
        self._owed = status.phase if status else self.phase, last  # instead of what a decision off the record asked for
        await all_of([self._act(action) for action in first])
        jobs: list[Coroutine[Any, Any, None]] = [self._act(action) for action in meanwhile]
        await all_of([*jobs, self._write_status(status)] if status else jobs)

    async def _start(self, plan: Plan) -> None:
        if self._seen.execution.status.approval:
            await self.approvals.read()  # what is watched may be late, or have missed that one was deleted
            plan = self._decide_again()
        start = next((action for action in plan.actions if isinstance(action, actions.StartCode)), None)
        if start is None:
            await self._apply(plan)
            return
        self.place.let_in()
        adoptions = [action for action in plan.actions if isinstance(action, actions.AdoptPod)]
        others = [action for action in plan.actions if action is not start and action not in adoptions]
        if isinstance(plan.status, CodeExecutionStatus):
            await self._write_status(plan.status)
        self._code.begin()
        timing = self.context.timing
        self._chores.adopt(adoptions, timing.reuse_run if self.place.may_hand_back else timing.adopt)
        runner = self.place.connection
        await self._code.start(runner, start.messages)
        self._chores.tidy_up(others, runner)

    async def _write_status(self, status: CodeExecutionStatus) -> None:
        written = await self.rechecked(self.context.recorder.write_execution(self._seen.execution, status))
        self._seen = replace(self._seen, recorded_at=now())
        self._take_in(newer(written, self._seen.execution))

    async def _act(self, action: actions.Action) -> None:
        match action:
            case actions.ReadRequest():
                await self._read_request()
            case actions.ReadApprovals():
                await self.approvals.read()
            case actions.PublishCode(payload):
                await self.approvals.publish(self._seen.execution, payload)
            case actions.WithdrawCode():
                await self.approvals.withdraw(self._seen.execution)
            case actions.DeletePayload() | actions.CloseEgress():
                await self._put_away(action)
            case actions.AskPool(image, runtime_class_name):
                self.place.ask(Verdict(image, runtime_class_name))
            case actions.AdoptPod(patch):
                await self.place.adopt(patch)
            case actions.GiveUpSession(why):
                self.place.give_up_session(why)
            case actions.CancelCode() | actions.ResumeCode():
                await self._code.act(action, self.place.connection)
            case _:
                await self.act_on_pod(action, build_report_request(self._seen.execution), reusable=False)

    async def _put_away(self, action: actions.DeletePayload | actions.CloseEgress) -> None:
        """What doesn't succeed here is left to the sweeper and to the garbage collector."""
        cluster, namespace = self.context.cluster, self.meta.namespace
        if isinstance(action, actions.DeletePayload):
            failure = "the payload was not deleted"
            await asyncio.gather(
                *(self.insist(failure, cluster.delete_payload, namespace, *secret) for secret in action.secrets)
            )
            return
        name = pod_name(self.meta.name, self.meta.uid)
        await self.insist("its NetworkPolicy was not deleted", cluster.delete_network_policy, namespace, name)
        self._know(egress_closed=True)

    async def _read_request(self) -> None:
        if not (facts := await self._request.read()):
            return
        if session := await self.place.look_up_session():
            facts["session"] = session
        known = session or self.place.view_session() or self._seen.session
        if isinstance(facts["payload"], Payload) and (self.place.waits or _lets_go(self._seen.execution, known)):
            facts["payload"] = hold(facts["payload"], waits=True)  # there may be many
        self._know(**facts, execution=_lean(self._seen.execution, facts["payload"]))

    async def _get(self) -> CodeExecution | None:
        return await self.context.cluster.get_execution(self.meta.namespace, self.meta.name)

    async def _end(self) -> None:
        async with AsyncExitStack() as last:  # whatever fails, nobody waits for it, and nobody takes it for known
            last.push_async_callback(super()._end)
            last.callback(self._forget, self)
            if self.deleted and self.place.started and self._seen.execution.status.pool_name:
                last.push_async_callback(self.discard_pod, self.pod_name)  # perhaps not adopted: nobody else would
            last.callback(self.place.leave)
            self._code.over()
            if self.deleted and self.place.started:
                await self.place.abandon_session()
