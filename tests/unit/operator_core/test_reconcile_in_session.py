"""The decision about an execution in a session, as scenarios: it waits for its turn, and has no pod of its own."""

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    PAYLOAD,
    SECRETS,
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
    block_end,
    output,
    seconds,
    the_end,
)
from plans import Walk, outcome

from codeexec_api import CodeExecution, CodeExecutionStatus, EgressProof, EgressVerdict, Phase, Reason, SessionPhase
from codeexec_operator.core.actions import (
    CancelCode,
    DeletePayload,
    Forget,
    GiveUpSession,
    Plan,
    ReadRequest,
    StartCode,
)
from codeexec_operator.core.observed import FrameStream, Observed, SessionView
from codeexec_operator.core.observed_pod import PodLink, RunnerView, Sandbox
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.timing import Timing

TIMING = Timing(payload_grace=5, payload_retry=0.1, start_timeout=60, grace=5, kernel_start=30, list_grace=15)
FILES_ONLY = {"blocks": [], "payloadRef": None, "artifacts": {"list": "All"}}
OVER = [phase for phase in SessionPhase if phase.terminal]
NO_ROOM = "the pod did not start within 60 s: the scheduler found no node: 0/1 nodes are available: 1 Insufficient cpu."
NEVER_STARTED = {"started_at": None, "reason": "StartTimeout", "message": NO_ROOM}
BIG = "registry.example/big@sha256:" + "b" * 64
RULED = ("trusted", "untrusted")
UNSTARTED = a_view(SessionPhase.FAILED, status=NEVER_STARTED)
"""A session whose pod found no room."""


def seen(phase: Phase = Phase.PENDING, *, spec: dict[str, Any] | None = None, **rest: Any) -> Observed:
    execution = an_execution(phase=phase, **SESSION_REF, **(spec or {}))
    known = {"policy": a_policy(), "since": NOW, "cluster_view": CLUSTER_VIEW, "session": a_view(), **rest}
    return Observed(execution=execution, **known)


def asked(**rest: Any) -> Observed:
    return seen(Phase.PENDING, **{"payload": PAYLOAD, **rest})


def waiting(**rest: Any) -> Observed:
    return seen(Phase.STARTING, **{"payload": PAYLOAD, **rest})


def running(**rest: Any) -> Observed:
    return seen(Phase.RUNNING, **{"frames": FrameStream.OPEN, **rest})


def plan(observed: Observed, after: float = 0) -> Plan:
    return decide(observed, NOW + seconds(after), TIMING)


class TestPending:
    def test_what_it_refers_to_is_read_first(self) -> None:
        assert plan(asked(payload=None)) == Plan(actions=(ReadRequest(),))

    def test_accepted_it_waits_and_asks_for_no_pod(self) -> None:
        observed = asked(session=a_view(SessionPhase.PENDING, turn=False))
        assert plan(observed, 0.2) == Plan(wake_at=NOW + seconds(0.25)), "a pool may have a pod for the session"
        result = plan(observed, 0.25)
        assert outcome(result) == (Phase.STARTING, "WaitingForSession")
        assert result.actions == ()

    @pytest.mark.parametrize(
        ("phase", "told"),
        [
            (SessionPhase.READY, "waits for its turn in the session"),
            (SessionPhase.STARTING, "waits for the session to start"),
            (SessionPhase.ASLEEP, "waits for the session to wake up"),
        ],
    )
    def test_its_record_says_what_it_waits_for(self, phase: SessionPhase, told: str) -> None:
        status = plan(asked(session=a_view(phase, turn=False)), TIMING.early_notice).status
        assert status
        assert status.message == told

    def test_the_session_may_come_a_little_later(self) -> None:
        observed = asked(session=None, payload_read_at=NOW + seconds(1))
        assert plan(observed, 1) == Plan(wake_at=NOW + seconds(1.5))
        assert plan(observed, 1.5) == Plan(actions=(ReadRequest(),))
        result = plan(observed, 5)
        assert outcome(result) == (Phase.DENIED, "SessionNotFound")
        assert result.status
        assert "there is no CodeSession 'work-1' in namespace 'codeexec-sandbox'" in result.status.message
        assert result.actions == (DeletePayload(SECRETS),)

    @pytest.mark.parametrize("view", [*map(a_view, OVER), a_view(ended=True)], ids=[*OVER, "asked to end"])
    def test_a_session_that_is_over_is_a_denial(self, view: SessionView) -> None:
        result = plan(asked(session=view))
        assert outcome(result) == (Phase.DENIED, "SessionEnded")
        assert result.status
        assert "Start a new session. Nothing was run" in result.status.message
        assert result.actions == (DeletePayload(SECRETS),)

    @pytest.mark.parametrize(
        ("view", "told"),
        [
            (a_view(ended=True), "EndRequested: ended on request (spec.ended)"),
            (
                a_view(ended=True, status={"reason": "SandboxReady", "message": "executions can run"}),
                "EndRequested: ended on request (spec.ended)",
            ),
            (a_view(SessionPhase.FAILED, status={"reason": "OutOfMemory", "message": "all"}), "OutOfMemory: all"),
        ],
    )
    def test_it_is_said_how_the_session_ended(self, view: SessionView, told: str) -> None:
        status = plan(asked(session=view)).status
        assert status
        assert f"session 'work-1' is over ({told}). Start a new session" in status.message

    def test_a_session_that_could_not_start_is_a_failure_with_its_reason(self) -> None:
        """Lack of room is nobody's refusal."""
        result = plan(asked(session=UNSTARTED))
        assert outcome(result) == (Phase.FAILED, "StartTimeout")
        assert isinstance(result.status, CodeExecutionStatus)
        words = NO_ROOM.removesuffix(".")
        assert result.status.message == f"session 'work-1' could not start: {words}. Nothing was run"
        assert [(one.type, one.status) for one in result.status.conditions] == [
            ("Accepted", "True"),
            ("Finished", "True"),
            ("Started", "False"),
            ("Succeeded", "False"),
        ]
        assert (result.status.started_at, result.status.finished_at) == (None, NOW)
        assert result.actions == (DeletePayload(SECRETS),)

    @pytest.mark.parametrize("reason", ["ImagePullFailed", "QuotaExceeded", "RuntimeClassNotFound", "PodRefused"])
    def test_so_is_any_other_reason_for_which_it_did_not_start(self, reason: str) -> None:
        view = a_view(SessionPhase.FAILED, status=NEVER_STARTED | {"reason": reason})
        assert outcome(plan(asked(session=view))) == (Phase.FAILED, reason)
        unknown = a_view(SessionPhase.FAILED, status=NEVER_STARTED | {"reason": "OfANewerOperator"})
        assert outcome(plan(asked(session=unknown))) == (Phase.FAILED, "PodRefused")

    @pytest.mark.parametrize(
        ("session", "refused"),
        [
            ({"image": BIG}, f"status.image: {BIG} is not allowed"),
            (
                {"runtime_class_name": ""},
                "status.runtimeClassName: runc is not allowed by the policy (allowed: gvisor)",
            ),
            ({"runtime_class_name": "gvisor"}, ""),
        ],
    )
    def test_a_pod_that_only_somebody_else_may_have_is_a_denial(self, session: dict[str, Any], refused: str) -> None:
        rule = {"requestedBy": "trusted", "images": [IMAGE, BIG], "runtimeClassNames": ["runc"]}
        policy = a_policy(runtimeClassName="gvisor", agentRules=[rule])
        view = a_view(status=session, requestedBy="trusted")
        asker = {
            requester: plan(asked(policy=policy, session=view, spec={"requestedBy": requester})) for requester in RULED
        }
        assert any(isinstance(one, StartCode) for one in asker["trusted"].actions), "control: by its own rule"
        if not refused:
            assert any(isinstance(one, StartCode) for one in asker["untrusted"].actions)
            return
        assert outcome(asker["untrusted"]) == (Phase.DENIED, "SessionMismatch")
        assert asker["untrusted"].status
        assert refused in asker["untrusted"].status.message
        assert not any(isinstance(one, StartCode) for one in asker["untrusted"].actions)

    def test_a_policy_that_has_changed_ends_no_session(self) -> None:
        view = a_view(status={"image": BIG}, requestedBy="one")
        result = plan(asked(session=view, spec={"requestedBy": "another"}))
        assert any(isinstance(one, StartCode) for one in result.actions)

    @pytest.mark.parametrize(("pids", "stateful", "starts"), [(65, True, False), (64, True, True), (65, False, True)])
    def test_a_kernel_keeps_the_limit_of_its_session(self, pids: int, stateful: bool, starts: bool) -> None:
        policy = a_policy(agentRules=[{"requestedBy": "another", "maxLimits": {"pids": 64}}])
        view = a_view(requestedBy="one", stateful=stateful, limits={"pids": pids})
        result = plan(asked(policy=policy, session=view, spec={"requestedBy": "another", "limits": {"pids": 10}}))
        assert any(isinstance(one, StartCode) for one in result.actions) is starts

    @pytest.mark.parametrize(("limit", "found"), [("cpu", "250m"), ("memory", "128Mi"), ("ephemeralStorage", "64Mi")])
    def test_limits_that_are_not_those_of_the_pod_are_a_denial(self, limit: str, found: str) -> None:
        result = plan(asked(spec={"limits": {limit: found}}))
        assert outcome(result) == (Phase.DENIED, "SessionMismatch")
        assert result.status
        shown = {one.type: one.status for one in result.status.conditions}
        assert shown == {"Accepted": "False", "Finished": "True", "Succeeded": "False"}, "it was never in line"
        assert f"spec.limits.{limit}: {found} is not the limit of the session" in result.status.message
        assert result.actions == (DeletePayload(SECRETS),)

    @pytest.mark.parametrize("limits", [{"pids": 7}, {"outputBytes": 2048}, {"cpu": "0.5"}, {"memory": "268435456"}])
    def test_limits_that_the_pod_meets_are_fine(self, limits: dict[str, Any]) -> None:
        assert outcome(plan(asked(spec={"limits": limits}))) == (Phase.RUNNING, "CodeStarted")

    def test_the_policy_counts_here_too(self) -> None:
        assert outcome(plan(asked(policy=a_policy(languages=["sh"])))) == (Phase.DENIED, "PolicyViolation")

    def test_cancelled_before_it_was_accepted(self) -> None:
        result = plan(asked(spec={"cancelled": True}))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert result.actions == (DeletePayload(SECRETS),)


class TestWaiting:
    @pytest.mark.parametrize(
        "view",
        [
            a_view(turn=False),
            a_view(SessionPhase.PENDING),
            a_view(SessionPhase.STARTING),
            a_view(sandbox=a_sandbox(runner=RunnerView(PodLink.OPEN))),
            a_view(sandbox=a_sandbox(runner=RunnerView(PodLink.CLOSED, closed_at=NOW))),
            a_view(sandbox=a_sandbox(runner=replace(a_runner(), link=PodLink.CLOSED))),
            a_view(sandbox=a_sandbox(runner=RunnerView())),
        ],
        ids=["its turn", "its start", "its pod", "its report", "its connection", "that anew", "after a restart"],
    )
    def test_nothing_is_done_before_the_session_is_ready_for_it(self, view: SessionView) -> None:
        assert plan(waiting(session=view, payload=HeldPayload(SECRETS)), 10_000) == Plan()

    def test_the_payload_is_read_again_when_its_turn_has_come(self) -> None:
        assert plan(waiting(payload=HeldPayload(SECRETS))) == Plan(actions=(ReadRequest(),))

    def test_the_code_is_handed_over_with_what_is_known_of_the_session(self) -> None:
        result = plan(waiting(), 2)
        assert outcome(result) == (Phase.RUNNING, "CodeStarted")
        status = result.status
        assert isinstance(status, CodeExecutionStatus)
        session = a_view().session.status
        for name in ("pod_name", "node_name", "image", "image_id", "runtime_class_name", "layers", "egress_proof"):
            assert getattr(status, name) == getattr(session, name)
        assert [one.type for one in status.conditions] == ["Accepted", "EgressClosed", "Started"]
        assert status.started_at == NOW + seconds(2)
        delete, start = result.actions
        assert delete == DeletePayload(SECRETS)
        assert isinstance(start, StartCode)
        [job] = start.messages
        assert (job["id"], job["session"], job["stateful"]) == (UID, True, False)

    def test_in_a_stateful_session_the_job_says_so(self) -> None:
        [_, start] = plan(waiting(session=a_view(stateful=True))).actions
        assert isinstance(start, StartCode)
        assert start.messages[-1]["stateful"] is True

    def test_an_execution_of_files_alone_needs_no_payload(self) -> None:
        [start] = plan(waiting(payload=Payload(), spec=FILES_ONLY)).actions
        assert isinstance(start, StartCode)
        assert start.messages[-1]["blocks"] == []

    @pytest.mark.parametrize("view", [*map(a_view, OVER), a_view(ended=True)], ids=[*OVER, "asked to end"])
    def test_a_session_that_ends_before_its_turn(self, view: SessionView) -> None:
        result = plan(waiting(session=view, payload=HeldPayload(SECRETS)))
        assert outcome(result) == (Phase.DENIED, "SessionEnded")
        assert result.actions == (DeletePayload(SECRETS),)

    def test_a_session_that_does_not_start_ends_what_waits_with_its_reason(self) -> None:
        result = plan(waiting(session=UNSTARTED, payload=HeldPayload(SECRETS)))
        assert outcome(result) == (Phase.FAILED, "StartTimeout")
        assert isinstance(result.status, CodeExecutionStatus)
        assert "1 Insufficient cpu" in result.status.message
        assert [one.type for one in result.status.conditions] == ["Accepted", "Finished", "Started", "Succeeded"]
        assert result.actions == (DeletePayload(SECRETS),)

    def test_cancelled_while_it_waits(self) -> None:
        result = plan(waiting(session=a_view(turn=False), spec={"cancelled": True}, payload=HeldPayload(SECRETS)))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert result.actions == (DeletePayload(SECRETS),)

    def test_after_a_restart_what_it_refers_to_is_read_again(self) -> None:
        assert plan(waiting(payload=None, session=None)) == Plan(actions=(ReadRequest(),))

    def test_after_a_restart_a_session_that_is_gone_is_waited_for_a_little(self) -> None:
        observed = waiting(session=None)
        assert plan(observed, 14) == Plan(wake_at=NOW + seconds(15))
        result = plan(observed, 15)
        assert outcome(result) == (Phase.DENIED, "SessionNotFound")
        assert result.actions == (DeletePayload(SECRETS),)

    def test_a_payload_that_is_gone_is_not_run(self) -> None:
        missing = PayloadProblem(Reason.PAYLOAD_MISSING, "there is no Secret")
        result = plan(waiting(payload=missing))
        assert outcome(result)[0] is Phase.LOST
        assert result.actions == ()

    def an_open_session(self) -> SessionView:
        proof = EgressProof(verdict=EgressVerdict.OPEN, checked_at=NOW)
        return a_view(status={"egress_proof": proof})

    def test_a_session_that_may_be_open_runs_code_only_where_the_policy_still_says_so(self) -> None:
        observed = waiting(session=self.an_open_session(), policy=a_policy(egressProof="Warn"))
        assert outcome(plan(observed)) == (Phase.RUNNING, "CodeStarted")
        result = plan(replace(observed, policy=a_policy()))
        assert outcome(result) == (Phase.DENIED, "EgressNotEnforced")
        assert result.actions == (DeletePayload(SECRETS),)


class TestRunning:
    @pytest.mark.parametrize(("stateful", "limit"), [(False, 65), (True, 95)])
    def test_what_the_runner_does_not_end_ends_the_session(self, stateful: bool, limit: float) -> None:
        stuck = running(session=a_view(stateful=stateful), transcript=a_transcript(output("so far")))
        assert plan(stuck, 1) == Plan(wake_at=NOW + seconds(limit))
        result = plan(stuck, limit)
        assert outcome(result) == (Phase.TIMED_OUT, "DeadlineExceeded")
        [action] = result.actions
        assert isinstance(action, GiveUpSession)

    def test_files_may_take_longer_than_the_runners_grace(self) -> None:
        wanted = {**FILES_ONLY, "artifacts": {"list": "All", "fetch": ["*"]}}
        assert plan(running(spec=wanted), 10).status is None

    @pytest.mark.parametrize(("exit_code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
    def test_the_runner_tells_how_it_ended_and_the_session_goes_on(self, exit_code: int, phase: Phase) -> None:
        result = plan(running(transcript=a_finished_transcript(exit_code, text="hi")))
        assert outcome(result)[0] is phase
        assert result.actions == ()

    def test_files_alone_succeed_without_a_block(self) -> None:
        result = plan(running(transcript=a_transcript(the_end()), spec=FILES_ONLY))
        assert outcome(result) == (Phase.SUCCEEDED, "Completed")
        assert result.actions == ()

    def test_a_block_that_nobody_asked_for_is_no_success(self) -> None:
        transcript = a_transcript(block_end(), the_end())
        assert outcome(plan(running(transcript=transcript, spec=FILES_ONLY))) == (Phase.FAILED, "RunnerFailed")

    def test_an_end_without_a_block_is_no_success(self) -> None:
        assert outcome(plan(running(transcript=a_transcript(the_end())))) == (Phase.FAILED, "RunnerFailed")

    def test_a_file_that_is_refused_does_not_end_the_session(self) -> None:
        transcript = a_transcript({"fault": {"reason": "FileRefused", "message": "a: Is a directory"}})
        result = plan(running(transcript=transcript))
        assert outcome(result) == (Phase.FAILED, "FileRefused")
        assert result.actions == ()

    def test_a_faulty_transcript_ends_the_session(self) -> None:
        result = plan(running(transcript=a_transcript(output("so far"), output("x") | {"seq": 7})))
        assert outcome(result) == (Phase.FAILED, "RunnerFailed")
        [action] = result.actions
        assert isinstance(action, GiveUpSession)

    def test_cancelling_asks_the_runner_once_then_ends_the_session(self) -> None:
        spec = {"cancelled": True}
        assert plan(running(spec=spec)) == Plan(actions=(CancelCode(),), wake_at=NOW + seconds(5))
        sent = running(spec=spec, cancel_sent_at=NOW)
        assert plan(sent, 1) == Plan(wake_at=NOW + seconds(5))
        result = plan(sent, 5)
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        [action] = result.actions
        assert isinstance(action, GiveUpSession)

    def test_a_cancelled_one_that_is_heard_of_has_the_time_that_its_files_have(self) -> None:
        """The runner sends them before it looks at what came meanwhile."""
        fetches = {"cancelled": True, "artifacts": {"fetch": ["*"]}, "timeoutSeconds": 600}

        def heard(after: float, spec: dict[str, Any] = fetches) -> Observed:
            runner = replace(a_runner(), heard_at=NOW + seconds(after))
            return running(spec=spec, cancel_sent_at=NOW, session=a_view(sandbox=a_sandbox(runner=runner)))

        assert plan(heard(4), 5) == Plan(wake_at=NOW + seconds(9))
        assert plan(heard(64), 64.5) == Plan(wake_at=NOW + seconds(65)), "no longer than files may take"
        for silent in (plan(heard(-1), 5), plan(heard(4), 9), plan(heard(64), 65)):
            assert outcome(silent) == (Phase.CANCELLED, "CancelRequested")
            assert isinstance(silent.actions[0], GiveUpSession)
        without_files = heard(4, {"cancelled": True, "timeoutSeconds": 600})
        assert outcome(plan(without_files, 5)) == (Phase.CANCELLED, "CancelRequested"), "control"

    @pytest.mark.parametrize("connected", [True, False])
    @pytest.mark.parametrize("recorded", [True, False], ids=["session over", "session not over yet"])
    @pytest.mark.parametrize(
        ("sandbox", "expected"),
        [
            (
                a_sandbox(pod=a_pod(running=False, terminated="OOMKilled", exit_code=137)),
                (Phase.OUT_OF_MEMORY, "OutOfMemory"),
            ),
            (a_sandbox(pod=a_pod(running=False, terminated="Error", exit_code=1)), (Phase.FAILED, "RunnerFailed")),
            (
                a_sandbox(pod=a_pod(running=False, terminated="DeadlineExceeded")),
                (Phase.TIMED_OUT, "DeadlineExceeded"),
            ),
            (a_sandbox(gone=True), (Phase.LOST, "PodLost")),
        ],
        ids=["out of memory", "ended", "kubelet's deadline", "deleted"],
    )
    def test_the_end_of_the_pod_is_told_alike_whoever_hears_of_it_first(
        self, sandbox: Sandbox, expected: tuple[Phase, str], recorded: bool, connected: bool
    ) -> None:
        """The session's record, the pod's status and the end of the connection come in any order."""
        if connected and not recorded:
            return
        reasons = {"OOMKilled": "OutOfMemory"}
        reason = reasons.get((sandbox.pod and sandbox.pod.terminated) or "", "RunnerFailed")
        phase, status = (SessionPhase.LOST, "PodLost") if sandbox.gone else (SessionPhase.FAILED, reason)
        view = a_view(phase, sandbox=sandbox, status={"reason": status}) if recorded else a_view(sandbox=sandbox)
        result = plan(running(session=view, frames=FrameStream.OPEN if connected else FrameStream.CLOSED), 1)
        assert outcome(result) == expected

    @pytest.mark.parametrize(
        ("view", "expected"),
        [
            (a_view(SessionPhase.ENDED, ended=True), (Phase.CANCELLED, "CancelRequested")),
            (
                a_view(SessionPhase.ENDED, status={"reason": "LifetimeExceeded", "message": "too old"}),
                (Phase.TIMED_OUT, "DeadlineExceeded"),
            ),
            (a_view(SessionPhase.FAILED, status={"reason": "RunnerFailed"}), (Phase.LOST, "PodLost")),
        ],
        ids=["as was asked for", "lifetime", "given up"],
    )
    def test_a_session_that_is_ended_while_code_runs(self, view: SessionView, expected: tuple[Phase, str]) -> None:
        result = plan(running(session=view, transcript=a_transcript(output("so far"))))
        assert outcome(result) == expected
        assert result.status
        assert "the session" in result.status.message
        assert result.status.stdout
        assert result.status.stdout.text == "so far"

    @pytest.mark.parametrize("frames", FrameStream)
    def test_a_session_that_was_asked_to_end_cancels_what_runs_whatever_its_pod_does(self, frames: FrameStream) -> None:
        for phase in (SessionPhase.READY, SessionPhase.ENDED):
            view = a_view(phase, sandbox=a_sandbox(gone=True), ended=True)
            result = plan(running(session=view, frames=frames), 1)
            assert outcome(result) == (Phase.CANCELLED, "CancelRequested")

    def test_a_result_that_came_before_the_session_ended_counts(self) -> None:
        view = a_view(SessionPhase.ENDED, sandbox=a_sandbox(gone=True))
        result = plan(running(session=view, transcript=a_finished_transcript(), frames=FrameStream.CLOSED))
        assert outcome(result)[0] is Phase.SUCCEEDED


def test_when_it_is_over_nothing_is_left_to_do() -> None:
    assert plan(seen(Phase.SUCCEEDED)) == Plan(actions=(Forget(),))


def test_it_is_started_once_on_the_whole_way_and_never_touches_the_pod() -> None:
    walk = Walk(seen(session=None), plan)
    step = walk.step
    step(0)
    step(0.1, payload=PAYLOAD, payload_read_at=NOW)
    step(0.2, session=a_view(SessionPhase.STARTING, turn=False))
    step(0.3, payload=HeldPayload(SECRETS))
    step(1, session=a_view(turn=False))
    step(2, session=a_view())
    step(2.1, payload=PAYLOAD)
    execution = step(3, payload=None, frames=FrameStream.OPEN, transcript=a_finished_transcript(text="1\n"))
    assert execution.status.phase is Phase.SUCCEEDED
    step(3.1, session=a_view(turn=False))
    assert walk.actions == [*["ReadRequest"] * 3, "DeletePayload", "StartCode", "Forget"]
    assert CodeExecution.parse(execution.dump()) == execution
