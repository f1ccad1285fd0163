"""Output that doesn't fit into the record: cut into parts, stored one by one, and never promised where it was lost."""

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from factories import (
    UID,
    a_piece,
    a_transcript,
    an_artifact,
    block_end,
    compressed,
    numbered,
    output,
    take_part,
    the_end,
)
from hypothesis import example, given
from hypothesis import strategies as st

from codeexec_api.names import artifact_key, output_name
from codeexec_api.packing import GZIP_SUFFIX, pack, unpack
from codeexec_api.v1alpha1.bounds import MAX_FETCH_BYTES, MAX_OUTPUT_BYTES, MAX_OUTPUT_PARTS
from codeexec_operator.core import output_parts as core
from codeexec_operator.core.output_parts import STREAMS, OutputPart, StreamName
from codeexec_operator.core.output_place import CONFIG_MAPS
from codeexec_operator.core.transcript import Transcript

SMALL = {"PART_BYTES": 300, "MAX_INLINE_BYTES": 60, "_ESCAPED_BUDGET": 90}


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """What would take megabytes happens within some hundred bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(core, name, value)
        patch.setattr("codeexec_operator.core.transcript._HEAD_BYTES", 16)
        yield


@dataclass
class Store:
    """Takes parts as the API server does, but for those that it refuses."""

    refused: frozenset[int] = frozenset()
    parts: list[OutputPart] = field(default_factory=list)

    def drain(self, transcript: Transcript) -> None:
        while part := take_part(transcript.parts):
            if part.index in self.refused:
                transcript.parts.lose(part, "the API server did not accept it")
            else:
                self.parts.append(part)

    def take(self, transcript: Transcript, frames: list[dict[str, Any]]) -> None:
        for frame in frames:
            transcript.take(frame, UID)
            self.drain(transcript)

    def finish(self, transcript: Transcript) -> Mapping[str, bytes]:
        """What a client reads from the parts that the record names."""
        transcript.finish()
        self.drain(transcript)
        contents: dict[str, bytes] = defaultdict(bytes)
        named = self.parts[: transcript.parts.count]
        assert [part.index for part in named] == list(range(transcript.parts.count))
        for part in named:
            for key, data in plain(part).items():
                contents[key] += data
        return contents


def plain(part: OutputPart) -> dict[str, bytes]:
    """What a part holds, without its compression."""
    assert all(key.endswith(GZIP_SUFFIX) for key in part.contents)
    return {key.removesuffix(GZIP_SUFFIX): unpack(data, 2**20) for key, data in part.contents.items()}


def holds(transcript: Transcript, name: str, stored: Mapping[str, bytes], written: bytes) -> None:
    """What the record says of a stream is true."""
    stream = transcript.stream(cast("StreamName", name))
    kept = stored[name] if stream.referenced else stream.text.encode()
    assert (stream.kept_bytes, stream.sha256) == (len(kept), hashlib.sha256(kept).hexdigest())
    assert written.startswith(kept)
    assert kept.startswith(stream.text.encode())
    assert stream.truncated or (transcript.done and kept == written)
    assert stream.total_bytes == len(written)


def said(frame: Mapping[str, Any]) -> str:
    """The text of a frame of output."""
    return str(frame["data"]) if "data" in frame else unpack(base64.b64decode(frame["gzip64"]), 2**20).decode()


texts = st.text(st.sampled_from("ab\n<é€😀\x00"), min_size=1, max_size=60)
outputs = st.lists(st.tuples(st.sampled_from(STREAMS), texts), max_size=25)
contents = st.none() | st.lists(st.binary(max_size=150), min_size=1, max_size=4)
files = st.lists(contents, max_size=5)
"""None: announced only. Else the pieces that are sent."""
refusals = st.frozensets(st.integers(0, 4), max_size=2)


def frames_of(written: list[tuple[StreamName, str]], sent: list[list[bytes] | None]) -> list[dict[str, Any]]:
    """What an honest runner sends, which compresses what is long."""
    texts = {name: "".join(text for stream, text in written if stream == name) for name in STREAMS}
    frames = [output(text, name) if len(text) < 40 else compressed(output(text, name)) for name, text in written]
    frames.append(block_end())
    for index, one in enumerate(sent):
        frames.append(an_artifact(index, f"file-{index}", b"".join(one or ())))
        frames += [
            compressed(a_piece(index, piece)) if len(piece) > 9 else a_piece(index, piece) for piece in one or ()
        ]
    return [*frames, the_end(texts["stdout"], texts["stderr"])]


@given(written=outputs, sent=files, refused=refusals, frames=st.integers(0, 60))
@example(written=[("stdout", "€" * 20), ("stdout", "a")], sent=[[b""]], refused=frozenset(), frames=60)
@example(written=[("stdout", text) for text in ("a" * 60, "b", "c" * 60)], sent=[], refused=frozenset(), frames=60)
@example(written=[("stdout", "x" * 60)] * 5 + [("stderr", "late")] * 80, sent=[], refused=frozenset({1}), frames=99)
def test_what_the_record_says_of_output_is_true(
    written: list[tuple[StreamName, str]], sent: list[list[bytes] | None], refused: frozenset[int], frames: int
) -> None:
    """Whatever was written, whenever the connection ended, and whichever part was refused."""
    transcript, store = Transcript(), Store(refused)
    arrived = numbered(*frames_of(written, sent))[:frames]
    store.take(transcript, arrived)
    stored = store.finish(transcript)
    assert not transcript.problem
    assert (
        bool(transcript.parts.lost) == any(index in refused for index in range(len(store.parts) + 1))
        or not transcript.parts.lost
    )
    for name in STREAMS:
        text = "".join(said(frame) for frame in arrived if frame.get("stream") == name)
        holds(transcript, name, stored, text.encode())
        if transcript.done and not transcript.parts.lost:
            assert not transcript.stream(name).truncated
    for index, one in enumerate(transcript.kept_artifacts()):
        pieces = sent[index]
        if one.fetched:
            assert stored[artifact_key(index)] == b"".join(pieces or ())
        elif pieces is not None:
            assert transcript.parts.lost or not transcript.done


@given(written=outputs, sent=files)
def test_the_parts_tell_how_the_streams_were_interleaved(
    written: list[tuple[StreamName, str]], sent: list[list[bytes] | None]
) -> None:
    transcript, store = Transcript(), Store()
    store.take(transcript, numbered(*frames_of(written, sent)))
    store.finish(transcript)
    if not transcript.parts.count:
        return
    assert transcript.order() == ()
    read = b""
    for part in store.parts:
        stored = plain(part)
        rest = {name: stored.get(name, b"") for name in STREAMS}
        for name, length in json.loads(stored["order"]):
            read += rest[name][:length]
            rest[name] = rest[name][length:]
        assert rest == {"stdout": b"", "stderr": b""}
    assert read == "".join(text for _, text in written).encode()


@given(written=outputs, sent=files)
def test_no_part_is_larger_than_a_config_map(written: list[tuple[StreamName, str]], sent: list[Any]) -> None:
    transcript, store = Transcript(), Store()
    store.take(transcript, numbered(*frames_of(written, sent)))
    store.finish(transcript)
    largest_frame = 60 * 4
    for part in store.parts:
        assert sum(map(len, part.contents.values())) <= SMALL["PART_BYTES"] + largest_frame + core._RUN_BYTES


@given(written=outputs, sent=files, kept=st.integers(0, 3))
def test_frames_that_come_again_make_the_same_parts(
    written: list[tuple[StreamName, str]], sent: list[Any], kept: int
) -> None:
    """A leader that takes over hears them from the first on, and finds parts that are stored already."""
    frames = numbered(*frames_of(written, sent))
    one, other, until = Store(), Store(), Transcript()
    whole = Transcript()
    one.take(until, frames[: len(frames) * kept // 3])
    other.take(whole, frames)
    other.finish(whole)
    assert [(part.index, plain(part)) for part in one.parts] == [
        (part.index, plain(part)) for part in other.parts[: len(one.parts)]
    ]


def test_what_compresses_well_makes_fewer_parts() -> None:
    def count(frames: list[dict[str, Any]]) -> int:
        transcript, store = Transcript(), Store()
        store.take(transcript, numbered(*frames))
        stored = store.finish(transcript)
        holds(transcript, "stdout", stored, b"x" * 4000)
        return len(store.parts)

    frames = [output("x" * 400)] * 10
    assert (count(frames), count([compressed(one) for one in frames])) == (10, 1)


def test_what_takes_more_when_compressed_is_held_as_it_is() -> None:
    """A hostile runner could make parts of any size else: a header of gzip may hold a name of any length."""
    packed = bytearray(pack(b"x" * 40))
    packed[3] = 8  # a name follows, which ends with a zero byte
    packed[10:10] = b"n" * 5000 + b"\0"
    frame = {"stream": "stdout", "gzip64": base64.b64encode(packed).decode()}
    transcript = a_transcript(frame, frame)
    assert not transcript.problem
    assert (transcript.parts.held_bytes, transcript.parts.count) == (60 + 80 + core._RUN_BYTES, 0)


def test_each_part_is_closed_as_soon_as_it_is_full() -> None:
    full = SMALL["PART_BYTES"] - core._RUN_BYTES
    transcript, store = Transcript(), Store()
    sizes = []
    for frame in numbered(*(output("x" * size) for size in (full - 1, 1, full - 1, 1))):
        store.take(transcript, [frame])
        sizes.append([len(plain(part)["stdout"]) for part in store.parts])
    assert sizes == [[], [full], [full], [full, full]]


@pytest.mark.parametrize("text", ["x" * 60, "\x01" * 15], ids=["all the record takes", "all it takes when escaped"])
def test_little_output_stands_in_the_record_alone(text: str) -> None:
    transcript = a_transcript(output(text), block_end(), the_end(text))
    transcript.finish()
    assert take_part(transcript.parts) is None
    assert transcript.parts.count == 0
    stream = transcript.stream("stdout")
    assert (stream.text, stream.referenced, stream.truncated) == (text, False, False)


@pytest.mark.parametrize("text", ["x" * 61, "\x01" * 16], ids=["more than the record takes", "more when escaped"])
def test_much_output_is_referenced_and_its_start_stands_in_the_record(text: str) -> None:
    transcript = a_transcript(output(text[:1]), output(text[1:]), block_end(), the_end(text))
    transcript.finish()
    part = take_part(transcript.parts)
    assert part
    assert plain(part) == {
        "stdout": text.encode(),
        "order": json.dumps([["stdout", len(text)]]).replace(" ", "").encode(),
    }
    stream = transcript.stream("stdout")
    assert (stream.referenced, stream.truncated, stream.kept_bytes) == (True, False, len(text))
    assert text.startswith(stream.text)
    assert 0 < len(stream.text) <= 16
    assert not transcript.stream("stderr").referenced


def test_the_least_output_is_referenced_where_there_are_parts() -> None:
    transcript = a_transcript(output("x" * 61), output("!", "stderr"), block_end(), the_end("x" * 61, "!"))
    stored = Store().finish(transcript)
    assert transcript.stream("stderr").referenced
    assert stored["stderr"] == b"!"


def test_an_empty_file_is_fetched() -> None:
    transcript = a_transcript(block_end(), an_artifact(0, "empty", b""), a_piece(0, b""), the_end())
    assert Store().finish(transcript)[artifact_key(0)] == b""
    assert [one.fetched for one in transcript.kept_artifacts()] == [True]


def test_a_file_that_no_part_was_told_of_when_it_was_closed_is_lost_with_the_next_one() -> None:
    """A runner that writes output between a file's name and its content."""
    transcript, store = Transcript(), Store(frozenset({1}))
    frames = [an_artifact(0, "a", b"x" * 400), output("y" * 300), a_piece(0, b"x" * 400), the_end("y" * 300)]
    store.take(transcript, numbered(*frames))
    store.finish(transcript)
    assert transcript.parts.count == 1
    assert [one.fetched for one in transcript.kept_artifacts()] == [False]


def test_where_the_first_part_is_lost_its_start_stands_in_the_record() -> None:
    transcript, store = Transcript(), Store(frozenset({0}))
    frames = [output("a" * 200), an_artifact(0, "f", b"x" * 200), a_piece(0, b"x" * 200), output("b" * 400)]
    store.take(transcript, numbered(*frames))
    store.finish(transcript)
    assert (transcript.parts.count, transcript.parts.lost) == (0, "the API server did not accept it")
    stream = transcript.stream("stdout")
    assert (stream.text, stream.kept_bytes, stream.total_bytes) == ("a" * 60, 60, 600)
    assert (stream.referenced, stream.truncated) == (False, True)
    assert [one.fetched for one in transcript.kept_artifacts()] == [False]


def test_a_file_that_is_stored_as_a_whole_is_not_lost_with_those_behind_it() -> None:
    transcript, store = Transcript(), Store(frozenset({1}))
    contents = [b"whole", b"x" * 400, b"late"]
    frames = [
        frame
        for index, content in enumerate(contents)
        for frame in (an_artifact(index, f"file-{index}", content), a_piece(index, content))
    ]
    store.take(transcript, numbered(*frames, output("y" * 300), the_end("y" * 300)))
    stored = store.finish(transcript)
    assert transcript.parts.lost
    assert [one.fetched for one in transcript.kept_artifacts()] == [True, False, False]
    assert stored[artifact_key(0)] == b"whole"


def test_where_a_later_part_is_lost_the_record_refers_to_those_before_it() -> None:
    transcript, store = Transcript(), Store(frozenset({1}))
    store.take(transcript, numbered(output("a" * 300), output("b" * 300), output("c" * 300), output("d")))
    store.finish(transcript)
    stream = transcript.stream("stdout")
    assert (transcript.parts.count, stream.kept_bytes, stream.total_bytes) == (1, 300, 901)
    assert stream.sha256 == hashlib.sha256(b"a" * 300).hexdigest()
    assert (stream.text, stream.referenced, stream.truncated) == ("a" * 16, True, True)


def test_a_second_loss_does_not_change_why_the_first_happened() -> None:
    transcript = a_transcript(output("a" * 300), output("b" * 300))
    first, second = take_part(transcript.parts), take_part(transcript.parts)
    assert first
    assert second
    transcript.parts.lose(second, "too large")
    transcript.parts.lose(first, "forbidden")
    assert (transcript.parts.lost, transcript.parts.count) == ("too large", 0)


def test_after_a_loss_no_part_is_made_though_the_api_server_would_take_one_again() -> None:
    """Its place in the output would be a lie: what came in between is gone."""
    frames = numbered(output("a" * 300), output("b" * 300), an_artifact(0, "f", b"c"), a_piece(0, b"c"))
    transcript, store = Transcript(), Store()
    transcript.take(frames[0], UID)
    transcript.parts.lose(cast("OutputPart", take_part(transcript.parts)), "refused")
    store.take(transcript, frames[1:])
    store.finish(transcript)
    assert (store.parts, transcript.parts.count) == ([], 0)
    stream = transcript.stream("stdout")
    assert (stream.text, stream.total_bytes, stream.referenced, stream.truncated) == ("a" * 60, 600, False, True)


@pytest.mark.parametrize(("refused", "most"), [(0, SMALL["PART_BYTES"] + 200), (1, 0), (2, 0)])
def test_after_a_loss_nothing_more_is_held_in_memory(refused: int, most: int) -> None:
    """But for what stands in the record: the start of the first part, if that is the one that was lost."""
    transcript, store = Transcript(), Store(frozenset({refused}))
    store.take(transcript, numbered(*(output("x" * 200, STREAMS[index % 2]) for index in range(100))))
    assert transcript.parts.held_bytes <= most
    assert len(transcript.parts._order.runs) <= 1


def test_of_files_that_compress_well_no_more_is_held_than_came() -> None:
    pieces = [compressed(a_piece(index, b"x" * 200)) for index in range(20)]
    announced = [an_artifact(index, f"file-{index:02}", b"x" * 200) for index in range(20)]
    transcript = a_transcript(*(frame for pair in zip(announced, pieces, strict=True) for frame in pair))
    assert transcript.parts.held_bytes < 1500


def test_nothing_counts_after_what_there_was_has_been_cut_into_parts() -> None:
    transcript, store = a_transcript(output("x" * 400)), Store()
    before = store.finish(transcript), transcript.stream("stdout"), transcript.parts.count
    store.take(transcript, numbered(output("x" * 400), output("late"), output("y" * 400))[1:])
    assert (store.finish(transcript), transcript.stream("stdout"), transcript.parts.count) == before


def test_there_are_no_more_parts_than_the_record_can_name() -> None:
    transcript, store = Transcript.of(replace(CONFIG_MAPS, parts=3)), Store()
    store.take(transcript, numbered(*(output("x" * 300) for _ in range(5))))
    stored = store.finish(transcript)
    assert transcript.parts.count == len(store.parts) == 3, "what the record doesn't name is not stored, either"
    assert transcript.parts.lost == "an execution can have at most 3 parts of output"
    holds(transcript, "stdout", stored, b"x" * 1500)


def test_parts_that_wait_to_be_stored_are_not_lost_with_one_behind_them() -> None:
    transcript = a_transcript(*(output("x" * 300) for _ in range(5)), place=replace(CONFIG_MAPS, parts=3))
    assert Store().finish(transcript)["stdout"] == b"x" * 900


@given(written=outputs, sent=files, refused=refusals, cuts=st.sets(st.integers(0, 60)))
def test_what_the_record_says_of_output_is_true_wherever_parts_are_cut(
    written: list[tuple[StreamName, str]], sent: list[list[bytes] | None], refused: frozenset[int], cuts: set[int]
) -> None:
    transcript, store = Transcript(), Store(refused)
    for number, frame in enumerate(numbered(*frames_of(written, sent))):
        store.take(transcript, [frame])
        if number in cuts and transcript.cut():
            store.drain(transcript)
            assert transcript.parts.held_bytes == 0 or transcript.parts.lost
    stored = store.finish(transcript)
    for name in STREAMS:
        holds(transcript, name, stored, "".join(text for stream, text in written if stream == name).encode())
    for index, one in enumerate(transcript.kept_artifacts()):
        if one.fetched:
            assert stored[artifact_key(index)] == b"".join(sent[index] or ())


@given(written=outputs, cuts=st.sets(st.integers(0, 25)), more_cuts=st.sets(st.integers(0, 25)))
@example(written=[("stdout", "a")] * 9, cuts={2}, more_cuts=set())
def test_what_a_leader_before_has_stored_is_read_only_where_it_is_the_same(
    written: list[tuple[StreamName, str]], cuts: set[int], more_cuts: set[int]
) -> None:
    """Memory was short for one leader and not, or at another time, for the next one. Nothing stored is ever changed."""
    there: dict[str, OutputPart] = {}
    for cut_at in (cuts, more_cuts):
        transcript, store = Transcript(), Store()
        for number, frame in enumerate(numbered(*frames_of(written, []))):
            store.take(transcript, [frame])
            if number in cut_at and transcript.cut():
                store.drain(transcript)
        store.finish(transcript)
        for part in store.parts:
            there.setdefault(output_name("run", UID, part.frames), part)
    parts = [plain(there[output_name("run", UID, frames)]) for frames in transcript.parts.frames]
    stored = {name: b"".join(part.get(name, b"") for part in parts) for name in STREAMS}
    for name in STREAMS:
        holds(transcript, name, stored, "".join(text for stream, text in written if stream == name).encode())


def test_parts_are_cut_as_long_as_enough_are_left_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codeexec_operator.core.transcript.SHORT_PARTS", 2)
    transcript = Transcript()
    cut = []
    for frame in numbered(*[output("abc")] * 3):
        transcript.take(frame, UID)
        assert transcript.parts.held_bytes > 0
        cut.append(transcript.cut())
    assert (cut, transcript.parts.count, transcript.parts.held_bytes > 0) == ([True, True, False], 2, True)
    most = MAX_OUTPUT_BYTES + MAX_FETCH_BYTES
    assert 40 + -(-most // (640 * 1024)) + 1 <= MAX_OUTPUT_PARTS


@pytest.mark.parametrize("over", ["finished", "done", "lost"])
def test_what_is_over_is_not_cut(over: str) -> None:
    transcript = Transcript()
    for frame in numbered(output("abc"), block_end(), the_end("abc"))[: 3 if over == "done" else 1]:
        transcript.take(frame, UID)
    if over == "finished":
        transcript.finish()
    if over == "lost":
        assert transcript.cut()
        transcript.parts.lose(cast("OutputPart", take_part(transcript.parts)), "refused")
    assert not transcript.cut()


def test_no_output_in_representations() -> None:
    transcript = a_transcript(output("PLANTED" * 60))
    part = take_part(transcript.parts)
    assert part
    assert "PLANTED" not in repr(part)
