"""Files: inside the workspace, whatever their names are."""

import os
from typing import Any

import pytest


def test_files_are_written_before_the_first_block(run: Any, sandbox: Any) -> None:
    report = run("print(open('in/deep/data', 'rb').read())", files={"in/deep/data": b"\x00\xff", "empty": b""})
    assert report.text() == "b'\\x00\\xff'\n"
    assert (sandbox.workspace / "empty").read_bytes() == b""


def test_a_block_is_written_under_its_path(run: Any, sandbox: Any) -> None:
    report = run({"path": "pkg/main.py", "code": "print(__file__.endswith('pkg/main.py'))"})
    assert report.text() == "True\n"
    assert (sandbox.workspace / "pkg" / "main.py").read_text() == "print(__file__.endswith('pkg/main.py'))"


def test_a_file_takes_the_place_of_a_longer_one(run: Any) -> None:
    report = run("open('next.py', 'w').write('#' * 500)", {"path": "next.py", "code": "print('new')"})
    assert report.text() == "new\n"


@pytest.mark.parametrize(
    "path", ["../out.py", "a/../../out.py", "/tmp/codeexec-out.py", "a//b.py", "", ".", "..", "a/"]
)
def test_a_path_that_is_not_inside_is_refused_and_named(path: str, run: Any, sandbox: Any) -> None:
    report = run({"path": path, "code": "print('ran')"})
    assert report.endings == [(126, "NonZeroExit")]
    assert f"is not a path inside the workspace: {path}\n" in report.text("stderr")
    assert report.text() == ""
    assert not (sandbox.folder / "out.py").exists()


@pytest.mark.parametrize(
    ("plant", "path"),
    [
        ("os.symlink('/tmp', 'link')", "link/codeexec-out.py"),
        ("os.symlink('/tmp/codeexec-out.py', 'link.py')", "link.py"),
        ("os.symlink('..', 'link')", "link/out.py"),
    ],
)
def test_links_that_earlier_code_has_planted_are_not_followed(plant: str, path: str, run: Any) -> None:
    report = run(f"import os; {plant}", {"path": path, "code": "print('ran')"})
    assert [code for code, _ in report.endings] == [0, 126]
    assert report.text() == ""
    assert not os.path.exists("/tmp/codeexec-out.py")


def test_a_fifo_that_earlier_code_has_planted_does_not_hang(run: Any) -> None:
    report = run("import os; os.mkfifo('pipe.py')", {"path": "pipe.py", "code": "print('ran')"}, timeoutSeconds=2)
    assert [code for code, _ in report.endings] == [0, 126]


def test_a_file_that_leads_out_ends_the_job_with_an_error(run: Any, sandbox: Any) -> None:
    report = run("print('ran')", files={"../out": b"x"})
    assert "is not a path inside the workspace" in report.frames[-1]["error"]
    assert report.text() == ""
    assert not (sandbox.folder / "out").exists()


@pytest.mark.parametrize("path", ["-", "-c", "-V.py", "--help"])
def test_a_file_name_is_never_taken_for_an_option(path: str, run: Any) -> None:
    report = run({"path": path, "code": "print('ran')"})
    assert report.text() == "ran\n"
