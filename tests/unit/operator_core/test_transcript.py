"""What arrives from the runner: complete or not trusted."""

import base64
import hashlib
import itertools
from dataclasses import replace
from typing import Any

import pytest
from factories import (
    BOOT_ID,
    NO_OUTPUT,
    NOW,
    TARGET,
    UID,
    a_piece,
    a_report,
    a_transcript,
    an_artifact,
    block_end,
    compressed,
    numbered,
    output,
    the_end,
)
from hypothesis import example, given
from hypothesis import strategies as st

from codeexec_api.packing import pack
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_BLOCKS, MAX_EGRESS_TARGETS
from codeexec_operator.core.egress import Target
from codeexec_operator.core.frames import MAX_LINE_BYTES, MAX_PIECE_BYTES, Lines
from codeexec_operator.core.output_parts import fit
from codeexec_operator.core.output_place import CONFIG_MAPS
from codeexec_operator.core.readiness import Readiness, readiness
from codeexec_operator.core.transcript import MAX_RUNS, Transcript

pieces = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(min_size=1, max_size=20)), max_size=12)


def a_run(written: list[tuple[str, str]]) -> Transcript:
    """Of one block that writes these pieces."""
    stdout, stderr = ("".join(text for name, text in written if name == stream) for stream in ("stdout", "stderr"))
    frames = [output(text, name) for name, text in written]
    return a_transcript(*frames, block_end(), the_end(stdout, stderr))


def state(transcript: Transcript) -> tuple[Any, ...]:
    return (
        transcript.done,
        transcript.problem,
        transcript.fault,
        transcript.blocks,
        transcript.stream("stdout"),
        transcript.stream("stderr"),
        transcript.order(),
        transcript.kept_artifacts(),
    )


@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))),
    cuts=st.lists(st.integers(0, 400)),
)
def test_any_chunking_gives_the_same_lines(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"begun"
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    taken = Lines()
    assert [line for start, end in itertools.pairwise(marks) for line in taken.feed(data[start:end])] == lines
    assert taken.feed(b"\n") == [b"begun"]


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    lines = Lines()
    for _ in range(MAX_LINE_BYTES // 65_536):
        assert lines.feed(b"x" * 65_536) == []
    with pytest.raises(ValueError, match="a line of more than"):
        lines.feed(b"x")


@given(cuts=st.lists(st.integers(0, 40)))
def test_a_long_line_that_nobody_waits_for_is_left_out_and_the_next_is_not(cuts: list[int]) -> None:
    lines, data = Lines(), b"one\n" + b"x" * 20 + b"\ntwo\n"
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    taken: list[bytes] = []
    for start, end in itertools.pairwise(marks):
        taken += lines.feed(data[start:end], skip_beyond=10)
        assert lines.pending <= 10
    assert [line for line in taken if len(line) < 20] == [b"one", b"two"]


def test_a_line_that_is_just_as_long_as_it_may_be_is_not_left_out() -> None:
    lines = Lines()
    assert lines.feed(b"x" * 10, skip_beyond=10) == []
    assert lines.feed(b"\n", skip_beyond=10) == [b"x" * 10]


@given(written=pieces)
def test_the_order_tells_how_the_streams_were_interleaved(written: list[tuple[str, str]]) -> None:
    transcript = a_run(written)
    assert transcript.done
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


BOMB = MAX_PIECE_BYTES + 1


def gzip64(data: bytes) -> dict[str, str]:
    return {"gzip64": base64.b64encode(data).decode()}


def packed(data: bytes) -> dict[str, str]:
    return {"stream": "stdout", **gzip64(data)}


GOOD = (output("a"), block_end(), the_end("a"))
FAULTY = {
    "another execution's id": (output("a") | {"id": "other"}, block_end(), the_end("a")),
    "no id": (output("a") | {"id": None}, block_end(), the_end("a")),
    "a frame left out": (output("a"), block_end() | {"seq": 2}, the_end("a")),
    "a frame twice": (output("a"), output("a") | {"seq": 0}),
    "another stream": (output("a", "stdlog"),),
    "output that is no text": (output("a") | {"data": 7},),
    "half a surrogate": (output("a") | {"data": "\ud800"},),
    "output that is base64 but for a character": ({"stream": "stdout", "data64": "Y?Q=="}, block_end(), the_end("a")),
    "output that is empty": (output(""), block_end(), the_end()),
    "output that is not gzip": (packed(b"a"), block_end(), the_end("a")),
    "gzip that ends too early": (packed(pack(b"a")[:-1]), block_end(), the_end("a")),
    "gzip with something behind it": (packed(pack(b"a") + b"b"), block_end(), the_end("a")),
    "gzip with another content than its sum": (packed(pack(b"a")[:-8] + pack(b"b")[-8:]), block_end(), the_end("a")),
    "gzip of more than a frame may hold": (packed(pack(b"a" * BOMB)), block_end(), the_end("a" * BOMB)),
    "gzip of more than that in two members": (packed(pack(b"a" * (BOMB - 1)) + pack(b"aa")), block_end(), the_end()),
    "gzip in two members": (packed(pack(b"a") + pack(b"b")), block_end(), the_end("ab")),
    "gzip in base64 but for a character": (
        {"stream": "stdout", "gzip64": "?" + gzip64(pack(b"a"))["gzip64"]},
        block_end(),
        the_end("a"),
    ),
    "gzip of what is no text": (packed(pack(b"\xff")), block_end(), the_end()),
    "gzip of nothing": (packed(pack(b"")), block_end(), the_end()),
    "a file of gzip that is too large": (an_artifact(0, "a", b"x"), {"file": 0} | gzip64(pack(b"x" * BOMB)), the_end()),
    "wrong digest": (output("b"), block_end(), the_end("a")),
    "output kept back": (block_end(), the_end("a")),
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
    "a file out of order": (an_artifact(1, "a", b""), the_end()),
    "a file without a name": (an_artifact(0, "a", b"") | {"path": None}, the_end()),
    "a file outside the workspace": (an_artifact(0, "../a", b""), the_end()),
    "a file with an absolute name": (an_artifact(0, "/etc/passwd", b""), the_end()),
    "a file with half a surrogate in its name": (an_artifact(0, "\udcff", b""), the_end()),
    "a file of negative size": (an_artifact(0, "a", b"", size=-1), the_end()),
    "a file with a digest that is none": (an_artifact(0, "a", b"", sha256="x"), the_end()),
    "more files than there can be": (
        *(an_artifact(index, f"{index:03}", b"") for index in range(MAX_ARTIFACTS + 1)),
        the_end(),
    ),
    "content without a file": (a_piece(0, b"x"), the_end()),
    "content of another file": (an_artifact(0, "a", b"x"), an_artifact(1, "b", b"x"), a_piece(0, b"x"), the_end()),
    "content that is not base64": (an_artifact(0, "a", b"x"), a_piece(0, b"x") | {"data64": "?"}, the_end()),
    "content that is base64 but for a character": (
        an_artifact(0, "a", b"x"),
        a_piece(0, b"x") | {"data64": "e?A=="},
        the_end(),
    ),
    "content with another digest": (an_artifact(0, "a", b"x"), a_piece(0, b"y"), the_end()),
    "content of another size": (an_artifact(0, "a", b"x", size=2), a_piece(0, b"x"), the_end()),
    "content that is cut short": (an_artifact(0, "a", b"xy"), a_piece(0, b"x"), an_artifact(1, "b", b""), the_end()),
    "content without an announced digest": (an_artifact(0, "a", b"x", sha256=None), a_piece(0, b"x"), the_end()),
    "a negative number of files left out": (the_end(artifactsOmitted=-1),),
    "a number of files left out that is none": (the_end(artifactsOmitted=True),),
    "a fault without a message": ({"fault": {"reason": "FileRefused"}},),
    "content of the file before the first": ({"file": -1, "data64": ""}, the_end()),
    "a frame of no known kind": (output("a"), {"news": 1}, block_end(), the_end("a")),
    "a frame of no kind at all": ({}, block_end(), the_end()),
    "an end that is not true": (output("a"), block_end(), the_end("a") | {"done": False}),
    "an end that is true in a way": (output("a"), block_end(), the_end("a") | {"done": 1}),
}


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_transcript_is_never_done_and_says_why(case: str) -> None:
    transcript = a_transcript(*FAULTY[case])
    assert transcript.problem.startswith("the runner ")
    assert not transcript.done
    state(transcript)  # what arrived until then can be recorded


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
kinds = [
    "stream",
    "data",
    "data64",
    "gzip64",
    "block",
    "artifact",
    "path",
    "size",
    "file",
    "done",
    "stdout",
    "fault",
    "error",
]
frames = st.dictionaries(st.sampled_from(kinds), json_values | st.sampled_from([0, "a", "stdout", True]))


@given(taken=st.lists(json_values | frames, max_size=4))
def test_whatever_is_no_frame_is_taken_without_an_exception(taken: list[Any]) -> None:
    transcript = Transcript()
    for number, frame in enumerate(taken):
        transcript.take({"id": UID, "seq": number} | frame if isinstance(frame, dict) else frame, UID)
    state(transcript)
    assert not transcript.done
    kinds_of_frames = {"stream", "block", "artifact", "file", "done", "fault"}
    if not all(isinstance(frame, dict) and kinds_of_frames & frame.keys() for frame in taken):
        assert transcript.problem or transcript.fault


def test_a_runner_reports_what_it_has_found_out() -> None:
    other = Target("dns", "10.96.0.10", 53, "UDP")
    report = readiness(a_report(targets=(TARGET, other)))
    assert report == Readiness(("Seccomp", "Landlock"), {TARGET: False, other: False}, BOOT_ID, True)


@pytest.mark.parametrize("changes", [{"bootId": ""}, {"bootId": "the node's"}, {"bootId": f"{BOOT_ID}0"}])
def test_a_boot_id_that_is_none_shows_nothing(changes: dict[str, Any]) -> None:
    assert readiness(a_report() | changes).boot_id == ""


@pytest.mark.parametrize("said", [False, None, "yes", 1])
def test_only_a_runner_that_says_so_has_users_of_its_own(said: Any) -> None:
    assert not readiness(a_report() | {"userNamespace": said}).user_namespace


def test_a_runner_of_an_older_image_shows_nothing() -> None:
    older = {name: value for name, value in a_report().items() if name not in ("bootId", "userNamespace")}
    assert readiness(older) == Readiness(("Seccomp", "Landlock"), {TARGET: False})


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": ["Magic"]},
        {"layers": ["Seccomp"] * 4},
        {"layers": None},
        {"egress": [{"name": "dns"}]},
        {"egress": [{**TARGET.dump(), "port": 0, "answered": False}]},
        {"egress": [{**TARGET.dump()}]},
        {"egress": [{**TARGET.dump(), "answered": False}] * 17},
    ],
)
def test_a_report_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        readiness(a_report() | changes)


def test_a_report_may_hold_as_much_as_there_can_be() -> None:
    targets = [Target(f"target-{number}", "10.96.0.1", 1 + number) for number in range(MAX_EGRESS_TARGETS)]
    layers = ["Seccomp", "Landlock", "LandlockPorts"]
    report = readiness(a_report(targets=targets) | {"layers": layers})
    assert report == Readiness(tuple(layers), dict.fromkeys(targets, False), BOOT_ID, True)


@pytest.mark.parametrize("answered", [True, None, 0, "no"])
def test_a_target_is_closed_only_where_the_runner_says_false(answered: Any) -> None:
    report = readiness(a_report() | {"egress": [{**TARGET.dump(), "answered": answered}]})
    assert report.answered == {TARGET: True}


def test_a_report_in_the_middle_of_a_job_is_a_problem() -> None:
    transcript = a_transcript(output("x"))
    transcript.take(a_report(), UID)
    assert transcript.problem


@pytest.mark.parametrize(
    "frames",
    [
        [block_end(index) for index in range(MAX_BLOCKS)],
        [an_artifact(index, f"{index:03}", b"") for index in range(MAX_ARTIFACTS)],
    ],
    ids=["blocks", "files"],
)
def test_as_many_as_there_can_be_are_taken(frames: list[dict[str, Any]]) -> None:
    transcript = a_transcript(*frames, the_end())
    assert transcript.done
    assert len(transcript.blocks) + len(transcript.kept_artifacts()) == len(frames)


@pytest.mark.parametrize(
    ("limit", "frames"),
    [
        ("output_bytes", [output("12"), output("é"), output("5")]),
        ("fetch_bytes", [an_artifact(0, "a", b"1234"), a_piece(0, b"12"), a_piece(0, b"34"), a_piece(0, b"5")]),
    ],
)
def test_an_execution_gives_out_up_to_its_limit_and_not_a_byte_more(limit: str, frames: list[dict[str, Any]]) -> None:
    place = replace(CONFIG_MAPS, **{limit: 4})
    assert not a_transcript(*frames[:-1], place=place).problem
    assert a_transcript(*frames, place=place).problem


def test_the_limit_of_output_holds_for_each_stream() -> None:
    place = replace(CONFIG_MAPS, output_bytes=4)
    assert not a_transcript(output("1234"), output("1234", "stderr"), place=place).problem
    assert a_transcript(output("1234"), output("12345", "stderr"), place=place).problem


@pytest.mark.parametrize(
    ("total", "taken"), [(0, False), (1, True), (2**51, True), (2**53 // 3, True), (2**53 // 3 + 1, False)]
)
def test_a_total_is_at_least_what_came_though_it_may_be_told_in_shorter_text(total: int, taken: bool) -> None:
    """A byte that is no UTF-8 is sent as a character of three bytes."""
    end = the_end("\ufffd") | {"stdout": the_end("\ufffd")["stdout"] | {"bytes": total}}
    transcript = a_transcript(output("\ufffd"), block_end(), end)
    assert transcript.done is taken
    assert transcript.problem == ("" if taken else "the runner sent a wrong total for stdout")
    assert transcript.stream("stdout").total_bytes == (total if taken else 3)


@pytest.mark.parametrize(("omitted", "taken"), [(0, True), (1, True), (2**53 - 1, True), (2**53, False), (1.0, False)])
def test_how_many_files_may_be_left_out(omitted: Any, taken: bool) -> None:
    transcript = a_transcript(the_end(artifactsOmitted=omitted))
    assert transcript.done is taken
    assert transcript.artifacts_omitted == (omitted if taken else 0)


def test_a_runner_that_says_nothing_of_files_left_none_out() -> None:
    end = the_end()
    del end["artifactsOmitted"]
    transcript = a_transcript(block_end(), end)
    assert (transcript.done, transcript.artifacts_omitted) == (True, 0)


@pytest.mark.parametrize(("said", "marked"), [(True, True), (False, False), (None, False), (1, False)])
def test_output_is_truncated_if_the_runner_says_true(said: Any, marked: bool) -> None:
    end = the_end("ab")
    end["stdout"]["truncated"] = said
    assert a_transcript(output("ab"), block_end(), end).stream("stdout").truncated is marked


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_each_stream_has_to_arrive_as_it_was_sent(name: str) -> None:
    end = the_end("a", "b")
    end[name]["sha256"] = "0" * 64
    transcript = a_transcript(output("a"), output("b", "stderr"), end)
    assert not transcript.done
    assert transcript.problem == f"the runner sent another digest for {name} than that of the data that arrived"


def test_what_a_runner_says_of_itself_is_cut() -> None:
    assert a_transcript({"error": "x" * 2000}).problem == f"the runner could not run the job: {'x' * 1000}"
    fault = a_transcript({"fault": {"message": "x" * 2000}}).fault
    assert fault
    assert fault.message == "x" * 1000


def test_the_block_is_recorded_as_the_runner_told_it() -> None:
    [block] = a_transcript(block_end(0, 3, "NonZeroExit", stdoutBytes=4, stderrBytes=5)).blocks
    assert (block.exit_code, block.reason, block.started_at, block.duration_ms) == (3, "NonZeroExit", NOW, 12)
    assert (block.stdout_bytes, block.stderr_bytes) == (4, 5)


def test_nothing_counts_after_the_end() -> None:
    transcript = a_transcript(*GOOD)
    before = state(transcript)
    for frame in numbered(*GOOD, output("more"), {"error": "late"}):
        transcript.take(frame, UID)
    assert state(transcript) == before


def test_nothing_counts_after_a_problem() -> None:
    transcript = a_transcript(output("a"), output("b") | {"seq": 9})
    problem = transcript.problem
    for frame in numbered(*GOOD):
        transcript.take(frame, UID)
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


def test_output_may_come_as_base64() -> None:
    frame = {"stream": "stdout", "data64": base64.b64encode("\x00é\n".encode()).decode()}
    assert a_transcript(frame, block_end(), the_end("\x00é\n")).stream("stdout").text == "\x00é\n"


@pytest.mark.parametrize("text", ["a", "é" * 9, "x" * MAX_PIECE_BYTES])
def test_output_may_come_compressed(text: str) -> None:
    transcript = a_transcript(compressed(output(text)), block_end(), the_end(text))
    assert transcript.done
    assert transcript.stream("stdout").sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_files_are_named_and_those_left_out_are_counted() -> None:
    named = (an_artifact(0, "a/b", b"1"), an_artifact(1, "big", b"", size=2**40, sha256=None))
    transcript = a_transcript(block_end(), *named, the_end(artifactsOmitted=7))
    assert transcript.done
    assert [(one.path, one.size_bytes, one.fetched) for one in transcript.kept_artifacts()] == [
        ("a/b", 1, False),
        ("big", 2**40, False),
    ]
    assert transcript.artifacts_omitted == 7


def test_a_file_stands_in_the_way() -> None:
    transcript = a_transcript({"fault": {"reason": "FileRefused", "message": "data: Is a directory"}})
    assert transcript.fault
    assert transcript.fault.message == "data: Is a directory"
    assert transcript.over
    assert not transcript.done
    assert not transcript.problem


def test_a_file_that_changed_while_it_was_sent_is_not_fetched() -> None:
    fault = {"fault": {"reason": "FileRefused", "message": "a: changed while it was read"}}
    transcript = a_transcript(block_end(), an_artifact(0, "a", b"xy"), a_piece(0, b"x"), fault)
    transcript.finish()
    assert [one.fetched for one in transcript.kept_artifacts()] == [False]


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
@example(text="\u2028" * 10, budget=30)
def test_fit_gives_the_longest_start_within_the_budget(text: str, budget: int) -> None:
    kept = fit(text, budget)
    assert text.startswith(kept)
    size = sum(map(go_json_size, kept))
    assert size <= budget
    if kept != text:
        assert size + go_json_size(text[len(kept)]) > budget
