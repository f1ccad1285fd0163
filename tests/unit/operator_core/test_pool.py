"""The decision about a pool: how many pods, which of them are let in, and when one is given up."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    seconds,
)
from hypothesis import given
from hypothesis import strategies as st
from plans import proof_of

from codeexec_api import Event, Limits, PodLimits, Reason, SandboxPool, Verdict
from codeexec_api.scheduling import PLAIN, Scheduling
from codeexec_operator.core.actions import (
    AdmitMember,
    AttachMember,
    CreateMember,
    DropMember,
    PingMember,
    Plan,
    ReadPool,
)
from codeexec_operator.core.cluster_view import ClusterView, NodeView, RuntimeClass
from codeexec_operator.core.delay import FREE_ROOM
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.observed_pod import Fault, PodLink, RunnerView, Sandbox
from codeexec_operator.core.observed_pool import MAX_RUN_SECONDS, Member, ObservedPool
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.placement import is_for_use, serves
from codeexec_operator.core.pod_template import Template, template_label, template_of
from codeexec_operator.core.pool import decide_pool, demand_of, starts_wanted
from codeexec_operator.core.pool_status import Unhurried, trouble_of
from codeexec_operator.core.starts import STARTS_PER_NODE
from codeexec_operator.core.timing import Timing

TIMING = Timing(
    start_timeout=60,
    attach_retry=1,
    refill_pause=1,
    low_refill_pause=0.3,
    queue_first=10,
    pool_pause=1,
    pool_longest_pause=60,
    start_turn=5,
    give_way=20,
    give_way_again=5,
    crowded=10,
)
NAMES = tuple(f"default-{number:012x}" for number in range(50))


def a_pool(**spec: Any) -> SandboxPool:
    meta = {"name": "default", "namespace": "codeexec-sandbox", "uid": "1", "resourceVersion": "7", "generation": 3}
    return SandboxPool.model_validate({"metadata": meta, "spec": spec})


def seen(members: Mapping[str, Member] | None = None, *, spec: dict[str, Any] | None = None, **rest: Any) -> Any:
    known = {"policy": a_policy(), "cluster_view": CLUSTER_VIEW, "allowance": 50, "names": NAMES}
    return ObservedPool(a_pool(**{"replicas": 3, **(spec or {})}), **{**known, "members": members or {}, **rest})


def digest(observed: ObservedPool | None = None) -> str:
    template = template_of(observed or seen())
    assert isinstance(template, Template)
    return template.digest


def starting(sandbox: Sandbox | None = None, **changes: Any) -> Member:
    return replace(Member(NOW, digest(), sandbox or Sandbox(requested=True)), **changes)


def ready(**changes: Any) -> Member:
    sandbox = a_sandbox()
    return replace(starting(sandbox), **{"proven": proof_of(sandbox), **changes})


def plan(observed: ObservedPool, after: float = 0) -> Plan:
    return decide_pool(observed, NOW + seconds(after), TIMING)


def created(result: Plan) -> list[str]:
    return [one.name for one in result.actions if isinstance(one, CreateMember)]


def dropped(result: Plan) -> list[str]:
    return [one.name for one in result.actions if isinstance(one, DropMember)]


def reason_of(result: Plan) -> tuple[str, str]:
    assert result.status
    [condition] = result.status.conditions
    return condition.status, condition.reason


class TestHowMany:
    def test_first_it_is_seen_what_there_is(self) -> None:
        assert plan(replace(seen(), members=None)).actions == (ReadPool(),)
        assert plan(seen(policy=None)).actions == (ReadPool(),)

    def test_what_is_missing_is_made(self) -> None:
        result = plan(seen({"a": ready()}))
        assert created(result) == list(NAMES[:2])
        [first, _] = [one for one in result.actions if isinstance(one, CreateMember)]
        assert template_label(first.manifest) == digest()
        needed = seen().pool.spec.max_age_seconds + MAX_RUN_SECONDS
        late = TIMING.grace + 2 * TIMING.clock_skew
        assert first.manifest["spec"]["activeDeadlineSeconds"] == needed + late
        assert template_label({"metadata": {}}) == ""
        assert reason_of(result) == ("False", "PoolFilling")

    def test_what_was_asked_for_counts_before_it_is_seen(self) -> None:
        assert created(plan(seen({"a": ready(), "b": starting(), "c": starting()}))) == []

    def test_who_waits_gets_a_pod_besides(self) -> None:
        waiting = seen({"a": starting()}, queued=5, queued_since=NOW)
        assert len(created(plan(waiting))) == 4
        assert plan(waiting).wake_at == NOW + seconds(10)
        assert len(created(plan(waiting, 10))) == 7, "then the pool is filled up, too"

    def test_no_more_start_than_may(self) -> None:
        assert len(created(plan(seen(queued=5, allowance=2)))) == 2
        assert created(plan(seen(queued=5, allowance=-1))) == []
        assert plan(seen()).wake_at is None  # all have been made

    def test_what_is_too_much_goes_and_the_oldest_that_are_ready_stay(self) -> None:
        members = {"new": ready(created_at=NOW + seconds(9)), "a": ready(), "b": ready(), "slow": starting()}
        assert dropped(plan(seen(members, spec={"replicas": 2}), 10)) == ["slow", "new"]
        assert dropped(plan(seen({"a": ready()}, spec={"replicas": 0}))) == ["a"]

    def test_nothing_else_is_done_with_one_that_is_too_much(self) -> None:
        runs = starting(Sandbox(a_pod(), requested=True))
        members = {"a": runs, "late": replace(runs, created_at=NOW + seconds(1))}
        assert plan(seen(members, spec={"replicas": 1}), 2).actions == (AttachMember("a"), DropMember("late"))

    def test_a_full_pool_says_so(self) -> None:
        result = plan(seen({"a": ready(), "b": ready(), "c": ready()}, claimed=2))
        assert reason_of(result) == ("True", "PoolReady")
        assert result.status
        assert (result.status.replicas, result.status.ready_replicas, result.status.claimed_replicas) == (3, 3, 2)
        assert result.status.selector == "codeexec.dev/pool=default"
        assert result.actions == ()

    def test_without_replicas_it_is_not_used(self) -> None:
        result = plan(seen(spec={"replicas": 0}, queued=2))
        assert reason_of(result) == ("False", "PoolEmpty")
        assert created(result) == []

    def test_a_status_that_says_it_already_is_not_written_again(self) -> None:
        observed = seen({"a": ready(), "b": ready(), "c": ready()})
        written = plan(observed).status
        again = replace(observed, pool=observed.pool.model_copy(update={"status": written}))
        assert plan(again, 100).status is None
        meta = again.pool.metadata.model_copy(update={"generation": 4})
        changed = plan(replace(again, pool=again.pool.model_copy(update={"metadata": meta})), 100).status
        assert changed
        [kept] = changed.conditions
        assert (changed.observed_generation, kept.observed_generation, kept.last_transition_time) == (4, 4, NOW)

    def test_how_long_it_took_to_be_full_is_kept_until_it_is_full_again(self) -> None:
        written = plan(seen(last_refill_ms=700)).status
        pool = seen().pool.model_copy(update={"status": written})
        for now_took, recorded in ((None, 700), (300, 300)):
            result = plan(replace(seen({"a": ready()}, last_refill_ms=now_took), pool=pool)).status
            assert result
            assert result.last_refill_ms == recorded

    @given(
        replicas=st.integers(0, 6),
        steps=st.lists(st.tuples(st.sampled_from(["claim", "join", "seen", "slow"]), st.integers(0, 3)), max_size=30),
    )
    def test_never_more_are_made_than_are_taken_and_stand_ready(
        self, replicas: int, steps: list[tuple[str, int]]
    ) -> None:
        """However late the API server tells of them: those made, less those taken, are never more than wanted."""
        members: dict[str, Member] = {}
        made = taken = queued = joined = 0
        for number, (what, count) in enumerate(steps):
            names = tuple(f"default-{number:04x}{one:08x}" for one in range(50))
            result = plan(seen(members, spec={"replicas": replicas}, queued=queued, names=names), number * 10)
            for name in dropped(result):
                del members[name]
                taken += 1  # gone, too
            for name in created(result):
                members[name] = starting(created_at=NOW + seconds(number * 10))
                made += 1
            if what == "seen":
                for name in list(members)[:count]:
                    members[name] = ready(created_at=members[name].created_at)
            if what == "join" and replicas:
                queued += count
                joined += count
            while queued and (at_hand := [name for name, one in members.items() if one.ready]):
                del members[at_hand[0]]
                queued, taken = queued - 1, taken + 1
            assert made - taken == len(members) <= replicas + joined


class TestWhen:
    def test_while_half_of_them_are_there_nothing_starts_beside_the_code_that_runs(self) -> None:
        members = {"a": ready(), "b": ready()}
        observed = seen(members, last_claim_at=NOW)
        assert created(plan(observed, 0.5)) == []
        assert plan(observed, 0.5).wake_at == NOW + seconds(1)
        assert created(plan(observed, 1)) == [NAMES[0]]
        full = seen({"a": ready(), "b": ready(), "c": ready()}, last_claim_at=NOW)
        assert plan(full, 0.5).wake_at == NOW + seconds(10.5)  # for a ping, and for nothing else

    def test_just_half_of_them_will_do(self) -> None:
        observed = seen({"a": ready(), "b": ready()}, spec={"replicas": 4}, last_claim_at=NOW)
        assert plan(observed).wake_at == NOW + seconds(1)

    def test_with_fewer_than_half_it_waits_only_until_short_code_has_ended(self) -> None:
        observed = seen({"a": ready()}, last_claim_at=NOW)
        assert created(plan(observed, 0.2)) == []
        assert plan(observed, 0.2).wake_at == NOW + seconds(0.3)
        assert created(plan(observed, 0.3)) == list(NAMES[:2])

    def test_what_only_starts_does_not_count_for_the_half(self) -> None:
        members = {"a": ready(), "b": starting()}
        assert created(plan(seen(members, last_claim_at=NOW), 0.3)) == [NAMES[0]]

    def test_at_once_when_somebody_waits_or_nothing_was_taken_yet(self) -> None:
        for members in ({"a": ready()}, {"a": ready(), "b": ready()}):
            assert len(created(plan(seen(members, last_claim_at=NOW, queued=1), 0))) == 1
        assert len(created(plan(seen({"a": ready()})))) == 2

    def test_after_a_fault_ever_later(self) -> None:
        fault = Ending(Event.FAULT, Reason.IMAGE_PULL_FAILED, "no such image")
        for problems, pause in ((1, 1), (2, 2), (4, 8), (30, 60)):
            observed = seen(problem=fault, problem_at=NOW, problems=problems, queued=1)
            assert created(plan(observed, pause - 0.1)) == []
            assert created(plan(observed, pause)) != []
            assert reason_of(plan(observed)) == ("False", "ImagePullFailed")

    @pytest.mark.parametrize(("reason", "problems"), [(Reason.QUOTA_EXCEEDED, 1), (Reason.POD_REFUSED, 2)])
    def test_problems_are_counted_until_a_pod_is_good_or_a_quota_has_room(self, reason: Reason, problems: int) -> None:
        fault, later = Ending(Event.FAULT, reason, "no"), NOW + seconds(9)
        observed = seen().after_problem(fault, NOW).after_problem(fault, NOW + seconds(1))
        assert (observed.problem, observed.problem_at, observed.problems) == (fault, NOW + seconds(1), 2)
        ended = observed.after_room(later)
        assert (ended.problem, ended.problems, ended.problem_at == later) == (fault, problems, problems == 1)
        assert observed.without_problem() == seen() == seen().after_room(later)

    def test_where_a_quota_is_used_up_it_is_tried_often(self) -> None:
        full = Ending(Event.FAULT, Reason.QUOTA_EXCEEDED, "the quota is used up")
        for problems, pause in ((1, 1), (2, 2), (30, 4)):
            observed = seen(problem=full, problem_at=NOW, problems=problems, queued=1)
            assert created(plan(observed, pause - 0.1)) == []
            assert created(plan(observed, pause)) != []

    def test_when_others_start_it_looks_again(self) -> None:
        observed = seen(allowance=1)
        assert len(created(plan(observed))) == 1
        assert plan(observed).wake_at == NOW + seconds(5)


class TestForUse:
    """What may be handed out at a moment, whether or not the pool has been decided about lately."""

    def for_use(self, member: Member, after: float = 0, **observed: Any) -> bool:
        template = template_of(seen(**observed))
        assert isinstance(template, Template)
        return is_for_use(member, seen(**observed), template, NOW + seconds(after), TIMING)

    def test_one_that_stands_ready(self) -> None:
        assert self.for_use(ready())
        assert not self.for_use(starting())
        assert not self.for_use(ready(sandbox=a_sandbox(runner=replace(a_runner(), link=PodLink.CLOSED))))

    def test_none_that_was_made_otherwise(self) -> None:
        assert not self.for_use(ready(), spec={"limits": {"cpu": "250m"}})
        assert not self.for_use(ready(), policy=a_policy(requests={"cpu": "250m"}))

    def test_none_that_is_too_old(self) -> None:
        assert self.for_use(ready(), 99, spec={"maxAgeSeconds": 100})
        assert not self.for_use(ready(), 100, spec={"maxAgeSeconds": 100})

    def test_none_that_does_not_answer(self) -> None:
        asked = ready(sandbox=a_sandbox(runner=replace(a_runner(), heard_at=NOW, pinged_at=NOW + seconds(1))))
        assert self.for_use(asked, 5.9)
        assert not self.for_use(asked, 6)
        for heard in (1, 2):
            runner = replace(asked.sandbox.runner, heard_at=NOW + seconds(heard))
            assert self.for_use(ready(sandbox=a_sandbox(runner=runner)), 60)

    def test_none_whose_network_may_be_open_once_the_policy_asks_for_that(self) -> None:
        sandbox = a_sandbox(runner=a_runner(answered=True))
        leaky = ready(sandbox=sandbox, proven=proof_of(sandbox))
        warned = {"policy": a_policy(egressProof="Warn")}
        assert self.for_use(leaky, **warned)
        assert not self.for_use(leaky)
        assert dropped(plan(seen({"a": leaky}, **warned))) == []
        assert dropped(plan(seen({"a": leaky}))) == ["a"]


class TestStarts:
    def test_a_pool_that_may_not_start_anything_wants_nothing(self) -> None:
        def wanted(pool: ObservedPool, after: float = 0) -> int:
            return starts_wanted(pool, template_of(pool), 0, 0, NOW + seconds(after), TIMING)

        assert wanted(seen(spec={"replicas": 1})) == 1
        assert wanted(seen(spec={"replicas": 0}, queued=1)) == 0
        assert wanted(seen(policy=PolicyProblem("wrong"))) == 0
        assert wanted(seen(policy=None)) == 0
        fault = Ending(Event.FAULT, Reason.IMAGE_PULL_FAILED, "no such image")
        broken = seen(spec={"replicas": 1}, problem=fault, problem_at=NOW, problems=1)
        assert (wanted(broken), wanted(broken, after=1)) == (0, 1)

    @pytest.mark.parametrize(
        ("replicas", "queued", "starting", "others", "wanted"),
        [(3, 0, 0, 0, 3), (3, 2, 0, 1, 2), (3, 2, 0, 4, 1), (3, 2, 5, 1, 5), (3, 0, 1, 3, 1), (0, 2, 1, 0, 1)],
    )
    def test_it_wants_what_it_lacks_and_what_starts(
        self, replicas: int, queued: int, starting: int, others: int, wanted: int
    ) -> None:
        pool = seen(spec={"replicas": replicas}, queued=queued)
        assert starts_wanted(pool, template_of(pool), starting, others, NOW, TIMING) == wanted

    def test_while_executions_wait_one_starts_on_each_node_that_takes_pods_of_the_class(self) -> None:
        dedicated = Scheduling((("pool", "sandboxes"),))
        nodes = [NodeView(str(number), "", 0, frozenset({dedicated}), frozenset()) for number in range(3)]
        view = ClusterView(nodes=tuple(nodes), runtime_classes={"boxes": RuntimeClass("runc", dedicated)})

        def asked(policy: Any) -> tuple[int, Scheduling, int]:
            pool = seen(spec={"replicas": 9}, queued=1, policy=policy, cluster_view=view)
            demand, limit = demand_of(pool, 0, 0, NOW, TIMING)
            return demand.wanted, demand.scheduling, limit

        assert asked(a_policy(runtimeClassName="boxes")) == (3, dedicated, 3 * STARTS_PER_NODE)
        assert asked(a_policy()) == (1, PLAIN, STARTS_PER_NODE), "control: no node takes pods without the class"
        assert asked(PolicyProblem("wrong")) == (0, PLAIN, STARTS_PER_NODE)


class TestStatus:
    def test_changes_are_written_once_in_a_while(self) -> None:
        """What changes a status is not to be slowed down by its writes."""
        status = Plan(status=seen().pool.status)
        unhurried, timing = Unhurried(), replace(TIMING, pool_status=1)

        def told(result: Plan, after: float) -> Plan:
            return unhurried.plan(result, NOW + seconds(after), timing)

        assert told(Plan(), 0) == Plan(), "nothing has changed"
        assert told(status, 5) == Plan(wake_at=NOW + seconds(6))
        assert told(replace(status, wake_at=NOW + seconds(5.5)), 5.4) == Plan(wake_at=NOW + seconds(5.5))
        assert told(status, 6) == status
        assert told(status, 6.5) == Plan(wake_at=NOW + seconds(7.5)), "the next change waits as long"


class TestEachPod:
    def test_a_pod_that_nobody_knows_to_be_made_is_asked_for_again_by_its_name_until_it_is_late(self) -> None:
        unanswered = {NAMES[0]: starting(Sandbox())}
        observed = seen(unanswered, spec={"replicas": 1})
        assert created(plan(observed, after=59)) == [NAMES[0]]
        assert plan(observed, after=59).wake_at == NOW + seconds(60)
        assert dropped(plan(observed, after=60)) == [NAMES[0]]
        asked = seen({NAMES[0]: starting(Sandbox(requested=True))}, spec={"replicas": 1})
        assert created(plan(asked, after=59)) == []

    def test_one_that_runs_is_asked_for_its_report(self) -> None:
        members = {"a": starting(Sandbox(a_pod(), requested=True))}
        assert AttachMember("a") in plan(seen(members)).actions

    def test_it_is_let_in_when_its_network_was_shown_to_be_closed(self) -> None:
        [admit] = [one for one in plan(seen({"a": starting(a_sandbox())})).actions if isinstance(one, AdmitMember)]
        assert (admit.name, admit.proven.closed) == ("a", True)

    def test_else_it_is_given_up_and_the_pool_says_why(self) -> None:
        result = plan(seen({"a": starting(a_sandbox(runner=a_runner(answered=True)))}))
        [drop] = [one for one in result.actions if isinstance(one, DropMember)]
        assert drop.problem
        assert drop.problem.reason is Reason.EGRESS_NOT_ENFORCED

    def test_while_the_operator_does_not_reach_all_targets_it_waits(self) -> None:
        observed = seen({"a": starting(a_sandbox())}, cluster_view=replace(CLUSTER_VIEW, reached_at={}))
        result = plan(observed)
        assert dropped(result) == []
        assert not any(isinstance(one, AdmitMember) for one in result.actions)
        assert result.wake_at == NOW + seconds(TIMING.proof_retry)
        in_time = seconds(TIMING.start_timeout)
        assert plan(observed, TIMING.start_timeout - TIMING.proof_retry / 2).wake_at == NOW + in_time, "no later"
        late = plan(observed, TIMING.start_timeout)
        [drop] = [one for one in late.actions if isinstance(one, DropMember)]
        assert drop.problem
        assert drop.problem.reason is Reason.EGRESS_NOT_ENFORCED
        assert drop.problem.message.startswith("it can't be shown that the network of the sandbox is closed")

    def test_where_the_policy_only_warns_it_is_let_in(self) -> None:
        observed = seen({"a": starting(a_sandbox(runner=a_runner(answered=True)))}, policy=a_policy(egressProof="Warn"))
        assert any(isinstance(one, AdmitMember) for one in plan(observed).actions)

    @pytest.mark.parametrize(
        "changes",
        [
            {"sandbox": a_sandbox(runner=RunnerView(PodLink.CLOSED, closed_at=NOW))},
            {"sandbox": a_sandbox(runner=replace(a_runner(), link=PodLink.CLOSED, closed_at=NOW))},
            {"sandbox": a_sandbox(pod=a_pod(unwell=True))},
            {"sandbox": a_sandbox(pod=a_pod(running=False, terminated="Error"))},
            {"sandbox": replace(a_sandbox(), gone=True)},
            {"proven": None},
        ],
    )
    def test_it_is_not_ready_without_its_pod_its_connection_and_its_proof(self, changes: dict[str, Any]) -> None:
        assert ready().ready
        assert not replace(ready(), **changes).ready

    def test_one_whose_connection_was_lost_is_connected_again(self) -> None:
        lost = ready(sandbox=a_sandbox(runner=RunnerView(PodLink.CLOSED, closed_at=NOW)))
        assert not lost.ready
        assert AttachMember("a") not in plan(seen({"a": lost}), 0.5).actions
        assert AttachMember("a") in plan(seen({"a": lost}), 1).actions

    def test_one_that_nobody_can_connect_to_goes_after_a_minute(self) -> None:
        runner = RunnerView(PodLink.CLOSED, closed_at=NOW + seconds(59), refused_since=NOW)
        assert dropped(plan(seen({"a": ready(sandbox=a_sandbox(runner=runner))}), 59)) == []
        assert dropped(plan(seen({"a": ready(sandbox=a_sandbox(runner=runner))}), 60)) == ["a"]

    def test_one_that_does_not_answer_over_its_new_connection_goes_after_a_minute(self) -> None:
        silent = ready(sandbox=a_sandbox(runner=RunnerView(PodLink.OPEN, asked_at=NOW + seconds(100))))
        waits = plan(seen({"a": silent}, spec={"replicas": 1}), 159)
        assert (dropped(waits), waits.wake_at) == ([], NOW + seconds(160))
        late = plan(seen({"a": silent}, spec={"replicas": 1}), 160)
        assert (dropped(late), created(late)) == (["a"], [NAMES[0]])
        assert [one.problem for one in late.actions if isinstance(one, DropMember)] == [None]

    def test_one_in_which_code_has_run_goes(self) -> None:
        assert dropped(plan(seen({"a": starting(a_sandbox(runner=a_runner(used=True)))}))) == ["a"]

    def test_one_that_is_not_let_in_yet_is_connected_again(self) -> None:
        closed = starting(a_sandbox(runner=RunnerView(PodLink.CLOSED, closed_at=NOW)))
        assert AttachMember("a") not in plan(seen({"a": closed}), 0.5).actions
        assert AttachMember("a") in plan(seen({"a": closed}), 1).actions
        assert dropped(plan(seen({"a": closed}), 60)) == ["a"]

    @pytest.mark.parametrize(
        "sandbox",
        [
            Sandbox(a_pod(unwell=True), requested=True),
            Sandbox(a_pod(), requested=True, gone=True),
            Sandbox(a_pod(running=False, terminated="Error"), requested=True),
            Sandbox(requested=True, fault=Fault(Reason.POD_REFUSED, "refused")),
        ],
    )
    def test_one_that_is_of_no_use_goes(self, sandbox: Sandbox) -> None:
        assert dropped(plan(seen({"a": starting(sandbox)}))) == ["a"]

    def test_that_a_node_is_drained_is_no_problem_of_the_pool(self) -> None:
        pod = a_pod(running=False, terminated="Evicted", unwell=True, disruption="its node ended it (low on memory)")
        [drop] = [one for one in plan(seen({"a": starting(Sandbox(pod))})).actions if isinstance(one, DropMember)]
        assert drop.problem is None

    def test_one_that_an_operator_before_this_one_has_used_is_no_problem_of_the_pool(self) -> None:
        """Code that has ended soon leaves its pod to the pool. A pod that ends before it was used shows a bad image."""
        ended = Sandbox(a_pod(running=False, terminated="Completed"), requested=True)
        observed = seen({"found": starting(ended, since=NOW), "made": starting(ended)})
        drops = {one.name: one.problem for one in plan(observed).actions if isinstance(one, DropMember)}
        assert drops["found"] is None
        assert drops["made"]

    def test_one_that_does_not_answer_goes_but_one_that_finds_no_node_may_wait(self) -> None:
        silent = starting(Sandbox(a_pod(), requested=True, runner=RunnerView(PodLink.OPEN, asked_at=NOW)))
        assert dropped(plan(seen({"a": silent}), 59)) == []
        assert plan(seen({"a": silent}, spec={"replicas": 1}), 59).wake_at == NOW + seconds(60)
        assert dropped(plan(seen({"a": silent}), 60)) == ["a"]
        assert dropped(plan(seen({"a": starting()}), 60)) == ["a"]  # never seen
        late = starting(Sandbox(a_pod(), requested=True, placed_at=NOW + seconds(30)))  # it waited for a node
        assert dropped(plan(seen({"a": late}), 89)) == []
        assert dropped(plan(seen({"a": late}), 90)) == ["a"]
        waiting = starting(Sandbox(a_pod(running=False, node_name="", unschedulable="no room"), requested=True))
        assert not waiting.starting
        assert dropped(plan(seen({"a": waiting}), 600)) == []

    @pytest.mark.parametrize("node", [-300, 0, 300], ids="{:+d}s".format)
    def test_one_that_has_waited_for_room_gets_its_time_from_when_it_has_a_node(self, node: int) -> None:
        """By the clock of this process, whatever that of the node is."""
        placed = a_pod(running=False, started_at=NOW + seconds(100 + node), refused="1 Insufficient cpu.")
        members = {"a": starting(Sandbox(placed, requested=True, placed_at=NOW + seconds(100)))}
        assert dropped(plan(seen(members), 101)) == []
        [drop] = [one for one in plan(seen(members), 160).actions if isinstance(one, DropMember)]
        assert drop.problem
        assert drop.problem.reason is Reason.START_TIMEOUT
        assert "1 Insufficient cpu." in drop.problem.message

    def test_what_finds_no_room_is_said_by_the_pool_and_to_who_waits(self) -> None:
        blocked = a_pod(running=False, node_name="", unschedulable="0/1 nodes are available: 1 Insufficient cpu.")
        waits = starting(Sandbox(blocked, requested=True))
        result = plan(seen({"a": ready(), "b": waits, "c": waits}))
        assert result.status
        assert reason_of(result) == ("False", "PoolFilling")
        told = f"the scheduler found no node for 2 pods: 0/1 nodes are available: 1 Insufficient cpu. {FREE_ROOM}"
        assert result.status.conditions[0].message == told
        observed = seen({"a": ready(), "b": waits, "c": waits})
        assert trouble_of(observed) == told
        assert trouble_of(seen({"a": ready(), "b": waits})).startswith("the scheduler found no node for 1 pod: ")
        assert trouble_of(replace(observed, problem=Ending(Event.FAULT, Reason.POD_REFUSED, "refused"))) == "refused"
        assert trouble_of(seen({"a": ready()})) == trouble_of(replace(observed, members=None)) == ""

    def test_one_that_waits_is_asked_now_and_then_whether_it_is_there(self) -> None:
        heard = ready(sandbox=a_sandbox(runner=replace(a_runner(), heard_at=NOW)))
        full = {"a": heard, "b": heard, "c": heard}
        assert plan(seen(full), 9).actions == ()
        assert plan(seen(full), 9).wake_at == NOW + seconds(10)
        assert plan(seen(full), 10).actions == (PingMember("a"), PingMember("b"), PingMember("c"))
        asked = replace(a_runner(), heard_at=NOW, pinged_at=NOW + seconds(10))
        full = {"a": ready(sandbox=a_sandbox(runner=asked)), "b": heard, "c": heard}
        assert dropped(plan(seen(full), 14.9)) == []
        assert dropped(plan(seen(full), 15)) == ["a"]
        answered = replace(asked, heard_at=NOW + seconds(10.1))
        assert dropped(plan(seen({"a": ready(sandbox=a_sandbox(runner=answered))}), 16)) == []

    def test_who_was_heard_a_while_ago_is_asked_along_with_the_first_who_has_to_be(self) -> None:
        full = {
            name: ready(sandbox=a_sandbox(runner=replace(a_runner(), heard_at=NOW + seconds(heard))))
            for name, heard in (("a", 0), ("b", 5), ("c", 6))
        }
        assert plan(seen(full), 9.9).actions == ()
        assert plan(seen(full), 10).actions == (PingMember("a"), PingMember("b"))
        assert plan(seen(full), 10).wake_at == NOW + seconds(10)

    def test_one_that_is_too_old_is_replaced(self) -> None:
        observed = seen({"a": ready(), "b": ready(), "c": ready()}, spec={"maxAgeSeconds": 100})
        assert plan(observed, 99).wake_at == NOW + seconds(100)
        result = plan(observed, 100)
        assert (dropped(result), len(created(result))) == (["a", "b", "c"], 3)

    @pytest.mark.parametrize(
        "changes",
        [
            {"spec": {"limits": {"cpu": "250m"}}},
            {"spec": {"image": OTHER_IMAGE}, "policy": a_policy(images=[IMAGE, OTHER_IMAGE])},
            {"policy": a_policy(images=[OTHER_IMAGE])},
            {"policy": a_policy(runtimeClassName="gvisor")},
        ],
    )
    def test_those_of_a_pool_or_policy_that_was_changed_are_replaced(self, changes: dict[str, Any]) -> None:
        observed = seen({"a": ready()}, **changes)
        result, template = plan(observed), template_of(observed)
        assert (dropped(result), len(created(result))) == (["a"], 3)
        assert result.status
        assert isinstance(template, Template)
        made = (result.status.image, result.status.runtime_class_name)
        assert made == (template.image, template.runtime_class_name or "")

    @pytest.mark.parametrize(
        ("policy", "reason", "told"),
        [
            (a_policy(maxLimits={"cpu": "100m"}), "PolicyViolation", "spec.limits.cpu"),
            (PolicyProblem("spec.images: Field required"), "PolicyInvalid", "spec.images: Field required"),
        ],
    )
    def test_where_the_policy_does_not_allow_them_there_are_none(self, policy: Any, reason: str, told: str) -> None:
        result = plan(seen({"a": ready()}, policy=policy, policy_source="the policy in X"))
        assert (dropped(result), created(result)) == (["a"], [])
        assert reason_of(result) == ("False", reason)
        assert result.status
        assert told in result.status.conditions[0].message
        assert ("change the policy in X" in result.status.conditions[0].message) == (reason == "PolicyViolation")


class TestWhoIsServed:
    def test_whoever_asks_for_just_such_a_pod(self) -> None:
        assert serves(seen(), Verdict(IMAGE, None, ()), Limits())
        assert serves(seen(), Verdict(IMAGE, None, ()), Limits(cpu="0.5", memory="268435456", pids=7))

    @pytest.mark.parametrize(
        "limits", [Limits(cpu="250m"), Limits(memory="128Mi"), Limits(ephemeral_storage="1Gi"), Limits(pids=257)]
    )
    def test_not_with_other_limits(self, limits: PodLimits) -> None:
        assert not serves(seen(), Verdict(IMAGE, None, ()), limits)

    def test_not_with_another_image_or_runtime(self) -> None:
        assert not serves(seen(), Verdict(OTHER_IMAGE, None, ()), Limits())
        assert not serves(seen(), Verdict(IMAGE, "gvisor", ()), Limits())

    def test_only_stateful_sessions_where_a_kernel_stands_by_and_with_as_many_processes(self) -> None:
        stateful = seen(spec={"stateful": True})
        assert serves(stateful, Verdict(IMAGE, None, ()), Limits(), stateful=True)
        assert not serves(stateful, Verdict(IMAGE, None, ()), Limits())
        assert not serves(stateful, Verdict(IMAGE, None, ()), Limits(pids=7), stateful=True)
        assert serves(seen(), Verdict(IMAGE, None, ()), Limits(pids=7), stateful=True), (
            "control: the kernel comes later"
        )

    def test_a_pool_that_becomes_stateful_replaces_its_pods_and_an_upgrade_of_the_operator_replaces_none(self) -> None:
        assert digest(seen(spec={"stateful": True})) != digest()
        assert digest() == "366d02bb4d2d0495", "as it was before there were stateful pools"

    def test_nobody_while_it_is_empty_or_broken_for_good(self) -> None:
        assert not serves(seen(spec={"replicas": 0}), Verdict(IMAGE, None, ()), Limits())
        broken = Ending(Event.FAULT, Reason.IMAGE_PULL_FAILED, "no such image")
        assert not serves(seen(problem=broken), Verdict(IMAGE, None, ()), Limits())
        assert serves(seen({"a": ready()}, problem=broken), Verdict(IMAGE, None, ()), Limits())
        passing = Ending(Event.FAULT, Reason.QUOTA_EXCEEDED, "used up")
        assert serves(seen(problem=passing), Verdict(IMAGE, None, ()), Limits())

    @pytest.mark.parametrize("reason", [Reason.POD_LOST, Reason.RUNNER_FAILED, Reason.START_TIMEOUT])
    def test_what_may_pass_by_itself_is_given_three_tries(self, reason: Reason) -> None:
        for problems, served in ((2, True), (3, False)):
            observed = seen(problem=Ending(Event.FAULT, reason, "lost"), problems=problems)
            assert serves(observed, Verdict(IMAGE, None, ()), Limits()) is served


NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu."


def blocked(after: float = 0) -> Member:
    """A pod that no node has room for."""
    pod = a_pod(running=False, node_name="", unschedulable=NO_ROOM)
    return starting(Sandbox(pod, requested=True), created_at=NOW + seconds(after))


def made(result: Plan) -> int:
    return sum(isinstance(one, CreateMember) for one in result.actions)


def given_up(result: Plan) -> dict[str, bool]:
    """Names, and whether they give way."""
    return {one.name: one.gives_way for one in result.actions if isinstance(one, DropMember)}


class TestRoom:
    """Ready pods give way to work, and pools have no more pods waiting for room than are of use."""

    def needed(self, members: Any, unserved: int = 1, after: float = 0, **rest: Any) -> Plan:
        return plan(seen(members, held_until=NOW + seconds(20), unserved=unserved, **rest), after)

    def test_as_many_ready_pods_as_are_needed_give_way_and_none_is_made(self) -> None:
        members = {"a": ready(), "b": ready(), "c": ready()}
        assert given_up(plan(seen(members))) == {}
        result = self.needed(members)
        assert list(given_up(result).values()) == [True]
        assert made(result) == 0
        assert result.wake_at == NOW + seconds(5)
        assert len(given_up(self.needed(members, unserved=2))) == 2
        assert len(given_up(self.needed(members, unserved=9))) == 3

    def test_once_for_each_who_needs_it(self) -> None:
        members = {"a": ready(), "b": ready()}
        result = self.needed(members, unserved=0)
        assert (given_up(result), made(result)) == ({}, 0)

    def test_pods_that_start_give_way_before_those_that_are_ready(self) -> None:
        assert given_up(self.needed({"a": ready(), "b": starting()})) == {"b": True}

    def test_pods_that_somebody_waits_for_give_no_way(self) -> None:
        members = {"a": starting(), "b": starting()}
        assert given_up(self.needed(members, queued=2, unserved=2)) == {}
        assert len(given_up(self.needed(members, queued=1, unserved=2))) == 1

    def test_pods_without_room_do_not_compete_with_those_that_need_it(self) -> None:
        result = self.needed({"a": blocked(), "b": blocked(1)}, unserved=0, queued=2)
        assert given_up(result) == {"a": False, "b": False}
        assert made(result) == 0

    def test_after_a_while_pools_make_pods_again(self) -> None:
        assert made(self.needed({"a": ready()}, after=19.9)) == 0
        result = self.needed({"a": ready()}, after=20)
        assert (given_up(result), made(result)) == ({}, 2)

    def test_one_pod_at_most_waits_for_room(self) -> None:
        members = {"a": blocked(2), "b": blocked(1), "c": ready()}
        result = plan(seen(members, full_at=NOW + seconds(3), queued=7), 3)
        assert given_up(result) == {"a": False}
        assert made(result) == 0

    def test_where_there_was_no_room_lately_pods_are_made_one_at_a_time(self) -> None:
        full = NOW + seconds(3)
        assert made(plan(seen({"a": ready()}, full_at=full), 4)) == 1
        assert made(plan(seen({"a": ready(), "b": starting()}, full_at=full), 4)) == 0
        assert made(plan(seen({"a": ready()}, full_at=full), 13)) == 2
        assert made(plan(seen({"a": ready()}), 4)) == 2
