"""What arrives from the runner: complete or not trusted."""

import itertools
import json
from typing import Any

import pytest
from factories import (
    NO_OUTPUT,
    TARGET,
    UID,
    a_ready_transcript,
    a_transcript,
    block_end,
    frames_to_bytes,
    output,
    readiness,
    the_end,
)
from hypothesis import example, given
from hypothesis import strategies as st

from codeexec_operator.core.egress import Target
from codeexec_operator.core.transcript import MAX_LINE_BYTES, MAX_RUNS, Readiness, Transcript, fit

pieces = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(min_size=1, max_size=20)), max_size=12)


def a_run(written: list[tuple[str, str]]) -> bytes:
    """The frames of a run with one block that writes these pieces."""
    stdout, stderr = ("".join(text for name, text in written if name == stream) for stream in ("stdout", "stderr"))
    frames = [output(text, name) for name, text in written]
    return frames_to_bytes(*frames, block_end(), the_end(stdout, stderr))


def state(transcript: Transcript) -> tuple[Any, ...]:
    return (
        transcript.done,
        transcript.problem,
        transcript.blocks,
        transcript.stream("stdout"),
        transcript.stream("stderr"),
        transcript.order(),
    )


@given(written=pieces, cuts=st.lists(st.integers(0, 4000)))
def test_any_chunking_gives_the_same(written: list[tuple[str, str]], cuts: list[int]) -> None:
    data = a_run(written)
    whole, cut = Transcript(), Transcript()
    whole.feed(data, UID)
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(marks):
        cut.feed(data[start:end], UID)
    assert state(cut) == state(whole)
    assert whole.done
    assert not whole.problem


@given(written=pieces)
def test_the_order_tells_how_the_streams_were_interleaved(written: list[tuple[str, str]]) -> None:
    transcript = Transcript()
    transcript.feed(a_run(written), UID)
    rest = {name: transcript.stream(name).text for name in ("stdout", "stderr")}
    seen = ""
    for run in transcript.order():
        seen += rest[run.stream][: run.characters]
        rest[run.stream] = rest[run.stream][run.characters :]
    assert seen == "".join(text for _, text in written)
    assert rest == {"stdout": "", "stderr": ""}
    names = [run.stream for run in transcript.order()]
    assert all(one != other for one, other in itertools.pairwise(names))


def test_a_complete_run() -> None:
    frames = [output("a\n"), output("b\n", "stderr"), block_end(), output("c\n"), block_end(1, 3, "NonZeroExit")]
    transcript = a_transcript(*frames, the_end("a\nc\n", "b\n"))
    assert transcript.done
    assert [block.exit_code for block in transcript.blocks] == [0, 3]
    stdout = transcript.stream("stdout")
    assert (stdout.text, stdout.total_bytes, stdout.truncated) == ("a\nc\n", 4, False)


def test_what_the_runner_left_out_is_marked_as_truncated() -> None:
    end = the_end("ab")
    end["stdout"]["bytes"] = 5
    stdout = a_transcript(output("ab"), block_end(), end).stream("stdout")
    assert (stdout.text, stdout.total_bytes, stdout.truncated) == ("ab", 5, True)


def test_what_does_not_fit_into_the_record_is_marked_as_truncated() -> None:
    text = "x" * 500_000
    stdout = a_transcript(output(text), block_end(), the_end(text)).stream("stdout")
    assert len(stdout.text) < 500_000
    assert (stdout.total_bytes, stdout.truncated) == (500_000, True)


GOOD = (output("a"), block_end(), the_end("a"))
FAULTY = {
    "another execution's id": (output("a") | {"id": "other"}, block_end(), the_end("a")),
    "no id": (output("a") | {"id": None}, block_end(), the_end("a")),
    "a frame left out": (output("a"), block_end() | {"seq": 2}, the_end("a")),
    "a frame twice": (output("a"), output("a") | {"seq": 0}),
    "another stream": (output("a", "stdlog"),),
    "output that is no text": (output("a") | {"data": 7},),
    "half a surrogate": (output("a") | {"data": "\ud800"},),
    "output that is empty": (output(""), block_end(), the_end()),
    "wrong digest": (output("b"), block_end(), the_end("a")),
    "output kept back": (block_end(), the_end("a")),
    "an end without a block": (the_end(),),
    "an end without totals": (block_end(), {"done": True}),
    "a negative total": (block_end(), the_end() | {"stdout": NO_OUTPUT | {"bytes": -1}}),
    "a total beyond int64": (block_end(), the_end() | {"stdout": NO_OUTPUT | {"bytes": 2**63}}),
    "a total beyond what JSON numbers hold": (block_end(), the_end() | {"stdout": NO_OUTPUT | {"bytes": 2**60}}),
    "a total that is no whole number": (block_end(), the_end() | {"stdout": NO_OUTPUT | {"bytes": 0.5}}),
    "blocks out of order": (block_end(1), the_end()),
    "the same block twice": (block_end(0), block_end(0), the_end()),
    "an exit code that is no number": (block_end(exit_code="zero"), the_end()),
    "an exit code beyond int64": (block_end(exit_code=2**63), the_end()),
    "a negative duration": (block_end(durationMs=-1), the_end()),
    "a start beyond all time": (block_end(startedAt=1e30), the_end()),
    "a long reason": (block_end(reason="x" * 65), the_end()),
    "more blocks than there can be": (*(block_end(index) for index in range(65)), the_end()),
    "the runner's own error": ({"error": "OSError: no space"},),
}


def lines(*frames: dict[str, Any]) -> bytes:
    """As `frames_to_bytes`, but also for text that is not UTF-8."""
    numbered = ({"id": UID, "seq": number} | frame for number, frame in enumerate(frames))
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in numbered)


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_transcript_is_never_done_and_says_why(case: str) -> None:
    transcript = Transcript()
    transcript.feed(lines(*FAULTY[case]), UID)
    assert transcript.problem.startswith("the runner ")
    assert not transcript.done
    state(transcript)  # what arrived until then can be recorded


@pytest.mark.parametrize(
    "line", [b"hello", b"\xff\xfe", b"[]", b"null", b"7", b'"text"', b"{}", b"[" * 100_000, b"1" * 10_000]
)
def test_a_line_that_is_no_frame_is_a_problem(line: bytes) -> None:
    transcript = Transcript()
    transcript.feed(line + b"\n", UID)
    assert transcript.problem


def test_a_line_without_an_end_is_a_problem_before_it_fills_the_memory() -> None:
    transcript = Transcript()
    for _ in range(MAX_LINE_BYTES // 65_536 + 2):
        transcript.feed(b"x" * 65_536, UID)
    assert "a line of more than" in transcript.problem


@given(data=st.binary(max_size=200))
def test_any_bytes_are_taken_without_an_exception(data: bytes) -> None:
    transcript = Transcript()
    transcript.feed(data, UID)
    state(transcript)
    assert not transcript.done


def test_a_runner_reports_what_it_has_found_out() -> None:
    other = Target("dns", "10.96.0.10", 53, "UDP")
    transcript = a_ready_transcript(targets=(TARGET, other))
    assert transcript.ready == Readiness(("Seccomp", "Landlock"), {TARGET: False, other: False})
    transcript.feed(a_run([("stdout", "x")]), UID)
    assert transcript.done
    assert not transcript.problem


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": ["Magic"]},
        {"layers": ["Seccomp"] * 3},
        {"layers": None},
        {"egress": [{"name": "dns"}]},
        {"egress": [{**TARGET.dump(), "port": 0, "answered": False}]},
        {"egress": [{**TARGET.dump()}]},
        {"egress": [{**TARGET.dump(), "answered": False}] * 17},
    ],
)
def test_a_report_that_is_none_is_a_problem(changes: dict[str, Any]) -> None:
    transcript = Transcript()
    transcript.feed(json.dumps(readiness() | changes).encode() + b"\n", UID)
    assert transcript.ready is None
    assert transcript.problem


def test_a_report_after_the_first_frame_is_none() -> None:
    transcript = a_transcript(output("x"))
    transcript.feed(json.dumps(readiness()).encode() + b"\n", UID)
    assert transcript.ready is None
    assert transcript.problem


def test_nothing_counts_after_the_end() -> None:
    transcript = a_transcript(*GOOD)
    before = state(transcript)
    transcript.feed(lines(output("more"), {"error": "late"}), UID)
    assert state(transcript) == before


def test_nothing_counts_after_a_problem() -> None:
    transcript = a_transcript(output("a"), output("b") | {"seq": 9})
    problem = transcript.problem
    transcript.feed(frames_to_bytes(*GOOD), UID)
    assert transcript.problem == problem
    assert transcript.stream("stdout").text == "a"


def test_the_number_of_runs_is_bounded() -> None:
    frames = [output("x", ("stdout", "stderr")[number % 2]) for number in range(MAX_RUNS + 10)]
    order = a_transcript(*frames).order()
    assert len(order) == MAX_RUNS
    assert {run.characters for run in order} == {1}


def test_output_without_the_runners_totals_is_marked_as_truncated() -> None:
    transcript = a_transcript(output("all there was, as far as anybody knows"))
    assert transcript.stream("stdout").truncated


def go_json_size(character: str) -> int:
    """Bytes that Go's encoding/json writes for a character; for \\b and \\f, what versions before 1.22 write."""
    if character in '\n\r\t"\\':
        return 2
    if character < " " or character in "<>&\u2028\u2029":
        return 6
    return len(character.encode())


awkward = st.text(st.one_of(st.sampled_from('\n\t"\\<>&\x00\x1f\u2028é€😀a'), st.characters(codec="utf-8")))


@given(text=awkward, budget=st.integers(0, 60))
@example(text="1\n" * 40, budget=60)
def test_fit_gives_the_longest_start_within_the_budget(text: str, budget: int) -> None:
    kept = fit(text, budget)
    assert text.startswith(kept)
    size = sum(map(go_json_size, kept))
    assert size <= budget
    if kept != text:
        assert size + go_json_size(text[len(kept)]) > budget
