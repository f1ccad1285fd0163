"""Names of files in the workspace: what is taken stays inside, here, in the models and in the rules of the CRD."""

import os
import re
import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from factories import a_raw_block, a_raw_file, a_raw_spec
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from codeexec_api import CodeExecutionSpec
from codeexec_api.paths import MAX_PATH_BYTES, REFUSED_CHARACTERS, check_workspace_path
from codeexec_api.schema import custom_resource_definitions

ROOT = "/srv/workspace"

TAKEN = [
    "a.py",
    "a/b/c.py",
    "a b.py",
    ".hidden",
    "...",
    "~",
    "-c",
    "$(id)",
    "C:x",
    "a:b",
    "CON",
    "a.",
    "täst.py",
    "ta\u0308st.py",
    "文件.py",
    "😀.py",
    "\u2025/x",  # two dots in one character: a name like any other
    "\uff0e\uff0e\uff0fx",  # wide dots and slash: a single name
    "x" * 255,
    "é" * 127,
    "a/" * 127 + "b",
]
REFUSED = [
    ("", "has the part ''"),
    (".", "has the part '.'"),
    ("..", "has the part '..'"),
    ("../a", "has the part '..'"),
    ("a/..", "has the part '..'"),
    ("a/../b", "has the part '..'"),
    ("./a", "has the part '.'"),
    ("/a", "has the part ''"),
    ("a//b", "has the part ''"),
    ("a/", "has the part ''"),
    (" a", "no part may begin or end with a space"),
    ("a ", "no part may begin or end with a space"),
    (".. /a", "no part may begin or end with a space"),
    ("a/ /b", "no part may begin or end with a space"),
    ("a\\b", "contains U+005C"),
    ("..\\a", "contains U+005C"),
    ("a\nb", "contains U+000A"),
    ("a\0", "contains U+0000"),
    ("a\x1b[2Jb", "contains U+001B"),
    ("a\x85b", "contains U+0085"),
    ("a\u00a0b", "contains U+00A0"),
    ("a\u00adb", "contains U+00AD"),
    ("\u202egnp.py", "contains U+202E"),
    ("a\u2066b", "contains U+2066"),
    (".\u200b./a", "contains U+200B"),
    ("a\u200d.py", "contains U+200D"),
    ("a\u2028b", "contains U+2028"),
    ("a\ufe0f.py", "contains U+FE0F"),
    ("\ufeffa", "contains U+FEFF"),
    ("\u3164", "contains U+3164"),
    ("a\u2800b", "contains U+2800"),
    ("a\U0001d159", "contains U+1D159"),
    ("a\ud800", "contains U+D800"),
    ("a\ue000", "contains U+E000"),
    ("a\ufffd", "contains U+FFFD"),
    ("a\U000e0041", "contains U+E0041"),
    ("a\U0010ffff", "contains U+10FFFF"),
    ("x" * 256, "has 256 bytes; at most 255 are allowed"),
    ("é" * 128, "has 256 bytes; at most 255 are allowed"),
]

# Parts that mean something to some file system, shell or terminal, beside any text.
odd = st.sampled_from(
    [*TAKEN, *(path for path, _ in REFUSED), "..", ".", "", " ", "a", "A", "nul", "C:", "\\\\host", "\u2024", "\u2215"]
)
paths = st.one_of(st.text(max_size=40), st.lists(st.one_of(odd, st.text(max_size=5)), max_size=5).map("/".join))


@pytest.mark.parametrize("path", TAKEN)
def test_names_inside_the_workspace(path: str) -> None:
    assert check_workspace_path(path) == path


@pytest.mark.parametrize(("path", "fault"), REFUSED)
def test_a_name_that_is_refused_is_named_with_its_fault(path: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)) as refused:
        check_workspace_path(path)
    message = str(refused.value)
    assert message.startswith(repr(path))
    assert message.isprintable()  # a terminal that shows it obeys no control in it


def taken(path: str) -> bool:
    try:
        return check_workspace_path(path) == path
    except ValueError:
        return False


@given(path=paths)
def test_what_is_taken_stays_below_the_root_part_by_part(path: str) -> None:
    if taken(path):
        parts = path.split("/")
        assert os.path.normpath(os.path.join(ROOT, path)) == f"{ROOT}/{path}"
        assert (PurePosixPath(ROOT) / path).parts == ("/", "srv", "workspace", *parts)
        assert all(len(os.fsencode(part)) <= 255 for part in parts)
        assert path.isprintable() or any(unicodedata.category(character) == "Cn" for character in path)
        assert path == path.strip()


@given(path=paths)
def test_what_file_systems_make_of_a_name_stays_below_the_root(path: str) -> None:
    """Some hold names normalized or ignore case; Windows drops dots and blanks at the end of a part."""
    if taken(path):
        for form in ("NFC", "NFD"):
            assert unicodedata.normalize(form, path).count("/") == path.count("/")
            for part in unicodedata.normalize(form, path).casefold().split("/"):
                assert part not in ("", ".", "..")
        on_windows = PureWindowsPath("D:/work") / path
        assert ".." not in on_windows.parts
        # A drive is noticed when a source is kept; nothing else leads out.
        assert on_windows.is_relative_to("D:/work") or ":" in path.split("/")[0]


@given(path=paths)
def test_models_take_the_same_names(path: str) -> None:
    for field in ({"blocks": [a_raw_block(filename=path)]}, {"files": [a_raw_file(path)]}):
        if taken(path):
            CodeExecutionSpec.model_validate(a_raw_spec(**field))
        else:
            with pytest.raises(ValidationError):
                CodeExecutionSpec.model_validate(a_raw_spec(**field))


def test_no_character_that_is_not_seen_is_taken_whatever_the_unicode_tables_here_hold() -> None:
    unseen = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"}
    hidden = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in unseen and code != 0x20]
    assert len(hidden) > 137_000
    assert not [f"U+{ord(character):04X}" for character in hidden if taken(f"a{character}b")]


def schema_of(path: str) -> dict:
    node = custom_resource_definitions()["codeexecutions.yaml"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for key in path.split("."):
        node = node["items"] if key == "items" else node["properties"][key]
    return node


@pytest.mark.parametrize("field", ["spec.blocks.items.filename", "spec.files.items.path"])
def test_the_crd_has_the_rules_of_the_models(field: str) -> None:
    schema = schema_of(field)
    rules = [one["rule"] for one in schema["x-kubernetes-validations"]]
    assert f"!self.matches(r'{REFUSED_CHARACTERS}')" in rules
    assert f"bytes(self).size() <= {MAX_PATH_BYTES}" in rules
    assert schema["maxLength"] == MAX_PATH_BYTES


def test_the_crd_refuses_the_same_characters() -> None:
    """RE2 writes a code point in another way than Python. The API server itself is asked in the end-to-end tests."""
    theirs = re.compile(re.sub(r"\\x\{(\w+)\}", lambda found: rf"\U{int(found[1], 16):08X}", REFUSED_CHARACTERS))
    codes = [*range(0x40010), 0x10FFFF]  # what lies between is one range
    assert not [hex(code) for code in codes if taken(f"a{chr(code)}b") == bool(theirs.search(chr(code)))]
