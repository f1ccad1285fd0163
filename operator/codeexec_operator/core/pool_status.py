"""What the record of a pool says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from codeexec_api import Condition, ConditionType, Reason, SandboxPoolStatus
from codeexec_api.names import POOL_LABEL
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.delay import FREE_ROOM, counted
from codeexec_operator.core.observed_pool import Member, ObservedPool
from codeexec_operator.core.outcome import Ending, with_condition
from codeexec_operator.core.pod_template import Template
from codeexec_operator.core.timing import Timing


@dataclass
class Unhurried:
    """Holds a status back for a while after it has changed: what changes it is not to be slowed down by its writes."""

    _changed_at: datetime | None = None

    def plan(self, plan: Plan, now: datetime, timing: Timing) -> Plan:
        """The plan without its status, as long as it isn't time to write it."""
        since = self._changed_at or now
        write_at = since + timedelta(seconds=timing.pool_status)
        held = plan.status is not None and now < write_at
        self._changed_at = since if held else None
        return replace(plan, status=None, wake_at=min(plan.wake_at or write_at, write_at)) if held else plan


def status_of(
    seen: ObservedPool, members: Mapping[str, Member], template: Template | Ending, now: datetime
) -> SandboxPoolStatus:
    """The status, with these pods."""
    pool, ready = seen.pool, sum(member.ready for member in members.values())
    facts: dict[str, Any] = {}
    if isinstance(template, Template):
        facts = {"image": template.image, "runtime_class_name": template.runtime_class_name or ""}
    return pool.status.model_copy(
        update={
            **facts,
            "replicas": len(members),
            "ready_replicas": ready,
            "claimed_replicas": seen.claimed,
            "queued": seen.queued,
            "last_refill_ms": seen.last_refill_ms or pool.status.last_refill_ms,
            "selector": f"{POOL_LABEL}={pool.metadata.name}",
            "observed_generation": pool.metadata.generation,
            "conditions": _conditions(seen, ready, template, now),
        }
    )


def _conditions(seen: ObservedPool, ready: int, template: Template | Ending, now: datetime) -> tuple[Condition, ...]:
    replicas = seen.pool.spec.replicas
    if isinstance(template, Ending):
        holds, reason, message = False, template.reason or Reason.POLICY_INVALID, template.message
    elif seen.problem:
        holds, reason, message = False, seen.problem.reason or Reason.RUNNER_FAILED, seen.problem.message
    elif replicas == 0:
        holds, reason, message = (
            False,
            Reason.POOL_EMPTY,
            "spec.replicas is 0: each execution and session gets its own pod",
        )
    elif ready >= replicas:
        holds, reason, message = True, Reason.POOL_READY, "all pods are ready"
    else:
        full = ready + len(seen.kept) >= replicas
        said = "each pod is ready, or kept for the agent that used it" if full else "pods are starting"
        holds, reason, message = False, Reason.POOL_FILLING, trouble_of(seen) or said
    conditions, meta = seen.pool.status.conditions, seen.pool.metadata
    return with_condition(conditions, ConditionType.READY, reason.value, message, now, meta, holds=holds)


def trouble_of(seen: ObservedPool) -> str:
    """Why pods of the pool don't become ready; empty if nothing is known to be wrong."""
    if seen.problem:
        return seen.problem.message
    placeless = [pod.unschedulable for member in (seen.members or {}).values() if (pod := member.sandbox.pod)]
    blocked = [words for words in placeless if words]
    if seen.held_until:
        return f"its ready pods make room for executions and sessions for which no node has room. {FREE_ROOM}"
    if not blocked:
        return ""
    return f"the scheduler found no node for {counted(len(blocked), 'pod')}: {blocked[0].rstrip('.')}. {FREE_ROOM}"
