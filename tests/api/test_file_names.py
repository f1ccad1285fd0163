"""The API server takes the file names that client and operator take, and no others."""

import re

import pytest
from cluster_tools import an_execution

from codeexec_api.paths import REFUSED_CHARACTERS, check_workspace_path

RANGES = re.findall(r"\\x\{(\w+)\}-\\x\{(\w+)\}", REFUSED_CHARACTERS)
EDGES = {int(first, 16) + step for first, _ in RANGES for step in (-1, 0)} | {
    int(last, 16) + step for _, last in RANGES for step in (0, 1)
}
NAMES = [
    *(f"a{chr(code)}b" for code in sorted(EDGES) if 0 <= code <= 0x10FFFF and not 0xD800 < code <= 0xDFFF),
    *("a.py", "a b.py", ".hidden", "...", "-c", "C:x", "a.", "täst.py", "ta\u0308st.py", "\u2025/x", "😀", "é" * 127),
    *("x" * 255, "a/" * 127 + "b", "é" * 128),
    *(".", "..", "../a", "a/..", "a/../b", "./a", "/a", "a//b", "a/", " a", "a ", ".. /a", "a/ /b", "..\\a"),
]
BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
FILE = {"sha256": "0" * 64, "sizeBytes": 1}


def refused_by_models(names):
    def refused(name):
        try:
            return check_workspace_path(name) != name
        except ValueError:
            return True

    return {index for index, name in enumerate(names) if refused(name)}


def refused_by_the_api_server(admin, names, field):
    found = set()
    step = 64 if field == "blocks" else 16
    for start in range(0, len(names), step):
        part = names[start : start + step]
        if field == "blocks":
            execution = an_execution("names", [{**BLOCK, "filename": name} for name in part])
        else:
            execution = an_execution("names", [BLOCK], files=[{**FILE, "path": name} for name in part])
        refusal = admin.try_create(execution, dry_run=True)
        indices = re.findall(rf"spec\.{field}\[(\d+)\]\.\w+: Invalid value", refusal.message) if refusal else []
        assert (refusal is None) == (not indices), refusal
        found |= {start + int(index) for index in indices}
    return found


@pytest.mark.parametrize("field", ["blocks", "files"])
def test_the_api_server_takes_the_names_that_client_and_operator_take(admin, field):
    expected = refused_by_models(NAMES)
    assert 50 < len(expected) < len(NAMES) - 50
    assert refused_by_the_api_server(admin, NAMES, field) == expected


def test_the_api_server_takes_no_name_that_is_too_long(admin):
    """Apart from the others: where a text is too long, no rule is looked at any more."""
    names = ["x" * 255, "x" * 256, "é" * 256]
    refusal = admin.try_create(an_execution("names", [{**BLOCK, "filename": one} for one in names]), dry_run=True)
    assert set(re.findall(r"spec\.blocks\[(\d+)\]\.filename: Too long", refusal.message)) == {"1", "2"}
