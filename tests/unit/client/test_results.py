"""What a finished execution means for the caller."""

import hashlib
from typing import Any

import pytest
from factories import an_execution

from codeexec_api import OutputRun, Phase, StreamStatus
from executor_client import ExecutionLost, ExecutionNotStarted
from executor_client.results import failure, output_text, result_of


def a_stream(text: str, total: int | None = None) -> StreamStatus:
    size = len(text.encode())
    return StreamStatus(
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        total_bytes=size if total is None else total,
        truncated=total is not None,
    )


def runs(*lengths: tuple[str, int]) -> tuple[OutputRun, ...]:
    return tuple(OutputRun(stream=name, characters=count) for name, count in lengths)


def ended(phase: Phase = Phase.SUCCEEDED, **status: Any) -> Any:
    return an_execution(phase=phase, status=status)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (runs(("stdout", 2), ("stderr", 2), ("stdout", 2)), "a\nX\nb\n"),
        (runs(("stderr", 2), ("stdout", 4)), "X\na\nb\n"),
        ((), "a\nb\nX\n"),
        (runs(("stdout", 2)), "a\nb\nX\n"),
        (runs(("stdout", 99), ("stderr", 1)), "a\nb\nX\n"),
    ],
    ids=["interleaved", "stderr first", "unknown", "known in part", "cut"],
)
def test_output_as_it_was_interleaved(order: tuple[OutputRun, ...], expected: str) -> None:
    status = ended(stdout=a_stream("a\nb\n"), stderr=a_stream("X\n"), output_order=order).status
    assert output_text(status) == expected


def test_what_is_missing_is_marked() -> None:
    result = result_of(ended(stdout=a_stream("é", total=5000), stderr=a_stream(""), exit_code=0))
    assert result.output == "é\n[codeexec: stdout truncated: 2 of 5000 bytes kept]"
    assert result.truncated
    assert result.stdout == "é"


@pytest.mark.parametrize(
    ("phase", "note"),
    [
        (Phase.SUCCEEDED, ""),
        (Phase.TIMED_OUT, "Timeout: why {not}"),
        (Phase.CANCELLED, "Code execution was cancelled."),
        (Phase.OUT_OF_MEMORY, "OutOfMemory: why {not}"),
        (Phase.DENIED, "Denied: why {not}"),
    ],
)
@pytest.mark.parametrize(("text", "join"), [("so far", "\n"), ("so far\n", ""), ("", "")])
def test_the_end_is_noted_behind_the_output(phase: Phase, note: str, text: str, join: str) -> None:
    status = ended(phase, message="why {not}", stdout=a_stream(text)).status
    assert output_text(status) == (text + join + note if note else text)


@pytest.mark.parametrize(
    ("phase", "reason", "error"),
    [
        (Phase.SUCCEEDED, "Completed", None),
        (Phase.FAILED, "NonZeroExit", None),
        (Phase.TIMED_OUT, "DeadlineExceeded", None),
        (Phase.CANCELLED, "CancelRequested", None),
        (Phase.OUT_OF_MEMORY, "OutOfMemory", None),
        (Phase.DENIED, "PolicyViolation", None),
        (Phase.FAILED, "ImagePullFailed", ExecutionNotStarted),
        (Phase.FAILED, "QuotaExceeded", ExecutionNotStarted),
        (Phase.FAILED, "StartTimeout", ExecutionNotStarted),
        (Phase.FAILED, "PodRefused", ExecutionNotStarted),
        (Phase.FAILED, "PayloadMismatch", ExecutionNotStarted),
        (Phase.FAILED, "RunnerFailed", ExecutionLost),
        (Phase.LOST, "PodLost", ExecutionLost),
        (Phase.LOST, "OperatorRestarted", ExecutionLost),
    ],
)
def test_only_what_is_not_the_codes_doing_is_an_error(phase: Phase, reason: str, error: type | None) -> None:
    execution = ended(phase, reason=reason, message="what to do")
    found = failure(execution)
    assert (type(found) if found else None) is error
    if error:
        assert str(found) == f"execution run-1: {reason}: what to do"
        with pytest.raises(error):
            result_of(execution)


@pytest.mark.parametrize(
    ("phase", "recorded", "expected"),
    [
        (Phase.SUCCEEDED, 0, 0),
        (Phase.TIMED_OUT, 124, 124),
        (Phase.OUT_OF_MEMORY, 137, 137),
        (Phase.DENIED, None, 1),
        (Phase.CANCELLED, None, 1),
        (Phase.CANCELLED, 130, 130),
    ],
)
def test_exit_codes(phase: Phase, recorded: int | None, expected: int) -> None:
    assert result_of(ended(phase, exit_code=recorded)).exit_code == expected
