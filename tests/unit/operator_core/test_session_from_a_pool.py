"""The decision about a session whose pod comes from a pool."""

from dataclasses import replace
from typing import Any

import pytest
from factories import CLUSTER_VIEW, IMAGE, NOW, a_pod, a_policy, a_runner, a_sandbox, a_session, seconds
from plans import proof_of

from codeexec_api import CodeSessionStatus, SessionPhase
from codeexec_operator.core.actions import (
    AdoptPod,
    AskPool,
    Attach,
    CreatePod,
    DeletePod,
    Forget,
    Plan,
    ReadPod,
    ReturnPod,
)
from codeexec_operator.core.observed import ClaimedView, ObservedSession
from codeexec_operator.core.observed_pod import PodLink, RunnerView, Sandbox
from codeexec_operator.core.observed_pool import MAX_RUN_SECONDS
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing

TIMING = Timing(start_timeout=60, grace=5, list_grace=15, attach_retry=1)
POD = "default-0123456789ab"
OF_POOL = a_pod(started_at=NOW - seconds(100), owner="uid-of-the-pool")


def seen(
    phase: SessionPhase = SessionPhase.PENDING, *, spec: Any = None, status: Any = None, **rest: Any
) -> ObservedSession:
    session = a_session(phase=phase, status=status, **{"maxLifetimeSeconds": 1000, **(spec or {})})
    known = {"policy": a_policy(), "since": NOW, "policy_read": True, "cluster_view": CLUSTER_VIEW, **rest}
    return ObservedSession(session=session, **known)


def claimed(*, answered: bool = False) -> dict[str, Any]:
    """A pod was handed out."""
    sandbox = a_sandbox(pod=OF_POOL, runner=a_runner(answered=answered))
    return {"sandbox": sandbox, "pool_asked": True, "claimed": ClaimedView("default", POD, proof_of(sandbox))}


def ready(**rest: Any) -> ObservedSession:
    status = {"pool_name": "default", "pod_name": POD, "started_at": NOW, "last_used_at": NOW}
    return seen(SessionPhase.READY, status=status, **{"sandbox": a_sandbox(pod=OF_POOL), **rest})


def plan(observed: ObservedSession, after: float = 0) -> Plan:
    return decide_session(observed, NOW + seconds(after), TIMING)


def test_first_it_is_looked_for_a_ready_pod() -> None:
    assert plan(seen()) == Plan(actions=(AskPool(IMAGE, None),))


def test_without_one_it_gets_a_pod_of_its_own() -> None:
    result = plan(seen(pool_asked=True))
    assert [type(one) for one in result.actions] == [CreatePod]
    assert isinstance(result.status, CodeSessionStatus)
    assert (result.status.phase, result.status.pool_name) == (SessionPhase.STARTING, "")


def test_pools_are_not_asked_for_what_the_policy_denies() -> None:
    result = plan(seen(policy=a_policy(maxLimits={"cpu": "100m"})))
    assert isinstance(result.status, CodeSessionStatus)
    assert (result.status.phase, result.actions) == (SessionPhase.DENIED, ())


@pytest.mark.parametrize(("more", "first"), [(0, AskPool), (1, CreatePod)])
def test_not_for_a_session_that_may_live_longer_than_the_deadline_of_its_pods(more: int, first: type) -> None:
    longest = int(MAX_RUN_SECONDS - 2 * TIMING.grace)
    policy = a_policy(maxSessionLifetimeSeconds=MAX_RUN_SECONDS)
    [action] = plan(seen(spec={"maxLifetimeSeconds": longest + more}, policy=policy)).actions
    assert isinstance(action, first)


def test_with_a_pod_at_hand_it_is_ready_with_one_write() -> None:
    result = plan(seen(**claimed()), 1)
    status = result.status
    assert isinstance(status, CodeSessionStatus)
    assert (status.phase, status.reason, result.actions) == (SessionPhase.READY, "SandboxReady", ())
    assert (status.pool_name, status.pod_name, status.image, status.node_name) == ("default", POD, IMAGE, "node-1")
    assert (status.started_at, status.last_used_at) == (NOW + seconds(1), NOW + seconds(1))
    assert status.egress_proof
    assert [(one.type, one.status, one.reason) for one in status.conditions] == [
        ("Accepted", "True", "PodClaimed"),
        ("EgressClosed", "True", "Closed"),
        ("Ready", "True", "SandboxReady"),
    ]


@pytest.mark.parametrize(
    "sandbox",
    [
        a_sandbox(pod=OF_POOL, gone=True),
        a_sandbox(pod=replace(OF_POOL, unwell=True)),
        a_sandbox(pod=OF_POOL, runner=RunnerView(PodLink.CLOSED, closed_at=NOW)),
    ],
    ids=["gone", "its node is lost", "cut off"],
)
def test_a_pod_that_is_lost_before_its_record_says_so_is_given_back(sandbox: Sandbox) -> None:
    assert plan(seen(**{**claimed(), "sandbox": sandbox})) == Plan(actions=(ReturnPod(),))


def test_an_open_network_ends_it_though_the_pod_was_let_in_under_another_policy() -> None:
    result = plan(seen(**claimed(answered=True)))
    assert isinstance(result.status, CodeSessionStatus)
    assert (result.status.phase, result.status.reason) == (SessionPhase.DENIED, "EgressNotEnforced")
    assert result.actions == (DeletePod(),)


def test_a_session_that_is_ended_before_its_record_names_the_pod_gives_it_up() -> None:
    result = plan(seen(spec={"ended": True}, **claimed()))
    assert isinstance(result.status, CodeSessionStatus)
    assert (result.status.phase, result.actions) == (SessionPhase.ENDED, (DeletePod(),))


def test_a_session_that_ends_before_a_new_operator_has_heard_of_its_pod_leaves_none_behind() -> None:
    """The pod is still the pool's, which leaves it to the session."""
    ended = plan(ready(sandbox=Sandbox(), spec={"ended": True})).status
    assert isinstance(ended, CodeSessionStatus)
    over = ready(sandbox=Sandbox())
    over = replace(over, session=over.session.model_copy(update={"status": ended}))
    assert plan(over) == Plan(actions=(DeletePod(),))
    assert plan(replace(over, sandbox=Sandbox(deleted_at=NOW))) == Plan(actions=(Forget(),))


def test_the_pod_becomes_the_sessions_and_its_deadline_is_lowered_to_its_lifetime() -> None:
    [adopt] = plan(ready()).actions
    assert isinstance(adopt, AdoptPod)
    assert adopt.patch["metadata"]["labels"] == {"codeexec.dev/pool": None, "codeexec.dev/session": "work-1"}
    [owner] = adopt.patch["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("CodeSession", "work-1", True)
    assert adopt.patch["spec"] == {"activeDeadlineSeconds": 100 + 300 + 1000 + 2 * 5}  # it has run for 100 s


def test_the_deadline_stays_where_it_is_not_known_how_long_the_pod_has_run() -> None:
    [adopt] = plan(ready(sandbox=a_sandbox(pod=replace(OF_POOL, started_at=None)))).actions
    assert isinstance(adopt, AdoptPod)
    assert "spec" not in adopt.patch


def test_it_is_adopted_once() -> None:
    own = a_sandbox(pod=replace(OF_POOL, owner=ready().session.metadata.uid))
    for observed in (ready(adopting=True), ready(sandbox=own)):
        assert not plan(observed).actions
    assert [type(one) for one in plan(ready(sandbox=a_sandbox(pod=OF_POOL, runner=RunnerView()))).actions] == [AdoptPod]


def test_a_pod_of_its_own_is_not_adopted() -> None:
    observed = ready(sandbox=a_sandbox(pod=replace(OF_POOL, owner="")))
    status = observed.session.status.model_copy(update={"pool_name": ""})
    own = replace(observed, session=observed.session.model_copy(update={"status": status}))
    assert not plan(own).actions


def test_after_a_restart_its_pod_is_read_soon_because_it_may_still_be_the_pools() -> None:
    assert plan(ready(sandbox=Sandbox())) == Plan(wake_at=NOW + seconds(1))
    assert plan(ready(sandbox=Sandbox()), 1).actions == (ReadPod(),)
    adopted = replace(ready(sandbox=Sandbox(a_pod())), adopting=True)
    assert plan(adopted, 2).actions == (Attach(),)


@pytest.mark.parametrize(
    ("spec", "after", "reason"), [({"idleTimeoutSeconds": 50}, 50, "IdleTimeout"), ({}, 1000, "LifetimeExceeded")]
)
def test_what_ends_a_session_ends_one_in_a_pod_of_a_pool(spec: Any, after: int, reason: str) -> None:
    result = plan(ready(adopting=True, spec=spec), after)
    assert isinstance(result.status, CodeSessionStatus)
    assert (result.status.phase, result.status.reason) == (SessionPhase.ENDED, reason)
    assert result.actions == (DeletePod(),)
