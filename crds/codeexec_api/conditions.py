"""Conditions in the form of the Kubernetes API conventions: a list with one entry a type."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from codeexec_api.v1alpha1.sandbox import Condition


class ConditionType(StrEnum):
    """Types of conditions on CodeExecutions, CodeSessions, SandboxPools and ExecutionPolicies."""

    ACCEPTED = "Accepted"
    """True: policy and payload allow it. False: denied; reason and message say why."""
    APPROVED = "Approved"
    """True: a human has approved what the policy does not allow by itself. False: nobody has, or one has denied it."""
    EGRESS_CLOSED = "EgressClosed"
    """True: shown, before any code ran, that nothing leaves the sandbox (Closed), or nothing but what was permitted
    (Restricted). False: that could not be shown."""
    READY = "Ready"
    """Of a session. True: executions can run in it. False: its pod could not be started, or it is over.

    Of a pool. True: as many pods as asked for stand ready. False: not yet; reason and message say why.

    Of a policy. True: in force. False: the operator can't read it, so nothing new runs; the message says why.
    """
    ASLEEP = "Asleep"
    """Of a session. True: its files are stored, and it has no pod. False: it has one, or is to get one; the
    message says why if its files could not be stored."""
    QUEUED = "Queued"
    """True: waits for a pod of a pool, or for its turn in a session; the message says at which place. False: it waits
    no more."""
    DELAYED = "Delayed"
    """True: its pod was requested and has not started; reason and message say why, and what to do. False: it waits no
    more."""
    STARTED = "Started"
    """True: the code was handed to the runner. False: the pod could not be started."""
    FINISHED = "Finished"
    """True: nothing happens any more; reason says how it ended."""
    SUCCEEDED = "Succeeded"
    """Of an execution that is over. True: its phase is Succeeded. False: it has ended in another way."""


def find_condition(conditions: Iterable[Condition], kind: ConditionType) -> Condition | None:
    """The condition of this type, if there is one."""
    return next((one for one in conditions if one.type == kind.value), None)


def true_condition(conditions: Iterable[Condition], kind: ConditionType) -> Condition | None:
    """The condition of this type, if its status is True."""
    return next((one for one in conditions if (one.type, one.status) == (kind.value, "True")), None)


def set_condition(conditions: Sequence[Condition], new: Condition) -> tuple[Condition, ...]:
    """The conditions with `new` in the place of its type.

    The time of the last transition is kept where the status stays the same, as the API conventions ask.
    """
    result = []
    placed = False
    for old in conditions:
        if old.type != new.type:
            result.append(old)
            continue
        same = old.status == new.status
        result.append(new.model_copy(update={"last_transition_time": old.last_transition_time}) if same else new)
        placed = True
    return tuple(result if placed else [*result, new])


def condition(
    kind: ConditionType, *, holds: bool, reason: str, message: str, now: datetime, generation: int
) -> Condition:
    """A condition that was observed at `now`."""
    return Condition(
        type=kind.value,
        status="True" if holds else "False",
        reason=reason,
        message=message,
        last_transition_time=now,
        observed_generation=generation,
    )
