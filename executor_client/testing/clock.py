"""What falls due on the clock of a fake cluster, and when. The clock stands still until somebody sets it forward."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from codeexec_api import ApprovalStatus, Event, Phase, Reason, SessionPhase
from codeexec_api.approval import undecided
from executor_client.testing.state import Run, State


class Ends(Protocol):
    """Who carries out what falls due."""

    def stop_code(self, run: Run, exit_code: int, reason: str) -> None:
        """End the block that runs, and its execution."""

    def lapses(self, run: Run) -> bool:
        """End an execution whose approval does not count any more."""

    def finish(self, run: Run, event: Event, message: str, reason: Reason | None = None, **more: Any) -> None:
        """End an execution."""

    def end_session(self, name: str, event: Event, message: str, reason: Reason | None = None, **more: Any) -> None:
        """End a session."""


class Clock:
    """The clock of a state."""

    def __init__(self, state: State, ends: Ends) -> None:
        self._state, self._ends = state, ends

    def advance(self, seconds: float) -> None:
        """Set the clock forward. What falls due until then happens at its time."""
        until = self._state.now + timedelta(seconds=seconds)
        while (due := min(self._due(), key=lambda one: one[0], default=None)) and due[0] <= until:
            self._state.now = max(self._state.now, due[0])
            due[1]()
        self._state.now = max(self._state.now, until)

    def _due(self) -> Iterator[tuple[datetime, Callable[[], object]]]:
        for run in self._state.runs.values():
            if run.endless_since:
                limit = timedelta(seconds=self._state.executions[run.name].spec.timeout_seconds)
                yield run.endless_since + limit, partial(self._ends.stop_code, run, 124, "DeadlineExceeded")
        absent = self._state.operator_absent
        for execution in self._state.executions.all():
            asked, run = execution.status.approval, self._state.runs[execution.metadata.name]
            if execution.status.phase is Phase.AWAITING_APPROVAL and asked and asked.wait_until:
                yield asked.wait_until, partial(self._nobody_decided, run)
            elif execution.status.phase is Phase.STARTING and asked and asked.expires_at and not absent:
                yield asked.expires_at, partial(self._ends.lapses, run)
        for session in self._state.sessions.all():
            name, spec, status = session.metadata.name, session.spec, session.status
            if status.phase is not SessionPhase.READY or not status.started_at or not status.last_used_at:
                continue
            lifetime = timedelta(seconds=spec.max_lifetime_seconds)
            message = f"the session reached spec.maxLifetimeSeconds ({spec.max_lifetime_seconds} s)"
            yield status.started_at + lifetime, partial(self._ends.end_session, name, Event.DEADLINE, message)
            if not self._state.session_pods[name].queue:
                idle = timedelta(seconds=spec.idle_timeout_seconds)
                message = f"nothing ran in the session for spec.idleTimeoutSeconds ({spec.idle_timeout_seconds} s)"
                end = partial(self._ends.end_session, name, Event.ENDED, message, Reason.IDLE_TIMEOUT)
                yield status.last_used_at + idle, end

    def _nobody_decided(self, run: Run) -> None:
        asked = self._state.executions[run.name].status.approval or ApprovalStatus()
        self._ends.finish(run, Event.EXPIRED, undecided(asked), Reason.APPROVAL_TIMEOUT)
