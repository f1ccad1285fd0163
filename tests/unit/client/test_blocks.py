"""Code blocks on their way to the cluster."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import Block
from codeexec_api.v1alpha1 import MAX_PAYLOAD_BYTES
from executor_client.blocks import (
    PreparedBlock,
    SourceBlock,
    WorkspaceFile,
    check_size,
    file_name,
    in_workspace,
    prepare,
)


def test_languages_are_normalized_and_code_is_kept_as_it_is() -> None:
    prepared = prepare([SourceBlock("Python", "print('é')\r\n"), SourceBlock("shell", "")])
    assert prepared.refusal == ""
    assert [(block.language, block.content) for block in prepared.blocks] == [
        ("python", "print('é')\r\n".encode()),
        ("sh", b""),
    ]


@pytest.mark.parametrize(
    ("block", "refusal"),
    [
        (SourceBlock("ruby", "puts 1"), "unknown language ruby; supported languages: python, bash, sh"),
        (SourceBlock("python", "# filename: ../x.py\n"), "Filename is not in the workspace: '../x.py'"),
        (SourceBlock("python", "# filename: /etc/x\n"), "Filename is not in the workspace: '/etc/x'"),
        (SourceBlock("python", "# filename:\n"), "Filename is not in the workspace: ''"),
    ],
)
def test_a_block_that_can_not_be_run_keeps_those_before_it(block: SourceBlock, refusal: str) -> None:
    prepared = prepare([SourceBlock("sh", "ls"), block, SourceBlock("sh", "never")])
    assert [one.content for one in prepared.blocks] == [b"ls"]
    assert prepared.refusal == refusal


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("# filename: a.py\nprint(1)", "a.py"),
        ("# filename:a.py", "a.py"),
        ("# filename:  pkg/a b.py  \r\nprint(1)", "pkg/a b.py"),
        ("# filename: a.py: the first", "a.py"),
        ("# filename:", ""),
        ("print(1)\n# filename: a.py", None),
        ("#filename: a.py", None),
        (" # filename: a.py", None),
        ("", None),
    ],
)
def test_file_name_of_the_first_line(code: str, name: str | None) -> None:
    assert file_name(code) == name


@pytest.mark.parametrize("name", ["a.py", "a/b/c.py", ".hidden", "...", "a b", "täst.py", "x" * 255])
def test_names_inside_the_workspace(name: str) -> None:
    assert in_workspace(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a", "a/..", "a/../b", "./a", "/a", "a//b", "a/", "a\\b", "a\nb", "a\0", "\u202ea", "x" * 256],
)
def test_names_outside_the_workspace(name: str) -> None:
    assert not in_workspace(name)


parts = st.sampled_from(["..", ".", "", "a", "...", "b.py", "~", "C:", "\\", "\x00", " "])


@given(name=st.one_of(st.text(max_size=30), st.lists(parts, max_size=5).map("/".join)))
def test_what_is_accepted_stays_inside_and_the_api_takes_it(name: str) -> None:
    if in_workspace(name):
        root = Path(tempfile.gettempdir()).resolve() / "workspace"
        target = (root / name).resolve()
        assert target.is_relative_to(root)
        assert target != root
        assert Block(language="python", filename=name, sha256="0" * 64, size_bytes=0).filename == name


def test_a_block_announces_its_digest_and_size_but_not_its_code() -> None:
    block = PreparedBlock("python", b"print('PLANTED')")
    announced = block.announce()
    assert announced.size_bytes == 16
    assert block.file == f"tmp_code_{announced.sha256}.py"
    assert "PLANTED" not in repr(block) + repr(announced)
    assert "PLANTED" not in repr(WorkspaceFile("a", b"PLANTED"))


def test_size_limit() -> None:
    half = b"x" * (MAX_PAYLOAD_BYTES // 2)
    check_size([PreparedBlock("sh", half)], [WorkspaceFile("a", half)])
    with pytest.raises(ValueError, match="have 1000001 bytes together; at most 1000000"):
        check_size([PreparedBlock("sh", half)], [WorkspaceFile("a", half + b"x")])
