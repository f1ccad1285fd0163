"""What operator and runner do with executions and sessions, but for running code.

Everything happens at once, on a clock that stands still until a block takes time or a test sets it forward.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from codeexec_api import (
    ApprovalStatus,
    AuditAnchor,
    BlockStatus,
    CodeExecution,
    CodeExecutionSpec,
    CodeFinding,
    CodeSession,
    CodeSessionSpec,
    ConditionType,
    Decision,
    EgressMode,
    EgressVerdict,
    Event,
    ExecutionApproval,
    ExecutionApprovalSpec,
    ExecutionPolicy,
    ExecutionPolicySpec,
    OutputRef,
    Phase,
    Reason,
    SessionPhase,
    Verdict,
    evaluate,
    judge,
)
from codeexec_api import records as said
from codeexec_api.approval import asking, by_whom, decided, question, undecided
from codeexec_api.audit import AuditEvent, Segment, log_entry, of_a_write
from codeexec_api.code_rules import Reading, find
from codeexec_api.languages import LANGUAGES, default_file_name
from codeexec_api.names import (
    APPROVAL_PLURAL,
    EXECUTION_PLURAL,
    POLICY_NAME,
    SESSION_PLURAL,
    block_key,
    file_key,
    output_name,
    pod_name,
)
from codeexec_api.permits import opening
from codeexec_api.policy import namespace_policy, policy_for, without_code_rules
from codeexec_api.v1alpha1.base import ObjectMeta
from executor_client.exceptions import CodeExecError
from executor_client.model.blocks import removed_by
from executor_client.model.code_reading import read_code
from executor_client.testing import records
from executor_client.testing.outcomes import FakeBlock, FakeOutcome, Script, StreamName, Workspace
from executor_client.testing.output import STREAMS, Collected, Frames, Output, collect
from executor_client.testing.store import Growing, Records


@dataclass(eq=False)
class _Pod:
    name: str
    workspace: Workspace = field(default_factory=Workspace)
    log: Growing[tuple[datetime, bytes]] = field(default_factory=Growing)
    queue: "deque[_Run]" = field(default_factory=deque)
    """Executions of a session in order of arrival; the first one runs."""


@dataclass(eq=False)
class _Run:
    name: str
    payload: Mapping[str, bytes]
    output: Output
    frames: Frames
    pod: _Pod
    blocks: list[BlockStatus] = field(default_factory=list)
    bytes_before: tuple[int, int] = (0, 0)
    reading: Reading | None = None
    findings: tuple[CodeFinding, ...] = ()
    endless_since: datetime | None = None
    """When the block began that runs now, and does not end by itself."""


class Simulation:
    """All that a cluster knows and does. May be called from any thread."""

    def __init__(
        self,
        *,
        namespace: str,
        policy: ExecutionPolicySpec,
        own_policy: bool,
        script: Script,
        languages: Collection[str],
        now: datetime,
    ) -> None:
        """`own_policy`: the policy is the namespace's own, and not the cluster's default."""
        self.namespace: Final = namespace
        self.executions: Final[Records[CodeExecution]] = Records(EXECUTION_PLURAL)
        self.sessions: Final[Records[CodeSession]] = Records(SESSION_PLURAL)
        self.approvals: Final[Records[ExecutionApproval]] = Records(APPROVAL_PLURAL)
        self.payloads: Final[dict[str, Mapping[str, bytes]]] = {}
        """What was sent with each execution."""
        self.outputs: Final[dict[str, Mapping[str, bytes]]] = {}
        """What each output ConfigMap holds."""
        self.now = now
        self.egress = EgressVerdict.CLOSED
        self.operator_absent = False
        self.start_fault: tuple[Reason, str] | None = None
        self._failure: Callable[[], CodeExecError] | None = None
        self._policy = policy
        self._own_policy = own_policy
        self._script = script
        self._languages = languages
        self._lock = threading.RLock()
        self._runs: dict[str, _Run] = {}
        self._session_pods: dict[str, _Pod] = {}
        self.audit_log: Final[list[str]] = []
        """Lines of the operator's log that make its audit log."""
        self._segment = Segment(uuid.uuid4().hex, namespace, records.VERSION)
        self._tell(AuditEvent.OPERATOR_STARTED, {})
        self._logs: dict[str, Growing[tuple[datetime, bytes]]] = {}

    # --- what clients ask for ---

    def check(self) -> None:
        """Raise the error that the cluster is to fail with, if any."""
        if self._failure:
            raise self._failure()

    def fail(self, failure: Callable[[], CodeExecError] | None) -> None:
        """Have every call, and every watch that is open, fail from now on; None: no more."""
        self._failure = failure
        self.wake()

    def wake(self) -> None:
        """Have everybody who waits look again."""
        self.executions.wake()
        self.sessions.wake()

    def log(self, pod: str) -> Growing[tuple[datetime, bytes]] | None:
        """The lines that a pod has written, each with its time; None if there is no such pod."""
        return self._logs.get(pod)

    def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        """Take an execution, and do with it all that can be done at once. Returns its first version.

        Raises:
            CodeExecError: there is one of this name.
        """
        with self._lock:
            first = self.executions.create(CodeExecution(metadata=self._metadata(name), spec=spec))
            self.payloads[name] = payload
            output, frames = Output(spec.limits.output_bytes), Frames(first.metadata.uid)
            run = self._runs[name] = _Run(name, payload, output, frames, _Pod(pod_name(name, first.metadata.uid)))
            if not self.operator_absent:
                self._accept(run)
            return first

    def cancel(self, name: str) -> None:
        """Set `spec.cancelled`, and end what still runs.

        Raises:
            NotFound: there is none of this name.
        """
        with self._lock:
            if self.executions[name].spec.cancelled:
                return
            phase = self.executions.patch(name, cancelled=True).status.phase
            run = self._runs[name]
            if phase.terminal or self.operator_absent:
                return
            if phase is Phase.PENDING:
                self._finish(run, Event.CANCEL, "cancelled before it was accepted")
            elif phase is Phase.AWAITING_APPROVAL:
                self._finish(run, Event.CANCEL, "cancelled while it waited for approval")
            elif phase is Phase.STARTING:
                self._finish(run, Event.CANCEL, "cancelled before the code started")
            else:  # without a time it is the script that cancels, while its block begins
                self._end_block(run, 130, "Cancelled", run.endless_since or self.now)
                self._conclude(run)

    def policy_object(self) -> ExecutionPolicy | None:
        """The policy as an object of the namespace; None if it has none of its own."""
        if not self._own_policy:
            return None
        return ExecutionPolicy(metadata=ObjectMeta(name=POLICY_NAME, namespace=self.namespace), spec=self._policy)

    def _evaluate(
        self,
        spec: CodeExecutionSpec | CodeSessionSpec,
        policy: ExecutionPolicySpec | None = None,
        reading: Reading | None = None,
    ) -> Verdict:
        """What the policy says, or another one that stands for it."""
        source = namespace_policy(self.namespace) if self._own_policy else records.DEFAULT_POLICY
        return evaluate(spec, policy or self._policy, reading, source=source)

    def decide(self, name: str, spec: ExecutionApprovalSpec) -> ExecutionApproval:
        """Take a decision, and do with the execution that it names all that can be done at once.

        Raises:
            CodeExecError: there is one of this name.
        """
        with self._lock:
            approval = self.approvals.create(ExecutionApproval(metadata=self._metadata(name), spec=spec))
            self._judge(spec.execution_ref.name)
            return approval

    def revoke(self, name: str, user: str) -> None:
        """Take a decision back.

        Raises:
            NotFound: there is none of this name.
        """
        with self._lock:
            approval = self.approvals.patch(name, revoked=True, revoked_by=user)
            execution = approval.spec.execution_ref.name
            status = self.executions[execution].status
            queued = status.phase is Phase.STARTING and status.approval and status.approval.name == name
            if queued and not self.operator_absent:
                message = f"the approval {name} of {approval.spec.approver} was revoked by {user}. Nothing was run"
                self._finish(self._runs[execution], Event.REFUSED, message, Reason.APPROVAL_REVOKED)
            self._judge(execution)

    def _judge(self, name: str) -> None:
        """What the operator does about an execution that waits, when something was decided."""
        if name not in self.executions or self.operator_absent:
            return
        execution = self.executions[name]
        if execution.status.phase is not Phase.AWAITING_APPROVAL:
            return
        asked = execution.status.approval or ApprovalStatus()
        named = [one for one in self.approvals.all() if one.spec.execution_ref.name == name]
        ruling = judge(named, execution, asked.grants, self.now)
        heard = asked.model_copy(update={"unused": ruling.unused})
        if not ruling.counts:
            status = execution.status.model_copy(update={"approval": heard})
            self._write_execution(execution.model_copy(update={"status": status}))
            return
        heard = decided(heard, ruling.counts)
        message = by_whom(heard)
        if ruling.denied:
            self._finish(self._runs[name], Event.REFUSED, f"denied {message}. Nothing was run", approval=heard)
            return
        self._move(self._runs[name], Event.APPROVED, ConditionType.APPROVED, f"approved {message}", approval=heard)
        run = self._runs[name]
        verdict = self._evaluate(execution.spec, reading=run.reading)
        self._enter(run, verdict, f"approved by {heard.approver}")

    def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        """Take a session, and start it, and what waits for it. Returns its first version.

        Raises:
            CodeExecError: there is one of this name.
        """
        with self._lock:
            first = self.sessions.create(CodeSession(metadata=self._metadata(name), spec=spec))
            self._session_pods[name] = _Pod(pod_name(name, first.metadata.uid))
            if not self.operator_absent:
                self._start_session(name)
                for run in [run for run in self._runs.values() if self.session_of(run.name) == name]:
                    if self.executions[run.name].status.phase is Phase.PENDING:
                        self._accept(run)
            return first

    def end_session(self, name: str) -> None:
        """Set `spec.ended`, and end the session.

        Raises:
            NotFound: there is none of this name.
        """
        with self._lock:
            if self.sessions[name].spec.ended:
                return
            phase = self.sessions.patch(name, ended=True).status.phase
            if not phase.terminal and not self.operator_absent:
                self._end_session(name, Event.ENDED, "ended on request (spec.ended)")

    def session_of(self, name: str) -> str | None:
        """Name of the session that an execution asks for, whether it exists or not."""
        ref = self.executions[name].spec.session_ref
        return ref.name if ref else None

    def give_up_on_session(self, name: str) -> None:
        """The session of this execution counts as missing, if it still is."""
        with self._lock:
            session = self.session_of(name)
            pending = self.executions[name].status.phase is Phase.PENDING
            if session and session not in self.sessions and pending:
                message = said.session_missing(session, self.namespace)
                self._finish(self._runs[name], Event.REFUSED, message, Reason.SESSION_NOT_FOUND)

    def lose_pod(self, name: str) -> None:
        """Delete the pod of a session, or of an execution that runs outside of one.

        Raises:
            NotFound: there is neither of this name.
        """
        with self._lock:
            session = name if name in self.sessions else self.session_of(name)
            if session:
                if not self.sessions[session].status.phase.terminal:
                    self._end_session(session, Event.VANISHED, "the pod was deleted")
            elif not self.executions[name].status.phase.terminal:
                self._finish(self._runs[name], Event.VANISHED, "the pod was deleted while the code ran")

    def _metadata(self, name: str) -> ObjectMeta:
        return ObjectMeta(
            name=name, namespace=self.namespace, uid=str(uuid.uuid4()), generation=1, creation_timestamp=self.now
        )

    # --- records, and the lines that tell of them ---

    def _write_execution(self, after: CodeExecution) -> None:
        anchor = self._tell(AuditEvent.STATUS_WRITE, of_a_write(self.executions[after.metadata.name].status, after))
        status = after.status.model_copy(update={"audit": anchor})
        self.executions.put(after.model_copy(update={"status": status}))

    def _write_session(self, after: CodeSession) -> None:
        anchor = self._tell(AuditEvent.STATUS_WRITE, of_a_write(self.sessions[after.metadata.name].status, after))
        status = after.status.model_copy(update={"audit": anchor})
        self.sessions.put(after.model_copy(update={"status": status}))

    def _tell(self, event: AuditEvent, more: Mapping[str, Any]) -> AuditAnchor:
        self._segment, line = self._segment.append(event, self.now, more)
        self.audit_log.append(log_entry(line))
        return line.anchor

    # --- the clock ---

    def advance(self, seconds: float) -> None:
        """Set the clock forward. What falls due until then happens at its time."""
        with self._lock:
            until = self.now + timedelta(seconds=seconds)
            while (due := min(self._due(), key=lambda one: one[0], default=None)) and due[0] <= until:
                self.now = max(self.now, due[0])
                due[1]()
            self.now = max(self.now, until)

    def _due(self) -> Iterator[tuple[datetime, Callable[[], None]]]:
        for run in self._runs.values():
            if run.endless_since:
                limit = timedelta(seconds=self.executions[run.name].spec.timeout_seconds)
                yield run.endless_since + limit, partial(self._time_out, run, run.endless_since)
        for execution in self.executions.all():
            asked = execution.status.approval
            if execution.status.phase is Phase.AWAITING_APPROVAL and asked and asked.wait_until:
                yield asked.wait_until, partial(self._nobody_decided, self._runs[execution.metadata.name])
        for session in self.sessions.all():
            name, spec, status = session.metadata.name, session.spec, session.status
            if status.phase is not SessionPhase.READY or not status.started_at or not status.last_used_at:
                continue
            lifetime = timedelta(seconds=spec.max_lifetime_seconds)
            message = f"the session reached spec.maxLifetimeSeconds ({spec.max_lifetime_seconds} s)"
            yield status.started_at + lifetime, partial(self._end_session, name, Event.DEADLINE, message)
            if not self._session_pods[name].queue:
                idle = timedelta(seconds=spec.idle_timeout_seconds)
                message = f"nothing ran in the session for spec.idleTimeoutSeconds ({spec.idle_timeout_seconds} s)"
                end = partial(self._end_session, name, Event.ENDED, message, Reason.IDLE_TIMEOUT)
                yield status.last_used_at + idle, end

    def _nobody_decided(self, run: _Run) -> None:
        asked = self.executions[run.name].status.approval or ApprovalStatus()
        self._finish(run, Event.EXPIRED, undecided(asked), Reason.APPROVAL_TIMEOUT)

    def _time_out(self, run: _Run, since: datetime) -> None:
        self._end_block(run, 124, "DeadlineExceeded", since)
        self._conclude(run)

    # --- sessions ---

    def _start_session(self, name: str) -> None:
        verdict = self._evaluate(self.sessions[name].spec)
        if not verdict.allowed:
            self._end_session(name, Event.REFUSED, verdict.message)
            return
        pod = self._session_pods[name]
        self._logs[pod.name] = pod.log
        facts = {"pod_name": pod.name, "image": verdict.image, "runtime_class_name": verdict.runtime_class_name or ""}
        self._move_session(name, Event.ACCEPTED, ConditionType.ACCEPTED, verdict.message, **facts)
        proven = records.proven(self.egress, self.now)
        if refusal := self._start_refusal():
            event, reason, message = refusal
            self._end_session(name, event, message, reason, **(proven if event is Event.REFUSED else {}))
            return
        times = {"started_at": self.now, "last_used_at": self.now}
        self._move_session(name, Event.READY, ConditionType.READY, "executions can run", **proven, **times)

    def _start_refusal(self) -> tuple[Event, Reason, str] | None:
        """Why no pod becomes ready, if so."""
        if self.start_fault:
            return Event.FAULT, *self.start_fault
        if self.egress is EgressVerdict.CLOSED or self._policy.egress_proof is EgressMode.WARN:
            return None
        message = f"{records.EGRESS_MESSAGES[self.egress]}. Nothing was run"
        return Event.REFUSED, Reason.EGRESS_NOT_ENFORCED, message

    def _move_session(self, name: str, event: Event, kind: ConditionType, message: str, **more: Any) -> None:
        self._write_session(records.moved_session(self.sessions[name], event, kind, message, self.now, **more))

    def _end_session(self, name: str, event: Event, message: str, reason: Reason | None = None, **more: Any) -> None:
        refused = self.sessions[name].status.phase is SessionPhase.PENDING and event is Event.REFUSED
        kind = ConditionType.ACCEPTED if refused else ConditionType.READY
        self._move_session(name, event, kind, message, reason=reason, **more)
        pod = self._session_pods[name]
        pod.log.end()
        for run in tuple(pod.queue):
            self._leave_session(run, self.sessions[name])

    def _leave_session(self, run: _Run, session: CodeSession, *, allowed: bool = True) -> None:
        """The session is over for an execution that runs in it, waits for it, or has just come."""
        execution = self.executions[run.name]
        if execution.status.phase is Phase.RUNNING:
            event, message = records.session_ended_meanwhile(session)
            self._finish(run, event, message)
            return
        event, reason, message = said.session_over(session)
        if event is Event.FAULT and execution.status.phase is not Phase.STARTING:  # only what is starting can fail
            if allowed:
                self._await_session(run, session)
            else:
                starting = execution.status.model_copy(update={"phase": Phase.STARTING})
                self._write_execution(execution.model_copy(update={"status": starting}))
        self._finish(run, event, message, reason)

    def _await_session(self, run: _Run, session: CodeSession) -> None:
        ready = session.status.phase is SessionPhase.READY
        message = "waits for its turn in the session" if ready else "waits for the session to start"
        self._move(run, Event.ACCEPTED, ConditionType.ACCEPTED, message, reason=Reason.WAITING_FOR_SESSION)

    # --- executions ---

    def _accept(self, run: _Run) -> None:
        execution, session = self.executions[run.name], self.session_of(run.name)
        problem = records.mismatch_of_payload(execution.spec, run.payload)
        lenient = without_code_rules(self._policy)
        verdict = self._evaluate(execution.spec, lenient) if problem else self._look_at(run)
        if verdict.decision is Decision.DENIED:
            self._finish(run, Event.REFUSED, verdict.message, Reason.POLICY_VIOLATION)
        elif problem:
            self._finish(run, Event.REFUSED, problem, Reason.PAYLOAD_MISMATCH)
        elif session is not None and session not in self.sessions:
            return  # it may still come
        elif verdict.allowed:
            self._enter(run, verdict, verdict.message)
        elif session is None or not self._refuses(run, self.sessions[session], allowed=False):
            until = self.now + timedelta(seconds=self._policy.approval_timeout_seconds)
            asked = asking(execution, verdict.grants, self.now, until)
            message = question(execution, verdict)
            self._move(run, Event.NEEDS_APPROVAL, ConditionType.APPROVED, message, holds=False, approval=asked)

    def _look_at(self, run: _Run) -> Verdict:
        """What the policy says of it and of its code; what was found goes into the record."""
        spec = self.executions[run.name].spec
        blocks = [run.payload[block_key(index)] for index in range(len(spec.blocks))]
        files = [run.payload[file_key(index)] for index in range(len(spec.files or ()))]
        run.reading = read_code(spec, self._policy, blocks, files)
        run.findings = find(spec, policy_for(spec, self._policy).code_rules, run.reading)
        return self._evaluate(spec, reading=run.reading)

    def _enter(self, run: _Run, verdict: Verdict, message: str) -> None:
        """It may run."""
        session = self.session_of(run.name)
        if session is None:
            self._logs[run.pod.name] = run.pod.log
            runtime_class = verdict.runtime_class_name or ""
            facts: dict[str, Any] = {"pod_name": run.pod.name, "image": verdict.image}
            facts["runtime_class_name"] = runtime_class
            opened, _ = opening(self.executions[run.name].spec.egress or ())  # the policy has refused what can't be
            facts |= {"egress": opened} if opened else {}
            self._move(run, Event.ACCEPTED, ConditionType.ACCEPTED, message, **facts)
            self._start(run)
        else:
            self._queue_up(run, self.sessions[session])

    def _refuses(self, run: _Run, session: CodeSession, *, allowed: bool = True) -> bool:
        """True if the session doesn't take the execution, which has ended then. `allowed`: nobody has to approve it."""
        if session.status.phase.terminal:
            self._leave_session(run, session, allowed=allowed)
        elif problem := said.session_mismatch(self.executions[run.name].spec, session):
            self._finish(run, Event.REFUSED, problem, Reason.SESSION_MISMATCH)
        else:
            return False
        return True

    def _queue_up(self, run: _Run, session: CodeSession) -> None:
        name = session.metadata.name
        if not self._refuses(run, session):
            run.pod = self._session_pods[name]
            run.pod.queue.append(run)
            self._await_session(run, session)
            if run.pod.queue[0] is run:
                self._start(run)

    def _start(self, run: _Run) -> None:
        if session := self.session_of(run.name):
            proven = records.proven_of(self.sessions[session])
        else:
            permits = bool(self.executions[run.name].spec.egress)
            proven = records.proven(self.egress, self.now, permits=permits)
            if refusal := self._start_refusal():
                event, reason, message = refusal
                self._finish(run, event, message, reason, **(proven if event is Event.REFUSED else {}))
                return
        message = "the code was handed to the runner"
        self._move(run, Event.STARTED, ConditionType.STARTED, message, started_at=self.now, **proven)
        try:
            for index, file in enumerate(self.executions[run.name].spec.files or ()):
                run.pod.workspace.put(file.path, run.payload[file_key(index)])
        except OSError as error:
            self._finish(run, Event.FAULT, f"{error.filename}: {error.strerror}", Reason.FILE_REFUSED)
            return
        run.pod.workspace.changed.clear()
        self._run_blocks(run)

    def _run_blocks(self, run: _Run) -> None:
        """Run blocks in order until one fails, or does not end by itself."""
        spec = self.executions[run.name].spec
        for index in range(len(spec.blocks)):
            run.bytes_before = (run.output.total_bytes("stdout"), run.output.total_bytes("stderr"))
            outcome, started = self._outcome(run, index), self.now
            if self._over(run):  # the script has cancelled it, or ended its session
                return
            for stream, data in outcome.output():
                self._write(run, stream, data)
            if outcome.never_ends:
                run.endless_since = started
                return
            self.advance(min(outcome.takes, spec.timeout_seconds))
            if outcome.loses_pod:
                self.lose_pod(run.name)
            if self._over(run):  # its pod is lost, or its session has ended
                return
            self._end_block(run, *_end_of(outcome, spec.timeout_seconds), started)
            if run.blocks[-1].exit_code:
                break
        self._conclude(run)

    def _over(self, run: _Run) -> bool:
        return self.executions[run.name].status.phase.terminal

    def _outcome(self, run: _Run, index: int) -> FakeOutcome:
        """What the script says of a block."""
        block, code = self.executions[run.name].spec.blocks[index], run.payload[block_key(index)]
        command = LANGUAGES[block.language].command
        if block.language not in self._languages:
            pwsh = command[0] == "pwsh"
            theirs = "Powershell or pwsh is not installed" if pwsh else f"Unsupported language: {block.language}"
            text = f"unknown language {block.language}: the sandbox image has no {command[0]} ({theirs})"
            there = ", ".join(one for one in LANGUAGES if one in self._languages)
            return FakeOutcome(stderr=f"{text}; supported languages: {there}\n", exit_code=1)
        path = block.filename or default_file_name(block.language, block.sha256)
        try:
            run.pod.workspace.put(path, code)
        except OSError as error:
            return FakeOutcome(stderr=f"{' '.join(command)}: {error.strerror}: {path}\n", exit_code=126)
        if (removed := removed_by(block.language, code.decode())) is not None:
            return _remove(run.pod.workspace, path, removed)
        seen = FakeBlock(block.language, code.decode(), path, run.pod.workspace, self.session_of(run.name))
        try:
            return self._script(seen)
        except BaseException as error:  # the test hears of it; whoever waits for this execution must not wait for ever
            self._finish(run, Event.FAULT, f"the script of the fake raised {error!r}", Reason.RUNNER_FAILED)
            raise

    def _write(self, run: _Run, stream: StreamName, data: bytes, *, final: bool = False) -> None:
        if text := run.output.write(stream, data, final=final):
            run.pod.log.add((self.now, run.frames.frame(stream=stream, data=text)))

    def _end_block(self, run: _Run, exit_code: int, reason: str, started: datetime) -> None:
        written = [run.output.total_bytes(name) - old for name, old in zip(STREAMS, run.bytes_before, strict=True)]
        status = BlockStatus(
            exit_code=exit_code,
            reason=reason,
            started_at=started,
            duration_ms=round((self.now - started).total_seconds() * 1000),
            stdout_bytes=written[0],
            stderr_bytes=written[1],
        )
        frame = run.frames.frame(block=len(run.blocks), **status.dump() | {"startedAt": started.timestamp()})
        run.pod.log.add((self.now, frame))
        run.blocks.append(status)

    def _conclude(self, run: _Run) -> None:
        """All blocks that will run have ended: the last one tells how it went."""
        for name in STREAMS:
            self._write(run, name, b"", final=True)
        spec = self.executions[run.name].spec
        collected = collect(run.pod.workspace, spec.artifacts)
        done = run.frames.frame(done=True, **run.output.totals(), artifactsOmitted=collected.omitted)
        run.pod.log.add((self.now, done))
        event = said.BLOCK_EVENTS[run.blocks[-1].reason] if run.blocks else Event.EXITED_ZERO
        message = said.how_code_ended(event, run.blocks[-1].exit_code, spec) if run.blocks else said.FILES_TRANSFERRED
        self._finish(run, event, message, **self._given_out(run, collected))

    def _given_out(self, run: _Run, collected: Collected | None) -> dict[str, Any]:
        """Output and files for the record; what it has no room for is stored beside it. None: the end never came."""
        output, metadata = run.output, self.executions[run.name].metadata
        files = collected or Collected()
        parts = [] if output.small and not files.contents else output.parts(files.contents)
        names = [output_name(metadata.name, metadata.uid, index) for index in range(len(parts))]
        self.outputs.update(zip(names, parts, strict=True))
        return {
            **{name: output.status(name, referenced=bool(parts), complete=collected is not None) for name in STREAMS},
            "output_order": () if parts else output.order(),
            "output_refs": tuple(OutputRef(name=name) for name in names),
            "artifacts": files.artifacts,
            "artifacts_omitted": files.omitted,
        }

    def _move(self, run: _Run, event: Event, kind: ConditionType, message: str, **more: Any) -> None:
        more = {"code_findings": run.findings, **more}
        self._write_execution(records.moved(self.executions[run.name], event, kind, message, self.now, **more))

    def _finish(self, run: _Run, event: Event, message: str, reason: Reason | None = None, **more: Any) -> None:
        """End an execution, and let the next one of its session begin."""
        started = self.executions[run.name].status.started_at is not None
        if started:
            exit_code = said.exit_code(event, run.blocks[-1].exit_code if run.blocks else None)
            given_out = {} if "stdout" in more else self._given_out(run, None)
            more = {"blocks": tuple(run.blocks), "exit_code": exit_code, **given_out, **more}
        run.endless_since = None
        self._move(run, event, ConditionType.FINISHED, message, reason=reason, **more)
        if run not in run.pod.queue:
            run.pod.log.end()
            return
        session = self.sessions[self.session_of(run.name) or ""]
        first = run.pod.queue[0] is run
        run.pod.queue.remove(run)
        if session.status.phase is SessionPhase.READY and first:
            if started:
                used = {"last_used_at": self.now, "executions": session.status.executions + 1}
                self._write_session(session.model_copy(update={"status": session.status.model_copy(update=used)}))
            if run.pod.queue:
                self._start(run.pod.queue[0])


def _remove(workspace: Workspace, own: str, path: str) -> FakeOutcome:
    """What `files.remove` does in a sandbox."""
    del workspace[own]
    if workspace.pop(path, None) is None:
        return FakeOutcome(stderr=f"rm: cannot remove '{path}': No such file or directory\n", exit_code=1)
    return FakeOutcome()


def _end_of(outcome: FakeOutcome, timeout: int) -> tuple[int, str]:
    """Exit code and reason of a block that ends by itself, or at its limit."""
    if outcome.takes > timeout:
        return 124, "DeadlineExceeded"
    if outcome.out_of_memory:
        return outcome.exit_code or 137, "OutOfMemory"
    return outcome.exit_code, "NonZeroExit" if outcome.exit_code else "Completed"
