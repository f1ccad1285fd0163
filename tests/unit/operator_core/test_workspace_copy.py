"""The copy of a workspace: what a runner tells is taken as a whole or not at all, and comes back as it was."""

import base64
import gzip
import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import PodLimits
from codeexec_api.output_store import MAX_OBJECT_BYTES
from codeexec_api.v1alpha1.bounds import MAX_KEPT_FILES, MAX_STORED_BYTES
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
        while data := copy.take_object():
            objects.append(data)
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
        while data := copy.take_object():
            objects.append(data)
    assert len(objects) > 1
    assert unpacked(Listing(tuple(copy.entries)), objects) == FILES


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
    "the same path again": [ANNOUNCED, CONTENT, ANNOUNCED | {"artifact": 1, "seq": 2}],
    "a hostile number": [ANNOUNCED | {"artifact": "0"}],
    "other content": [ANNOUNCED, CONTENT | {"data64": "Mg=="}, DONE],
    "more content": [ANNOUNCED, CONTENT | {"data64": "MTE="}],
    "no content": [ANNOUNCED, DONE | {"seq": 1}],
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


def test_the_limit_is_half_of_the_disk() -> None:
    assert most_bytes(PodLimits(ephemeral_storage="10Mi")) == 5 * 2**20
    assert most_bytes(PodLimits(ephemeral_storage="1Gi")) == MAX_STORED_BYTES
    job = build_listing(JOB, PodLimits(ephemeral_storage="10Mi"), content=True)
    assert (job["fetchBytes"], job["artifacts"]) == (
        5 * 2**20,
        {"list": "Whole", "fetch": True, "most": MAX_KEPT_FILES},
    )
