"""What a finished execution means for the caller."""

import hashlib
from typing import Any

import pytest
from factories import SESSION_REF, an_execution

from codeexec_api import ArtifactStatus, CodeSession, Grant, OutputRun, Phase, SessionPhase, StreamStatus
from codeexec_api.packing import pack
from codeexec_api.v1alpha1.approval import ApprovalStatus
from executor_client import (
    Artifact,
    ExecutionLost,
    ExecutionNotStarted,
    FileTransferError,
    OutputChunk,
    OutputUnavailable,
    SessionDenied,
    SessionEnded,
)
from executor_client.model.results import (
    Contents,
    artifact_content,
    failure,
    interleaved,
    not_approved_in_time,
    result_of,
    session_failure,
)
from executor_client.model.words import Caller


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
        (runs(("stdout", 1), ("stderr", 1), ("stdout", 1), ("stderr", 1), ("stdout", 1)), "aX\n\nb\n"),
    ],
    ids=["interleaved", "stderr first", "unknown", "known in part", "cut", "known in small pieces"],
)
def test_output_as_it_was_interleaved(order: tuple[OutputRun, ...], expected: str) -> None:
    result = result_of(ended(stdout=a_stream("a\nb\n"), stderr=a_stream("X\n"), output_order=order))
    assert result.output == expected
    assert (result.stdout, result.stderr) == ("a\nb\n", "X\n")


def test_what_is_missing_is_marked() -> None:
    result = result_of(ended(stdout=a_stream("é", total=5000), stderr=a_stream(""), exit_code=0))
    assert result.output == "é\n[codeexec: stdout truncated: 2 of 5000 bytes kept]"
    assert result.truncated
    assert result.stdout == "é"


def test_what_may_be_missing_is_marked() -> None:
    """All that anybody knows of was kept, but the runner did not say that it was all."""
    assert result_of(ended(stdout=a_stream("é", total=2))).output == "é\n[codeexec: stdout may lack its end]"


def test_the_result_names_the_session() -> None:
    assert result_of(an_execution(phase=Phase.SUCCEEDED, **SESSION_REF)).session == "work-1"
    assert result_of(ended()).session is None


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
    result = result_of(ended(phase, message="why {not}", stdout=a_stream(text)))
    assert result.output == (text + join + note if note else text)


MEMORY = "the code needed more memory than spec.limits.memory"


@pytest.mark.parametrize(
    ("caller", "words"), [(Caller.PYTHON, 'Limits(memory="256Mi")'), (Caller.COMMAND_LINE, "--memory 256Mi")]
)
def test_the_end_is_told_in_the_words_of_the_caller(caller: Caller, words: str) -> None:
    result = result_of(ended(Phase.OUT_OF_MEMORY, message=MEMORY, stdout=a_stream("so far")), caller=caller)
    assert result.message == f"the code needed more memory than {words}"
    assert result.output == f"so far\nOutOfMemory: {result.message}"
    broken = ended(Phase.FAILED, reason="QuotaExceeded", message=MEMORY)
    assert str(failure(broken, caller)) == f"execution run-1: QuotaExceeded: {result.message}"
    spec = {"source": {"agent": "a"}, "limits": {"memory": "256Mi"}}
    status = {"phase": "Failed", "reason": "PodRefused", "message": MEMORY}
    session = CodeSession.parse({"metadata": {"name": "s-1"}, "spec": spec, "status": status})
    assert str(session_failure(session, caller)) == f"session s-1: PodRefused: {result.message}"


def test_what_a_human_has_to_approve_is_told_in_the_words_of_the_policy() -> None:
    asked = ended(Phase.AWAITING_APPROVAL, message=MEMORY)
    assert result_of(asked).output == f"Not run yet: {MEMORY}. It runs as soon as it is approved."


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
        (Phase.DENIED, "SessionEnded", SessionEnded),
        (Phase.DENIED, "SessionNotFound", SessionEnded),
        (Phase.DENIED, "SessionMismatch", None),
        (Phase.DENIED, "EgressNotEnforced", ExecutionNotStarted),
        (Phase.DENIED, "IsolationNotEnforced", ExecutionNotStarted),
        (Phase.FAILED, "FileRefused", FileTransferError),
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


def test_nothing_is_lost_where_the_code_did_not_start() -> None:
    found = failure(ended(Phase.FAILED, reason="RunnerFailed", message="no container", started_at=None))
    assert isinstance(found, ExecutionNotStarted)


@pytest.mark.parametrize(
    ("phase", "recorded", "expected"),
    [
        (Phase.SUCCEEDED, 0, 0),
        (Phase.TIMED_OUT, 124, 124),
        (Phase.OUT_OF_MEMORY, 137, 137),
        (Phase.DENIED, None, 1),
        (Phase.DENIED, 0, 1),
        (Phase.CANCELLED, None, 1),
        (Phase.CANCELLED, 130, 130),
    ],
)
def test_exit_codes(phase: Phase, recorded: int | None, expected: int) -> None:
    assert result_of(ended(phase, exit_code=recorded)).exit_code == expected


GRANTS = (Grant(field="spec.limits.memory", value="4Gi"), Grant(field="spec.blocks", value="9"))


@pytest.mark.parametrize(
    ("approval", "asked"),
    [(ApprovalStatus(grants=GRANTS), "spec.limits.memory=4Gi, spec.blocks=9"), (None, "nothing")],
)
def test_who_gave_up_waiting_for_approval_is_told_of_what(approval: ApprovalStatus | None, asked: str) -> None:
    cancelled = ended(Phase.CANCELLED, reason="CancelRequested", started_at=None, approval=approval)
    result = not_approved_in_time(result_of(cancelled), cancelled, 2.5)
    assert (result.phase, result.reason, result.exit_code) == (Phase.CANCELLED, "ApprovalTimeout", 1)
    assert result.message == f"nobody approved {asked} within 2.5 s, so the execution was cancelled. Nothing was run"
    assert result.output == f"Denied: {result.message}"


@pytest.mark.parametrize(
    ("phase", "reason", "error"),
    [
        ("Pending", "", None),
        ("Starting", "PodRequested", None),
        ("Ready", "SandboxReady", None),
        ("Denied", "PolicyViolation", SessionDenied),
        ("Denied", "EgressNotEnforced", ExecutionNotStarted),
        ("Denied", "IsolationNotEnforced", ExecutionNotStarted),
        ("Failed", "ImagePullFailed", ExecutionNotStarted),
        ("Ended", "IdleTimeout", SessionEnded),
        ("Lost", "PodLost", SessionEnded),
    ],
)
def test_what_a_session_ended_with(phase: str, reason: str, error: type | None) -> None:
    status = {"phase": SessionPhase(phase), "reason": reason, "message": "what to do"}
    session = CodeSession.parse({"metadata": {"name": "s-1"}, "spec": {"source": {"agent": "a"}}, "status": status})
    found = session_failure(session)
    assert (type(found) if found else None) is error
    if found:
        assert str(found) == f"session s-1: {reason}: what to do"


def referenced(content: bytes, **changes: Any) -> StreamStatus:
    """A stream of which the record has the start only."""
    known = {"sha256": hashlib.sha256(content).hexdigest(), "kept_bytes": len(content), "total_bytes": len(content)}
    return StreamStatus(**{"text": "start", "truncated": False, "referenced": True, **known, **changes})


def fetched(path: str, content: bytes, **changes: Any) -> ArtifactStatus:
    known = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "fetched": True}
    return ArtifactStatus(**{"path": path, **known, **changes})


def test_parts_are_put_together_in_order() -> None:
    long, other = "é".encode() * 3, b"E1E2"
    parts = [  # the first one ends in the middle of a character
        {"stdout": long[:3], "stderr": other[:2], "order": b'[["stdout",3],["stderr",2]]', "artifact-1": b"da"},
        {"stdout": long[3:], "stderr": other[2:], "order": b'[["stderr",1],["stdout",3]]', "artifact-1": b"ta"},
    ]
    files = (fetched("a", b"", fetched=False), fetched("b/c", b"data"), fetched("empty", b""))
    execution = ended(exit_code=0, stdout=referenced(long), stderr=referenced(other), artifacts=files)
    result = result_of(execution, Contents.join(parts))
    assert (result.stdout, result.stderr, result.truncated) == ("ééé", "E1E2", False)
    assert result.output == "éE1E" + "éé" + "2"
    assert result.files == {"b/c": b"data", "empty": b""}
    assert [(one.path, one.size_bytes, one.fetched) for one in result.artifacts] == [
        ("a", 0, False),
        ("b/c", 4, True),
        ("empty", 0, True),
    ]
    assert isinstance(result.artifacts[0], Artifact)
    assert artifact_content(execution, "b/c", Contents.join(parts)) == b"data"
    with pytest.raises(FileTransferError, match=r"execution run-1 has not fetched 'a'; it has fetched: b/c, empty"):
        artifact_content(execution, "a", Contents.join(parts))


def test_one_stream_in_parts_and_the_other_in_the_record() -> None:
    contents = Contents.join([{"stdout": b"12", "order": b'[["stdout",2],["stderr",0]]'}])
    status = ended(stdout=referenced(b"12"), stderr=a_stream("E")).status
    assert interleaved(status, contents) == [OutputChunk("stdout", "12"), OutputChunk("stderr", "E")]


def test_a_referenced_stream_that_is_truncated_says_how_much_there_is() -> None:
    execution = ended(stdout=referenced(b"12", total_bytes=50, truncated=True))
    result = result_of(execution, Contents.join([{"stdout": b"12"}]))
    assert result.output == "12\n[codeexec: stdout truncated: 2 of 50 bytes kept]"


def test_parts_may_be_compressed() -> None:
    parts = [
        {
            "stdout.gz": pack(b"1") + pack(b"2"),
            "order.gz": pack(b'[["stdout",2],["stderr",1]]'),
            "stderr.gz": pack(b"E"),
        },
        {"stdout": b"3", "order": b'[["stdout",1]]'},
    ]
    execution = ended(exit_code=0, stdout=referenced(b"123"), stderr=referenced(b"E"))
    assert result_of(execution, Contents.join(parts)).output == "12E3"


def test_no_more_is_read_than_an_execution_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_client.model.results._MOST_BYTES", 10)
    with pytest.raises(OutputUnavailable, match=r"the stored stderr is not readable: more than 4 bytes"):
        Contents.join([{"stdout.gz": pack(b"x" * 6)}, {"stderr.gz": pack(b"x" * 5)}])
    assert Contents.join([{"stdout.gz": pack(b"x" * 11)}], stored=True).values == {"stdout": b"x" * 11}
    monkeypatch.setattr("executor_client.model.results._MOST_STORED_BYTES", 10)
    with pytest.raises(OutputUnavailable, match=r"more than 10 bytes"):
        Contents.join([{"stdout.gz": pack(b"x" * 11)}], stored=True)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [{"stdout": b"1"}],
        [{"stdout": b"13"}],
        [{"stdout": b"12"}, {"stdout": b"3"}],
        [{"stdout": b"12", "order": b"no json"}],
        [{"stdout": b"12", "order": b'[["stdout",-1]]'}],
        [{"stdout": b"12", "order": b'[["stdin",1]]'}],
        [{"stdout": b"12", "order": b'{"a":1}'}],
        [{"stdout": b"12", "order": b"[1]"}],
        [{"stdout.gz": b"12"}],
        [{"stdout.gz": pack(b"12")[:-1]}],
        [{"stdout.gz": pack(b"12") + b"3"}],
        [{"stdout.gz": pack(b"12"), "order.gz": pack(b"no json")}],
    ],
    ids=range(13),
)
def test_what_is_not_as_the_record_says_is_an_error(parts: list[dict[str, bytes]]) -> None:
    with pytest.raises(OutputUnavailable):
        result_of(ended(exit_code=0, stdout=referenced(b"12")), Contents.join(parts))


def test_a_file_that_is_not_as_the_record_says_is_an_error() -> None:
    execution = ended(exit_code=0, artifacts=(fetched("a", b"12"),))
    with pytest.raises(OutputUnavailable, match=r"the stored 'a' does not match the record: 2 bytes .* of 2"):
        result_of(execution, Contents.join([{"artifact-0": b"13"}]))


def test_what_is_exactly_as_much_as_can_be_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the order is not that of the output."""
    monkeypatch.setattr("executor_client.model.results._MOST_ORDER_BYTES", 2)
    monkeypatch.setattr("executor_client.model.results._MOST_BYTES", 10)
    assert Contents.join([{"order": b"[]", "stdout": b"x" * 8}]).values == {"stdout": b"x" * 8}
    with pytest.raises(OutputUnavailable, match=r"stdout is not readable: it has more than 8 bytes"):
        Contents.join([{"order": b"[]", "stdout": b"x" * 9}])


@pytest.mark.parametrize(
    "order",
    [pack(b"[" + b'["stdout",0],' * 100_000 + b'["stdout",0]]'), b"[" * 200_000],
    ids=["too large when unpacked", "too deep"],
)
def test_an_order_that_would_take_much_memory_is_refused(order: bytes) -> None:
    key = "order.gz" if order[0] == 0x1F else "order"
    with pytest.raises(OutputUnavailable, match="the stored order"):
        Contents.join([{key: order}], stored=True)
