"""The way of an execution, from its record alone: stages without gaps, and nothing of code or output."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from factories import IMAGE, NOW, SESSION_REF, a_raw_block, an_execution, seconds
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import ApprovalStatus, CodeExecution, ConditionType, Phase, StreamStatus, condition
from codeexec_operator.core.measures import PoolCount, measure, pools_by_namespace
from codeexec_operator.core.stages import OTHER, Stage, stages_of, times_of

PLANTED = "PLANTED_IN_CODE_AND_OUTPUT"


def at(count: float) -> Any:
    return NOW + seconds(count)


def a_condition(kind: ConditionType, when: float, *, holds: bool = True) -> Any:
    return condition(kind, holds=holds, reason="Any", message=PLANTED, now=at(when), generation=1)


def over(phase: Phase = Phase.SUCCEEDED, *, queued_until: float | None = None, **changes: Any) -> CodeExecution:
    """Created at 0, accepted at 0.5, code from 2 to 3, unless told otherwise."""
    spec = changes.pop("spec", {})
    conditions = [a_condition(ConditionType.ACCEPTED, 0.5)]
    if queued_until is not None:
        conditions.append(a_condition(ConditionType.QUEUED, queued_until, holds=False))
    status = {"conditions": tuple(conditions), "started_at": at(2), "finished_at": at(3), "reason": "Completed"}
    return an_execution(phase=phase, status=status | {"exit_code": 0, "message": PLANTED} | changes, **spec)


def outline(stage: Stage) -> list[tuple[str, float, float]]:
    """Names and times of the parts, in seconds from the creation."""
    return [(one.name, (one.began - NOW).total_seconds(), (one.ended - NOW).total_seconds()) for one in stage.parts]


def test_in_a_pod_of_its_own() -> None:
    stage = stages_of(over(), at(0.1))
    assert outline(stage) == [("accept", 0.1, 0.5), ("start_sandbox", 0.5, 2), ("run_blocks", 2, 3)]
    assert (stage.name, stage.began, stage.ended, stage.error) == ("handle_execution", at(0.1), at(3), "")
    origin = {"codeexec.sandbox.origin": "new"}
    assert stage.parts[1].attributes == {"k8s.pod.name": "run-1-0f8fad5b"} | origin
    assert stages_of(over(pod_name=""), at(0.1)).parts[1].attributes == origin


def test_from_a_pool_without_waiting() -> None:
    execution = over(conditions=(a_condition(ConditionType.ACCEPTED, 0.5),), started_at=at(0.5), pool_name="default")
    stage = stages_of(execution, at(0.4))
    assert outline(stage) == [("accept", 0.4, 0.5), ("start_sandbox", 0.5, 0.5), ("run_blocks", 0.5, 3)]
    assert stage.parts[1].attributes["codeexec.sandbox.origin"] == "pool"
    assert stage.attributes["codeexec.pool.name"] == "default"


def test_a_pod_that_was_used_before_says_how_often() -> None:
    again = over(pool_name="default", pod_reset={"use": 3, "clean": True})
    assert stages_of(again, at(0)).attributes["codeexec.pod.use"] == 3
    assert "codeexec.pod.use" not in stages_of(over(pool_name="default"), at(0)).attributes


def test_after_waiting_in_the_queue_of_a_pool() -> None:
    stage = stages_of(over(queued_until=1.5, pool_name="default"), at(0))
    assert outline(stage)[1:3] == [("queue", 0.5, 1.5), ("start_sandbox", 1.5, 2)]


def test_in_a_session() -> None:
    stage = stages_of(over(spec=SESSION_REF), at(0))
    assert outline(stage)[1] == ("wait_for_session", 0.5, 2)
    assert stage.attributes["codeexec.session.name"] == "work-1"


@pytest.mark.parametrize(
    ("execution", "last"),
    [
        (over(Phase.DENIED, conditions=(), started_at=None, reason="PolicyViolation", exit_code=None), "accept"),
        (over(Phase.FAILED, started_at=None, reason="ImagePullFailed", exit_code=None), "start_sandbox"),
        (over(Phase.FAILED, queued_until=3, started_at=None, reason="QueueTimeout", exit_code=None), "queue"),
        (over(Phase.TIMED_OUT, reason="DeadlineExceeded", exit_code=124), "run_blocks"),
        (over(Phase.LOST, reason="OperatorRestarted", exit_code=None), "run_blocks"),
    ],
    ids=lambda value: value.status.reason if isinstance(value, CodeExecution) else "",
)
def test_a_failure_is_that_of_the_last_stage(execution: CodeExecution, last: str) -> None:
    stage = stages_of(execution, at(0))
    assert stage.error == stage.attributes["error.type"] == execution.status.reason
    assert [one.error for one in stage.parts] == [""] * (len(stage.parts) - 1) + [execution.status.reason]
    assert (stage.parts[-1].name, stage.parts[-1].ended) == (last, at(3))
    assert stage.parts[-1].attributes["error.type"] == execution.status.reason
    assert ("process.exit.code" in stage.parts[-1].attributes) == (execution.status.exit_code is not None)


def a_block(began: float, milliseconds: int, **changes: Any) -> dict[str, Any]:
    block = {"exit_code": 0, "reason": "Completed", "started_at": at(began), "duration_ms": milliseconds}
    return block | {"stdout_bytes": 5, "stderr_bytes": 0} | changes


def test_each_block_is_a_part_of_the_run() -> None:
    blocks = (a_block(2.1, 200), a_block(2.4, 100, exit_code=3, reason="NonZeroExit"))
    execution = over(Phase.FAILED, blocks=blocks, exit_code=3, reason="NonZeroExit")
    execution = execution.model_copy(update={"spec": over(spec={"blocks": [a_raw_block(), a_raw_block()]}).spec})
    run = stages_of(execution, at(0)).parts[-1]
    assert outline(run) == [("run_block", 2.1, 2.3), ("run_block", 2.4, 2.5)]
    assert [one.error for one in run.parts] == ["", "NonZeroExit"]
    assert dict(run.parts[1].attributes) == {
        "codeexec.block.index": 1,
        "codeexec.block.language": "python",
        "codeexec.stdout.size_bytes": 5,
        "codeexec.stderr.size_bytes": 0,
        "process.exit.code": 3,
        "error.type": "NonZeroExit",
    }


def test_what_comes_from_inside_a_pod_is_held_within_bounds() -> None:
    """Times of another clock, a duration that no clock has, and a reason that is no word of ours."""
    wild = (a_block(-5, 2**53), a_block(99, 1, reason=PLANTED), a_block(2, 2**53, exit_code=1))
    run = stages_of(over(blocks=wild), at(0)).parts[-1]
    assert outline(run) == [("run_block", 2, 3), ("run_block", 3, 3), ("run_block", 2, 3)]
    assert run.parts[1].error == OTHER


def test_the_attributes_are_those_of_the_client_and_some_more() -> None:
    attributes = stages_of(over(node_name="node-1", pod_name="run-1-0f8fad5b"), at(0)).attributes
    expected = {
        "k8s.namespace.name": "codeexec-sandbox",
        "k8s.pod.name": "run-1-0f8fad5b",
        "k8s.node.name": "node-1",
        "container.image.repo_digests": [IMAGE],
        "codeexec.execution.name": "run-1",
        "gen_ai.agent.name": "tester",
        "codeexec.source.agent": "tester",
        "codeexec.phase": "Succeeded",
        "process.exit.code": 0,
    }
    assert {key: attributes[key] for key in expected} == expected


def test_nothing_of_code_output_messages_or_file_names_is_in_it() -> None:
    code = f"print('{PLANTED}')".encode()
    stream = StreamStatus(text=PLANTED, sha256="0" * 64, total_bytes=len(PLANTED), truncated=False)
    artifacts = ({"path": PLANTED, "size_bytes": 1},)
    blocks = (a_block(2, 100, reason=PLANTED),)
    execution = over(stdout=stream, stderr=stream, artifacts=artifacts, blocks=blocks)
    spec = over(spec={"blocks": [a_raw_block(code, filename=PLANTED)]}).spec
    text = json.dumps(asdict(stages_of(execution.model_copy(update={"spec": spec}), at(0))), default=str)
    assert execution.spec.code_digest in text or spec.code_digest in text
    assert PLANTED not in text


@pytest.mark.parametrize(
    ("seen", "created"),
    [(0.3, 0.3), (0.7, 0.5), (60, 0.5), (-2, -2)],
    ids=["within its second", "seen after it was accepted", "after a restart", "our clock is behind"],
)
def test_the_creation_is_known_to_the_second_and_seen_more_precisely(seen: float, created: float) -> None:
    assert times_of(over(), at(seen)).created == at(created)


def test_without_anything_earlier_it_was_within_a_second() -> None:
    late = over(conditions=(a_condition(ConditionType.ACCEPTED, 5),), started_at=at(6), finished_at=at(7))
    assert times_of(late, at(4)).created == at(1)


@pytest.mark.parametrize("behind", [2, 300])
def test_an_operator_whose_clock_is_behind_that_of_the_api_server_tells_how_long_each_stage_took(behind: int) -> None:
    accepted = (a_condition(ConditionType.ACCEPTED, 0.5 - behind),)
    early = over(conditions=accepted, started_at=at(2 - behind), finished_at=at(3 - behind))
    stage = stages_of(early, at(0.1 - behind))
    lengths = [(one.name, round((one.ended - one.began).total_seconds(), 3)) for one in stage.parts]
    assert lengths == [("accept", 0.4), ("start_sandbox", 1.5), ("run_blocks", 1)]
    assert measure(early, at(0.1 - behind)).running == 1


moments = st.one_of(st.none(), st.floats(-10, 100))


def test_waiting_for_a_human_is_a_stage_of_its_own() -> None:
    asked = {"approval": ApprovalStatus(requested_at=at(0.2))}
    stage = stages_of(over(Phase.SUCCEEDED, **asked), at(0.1))
    assert outline(stage)[:3] == [("accept", 0.1, 0.2), ("await_approval", 0.2, 0.5), ("start_sandbox", 0.5, 2)]
    never = over(Phase.EXPIRED, conditions=(), started_at=None, reason="ApprovalTimeout", exit_code=None, **asked)
    stage = stages_of(never, at(0.1))
    assert outline(stage) == [("accept", 0.1, 0.2), ("await_approval", 0.2, 3)]
    assert [one.error for one in stage.parts] == ["", "ApprovalTimeout"]


@given(accepted=moments, left=moments, started=moments, finished=st.floats(-10, 100), seen=st.floats(-10, 100))
def test_whatever_the_clocks_say_no_stage_is_outside_of_its_whole(
    accepted: float | None, left: float | None, started: float | None, finished: float, seen: float
) -> None:
    conditions = [] if accepted is None else [a_condition(ConditionType.ACCEPTED, accepted)]
    conditions += [] if left is None else [a_condition(ConditionType.QUEUED, left, holds=False)]
    begun = None if started is None else at(started)
    execution = over(conditions=tuple(conditions), started_at=begun, finished_at=at(finished))
    stage = stages_of(execution, at(seen))
    known = [one for one in (accepted, left, started, finished, seen, 1.0) if one is not None]
    assert stage.began == at(min(known))
    edges = [edge for part in stage.parts for edge in (part.began, part.ended)]
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == (stage.began, stage.ended)
    assert edges[1:-1:2] == edges[2::2], "no gaps"


# --- what is measured ----------------------------------------------------------------


ASKED = {"approval": ApprovalStatus(requested_at=at(0.1))}
NEVER_BEGAN: dict[str, Any] = {"phase": Phase.DENIED, "conditions": (), "started_at": None}


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, {"until_accepted": 0.5, "until_started": 2, "running": 1}),
        (ASKED, {"until_accepted": 0.1, "until_started": 2, "running": 1, "deciding": 0.4}),
        (ASKED | NEVER_BEGAN, {"until_accepted": 0.1, "deciding": 2.9}),
        (NEVER_BEGAN, {}),
    ],
    ids=["nobody was asked", "approved", "asked and denied", "denied at once"],
)
def test_what_a_human_took_is_measured_apart_from_what_the_operator_took(
    changes: dict[str, Any], times: dict[str, float]
) -> None:
    found = asdict(measure(over(**changes), NOW))
    measured = ("until_accepted", "until_started", "until_finished", "running", "deciding")
    assert {name: found[name] for name in measured if found[name] is not None} == {"until_finished": 3, **times}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ("python", "new", "Completed")),
        (
            {"spec": {"blocks": [a_raw_block(language=name) for name in ("sh", "bash", "sh")]}},
            ("bash,sh", "new", "Completed"),
        ),
        ({"spec": {"blocks": [], "payloadRef": None, **SESSION_REF}}, ("none", "session", "Completed")),
        ({"reason": PLANTED, "pool_name": "default"}, ("python", "pool", OTHER)),
    ],
)
def test_it_is_counted_under_words_that_are_known_beforehand(changes: dict[str, Any], told: tuple[str, ...]) -> None:
    measured = measure(over(**changes), NOW)
    assert (measured.languages, measured.origin, measured.reason) == told
    assert (measured.namespace, measured.phase) == ("codeexec-sandbox", "Succeeded")


def test_the_pools_of_a_namespace_are_counted_together() -> None:
    def a_pool(namespace: str, number: int, last_refill_ms: int | None) -> PoolCount:
        return PoolCount(namespace, *(number * 10**digit for digit in range(5)), last_refill_ms)

    pools = [a_pool("a", 1, 900), a_pool("b", 2, None), a_pool("a", 3, 2500), a_pool("a", 5, None)]
    assert pools_by_namespace(pools, ["a", "b", "c"]) == {
        "a": a_pool("a", 9, 2500),
        "b": a_pool("b", 2, None),
        "c": a_pool("c", 0, None),
    }
