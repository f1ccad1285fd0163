"""The life of a CodeExecution: one table, without side effects.

The operator moves executions along it; the CRD's enum, `docs/phases.md`, the client's idea of "finished" and the
tests derive from it.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Phase(StrEnum):
    """Summary of where an execution stands (`status.phase`)."""

    PENDING = "Pending"
    DENIED = "Denied"
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
        """True when nothing happens to the execution any more."""
        return self not in _ORIGINS


class Event(StrEnum):
    """What the operator can observe of an execution."""

    ACCEPTED = "Accepted"
    REFUSED = "Refused"
    STARTED = "Started"
    FAULT = "Fault"
    EXITED_ZERO = "ExitedZero"
    EXITED_NONZERO = "ExitedNonZero"
    OUT_OF_MEMORY = "OutOfMemory"
    DEADLINE = "Deadline"
    CANCEL = "Cancel"
    VANISHED = "Vanished"


class Reason(StrEnum):
    """Why an execution is in its phase (`status.reason`): a closed vocabulary for people and programs."""

    POLICY_VIOLATION = "PolicyViolation"
    POLICY_INVALID = "PolicyInvalid"
    PAYLOAD_MISSING = "PayloadMissing"
    PAYLOAD_FOREIGN = "PayloadForeign"
    PAYLOAD_MISMATCH = "PayloadMismatch"
    POD_REQUESTED = "PodRequested"
    CODE_STARTED = "CodeStarted"
    COMPLETED = "Completed"
    NON_ZERO_EXIT = "NonZeroExit"
    OUT_OF_MEMORY = "OutOfMemory"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    CANCEL_REQUESTED = "CancelRequested"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    RUNTIME_CLASS_NOT_FOUND = "RuntimeClassNotFound"
    EGRESS_NOT_ENFORCED = "EgressNotEnforced"
    START_TIMEOUT = "StartTimeout"
    RUNNER_FAILED = "RunnerFailed"
    POD_LOST = "PodLost"
    OPERATOR_RESTARTED = "OperatorRestarted"


@dataclass(frozen=True)
class Move:
    """Where an event leads, and the reason recorded when the observer has no more precise one."""

    phase: Phase
    reason: Reason


TRANSITIONS: Final = MappingProxyType(
    {
        (Phase.PENDING, Event.ACCEPTED): Move(Phase.STARTING, Reason.POD_REQUESTED),
        (Phase.PENDING, Event.REFUSED): Move(Phase.DENIED, Reason.POLICY_VIOLATION),
        (Phase.PENDING, Event.CANCEL): Move(Phase.CANCELLED, Reason.CANCEL_REQUESTED),
        (Phase.STARTING, Event.STARTED): Move(Phase.RUNNING, Reason.CODE_STARTED),
        (Phase.STARTING, Event.REFUSED): Move(Phase.DENIED, Reason.EGRESS_NOT_ENFORCED),
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

_ORIGINS: Final = frozenset(phase for phase, _ in TRANSITIONS)


class IllegalTransition(ValueError):
    """An event that has no row in the table for the phase."""


def advance(phase: Phase, event: Event) -> Move:
    """The move that an event causes.

    Raises:
        IllegalTransition: the table has no such row; in particular every event in a terminal phase.
    """
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise IllegalTransition(f"event {event.value} is not possible in phase {phase.value}") from None


def to_markdown() -> str:
    """The table and its diagram as the document `docs/phases.md`."""
    lines = [
        "# Phases of a CodeExecution",
        "",
        "Generated from `crds/codeexec_api/phases.py` by `make generate`; do not edit.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> Pending",
    ]
    lines += [
        f"    {phase.value} --> {move.phase.value}: {event.value}" for (phase, event), move in TRANSITIONS.items()
    ]
    lines += [f"    {phase.value} --> [*]" for phase in Phase if phase.terminal]
    lines += ["```", "", "| in phase | on event | goes to | default reason |", "|---|---|---|---|"]
    lines += [
        f"| {phase.value} | {event.value} | {move.phase.value} | {move.reason.value} |"
        for (phase, event), move in TRANSITIONS.items()
    ]
    lines += ["", "A terminal phase has no row: nothing moves an execution out of it.", ""]
    return "\n".join(lines)
