"""When a session sleeps and wakes: its files are stored, its pod goes, and the next execution brings both back. Pure.

The pod goes only after the record says that the session sleeps, and that is written only when all files are stored. So
an operator that takes over finds the session awake, or asleep with its files.
"""

from datetime import datetime, timedelta
from typing import Any

from codeexec_api import (
    CodeSession,
    CodeSessionSpec,
    CodeSessionStatus,
    ConditionType,
    Event,
    Reason,
    StoredFiles,
    advance_session,
    find_condition,
)
from codeexec_operator.core import delay, startup
from codeexec_operator.core.actions import KeepAwake, LeavePod, Plan, RestoreFiles, StoreFiles
from codeexec_operator.core.observed import ObservedSession
from codeexec_operator.core.outcome import Ending, recordable, waits_no_more, with_condition
from codeexec_operator.core.session_record import end, moved, use
from codeexec_operator.core.timing import Timing


def stay_awake(seen: ObservedSession, now: datetime) -> Plan | None:
    """What hinders a session from sleeping that was about to; None if nothing does."""
    if seen.unsure:  # with this write, an older one that is still on its way comes too late
        message = "it was not known whether the record says that the session sleeps; it is awake"
        return Plan(status=_awake(seen, Reason.SANDBOX_READY, message, now))
    storing = seen.storing
    if storing and seen.claimants and (storing.running or storing.stored):
        return Plan(actions=(KeepAwake(),))
    return None


def fall_asleep(
    seen: ObservedSession, idle_since: datetime, now: datetime, timing: Timing, end_at: datetime
) -> Plan | datetime:
    """What to do about a session in which nothing runs, or when to look again: not later than `end_at`."""
    after, storing, pod = seen.session.spec.sleep_after_seconds, seen.storing, seen.sandbox.pod
    if after is None or seen.claimants or not seen.store_url or pod is None or pod.owner != seen.session.metadata.uid:
        return end_at
    if storing and storing.running:
        return end_at
    if storing and storing.stored:
        if storing.since < idle_since:  # an execution has used the session since
            return Plan(actions=(KeepAwake(),))
        return Plan(status=_asleep(seen, storing.stored, now), actions=(LeavePod(),))
    sleep_at = idle_since + timedelta(seconds=after)
    if storing and storing.ended_at:
        message = recordable(f"the session stays awake, because its files could not be stored: {storing.problem}")
        told = find_condition(seen.session.status.conditions, ConditionType.ASLEEP)
        if told is None or told.message != message:
            return Plan(status=_awake(seen, storing.reason, message, now))
        if storing.ended_at >= idle_since:
            sleep_at = storing.ended_at + timedelta(seconds=timing.sleep_retry)
    return min(sleep_at, end_at) if now < sleep_at else Plan(actions=(StoreFiles(),), wake_at=end_at)


def _asleep(seen: ObservedSession, stored: StoredFiles, now: datetime) -> CodeSessionStatus:
    message = f"{delay.counted(stored.entries, 'file')} and folders are stored; the next execution wakes the session"
    ending = Ending(Event.SLEPT, None, message)
    return _without_pod(seen, moved(seen, now, ending, ConditionType.ASLEEP), ending, now, stored_files=stored)


def _without_pod(
    seen: ObservedSession, status: CodeSessionStatus, ending: Ending, now: datetime, **more: Any
) -> CodeSessionStatus:
    meta = seen.session.metadata
    conditions = with_condition(status.conditions, ConditionType.READY, status.reason, ending.message, now, meta)
    facts = {"pod_name": "", "node_name": "", "pool_name": "", "conditions": conditions, "sleeps": status.sleeps + 1}
    return status.model_copy(update={**facts, **use(seen), **more})


def _awake(seen: ObservedSession, reason: Reason, message: str, now: datetime) -> CodeSessionStatus:
    status = seen.session.status
    conditions = with_condition(
        status.conditions, ConditionType.ASLEEP, reason.value, message, now, seen.session.metadata
    )
    return status.model_copy(update={"conditions": conditions})


def as_it_was(session: CodeSession) -> CodeSessionSpec:
    """What a session that wakes asks for: the image that it had, whatever the policy's default is by now."""
    return session.spec.model_copy(update={"image": session.status.image, "sleep_after_seconds": None})


def wake_at(status: CodeSessionStatus, since: datetime, now: datetime, timing: Timing) -> datetime:
    """When a session may be woken: a while after that has failed."""
    asleep = find_condition(status.conditions, ConditionType.ASLEEP)
    if asleep is None or asleep.reason == Reason.FILES_STORED.value:
        return now
    failed_at = startup.by_this_clock(asleep.last_transition_time, since, now, timing)
    return failed_at + timedelta(seconds=timing.wake_retry)


def needed_no_more(seen: ObservedSession, now: datetime) -> Plan | None:
    """The end of a wait for a session that could not be woken; None if the record says of no such wait."""
    status, message = seen.session.status, "no execution waits for the session any more"
    conditions = waits_no_more(status.conditions, status.reason, message, now, seen.session.metadata)
    if conditions == status.conditions:
        return None
    return Plan(status=status.model_copy(update={"conditions": conditions}))


def woken(seen: ObservedSession, now: datetime, facts: dict[str, Any]) -> CodeSessionStatus:
    """The status of a session that has a pod again, or will have."""
    waking = Ending(Event.WOKEN, None, "an execution needs the session; its files come back before any code runs")
    return moved(seen, now, waking, ConditionType.ASLEEP, holds=False).model_copy(update=facts)


def restore(seen: ObservedSession, stored: StoredFiles, now: datetime, timing: Timing) -> Plan | None:
    """What to do until the files are in the new pod; None once they are."""
    restoring = seen.restoring
    if restoring is None:
        return Plan(actions=(RestoreFiles(stored),))
    if restoring.running:
        give_up_at = restoring.since + timedelta(seconds=timing.workspace_transfer)
        if now >= give_up_at:
            message = f"its files did not come back within {timing.workspace_transfer:g} s"
            return on(seen, now, Ending(Event.SLEPT, Reason.STORE_UNAVAILABLE, message))
        plan = Plan(wake_at=give_up_at)
        return delay.tell(seen, plan, now, timing, "its files are being restored")
    if not restoring.problem:
        return None
    message = f"{restoring.problem}. The files as they were stored are in {stored.url} (list {stored.sha256})"
    if restoring.reason is Reason.FILES_DIFFER:
        return end(seen, now, Ending(Event.FAULT, Reason.FILES_DIFFER, f"{message}. Nothing was run"))
    return on(seen, now, Ending(Event.SLEPT, restoring.reason, message))


def on(seen: ObservedSession, now: datetime, ending: Ending) -> Plan:
    """A session that could not be woken sleeps on, with its files, and is woken again later if somebody needs it."""
    if ending.event is Event.REFUSED:  # the policy has to be changed first
        return end(seen, now, ending)
    reason = ending.reason or advance_session(seen.session.status.phase, ending.event).reason
    message = f"the session could not be woken and stays asleep: {ending.message.rstrip('.')}. The operator tries again"
    again = Ending(Event.SLEPT, reason, message)
    status = _without_pod(seen, moved(seen, now, again, ConditionType.ASLEEP), again, now)
    conditions = with_condition(
        status.conditions, ConditionType.DELAYED, status.reason, message, now, seen.session.metadata, holds=True
    )
    return Plan(status=status.model_copy(update={"conditions": conditions}), actions=(LeavePod(),))
