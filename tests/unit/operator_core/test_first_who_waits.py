"""Pods for those who wait come first, then those that fill the pool up. The clock is played."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from factories import CLUSTER_VIEW, NOW, OPEN, a_policy, a_sandbox, seconds
from plans import proof_of

from codeexec_api import Limits, SandboxPool
from codeexec_operator.adapters.pool_claims import Claims
from codeexec_operator.core.actions import CreateMember
from codeexec_operator.core.cluster_view import ClusterView, NodeView
from codeexec_operator.core.observed_pod import Sandbox
from codeexec_operator.core.observed_pool import KeptPod, Member, ObservedPool, Tenant
from codeexec_operator.core.placement import Claim
from codeexec_operator.core.pod_reset import Reset
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.pool import decide_pool, starts_wanted
from codeexec_operator.core.timing import Timing

TIMING = Timing(refill_pause=1, low_refill_pause=0.3, queue_first=3, reuse_return=0.3)
REUSE = a_policy(podReuse={"maxExecutions": 5})
REPLICAS, STEP = 4, 0.1


def nodes(count: int) -> ClusterView:
    """A cluster with so many nodes that take sandboxes."""
    made = [NodeView(f"node-{number}", "", 10250, OPEN, frozenset({""})) for number in range(count)]
    return replace(CLUSTER_VIEW, nodes=tuple(made))


def a_pool(**known: Any) -> ObservedPool:
    meta = {"name": "default", "namespace": "codeexec-sandbox", "uid": "1", "resourceVersion": "7", "generation": 1}
    pool = SandboxPool.model_validate({"metadata": meta, "spec": {"replicas": REPLICAS}})
    return ObservedPool(pool, **{"policy": a_policy(), "cluster_view": nodes(1), "members": {}} | known)


@dataclass
class Played:
    """A pool, whose pods take so long to start, and those who wait for one. Code never ends."""

    starts_in: float = 2
    queued: int = 0
    seen: ObservedPool = field(default_factory=a_pool)
    members: dict[str, Member] = field(default_factory=dict)
    at: float = 0
    made: list[float] = field(default_factory=list)
    """When each pod was asked for."""
    wake_at: datetime | None = NOW
    """When the pool looks again, if nothing happens."""

    @property
    def ready(self) -> int:
        return sum(one.ready for one in self.members.values())

    def join(self, count: int = 1) -> None:
        self.queued += count
        self.wake_at = NOW
        self._hand_out()

    def _hand_out(self) -> None:
        before = self.queued
        for name in [name for name, one in self.members.items() if one.ready][: self.queued]:
            del self.members[name]
            self.queued -= 1
            self.seen = replace(self.seen, last_claim_at=NOW + seconds(self.at), claimed=self.seen.claimed + 1)
        if self.queued != before:
            self.wake_at = NOW
        since = (self.seen.queued_since or NOW + seconds(self.at)) if self.queued else None
        self.seen = replace(self.seen, queued=self.queued, queued_since=since)

    def look(self) -> int:
        """How many pods are asked for at this moment."""
        names = tuple(f"default-{len(self.made):06d}{number:06d}" for number in range(64))
        seen = replace(self.seen, members=self.members, names=names, allowance=64)
        plan = decide_pool(seen, NOW + seconds(self.at), TIMING)
        due, self.wake_at = self.wake_at and self.wake_at <= NOW + seconds(self.at), plan.wake_at
        made = [one.name for one in plan.actions if isinstance(one, CreateMember)]
        starting = sum(not one.ready for one in self.members.values())
        others = len(self.members) - starting
        template = template_of(seen)
        wanted = starts_wanted(self.seen, template, starting, others, NOW + seconds(self.at), TIMING)
        assert len(made) <= wanted - starting, "what is made was asked for"
        assert due or not made, "the pool would look at this moment"
        assert isinstance(template, Template)
        for name in made:
            self.members[name] = Member(NOW + seconds(self.at), template.digest, Sandbox(requested=True))
        self.made += [round(self.at, 1)] * len(made)
        return len(made)

    def pass_by(self, time: float) -> None:
        until = self.at + time
        while self.at + STEP / 2 < until:
            self.at += STEP
            for name, one in self.members.items():
                if not one.ready and NOW + seconds(self.at) >= one.created_at + seconds(self.starts_in):
                    sandbox = a_sandbox()
                    self.members[name] = replace(one, sandbox=sandbox, proven=proof_of(sandbox))
            self._hand_out()
            self.look()


@pytest.fixture
def full() -> Played:
    played = Played()
    played.look()
    played.pass_by(3)
    assert (played.ready, played.queued) == (REPLICAS, 0)
    played.made.clear()
    played.at = 0.0
    played.seen = replace(played.seen, last_claim_at=None)
    played.members = {name: replace(one, created_at=NOW) for name, one in played.members.items()}
    return played


def test_of_eight_calls_at_once_four_get_pods_four_are_made_and_then_the_pool_is_filled_up(full: Played) -> None:
    full.join(8)
    full.look()
    assert (full.queued, full.made) == (4, [0.0] * 4), "as many as wait"
    full.pass_by(2.2)
    assert (full.queued, full.made) == (0, [0.0] * 4)
    full.pass_by(1)
    assert full.made == [0.0] * 4 + [2.3] * 4, "a moment after the last has got one"


@pytest.mark.parametrize(("count", "made"), [(1, 4), (4, 4), (6, 6), (100, 8)])
def test_where_nodes_have_nothing_to_start_the_pool_is_filled_up_at_the_same_time(
    full: Played, count: int, made: int
) -> None:
    """One pod on a node takes no time from another."""
    full.seen = replace(full.seen, cluster_view=nodes(count))
    full.join(8)
    assert full.look() == made


def test_who_comes_later_gets_one_more(full: Played) -> None:
    full.join(6)
    full.look()
    full.pass_by(1)
    full.join()
    full.pass_by(1)
    assert full.made == [0.0, 0.0, 1.1]


def test_where_somebody_always_waits_the_pool_is_filled_up_all_the_same(full: Played) -> None:
    full.join(REPLICAS)
    for _ in range(100):
        full.join()
        full.pass_by(1)
    begun = next(at for at in full.made if full.made.count(at) > 1)
    assert begun == TIMING.queue_first
    assert full.ready > 0, "those who come now need not wait"


class Waiting:
    """An execution that waits."""

    def __init__(self) -> None:
        self.claim = Claim("", NOW, False, None, Limits())

    def receive(self, pod: object) -> None:
        """Has it now."""


def test_since_when_there_is_a_queue_is_known_until_nobody_is_left_in_it() -> None:
    claims, pod = Claims(lambda: None), SimpleNamespace(pod_name="pod")
    first, second = cast("list[Any]", [Waiting(), Waiting()])
    assert claims.facts["queued_since"] is None
    claims.join(first)
    since = claims.facts["queued_since"]
    assert since
    claims.join(second)
    claims.leave(first, None)
    assert claims.facts == {"queued": 1, "queued_since": since, "claimed": 0, "kept": {}}
    claims.take(second, cast("Any", pod))
    assert (claims.facts["queued"], claims.facts["queued_since"]) == (0, None)


class TestWherePodsComeBack:
    def pool(self, queued: int, running: int) -> Played:
        played = Played(seen=a_pool(policy=REUSE, claimed=running, last_claim_at=NOW))
        played.join(queued)
        return played

    def test_a_call_that_is_ahead_of_a_reset_starts_no_pod(self) -> None:
        played = self.pool(queued=1, running=4)
        assert played.look() == 0
        played.pass_by(0.2)
        played.queued = 0  # the reset has come: it takes 15 ms
        played.pass_by(0.7)
        assert played.made == []

    def test_one_is_made_for_each_who_waits_for_longer_and_none_besides(self) -> None:
        played = self.pool(queued=2, running=4)
        played.look()
        played.pass_by(1)
        assert played.made == [0.3, 0.3]

    def test_those_who_are_more_than_the_pods_that_may_come_back_get_one_at_once(self) -> None:
        played = self.pool(queued=6, running=4)
        played.look()
        played.pass_by(1)
        assert played.made == [0.0] * 2 + [0.3] * 4

    def test_a_clean_pod_of_somebody_else_is_not_waited_for(self) -> None:
        """Nor does a node without work get one that nobody waits for: it would push out one that is used again."""
        sandbox = a_sandbox()
        runner = replace(sandbox.runner, reset=Reset("last", True, (), "", 1))
        played = self.pool(queued=2, running=1)
        template = template_of(played.seen)
        assert isinstance(template, Template)
        member = Member(NOW, template.digest, replace(sandbox, runner=runner), proof_of(sandbox))
        theirs = KeptPod(Tenant("bob", "", "", None, (Decimal(1), Decimal(1), Decimal(1), 1)), 1, "last", NOW, member)
        played.seen = replace(played.seen, kept={"used": theirs}, claimed=2, cluster_view=nodes(9))
        assert played.look() == 1
        played.pass_by(1)
        assert played.made == [0.0, 0.3]

    def test_a_pool_whose_pods_are_used_once_waits_for_nothing(self) -> None:
        played = self.pool(queued=2, running=4)
        played.seen = replace(played.seen, policy=a_policy())
        assert played.look() == 2
