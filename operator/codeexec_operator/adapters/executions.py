"""Looks after one execution, in a pod of its own or in that of a session."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeExecutionStatus,
    CodeSession,
    ExecutionApproval,
    ExecutionPolicySpec,
    PayloadRef,
    Phase,
    PodLimits,
    Reason,
    Verdict,
)
from codeexec_api.code_rules import Inquiry, Reading
from codeexec_api.names import pod_name, review_name
from codeexec_api.policy import policy_for
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.output_room import Share
from codeexec_operator.adapters.pools import ClaimedPod, PoolWorker
from codeexec_operator.adapters.retries import Retries
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.worker import Context, PodWorker, all_of, now, understood
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.approving import to_be_read
from codeexec_operator.core.observed import FrameStream, Observed, PolicyProblem, PoolView, Sandbox, SessionView
from codeexec_operator.core.payload import (
    HeldPayload,
    Payload,
    PayloadProblem,
    build_report_request,
    code_size,
    hold,
    is_new,
    open_payload,
    verify_payload,
)
from codeexec_operator.core.pool import Template, fits, is_usable
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.results import without_output
from codeexec_operator.core.transcript import OutputPart, Transcript

logger = logging.getLogger(__name__)

_TRIES: Final = 7
_CHORES_SECONDS: Final = 0.1
"""How long what has to be done once the code has started may wait for its end, which most code reaches sooner."""
_RESULT_SECONDS: Final = 0.1
"""How long they wait then, until the caller has the result."""


def _lean(execution: CodeExecution) -> CodeExecution:
    """Without the output and the code of a finished execution: they would only fill memory here."""
    if not execution.status.phase.terminal:
        return execution
    spec = execution.spec.model_copy(update={"sealed_payload": None})
    heavy = {"stdout": None, "stderr": None, "output_order": (), "blocks": (), "artifacts": (), "output_refs": ()}
    return execution.model_copy(update={"spec": spec, "status": execution.status.model_copy(update=heavy)})


@dataclass(frozen=True)
class Register:
    """Where a worker finds sessions, and says that it has ended."""

    find_session: Callable[[str, str], SessionWorker | None]
    """By namespace and name; None if none is known that is not over."""
    adopt_session: Callable[[CodeSession], None]
    find_pool: Callable[[str, Verdict, PodLimits], PoolWorker | None]
    """By namespace, and what is asked for."""
    forget: Callable[["ExecutionWorker"], None]


class ExecutionWorker(PodWorker):
    """One execution. For the connection to the runner it is a `Job`, for a pool a `Guest`."""

    def __init__(self, context: Context, execution: CodeExecution, register: Register) -> None:
        self.uid = execution.metadata.uid
        self._register = register
        self._session: SessionWorker | None = None
        self._pool: PoolWorker | None = None
        self._asked: Verdict | None = None
        self._claimed: ClaimedPod | None = None
        self._approvals: dict[str, tuple[int, ExecutionApproval | None]] = {}
        """Decisions about executions of this name: the newest version that was heard of, None if it was deleted."""
        self._share = Share(context.output, execution.metadata.namespace, self)
        self._over = asyncio.Event()
        self._storing = asyncio.Lock()
        self._seen = Observed(execution=_lean(execution), policy=context.policies.default, since=now())
        self._told = execution.status.phase.terminal  # then an operator before this one was
        super().__init__(context, execution.metadata)
        if execution.status.pod_name:  # it may have come from a pool
            self.pod_name = execution.status.pod_name

    @property
    def awaited_payload(self) -> str | None:
        """Name of the payload, as long as the code may have to be handed over."""
        ref = self._seen.execution.spec.payload_ref
        return ref.name if ref and not self._is_with_runner else None

    @property
    def awaited_review(self) -> str | None:
        """Name of the Secret with its code, as long as somebody may want to read it before deciding."""
        waits = self._seen.execution.status.phase is Phase.AWAITING_APPROVAL
        return review_name(self.meta.name, self.meta.uid) if waits else None

    @property
    def awaited_key(self) -> str | None:
        """Name of the key that its payload is sealed with, as long as the code may have to be handed over."""
        sealed = self._seen.execution.spec.sealed_payload
        return sealed.key_name if sealed and not self._is_with_runner else None

    @property
    def _is_with_runner(self) -> bool:
        return self.phase.terminal or self._seen.frames is FrameStream.OPEN

    @property
    def started(self) -> bool:
        """True if its record says that its code was started."""
        return self._seen.execution.status.started_at is not None

    @property
    def phase(self) -> Phase:
        """As far as is known here."""
        return self._seen.execution.status.phase

    @property
    def version(self) -> int:
        """Resource version of what is known here."""
        return int(self._seen.execution.metadata.resource_version)

    def observe_execution(self, execution: CodeExecution) -> None:
        """Take a newer version of the object; one that is older than what was written here is ignored."""
        if int(execution.metadata.resource_version) > self.version:
            self._tell(execution)
            self._seen = replace(self._seen, execution=_lean(execution))
            self.wake()

    def observe_approval(self, approval: ExecutionApproval, *, deleted: bool) -> None:
        """A decision about an execution of this name was seen, changed or deleted."""
        name, version = approval.metadata.name, int(approval.metadata.resource_version)
        if version > self._approvals.get(name, (0, None))[0]:
            self._approvals[name] = (version, None if deleted else approval)
            if self._seen.approvals is not None:
                self._know_approvals()

    def _know_approvals(self) -> None:
        known = tuple(one for _, one in self._approvals.values() if one)
        self._seen = replace(self._seen, approvals=known)
        self.wake()

    def _tell(self, execution: CodeExecution) -> None:
        """Of its end, once, whether this process has just written it or has lost the answer to that."""
        if execution.status.phase.terminal and not self._told:
            self._told = True
            self.context.telemetry.execution_over(execution, self._seen.since)

    # --- Guest ---

    def takes(self, template: Template) -> bool:
        """True if a pod that was made so is what was asked for."""
        return self._asked is not None and fits(template, self._asked, self._limits)

    def receive(self, pod: ClaimedPod) -> None:
        """A pod of the pool is this execution's now."""
        self._claimed = pod
        self.pod_name, self.sandbox, self.connection = pod.pod_name, pod.sandbox, pod.connection
        self.connection.changed = self.wake
        self.wake()

    @property
    def created(self) -> datetime:
        """When it was created, by the API server's clock."""
        return self.meta.creation_timestamp or self._seen.since

    def pool_opened(self) -> None:
        """There is a pool that wasn't there before."""
        if self._pool is None and not self._seen.execution.status.pod_name:
            self._seen = replace(self._seen, pool_asked=False)
            self.wake()

    # --- Job ---

    @property
    def transcript(self) -> Transcript:
        """What the runner has said of this execution."""
        return self._seen.transcript

    @property
    def held_bytes(self) -> int:
        """How much of its output is in memory."""
        return self.transcript.held_bytes

    async def make_room(self, pending: int) -> None:
        """Wait until there is memory for its output. So many bytes have come that are not in its transcript yet."""
        await self._share.need(pending)

    def settle_room(self, pending: int) -> None:
        """What has come is in its transcript, but for so many bytes."""
        self._share.settle(pending)

    async def shorten(self) -> bool:
        """Store what there is of the output, though it is no full part; False if that can't be."""
        if not self.transcript.cut():
            return False
        await self.store_parts()
        return True

    async def store_parts(self) -> None:
        """Keep the parts of the output that there are, one by one, whoever asks for it."""
        transcript = self.transcript
        async with self._storing:
            while part := transcript.take_part():
                await self._store(transcript, part)

    async def _store(self, transcript: Transcript, part: OutputPart) -> None:
        """Keep a part of the output; what can't be kept is counted, and the record says so."""
        known = self._seen.policy
        policy = known if isinstance(known, ExecutionPolicySpec) else self.context.policies.default
        expires_at = now() + timedelta(seconds=policy.output_ttl_seconds)

        async def create() -> None:
            if fault := await self.context.cluster.create_output(self._seen.execution, part, expires_at):
                transcript.lose(part, fault.message)

        if not await self._try("a part of the output was not stored", create):
            transcript.lose(part, "the API server did not accept it")

    def progressed(self) -> None:
        """The transcript is over."""
        self.wake()

    def cut_off(self) -> None:
        """The connection to the runner has ended."""
        self._frames_are(FrameStream.CLOSED)

    def resumed(self, missing: str) -> None:
        """The runner goes on telling of it; or it can't, for this reason."""
        self._frames_are(FrameStream.CLOSED if missing else FrameStream.OPEN, missing)

    def _frames_are(self, frames: FrameStream, missing: str = "") -> None:
        payload = None if frames is FrameStream.OPEN else self._seen.payload
        seen = replace(self._seen, frames=frames, frames_since=now(), missing=missing, payload=payload)
        self._seen = replace(seen, cancel_sent_at=None)  # it may have gone the way of the connection
        self.wake()

    # --- Worker ---

    def _decide(self) -> Plan:
        session, pool = self._view_session(), self._view_pool()  # these may change what is seen
        surroundings = self.context.lookout.view_from(self.sandbox.pod)
        self._seen = replace(self._seen, sandbox=self.sandbox, session=session, pool=pool, surroundings=surroundings)
        if self._seen.payload is not None and (policy := self.context.policies.known(self.meta.namespace)):
            source = self.context.policies.source(self.meta.namespace)
            self._seen = replace(self._seen, policy=policy, policy_source=source)
        return decide(self._seen, now(), self.context.timing)

    def _view_session(self) -> SessionView | None:
        ref = self._seen.execution.spec.session_ref
        phase = self._seen.execution.status.phase
        if ref is None or phase.terminal:
            return self._seen.session
        if phase is Phase.AWAITING_APPROVAL:  # others need not wait for what may never run
            if self._session:
                self._session.leave(self, ran=False)
                self._session = None
            return self._seen.session
        if self._session is None and (found := self._register.find_session(self.meta.namespace, ref.name)):
            self._session = found
            found.join(self)
        return self._session.view_for(self) if self._session else self._seen.session

    def _view_pool(self) -> PoolView | None:
        pool, status = self._pool, self._seen.execution.status
        if pool is None or status.phase.terminal or status.started_at:
            return None
        if self._claimed and not is_usable(self.sandbox):  # lost before any code was in it: another one
            self._give_back(pool, self._claimed)
            pool.join(self)
        elif self._claimed is None and not (self._asked and pool.serves(self._asked, self._limits)):
            pool.leave(self, None)
            self._pool = None
            self._seen = replace(self._seen, pool_asked=False)
            return None
        view = pool.view_for(self)
        if claimed := self._claimed:
            of = claimed.template
            return replace(
                view,
                image=of.image,
                runtime_class_name=of.runtime_class_name,
                pod_name=claimed.pod_name,
                proven=claimed.proven,
            )
        asked = self._asked or Verdict("", None)
        return replace(view, image=asked.image, runtime_class_name=asked.runtime_class_name)

    def _give_back(self, pool: PoolWorker, claimed: ClaimedPod) -> None:
        """It was not used, and nobody else may have it."""
        claimed.connection.close()
        self._claimed, self.connection, self.sandbox = None, None, Sandbox()
        self.pod_name = pod_name(self.meta.name, self.meta.uid)
        pool.leave(self, claimed)
        pool.discard(claimed.pod_name)

    @property
    def _limits(self) -> PodLimits:
        return self._seen.execution.spec.limits

    async def _apply(self, plan: Plan) -> None:
        """Write the status and act at the same time.

        Two things have an order: code starts after the record of its start, and code that somebody is to approve can be
        read before the record says so.
        """
        if isinstance(plan.status, CodeExecutionStatus) and plan.status.phase.terminal and not self.transcript.finished:
            self.transcript.finish()
            await self.store_parts()
            plan = self._decide()
        status = plan.status if isinstance(plan.status, CodeExecutionStatus) else None
        if any(isinstance(action, actions.StartCode) for action in plan.actions):
            await self._start(plan)
            return
        published = [action for action in plan.actions if isinstance(action, actions.PublishCode)]
        await all_of([self._act(action) for action in published])
        others = [action for action in plan.actions if action not in published]
        jobs: list[Coroutine[Any, Any, None]] = [self._act(action) for action in others]
        await all_of([*jobs, self._write_status(status)] if status else jobs)

    async def _start(self, plan: Plan) -> None:
        if self._seen.execution.status.approval:
            await self._read_approvals()  # what is watched may be late, or have missed that one was deleted
            plan = self._decide()
        start = next((action for action in plan.actions if isinstance(action, actions.StartCode)), None)
        if start is None:
            await self._apply(plan)
            return
        others = [action for action in plan.actions if action is not start]
        if isinstance(plan.status, CodeExecutionStatus):
            await self._write_status(plan.status)
        self._seen = replace(self._seen, transcript=Transcript())
        self._frames_are(FrameStream.OPEN)
        self.aside(self._tidy_up(others))
        if self._runner:
            await self._runner.start(self, start.messages)
        else:
            self.cut_off()

    async def _tidy_up(self, chores: Sequence[actions.Action]) -> None:
        """What is to be done once code has started, but not beside code that takes no time, nor beside its result."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHORES_SECONDS):
                await self._over.wait()
            await asyncio.sleep(_RESULT_SECONDS)
        await all_of([self._act(action) for action in chores])

    async def _write_status(self, status: CodeExecutionStatus) -> None:
        status = status.model_copy(update={"operator_version": self.context.version})
        before = self._seen.execution.status.phase
        try:
            written = await self._record(status)
        except ApiException as error:
            if not status.stdout or error.status == 409 or "too large" not in str(error.body):
                raise
            written = await self._record(without_output(status))
        payload = self._seen.payload
        if isinstance(payload, Payload):
            queued = bool(written.status.pool_name) and not written.status.pod_name
            waits = queued or written.status.phase is Phase.AWAITING_APPROVAL or written.spec.session_ref is not None
            payload = hold(payload, waits=waits)
        newest = max(_lean(written), self._seen.execution, key=lambda one: int(one.metadata.resource_version))
        self._seen = replace(self._seen, execution=newest, payload=payload, recorded_at=now())
        self._tell(written)
        self.context.announcer.written(before, written)
        if written.status.phase is Phase.APPROVED:  # its session may have ended meanwhile
            self._seen = replace(self._seen, payload=None, session=None)
        if written.status.phase.terminal:
            self._seen = replace(self._seen, payload=None, transcript=Transcript())
            self._share.close()
            self._leave()
            self._over.set()
            if self._runner:
                self.aside(self._acknowledge(self._runner))

    async def _record(self, status: CodeExecutionStatus) -> CodeExecution:
        """Write a status, and ahead of it the line that tells of it."""
        before = self._seen.execution
        after = before.model_copy(update={"status": status})
        return await self.context.audit.record(before, after, self.context.cluster.write_execution)

    async def _acknowledge(self, runner: Connection) -> None:
        """A pod that ends takes the node's time."""
        await asyncio.sleep(_RESULT_SECONDS)
        await runner.acknowledge(self.uid)

    @property
    def _runner(self) -> Connection | None:
        return self._session.connection if self._session else self.connection

    async def _act(self, action: actions.Action) -> None:
        match action:
            case actions.ReadRequest():
                await self._read_request()
            case actions.ReadApprovals() | actions.PublishCode() | actions.WithdrawCode():
                await self._act_on_approval(action)
            case actions.DeletePayload() | actions.CloseEgress():
                await self._put_away(action)
            case actions.AskPool(image, runtime_class_name):
                self._ask_pool(Verdict(image, runtime_class_name))
            case actions.AdoptPod(patch):
                await self._adopt(self.pod_name, patch)
            case actions.CancelCode() | actions.ResumeCode() | actions.GiveUpSession():
                await self._act_on_code(action)
            case _:
                await self.act_on_pod(action, build_report_request(self._seen.execution), reusable=False)

    async def _act_on_code(self, action: actions.CancelCode | actions.ResumeCode | actions.GiveUpSession) -> None:
        match action:
            case actions.CancelCode():
                if self._runner and await self._runner.cancel(self.uid):
                    self._seen = replace(self._seen, cancel_sent_at=now())
                    self.wake()
            case actions.ResumeCode():
                self._frames_are(FrameStream.REQUESTED)
                if self._runner:
                    await self._runner.resume(self)
                else:
                    self.cut_off()
            case actions.GiveUpSession(why):
                if self._session:
                    self._session.give_up(why)

    async def _put_away(self, action: actions.DeletePayload | actions.CloseEgress) -> None:
        """What doesn't succeed here is left to the sweeper and to the garbage collector."""
        if isinstance(action, actions.DeletePayload):
            await all_of([self._delete_payload(name, uid) for name, uid in action.secrets])
            return
        delete = self.context.cluster.delete_network_policy
        name = pod_name(self.meta.name, self.meta.uid)
        await self._try("its NetworkPolicy was not deleted", delete, self.meta.namespace, name)
        self._seen = replace(self._seen, egress_closed=True)
        self.wake()

    async def _read_request(self) -> None:
        cluster, spec, namespace = self.context.cluster, self._seen.execution.spec, self.meta.namespace
        policy, reading = await self.context.policies.of(namespace), self._seen.reading
        payload: Payload | HeldPayload | PayloadProblem
        if to_be_read(self._seen, policy):
            async with self.context.reader.turn(namespace, code_size(spec)):
                if self.deleted:
                    return
                payload = await self._open_payload(spec)
                if isinstance(payload, Payload) and to_be_read(self._seen, policy):  # it may be cancelled by now
                    reading = await self._read_code(payload, policy)
        else:
            payload = await self._open_payload(spec)
        status = self._seen.execution.status
        asks = status.phase is Phase.AWAITING_APPROVAL and spec.payload_ref is not None
        queued = bool(status.pool_name) and not self._claimed and not status.started_at
        if (asks or queued) and isinstance(payload, Payload):  # after a restart of the operator: there may be many
            payload = hold(payload, waits=True)
        if spec.session_ref and self._session is None:
            session = await cluster.get_session(namespace, spec.session_ref.name)
            if session:
                self._register.adopt_session(session)
                self._seen = replace(self._seen, session=SessionView(session))
        self._seen = replace(self._seen, payload=payload, payload_read_at=now(), policy=policy, reading=reading)
        self.wake()

    async def _open_payload(self, spec: CodeExecutionSpec) -> Payload | PayloadProblem:
        if spec.sealed_payload:
            return open_payload(self._seen.execution, spec.sealed_payload, self.context.sealing.ring)
        if spec.payload_ref:
            return verify_payload(self._seen.execution, await self._read_payload(spec.payload_ref))
        return Payload()

    async def _read_code(self, payload: Payload, policy: ExecutionPolicySpec | PolicyProblem) -> Reading | None:
        """What there is to say of the code for the rules that count."""
        if isinstance(policy, PolicyProblem):
            return self._seen.reading
        spec = self._seen.execution.spec
        rules = policy_for(spec, policy).code_rules
        return await self.context.reader.read(Inquiry(spec, payload.blocks, payload.files, rules))

    async def _act_on_approval(
        self, action: actions.ReadApprovals | actions.PublishCode | actions.WithdrawCode
    ) -> None:
        cluster, execution = self.context.cluster, self._seen.execution
        match action:
            case actions.ReadApprovals():
                await self._read_approvals()
            case actions.PublishCode(payload):
                failure = "the code could not be published for approvers"
                if not await self._try(failure, cluster.publish_code, execution, payload):
                    self._seen = replace(self._seen, code_unreadable=True)
                    self.wake()
            case actions.WithdrawCode():
                await self._try("the code for approvers was not deleted", cluster.withdraw_code, execution)

    async def _read_approvals(self) -> None:
        """Anew. What is heard of meanwhile is newer than what is listed."""
        self._approvals.clear()
        for raw in await self.context.cluster.list_approvals(self.meta.namespace, self.meta.name):
            if approval := understood(ExecutionApproval.parse, raw):
                self.observe_approval(approval, deleted=False)
        self._know_approvals()

    async def _read_payload(self, ref: PayloadRef) -> Sequence[Mapping[str, Any] | None]:
        """The Secrets of the payload.

        Whoever creates an execution may be creating its Secret at this moment. That one is not asked for: its arrival
        will be heard of.
        """
        payloads = self.context.payloads
        if ref.parts == 1:
            seen = payloads.seen(self.meta.namespace, ref.name)
            if secret := payloads.take(self.meta.namespace, ref.name):
                return (secret,)
            execution, first = self._seen.execution, self._seen.payload_read_at is None
            if not seen and first and execution.status.phase is Phase.PENDING and is_new(execution, now()):
                return (None,)
        return await self.context.cluster.get_payload(self.meta.namespace, ref.name, ref.parts)

    def payload_arrived(self) -> None:
        """Its payload was created."""
        if isinstance(self._seen.payload, PayloadProblem) and self._seen.payload.reason is Reason.PAYLOAD_MISSING:
            self._seen = replace(self._seen, payload=None)
            self.wake()

    def _ask_pool(self, asked: Verdict) -> None:
        """Of what it was given before, if anything, it is rid then."""
        if self._pool and self._claimed:
            self._give_back(self._pool, self._claimed)
        elif self._pool:
            self._pool.leave(self, None)
        self._asked = asked
        self._pool = self._register.find_pool(self.meta.namespace, asked, self._limits)
        self._seen = replace(self._seen, pool_asked=True)
        if self._pool:
            self._pool.join(self)
        self.wake()

    async def _adopt(self, pod: str, patch: Mapping[str, Any]) -> None:
        """Until then the pod goes with its pool, or with this worker."""
        pool = self._pool
        adopted = await self._try(
            "the pod was not adopted", self.context.cluster.patch_pod, self.meta.namespace, pod, patch
        )
        if pool and adopted:
            pool.adopted(pod)

    async def _delete_payload(self, name: str, uid: str) -> None:
        """Delete one of its Secrets; the sweeper comes later for what this doesn't succeed with."""
        delete = self.context.cluster.delete_payload
        await self._try("the payload was not deleted", delete, self.meta.namespace, name, uid)

    async def _try(self, failure: str, call: Callable[..., Awaitable[None]], *arguments: Any) -> bool:
        retries = Retries(self.name, self.context.telemetry.metrics)
        return await retries.insist(failure, _TRIES, call, *arguments)

    async def _refresh(self) -> None:
        current = await self.context.cluster.get_execution(self.meta.namespace, self.meta.name)
        if current is None or current.metadata.uid != self.uid:
            self.observe_deletion()
        else:
            self._tell(current)
            self._seen = replace(self._seen, execution=_lean(current))

    def _leave(self) -> None:
        if self._session:
            self._session.leave(self, ran=self.started)
        if self._pool and self._claimed and not self.started:
            self._give_back(self._pool, self._claimed)
        elif self._pool:
            self._pool.leave(self, self._claimed)

    async def _end(self) -> None:
        self._share.close()
        if self.deleted and self._session and self._session.connection and self.started:
            self._session.connection.abandon(self.uid)
            await self._session.connection.cancel(self.uid)
        self._leave()
        if (
            self.deleted and self._seen.execution.status.pool_name and self.started
        ):  # it may not be adopted yet, so nobody else would
            delete = self.context.cluster.delete_pod
            await self._try("its pod was not deleted", delete, self.meta.namespace, self.pod_name)
        self._register.forget(self)
        await super()._end()
