"""What a plan of the operator says, and what is observed once it is carried out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from factories import CLUSTER_VIEW, NOW, seconds

from codeexec_operator.core.actions import Plan, ReadPod
from codeexec_operator.core.observed import Observed, ObservedSession
from codeexec_operator.core.observed_pod import Sandbox
from codeexec_operator.core.outcome import Proven
from codeexec_operator.core.startup import prove


def outcome(plan: Plan) -> tuple[Any, str]:
    """Phase and reason that are written into the record."""
    status: Any = plan.status
    assert status is not None
    return status.phase, status.reason


def given_up(plan: Callable[[Any, float], Plan], observed: Any, after: float) -> Plan:
    """What is decided when the time of a pod is over, once it was looked for in vain; before that, it is looked for."""
    look = plan(observed, after)
    assert (look.status, [type(action) for action in look.actions]) == (None, [ReadPod])
    return plan(replace(observed, sandbox=replace(observed.sandbox, heard_at=NOW + seconds(after))), after)


def proof_of(sandbox: Sandbox) -> Proven:
    """What this pod has shown once it is admitted to a pool."""
    assert sandbox.pod
    assert sandbox.runner.ready
    return prove(sandbox.pod, sandbox.runner.ready, CLUSTER_VIEW, NOW, 1)


class Walk:
    """From created to forgotten: the status of each plan is in the next observation."""

    def __init__(self, observed: Observed | ObservedSession, plan: Callable[[Any, float], Plan]) -> None:
        self._observed, self._plan = observed, plan
        self._kind = "session" if isinstance(observed, ObservedSession) else "execution"
        self.actions: list[str] = []
        """Names of all actions so far."""

    def step(self, after: float, **changes: Any) -> Any:
        """Observe this, so many seconds after the start. Returns the record."""
        observed = replace(self._observed, **changes)
        plan = self._plan(observed, after)
        self.actions += [type(action).__name__ for action in plan.actions]
        record = getattr(observed, self._kind)
        if plan.status:
            record = record.model_copy(update={"status": plan.status})
        self._observed = replace(observed, **{self._kind: record})
        return record
