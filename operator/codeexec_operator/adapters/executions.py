"""Looks after one execution, in a pod of its own or in that of a session."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeExecutionStatus, CodeSession, ExecutionPolicySpec
from codeexec_operator.adapters.connection import NETWORK_ERRORS, Connection
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.worker import Context, Worker, all_of, now
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.observed import Observed, SessionView, parse_policy
from codeexec_operator.core.payload import Payload, build_report_request, hold, verify_payload
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.results import without_output
from codeexec_operator.core.transcript import OutputPart, Transcript

logger = logging.getLogger(__name__)

_STORE_TRIES: Final = 5
_STORE_SECONDS: Final = 1


def _lean(execution: CodeExecution) -> CodeExecution:
    """Without the output of a finished execution: it is in the record, and would only fill memory here."""
    if not execution.status.phase.terminal:
        return execution
    heavy = {"stdout": None, "stderr": None, "output_order": (), "blocks": (), "artifacts": (), "output_refs": ()}
    return execution.model_copy(update={"status": execution.status.model_copy(update=heavy)})


@dataclass(frozen=True)
class Register:
    """Where a worker finds sessions, and says that it has ended."""

    find_session: Callable[[str, str], SessionWorker | None]
    """By namespace and name; None if none is known that is not over."""
    adopt_session: Callable[[CodeSession], None]
    forget: Callable[["ExecutionWorker"], None]


class ExecutionWorker(Worker):
    """One execution. For the connection to the runner, it is a `Job`."""

    def __init__(self, context: Context, execution: CodeExecution, register: Register) -> None:
        self.uid = execution.metadata.uid
        self._register = register
        self._session: SessionWorker | None = None
        self._storing = asyncio.Lock()
        self._seen = Observed(execution=_lean(execution), policy=context.default_policy, since=now())
        super().__init__(context, execution.metadata)

    @property
    def awaited_payload(self) -> str | None:
        """Name of the payload, as long as the code has not started."""
        ref, started = self._seen.execution.spec.payload_ref, self._seen.execution.status.started_at
        return ref.name if ref and not started else None

    def observe_execution(self, execution: CodeExecution) -> None:
        """Take a newer version of the object; one that is older than what was written here is ignored."""
        if int(execution.metadata.resource_version) > int(self._seen.execution.metadata.resource_version):
            self._seen = replace(self._seen, execution=_lean(execution))
            self.wake()

    # --- Job ---

    @property
    def transcript(self) -> Transcript:
        """What the runner has said of this execution."""
        return self._seen.transcript

    async def store_parts(self) -> None:
        """Keep the parts of the output that there are, one by one, whoever asks for it."""
        transcript = self.transcript
        async with self._storing:
            while part := transcript.take_part():
                await self._store(transcript, part)

    async def _store(self, transcript: Transcript, part: OutputPart) -> None:
        """Keep a part of the output; what can't be kept is counted, and the record says so."""
        policy = (
            self._seen.policy if isinstance(self._seen.policy, ExecutionPolicySpec) else self.context.default_policy
        )
        expires_at = now() + timedelta(seconds=policy.output_ttl_seconds)
        for _ in range(_STORE_TRIES):
            try:
                fault = await self.context.cluster.create_output(self._seen.execution, part, expires_at)
            except (ApiException, *NETWORK_ERRORS) as error:
                logger.warning("%s: a part of the output was not stored (%s)", self.name, type(error).__name__)
                await asyncio.sleep(_STORE_SECONDS)
            else:
                if fault:
                    transcript.lose(part, fault.message)
                return
        transcript.lose(part, "the API server did not take it")

    def progressed(self) -> None:
        """The transcript is over."""
        self.wake()

    def cut_off(self) -> None:
        """The connection to the runner has ended."""
        self._seen = replace(self._seen, cut_off_at=now())
        self.wake()

    # --- Worker ---

    def _decide(self) -> Plan:
        self._seen = replace(
            self._seen,
            sandbox=self.sandbox,
            session=self._view_session(),
            surroundings=self.context.lookout.view,
        )
        return decide(self._seen, now(), self.context.timing)

    def _view_session(self) -> SessionView | None:
        ref = self._seen.execution.spec.session_ref
        if ref is None or self._seen.execution.status.phase.terminal:
            return self._seen.session
        if self._session is None and (found := self._register.find_session(self.meta.namespace, ref.name)):
            self._session = found
            found.join(self)
        return self._session.view_for(self) if self._session else self._seen.session

    async def _apply(self, plan: Plan) -> None:
        """Write the status and act at once. Only code waits: until its payload is gone and its start recorded."""
        if isinstance(plan.status, CodeExecutionStatus) and plan.status.phase.terminal and not self.transcript.finished:
            self.transcript.finish()
            await self.store_parts()
            plan = self._decide()
        start = next((action for action in plan.actions if isinstance(action, actions.StartCode)), None)
        jobs: list[Coroutine[Any, Any, None]] = [self._act(action) for action in plan.actions if action is not start]
        status = plan.status if isinstance(plan.status, CodeExecutionStatus) else None
        if start is None:
            await all_of([*jobs, self._write_status(status)] if status else jobs)
            return
        await all_of(jobs)
        if status:
            await self._write_status(status)
        self._seen = replace(self._seen, handed_over=True, transcript=Transcript(), payload=None)
        connection = self._runner
        if connection:
            await connection.start(self, start.messages)
        else:
            self.cut_off()

    async def _write_status(self, status: CodeExecutionStatus) -> None:
        status = status.model_copy(update={"operator_version": self.context.version})
        write = self.context.cluster.write_execution
        try:
            written = await write(self._seen.execution, status)
        except ApiException as error:
            if not status.stdout or error.status == 409 or "too large" not in str(error.body):
                raise
            written = await write(self._seen.execution, without_output(status))
        payload = self._seen.payload
        if isinstance(payload, Payload):
            payload = hold(payload, waits=written.spec.session_ref is not None)
        newest = max(_lean(written), self._seen.execution, key=lambda one: int(one.metadata.resource_version))
        self._seen = replace(self._seen, execution=newest, payload=payload)
        if written.status.phase.terminal:
            self._seen = replace(self._seen, payload=None, transcript=Transcript())
            self._leave()
        logger.info(
            "%s: %s (%s)",
            self.name,
            written.status.phase.value,
            written.status.reason,
            extra={"execution_uid": self.uid, "code_digest": written.status.code_digest},
        )

    @property
    def _runner(self) -> Connection | None:
        return self._session.connection if self._session else self.connection

    async def _act(self, action: actions.Action) -> None:
        match action:
            case actions.ReadRequest():
                await self._read_request()
            case actions.DeletePayload(secrets):
                for name, uid in secrets:
                    await self.context.cluster.delete_payload(self.meta.namespace, name, uid)
            case actions.CancelCode():
                if self._runner and await self._runner.cancel(self.uid):
                    self._seen = replace(self._seen, cancel_sent_at=now())
                    self.wake()
            case actions.GiveUpSession(why):
                if self._session:
                    self._session.give_up(why)
            case _:
                await self.act_on_pod(action, build_report_request(self._seen.execution), reusable=False)

    async def _read_request(self) -> None:
        cluster, spec, namespace = self.context.cluster, self._seen.execution.spec, self.meta.namespace
        payload = (
            verify_payload(
                self._seen.execution,
                await cluster.get_payload(namespace, spec.payload_ref.name, spec.payload_ref.parts),
            )
            if spec.payload_ref
            else Payload()
        )
        policy = parse_policy(await cluster.get_policy(namespace))
        if spec.session_ref and self._session is None:
            session = await cluster.get_session(namespace, spec.session_ref.name)
            if session:
                self._register.adopt_session(session)
                self._seen = replace(self._seen, session=SessionView(session))
        self._seen = replace(
            self._seen, payload=payload, payload_read_at=now(), policy=policy or self.context.default_policy
        )
        self.wake()

    async def _refresh(self) -> None:
        current = await self.context.cluster.get_execution(self.meta.namespace, self.meta.name)
        if current is None or current.metadata.uid != self.uid:
            self.observe_deletion()
        else:
            self._seen = replace(self._seen, execution=_lean(current))

    def _leave(self) -> None:
        if self._session:
            self._session.leave(self, ran=self._seen.handed_over)

    async def _end(self) -> None:
        if self.deleted and self._session and self._session.connection and self._seen.handed_over:
            self._session.connection.abandon(self.uid)
            await self._session.connection.cancel(self.uid)
        self._leave()
        self._register.forget(self)
