"""How this process gets hold of code that runs: after a restart, or when the connection was lost.

The runner keeps what it has said, and says it again to whoever asks. It also knows what it never began, so code whose
hand-over was lost on the way is handed over again, and nothing runs twice.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from codeexec_api import Event, Reason, records
from codeexec_operator.core import startup
from codeexec_operator.core.actions import AdoptPod, Plan, ReadApprovals, ReadPod, ReadRequest, ResumeCode, StartCode
from codeexec_operator.core.approving import lapsed_approval, look_at_code
from codeexec_operator.core.image_trust import distrusted
from codeexec_operator.core.observed import FrameStream, Observed
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.payload import Payload, PayloadProblem
from codeexec_operator.core.record import finish
from codeexec_operator.core.starting import (
    deadline_of,
    deletion_of,
    job_of,
    look_for_session,
    seconds_to_run,
    verdict_now,
)
from codeexec_operator.core.timing import Timing
from codeexec_operator.manifests.pod import build_adoption

_NEVER_BEGUN: Final = "NeverBegun"
_KILLED: Final = range(129, 160)
_MISSING: Final = {
    "Overflowed": "the code had written more than the runner keeps for an operator that connects again",
    "Forgotten": "the runner no longer knows what the code has said",
}


def resume(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """Get hold of the code. Pure: same observation, same time, same plan."""
    if ending := _in_another_session(seen) or pod_ended(seen, now, timing):
        return finish(seen, now, ending)
    if seen.missing == _NEVER_BEGUN:
        return _hand_over_again(seen, now, timing)
    if seen.missing:
        return finish(seen, now, _lost(_MISSING.get(seen.missing, f"the runner does not tell of it: {seen.missing}")))
    if seen.frames is FrameStream.REQUESTED:
        give_up_at = (seen.frames_since or now) + timedelta(seconds=timing.start_timeout)
        if now >= give_up_at:
            return finish(seen, now, _lost(f"the runner did not answer within {timing.start_timeout:g} s"))
        return Plan(wake_at=give_up_at)
    return _in_session(seen, now, timing) if seen.execution.spec.session_ref else _in_own_pod(seen, now, timing)


def _in_another_session(seen: Observed) -> Ending | None:
    """The end of code whose session was deleted, and made again under the same name."""
    if seen.session is None or seen.session.session.status.pod_name == seen.execution.status.pod_name:
        return None
    return Ending(Event.VANISHED, None, "the session was deleted while the code ran; a new session has its name")


def _in_own_pod(seen: Observed, now: datetime, timing: Timing) -> Plan:
    if seen.sandbox.pod is None:
        return Plan(actions=(ReadPod(),))
    runner = seen.sandbox.runner
    if ending := startup.unreachable(runner, now, timing):
        return finish(seen, now, ending)
    if silent := startup.unanswered(runner, now, timing):
        return finish(seen, now, _lost(silent))
    connected = startup.connect(seen.sandbox, now, timing, startup.answer_by(runner, timing))
    if isinstance(connected, Plan):
        return connected
    return Plan(actions=(ResumeCode(), *_adopt(seen, now, timing)))


def _adopt(seen: Observed, now: datetime, timing: Timing) -> tuple[AdoptPod, ...]:
    """A pod that comes from a pool, and whose adoption an operator before this one did not get to."""
    execution, pod = seen.execution, seen.sandbox.pod
    if not execution.status.pool_name or pod is None or pod.owner == execution.metadata.uid:
        return ()
    return (AdoptPod(build_adoption(execution, deadline_seconds=deadline_of(seen, now, timing))),)


def _in_session(seen: Observed, now: datetime, timing: Timing) -> Plan:
    view = seen.session
    if view is None:
        gone = Ending(Event.VANISHED, None, "the session was deleted while the code ran")
        return look_for_session(seen, now, timing, gone)
    return Plan(actions=(ResumeCode(),)) if startup.takes_code(view) else Plan()  # the session sees to it that it comes


def _hand_over_again(seen: Observed, now: datetime, timing: Timing) -> Plan:
    """The record says that the code runs, but it never got to the runner."""
    if seen.execution.spec.cancelled:
        return finish(seen, now, Ending(Event.CANCEL, None, "cancelled before the code started"))
    if isinstance(seen.payload, PayloadProblem):
        message = f"the code was not handed to the runner, and is gone: {seen.payload.message}. Nothing was run"
        return finish(seen, now, Ending(Event.VANISHED, Reason.OPERATOR_RESTARTED, message))
    if not isinstance(seen.payload, Payload):
        return Plan(actions=(ReadRequest(),))
    looked = look_at_code(seen)
    if isinstance(looked, Plan):
        return looked
    approval = looked.execution.status.approval
    if approval and looked.approvals is None:
        return Plan(actions=(ReadApprovals(),))
    lapsed = lapsed_approval(looked, approval, looked.approvals or (), now) if approval else None
    verdict = lapsed[1] if lapsed else verdict_now(looked)
    refused = verdict if isinstance(verdict, Ending) else distrusted(looked, looked.execution.status.image)
    if isinstance(refused, Ending):
        message = f"the code was not handed to the runner, and must not run any more: {refused.message}"
        return finish(seen, now, Ending(Event.VANISHED, Reason.OPERATOR_RESTARTED, message))
    if seen.session and not seen.session.turn:
        return Plan()
    seconds = seconds_to_run(seen.execution.spec, timing)
    if startup.ends_before(seen.sandbox.pod, seconds, seen.execution.status.conditions, seen.since, now, timing):
        message = (
            f"the code was not handed to the runner, and its pod may end in less than {seconds:g} s. Nothing was run"
        )
        return finish(seen, now, Ending(Event.VANISHED, Reason.OPERATOR_RESTARTED, message))
    return Plan(actions=(*deletion_of(seen.payload), StartCode(job_of(seen, seen.payload))))


def _lost(why: str) -> Ending:
    message = f"the operator lost its connection to the code, or was restarted: {why}. The code is not run again"
    return Ending(Event.VANISHED, Reason.OPERATOR_RESTARTED, message)


def pod_ended(seen: Observed, now: datetime, timing: Timing) -> Ending | None:
    """The end that follows from that of the pod, once what the runner has said before had time to arrive."""
    place = seen.place
    if not place.gone and not (place.pod and place.pod.terminated):
        return None
    if now < (place.over_at or now) + timedelta(seconds=timing.grace) and seen.frames is not FrameStream.CLOSED:
        return None
    return with_pod(seen)


def with_pod(seen: Observed) -> Ending | None:
    """The end of the code that follows from that of its pod."""
    pod = seen.place.pod
    if startup.was_taken(seen.place):
        return Ending(Event.VANISHED, None, startup.taken(seen.place, "while the code ran"))
    if pod is None or not pod.terminated:
        return None
    if pod.terminated == "OOMKilled":
        return Ending(Event.OUT_OF_MEMORY, None, records.out_of_memory("the code", seen.execution.spec.limits))
    if pod.terminated == "DeadlineExceeded":
        return Ending(Event.DEADLINE, None, "the kubelet stopped the pod at its deadline (activeDeadlineSeconds)")
    if pod.terminated == startup.EVICTED:
        return Ending(Event.FAULT, None, startup.evicted("the code", pod, seen.execution.spec.limits))
    message = f"the pod ended without a result ({pod.terminated}, exit code {pod.exit_code})"
    if pod.exit_code in _KILLED:
        message += "; the runner was killed, perhaps by the code"
    return Ending(Event.FAULT, None, message)


def awake_for_pod(seen: Observed, plan: Plan, timing: Timing) -> Plan:
    """The same plan, looked at again once the end of the pod counts."""
    if seen.place.over_at is None or plan.status:
        return plan
    at = seen.place.over_at + timedelta(seconds=timing.grace)
    return replace(plan, wake_at=min(plan.wake_at or at, at))
