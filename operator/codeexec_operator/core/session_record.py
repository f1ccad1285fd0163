"""What the record of a session says: where it stands, its end, and its use. Pure."""

from datetime import datetime
from typing import Any

from codeexec_api import CodeSessionStatus, ConditionType, Event, advance_session
from codeexec_api.phases import SessionPhase
from codeexec_operator.core.actions import DeletePod, Plan
from codeexec_operator.core.observed import ObservedSession
from codeexec_operator.core.outcome import Ending, transition, waits_no_more


def use(seen: ObservedSession) -> dict[str, Any]:
    """What the record says of the session's use."""
    status = seen.session.status
    return {"last_used_at": seen.used_at or status.last_used_at, "executions": max(seen.executions, status.executions)}


def end(seen: ObservedSession, now: datetime, ending: Ending) -> Plan:
    """End the session: nothing runs in it any more, and its pod is deleted."""
    refused = seen.session.status.phase is SessionPhase.PENDING and ending.event is Event.REFUSED
    kind = ConditionType.ACCEPTED if refused else ConditionType.READY
    status = moved(seen, now, ending, kind, holds=False)
    # An operator before this one may have had a clock that was ahead.
    status = status.model_copy(update={"ended_at": max(now, status.started_at or now), **use(seen)})
    pod = seen.sandbox.pod is not None or seen.sandbox.requested
    return Plan(status=status, actions=(DeletePod(),) * pod)


def moved(
    seen: ObservedSession, now: datetime, ending: Ending, kind: ConditionType, *, holds: bool = True
) -> CodeSessionStatus:
    """The status after this event, with a condition that tells of it."""
    session = seen.session
    move = advance_session(session.status.phase, ending.event)
    facts = transition(session, move, now, ending, kind, holds=holds)
    conditions = waits_no_more(facts["conditions"], facts["reason"], facts["message"], now, session.metadata)
    return session.status.model_copy(update={**facts, "conditions": conditions})
