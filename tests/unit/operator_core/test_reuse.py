"""Pods that are used again: whose they are, who gets one, and when one is given up."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    a_policy,
    a_runner,
    a_sandbox,
    an_execution,
    seconds,
)
from hypothesis import given
from hypothesis import strategies as st
from plans import proof_of

from codeexec_api import Limits, Reason, SandboxPool, Verdict
from codeexec_operator.core.actions import CreateMember, DropMember
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.observed_pod import PodLink, Sandbox
from codeexec_operator.core.observed_pool import KeptPod, Member, ObservedPool, Tenant
from codeexec_operator.core.placement import Claim, assign_kept
from codeexec_operator.core.pod_reset import Reset, reset_of
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.pool import decide_pool
from codeexec_operator.core.reuse import may_follow, tenant_of
from codeexec_operator.core.timing import Timing

TIMING = Timing(reset_answer=5, reuse_idle=10)
ASKED = Verdict(IMAGE, None)
NAMES = tuple(f"default-{number:012x}" for number in range(2))
REUSE = {"podReuse": {"maxExecutions": 5}}


@dataclass(frozen=True)
class Waiting:
    claim: Claim

    def wake(self) -> None:
        pass


def a_pool(*, policy: dict[str, Any] | None = None, replicas: int = 1, **rest: Any) -> ObservedPool:
    meta = {"name": "default", "namespace": "codeexec-sandbox", "uid": "1", "resourceVersion": "7", "generation": 1}
    pool = SandboxPool.model_validate({"metadata": meta, "spec": {"replicas": replicas}})
    known = {"policy": a_policy(**(REUSE if policy is None else policy)), "cluster_view": CLUSTER_VIEW, "members": {}}
    return ObservedPool(pool, **{**known, "names": NAMES, "allowance": 9, **rest})


def template(seen: ObservedPool | None = None) -> Template:
    made = template_of(seen or a_pool())
    assert isinstance(made, Template)
    return made


def leaky() -> Member:
    """A pod whose network was shown to be open, which a policy may put up with."""
    sandbox = a_sandbox(runner=replace(kept().member.sandbox.runner, ready=a_runner(answered=True).ready))
    return replace(kept().member, sandbox=sandbox, proven=proof_of(sandbox))


def a_tenant(requested_by: str = "user", agent: str = "agent", **limits: Any) -> Tenant:
    spec = {"requestedBy": requested_by, "source": {"agent": agent}, "limits": Limits(**limits).dump()}
    found = tenant_of(an_execution(**spec), ASKED)
    assert found
    return found


def kept(
    tenant: Tenant | None = None, *, uses: int = 1, clean: bool = True, job: str = "last", **changes: Any
) -> KeptPod:
    sandbox = a_sandbox()
    proven = proof_of(sandbox)
    reset = Reset(job, clean, ("Processes",), "" if clean else "Volumes: 1 more", 3)
    sandbox = replace(sandbox, runner=replace(sandbox.runner, reset=reset))
    member = Member(NOW, template().digest, sandbox, proven)
    return replace(KeptPod(tenant or a_tenant(), uses, "last", NOW, member), **changes)


def waiting(name: str, tenant: Tenant | None) -> Waiting:
    return Waiting(Claim(name, NOW, False, ASKED, Limits(), tenant=tenant))


def given_to(pods: dict[str, KeptPod], *tenants: Tenant | None, seen: ObservedPool | None = None, at: float = 1) -> Any:
    seen = seen or a_pool()
    queue = [waiting(str(number), one) for number, one in enumerate(tenants)]
    pairs = assign_kept(queue, pods, template(seen), seen, NOW + seconds(at), TIMING)
    return [(taker.claim.uid, name) for taker, name in pairs]


TENANTS = [
    a_tenant(requested_by, agent, **limits)
    for requested_by in ("alice", "bob")
    for agent in ("one", "two")
    for limits in ({}, {"pids": 10}, {"memory": "1Gi"})
]


@given(
    pods=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 7), st.booleans(), st.booleans()), max_size=8),
    queue=st.lists(st.one_of(st.none(), st.sampled_from(TENANTS)), max_size=8),
)
def test_a_pod_goes_to_its_tenant_only_to_one_at_a_time_and_only_if_clean(
    pods: list[tuple[Tenant, int, bool, bool]], queue: list[Tenant | None]
) -> None:
    held = {
        f"pod-{number}": kept(tenant, uses=uses, clean=clean, job="last" if told else "before")
        for number, (tenant, uses, clean, told) in enumerate(pods)
    }
    pairs = given_to(held, *queue)
    assert all(count == 1 for count in Counter(name for _, name in pairs).values())
    assert all(count == 1 for count in Counter(uid for uid, _ in pairs).values())
    for uid, name in pairs:
        assert held[name].tenant == queue[int(uid)]
        assert held[name].uses < 5
        assert held[name].clean
    # Control: who could have one, and has none, finds that others of the tenant have all there are.
    free = Counter(one.tenant for one in held.values() if one.clean and one.uses < 5)
    asking = Counter(one for one in queue if one is not None)
    served = Counter(held[name].tenant for _, name in pairs)
    for tenant, count in asking.items():
        assert served[tenant] >= min(count, free[tenant])


@pytest.mark.parametrize(
    "special",
    [
        {"sessionRef": {"name": "s"}},
        {"egress": [{"cidr": "10.0.0.0/8", "port": 443}]},
        {"mounts": [{"name": "a", "mountPath": "/mnt/a", "configMap": {"name": "a"}}]},
        {"status": {"approval": {"grants": [], "requestedAt": NOW}}},
    ],
    ids=["session", "permit", "mount", "approval"],
)
def test_what_is_special_leaves_no_pod_behind(special: dict[str, Any]) -> None:
    assert tenant_of(an_execution(**({"requestedBy": "user"} | special)), ASKED) is None
    assert tenant_of(an_execution(requestedBy="user"), ASKED), "control"


def test_what_a_pod_is_made_of_is_part_of_whose_it_is() -> None:
    one = an_execution(requestedBy="user")
    assert tenant_of(one, ASKED) != tenant_of(one, Verdict(OTHER_IMAGE, None))
    assert tenant_of(one, ASKED) != tenant_of(one, Verdict(IMAGE, "gvisor"))


@pytest.mark.parametrize("reason", list(Reason))
def test_only_an_ordinary_end_is_followed(reason: Reason) -> None:
    """Not that of a runner which has told nonsense, for one, though that is `Failed`, too."""
    execution = an_execution(status={"reason": reason.value})
    assert may_follow(a_pool(), 1, execution) is (reason in (Reason.COMPLETED, Reason.NON_ZERO_EXIT))
    assert not may_follow(a_pool(), 5, execution)
    assert not may_follow(a_pool(policy={}), 1, execution)
    assert not may_follow(replace(a_pool(), policy=PolicyProblem("it can't be read")), 1, execution)


UNFIT = {
    "idle for too long": (kept(), a_pool(), 10),
    "no answer": (kept(job="before"), a_pool(), 5),
    "not clean": (kept(clean=False), a_pool(), 1),
    "used up": (kept(uses=5), a_pool(), 1),
    "no reuse any more": (kept(), a_pool(policy={}), 1),
    "another image": (kept(), a_pool(policy=REUSE | {"images": [OTHER_IMAGE]}), 1),
    "gone": (kept(member=replace(kept().member, sandbox=Sandbox(gone=True))), a_pool(), 1),
    "too old": (kept(since=NOW + seconds(3600)), a_pool(), 3600),
    "not shown to be closed": (kept(member=replace(kept().member, proven=None)), a_pool(), 1),
    "open under a policy that puts up with it no more": (kept(member=leaky()), a_pool(), 1),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_pod_that_is_not_as_it_has_to_be_is_given_up_and_nobody_gets_it(case: str) -> None:
    pod, seen, at = UNFIT[case]
    plan = decide_pool(replace(seen, kept={"pod": pod}), NOW + seconds(at), TIMING)
    assert DropMember("pod") in plan.actions
    assert given_to({"pod": pod}, pod.tenant, seen=seen, at=at) == []


def test_a_pod_that_is_fit_stays_and_counts() -> None:
    warned = decide_pool(
        a_pool(policy=REUSE | {"egressProof": "Warn"}, kept={"pod": kept(member=leaky())}), NOW, TIMING
    )
    assert not any(isinstance(one, DropMember) for one in warned.actions)
    plan = decide_pool(a_pool(kept={"pod": kept()}), NOW + seconds(1), TIMING)
    assert not any(isinstance(one, DropMember | CreateMember) for one in plan.actions)
    assert plan.wake_at == NOW + seconds(10)
    alone = decide_pool(a_pool(), NOW + seconds(1), TIMING)
    assert any(isinstance(one, CreateMember) for one in alone.actions), "control: without it the pool makes one"
    assert plan.status
    assert alone.status
    messages = [one.status.conditions[0].message for one in (plan, alone)]
    assert messages == ["each pod is ready, or kept for the agent that used it", "pods are starting"]


def test_who_waits_gets_one_more_beside_it() -> None:
    plan = decide_pool(a_pool(kept={"pod": kept()}, queued=1), NOW + seconds(1), TIMING)
    assert [one.name for one in plan.actions if isinstance(one, CreateMember)] == [NAMES[0]]


@pytest.mark.parametrize(
    ("replicas", "queued", "ready", "staying"),
    [(2, 0, 0, 2), (2, 0, 1, 1), (2, 0, 2, 0), (2, 1, 2, 1), (4, 0, 1, 3), (1, 0, 3, 0), (0, 0, 0, 0)],
)
def test_no_more_are_kept_than_the_pool_lacks(replicas: int, queued: int, ready: int, staying: int) -> None:
    """It has filled up again while code ran in them. Who has waited longest goes first."""
    member = kept().member
    members = {f"default-{number}": replace(member, sandbox=a_sandbox()) for number in range(ready)}
    pods = {f"pod-{number}": kept() for number in range(3)}
    seen = a_pool(members=members, kept=pods, queued=queued, replicas=replicas)
    plan = decide_pool(seen, NOW + seconds(1), TIMING)
    dropped = [one.name for one in plan.actions if isinstance(one, DropMember) and one.name in pods]
    assert dropped == [f"pod-{number}" for number in range(3 - staying)]


@pytest.mark.parametrize(("policy", "queued", "after"), [(REUSE, 0, 1), ({}, 0, 0.3), (REUSE, 1, 0)])
def test_a_pool_fills_up_when_pods_that_are_used_have_had_time_to_come_back(
    policy: dict[str, Any], queued: int, after: float
) -> None:
    seen = a_pool(policy=policy, last_claim_at=NOW, queued=queued)
    makes = [
        any(isinstance(one, CreateMember) for one in decide_pool(seen, NOW + seconds(at), TIMING).actions)
        for at in (after - 0.01, after)
    ]
    assert makes == [after == 0, True]


def test_it_gives_way_first_where_others_find_no_room() -> None:
    members = {"never used": replace(kept().member, sandbox=a_sandbox())}
    pods = {"used up": kept(uses=5), "pod": kept()}
    seen = a_pool(members=members, kept=pods, replicas=2, held_until=NOW + seconds(5), unserved=1)

    def dropped(at: float) -> list[DropMember]:
        plan = decide_pool(seen, NOW + seconds(at), TIMING)
        return [one for one in plan.actions if isinstance(one, DropMember)]

    assert dropped(1) == [DropMember("used up"), DropMember("pod", gives_way=True)]
    assert dropped(5) == [DropMember("used up")], "by then there is room, or nobody needs it"


def test_for_one_that_is_given_up_another_is_made() -> None:
    plan = decide_pool(a_pool(kept={"pod": kept(uses=5)}), NOW + seconds(1), TIMING)
    assert [one.name for one in plan.actions if isinstance(one, CreateMember)] == [NAMES[0]]


def test_nobody_gets_one_of_another_image_whoever_has_used_it() -> None:
    pod = kept()
    other = Waiting(Claim("other", NOW, False, Verdict(OTHER_IMAGE, None), Limits(), tenant=pod.tenant))
    assert assign_kept([other], {"pod": pod}, template(), a_pool(), NOW, TIMING) == []


def test_nobody_in_line_is_looked_at_once_no_pod_is_left() -> None:
    pod = kept()
    queue = iter([waiting("a", pod.tenant), waiting("b", pod.tenant), waiting("c", pod.tenant)])
    assert len(assign_kept(queue, {"pod": pod}, template(), a_pool(), NOW, TIMING)) == 1
    assert "c" in [one.claim.uid for one in queue]


def test_a_connection_that_has_ended_ends_it() -> None:
    sandbox = kept().member.sandbox
    cut = replace(sandbox, runner=replace(sandbox.runner, link=PodLink.CLOSED))
    pod = kept(member=replace(kept().member, sandbox=cut))
    assert DropMember("pod") in decide_pool(a_pool(kept={"pod": pod}), NOW, TIMING).actions


FRAME = {"reset": "a", "clean": True, "checked": ["Processes"], "found": {}, "ms": 2.6}


class TestFrame:
    def test_says_what_was_checked(self) -> None:
        assert reset_of(FRAME) == Reset("a", True, ("Processes",), "", 3)
        assert reset_of(FRAME | {"ms": 0.2}).milliseconds == 0

    def test_says_what_was_found(self) -> None:
        assert (
            reset_of(FRAME | {"found": {"Volumes": "1 more", "Processes": "2"}}).found
            == "Volumes: 1 more; Processes: 2"
        )

    def test_has_as_many_rows_as_a_record_can_hold(self) -> None:
        rows = [f"x{number}" for number in range(64)]
        assert len(reset_of(FRAME | {"checked": rows}).checked) == 64
        assert not reset_of(FRAME | {"found": dict.fromkeys(rows, "")}).clean
        with pytest.raises(ValueError, match="more than a reset can hold"):
            reset_of(FRAME | {"found": dict.fromkeys([*rows, "x64"], "")})

    @pytest.mark.parametrize(
        "changes", [{"clean": 1}, {"clean": False}, {"checked": []}, {"found": {"Volumes": "1 more"}}]
    )
    def test_is_not_clean_unless_all_of_it_says_so(self, changes: dict[str, Any]) -> None:
        assert reset_of(FRAME | changes).clean is False

    @pytest.mark.parametrize(
        "changes",
        [{"checked": ["a\n"]}, {"checked": ["x"] * 65}, {"found": {"\x1b[2J": "x"}}, {"ms": "soon"}, {"found": None}],
    )
    def test_of_another_form_is_none(self, changes: dict[str, Any]) -> None:
        with pytest.raises((ValueError, TypeError, AttributeError)):
            reset_of(FRAME | changes)

    def test_puts_nothing_into_a_log_that_it_should_not(self) -> None:
        found = reset_of(FRAME | {"found": {"Volumes": "\x1b[2J\n" + "x" * 1000}}).found
        assert "\x1b" not in found
        assert len(found) == 300
