"""No room for files: the code hears of it as on any machine, what it has printed is kept, and the runner goes on."""

import hashlib
from typing import Any

import pytest

ROOM = 64 * 1024
FILL = """
import contextlib
with open("fill", "wb", buffering=0) as file:
    with contextlib.suppress(OSError):
        while True: file.write(bytes(4096))
"""
NO_ROOM = "OSError: [Errno 28] No space left on device"


@pytest.fixture
def full(sandbox: Any) -> Any:
    """The workspace has little room. The packages of a kernel are not in it."""
    sandbox.workspace_bytes = ROOM
    return sandbox


def test_what_was_printed_before_and_after_is_kept_and_the_code_tells_why_it_failed(full: Any) -> None:
    more = "print('full', flush=True); open('more', 'wb', buffering=0).write(b'x')"
    with full.connect() as connection:
        report = connection.run(f"print('so far ' * 5000, flush=True)\n{FILL}\n{more}")
        assert report.endings == [(1, "NonZeroExit")]
        assert report.text() == f"{'so far ' * 5000}\nfull\n"
        assert NO_ROOM in report.text("stderr")
        digest = hashlib.sha256(report.text().encode()).hexdigest()
        assert (report.totals["stdout"]["sha256"], report.totals["stdout"]["truncated"]) == (digest, False)
        assert connection.run("print('next')").text() == "next\n"


def test_more_output_than_there_is_room_for_files_is_kept(full: Any) -> None:
    """Output goes to nobody's disk but that of the node's log."""
    report = full.run(f"{FILL}\nprint('x' * 200_000)")
    assert report.endings == [(0, "Completed")]
    assert report.text() == "x" * 200_000 + "\n"


@pytest.mark.parametrize("path", ["data", "in/deep/data"])
def test_a_file_that_finds_no_room_ends_the_job_before_its_code_and_no_part_of_it_is_left(full: Any, path: str) -> None:
    find = f"import os; print(*map(os.path.exists, ('small', {path!r}, 'later')))"
    with full.connect() as connection:
        report = connection.run("print('ran')", files={"small": b"x", path: bytes(2 * ROOM), "later": b"x"})
        message = f"{path}: No space left on device"
        assert report.frames[-1]["fault"] == {"reason": "FileRefused", "message": message}
        assert report.text() == ""
        assert connection.run(find).text() == "True False False\n"
        room = f"print(open('other', 'wb', buffering=0).write(bytes({ROOM // 2})))"
        assert connection.run(room).text() == f"{ROOM // 2}\n"


def test_files_that_are_left_are_told_of_on_a_full_disk(full: Any) -> None:
    artifacts = {"list": "All", "fetch": ["result"]}
    report = full.run(f"open('result', 'w').write('kept')\n{FILL}", artifacts=artifacts)
    assert report.endings == [(0, "Completed")]
    assert report.sent == {"result": b"kept"}
    assert "fill" in report.artifacts


FIGURE = """
from IPython.display import display
display({"image/png": "eA==", "text/plain": "a figure"}, raw=True)
"""


@pytest.mark.parametrize("before", ["kernel.FOLDERS = workspace.WORKSPACE"])
@pytest.mark.usefixtures("full")
def test_cells_go_on_where_the_kernel_has_no_room_either(stateful: Any) -> None:
    assert stateful("x = 1; print('so far')").text() == "so far\n"
    assert stateful(f"print('before')\n{FILL}\nprint('full')").text() == "before\nfull\n"
    figure = stateful(FIGURE)
    assert figure.endings == [(1, "NonZeroExit")]
    assert NO_ROOM in figure.text("stderr")
    report = stateful("print(x)")
    assert (report.text(), report.endings) == ("1\n", [(0, "Completed")])
    assert stateful("import os; os.remove('fill')", FIGURE).text() == "a figure\n"
