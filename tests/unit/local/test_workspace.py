"""What the folder of a local sandbox is found to hold. No code runs, so that it needs no Landlock."""

from collections.abc import Iterator

import pytest

from codeexec_api import ArtifactRequest
from executor_client.local.workspace import Workspace, delete

MANY = 20_100


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    made = Workspace()
    yield made
    delete(made.root)


def test_no_file_is_missing_without_a_word(workspace: Workspace) -> None:
    """Code may make any number of them, and in folders too deep for a name."""
    workspace.survey()
    for index in range(MANY):
        (workspace.files / f"{index:05}").touch()
    (workspace.files / "z").mkdir()
    (workspace.files / "z" / "last").write_bytes(b"1")
    workspace.write("00000", b"", anew=True)  # as the source of a block
    request = ArtifactRequest(list="Changed", fetch=("z/last",))
    listed, omitted, contents = workspace.selected(request)
    assert contents == {"z/last": b"1"}
    assert [one.path for one in listed] == [f"{index:05}" for index in range(1, 256)] + ["z/last"]
    assert len(listed) + omitted == MANY
    changed, left, _ = workspace.changed()
    assert [one.path for one in changed] == [f"{index:05}" for index in range(1, 257)]
    assert (len(changed) + left, {one.fetched for one in changed}) == (MANY, {False})


def test_what_has_no_usable_name_is_counted(workspace: Workspace) -> None:
    for name in (b"broken\xff", b"line\nend"):
        (workspace.files / name.decode(errors="surrogateescape")).touch()
    assert workspace.selected(ArtifactRequest(list="All"))[:2] == ((), 2)


def test_a_file_counts_as_changed_once_it_has_other_content_or_is_another(workspace: Workspace) -> None:
    """Also the source of a block, which is put in after the survey."""
    for name in ("same", "written", "replaced"):
        workspace.write(name, b"1")
    workspace.survey()
    for name in ("source", "source-written"):
        workspace.write(name, b"1", anew=True)
    for name in ("written", "source-written"):
        (workspace.files / name).write_bytes(b"22")
    (workspace.files / "other").write_bytes(b"1")
    (workspace.files / "other").replace(workspace.files / "replaced")
    assert [one.path for one in workspace.changed()[0]] == ["replaced", "source-written", "written"]
