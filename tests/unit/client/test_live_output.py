"""Output as it comes: frames of a log that nobody vouches for."""

import base64
import json
from typing import Any

import pytest
from factories import UID
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.packing import pack
from executor_client import OutputChunk
from executor_client.client.live_output import LiveOutput


def frame(seq: int, **fields: Any) -> bytes:
    return json.dumps({"id": UID, "seq": seq, **fields}).encode()


def said(seq: int, text: str, stream: str = "stdout") -> bytes:
    return frame(seq, stream=stream, data=text)


def out(text: str) -> OutputChunk:
    return OutputChunk("stdout", text)


def err(text: str) -> OutputChunk:
    return OutputChunk("stderr", text)


def fed(live: LiveOutput, *lines: bytes) -> list[OutputChunk]:
    return [chunk for line in lines if (chunk := live.feed(line))]


def test_text_in_both_forms_and_other_frames_between() -> None:
    encoded = base64.b64encode("é😀".encode()).decode()
    lines = (said(0, "a"), frame(1, block=0), frame(2, stream="stderr", data64=encoded), said(3, "b"))
    assert fed(LiveOutput(UID, 100), *lines) == [out("a"), err("é😀"), out("b")]


def test_compressed_output_arrives_unless_it_is_none_or_too_much() -> None:
    def packed(seq: int, data: bytes) -> bytes:
        return frame(seq, stream="stdout", gzip64=base64.b64encode(data).decode())

    bomb = pack(b"x" * (256 * 1024 + 1))
    lines = (
        packed(0, pack("é".encode())),
        packed(1, b"no gzip"),
        packed(2, bomb),
        packed(3, pack(b"b")[:-1]),
        said(4, "c"),
    )
    assert fed(LiveOutput(UID, 2**20), *lines) == [out("é"), out("c")]


def test_each_frame_counts_once_and_a_gap_waits_for_what_is_missing() -> None:
    live = LiveOutput(UID, 100)
    assert fed(live, said(0, "a"), said(2, "c")) == [out("a")]
    assert fed(live, said(0, "a"), said(1, "b"), said(2, "c"), said(3, "d")) == [out("b"), out("c"), out("d")]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no json",
        b"[" * 100_000,
        b"\xff\xfe",
        b"[1]",
        b'"text"',
        json.dumps({"id": "another", "seq": 0, "stream": "stdout", "data": "x"}).encode(),
        frame(-1, error="x"),
        frame(1, stream="stdout", data="x"),
    ],
    ids=range(9),
)
def test_other_lines_are_passed_over(line: bytes) -> None:
    live = LiveOutput(UID, 100)
    assert fed(live, line, said(0, "a")) == [out("a")]


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "stdin", "data": "x"},
        {"stream": ["stdout"], "data": "x"},
        {"stream": "stdout", "data": 1},
        {"stream": "stdout", "data64": "%%"},
        {"stream": "stdout"},
    ],
    ids=range(5),
)
def test_a_frame_without_usable_output_is_a_frame_all_the_same(fields: dict[str, Any]) -> None:
    assert fed(LiveOutput(UID, 100), frame(0, **fields), said(1, "a")) == [out("a")]


def test_a_lone_surrogate_does_no_harm() -> None:
    live = LiveOutput(UID, 100)
    assert fed(live, b'{"id": "%s", "seq": 0, "stream": "stdout", "data": "\\ud800"}' % UID.encode()) == [out("?")]


def test_more_than_the_limit_is_left_to_the_record() -> None:
    live = LiveOutput(UID, 3)
    assert fed(live, said(0, "ab"), said(1, "cd"), said(2, "e"), said(3, "x", "stderr")) == [out("ab"), err("x")]
    assert list(live.missing([out("abc"), err("x")])) == [out("c")]


def test_what_is_missing_comes_from_the_record_in_its_order() -> None:
    live = LiveOutput(UID, 100)
    fed(live, said(0, "ab"), said(1, "x", "stderr"))
    recorded = [out("a"), err("xy"), out("bc"), err("z"), out("d")]
    assert list(live.missing(recorded)) == [err("y"), out("c"), err("z"), out("d")]


def test_nothing_delivered_means_all_is_missing() -> None:
    assert list(LiveOutput(UID, 100).missing([out("a"), err("b")])) == [out("a"), err("b")]


@pytest.mark.parametrize("recorded", ["", "other", "forge", "FORGED and more"])
def test_a_stream_that_was_forged_is_not_gone_on_with(recorded: str, caplog: pytest.LogCaptureFixture) -> None:
    live = LiveOutput(UID, 100)
    fed(live, said(0, "forged"), said(1, "good", "stderr"))
    assert list(live.missing([out(recorded), err("good end")])) == [err(" end")]
    assert "the live stdout differs from the record" in caplog.text


@given(
    pieces=st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(min_size=1, max_size=5)), max_size=12),
    seen=st.lists(st.booleans(), max_size=12),
)
def test_live_and_rest_are_the_record(pieces: list[tuple[str, str]], seen: list[bool]) -> None:
    live = LiveOutput(UID, 1000)
    lines = [said(number, text, stream) for number, (stream, text) in enumerate(pieces)]
    got = fed(live, *(line for line, there in zip(lines, seen, strict=False) if there))
    recorded = [OutputChunk(stream, text.encode(errors="replace").decode()) for stream, text in pieces]  # type: ignore[arg-type]
    got += live.missing(recorded)
    for stream in ("stdout", "stderr"):
        whole = "".join(chunk.text for chunk in recorded if chunk.stream == stream)
        assert "".join(chunk.text for chunk in got if chunk.stream == stream) == whole
