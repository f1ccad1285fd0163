"""The decision about an execution whose pod comes from a pool."""

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    PAYLOAD,
    SECRETS,
    a_pod,
    a_policy,
    a_raw_block,
    a_runner,
    a_sandbox,
    an_execution,
    seconds,
)
from plans import proof_of

from codeexec_api import CodeExecution, EgressVerdict, Phase, Reason
from codeexec_operator.core.actions import (
    AdoptPod,
    AskPool,
    CreatePod,
    DeletePayload,
    DeletePod,
    Plan,
    ReadRequest,
    StartCode,
)
from codeexec_operator.core.observed import Observed, PoolView
from codeexec_operator.core.observed_pod import PodView, Sandbox
from codeexec_operator.core.observed_pool import MAX_RUN_SECONDS
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.pod_reset import Reset
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.timing import Timing

TIMING = Timing(start_timeout=60, grace=5, queue_notice=1, queue_recorded=5)
QUEUED = {"pool_name": "default", "pod_name": ""}
POD = "default-0123456789ab"
IN_LINE = PoolView("default", NOW, position=2, length=5, image=IMAGE)


def claimed(*, answered: bool = False) -> dict[str, Any]:
    """A pod was handed out."""
    sandbox = a_sandbox(pod=a_pod(started_at=NOW - seconds(100)), runner=a_runner(answered=answered))
    return {"sandbox": sandbox, "pool": PoolView("default", NOW, image=IMAGE, pod_name=POD, proven=proof_of(sandbox))}


def seen(phase: Phase = Phase.PENDING, *, status: Any = None, spec: Any = None, **rest: Any) -> Observed:
    execution = an_execution(phase=phase, status=status, **(spec or {}))
    known = {"policy": a_policy(), "since": NOW, "cluster_view": CLUSTER_VIEW, "payload": PAYLOAD, "pool_asked": True}
    return Observed(execution=execution, **known | rest)


def queued(**rest: Any) -> Observed:
    return seen(Phase.STARTING, status=QUEUED, **{"pool": IN_LINE, **rest})


def plan(observed: Observed, after: float = 0) -> Plan:
    return decide(observed, NOW + seconds(after), TIMING)


def condition_of(result: Plan, kind: str) -> tuple[str, str, str]:
    assert result.status
    assert not isinstance(result.status, tuple)
    [found] = [one for one in result.status.conditions if one.type == kind]
    return found.status, found.reason, found.message


def test_first_it_is_looked_for_a_pool() -> None:
    [ask] = plan(seen(pool_asked=False)).actions
    assert isinstance(ask, AskPool)


@pytest.mark.parametrize(("more", "first"), [(0, AskPool), (1, CreatePod)])
def test_not_for_code_that_may_run_longer_than_the_deadline_of_its_pods(more: int, first: type) -> None:
    longest = int(MAX_RUN_SECONDS - TIMING.grace)
    policy = a_policy(maxTimeoutSeconds=MAX_RUN_SECONDS)
    observed = seen(pool_asked=False, spec={"timeoutSeconds": longest + more}, policy=policy)
    [action] = plan(observed).actions
    assert isinstance(action, first)


def test_with_a_pod_at_hand_there_is_one_write_before_the_code() -> None:
    result = plan(seen(**claimed()))
    assert result.status
    assert result.status.phase is Phase.RUNNING
    assert (result.status.pool_name, result.status.pod_name, result.status.node_name) == ("default", POD, "node-1")
    assert result.status.egress_proof
    assert result.status.egress_proof.verdict is EgressVerdict.CLOSED
    assert [type(one) for one in result.actions] == [AdoptPod, DeletePayload, StartCode]
    assert [one.type for one in result.status.conditions] == ["Accepted", "EgressClosed", "Started"]
    assert condition_of(result, "Accepted")[1] == "PodClaimed"


def test_what_was_shown_of_a_pod_that_is_used_again_is_on_record() -> None:
    given = claimed()
    assert plan(seen(**given)).status.pod_reset is None  # type: ignore[union-attr]
    reset = Reset("before", True, ("Processes",), "", 3)
    again = given | {"pool": replace(given["pool"], use=2, reset=reset)}
    assert plan(seen(**again)).status.pod_reset == reset.recorded(2)  # type: ignore[union-attr]


def test_the_pod_becomes_the_executions_and_its_deadline_is_lowered() -> None:
    adopt = plan(seen(**claimed(), spec={"timeoutSeconds": 60})).actions[0]
    assert isinstance(adopt, AdoptPod)
    assert adopt.patch["metadata"]["labels"] == {"codeexec.dev/pool": None, "codeexec.dev/execution": "run-1"}
    [owner] = adopt.patch["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("CodeExecution", True)
    assert adopt.patch["spec"] == {"activeDeadlineSeconds": 100 + 300 + 60 + 5 + 5}  # it has run for 100 s


@pytest.mark.parametrize(
    "pod", [a_pod(), a_pod(started_at=NOW - seconds(100), deadline_seconds=470)], ids=["not known", "not later"]
)
def test_the_deadline_stays_where_it_is_not_known_or_not_later_than_what_it_would_be(pod: PodView) -> None:
    adopt = plan(seen(**claimed() | {"sandbox": a_sandbox(pod=pod)}, spec={"timeoutSeconds": 60})).actions[0]
    assert isinstance(adopt, AdoptPod)
    assert "spec" not in adopt.patch


def test_a_pod_is_not_adopted_for_code_that_does_not_start() -> None:
    not_text = {"spec": {"blocks": [a_raw_block(b"\xff")]}, "payload": Payload((b"\xff",), (), SECRETS)}
    result = plan(seen(**claimed(), **not_text))
    assert result.status
    assert (result.status.phase, result.status.reason) == (Phase.FAILED, "PayloadMismatch")
    assert not any(isinstance(one, AdoptPod) for one in result.actions)


def test_an_open_network_ends_it_though_the_pod_was_let_in_under_another_policy() -> None:
    result = plan(seen(**claimed(answered=True)))
    assert result.status
    assert (result.status.phase, result.status.reason) == (Phase.DENIED, "EgressNotEnforced")
    assert result.actions == (DeletePayload(SECRETS), DeletePod())


class TestQueue:
    @pytest.mark.parametrize("after", [0, 0.25, 0.9])
    def test_a_short_wait_is_not_recorded(self, after: float) -> None:
        """Each write that a call causes costs the control plane more than the call's code."""
        found = decide(seen(pool=IN_LINE), NOW + seconds(after), Timing())
        assert found == Plan(wake_at=NOW + seconds(1))

    def test_a_longer_one_is_with_its_place(self) -> None:
        result = plan(seen(pool=IN_LINE), 1)
        assert result.status
        assert (result.status.phase, result.status.reason) == (Phase.STARTING, "WaitingForPool")
        place = "position 3 of 5 in the queue of pool 'default'"
        assert condition_of(result, "Queued") == ("True", "WaitingForPool", place)
        assert condition_of(result, "Accepted")[1] == "WaitingForPool"
        assert (result.status.message, result.status.pod_name, result.actions) == (place, "", ())

    def test_what_is_wrong_with_the_pool_is_said(self) -> None:
        result = plan(seen(pool=replace(IN_LINE, problem="the quota is used up")), 1)
        assert condition_of(result, "Queued")[2].endswith("; the quota is used up")

    def test_its_place_is_recorded_now_and_then(self) -> None:
        first = plan(seen(pool=IN_LINE), 1).status
        assert first
        observed = queued(recorded_at=NOW)
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": first}))
        assert plan(observed, 4) == Plan(wake_at=NOW + seconds(5))
        closer = replace(observed, pool=replace(IN_LINE, position=0, length=9))
        assert condition_of(plan(closer, 5), "Queued")[2].startswith("position 1 of 9")

    def test_a_place_that_is_still_the_same_is_not_written_again(self) -> None:
        first = plan(seen(pool=IN_LINE), 1).status
        observed = queued(recorded_at=NOW)
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": first}))
        assert plan(observed, 5) == Plan(wake_at=NOW + seconds(10))
        assert plan(observed, 6) == Plan(wake_at=NOW + seconds(11))

    def test_a_wait_that_is_not_on_record_yet_or_was_recorded_before_a_restart_is_recorded_soon(self) -> None:
        assert plan(queued(recorded_at=NOW)).wake_at == NOW + seconds(1)
        first = plan(seen(pool=IN_LINE), 1).status
        observed = queued(pool=replace(IN_LINE, since=NOW + seconds(9), position=0))
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": first}))
        assert plan(observed, 9).wake_at == NOW + seconds(10)

    def test_it_looks_again_when_its_time_is_up_if_that_is_earlier(self) -> None:
        first = plan(seen(pool=IN_LINE), 1).status
        observed = queued(recorded_at=NOW, spec={"queueTimeoutSeconds": 3})
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": first}))
        assert plan(observed, 1).wake_at == NOW + seconds(3)

    def test_in_a_long_queue_it_is_written_less_often(self) -> None:
        first = plan(seen(pool=IN_LINE), 1).status
        observed = queued(recorded_at=NOW, pool=replace(IN_LINE, length=1000))
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": first}))
        assert plan(observed, 99).wake_at == NOW + seconds(100)
        assert plan(observed, 100).status

    @pytest.mark.parametrize("given", [{"pool": IN_LINE}, claimed()])
    def test_a_pod_that_is_not_what_it_needs_by_now_is_not_used(self, given: dict[str, Any]) -> None:
        other = {**given, "pool": replace(given["pool"], image=OTHER_IMAGE)}
        assert plan(queued(**other)).actions == (AskPool(IMAGE, None),)

    def test_nothing_times_out(self) -> None:
        result = plan(queued(recorded_at=NOW), 100_000)
        assert result.status
        assert result.status.phase is Phase.STARTING

    def test_but_by_its_own_limit(self) -> None:
        observed = queued(spec={"queueTimeoutSeconds": 30})
        assert plan(observed, 0).wake_at == NOW + seconds(1)
        result = plan(observed, 30)
        assert result.status
        assert (result.status.phase, result.status.reason) == (Phase.FAILED, "QueueTimeout")
        assert result.status.message.startswith("no pod was free within spec.queueTimeoutSeconds (30 s): ")
        assert result.actions == (DeletePayload(SECRETS),)

    def test_cancelling_ends_it(self) -> None:
        result = plan(queued(spec={"cancelled": True}))
        assert result.status
        assert result.status.phase is Phase.CANCELLED

    @pytest.mark.parametrize(
        ("spec", "reason"), [({"queueTimeoutSeconds": 30}, "QueueTimeout"), ({"cancelled": True}, "CancelRequested")]
    )
    def test_what_ended_in_the_queue_is_in_it_no_more(self, spec: dict[str, Any], reason: str) -> None:
        waiting = plan(seen(pool=IN_LINE), 1).status
        observed = queued(spec=spec)
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": waiting}))
        result = plan(observed, 30)
        assert result.status
        assert condition_of(result, "Queued") == ("False", reason, result.status.message)

    def test_when_its_turn_comes_it_waits_no_more(self) -> None:
        waiting = plan(seen(pool=IN_LINE), 1).status
        observed = queued(**claimed())
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": waiting}))
        result = plan(observed, 3)
        assert condition_of(result, "Queued") == ("False", "PodClaimed", f"got pod {POD}")
        assert result.status
        assert result.status.phase is Phase.RUNNING

    def test_a_payload_that_was_let_go_is_read_first(self) -> None:
        assert plan(queued(**claimed(), payload=HeldPayload(SECRETS))).actions == (ReadRequest(),)

    def test_when_the_pool_goes_it_gets_a_pod_of_its_own_and_the_time_for_it(self) -> None:
        waiting = plan(seen(pool=IN_LINE), 1).status
        observed = queued(pool=None)
        observed = replace(observed, execution=observed.execution.model_copy(update={"status": waiting}))
        result = plan(observed, 500)
        assert condition_of(result, "Queued")[:2] == ("False", "PodRequested")
        assert result.status
        assert result.status.pod_name == "run-1-0f8fad5b"
        [create] = result.actions
        assert isinstance(create, CreatePod)
        begun = CodeExecution.model_validate({**observed.execution.model_dump(), "status": result.status.model_dump()})
        waits = plan(replace(observed, execution=begun, sandbox=Sandbox(requested=True)), 559).status
        assert waits
        assert waits.phase is Phase.STARTING

    def test_after_a_restart_it_is_waited_until_pools_were_heard_of(self) -> None:
        assert plan(queued(pool=None), 14) == Plan(wake_at=NOW + seconds(15))
        assert [type(one) for one in plan(queued(pool=None), 15).actions] == [CreatePod]

    def test_after_a_restart_it_gets_in_line_again(self) -> None:
        observed = queued(pool=None, pool_asked=False, payload=None)
        assert plan(observed).actions == (ReadRequest(),)
        [ask] = plan(replace(observed, payload=PAYLOAD)).actions
        assert isinstance(ask, AskPool)

    def test_a_payload_that_is_gone_by_then_is_said(self) -> None:
        gone = PayloadProblem(Reason.PAYLOAD_MISSING, "there is no Secret")
        result = plan(queued(payload=gone))
        assert result.status
        assert (result.status.phase, result.status.reason) == (Phase.LOST, "OperatorRestarted")


@pytest.mark.parametrize("answer", [True, False])
def test_no_code_starts_without_its_record(answer: bool) -> None:
    result = plan(seen(**claimed(answered=answer)))
    starts = [one for one in result.actions if isinstance(one, StartCode)]
    assert bool(starts) == (result.status is not None and result.status.phase is Phase.RUNNING)
