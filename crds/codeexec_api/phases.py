"""The state machines of CodeExecution and CodeSession: one transition table each, without side effects.

The operator changes phases by these tables only. The enums in the CRDs, `docs/phases.md`, the client's list of terminal
phases and the tests are derived from them. `docs/troubleshooting.md` has an entry for each reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Phase(StrEnum):
    """Summary of where an execution stands (`status.phase`)."""

    PENDING = "Pending"
    AWAITING_APPROVAL = "AwaitingApproval"
    APPROVED = "Approved"
    DENIED = "Denied"
    EXPIRED = "Expired"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    OUT_OF_MEMORY = "OutOfMemory"
    LOST = "Lost"

    @property
    def terminal(self) -> bool:
        """True if the execution has ended and its phase no longer changes. Not of a phase of a newer version."""
        return self in _PHASES and self not in _ORIGINS


class SessionPhase(StrEnum):
    """Summary of where a session stands (`status.phase`)."""

    PENDING = "Pending"
    DENIED = "Denied"
    STARTING = "Starting"
    READY = "Ready"
    ASLEEP = "Asleep"
    ENDED = "Ended"
    FAILED = "Failed"
    LOST = "Lost"

    @property
    def terminal(self) -> bool:
        """True if the session has ended and no execution can run there. Not of a phase of a newer version."""
        return self in _SESSION_PHASES and self not in _SESSION_ORIGINS


class Event(StrEnum):
    """What the operator observes about an execution or a session. An event moves the object to its next phase."""

    ACCEPTED = "Accepted"
    REFUSED = "Refused"
    NEEDS_APPROVAL = "NeedsApproval"
    APPROVED = "Approved"
    EXPIRED = "Expired"
    READY = "Ready"
    SLEPT = "Slept"
    WOKEN = "Woken"
    ENDED = "Ended"
    STARTED = "Started"
    FAULT = "Fault"
    EXITED_ZERO = "ExitedZero"
    EXITED_NONZERO = "ExitedNonZero"
    OUT_OF_MEMORY = "OutOfMemory"
    DEADLINE = "Deadline"
    CANCEL = "Cancel"
    VANISHED = "Vanished"


class Reason(StrEnum):
    """Why an object is in its phase (`status.reason`), or why a condition has its status. A closed vocabulary."""

    POLICY_VIOLATION = "PolicyViolation"
    POLICY_INVALID = "PolicyInvalid"
    POLICY_IN_FORCE = "PolicyInForce"
    APPROVAL_REQUIRED = "ApprovalRequired"
    APPROVED = "Approved"
    APPROVAL_NOT_NEEDED = "ApprovalNotNeeded"
    APPROVAL_DENIED = "ApprovalDenied"
    APPROVAL_REVOKED = "ApprovalRevoked"
    APPROVAL_EXPIRED = "ApprovalExpired"
    APPROVAL_TIMEOUT = "ApprovalTimeout"
    PAYLOAD_MISSING = "PayloadMissing"
    PAYLOAD_FOREIGN = "PayloadForeign"
    PAYLOAD_MISMATCH = "PayloadMismatch"
    PAYLOAD_UNREADABLE = "PayloadUnreadable"
    SESSION_NOT_FOUND = "SessionNotFound"
    SESSION_ENDED = "SessionEnded"
    SESSION_MISMATCH = "SessionMismatch"
    WAITING_FOR_SESSION = "WaitingForSession"
    WAITING_FOR_POOL = "WaitingForPool"
    QUEUE_TIMEOUT = "QueueTimeout"
    POD_CLAIMED = "PodClaimed"
    POD_REQUESTED = "PodRequested"
    UNSCHEDULABLE = "Unschedulable"
    POD_STARTING = "PodStarting"
    SANDBOX_READY = "SandboxReady"
    FILE_REFUSED = "FileRefused"
    FILES_STORED = "FilesStored"
    FILES_NOT_STORED = "FilesNotStored"
    STORE_UNAVAILABLE = "StoreUnavailable"
    WAKING = "Waking"
    FILES_DIFFER = "FilesDiffer"
    CODE_STARTED = "CodeStarted"
    COMPLETED = "Completed"
    NON_ZERO_EXIT = "NonZeroExit"
    OUT_OF_MEMORY = "OutOfMemory"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    CANCEL_REQUESTED = "CancelRequested"
    END_REQUESTED = "EndRequested"
    IDLE_TIMEOUT = "IdleTimeout"
    CLIENT_GONE = "ClientGone"
    LIFETIME_EXCEEDED = "LifetimeExceeded"
    IMAGE_NOT_VERIFIED = "ImageNotVerified"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    RUNTIME_CLASS_NOT_FOUND = "RuntimeClassNotFound"
    EGRESS_NOT_ENFORCED = "EgressNotEnforced"
    ISOLATION_NOT_ENFORCED = "IsolationNotEnforced"
    START_TIMEOUT = "StartTimeout"
    RUNNER_FAILED = "RunnerFailed"
    POOL_READY = "PoolReady"
    POOL_FILLING = "PoolFilling"
    POOL_EMPTY = "PoolEmpty"
    POD_LOST = "PodLost"
    OPERATOR_RESTARTED = "OperatorRestarted"


@dataclass(frozen=True)
class Move:
    """The phase that an event leads to, and the reason to record if the observer gives no more specific reason."""

    phase: Phase
    reason: Reason


@dataclass(frozen=True)
class SessionMove:
    """The same as `Move`, for a session."""

    phase: SessionPhase
    reason: Reason


TRANSITIONS: Final = MappingProxyType(
    {
        (Phase.PENDING, Event.ACCEPTED): Move(Phase.STARTING, Reason.POD_REQUESTED),
        (Phase.PENDING, Event.REFUSED): Move(Phase.DENIED, Reason.POLICY_VIOLATION),
        (Phase.PENDING, Event.CANCEL): Move(Phase.CANCELLED, Reason.CANCEL_REQUESTED),
        (Phase.PENDING, Event.NEEDS_APPROVAL): Move(Phase.AWAITING_APPROVAL, Reason.APPROVAL_REQUIRED),
        (Phase.AWAITING_APPROVAL, Event.APPROVED): Move(Phase.APPROVED, Reason.APPROVED),
        (Phase.AWAITING_APPROVAL, Event.REFUSED): Move(Phase.DENIED, Reason.APPROVAL_DENIED),
        (Phase.AWAITING_APPROVAL, Event.EXPIRED): Move(Phase.EXPIRED, Reason.APPROVAL_TIMEOUT),
        (Phase.AWAITING_APPROVAL, Event.CANCEL): Move(Phase.CANCELLED, Reason.CANCEL_REQUESTED),
        (Phase.APPROVED, Event.ACCEPTED): Move(Phase.STARTING, Reason.POD_REQUESTED),
        (Phase.APPROVED, Event.REFUSED): Move(Phase.DENIED, Reason.APPROVAL_REVOKED),
        (Phase.APPROVED, Event.EXPIRED): Move(Phase.EXPIRED, Reason.APPROVAL_EXPIRED),
        (Phase.APPROVED, Event.CANCEL): Move(Phase.CANCELLED, Reason.CANCEL_REQUESTED),
        (Phase.STARTING, Event.STARTED): Move(Phase.RUNNING, Reason.CODE_STARTED),
        (Phase.STARTING, Event.REFUSED): Move(Phase.DENIED, Reason.EGRESS_NOT_ENFORCED),
        (Phase.STARTING, Event.EXPIRED): Move(Phase.EXPIRED, Reason.APPROVAL_EXPIRED),
        (Phase.STARTING, Event.FAULT): Move(Phase.FAILED, Reason.POD_REFUSED),
        (Phase.STARTING, Event.DEADLINE): Move(Phase.FAILED, Reason.START_TIMEOUT),
        (Phase.STARTING, Event.CANCEL): Move(Phase.CANCELLED, Reason.CANCEL_REQUESTED),
        (Phase.STARTING, Event.VANISHED): Move(Phase.LOST, Reason.POD_LOST),
        (Phase.RUNNING, Event.EXITED_ZERO): Move(Phase.SUCCEEDED, Reason.COMPLETED),
        (Phase.RUNNING, Event.EXITED_NONZERO): Move(Phase.FAILED, Reason.NON_ZERO_EXIT),
        (Phase.RUNNING, Event.OUT_OF_MEMORY): Move(Phase.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
        (Phase.RUNNING, Event.DEADLINE): Move(Phase.TIMED_OUT, Reason.DEADLINE_EXCEEDED),
        (Phase.RUNNING, Event.CANCEL): Move(Phase.CANCELLED, Reason.CANCEL_REQUESTED),
        (Phase.RUNNING, Event.FAULT): Move(Phase.FAILED, Reason.RUNNER_FAILED),
        (Phase.RUNNING, Event.VANISHED): Move(Phase.LOST, Reason.POD_LOST),
    }
)

_PHASES: Final = frozenset(Phase)
_ORIGINS: Final = frozenset(phase for phase, _ in TRANSITIONS)

SESSION_TRANSITIONS: Final = MappingProxyType(
    {
        (SessionPhase.PENDING, Event.ACCEPTED): SessionMove(SessionPhase.STARTING, Reason.POD_REQUESTED),
        (SessionPhase.PENDING, Event.REFUSED): SessionMove(SessionPhase.DENIED, Reason.POLICY_VIOLATION),
        (SessionPhase.PENDING, Event.ENDED): SessionMove(SessionPhase.ENDED, Reason.END_REQUESTED),
        (SessionPhase.STARTING, Event.READY): SessionMove(SessionPhase.READY, Reason.SANDBOX_READY),
        (SessionPhase.STARTING, Event.REFUSED): SessionMove(SessionPhase.DENIED, Reason.EGRESS_NOT_ENFORCED),
        (SessionPhase.STARTING, Event.FAULT): SessionMove(SessionPhase.FAILED, Reason.POD_REFUSED),
        (SessionPhase.STARTING, Event.DEADLINE): SessionMove(SessionPhase.FAILED, Reason.START_TIMEOUT),
        (SessionPhase.STARTING, Event.ENDED): SessionMove(SessionPhase.ENDED, Reason.END_REQUESTED),
        (SessionPhase.STARTING, Event.VANISHED): SessionMove(SessionPhase.LOST, Reason.POD_LOST),
        (SessionPhase.STARTING, Event.SLEPT): SessionMove(SessionPhase.ASLEEP, Reason.START_TIMEOUT),
        (SessionPhase.READY, Event.SLEPT): SessionMove(SessionPhase.ASLEEP, Reason.FILES_STORED),
        (SessionPhase.READY, Event.ENDED): SessionMove(SessionPhase.ENDED, Reason.END_REQUESTED),
        (SessionPhase.READY, Event.DEADLINE): SessionMove(SessionPhase.ENDED, Reason.LIFETIME_EXCEEDED),
        (SessionPhase.READY, Event.FAULT): SessionMove(SessionPhase.FAILED, Reason.RUNNER_FAILED),
        (SessionPhase.READY, Event.VANISHED): SessionMove(SessionPhase.LOST, Reason.POD_LOST),
        (SessionPhase.ASLEEP, Event.WOKEN): SessionMove(SessionPhase.STARTING, Reason.WAKING),
        (SessionPhase.ASLEEP, Event.REFUSED): SessionMove(SessionPhase.DENIED, Reason.POLICY_VIOLATION),
        (SessionPhase.ASLEEP, Event.ENDED): SessionMove(SessionPhase.ENDED, Reason.END_REQUESTED),
        (SessionPhase.ASLEEP, Event.DEADLINE): SessionMove(SessionPhase.ENDED, Reason.LIFETIME_EXCEEDED),
    }
)

_SESSION_PHASES: Final = frozenset(SessionPhase)
_SESSION_ORIGINS: Final = frozenset(phase for phase, _ in SESSION_TRANSITIONS)


class IllegalTransition(ValueError):
    """The transition table has no row for this phase and event."""


def advance(phase: Phase, event: Event) -> Move:
    """Look up the move that an event causes in the life of an execution.

    Raises:
        IllegalTransition: the table has no such row. In a terminal phase, every event raises this.
    """
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise _illegal(phase, event) from None


def advance_session(phase: SessionPhase, event: Event) -> SessionMove:
    """Look up the move that an event causes in the life of a session.

    Raises:
        IllegalTransition: the table has no such row.
    """
    try:
        return SESSION_TRANSITIONS[phase, event]
    except KeyError:
        raise _illegal(phase, event) from None


def _illegal(phase: Phase | SessionPhase, event: Event) -> IllegalTransition:
    return IllegalTransition(f"event {event.value} is not possible in phase {phase.value}")


def to_markdown() -> str:
    """Render both tables, with a diagram each, as the document `docs/phases.md`."""
    lines = [
        "# Phases",
        "",
        "Generated from `crds/codeexec_api/phases.py` by `make generate`; do not edit.",
        "",
        "These tables list every phase change of a CodeExecution and a CodeSession. An event is what the operator",
        "observes. Terminal phases have no row, because an object never leaves a terminal phase.",
        "",
        "The operator records the default reason in `status.reason` unless it knows a more specific one.",
        "[Troubleshooting](troubleshooting.md) explains every reason.",
        "",
        "Each execution that has ended has two more conditions. `Finished` is true. `Succeeded` is true in the phase",
        "Succeeded, and in all other phases false with the reason of the phase:",
        "",
        "```console",
        "$ kubectl wait --for=condition=Finished codeexecution/NAME          # however it ends",
        "$ kubectl wait --for=condition=Succeeded codeexecution/NAME         # until it has succeeded",
        "$ kubectl wait --for=condition=Succeeded=false codeexecution/NAME   # until it has ended in another way",
        "```",
        "",
        "Records of 0.1 have no `Succeeded`.",
        "",
        "## CodeExecution",
        "",
        *_section(TRANSITIONS, [phase for phase in Phase if phase.terminal]),
        "## CodeSession",
        "",
        *_section(SESSION_TRANSITIONS, [phase for phase in SessionPhase if phase.terminal]),
    ]
    return "\n".join(lines)


def _section(
    table: Mapping[tuple[Phase, Event], Move] | Mapping[tuple[SessionPhase, Event], SessionMove],
    terminal: list[Phase] | list[SessionPhase],
) -> Iterator[str]:
    yield from ("```mermaid", "stateDiagram-v2", "    [*] --> Pending")
    for (phase, event), move in table.items():
        yield f"    {phase.value} --> {move.phase.value}: {event.value}"
    for last in terminal:
        yield f"    {last.value} --> [*]"
    yield from ("```", "", "| phase | event | next phase | default reason |", "|---|---|---|---|")
    for (phase, event), move in table.items():
        yield f"| {phase.value} | {event.value} | {move.phase.value} | {move.reason.value} |"
    yield ""
