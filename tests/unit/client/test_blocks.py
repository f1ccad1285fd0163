"""Code blocks on their way to the cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1 import MAX_PAYLOAD_BYTES
from executor_client.blocks import (
    PreparedBlock,
    SourceBlock,
    WorkspaceFile,
    check_size,
    file_name,
    prepare,
)

OUTSIDE = "Filename is not in the workspace"  # the words of AutoGen's own executors
REMEDY = "give a path relative to the workspace"


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
        (SourceBlock("python", "# filename: ../x.py\n"), f"{OUTSIDE}: '../x.py' has the part '..'; {REMEDY}"),
        (SourceBlock("python", "# filename: /etc/x\n"), f"{OUTSIDE}: '/etc/x' has the part ''; {REMEDY}"),
        (SourceBlock("python", "# filename:\n"), f"{OUTSIDE}: '' has the part ''; {REMEDY}"),
        (
            SourceBlock("python", "# filename: a\\b.py\n"),
            f"{OUTSIDE}: 'a\\\\b.py' holds U+005C; use letters, digits, signs and plain blanks",
        ),
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


@given(name=st.text(max_size=40))
def test_a_name_is_either_refused_or_arrives_as_it_was_written(name: str) -> None:
    prepared = prepare([SourceBlock("python", f"# filename: {name}\nprint(1)")])
    if prepared.refusal:
        assert prepared.refusal.startswith(OUTSIDE)
        assert prepared.blocks == ()
    else:
        [block] = prepared.blocks
        # In AutoGen's form a name ends at the end of the line or at a colon, without the blanks around it.
        assert block.file == name.split("\n")[0].split(":")[0].strip()
        assert block.announce().filename == check_workspace_path(block.file)


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
