"""The decision, phase by phase, as scenarios: what was observed, and what is to be done."""

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    CODE,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    PAYLOAD,
    SECRETS,
    TARGET,
    UID,
    a_finished_transcript,
    a_piece,
    a_pod,
    a_policy,
    a_raw_block,
    a_raw_file,
    a_runner,
    a_sandbox,
    a_secret,
    a_transcript,
    an_artifact,
    an_execution,
    block_end,
    output,
    seconds,
    take_part,
    the_end,
)
from plans import Walk, given_up, outcome

from codeexec_api import CodeExecution, Phase, Reason
from codeexec_api.v1alpha1.bounds import DEFAULT_REQUESTS
from codeexec_operator.core import startup
from codeexec_operator.core.actions import (
    Attach,
    CancelCode,
    CreatePod,
    DeletePayload,
    DeletePod,
    Forget,
    Plan,
    ReadRequest,
    StartCode,
)
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.egress import FRESH, parse_targets
from codeexec_operator.core.observed import FrameStream, Observed, PolicyProblem
from codeexec_operator.core.observed_pod import Fault, PodLink, RunnerView, Sandbox, is_blocked
from codeexec_operator.core.output_place import CONFIG_MAPS, stored_at
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem, verify_payload
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.timing import Timing
from codeexec_operator.core.transcript import Transcript
from codeexec_operator.manifests.pod import egress_targets_of

TIMING = Timing(payload_grace=5, payload_retry=0.1, start_timeout=60, start_notice=1.5, grace=5)
MISSING = PayloadProblem(Reason.PAYLOAD_MISSING, "there is no Secret")
MISMATCH = PayloadProblem(Reason.PAYLOAD_MISMATCH, "spec.blocks[0]: another digest", SECRETS)


def seen(
    phase: Phase = Phase.PENDING,
    *,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **rest: Any,
) -> Observed:
    execution = an_execution(phase=phase, status=status, **(spec or {}))
    return Observed(
        **{
            "execution": execution,
            "policy": a_policy(),
            "since": NOW,
            "cluster_view": CLUSTER_VIEW,
            "pool_asked": True,  # and there is none
            **rest,
        }
    )


def starting(*, sandbox: Sandbox | None = None, **rest: Any) -> Observed:
    return seen(Phase.STARTING, **{"payload": PAYLOAD, "sandbox": sandbox or Sandbox(requested=True), **rest})


def attached(*, pod: Any = None, **rest: Any) -> Observed:
    """The pod is there, and its runner has reported that the network is closed."""
    return starting(sandbox=a_sandbox(pod=pod or a_pod(), runner=rest.pop("runner", a_runner())), **rest)


def running(**rest: Any) -> Observed:
    return seen(Phase.RUNNING, **{"sandbox": a_sandbox(), "frames": FrameStream.OPEN, **rest})


def plan(observed: Observed, after: float = 0) -> Plan:
    return decide(observed, NOW + seconds(after), TIMING)


def condition_of(result: Plan, kind: str) -> tuple[str, str]:
    assert result.status is not None
    [found] = [one for one in result.status.conditions if one.type == kind]
    return found.status, found.reason


class TestPending:
    def test_the_payload_is_read_first(self) -> None:
        assert plan(seen()) == Plan(actions=(ReadRequest(),))

    def test_accepted(self) -> None:
        result = plan(seen(payload=PAYLOAD))
        assert outcome(result) == (Phase.STARTING, "PodRequested")
        assert condition_of(result, "Accepted") == ("True", "PodRequested")
        [action] = result.actions
        assert isinstance(action, CreatePod)
        assert result.status
        assert result.status.pod_name == action.manifest["metadata"]["name"] == "run-1-0f8fad5b"
        assert result.status.image == IMAGE
        assert result.status.code_digest == an_execution().spec.code_digest
        assert result.status.summary.digest == result.status.code_digest.removeprefix("sha256:")[:12]
        assert result.status.observed_generation == 1

    @pytest.mark.parametrize(
        ("policy", "cpu"), [(a_policy(requests={"cpu": "7m"}), "7m"), (PolicyProblem("wrong"), DEFAULT_REQUESTS["cpu"])]
    )
    def test_the_pod_requests_what_the_policy_says_or_the_default_if_that_can_not_be_read(
        self, policy: Any, cpu: str
    ) -> None:
        [action] = plan(starting(sandbox=Sandbox(), policy=policy)).actions
        assert isinstance(action, CreatePod)
        assert action.manifest["spec"]["containers"][0]["resources"]["requests"]["cpu"] == cpu

    def test_the_kubelets_deadline_is_behind_all_others(self) -> None:
        blocks = [a_raw_block(), a_raw_block()]
        payload = Payload((CODE, CODE), (), SECRETS)
        [action] = plan(seen(payload=payload, spec={"blocks": blocks, "timeoutSeconds": 30})).actions
        assert isinstance(action, CreatePod)
        assert action.manifest["spec"]["activeDeadlineSeconds"] >= 60 + 2 * 30 + 5

    def test_a_policy_that_is_not_valid_denies_whatever_the_default_would_say(self) -> None:
        result = plan(seen(payload=PAYLOAD, policy=PolicyProblem("images: Field required")))
        assert outcome(result) == (Phase.DENIED, "PolicyInvalid")
        assert result.status
        assert result.status.message == "images: Field required"
        assert result.actions == (DeletePayload(SECRETS),)

    def test_a_long_reason_is_cut_and_still_recorded(self) -> None:
        result = plan(seen(payload=PAYLOAD, policy=PolicyProblem("x" * 10_000)))
        assert result.status
        lengths = {one.type: len(one.message) for one in result.status.conditions}
        assert lengths == {"Finished": 4096, "Accepted": 4096, "Succeeded": 0}, "no record is larger for Succeeded"
        assert len(result.status.message) == 4096

    def test_denied_by_policy_with_every_reason_and_the_payload_goes(self) -> None:
        policy = a_policy(languages=["bash"], maxTimeoutSeconds=10)
        result = plan(seen(payload=PAYLOAD, policy=policy))
        assert outcome(result) == (Phase.DENIED, "PolicyViolation")
        assert condition_of(result, "Accepted") == ("False", "PolicyViolation")
        assert condition_of(result, "Finished")[0] == "True"
        assert result.status
        assert "spec.blocks[0].language" in result.status.message
        assert "spec.timeoutSeconds" in result.status.message
        assert result.actions == (DeletePayload(SECRETS),)

    def test_the_payload_may_come_a_little_later(self) -> None:
        observed = seen(payload=MISSING, payload_read_at=NOW + seconds(1))
        assert plan(observed, 1) == Plan(wake_at=NOW + seconds(1.5))
        assert plan(observed, 1.5) == Plan(actions=(ReadRequest(),))
        assert plan(observed, 4.9) == Plan(actions=(ReadRequest(),))

    def test_a_payload_is_asked_for_less_and_less_often(self) -> None:
        read_at, times = 0.0, 0
        while read_at < 4.9:
            again = plan(seen(payload=MISSING, payload_read_at=NOW + seconds(read_at)), read_at).wake_at
            assert again
            assert again >= NOW + seconds(read_at + 0.1)
            read_at, times = (again - NOW).total_seconds(), times + 1
        assert times <= 12

    @pytest.mark.parametrize("skew", [-300, 300], ids="{:+d}s".format)
    def test_a_payload_has_its_time_to_come_whatever_the_clock_of_the_api_server_is(self, skew: int) -> None:
        here = NOW + seconds(skew)  # the execution was created at NOW
        observed = seen(payload=MISSING, payload_read_at=here, since=here)
        assert plan(observed, skew) == Plan(wake_at=here + seconds(0.1))
        assert outcome(plan(observed, skew + 5)) == (Phase.DENIED, "PayloadMissing")

    def test_a_payload_that_never_comes_is_a_denial(self) -> None:
        result = plan(seen(payload=MISSING), 5)
        assert outcome(result) == (Phase.DENIED, "PayloadMissing")
        assert result.actions == ()

    def test_a_mismatch_is_denied_at_once_and_the_payload_goes(self) -> None:
        result = plan(seen(payload=MISMATCH))
        assert outcome(result) == (Phase.DENIED, "PayloadMismatch")
        assert result.actions == (DeletePayload(SECRETS),)

    def test_a_foreign_secret_is_denied_and_left_alone(self) -> None:
        problem = verify_payload(an_execution(), [a_secret(type="Opaque")])
        result = plan(seen(payload=problem))
        assert outcome(result) == (Phase.DENIED, "PayloadForeign")
        assert result.actions == ()

    @pytest.mark.parametrize(("payload", "actions"), [(PAYLOAD, (DeletePayload(SECRETS),)), (MISSING, ())])
    def test_cancelled_before_it_was_accepted(self, payload: Any, actions: tuple[Any, ...]) -> None:
        result = plan(seen(payload=payload, spec={"cancelled": True}))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert result.actions == actions


class TestStarting:
    def test_waits_for_the_pod(self) -> None:
        assert plan(starting()) == Plan(wake_at=NOW + seconds(1.5))
        assert plan(starting(sandbox=Sandbox(pod=a_pod(running=False)))) == Plan(wake_at=NOW + seconds(1.5))

    def test_attaches_to_a_running_pod_and_waits_for_its_report(self) -> None:
        assert plan(starting(sandbox=Sandbox(a_pod()))) == Plan(actions=(Attach(),), wake_at=NOW + seconds(1.5))
        asked = starting(sandbox=a_sandbox(runner=RunnerView(PodLink.OPEN)))
        assert plan(asked) == Plan(wake_at=NOW + seconds(1.5))
        result = given_up(plan, asked, 60)
        assert outcome(result) == (Phase.FAILED, "StartTimeout")
        assert result.status
        assert "the runner did not answer" in result.status.message

    def test_a_connection_that_ends_before_the_code_started_is_opened_again(self) -> None:
        cut_off = starting(sandbox=a_sandbox(runner=RunnerView(PodLink.CLOSED, closed_at=NOW)))
        assert plan(cut_off, 0.5) == Plan(wake_at=NOW + seconds(1))
        assert plan(cut_off, 1).actions == (Attach(),)

    def test_a_runner_that_sends_nonsense_gets_no_code(self) -> None:
        result = plan(attached(runner=replace(a_runner(), problem="the runner sent nonsense")))
        assert outcome(result) == (Phase.FAILED, "RunnerFailed")
        assert DeletePod() in result.actions

    def test_hands_the_code_over_after_the_record_and_without_the_payload(self) -> None:
        place = replace(CONFIG_MAPS, fetch_bytes=7)
        result = plan(attached(pod=a_pod(image_id="sha256:1", user_namespace=True), transcript=Transcript.of(place)), 2)
        assert outcome(result) == (Phase.RUNNING, "CodeStarted")
        assert result.status
        assert result.status.started_at == NOW + seconds(2)
        assert (result.status.node_name, result.status.image_id) == ("node-1", "sha256:1")
        assert result.status.layers == ("UserNamespace", "NetworkPolicy", "Seccomp", "Landlock")
        assert condition_of(result, "EgressClosed") == ("True", "Closed")
        delete, start = result.actions
        assert delete == DeletePayload(SECRETS)
        assert isinstance(start, StartCode)
        [job] = start.messages
        assert (job["id"], job["fetchBytes"]) == (UID, 7)
        assert "print" not in repr(start)

    @pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
    def test_an_image_that_can_not_be_pulled_fails_at_once(self, reason: str) -> None:
        pod = a_pod(running=False, waiting_reason=reason, waiting_message="no such image")
        result = plan(starting(sandbox=Sandbox(pod, requested=True)))
        assert outcome(result) == (Phase.FAILED, "ImagePullFailed")
        assert result.status
        assert f"{reason}: check that the image exists" in result.status.message
        assert "no such image" in result.status.message
        assert condition_of(result, "Started") == ("False", "ImagePullFailed")
        assert result.actions == (DeletePayload(SECRETS), DeletePod())

    @pytest.mark.parametrize("reason", ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"])
    def test_a_container_that_can_not_be_made_fails_at_once(self, reason: str) -> None:
        result = plan(starting(sandbox=Sandbox(a_pod(running=False, waiting_reason=reason, waiting_message="why"))))
        assert outcome(result) == (Phase.FAILED, "PodRefused")
        assert result.status
        assert result.status.message == f"{reason}: why"

    @pytest.mark.parametrize("reason", [Reason.QUOTA_EXCEEDED, Reason.POD_REFUSED])
    def test_a_pod_that_the_api_server_refuses(self, reason: Reason) -> None:
        result = plan(
            starting(sandbox=Sandbox(requested=True, fault=Fault(reason, "the API server refused the pod: why")))
        )
        assert outcome(result) == (Phase.FAILED, reason.value)
        assert result.status
        assert result.status.message.endswith("why")

    @pytest.mark.parametrize(
        ("reason", "last_words", "told"),
        [
            ("Error", "", "(Error, exit code 1); check that the image is a codeexec sandbox image"),
            (
                "Error",
                "runner: no",
                "is a codeexec sandbox image. Its last output: runner: no",
            ),
            ("StartError", "no task", "(StartError, exit code 1). Its last output: no task"),
        ],
    )
    def test_a_runner_that_ends_early(self, reason: str, last_words: str, told: str) -> None:
        pod = a_pod(running=False, terminated=reason, exit_code=1, last_words=last_words)
        result = plan(starting(sandbox=Sandbox(pod, requested=True)))
        assert outcome(result) == (Phase.FAILED, "RunnerFailed")
        assert result.status
        assert result.status.message.endswith(told)

    @pytest.mark.parametrize(
        ("pod", "words"),
        [
            ({"deleting": True}, "the pod was deleted before the code started"),
            (
                {"running": False, "terminated": "Evicted", "disruption": "its node ended it (low on memory)"},
                "the pod was stopped before the code started: its node ended it (low on memory)",
            ),
        ],
    )
    def test_no_code_is_handed_to_a_pod_that_is_taken_away(self, pod: dict[str, Any], words: str) -> None:
        result = plan(starting(sandbox=a_sandbox(pod=a_pod(**pod))))
        assert outcome(result) == (Phase.LOST, "PodLost")
        assert result.status
        assert result.status.message == words

    def test_a_node_that_refuses_the_pod_is_told_in_its_words(self) -> None:
        pod = a_pod(running=False, terminated="NodeAffinity", end_message="Pod was rejected: node labels don't match.")
        result = plan(starting(sandbox=Sandbox(pod, requested=True)))
        assert outcome(result) == (Phase.FAILED, "RunnerFailed")
        assert result.status
        told = "node 'node-1' ended the pod before the code started (NodeAffinity: Pod was rejected: node labels don't"
        assert result.status.message == f"{told} match)"

    def test_a_node_that_has_no_room_after_all(self) -> None:
        pod = a_pod(running=False, terminated="OutOfcpu", end_message="Pod was rejected: not enough cpu")
        result = plan(starting(sandbox=Sandbox(pod, requested=True)))
        assert outcome(result) == (Phase.FAILED, "StartTimeout")
        assert result.status
        told = "node 'node-1' had no room for the pod (OutOfcpu): Pod was rejected: not enough cpu"
        assert result.status.message == told

    @pytest.mark.parametrize(
        ("pod", "why"),
        [
            (None, "the API server has not reported it"),
            (a_pod(running=False, node_name=""), "the scheduler has assigned no node"),
            (
                a_pod(running=False, node_name="", unschedulable="1 Insufficient memory."),
                "the scheduler found no node: 1 Insufficient memory.",
            ),
            (
                a_pod(running=False, waiting_reason="ContainerCreating", waiting_message="volume"),
                "its container is waiting (ContainerCreating: volume)",
            ),
            (
                a_pod(running=False, waiting_reason="ContainerCreating"),
                "its container is waiting (ContainerCreating); the pod's events may say why",
            ),
            (
                a_pod(running=False, refused="1 Insufficient cpu.", waiting_reason="ContainerCreating"),
                "the scheduler found a node late; before that it said: 1 Insufficient cpu.",
            ),
            (a_pod(running=False), "node 'node-1' has not started its container; the pod's events may say why"),
            (a_pod(), "its container runs, but the runner did not answer"),
        ],
    )
    def test_gives_up_in_time_and_says_what_it_waited_for(self, pod: Any, why: str) -> None:
        waits = starting(sandbox=Sandbox(pod, requested=True))
        assert outcome(plan(waits, 59.9)) == (
            Phase.STARTING,
            "Unschedulable" if is_blocked(waits.sandbox) else "PodStarting",
        )
        result = given_up(plan, starting(sandbox=Sandbox(pod, requested=True)), 60)
        assert outcome(result) == (Phase.FAILED, "StartTimeout")
        assert result.status
        assert result.status.message.startswith(f"the pod did not start within 60 s: {why.rstrip('.')}")
        assert DeletePod() in result.actions

    def test_a_pod_that_somebody_deletes(self) -> None:
        assert outcome(plan(starting(sandbox=a_sandbox(gone=True)))) == (Phase.LOST, "PodLost")

    def test_cancelled_before_the_code_started(self) -> None:
        result = plan(starting(sandbox=a_sandbox(), spec={"cancelled": True}))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert result.actions == (DeletePayload(SECRETS), DeletePod())
        assert result.status
        assert result.status.exit_code is None

    def test_after_a_restart_the_payload_is_read_again_and_the_pod_asked_for_again(self) -> None:
        assert plan(starting(payload=None, sandbox=Sandbox())) == Plan(actions=(ReadRequest(),))
        [action] = plan(starting(sandbox=Sandbox())).actions
        [first] = plan(seen(payload=PAYLOAD)).actions
        assert action == first

    def test_after_a_restart_without_the_payload_the_code_is_not_run(self) -> None:
        result = plan(starting(payload=MISSING, sandbox=Sandbox(a_pod())))
        assert outcome(result) == (Phase.LOST, "OperatorRestarted")
        assert DeletePod() in result.actions

    def test_a_payload_that_was_changed_while_it_waited_is_not_run(self) -> None:
        assert outcome(plan(starting(payload=MISMATCH, sandbox=Sandbox(a_pod())))) == (Phase.LOST, "PayloadMismatch")

    def test_a_block_that_is_not_text_is_not_run(self) -> None:
        spec = {"blocks": [a_raw_block(b"\xff")]}
        result = plan(attached(payload=Payload((b"\xff",), (), SECRETS), spec=spec))
        assert outcome(result) == (Phase.FAILED, "PayloadMismatch")
        assert not any(isinstance(action, StartCode) for action in result.actions)


class TestEgressProof:
    """No code runs unless it was shown that the network of its sandbox is closed."""

    def test_the_pod_is_told_what_must_not_answer(self) -> None:
        [action] = plan(seen(payload=PAYLOAD)).actions
        assert isinstance(action, CreatePod)
        assert parse_targets(egress_targets_of(action.manifest["spec"])) == {TARGET}

    @pytest.mark.parametrize(
        ("changes", "verdict", "why"),
        [
            ({"runner": a_runner(answered=True)}, "Open", "api-server 10.96.0.1:443/TCP answered"),
            ({"cluster_view": ClusterView()}, "Unproven", "did not reach api-server 10.96.0.1:443/TCP either"),
            ({"runner": a_runner(targets=())}, "Unproven", "did not reach anything either"),
        ],
    )
    def test_what_is_not_shown_to_be_closed_gets_no_code(self, changes: Any, verdict: str, why: str) -> None:
        observed = attached(**changes)
        result = plan(observed)
        if verdict == "Unproven":  # it may be shown a moment later
            assert result == Plan(wake_at=NOW + seconds(TIMING.proof_retry))
            assert plan(observed, TIMING.start_timeout - 0.5).wake_at == NOW + seconds(TIMING.start_timeout)
            result = plan(observed, TIMING.start_timeout)
        assert outcome(result) == (Phase.DENIED, "EgressNotEnforced")
        assert condition_of(result, "EgressClosed") == ("False", verdict)
        assert condition_of(result, "Accepted")[0] == "True"
        assert condition_of(result, "Started")[0] == "False"
        assert result.actions == (DeletePayload(SECRETS), DeletePod())
        assert result.status
        assert why in result.status.message
        assert result.status.message.endswith("Nothing was run")
        assert result.status.egress_proof
        assert result.status.egress_proof.verdict == verdict
        assert "NetworkPolicy" not in result.status.layers

    def test_what_could_not_be_shown_at_first_runs_once_it_is_shown(self) -> None:
        """Finding B3: after a restart, or an outage, the operator reaches the targets some seconds later."""
        observed = attached(cluster_view=replace(CLUSTER_VIEW, reached_at={TARGET: NOW - FRESH}))
        assert plan(observed, 0.4) == Plan(wake_at=NOW + seconds(0.4 + TIMING.proof_retry))
        reached = replace(observed, cluster_view=replace(CLUSTER_VIEW, reached_at={TARGET: NOW + seconds(10)}))
        assert outcome(plan(reached, 11)) == (Phase.RUNNING, "CodeStarted")
        assert condition_of(plan(reached, 11), "EgressClosed") == ("True", "Closed")

    def test_a_policy_may_ask_for_a_warning_and_the_record_says_so(self) -> None:
        observed = attached(runner=a_runner(answered=True), policy=a_policy(egressProof="Warn"))
        handed_over = plan(observed)
        assert outcome(handed_over) == (Phase.RUNNING, "CodeStarted")
        assert condition_of(handed_over, "EgressClosed") == ("False", "Open")
        running_now = observed.execution.model_copy(update={"status": handed_over.status})
        result = plan(
            replace(observed, execution=running_now, frames=FrameStream.OPEN, transcript=a_finished_transcript())
        )
        assert outcome(result)[0] is Phase.SUCCEEDED
        assert condition_of(result, "EgressClosed") == ("False", "Open")
        assert result.status
        assert result.status.message.startswith(
            "all blocks ended with exit code 0; warning: the network of the sandbox was not shown to be closed"
        )

    def test_a_policy_that_is_not_valid_asks_for_no_warning(self) -> None:
        observed = attached(runner=a_runner(answered=True), policy=PolicyProblem("no images"))
        assert outcome(plan(observed)) == (Phase.DENIED, "EgressNotEnforced")


class TestRuntimeClass:
    """The class that the execution or the policy names is that of the pod, also after a restart."""

    def pod_of(self, result: Plan) -> Any:
        [action] = result.actions
        assert isinstance(action, CreatePod)
        return action.manifest["spec"]

    def test_none_is_the_nodes_own(self) -> None:
        assert "runtimeClassName" not in self.pod_of(plan(seen(payload=PAYLOAD)))

    @pytest.mark.parametrize(
        ("spec", "policy"),
        [({"runtimeClassName": "gvisor"}, {"runtimeClassNames": ["gvisor"]}), ({}, {"runtimeClassName": "gvisor"})],
        ids=["of the execution", "of the policy"],
    )
    def test_it_is_recorded_and_used(self, spec: dict[str, Any], policy: dict[str, Any]) -> None:
        result = plan(seen(payload=PAYLOAD, spec=spec, policy=a_policy(**policy)))
        assert self.pod_of(result)["runtimeClassName"] == "gvisor"
        assert result.status
        assert result.status.runtime_class_name == "gvisor"
        again = plan(starting(sandbox=Sandbox(), spec=spec, status={"runtime_class_name": "gvisor"}))
        assert self.pod_of(again)["runtimeClassName"] == "gvisor"

    def test_one_that_is_not_allowed_is_denied(self) -> None:
        result = plan(seen(payload=PAYLOAD, spec={"runtimeClassName": "kata"}))
        assert outcome(result) == (Phase.DENIED, "PolicyViolation")
        assert result.status
        assert "spec.runtimeClassName: kata is not allowed by the policy (allowed: none)" in result.status.message


class TestRunning:
    def test_waits_until_its_own_limit(self) -> None:
        assert plan(running(), 1) == Plan(wake_at=NOW + seconds(65))

    @pytest.mark.parametrize(
        ("exit_code", "reason", "phase", "recorded"),
        [
            (0, "Completed", Phase.SUCCEEDED, 0),
            (3, "NonZeroExit", Phase.FAILED, 3),
            (3, "Completed", Phase.FAILED, 3),
            (137, "OutOfMemory", Phase.OUT_OF_MEMORY, 137),
            (124, "DeadlineExceeded", Phase.TIMED_OUT, 124),
            (130, "Cancelled", Phase.CANCELLED, 130),
            (0, "SomethingNew", Phase.FAILED, 0),
        ],
    )
    def test_the_last_block_tells_how_it_ended(self, exit_code: int, reason: str, phase: Phase, recorded: int) -> None:
        result = plan(running(transcript=a_finished_transcript(exit_code, reason, "hi\n")), 2.5)
        assert outcome(result)[0] is phase
        assert result.status
        assert result.status.exit_code == recorded
        assert result.status.finished_at == NOW + seconds(2.5)
        assert result.status.stdout
        assert result.status.stdout.text == "hi\n"
        assert result.status.summary.duration == "2.50s"
        assert [block.exit_code for block in result.status.blocks] == [exit_code]
        assert result.actions == ()  # the runner ends by itself

    def test_the_record_tells_which_limit_of_time_was_reached(self) -> None:
        told = a_finished_transcript(124, "DeadlineExceeded")
        result = plan(running(transcript=told, spec={"timeoutSeconds": 7}))
        assert result.status
        assert result.status.message == "the block ran longer than spec.timeoutSeconds (7 s) and was killed"

    @pytest.mark.parametrize(
        ("after", "told"), [(0, "0.00s"), (59.99, "59.99s"), (60, "1m0s"), (119.9, "1m59s"), (3661, "61m1s")]
    )
    def test_the_record_tells_how_long_it_took(self, after: float, told: str) -> None:
        result = plan(running(transcript=a_finished_transcript(), spec={"timeoutSeconds": 7200}), after)
        assert result.status
        assert result.status.summary.duration == told

    def test_an_end_after_too_few_blocks_is_no_success(self) -> None:
        spec = {"blocks": [a_raw_block(), a_raw_block()]}
        assert outcome(plan(running(transcript=a_finished_transcript(), spec=spec))) == (Phase.FAILED, "RunnerFailed")

    def test_an_end_after_too_many_blocks_is_no_success(self) -> None:
        transcript = a_transcript(block_end(0), block_end(1), the_end())
        assert outcome(plan(running(transcript=transcript))) == (Phase.FAILED, "RunnerFailed")

    def test_cancelled_between_two_blocks(self) -> None:
        spec = {"blocks": [a_raw_block(), a_raw_block()], "cancelled": True}
        result = plan(running(transcript=a_finished_transcript(), spec=spec, cancel_sent_at=NOW))
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert result.status
        assert result.status.exit_code == 130

    def test_cancelled_too_late_is_what_it_was(self) -> None:
        result = plan(running(transcript=a_finished_transcript(), spec={"cancelled": True}, cancel_sent_at=NOW))
        assert outcome(result)[0] is Phase.SUCCEEDED

    def test_cancelling_asks_the_runner_once_then_ends_the_pod(self) -> None:
        spec = {"cancelled": True}
        assert plan(running(spec=spec)) == Plan(actions=(CancelCode(),), wake_at=NOW + seconds(5))
        asked = running(spec=spec, cancel_sent_at=NOW)
        assert plan(asked, 1) == Plan(wake_at=NOW + seconds(5))
        result = plan(asked, 5)
        assert outcome(result) == (Phase.CANCELLED, "CancelRequested")
        assert result.actions == (DeletePod(),)

    def test_a_faulty_transcript_fails_and_what_arrived_is_kept(self) -> None:
        transcript = a_transcript(output("so far"), output("x") | {"seq": 7})
        result = plan(running(transcript=transcript))
        assert outcome(result) == (Phase.FAILED, "RunnerFailed")
        assert result.status
        assert result.status.stdout
        assert result.status.stdout.text == "so far"
        assert result.status.exit_code is None
        assert result.actions == (DeletePod(),)

    def test_the_operator_ends_what_the_runner_does_not(self) -> None:
        stuck = running(transcript=a_transcript(output("so far")))
        assert plan(stuck, 64.9).status is None
        result = plan(stuck, 65)
        assert outcome(result) == (Phase.TIMED_OUT, "DeadlineExceeded")
        assert result.status
        assert result.status.exit_code == 124
        assert result.status.stdout
        assert result.status.stdout.text == "so far"
        assert result.actions == (DeletePod(),)

    @pytest.mark.parametrize(
        ("pod", "gone", "expected", "exit_code"),
        [
            (
                a_pod(running=False, terminated="OOMKilled", exit_code=137),
                False,
                (Phase.OUT_OF_MEMORY, "OutOfMemory"),
                137,
            ),
            (a_pod(running=False, terminated="DeadlineExceeded"), False, (Phase.TIMED_OUT, "DeadlineExceeded"), 124),
            (a_pod(running=False, terminated="Evicted"), False, (Phase.FAILED, "RunnerFailed"), None),
            (a_pod(running=False, terminated="Completed", exit_code=0), False, (Phase.FAILED, "RunnerFailed"), None),
            (a_pod(), True, (Phase.LOST, "PodLost"), None),
        ],
        ids=["out of memory", "kubelet's deadline", "evicted", "ended without a result", "deleted"],
    )
    def test_a_lost_connection_is_explained_by_the_pod(
        self, pod: Any, gone: bool, expected: tuple[Phase, str], exit_code: int | None
    ) -> None:
        lost = running(sandbox=Sandbox(pod, gone=gone), frames=FrameStream.CLOSED)
        result = plan(lost, 1)
        assert outcome(result) == expected
        assert result.status
        assert result.status.exit_code == exit_code

    @pytest.mark.parametrize(
        ("pod", "gone", "words"),
        [
            ({"disruption": "its node ended it (low on memory)"}, False, "stopped while the code ran: its node ended"),
            ({"deleting": True}, False, "deleted while the code ran"),
            ({"terminated": None, "running": True, "disruption": "it was evicted"}, True, "ran: it was evicted"),
        ],
        ids=["ended by its node", "deleted", "evicted"],
    )
    def test_a_pod_that_was_taken_away_is_lost_whatever_its_container_ended_with(
        self, pod: dict[str, Any], gone: bool, words: str
    ) -> None:
        ended = a_pod(**{"running": False, "terminated": "Error", "exit_code": 137, **pod})
        result = plan(running(sandbox=Sandbox(ended, gone=gone), frames=FrameStream.CLOSED), 1)
        assert outcome(result) == (Phase.LOST, "PodLost")
        assert result.status
        assert words in result.status.message

    def test_which_limit_was_too_low_is_told(self) -> None:
        pod = a_pod(running=False, terminated="OOMKilled", exit_code=137)
        observed = running(sandbox=Sandbox(pod), frames=FrameStream.CLOSED)
        status = plan(observed, 1).status
        assert status
        limit = f"spec.limits.memory ({observed.execution.spec.limits.memory})"
        assert status.message.startswith(f"the code used more memory than {limit};")

    def test_a_pod_that_is_evicted_for_its_own_disk_has_failed(self) -> None:
        told = "Pod ephemeral local storage usage exceeds the total limit of containers 256Mi. "
        pod = a_pod(running=False, terminated="Evicted", exit_code=137, end_message=told)
        result = plan(running(sandbox=Sandbox(pod), frames=FrameStream.CLOSED), 1)
        assert outcome(result) == (Phase.FAILED, "RunnerFailed")
        assert result.status
        assert f"evicted the pod ({told.strip(' .')}). Usually" in result.status.message
        assert "the code used more disk than spec.limits.ephemeralStorage (" in result.status.message

    @pytest.mark.parametrize(("exit_code", "killed"), [(1, False), (137, True)])
    def test_a_runner_that_was_killed_is_said_to_have_been(self, exit_code: int, killed: bool) -> None:
        pod = a_pod(running=False, terminated="Error", exit_code=exit_code)
        result = plan(running(sandbox=Sandbox(pod), frames=FrameStream.CLOSED))
        assert result.status
        assert f"(Error, exit code {exit_code})" in result.status.message
        assert ("perhaps by the code" in result.status.message) is killed

    def test_an_execution_that_is_lost_has_not_the_exit_code_of_a_block_that_was_not_the_last(self) -> None:
        spec = {"blocks": [a_raw_block(), a_raw_block()]}
        lost = running(
            sandbox=a_sandbox(gone=True), frames=FrameStream.CLOSED, spec=spec, transcript=a_transcript(block_end())
        )
        result = plan(lost, 1)
        assert outcome(result) == (Phase.LOST, "PodLost")
        assert result.status
        assert ([block.exit_code for block in result.status.blocks], result.status.exit_code) == ([0], None)


class TestFiles:
    """What goes into the workspace ahead of the code, and what comes out of it."""

    def test_a_file_that_can_not_be_put_ends_it_and_the_runner_ends_by_itself(self) -> None:
        transcript = a_transcript({"fault": {"reason": "FileRefused", "message": "data: Is a directory"}})
        result = plan(running(transcript=transcript, spec={"files": [a_raw_file("data")]}))
        assert outcome(result) == (Phase.FAILED, "FileRefused")
        assert result.status
        assert result.status.message == "data: Is a directory"
        assert result.status.exit_code is None
        assert result.actions == ()

    def test_files_and_large_output_are_named_in_the_record(self) -> None:
        files = (an_artifact(0, "a", b"x"), a_piece(0, b"x"), an_artifact(1, "b", b"y"))
        text = "z" * 700_000
        transcript = a_transcript(output(text), block_end(), *files, the_end(text, artifactsOmitted=2))
        transcript.finish()
        result = plan(running(transcript=transcript))
        assert outcome(result)[0] is Phase.SUCCEEDED
        assert result.status
        assert [(one.path, one.fetched) for one in result.status.artifacts] == [("a", True), ("b", False)]
        assert result.status.artifacts_omitted == 2
        assert [one.name for one in result.status.output_refs] == ["run-1-0f8fad5b-0-1", "run-1-0f8fad5b-1-6"]
        assert result.status.stdout
        assert (result.status.stdout.referenced, result.status.stdout.kept_bytes) == (True, 700_000)
        assert result.status.output_order == ()

    def test_large_output_in_a_store_is_named_in_the_record_and_no_config_map_is_named(self) -> None:
        text, place = "z" * 700_000, stored_at("s3://bucket")
        for said, parts in ((text, ("0-1",)), ("short", ())):
            transcript = a_transcript(output(said), block_end(), the_end(said), place=place)
            transcript.finish()
            result = plan(running(transcript=transcript))
            assert result.status
            stored = result.status.output_store
            assert (stored and (stored.url, stored.parts)) == (("s3://bucket", parts) if parts else None)
            assert result.status.output_refs == ()

    def test_output_that_could_not_be_stored_is_not_promised_and_the_record_says_why(self) -> None:
        text = "z" * 700_000
        transcript = a_transcript(output(text), block_end(), the_end(text))
        part = take_part(transcript.parts)
        assert part
        transcript.parts.lose(part, "exceeded quota")
        transcript.finish()
        result = plan(running(transcript=transcript))
        assert outcome(result)[0] is Phase.SUCCEEDED
        assert result.status
        assert (
            result.status.message == "all blocks ended with exit code 0; not all output could be kept: exceeded quota"
        )
        assert result.status.output_refs == ()
        assert result.status.stdout
        assert (result.status.stdout.referenced, result.status.stdout.truncated) == (False, True)

    def test_a_payload_that_was_let_go_of_is_read_when_the_pod_is_ready(self) -> None:
        held = HeldPayload(SECRETS)
        assert plan(starting(payload=held)) == Plan(wake_at=NOW + seconds(1.5))
        assert plan(attached(payload=held)) == Plan(actions=(ReadRequest(),))

    def test_a_payload_that_was_let_go_of_goes_when_nothing_is_run(self) -> None:
        assert plan(starting(payload=HeldPayload(SECRETS), spec={"cancelled": True})).actions == (
            DeletePayload(SECRETS),
            DeletePod(),
        )


class TestFinished:
    def finished(self, **rest: Any) -> Observed:
        return seen(Phase.SUCCEEDED, **{"sandbox": Sandbox(a_pod(running=False, terminated="Completed")), **rest})

    @pytest.mark.parametrize(
        ("spec", "ttl"),
        [
            ({}, 60),
            ({"ttlSecondsAfterFinished": 86400}, 60),
            ({"ttlSecondsAfterFinished": 10}, 10),
            ({"ttlSecondsAfterFinished": 0}, 0),
        ],
    )
    def test_the_pod_is_kept_for_its_time(self, spec: dict[str, Any], ttl: int) -> None:
        observed = self.finished(spec=spec)
        if ttl:
            assert plan(observed, ttl - 0.1) == Plan(wake_at=NOW + seconds(ttl))
        assert plan(observed, ttl) == Plan(actions=(DeletePod(),))

    def test_a_runner_that_is_about_to_exit_may_do_so(self) -> None:
        result = plan(self.finished(sandbox=a_sandbox()), 0.1)
        assert result.actions == ()
        assert result.wake_at == NOW + seconds(15)

    def test_where_the_policy_is_not_valid_the_pod_is_not_kept(self) -> None:
        assert plan(self.finished(policy=PolicyProblem("no images"))) == Plan(actions=(DeletePod(),))

    def test_a_runner_that_does_not_exit_is_not_waited_for(self) -> None:
        assert plan(self.finished(sandbox=a_sandbox()), 30).actions == (DeletePod(),)

    def test_the_pod_is_deleted_once_and_again_only_if_it_stays(self) -> None:
        """Its change and its deletion are heard of one after the other. Neither is a reason to ask again."""
        deleted = Sandbox(a_pod(running=False, terminated="Completed"), deleted_at=NOW + seconds(60))
        assert plan(self.finished(sandbox=deleted), 61) == Plan(wake_at=NOW + seconds(65))
        assert plan(self.finished(sandbox=deleted), 65) == Plan(actions=(DeletePod(),))

    @pytest.mark.parametrize("sandbox", [Sandbox(), Sandbox(requested=True), a_sandbox(gone=True)])
    def test_without_a_pod_nothing_is_left_to_do(self, sandbox: Sandbox) -> None:
        assert plan(self.finished(sandbox=sandbox)) == Plan(actions=(Forget(),))


def test_the_pod_is_made_once_and_the_code_started_once_on_the_whole_way() -> None:
    walk = Walk(seen(), plan)
    step = walk.step
    step(0)
    step(0.1, payload=PAYLOAD)
    step(0.2, sandbox=Sandbox(requested=True))
    step(1, sandbox=Sandbox(a_pod(), requested=True))
    step(1.1, sandbox=a_sandbox())
    execution = step(2, frames=FrameStream.OPEN, transcript=a_finished_transcript(text="1\n"))
    assert execution.status.phase is Phase.SUCCEEDED
    ended = a_pod(running=False, terminated="Completed")
    step(2.1, sandbox=a_sandbox(pod=ended, runner=RunnerView(PodLink.CLOSED, closed_at=NOW + seconds(2))))
    step(62)
    step(63, sandbox=a_sandbox(pod=ended, gone=True))
    assert walk.actions == ["ReadRequest", "CreatePod", "Attach", "DeletePayload", "StartCode", "DeletePod", "Forget"]
    kinds = [one.type for one in execution.status.conditions]
    assert kinds == ["Accepted", "EgressClosed", "Started", "Finished", "Succeeded"]
    assert CodeExecution.parse(execution.dump()) == execution


def test_a_pod_that_started_while_no_operator_was_there_is_asked_before_it_is_given_up() -> None:
    away = TIMING.start_timeout + 5
    observed = starting(sandbox=Sandbox(a_pod()), since=NOW + seconds(away))
    assert plan(observed, away).actions == (Attach(),)
    assert outcome(given_up(plan, observed, away + TIMING.start_timeout)) == (Phase.FAILED, "StartTimeout")


def test_code_is_not_started_in_a_pod_that_ends_before_it() -> None:
    """No operator was there for so long, and Kubernetes puts off no deadline."""
    limit, away = 60, 100
    pod = a_pod(started_at=NOW - seconds(1000), deadline_seconds=away + limit)  # the clock of its node is behind
    sandbox = a_sandbox(pod=pod, runner=a_runner())
    observed = starting(sandbox=sandbox, since=NOW + seconds(away))
    refused = plan(observed, away)
    assert outcome(refused) == (Phase.FAILED, "StartTimeout")
    assert refused.status
    assert "activeDeadlineSeconds: 160" in refused.status.message
    longer = replace(observed, sandbox=a_sandbox(pod=replace(pod, deadline_seconds=away + limit + 10)))
    assert outcome(plan(longer, away))[0] is Phase.RUNNING


def test_the_deadline_of_a_pod_leaves_time_for_an_operator_that_comes_later() -> None:
    [create] = plan(starting(sandbox=Sandbox())).actions
    assert isinstance(create, CreatePod)
    to_run = 60 + TIMING.grace
    late = TIMING.grace + 2 * TIMING.clock_skew
    assert create.manifest["spec"]["activeDeadlineSeconds"] == TIMING.start_timeout + to_run + late


def accepted_at(after: float) -> dict[str, Any]:
    """The status of an execution whose operator had another clock than this one."""
    [accepted] = an_execution(phase=Phase.STARTING).status.conditions
    return {"conditions": (accepted.model_copy(update={"last_transition_time": NOW + seconds(after)}),)}


def test_a_pod_gets_its_minute_by_this_clock_and_no_more_though_the_clock_before_was_ahead() -> None:
    observed = starting(status=accepted_at(TIMING.clock_skew), sandbox=Sandbox(a_pod(running=False)))
    told = plan(observed, TIMING.start_notice)
    assert condition_of(told, "Delayed") == ("True", "PodStarting")
    assert told.status
    known = replace(observed, execution=observed.execution.model_copy(update={"status": told.status}))
    assert plan(known, TIMING.start_timeout - 0.1) == Plan(wake_at=NOW + seconds(TIMING.start_timeout))
    assert outcome(given_up(plan, known, TIMING.start_timeout)) == (Phase.FAILED, "StartTimeout")


@pytest.mark.parametrize(("after", "by_this_clock"), [(5, 5), (6, 2), (302, 2), (303, 303)])
def test_a_time_that_is_ahead_by_more_than_a_moment_is_when_it_was_seen(after: float, by_this_clock: float) -> None:
    since = NOW + seconds(2)
    assert startup.by_this_clock(NOW + seconds(after), since, NOW, TIMING) == NOW + seconds(by_this_clock)


def test_a_clock_that_was_set_back_a_little_takes_no_pod_its_minute() -> None:
    """It waited for approval before, so this operator knows it for long."""
    observed = starting(status=accepted_at(90), sandbox=Sandbox(a_pod(running=False)))
    assert plan(observed, 89.9).status is None


def test_code_runs_in_a_pod_that_starts_late_though_the_clock_before_was_behind() -> None:
    [create] = plan(starting(sandbox=Sandbox())).actions
    assert isinstance(create, CreatePod)
    pod = a_pod(deadline_seconds=create.manifest["spec"]["activeDeadlineSeconds"])
    taken_over, started = 20, 75
    observed = attached(pod=pod, status=accepted_at(-TIMING.clock_skew), since=NOW + seconds(taken_over))
    assert outcome(plan(observed, started))[0] is Phase.RUNNING


def test_a_default_that_was_changed_stops_nothing_that_has_a_pod() -> None:
    """As an upgrade does. A signature that is missing does; see `test_image_trust`."""
    had = {"image": OTHER_IMAGE, "runtime_class_name": "gvisor", "pod_name": "run-1-12345678"}
    assert outcome(plan(attached(status=had)))[0] is Phase.RUNNING


def test_code_that_is_handed_over_again_has_all_of_its_time() -> None:
    again, limit = 60, 10
    at = NOW + seconds(again)
    observed = running(begun_at=at, frames_since=at, spec={"timeoutSeconds": limit})
    assert plan(observed, again + limit).status is None
    assert outcome(plan(observed, again + limit + 60)) == (Phase.TIMED_OUT, "DeadlineExceeded")
