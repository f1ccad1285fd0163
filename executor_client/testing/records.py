"""The records as the operator writes them: pure functions from one version of an object to the next."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from codeexec_api import (
    Boundary,
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    Condition,
    ConditionType,
    EgressProof,
    EgressTarget,
    EgressVerdict,
    Event,
    OpenedEgress,
    Phase,
    Reason,
    advance,
    advance_session,
    condition,
    set_condition,
    true_condition,
)
from codeexec_api import records as said
from codeexec_api.policy import cluster_policy
from codeexec_api.records import EGRESS_WARNING, ENDED_WITH_SESSION, duration, egress_may_be_open
from codeexec_api.v1alpha1.sandbox import SANDBOX_FIELDS

FAKE_IMAGE: Final = f"sandbox.example/fake@sha256:{0:064x}"
"""The image of the fake's default policy."""
VERSION: Final = version("codeexec")
"""Of the operator that the fake plays."""
DEFAULT_POLICY: Final = cluster_policy(("codeexec-system", "codeexec-operator"))
"""Where the policy is kept of a namespace without its own, with the names of a usual installation."""
_LAPSES: Final = frozenset({Reason.APPROVAL_DENIED, Reason.APPROVAL_EXPIRED, Reason.APPROVAL_REVOKED})
_TARGET: Final = {"name": "api-server", "address": "192.0.2.1", "port": 443, "protocol": "TCP"}


def moved(
    execution: CodeExecution,
    event: Event,
    kind: ConditionType,
    message: str,
    now: datetime,
    *,
    reason: Reason | None = None,
    holds: bool = True,
    **update: Any,
) -> CodeExecution:
    """An execution after an event, along the table of phases; `update` is for further fields of its status."""
    status = execution.status
    if kind is ConditionType.FINISHED and egress_may_be_open(status):
        message += EGRESS_WARNING
    move = advance(status.phase, event)
    why = (reason or move.reason).value
    generation = execution.metadata.generation
    result = partial(condition, reason=why, message=message, now=now, generation=generation)
    proofs = _proof_conditions(status.conditions, update.get("egress_proof"), now, generation, status.egress)
    conditions, took = set_condition(proofs, result(kind, holds=holds)), ""
    if kind in (ConditionType.STARTED, ConditionType.FINISHED) and true_condition(conditions, ConditionType.QUEUED):
        over = partial(result, ConditionType.QUEUED, holds=False)
        ready = kind is ConditionType.STARTED
        turn = over(reason=Reason.SANDBOX_READY.value, message="the sandbox is ready") if ready else over()
        conditions = set_condition(conditions, turn)
    if kind is ConditionType.FINISHED:
        update["finished_at"] = now
        waits = status.phase is Phase.AWAITING_APPROVAL and event is not Event.CANCEL
        if waits or why in _LAPSES:
            conditions = set_condition(conditions, result(ConditionType.APPROVED, holds=False))
        not_yet = status.phase in (Phase.PENDING, Phase.AWAITING_APPROVAL, Phase.APPROVED)
        if status.started_at:
            took = duration((now - status.started_at).total_seconds())
        else:
            never_accepted = not_yet and event in (Event.REFUSED, Event.EXPIRED)
            missing = ConditionType.ACCEPTED if never_accepted else ConditionType.STARTED
            conditions = set_condition(conditions, result(missing, holds=False))
        conditions = set_condition(conditions, said.succeeded(move.phase, why, now, generation))
    changes = {
        "phase": move.phase,
        "reason": why,
        "message": message,
        "conditions": conditions,
        "observed_generation": generation,
        "operator_version": VERSION,
        "code_digest": execution.spec.code_digest,
        "summary": execution.spec.summary.model_copy(update={"duration": took}),
        **update,
    }
    return execution.model_copy(update={"status": status.model_copy(update=changes)})


def queued(execution: CodeExecution, place: str, now: datetime) -> CodeExecution:
    """An execution that waits for its turn in a session, at this place."""
    why, status, generation = Reason.WAITING_FOR_SESSION.value, execution.status, execution.metadata.generation
    shown = condition(ConditionType.QUEUED, holds=True, reason=why, message=place, now=now, generation=generation)
    changes = {"reason": why, "message": place, "conditions": set_condition(status.conditions, shown)}
    return execution.model_copy(update={"status": status.model_copy(update=changes)})


def moved_session(
    session: CodeSession,
    event: Event,
    kind: ConditionType,
    message: str,
    now: datetime,
    *,
    reason: Reason | None = None,
    **update: Any,
) -> CodeSession:
    """The same for a session. READY becomes false when nothing can run in it any more."""
    status = session.status
    move = advance_session(status.phase, event)
    why, holds, generation = (reason or move.reason).value, not move.phase.terminal, session.metadata.generation
    changes = {
        "phase": move.phase,
        "reason": why,
        "message": message,
        "conditions": set_condition(
            _proof_conditions(status.conditions, update.get("egress_proof"), now, generation),
            condition(kind, holds=holds, reason=why, message=message, now=now, generation=generation),
        ),
        "observed_generation": generation,
        "operator_version": VERSION,
        **({"ended_at": now} if move.phase.terminal else {}),
        **update,
    }
    return session.model_copy(update={"status": status.model_copy(update=changes)})


def proven(verdict: EgressVerdict, now: datetime, *, permits: bool = False) -> dict[str, Any]:
    """What a status says of a pod that runs, once its network was tried."""
    closed = verdict is EgressVerdict.CLOSED
    if closed and permits:
        verdict = EgressVerdict.RESTRICTED
    target = EgressTarget(**_TARGET, refused=verdict is not EgressVerdict.OPEN, reachable=closed)
    return {
        "node_name": "fake-node",
        "image_id": FAKE_IMAGE,
        "boundary": Boundary.USER_NAMESPACE,
        "layers": (
            "UserNamespace",
            *(("NetworkPolicy",) if closed else ()),
            "Seccomp",
            "Landlock",
            *(("LandlockPorts",) if permits else ()),
        ),
        "egress_proof": EgressProof(verdict=verdict, checked_at=now, targets=(target,)),
    }


def proven_of(session: CodeSession) -> dict[str, Any]:
    """The same for an execution, from the session that it runs in."""
    return {name: getattr(session.status, name) for name in SANDBOX_FIELDS}


def _proof_conditions(
    conditions: tuple[Condition, ...],
    proof: EgressProof | None,
    now: datetime,
    generation: int,
    opened: tuple[OpenedEgress, ...] = (),
) -> tuple[Condition, ...]:
    if proof is None:
        return conditions
    listed = [f"{one.permit} without {', '.join(one.left_out)}" if one.left_out else one.permit for one in opened]
    permitted = f"permitted: {', '.join(listed)}; " if proof.verdict is EgressVerdict.RESTRICTED else ""
    shown = condition(
        ConditionType.EGRESS_CLOSED,
        holds=proof.verdict.holds,
        reason=proof.verdict.value,
        message=permitted + EGRESS_MESSAGES[proof.verdict],
        now=now,
        generation=generation,
    )
    return set_condition(conditions, shown)


EGRESS_MESSAGES: Final = {
    EgressVerdict.CLOSED: "no answer inside the sandbox from: api-server 192.0.2.1:443/TCP",
    EgressVerdict.RESTRICTED: "no answer inside the sandbox from: api-server 192.0.2.1:443/TCP",
    EgressVerdict.OPEN: "the network of the sandbox is open: api-server 192.0.2.1:443/TCP answered from inside the pod"
    ". The namespace needs the NetworkPolicy codeexec-deny-all, which the chart installs, and the cluster a network "
    "plugin that enforces NetworkPolicy for egress",
}


def session_ended_meanwhile(session: CodeSession) -> tuple[Event, str]:
    """What becomes of an execution that runs when its session ends."""
    if session.spec.ended:
        return Event.CANCEL, ENDED_WITH_SESSION
    if session.status.reason == Reason.LIFETIME_EXCEEDED.value:
        return Event.DEADLINE, f"the session ended while the code ran: {session.status.message}"
    return Event.VANISHED, "the pod was deleted while the code ran"


def mismatch_of_payload(spec: CodeExecutionSpec, payload: Mapping[str, bytes]) -> str:
    """What of the payload is not what the spec announces; empty if all is."""
    problems = (said.payload_mismatch(one, payload.get(one.key)) for one in said.announced(spec))
    return next(filter(None, problems), "")
