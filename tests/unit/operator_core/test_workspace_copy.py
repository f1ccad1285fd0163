"""The copy of a workspace: what a runner tells is taken as a whole or not at all, and comes back as it was."""

import base64
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import PodLimits
from codeexec_api.names import artifact_key
from codeexec_api.output_store import MAX_OBJECT_BYTES, dump_part, load_part
from codeexec_api.packing import GZIP_SUFFIX
from codeexec_api.v1alpha1.bounds import MAX_KEPT_FILES, MAX_STORED_BYTES, MAX_STORED_PARTS
from codeexec_operator.core.output_parts import OutputParts
from codeexec_operator.core.output_place import OutputPlace
from codeexec_operator.core.workspace_copy import (
    Entry,
    Listing,
    Unpacking,
    WorkspaceCopy,
    build_listing,
    differs,
    most_bytes,
)

JOB = "files-1"
FILES = {"a/": (0o755, b""), "a/empty": (0o600, b""), "a/x": (0o750, b"x" * 9_000), "b": (0o644, b"\x00\xff")}
Files = Mapping[str, tuple[int, bytes]]


def frames(files: Files, *, content: bool = True) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for index, (path, (mode, data)) in enumerate(sorted(files.items())):
        folder = path.endswith("/")
        digest = None if folder else hashlib.sha256(data).hexdigest()
        told.append({"artifact": index, "path": path, "size": len(data), "sha256": digest, "mode": mode})
        for start in range(0, len(data) or 1, 65_536) if content and not folder else ():
            piece = data[start : start + 65_536]
            packed = gzip.compress(piece)
            short = {"gzip64": base64.b64encode(packed).decode()}
            told.append(
                {"file": index, **(short if len(piece) > 4096 else {"data64": base64.b64encode(piece).decode()})}
            )
    return [{"id": JOB, "seq": number, **frame} for number, frame in enumerate([*told, {"done": True, "whole": True}])]


def copy_of(files: Files, *, content: bool = True) -> tuple[WorkspaceCopy, list[bytes]]:
    copy, objects = WorkspaceCopy(content=content), []
    for frame in frames(files, content=content):
        copy.take(frame, JOB)
        while data := copy.next_object:
            objects.append(data)
            copy.object_stored()
    return copy, objects


def unpacked(listing: Listing, objects: list[bytes]) -> dict[str, tuple[int, bytes]]:
    """What the messages put into a pod."""
    unpacking = Unpacking(listing)
    found: dict[str, tuple[int, bytes]] = {}
    messages = [message for data in objects for message in unpacking.of_object(data)] + list(unpacking.rest())
    for message in messages:
        data = base64.b64decode(message["data"])
        if message["append"]:
            mode, before = found[message["put"]]
            found[message["put"]] = mode, before + data
        else:
            assert message["put"] not in found
            found[message["put"]] = message["mode"], data
    return found


def test_what_is_told_is_stored_and_put_back() -> None:
    copy, objects = copy_of(FILES)
    assert (copy.done, copy.problem) == (True, "")
    listing = Listing(tuple(copy.entries), ("a" * 64,))
    assert listing == Listing.load(listing.dump())
    assert listing.size_bytes == 9_002
    assert unpacked(listing, objects) == FILES


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
trees = st.dictionaries(
    names.flatmap(lambda name: st.sampled_from([name, f"{name}/"])),
    st.tuples(st.integers(0, 0o777), st.binary(max_size=200)),
    max_size=12,
)


@given(trees)
def test_any_workspace_comes_back(files: dict[str, tuple[int, bytes]]) -> None:
    files = {path: (mode, b"" if path.endswith("/") else data) for path, (mode, data) in files.items()}
    copy, objects = copy_of(files)
    assert copy.problem == ""
    assert unpacked(Listing(tuple(copy.entries)), objects) == files


def test_much_is_cut_into_objects_and_never_held_as_a_whole() -> None:
    data = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(100_000))
    copy, objects = copy_of({"big": (0o644, data), "zeros": (0o644, bytes(20_000_000))})
    assert len(objects) > 4
    assert max(map(len, objects)) < MAX_OBJECT_BYTES
    listing = Listing(tuple(copy.entries))
    assert unpacked(listing, objects)["big"] == (0o644, data)


def test_a_part_that_is_cut_early_is_an_object_too() -> None:
    copy, objects = WorkspaceCopy(content=True), []
    for frame in frames(FILES):
        copy.take(frame, JOB)
        copy.cut()
        while data := copy.next_object:
            objects.append(data)
            copy.object_stored()
    assert len(objects) > 1
    assert unpacked(Listing(tuple(copy.entries)), objects) == FILES


def test_a_part_is_cut_early_only_if_there_is_something_in_it() -> None:
    copy = WorkspaceCopy(content=True)
    copy.take(ANNOUNCED, JOB)
    assert not copy.cut()
    copy.take(CONTENT, JOB)
    assert copy.cut()
    assert not copy.cut()
    copy = WorkspaceCopy(content=True)
    copy.take(ANNOUNCED, JOB)
    copy.take(CONTENT, JOB)
    copy.fail("nonsense")
    assert not copy.cut()


def test_a_workspace_of_more_objects_than_a_session_may_keep_makes_no_copy() -> None:
    copy = WorkspaceCopy(content=True, parts=OutputParts(OutputPlace(fetch_bytes=MAX_STORED_BYTES, parts=1)))
    for frame in frames(FILES):
        copy.take(frame, JOB)
        copy.cut()
    assert not copy.done
    assert copy.problem == f"the files make more than {MAX_STORED_PARTS} objects"


def test_without_content_it_is_only_a_list() -> None:
    copy, objects = copy_of(FILES, content=False)
    assert (copy.done, objects, len(copy.entries)) == (True, [], 4)


GOOD = frames({"a": (0o644, b"1")})
[ANNOUNCED, CONTENT, DONE] = GOOD
HOSTILE = {
    "another job": [ANNOUNCED | {"id": "x"}],
    "a frame left out": [CONTENT],
    "a path outside": [ANNOUNCED | {"path": "../a"}],
    "an absolute path": [ANNOUNCED | {"path": "/a"}],
    "a name that misleads": [ANNOUNCED | {"path": "a\u202e"}],
    "no mode": [{name: value for name, value in ANNOUNCED.items() if name != "mode"}],
    "a mode with more": [ANNOUNCED | {"mode": 0o4755}],
    "a mode that is true": [ANNOUNCED | {"mode": True}],
    "a negative size": [ANNOUNCED | {"size": -1}],
    "too large": [ANNOUNCED | {"size": MAX_STORED_BYTES + 1}],
    "no digest": [ANNOUNCED | {"sha256": None}],
    "a digest that is none": [ANNOUNCED | {"sha256": "../../x"}],
    "a folder with content": [ANNOUNCED | {"path": "a/"}],
    "a folder with a size": [ANNOUNCED | {"path": "a/", "sha256": None}],
    "a folder with a digest": [ANNOUNCED | {"path": "a/", "size": 0}],
    "the same path again": [ANNOUNCED, CONTENT, ANNOUNCED | {"artifact": 1, "seq": 2}],
    "a hostile number": [ANNOUNCED | {"artifact": "0"}],
    "other content": [ANNOUNCED, CONTENT | {"data64": "Mg=="}, DONE],
    "more content": [ANNOUNCED, CONTENT | {"data64": "MTE="}],
    "no content": [ANNOUNCED, DONE | {"seq": 1}],
    "content of another file": [ANNOUNCED, CONTENT | {"file": 1}],
    "content of nothing": [CONTENT | {"seq": 0}],
    "an end that tells not of the whole": [ANNOUNCED, CONTENT, DONE | {"whole": None}],
    "another kind": [{"id": JOB, "seq": 0, "stream": "stdout", "data": "x"}],
    "no frame": [{}],
    "a fault": [{"id": JOB, "seq": 0, "fault": {"reason": "FileRefused", "message": "a: is a link"}}],
    "an error": [{"id": JOB, "seq": -1, "error": "broken"}],
}


@pytest.mark.parametrize("told", HOSTILE.values(), ids=HOSTILE)
def test_what_does_not_fit_makes_no_copy_and_says_why(told: list[dict[str, Any]]) -> None:
    copy = WorkspaceCopy(content=True)
    for frame in told:
        copy.take(frame, JOB)
    assert (copy.done, copy.over) == (False, True)
    assert copy.problem
    copy.take(DONE, JOB)
    assert not copy.done


@pytest.mark.parametrize(
    ("frame", "start"),
    [
        ({"id": JOB, "seq": 0, "fault": {"reason": "FileRefused", "message": "x" * 2000}}, ""),
        ({"id": JOB, "seq": -1, "error": "x" * 2000}, "the runner could not list the files: "),
    ],
    ids=["fault", "error"],
)
def test_of_what_a_runner_says_of_its_failure_the_start_is_kept(frame: dict[str, Any], start: str) -> None:
    copy = WorkspaceCopy(content=True)
    copy.take(frame, JOB)
    assert copy.problem == start + "x" * 1000


@pytest.mark.parametrize("missing", ["mode", "whole"])
def test_a_runner_of_an_older_image_is_named_as_the_cause(missing: str) -> None:
    copy = WorkspaceCopy(content=False)
    for number, frame in enumerate((ANNOUNCED, DONE)):
        copy.take({key: value for key, value in (frame | {"seq": number}).items() if key != missing}, JOB)
    assert copy.problem.startswith("the runner in the sandbox image is older than the operator")
    assert not copy.done


def test_all_files_together_are_no_larger_than_a_session_may_keep() -> None:
    half = ANNOUNCED | {"size": MAX_STORED_BYTES // 2}
    other = half | {"seq": 1, "artifact": 1, "path": "b"}
    for told, fits in (
        ([ANNOUNCED | {"size": MAX_STORED_BYTES}], True),
        ([half, other], True),
        ([half, other | {"size": MAX_STORED_BYTES // 2 + 1}], False),
    ):
        copy = WorkspaceCopy(content=False)
        for frame in told:
            copy.take(frame, JOB)
        assert bool(copy.problem) is not fits


def test_no_more_entries_than_are_kept() -> None:
    copy = WorkspaceCopy(content=False)
    for number in range(MAX_KEPT_FILES + 1):
        path = f"{number:05}/"
        copy.take(
            {"id": JOB, "seq": number, "artifact": number, "path": path, "size": 0, "sha256": None, "mode": 0}, JOB
        )
    assert copy.problem
    assert len(copy.entries) == MAX_KEPT_FILES


def test_the_longest_list_is_one_object() -> None:
    longest = [Entry(f"{number:05}{'ä' * 125}", 0o777, 10**6, "a" * 64) for number in range(MAX_KEPT_FILES)]
    assert len(Listing(tuple(longest), ("a" * 64,) * 768).dump()) < MAX_OBJECT_BYTES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"b": (0o644, b"other")}, "b is another one"),
        ({"b": (0o600, b"\x00\xff")}, "b is another one"),
        ({"c": (0o644, b"")}, "c was not stored"),
    ],
)
def test_what_differs_is_named(changes: Files, words: str) -> None:
    stored, other = (Listing(tuple(copy_of(files)[0].entries)) for files in (FILES, {**FILES, **changes}))
    assert differs(stored, stored) == ""
    assert differs(stored, other) == words
    assert differs(other, stored) == words.replace("was not stored", "is not there")


def test_objects_that_do_not_hold_what_the_list_says_are_refused() -> None:
    copy, [data] = copy_of(FILES)
    listing = Listing(tuple(copy.entries))
    others = copy_of({**FILES, "b": (0o644, b"\x00\x00")})[1]
    for objects in (others, [], [data, data], [b"{}\n"]):
        with pytest.raises(ValueError, match="objects"):
            unpacked(listing, objects)


def test_a_first_file_that_is_not_the_one_listed_is_refused() -> None:
    copy, _ = copy_of({"a": (0o644, b"1"), "b": (0o644, b"")})
    objects = copy_of({"a": (0o644, b"2"), "b": (0o644, b"")})[1]
    with pytest.raises(ValueError, match="the objects hold another file a"):
        unpacked(Listing(tuple(copy.entries)), objects)


def test_a_file_that_no_object_holds_is_not_put_back_as_an_empty_one() -> None:
    copy, [data] = copy_of({name: (0o644, name.encode()) for name in ("a", "b", "c")})
    held = load_part(data)
    del held[f"{artifact_key(1)}{GZIP_SUFFIX}"]
    with pytest.raises(ValueError, match="the objects don't hold all files"):
        unpacked(Listing(tuple(copy.entries)), [dump_part(held)])


def test_no_more_of_a_file_is_unpacked_than_the_list_says() -> None:
    copy, [half] = copy_of({"a": (0o644, b"1")})
    listing = Listing((replace(copy.entries[0], size=2, sha256=hashlib.sha256(b"11").hexdigest()),))
    assert unpacked(listing, [half, half]) == {"a": (0o644, b"11")}
    with pytest.raises(ValueError, match="more than 0 bytes"):
        unpacked(listing, [half, half, half])


def test_the_limit_is_half_of_the_disk() -> None:
    assert most_bytes(PodLimits(ephemeral_storage="10Mi")) == 5 * 2**20
    assert most_bytes(PodLimits(ephemeral_storage="10000001")) == 5_000_000
    assert most_bytes(PodLimits(ephemeral_storage="1Gi")) == MAX_STORED_BYTES


def test_the_job_runs_nothing_and_lists_the_whole_workspace_of_the_session() -> None:
    limits = PodLimits(memory="256Mi", ephemeral_storage="10Mi", pids=64)
    assert build_listing(JOB, limits, content=True) == {
        "id": JOB,
        "session": True,
        "stateful": False,
        "blocks": [],
        "timeoutSeconds": 0,
        "outputBytes": 0,
        "fetchBytes": 5 * 2**20,
        "memoryBytes": 256 * 2**20,
        "pids": 64,
        "artifacts": {"list": "Whole", "fetch": True, "most": MAX_KEPT_FILES},
    }
