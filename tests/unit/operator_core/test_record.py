"""What is recorded when the whole result doesn't fit into the object, or when clocks differ."""

import hashlib
from datetime import UTC, datetime

import pytest
from factories import (
    NOW,
    a_finished_transcript,
    a_policy,
    a_raw_block,
    a_session,
    a_transcript,
    an_execution,
    block_end,
    seconds,
    the_end,
)

from codeexec_api import (
    BlockStatus,
    CodeExecution,
    CodeExecutionStatus,
    CodeSession,
    ConditionType,
    Event,
    Phase,
    SessionPhase,
    find_condition,
)
from codeexec_api.records import within_run
from codeexec_operator.core import session_record
from codeexec_operator.core.observed import Observed, ObservedSession
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.record import finish, without_output


def test_output_is_left_out_visibly_and_everything_else_is_kept() -> None:
    stdout = a_finished_transcript(text="much").stream("stdout")
    status = CodeExecutionStatus(phase=Phase.SUCCEEDED, message="done", exit_code=0, finished_at=NOW, stdout=stdout)
    result = without_output(status)
    assert result.stdout
    assert (result.stdout.text, result.stdout.total_bytes, result.stdout.truncated) == ("", 4, True)
    assert (result.stdout.kept_bytes, result.stdout.sha256) == (0, hashlib.sha256(b"").hexdigest())
    assert result.stderr is None
    assert (result.phase, result.exit_code, result.finished_at) == (Phase.SUCCEEDED, 0, NOW)
    assert result.message.startswith("done; the output was left out")


def test_what_is_kept_elsewhere_stays_as_it_was_described() -> None:
    transcript = a_finished_transcript(text="much" * 100_000)
    transcript.finish()
    stdout = transcript.stream("stdout")
    assert stdout.referenced
    result = without_output(CodeExecutionStatus(phase=Phase.SUCCEEDED, message="done", stdout=stdout))
    assert result.stdout == stdout.model_copy(update={"text": ""})


def test_a_long_message_stays_within_what_a_record_takes() -> None:
    status = without_output(CodeExecutionStatus(phase=Phase.SUCCEEDED, message="x" * 4096))
    assert CodeExecutionStatus.model_validate(status.dump()).message == "x" * 4096


# --- clocks ---

DONE = Ending(Event.EXITED_ZERO, None, "all blocks ended with exit code 0")


def a_block(began: float, lasted: float = 2) -> BlockStatus:
    times = {"started_at": NOW + seconds(began), "duration_ms": round(lasted * 1000)}
    return BlockStatus(exit_code=0, reason="Completed", stdout_bytes=0, stderr_bytes=0, **times)


def begun(*began: float, whole: float = 10) -> list[float]:
    """When blocks of a run count as begun that by their own clock began then, in seconds from the start of the run."""
    blocks = within_run([a_block(one) for one in began], NOW, NOW + seconds(whole))
    return [(one.started_at - NOW).total_seconds() for one in blocks]


def test_blocks_of_a_node_whose_clock_is_right_stay_as_they_were_reported() -> None:
    assert begun(0, 2.5, 8) == [0, 2.5, 8]
    assert begun(3, whole=5) == [3], "it may last until the end of the run"
    assert begun() == []


@pytest.mark.parametrize("skew", [-300, -0.5, 1, 9, 300])
def test_blocks_of_a_node_whose_clock_is_wrong_are_put_into_their_run(skew: float) -> None:
    assert begun(0.25 + skew, 3.25 + skew, 6.25 + skew, whole=8.5) == [0, 3, 6]


@pytest.mark.parametrize("wild", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_whatever_a_runner_says_they_are_within_their_run(wild: datetime) -> None:
    blocks = [a_block(0), a_block(0).model_copy(update={"started_at": wild, "duration_ms": 2**53})]
    for order in (blocks, blocks[::-1]):
        assert all(NOW <= one.started_at <= NOW + seconds(5) for one in within_run(order, NOW, NOW + seconds(5)))


@pytest.mark.parametrize("node", [-300, 0, 300], ids="{:+d}s".format)
def test_what_a_record_says_of_times_is_by_the_clock_of_the_operator(node: int) -> None:
    transcript = a_transcript(block_end(startedAt=NOW.timestamp() + node, durationMs=1500), the_end())
    execution = an_execution(phase=Phase.RUNNING, blocks=[a_raw_block()])
    seen = Observed(execution=execution, policy=a_policy(), since=NOW, transcript=transcript)
    status = finish(seen, NOW + seconds(1.5), DONE).status
    assert isinstance(status, CodeExecutionStatus)
    assert (status.started_at, status.finished_at, status.summary.duration) == (NOW, NOW + seconds(1.5), "1.50s")
    succeeded = find_condition(status.conditions, ConditionType.SUCCEEDED)
    assert succeeded
    assert succeeded.status == "True"
    assert status.blocks[0].started_at == NOW


def test_nothing_ends_before_it_began_though_another_operator_whose_clock_was_ahead_began_it() -> None:
    ahead = NOW + seconds(300)
    execution: CodeExecution = an_execution(phase=Phase.RUNNING, status={"started_at": ahead})
    seen = Observed(execution=execution, policy=a_policy(), since=NOW, transcript=a_finished_transcript())
    status = finish(seen, NOW, DONE).status
    assert isinstance(status, CodeExecutionStatus)
    assert (status.finished_at, status.summary.duration, status.blocks[0].started_at) == (ahead, "0.00s", ahead)
    session: CodeSession = a_session(phase=SessionPhase.READY, status={"started_at": ahead})
    over = session_record.end(ObservedSession(session, a_policy(), NOW), NOW, Ending(Event.ENDED, None, "ended")).status
    assert over
    assert over.ended_at == ahead  # type: ignore[union-attr]
