"""What the operator does with executions and sessions of a fake cluster. Everything happens at once."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from codeexec_api import (
    ApprovalStatus,
    CodeSession,
    ConditionType,
    Decision,
    Event,
    Phase,
    Reason,
    SessionPhase,
    Verdict,
    judge,
)
from codeexec_api import records as said
from codeexec_api.approval import asking, by_whom, decided, lapsed, question
from codeexec_api.code_rules import find
from codeexec_api.names import block_key, file_key
from codeexec_api.permits import opening
from codeexec_api.policy import policy_for, session_refusal, without_code_rules
from executor_client.model.code_reading import read_code
from executor_client.testing import records
from executor_client.testing.clock import Clock
from executor_client.testing.outcomes import Script
from executor_client.testing.runner import Runner
from executor_client.testing.state import Run, State


class Operator:
    """Its clock stands still until a block takes time or a test sets it forward."""

    def __init__(self, state: State, script: Script, languages: Collection[str]) -> None:
        self._state: Final = state
        self._runner = Runner(state, script, languages, self)
        self._clock = Clock(state, self)

    def advance(self, seconds: float) -> None:
        """Set the clock forward. What falls due until then happens at its time."""
        self._clock.advance(seconds)

    # --- sessions ---

    def start_session(self, name: str) -> None:
        """Give it a pod, if the policy lets it have one."""
        verdict = self._state.evaluate(self._state.sessions[name].spec)
        if not verdict.allowed:
            self.end_session(name, Event.REFUSED, verdict.message)
            return
        pod = self._state.session_pods[name]
        self._state.logs[pod.name] = pod.log
        facts = {"pod_name": pod.name, "image": verdict.image, "runtime_class_name": verdict.runtime_class_name or ""}
        self._state.transition_session(name, Event.ACCEPTED, ConditionType.ACCEPTED, verdict.message, **facts)
        proven = records.proven(self._state.egress, self._state.now)
        if refusal := self._state.start_refusal():
            event, reason, message = refusal
            self.end_session(name, event, message, reason, **(proven if event is Event.REFUSED else {}))
            return
        times = {"started_at": self._state.now, "last_used_at": self._state.now}
        self._state.transition_session(name, Event.READY, ConditionType.READY, "executions can run", **proven, **times)

    def end_session(self, name: str, event: Event, message: str, reason: Reason | None = None, **more: Any) -> None:
        """End it, and what runs or waits in it."""
        refused = self._state.sessions[name].status.phase is SessionPhase.PENDING and event is Event.REFUSED
        kind = ConditionType.ACCEPTED if refused else ConditionType.READY
        self._state.transition_session(name, event, kind, message, reason=reason, **more)
        pod = self._state.session_pods[name]
        pod.log.end()
        for run in tuple(pod.queue):
            self._leave_session(run, self._state.sessions[name])

    def _leave_session(self, run: Run, session: CodeSession, *, allowed: bool = True) -> None:
        """The session is over for an execution that runs in it, waits for it, or has just come."""
        execution = self._state.executions[run.name]
        if execution.status.phase is Phase.RUNNING:
            event, message = records.session_ended_meanwhile(session)
            self.finish(run, event, message)
            return
        event, reason, message = said.session_over(session)
        if event is Event.FAULT and execution.status.phase is not Phase.STARTING:  # only what is starting can fail
            if allowed:
                self._await_session(run, session)
            else:
                starting = execution.status.model_copy(update={"phase": Phase.STARTING})
                self._state.write_execution(execution.model_copy(update={"status": starting}))
        self.finish(run, event, message, reason)

    def _await_session(self, run: Run, session: CodeSession) -> None:
        message = said.wait_for_session(session.status.phase)
        self._state.transition(run, Event.ACCEPTED, ConditionType.ACCEPTED, message, reason=Reason.WAITING_FOR_SESSION)

    def lose_pod(self, name: str) -> None:
        """Delete the pod of a session, or of an execution that runs outside of one."""
        session = name if name in self._state.sessions else self._state.session_of(name)
        if session:
            if not self._state.sessions[session].status.phase.terminal:
                self.end_session(session, Event.VANISHED, "the pod was deleted")
        elif not self._state.executions[name].status.phase.terminal:
            self.finish(self._state.runs[name], Event.VANISHED, "the pod was deleted while the code ran")

    # --- executions ---

    def accept(self, run: Run) -> None:
        """Look at a new execution, and do with it all that can be done at once."""
        execution, session = self._state.executions[run.name], self._state.session_of(run.name)
        problem = records.mismatch_of_payload(execution.spec, run.payload)
        lenient = without_code_rules(self._state.policy)
        verdict = self._state.evaluate(execution.spec, lenient) if problem else self._look_at(run)
        if verdict.decision is Decision.DENIED:
            self.finish(run, Event.REFUSED, verdict.message, Reason.POLICY_VIOLATION)
        elif problem:
            self.finish(run, Event.REFUSED, problem, Reason.PAYLOAD_MISMATCH)
        elif session is not None and session not in self._state.sessions:
            return  # it may still come
        elif verdict.allowed:
            self._enter(run, verdict, verdict.message)
        elif session is None or not self._refuses(run, self._state.sessions[session], allowed=False):
            until = self._state.now + timedelta(seconds=self._state.policy.approval_timeout_seconds)
            asked = asking(execution, verdict.grants, self._state.now, until)
            message = question(execution, verdict)
            self._state.transition(
                run, Event.NEEDS_APPROVAL, ConditionType.APPROVED, message, holds=False, approval=asked
            )

    def _look_at(self, run: Run) -> Verdict:
        """What the policy says of it and of its code; what was found goes into the record."""
        spec = self._state.executions[run.name].spec
        blocks = [run.payload[block_key(index)] for index in range(len(spec.blocks))]
        files = [run.payload[file_key(index)] for index in range(len(spec.files or ()))]
        run.reading = read_code(spec, self._state.policy, blocks, files)
        run.findings = find(spec, policy_for(spec, self._state.policy).code_rules, run.reading)
        return self._state.evaluate(spec, reading=run.reading)

    def judge_execution(self, name: str) -> None:
        """What the operator does about an execution that waits, when something was decided."""
        if name not in self._state.executions or self._state.operator_absent:
            return
        execution = self._state.executions[name]
        if execution.status.phase is Phase.STARTING:
            self.lapses(self._state.runs[name])
        if execution.status.phase is not Phase.AWAITING_APPROVAL:
            return
        asked = execution.status.approval or ApprovalStatus()
        ruling = judge(self._state.approvals_of(name), execution, asked.grants, self._state.now)
        heard = asked.model_copy(update={"unused": ruling.unused})
        if not ruling.counts:
            status = execution.status.model_copy(update={"approval": heard})
            self._state.write_execution(execution.model_copy(update={"status": status}))
            return
        heard = decided(heard, ruling.counts)
        message = by_whom(heard)
        if ruling.denied:
            self.finish(self._state.runs[name], Event.REFUSED, f"denied {message}. Nothing was run", approval=heard)
            return
        self._state.transition(
            self._state.runs[name], Event.APPROVED, ConditionType.APPROVED, f"approved {message}", approval=heard
        )
        run = self._state.runs[name]
        verdict = self._state.evaluate(execution.spec, reading=run.reading)
        self._enter(run, verdict, f"approved by {heard.approver}")

    def lapses(self, run: Run) -> bool:
        """True if it was approved, and the approval doesn't count any more. It has ended then."""
        execution = self._state.executions[run.name]
        asked = execution.status.approval
        why = lapsed(self._state.approvals_of(run.name), execution, asked, self._state.now) if asked else None
        if why:
            self.finish(run, why.event, why.message, why.reason, approval=why.approval)
        return why is not None

    def _enter(self, run: Run, verdict: Verdict, message: str) -> None:
        """It may run."""
        session = self._state.session_of(run.name)
        if session is None:
            self._state.logs[run.pod.name] = run.pod.log
            image, runtime = verdict.image, verdict.runtime_class_name or ""
            facts: dict[str, Any] = {"pod_name": run.pod.name, "image": image, "runtime_class_name": runtime}
            if opened := opening(self._state.executions[run.name].spec.egress or ())[0]:
                facts["egress"] = opened
            self._state.transition(run, Event.ACCEPTED, ConditionType.ACCEPTED, message, **facts)
            self._start(run)
        else:
            self._queue_up(run, self._state.sessions[session])

    def stop_code(self, run: Run, exit_code: int, reason: str) -> None:
        """End the block that runs. Without a time it is the script that does so, while its block begins."""
        self._runner.end_block(run, exit_code, reason, run.endless_since or self._state.now)
        self._runner.conclude(run)

    def _refuses(self, run: Run, session: CodeSession, *, allowed: bool = True) -> bool:
        """True if the session doesn't take the execution, which has ended then. `allowed`: nobody has to approve it."""
        spec = self._state.executions[run.name].spec
        if session.status.phase.terminal:
            self._leave_session(run, session, allowed=allowed)
        elif problem := said.session_mismatch(spec, session) or session_refusal(spec, session, self._state.policy):
            self.finish(run, Event.REFUSED, problem, Reason.SESSION_MISMATCH)
        else:
            return False
        return True

    def _queue_up(self, run: Run, session: CodeSession) -> None:
        name = session.metadata.name
        if not self._refuses(run, session):
            run.pod = self._state.session_pods[name]
            run.pod.queue.append(run)
            self._await_session(run, session)
            if before := len(run.pod.queue) - 1:
                place = said.place_in_session(before, before + 1, name)
                self._state.write_execution(records.queued(self._state.executions[run.name], place, self._state.now))
            self._serve(name)

    def _serve(self, session: str) -> None:
        """Start what is first in the line of a session, again and again.

        A loop, because what ends at once calls this for the next one: a thousand of those are too many for the stack.

        Raises:
            BaseException: what a script has raised, when all have had their turn.
        """
        pod, failures, last = self._state.session_pods[session], list[BaseException](), None
        if pod.serving:
            return
        pod.serving = True
        while (first := self._state.first_in_line(session)) and first is not last:
            last = first
            try:
                self._start(first)
            except BaseException as error:
                failures.append(error)
        pod.serving = False
        if failures:
            raise failures[0]

    def _start(self, run: Run) -> None:
        if self.lapses(run):
            return
        if session := self._state.session_of(run.name):
            proven = records.proven_of(self._state.sessions[session])
        else:
            permits = bool(self._state.executions[run.name].spec.egress)
            proven = records.proven(self._state.egress, self._state.now, permits=permits)
            if refusal := self._state.start_refusal():
                event, reason, message = refusal
                self.finish(run, event, message, reason, **(proven if event is Event.REFUSED else {}))
                return
        message = "the code was handed to the runner"
        self._state.transition(run, Event.STARTED, ConditionType.STARTED, message, started_at=self._state.now, **proven)
        try:
            for index, file in enumerate(self._state.executions[run.name].spec.files or ()):
                run.pod.workspace.put(file.path, run.payload[file_key(index)])
        except OSError as error:
            self.finish(run, Event.FAULT, f"{error.filename}: {error.strerror}", Reason.FILE_REFUSED)
            return
        run.pod.workspace.changed.clear()
        self._runner.run(run)

    def finish(self, run: Run, event: Event, message: str, reason: Reason | None = None, **more: Any) -> None:
        """End an execution, and let the next one of its session begin."""
        started = self._state.executions[run.name].status.started_at is not None
        if started:
            exit_code = said.exit_code(event, run.blocks[-1].exit_code if run.blocks else None)
            given_out = {} if "stdout" in more else self._runner.given_out(run, None)
            more = {"blocks": tuple(run.blocks), "exit_code": exit_code, **given_out, **more}
        run.endless_since = None
        self._state.transition(run, event, ConditionType.FINISHED, message, reason=reason, **more)
        if run not in run.pod.queue:
            run.pod.log.end()
            return
        session = self._state.sessions[self._state.session_of(run.name) or ""]
        first = run.pod.queue[0] is run
        run.pod.queue.remove(run)
        if session.status.phase is SessionPhase.READY and first:
            if started:
                used = {"last_used_at": self._state.now, "executions": session.status.executions + 1}
                self._state.write_session(session.model_copy(update={"status": session.status.model_copy(update=used)}))
            self._serve(session.metadata.name)
