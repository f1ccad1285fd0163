"""How an operator gets hold of code that runs already: what it asks, hands over again, and when the code is lost."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    NOW,
    PAYLOAD,
    SESSION_REF,
    UID,
    a_finished_transcript,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    a_transcript,
    a_view,
    an_execution,
    output,
    seconds,
)
from plans import outcome

from codeexec_api import Phase, Reason, SessionPhase
from codeexec_operator.core.actions import (
    AdoptPod,
    Attach,
    CancelCode,
    DeletePayload,
    DeletePod,
    Plan,
    ReadPod,
    ReadRequest,
    ResumeCode,
    StartCode,
)
from codeexec_operator.core.observed import FrameStream, Observed
from codeexec_operator.core.observed_pod import PodLink, RunnerView, Sandbox
from codeexec_operator.core.payload import PayloadProblem
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.timing import Timing

TIMING = Timing(start_timeout=60, grace=5, list_grace=15, unreachable=60, attach_retry=1)
MISSING = PayloadProblem(Reason.PAYLOAD_MISSING, "there is no Secret")
IN_SESSION = {"spec": SESSION_REF, "sandbox": Sandbox()}


def running(*, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **rest: Any) -> Observed:
    """Code that runs, and of which nothing arrives here."""
    execution = an_execution(phase=Phase.RUNNING, status=status, **(spec or {}))
    known = {"policy": a_policy(), "since": NOW, "cluster_view": CLUSTER_VIEW, "sandbox": a_sandbox(), **rest}
    return Observed(execution=execution, **known)


def plan(observed: Observed, after: float = 0) -> Plan:
    return decide(observed, NOW + seconds(after), TIMING)


class TestInItsOwnPod:
    def test_the_pod_is_looked_for_first(self) -> None:
        assert plan(running(sandbox=Sandbox())) == Plan(actions=(ReadPod(),))

    def test_one_that_is_gone_is_lost(self) -> None:
        assert outcome(plan(running(sandbox=Sandbox(gone=True)))) == (Phase.LOST, "PodLost")

    def test_then_it_is_connected_to(self) -> None:
        assert plan(running(sandbox=Sandbox(a_pod()))) == Plan(actions=(Attach(),))

    def test_the_runner_is_asked_once_it_has_reported(self) -> None:
        asked = RunnerView(PodLink.OPEN, asked_at=NOW)
        assert plan(running(sandbox=a_sandbox(runner=asked))) == Plan(wake_at=NOW + seconds(60))
        assert plan(running()) == Plan(actions=(ResumeCode(),))

    def test_a_connection_that_broke_is_made_again_after_a_moment(self) -> None:
        closed = running(sandbox=a_sandbox(runner=RunnerView(PodLink.CLOSED, closed_at=NOW)))
        assert plan(closed) == Plan(wake_at=NOW + seconds(1))
        assert plan(closed, 1).actions == (Attach(),)

    def test_a_pod_of_a_pool_is_made_its_own_if_it_is_not_yet(self) -> None:
        from_pool = {"status": {"pool_name": "small", "started_at": NOW}}
        [resume, adopt] = plan(
            running(**from_pool, sandbox=a_sandbox(pod=a_pod(owner="the pool", started_at=NOW)))
        ).actions
        assert (resume, type(adopt)) == (ResumeCode(), AdoptPod)
        assert isinstance(adopt, AdoptPod)
        assert adopt.patch["spec"]["activeDeadlineSeconds"] > 0
        assert plan(running(**from_pool, sandbox=a_sandbox(pod=a_pod(owner=UID)))) == Plan(actions=(ResumeCode(),))

    def test_its_deadline_stays_if_the_pod_does_not_say_when_it_started(self) -> None:
        sandbox = a_sandbox(pod=a_pod(owner="the pool", started_at=None))
        [_, adopt] = plan(running(status={"pool_name": "small"}, sandbox=sandbox)).actions
        assert isinstance(adopt, AdoptPod)
        assert "spec" not in adopt.patch

    @pytest.mark.parametrize(
        ("skew", "placed_at"), [(-300, None), (0, None), (300, None), (600, NOW), (-600, NOW)], ids=str
    )
    def test_its_deadline_leaves_time_for_the_code_whatever_the_clock_of_the_node_is(
        self, skew: int, placed_at: datetime | None
    ) -> None:
        """The kubelet counts from the start of the pod, by its own clock; all of the code's time may be ahead.

        A process that has seen how the pod got its node knows how old the pod is.
        """
        age, limit = 600, 100
        pod = a_pod(owner="the pool", started_at=NOW + seconds(skew))
        sandbox = a_sandbox(pod=pod, placed_at=placed_at)
        from_pool = running(status={"pool_name": "small"}, spec={"timeoutSeconds": limit}, sandbox=sandbox)
        [_, adopt] = plan(from_pool, age).actions
        assert isinstance(adopt, AdoptPod)
        assert age + limit < adopt.patch["spec"]["activeDeadlineSeconds"] < age + limit + 1000

    def test_its_deadline_counts_from_a_pod_that_seems_to_start_later(self) -> None:
        ahead = a_sandbox(pod=a_pod(owner="the pool", started_at=NOW + seconds(60)))
        [_, adopt] = plan(running(status={"pool_name": "small"}, sandbox=ahead)).actions
        assert isinstance(adopt, AdoptPod)
        assert adopt.patch["spec"]["activeDeadlineSeconds"] == TIMING.clock_skew + 60 + 2 * TIMING.grace

    @pytest.mark.parametrize("skew", [-300, 300], ids="{:+d}s".format)
    def test_its_time_does_not_depend_on_the_clock_of_the_operator_that_started_it(self, skew: int) -> None:
        limit = 600
        held = running(
            frames=FrameStream.OPEN,
            frames_since=NOW,
            spec={"timeoutSeconds": limit},
            status={"started_at": NOW + seconds(skew - 60)},
        )
        assert plan(held, limit).status is None
        assert outcome(plan(held, limit + 10)) == (Phase.TIMED_OUT, "DeadlineExceeded")

    def test_it_does_not_run_out_of_time_before_the_runner_has_told(self) -> None:
        late = 10_000
        assert plan(running(), late) == Plan(actions=(ResumeCode(),))
        held = running(frames=FrameStream.OPEN, frames_since=NOW + seconds(late))
        assert plan(held, late) == Plan(wake_at=NOW + seconds(late + 5))
        assert outcome(plan(held, late + 5)) == (Phase.TIMED_OUT, "DeadlineExceeded")

    def test_what_has_arrived_by_then_counts(self) -> None:
        assert outcome(plan(running(transcript=a_finished_transcript())))[0] is Phase.SUCCEEDED

    def test_one_that_nobody_can_connect_to_is_lost_after_a_minute(self) -> None:
        runner = RunnerView(PodLink.CLOSED, closed_at=NOW + seconds(59), refused_since=NOW)
        assert plan(running(sandbox=a_sandbox(runner=runner)), 59.5).status is None
        result = plan(running(sandbox=a_sandbox(runner=runner)), 60)
        assert outcome(result) == (Phase.LOST, "PodLost")
        assert result.actions == (DeletePod(),)

    @pytest.mark.parametrize("frames", [FrameStream.CLOSED, FrameStream.REQUESTED])
    def test_a_runner_that_does_not_answer_is_given_up(self, frames: FrameStream) -> None:
        runner = a_runner() if frames is FrameStream.REQUESTED else RunnerView(PodLink.OPEN, asked_at=NOW)
        silent = running(frames=frames, frames_since=NOW, sandbox=a_sandbox(runner=runner))
        assert plan(silent, 59) == Plan(wake_at=NOW + seconds(60))
        result = plan(silent, 60)
        assert outcome(result) == (Phase.LOST, "OperatorRestarted")
        assert result.status
        assert "the runner did not answer within 60 s" in result.status.message

    @pytest.mark.parametrize("why", ["Overflowed", "Forgotten", "anything else"])
    def test_what_the_runner_can_not_tell_again_is_lost_with_what_was_heard(self, why: str) -> None:
        result = plan(running(missing=why, transcript=a_transcript(output("so far"))))
        assert outcome(result) == (Phase.LOST, "OperatorRestarted")
        assert result.status
        assert result.status.stdout
        assert result.status.stdout.text == "so far"
        assert result.actions == (DeletePod(),)


class TestThatWasNeverBegun:
    def test_it_is_handed_over_again_without_another_record(self) -> None:
        result = plan(running(missing="NeverBegun", payload=PAYLOAD))
        assert result.status is None
        [delete, start] = result.actions
        assert delete == DeletePayload(PAYLOAD.secrets)
        assert isinstance(start, StartCode)
        assert start.messages[-1]["id"] == UID

    def test_its_code_is_read_again(self) -> None:
        assert plan(running(missing="NeverBegun")) == Plan(actions=(ReadRequest(),))

    def test_without_its_code_it_is_lost_and_says_that_nothing_ran(self) -> None:
        result = plan(running(missing="NeverBegun", payload=MISSING))
        assert outcome(result) == (Phase.LOST, "OperatorRestarted")
        assert result.status
        assert result.status.message.endswith("Nothing was run")

    def test_it_is_not_if_it_was_cancelled(self) -> None:
        result = plan(running(missing="NeverBegun", payload=PAYLOAD, spec={"cancelled": True}))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert DeletePayload(PAYLOAD.secrets) in result.actions

    def test_it_is_not_if_the_policy_has_come_to_refuse_it(self) -> None:
        result = plan(running(missing="NeverBegun", payload=PAYLOAD, policy=a_policy(languages=["bash"])))
        assert outcome(result) == (Phase.LOST, "OperatorRestarted")

    def test_it_is_not_in_a_pod_that_ends_before_it(self) -> None:
        pod = a_pod(started_at=NOW, deadline_seconds=130)
        observed = running(missing="NeverBegun", payload=PAYLOAD, sandbox=a_sandbox(pod=pod))
        assert isinstance(plan(observed, 65).actions[-1], StartCode), "the code may take 65 s"
        lost = plan(observed, 65.1)
        assert outcome(lost) == (Phase.LOST, "OperatorRestarted")
        assert lost.status
        assert lost.status.message.endswith("Nothing was run")

    def test_in_a_session_it_waits_for_its_turn(self) -> None:
        waits = running(**IN_SESSION, missing="NeverBegun", payload=PAYLOAD, session=replace(a_view(), turn=False))
        assert plan(waits) == Plan()
        assert plan(replace(waits, session=a_view())).actions


class TestInASession:
    def test_the_session_is_looked_for(self) -> None:
        unknown = running(**IN_SESSION, session=None)
        assert plan(unknown) == Plan(actions=(ReadRequest(),))
        assert plan(replace(unknown, payload=PAYLOAD), 1) == Plan(wake_at=NOW + seconds(15))
        assert outcome(plan(replace(unknown, payload=PAYLOAD), 15)) == (Phase.LOST, "PodLost")

    def test_its_connection_is_waited_for(self) -> None:
        closed = a_view(sandbox=a_sandbox(runner=RunnerView(PodLink.CLOSED)))
        assert plan(running(**IN_SESSION, session=closed)) == Plan()
        silent = a_view(sandbox=a_sandbox(runner=RunnerView(PodLink.OPEN)))
        assert plan(running(**IN_SESSION, session=silent)) == Plan(), "connected, but it has not reported"
        lost = a_view(sandbox=a_sandbox(runner=replace(a_runner(), link=PodLink.CLOSED)))
        assert plan(running(**IN_SESSION, session=lost)) == Plan(), "it had reported before"
        assert plan(running(**IN_SESSION, session=a_view())) == Plan(actions=(ResumeCode(),))

    def test_what_can_not_be_told_again_is_stopped_and_the_session_goes_on(self) -> None:
        result = plan(running(**IN_SESSION, session=a_view(), missing="Overflowed"))
        assert outcome(result) == (Phase.LOST, "OperatorRestarted")
        assert result.actions == (CancelCode(),)

    def test_it_ends_with_its_session(self) -> None:
        over = a_view(SessionPhase.LOST, sandbox=a_sandbox(gone=True), status={"reason": "PodLost"})
        assert outcome(plan(running(**IN_SESSION, session=over)))[0] is Phase.LOST

    def test_a_new_session_of_its_name_is_not_asked_and_gets_no_code(self) -> None:
        """The old one was deleted while no operator ran; the runner of the new one would say that nothing was begun."""
        another = a_view(status={"pod_name": "work-1-99999999"})
        for missing in ("", "NeverBegun"):
            result = plan(running(**IN_SESSION, session=another, missing=missing, payload=PAYLOAD))
            assert outcome(result) == (Phase.LOST, "PodLost")
            assert not [one for one in result.actions if isinstance(one, StartCode)]


class TestAPodThatEnds:
    """Its end may be heard of before what the runner has said last."""

    @pytest.mark.parametrize("ended", [{"gone": True}, {"pod": a_pod(running=False, terminated="Error", exit_code=1)}])
    def test_what_it_has_said_last_has_a_moment_to_arrive(self, ended: dict[str, Any]) -> None:
        over = running(frames=FrameStream.OPEN, sandbox=a_sandbox(**ended, over_at=NOW + seconds(1)))
        assert plan(over, 2).wake_at == NOW + seconds(6)
        assert outcome(plan(over, 6))[0] in (Phase.LOST, Phase.FAILED)
        assert outcome(plan(replace(over, transcript=a_finished_transcript()), 2))[0] is Phase.SUCCEEDED

    def test_a_runner_that_is_asked_is_given_up_no_later_for_that(self) -> None:
        asked = running(
            frames=FrameStream.REQUESTED,
            frames_since=NOW - seconds(57),
            sandbox=a_sandbox(gone=True, over_at=NOW + seconds(1)),
        )
        assert plan(asked, 2) == Plan(wake_at=NOW + seconds(3))

    def test_nothing_is_waited_for_where_nothing_arrives(self) -> None:
        assert outcome(plan(running(sandbox=a_sandbox(gone=True, over_at=NOW))))[0] is Phase.LOST
