"""A fake cluster as clients see it: what they ask for is done at once, with what operator and runner would do."""

import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Final

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    CodeSessionSpec,
    Event,
    ExecutionApproval,
    ExecutionApprovalSpec,
    ExecutionPolicySpec,
    Phase,
    Reason,
)
from codeexec_api import records as said
from codeexec_api.names import pod_name
from executor_client.exceptions import CodeExecError
from executor_client.testing.operator import Operator
from executor_client.testing.outcomes import Script
from executor_client.testing.output import Frames, Output
from executor_client.testing.state import Pod, Run, State


class Simulation:
    """May be called from any thread."""

    def __init__(
        self,
        *,
        namespace: str,
        policy: ExecutionPolicySpec | None,
        script: Script,
        languages: Collection[str],
        now: datetime,
    ) -> None:
        """`policy` is the namespace's own; None: the cluster's default counts."""
        self.state: Final = State(namespace=namespace, policy=policy, now=now)
        self._operator = Operator(self.state, script, languages)
        self._failure: Callable[[], CodeExecError] | None = None
        self._lock = threading.RLock()

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
        self.state.executions.wake()
        self.state.sessions.wake()

    def create(self, name: str, spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> CodeExecution:
        """Take an execution, and do with it all that can be done at once. Returns its first version.

        Raises:
            CodeExecError: there is one of this name.
        """
        with self._lock:
            first = self.state.executions.create(CodeExecution(metadata=self.state.metadata(name), spec=spec))
            self.state.payloads[name] = payload
            output, frames = Output(spec.limits.output_bytes), Frames(first.metadata.uid)
            run = self.state.runs[name] = Run(name, payload, output, frames, Pod(pod_name(name, first.metadata.uid)))
            if not self.state.operator_absent:
                self._operator.accept(run)
            return first

    def cancel(self, name: str) -> None:
        """Set `spec.cancelled`, and end what still runs.

        Raises:
            NotFound: the namespace has no object with this name.
        """
        with self._lock:
            if self.state.executions[name].spec.cancelled:
                return
            phase = self.state.executions.patch(name, cancelled=True).status.phase
            run = self.state.runs[name]
            if phase.terminal or self.state.operator_absent:
                return
            if phase is Phase.PENDING:
                self._operator.finish(run, Event.CANCEL, "cancelled before it was accepted")
            elif phase is Phase.AWAITING_APPROVAL:
                self._operator.finish(run, Event.CANCEL, "cancelled while it waited for approval")
            elif phase is Phase.STARTING:
                self._operator.finish(run, Event.CANCEL, "cancelled before the code started")
            else:
                self._operator.stop_code(run, 130, "Cancelled")

    def decide(self, name: str, spec: ExecutionApprovalSpec) -> ExecutionApproval:
        """Take a decision, and do with the execution that it names all that can be done at once.

        Raises:
            CodeExecError: there is one of this name.
        """
        with self._lock:
            approval = self.state.approvals.create(ExecutionApproval(metadata=self.state.metadata(name), spec=spec))
            self._operator.judge_execution(spec.execution_ref.name)
            return approval

    def revoke(self, name: str, user: str) -> None:
        """Take a decision back.

        Raises:
            NotFound: the namespace has no object with this name.
        """
        with self._lock:
            approval = self.state.approvals.patch(name, revoked=True, revoked_by=user)
            self._operator.judge_execution(approval.spec.execution_ref.name)

    def create_session(self, name: str, spec: CodeSessionSpec) -> CodeSession:
        """Take a session, and start it, and what waits for it. Returns its first version.

        Raises:
            CodeExecError: there is one of this name.
        """
        with self._lock:
            first = self.state.sessions.create(CodeSession(metadata=self.state.metadata(name), spec=spec))
            self.state.session_pods[name] = Pod(pod_name(name, first.metadata.uid))
            if not self.state.operator_absent:
                self._operator.start_session(name)
                for run in [run for run in self.state.runs.values() if self.state.session_of(run.name) == name]:
                    if self.state.executions[run.name].status.phase is Phase.PENDING:
                        self._operator.accept(run)
            return first

    def end_session(self, name: str) -> None:
        """Set `spec.ended`, and end the session.

        Raises:
            NotFound: the namespace has no object with this name.
        """
        with self._lock:
            if self.state.sessions[name].spec.ended:
                return
            phase = self.state.sessions.patch(name, ended=True).status.phase
            if not phase.terminal and not self.state.operator_absent:
                self._operator.end_session(name, Event.ENDED, "ended on request (spec.ended)")

    def give_up_on_session(self, name: str) -> None:
        """The session of this execution counts as missing, if it still is."""
        with self._lock:
            session = self.state.session_of(name)
            pending = self.state.executions[name].status.phase is Phase.PENDING
            if session and session not in self.state.sessions and pending:
                message = said.session_missing(session, self.state.namespace)
                self._operator.finish(self.state.runs[name], Event.REFUSED, message, Reason.SESSION_NOT_FOUND)

    def lose_pod(self, name: str) -> None:
        """Delete the pod of a session, or of an execution that runs outside of one.

        Raises:
            NotFound: there is neither of this name.
        """
        with self._lock:
            self._operator.lose_pod(name)

    def advance(self, seconds: float) -> None:
        """Set the clock forward. What falls due until then happens at its time."""
        with self._lock:
            self._operator.advance(seconds)
