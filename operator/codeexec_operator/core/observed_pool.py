"""What is known of a pool and of its pods, as small frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from codeexec_api import ExecutionPolicySpec, Reason, SandboxPool
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.observed_pod import RunnerView, Sandbox, is_usable
from codeexec_operator.core.outcome import Ending, Proven
from codeexec_operator.core.timing import Timing

MAX_RUN_SECONDS: Final = 86_400
"""How long a pod of a pool may be used. The deadline of one that waits leaves room for it; it is lowered later."""


@dataclass(frozen=True)
class Member:
    """A pod of the pool that nobody has taken."""

    created_at: datetime
    """By the clock of this process."""
    template: str
    """Digest of what it was made of."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    proven: Proven | None = None
    """What was shown when it was admitted."""
    since: datetime | None = None
    """When this process found it; None if this process has made it."""

    @property
    def starting(self) -> bool:
        """True while it takes the time of a node: not when it is ready, nor while no node has room for it."""
        return self.proven is None and not (self.sandbox.pod and self.sandbox.pod.unschedulable)

    @property
    def ready(self) -> bool:
        """True if it can be handed out at this moment."""
        return self.proven is not None and is_usable(self.sandbox)


@dataclass(frozen=True)
class Tenant:
    """Whose a pod is that is used more than once, and for what: no other execution ever gets it."""

    requested_by: str
    agent: str
    image: str
    runtime_class_name: str | None
    limits: tuple[Decimal, Decimal, Decimal, int]


@dataclass(frozen=True)
class KeptPod:
    """A pod that has run code and is kept for more of the same tenant. Nothing runs in it."""

    tenant: Tenant
    uses: int
    """How many executions it has had."""
    last_job: str
    since: datetime
    """When the last one was over."""
    member: Member

    @property
    def answered(self) -> bool:
        """True if the runner has told what it found after the last job."""
        reset = self.member.sandbox.runner.reset
        return reset is not None and reset.job == self.last_job

    @property
    def clean(self) -> bool:
        """True if the runner has shown that nothing of the last job is left."""
        reset = self.member.sandbox.runner.reset
        return self.answered and reset is not None and reset.clean

    def until(self, timing: Timing) -> datetime:
        """When it is given up, if nobody gets it before."""
        return self.since + timedelta(seconds=timing.reuse_idle if self.answered else timing.reset_answer)


@dataclass(frozen=True)
class ObservedPool:
    """Everything known about one pool at one moment."""

    pool: SandboxPool
    policy: ExecutionPolicySpec | PolicyProblem | None = None
    """None: not read yet."""
    policy_source: str = ""
    """Where the policy is kept, for messages."""
    cluster_view: ClusterView = field(default_factory=ClusterView)
    members: Mapping[str, Member] | None = None
    """By name; None: not listed yet."""
    claimed: int = 0
    kept: Mapping[str, "KeptPod"] = field(default_factory=dict)
    """Pods that were used, and are kept for the one who has used them; by name."""
    queued: int = 0
    queued_since: datetime | None = None
    """Since when there was always somebody in the queue; None if nobody is there."""
    allowance: int = 0
    """How many more may be starting, so that all namespaces get their share of what the nodes can start."""
    full_at: datetime | None = None
    """When it was last seen that no node has room for one of its pods."""
    held_until: datetime | None = None
    """Until then room is for pods of executions and sessions of the namespace; None if they all have some."""
    unserved: int = 0
    """How many of those the pool has to give up a pod for now."""
    names: tuple[str, ...] = ()
    """Names for new pods."""
    last_claim_at: datetime | None = None
    last_refill_ms: int | None = None
    problem: Ending | None = None
    """Why the last pod that was given up was no good; gone as soon as one is."""
    problem_at: datetime | None = None
    problems: int = 0
    """How many there were in a row."""

    def after_problem(self, problem: Ending, now: datetime) -> "ObservedPool":
        """The same, when one more pod was given up."""
        return replace(self, problem=problem, problem_at=now, problems=self.problems + 1)

    def after_room(self, now: datetime) -> "ObservedPool":
        """The same, when a pod has ended: if a quota was used up, soon there is room again."""
        used_up = self.problem is not None and self.problem.reason is Reason.QUOTA_EXCEEDED
        return replace(self, problem_at=now, problems=1) if used_up else self

    def without_problem(self) -> "ObservedPool":
        """The same, when what was wrong may be wrong no more."""
        return replace(self, problem=None, problem_at=None, problems=0)


def is_asked(runner: RunnerView) -> bool:
    """True if it was asked whether it is still there and has said nothing since."""
    return runner.pinged_at is not None and (runner.heard_at is None or runner.pinged_at > runner.heard_at)


def is_silent(runner: RunnerView, now: datetime, timing: Timing) -> bool:
    """True if it was asked whether it is still there and has not answered in time."""
    asked_at = runner.pinged_at if is_asked(runner) else None
    return asked_at is not None and now >= asked_at + timedelta(seconds=timing.ping_answer)
