"""Code blocks on their way to the cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.languages import unknown_language
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import MAX_BLOCKS, MAX_CODE_BYTES, MAX_FILES, MAX_PAYLOAD_BYTES
from executor_client.model import blocks
from executor_client.model.blocks import (
    PreparedBlock,
    SourceBlock,
    WorkspaceFile,
    check_size,
    count_parts,
    file_name,
    payload_of,
    prepare,
    split_payload,
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
        (SourceBlock("ruby", "puts 1"), unknown_language("ruby")),
        (SourceBlock("python", "# filename: ../x.py\n"), f"{OUTSIDE}: '../x.py' has the part '..'; {REMEDY}"),
        (SourceBlock("python", "# filename: /etc/x\n"), f"{OUTSIDE}: '/etc/x' has the part ''; {REMEDY}"),
        (SourceBlock("python", "# filename:\n"), f"{OUTSIDE}: '' has the part ''; {REMEDY}"),
        (
            SourceBlock("python", "# filename: a\\b.py\n"),
            f"{OUTSIDE}: 'a\\\\b.py' contains U+005C; use letters, digits, punctuation and plain spaces",
        ),
    ],
)
def test_a_block_that_can_not_be_run_keeps_those_before_it(block: SourceBlock, refusal: str) -> None:
    prepared = prepare([SourceBlock("sh", "ls"), block, SourceBlock("sh", "never")])
    assert [one.content for one in prepared.runnable] == [b"ls"]
    assert prepared.refusal == refusal
    with pytest.raises(ValueError, match="nothing was run"):
        prepared.blocks  # noqa: B018 - else a block that can't be run would be a success without output


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
        assert prepared.runnable == ()
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


@pytest.mark.parametrize(
    ("block_sizes", "file_sizes", "refusal"),
    [
        ([MAX_CODE_BYTES], [MAX_PAYLOAD_BYTES - MAX_CODE_BYTES], None),
        ([1] * MAX_BLOCKS, [1] * MAX_FILES, None),
        ([1] * (MAX_BLOCKS + 1), [], r"65 blocks are too many for one execution \(at most 64\): split the call"),
        ([], [1] * (MAX_FILES + 1), "65 files are too many .*: upload them in several calls of one session"),
        ([MAX_CODE_BYTES, 1], [], "1000001 bytes of code are too many .*: upload data as files"),
        ([1], [MAX_PAYLOAD_BYTES], "16000001 bytes of code and files are too many .*at most 16000000"),
    ],
)
def test_limits_of_one_execution(block_sizes: list[int], file_sizes: list[int], refusal: str | None) -> None:
    prepared = [PreparedBlock("sh", b"x" * size) for size in block_sizes]
    sent = [WorkspaceFile("a", b"x" * size) for size in file_sizes]
    if refusal is None:
        check_size(prepared, sent)
    else:
        with pytest.raises(ValueError, match=refusal):
            check_size(prepared, sent)


def test_the_payload_has_a_key_for_each_block_and_file() -> None:
    payload = payload_of([PreparedBlock("sh", b"ls")], [WorkspaceFile("a", b""), WorkspaceFile("b", b"bb")])
    assert payload == {"block-0": b"ls", "file-0": b"", "file-1": b"bb"}
    assert payload_of([], []) == {}


@given(sizes=st.lists(st.integers(0, 40), max_size=6))
def test_a_payload_is_split_without_loss(sizes: list[int]) -> None:
    payload = {f"file-{index}": bytes([index]) * size for index, size in enumerate(sizes)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_PART_BYTES": 10, "MAX_PART_BYTES": 15, "MAX_PAYLOAD_PARTS": 16}.items():
            patch.setattr(blocks, name, value)
        parts = split_payload(payload, count_parts(payload))
        largest = max(sum(map(len, part.values())) for part in parts)
        assert 1 <= len(parts) <= 16
        assert largest <= (10 if sum(sizes) <= 160 else 15)
        assert {key: b"".join(part.get(key, b"") for part in parts) for key in payload} == payload
        assert all(any(key in part for part in parts) for key in payload)


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (750_000, 1), (750_001, 2), (12_000_001, 16), (16_000_000, 16)])
def test_number_of_parts(size: int, parts: int) -> None:
    payload = {"file-0": bytes(size)}
    assert count_parts(payload) == parts
    assert all(len(part.get("file-0", b"")) <= 1_000_000 for part in split_payload(payload, parts))


def test_a_payload_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="2000001 bytes don't fit into 2 Secrets of at most 1000000 bytes"):
        split_payload({"file-0": bytes(2_000_001)}, 2)
