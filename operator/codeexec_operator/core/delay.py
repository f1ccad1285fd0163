"""Why a pod that was requested doesn't start yet, and what to do about it, in the words of the record. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from codeexec_api import CodeExecution, CodeSession, ConditionType, Reason, true_condition
from codeexec_operator.core.actions import Plan, ReadPod
from codeexec_operator.core.observed import Observed, ObservedSession, Room
from codeexec_operator.core.observed_pod import Sandbox, is_blocked, lacks_room
from codeexec_operator.core.outcome import Ending, recordable, with_condition
from codeexec_operator.core.startup import late, requested_at, why
from codeexec_operator.core.timing import Timing

FREE_ROOM: Final = (
    "End sessions that nobody needs (`codeexec sessions`, `codeexec sessions end NAME`); the platform owner can add "
    "nodes, or lower `requests` of the policy"
)
_NAMED: Final = 3
"""Sessions that a message names."""
_SAID_LENGTH: Final = 2000
"""Characters of the scheduler's or the kubelet's words, so that what to do fits into the message, too."""


def tell(seen: Observed | ObservedSession, plan: Plan, now: datetime, timing: Timing, said: str = "") -> Plan:
    """The plan for a record whose pod isn't ready, with what the record has to say about that, and with a look for it.

    The record is written again only if the reason changes, or the words of the scheduler or the kubelet. A change in
    who has pods causes no write. `said` is why the pod isn't ready, if its status doesn't say so.
    """
    record, sandbox = seen.record, seen.sandbox
    plan = _look_again(plan, sandbox, now, timing)
    blocked = sandbox.pod.unschedulable if sandbox.pod else ""
    notice = timing.early_notice if blocked else timing.start_notice
    tell_at = requested_at(record.status.conditions, seen.since, now, timing) + timedelta(seconds=notice)
    if now < tell_at:
        return replace(plan, wake_at=min(plan.wake_at or tell_at, tell_at))
    reason = Reason.UNSCHEDULABLE if blocked else Reason.POD_STARTING
    said = recordable(said or why(sandbox))[:_SAID_LENGTH]
    before = true_condition(record.status.conditions, ConditionType.DELAYED)
    if before and before.reason == reason.value and said.rstrip(".") in before.message:
        return plan
    what_to_do = _advice(sandbox, seen.room) if blocked else _look_at(record, sandbox)
    message = recordable(f"the pod is not ready yet: {said.rstrip('.')}. {what_to_do}")
    return replace(plan, status=record.status.model_copy(update=_delayed(record, reason.value, message, now)))


def tell_of_session(execution: CodeExecution, session: CodeSession, now: datetime) -> Plan:
    """The plan for an execution whose session doesn't start: its record says what the session's says."""
    delayed = true_condition(session.status.conditions, ConditionType.DELAYED)
    if delayed is None:
        return Plan()
    message = recordable(f"session {session.metadata.name!r}: {delayed.message}")
    before = true_condition(execution.status.conditions, ConditionType.DELAYED)
    if before and before.message == message:
        return Plan()
    return Plan(status=execution.status.model_copy(update=_delayed(execution, delayed.reason, message, now)))


def _delayed(record: CodeExecution | CodeSession, reason: str, message: str, now: datetime) -> dict[str, object]:
    conditions = with_condition(
        record.status.conditions, ConditionType.DELAYED, reason, message, now, record.metadata, holds=True
    )
    return {"reason": reason, "message": message, "conditions": conditions}


def give_up_at(seen: Observed | ObservedSession, now: datetime, timing: Timing) -> datetime:
    """Until when the pod has to be ready. This process has not looked at the pod before `seen.since`."""
    begun = max(requested_at(seen.record.status.conditions, seen.since, now, timing), seen.since)
    least = timedelta(seconds=timing.late_start)
    return max(begun + timedelta(seconds=timing.start_timeout), (seen.sandbox.runs_since or seen.since) + least)


def _look_again(plan: Plan, sandbox: Sandbox, now: datetime, timing: Timing) -> Plan:
    """The plan for a pod that doesn't run yet: if nothing is heard of the pod for a while, it is looked for."""
    if sandbox.heard_at is None or (sandbox.pod and sandbox.pod.running):
        return plan
    look_at = sandbox.heard_at + timedelta(seconds=timing.look_again)
    if now >= look_at:
        return replace(plan, actions=(*plan.actions, ReadPod()))
    return replace(plan, wake_at=min(plan.wake_at or look_at, look_at))


def look_before(give_up_at: datetime, sandbox: Sandbox) -> Plan | None:
    """A last look for a pod that seems to be late; None if something was heard of the pod since then."""
    heard = sandbox.heard_at and sandbox.heard_at >= give_up_at
    return None if heard else Plan(actions=(ReadPod(),))


def too_late(seen: Observed | ObservedSession, timing: Timing) -> Ending:
    """The end of what waited for its pod in vain, with what to do if no node had room."""
    ending = late(seen.sandbox, timing)
    if not is_blocked(seen.sandbox):
        return ending
    return replace(ending, message=f"{ending.message.rstrip('.')}. {_advice(seen.sandbox, seen.room)}")


def _advice(sandbox: Sandbox, room: Room) -> str:
    """What to do if the scheduler finds no node."""
    if not lacks_room(sandbox):
        return "The platform owner has to look at the nodes: `kubectl describe nodes`"
    return f"{_holders(room)}{FREE_ROOM}"


def _holders(room: Room) -> str:
    idle = ", ".join(room.idle[:_NAMED])
    more = len(room.idle) - _NAMED
    named = f" ({idle}{f' and {more} more' if more > 0 else ''})"
    counts = {
        f"{counted(len(room.idle), 'idle session')}{named}": len(room.idle),
        counted(room.busy, "busy session"): room.busy,
        counted(room.executions, "execution"): room.executions,
        f"{counted(room.ready, 'ready pod')} of pools": room.ready,
    }
    parts = [text for text, number in counts.items() if number]
    if not parts:
        return "Nothing else in this namespace has a pod. "
    return f"In this namespace, these have pods: {', '.join(parts)}. "


def counted(number: int, what: str) -> str:
    """So many of them, in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _look_at(record: CodeExecution | CodeSession, sandbox: Sandbox) -> str:
    meta, status = record.metadata, record.status
    pulls = sandbox.pod is not None and sandbox.pod.node_name and not sandbox.pod.running
    may = f"Its node may still be pulling the image {status.image}. " if pulls else ""
    return f"{may}`kubectl -n {meta.namespace} describe pod {status.pod_name}` shows what happens"
