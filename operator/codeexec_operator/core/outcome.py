"""What decisions find out and pass on: how something ends, what was shown of a pod, and both in terms of a status."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from codeexec_api import (
    CodeExecution,
    CodeSession,
    Condition,
    ConditionType,
    EgressProof,
    Event,
    Reason,
    condition,
    set_condition,
    true_condition,
)
from codeexec_api.characters import without_unseen
from codeexec_api.phases import Move, SessionMove
from codeexec_api.v1alpha1.base import ObjectMeta

MESSAGE_LENGTH: Final = 4096


@dataclass(frozen=True)
class Ending:
    """How something ends, in the words of the record."""

    event: Event
    reason: Reason | None
    message: str


@dataclass(frozen=True)
class Proven:
    """What is known of a pod whose runner has reported, for the record."""

    condition: Condition
    proof: EgressProof
    facts: dict[str, Any]
    """Fields of the status."""
    weaker: str = ""
    """Why its isolation is weaker than its RuntimeClass promises, if it is."""

    @property
    def closed(self) -> bool:
        """True if it was shown that nothing leaves the sandbox but what was permitted."""
        return self.proof.verdict.holds


def with_condition(
    conditions: Sequence[Condition],
    kind: ConditionType,
    reason: str,
    message: str,
    now: datetime,
    meta: ObjectMeta,
    *,
    holds: bool = False,
) -> tuple[Condition, ...]:
    """These conditions, with one that was observed now of the object that has this metadata."""
    new = condition(kind, holds=holds, reason=reason, message=recordable(message), now=now, generation=meta.generation)
    return set_condition(conditions, new)


def recordable(message: str) -> str:
    """A message as a status can hold it: not too long, and in one line of what can be seen.

    A pod's words may have control characters, ends of lines and half surrogates. What was made so stays as it is.
    """
    return without_unseen(message[:MESSAGE_LENGTH])[:MESSAGE_LENGTH]


def waits_no_more(
    conditions: tuple[Condition, ...],
    reason: str,
    message: str,
    now: datetime,
    meta: ObjectMeta,
    kinds: Sequence[ConditionType] = (ConditionType.QUEUED, ConditionType.DELAYED),
) -> tuple[Condition, ...]:
    """These conditions, of which those of these kinds no longer say that something is waited for."""
    for kind in kinds:
        if true_condition(conditions, kind):
            conditions = with_condition(conditions, kind, reason, message, now, meta)
    return conditions


def transition(
    record: CodeExecution | CodeSession,
    move: Move | SessionMove,
    now: datetime,
    ending: Ending,
    kind: ConditionType,
    *,
    holds: bool,
) -> dict[str, Any]:
    """What the status says after this move: phase, reason, message, and a condition that says so."""
    reason, meta = (ending.reason or move.reason).value, record.metadata
    return {
        "phase": move.phase,
        "reason": reason,
        "message": recordable(ending.message),
        "observed_generation": meta.generation,
        "conditions": with_condition(record.status.conditions, kind, reason, ending.message, now, meta, holds=holds),
    }
