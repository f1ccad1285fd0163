"""Files: inside the workspace, whatever their names are."""

import json
import os
import stat
from typing import Any

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices and runs the runner as another user")


def test_files_are_written_before_the_first_block(run: Any, sandbox: Any) -> None:
    report = run("print(open('in/deep/data', 'rb').read())", files={"in/deep/data": b"\x00\xff", "empty": b""})
    assert report.text() == "b'\\x00\\xff'\n"
    assert (sandbox.workspace / "empty").read_bytes() == b""


def test_a_pod_that_got_a_file_and_no_job_is_reported_as_used(session: Any) -> None:
    """The operator may have ended between the two: whoever gets the pod then would find the file."""
    report = {"report": True, "kernel": False}
    session.say(report)
    assert session.hear("ready").frames[-1]["used"] is False, "control"
    session.say(*({"put": path, "data": "c2VjcmV0", "append": False} for path in ("secret", "next")), report)
    assert session.hear("ready").frames[-1]["used"] is True
    assert session.run("print(open('secret').read())").text() == "secret\n", "and finds it"


def test_a_block_is_written_under_its_path(run: Any, sandbox: Any) -> None:
    report = run({"path": "pkg/main.py", "code": "print(__file__.endswith('pkg/main.py'))"})
    assert report.text() == "True\n"
    assert (sandbox.workspace / "pkg" / "main.py").read_text() == "print(__file__.endswith('pkg/main.py'))"


def test_a_file_takes_the_place_of_a_longer_one(run: Any) -> None:
    report = run("open('next.py', 'w').write('#' * 500)", {"path": "next.py", "code": "print('new')"})
    assert report.text() == "new\n"


@pytest.mark.parametrize(
    "path", ["../out.py", "a/../../out.py", "/tmp/codeexec-out.py", "a//b.py", "", ".", "..", "a/", "a\0b"]
)
def test_a_path_that_is_not_inside_is_refused_and_named(path: str, run: Any, sandbox: Any) -> None:
    report = run({"path": path, "code": "print('ran')"})
    assert report.endings == [(126, "NonZeroExit")]
    assert f"is not a path inside the workspace: {path}\n" in report.text("stderr")
    assert report.text() == ""
    assert not (sandbox.folder / "out.py").exists()


IN_FOLDERS = {
    "link to a folder": ("os.mkdir('e'); os.rename('victim', 'e/x.py'); os.symlink('e', 'd')", "d/x.py", "e/x.py"),
    "link to the folder above": ("os.symlink('../workspace', 'd')", "d/victim", "victim"),
}
EARLIER = "import os; open('victim', 'w').write('before'); {}; open({!r}, 'w').write('through')"


@pytest.mark.parametrize(("plant", "path", "victim"), IN_FOLDERS.values(), ids=IN_FOLDERS)
def test_no_link_is_followed_to_a_folder(plant: str, path: str, victim: str, run: Any, sandbox: Any) -> None:
    report = run(EARLIER.format(plant, path), {"path": path, "code": "print('ran')"})
    assert [code for code, _ in report.endings] == [0, 126]
    assert report.text("stderr").endswith(f": {path}\n")
    assert report.text() == ""
    # The control: what earlier code wrote under the same path went through.
    assert (sandbox.workspace / victim).read_text() == "through"


DEFAULT_NAME = f"tmp_code_{'0' * 64}.py"
"""It is made of the digest of the code, which earlier code may know."""
IN_ITS_PLACE = {
    "link to a file": ("os.symlink('victim', 'x.py')", "x.py"),
    "link under a default name": (f"os.symlink('victim', {DEFAULT_NAME!r})", DEFAULT_NAME),
    "second name": ("os.link('victim', 'x.py')", "x.py"),
}


@pytest.mark.parametrize(("plant", "path"), IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
def test_what_stands_in_the_place_of_a_block_goes_and_is_not_written_through(
    plant: str, path: str, run: Any, sandbox: Any
) -> None:
    report = run(EARLIER.format(plant, path), {"path": path, "code": "print('ran')"})
    assert (report.text(), report.endings[1:]) == ("ran\n", [(0, "Completed")])
    assert (sandbox.workspace / path).read_text() == "print('ran')"
    assert (sandbox.workspace / "victim").read_text() == "through"  # by what earlier code wrote: the control


@needs_root
@pytest.mark.parametrize(
    "plant",
    [
        "os.mkfifo('x.py')",
        "import socket; socket.socket(socket.AF_UNIX).bind('x.py')",
        "os.close(os.open('x.py', os.O_CREAT, 0))",
    ],
)
def test_what_can_not_be_written_to_goes(plant: str, run: Any) -> None:
    report = run(f"import os; {plant}", {"path": "x.py", "code": "print('ran')"})
    assert (report.text(), report.text("stderr")) == ("ran\n", "")


def test_who_reads_a_fifo_is_not_given_the_code(run: Any, sandbox: Any) -> None:
    fifo = sandbox.workspace / "x.py"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert run("open('x.py', 'w').write('through')").endings == [(0, "Completed")]
    assert os.read(reader, 100) == b"through"  # the control
    assert run({"path": "x.py", "code": "print('ran')"}).text() == "ran\n"
    assert os.read(reader, 100) == b""
    os.close(reader)


@needs_root
def test_a_device_is_not_written_to(run: Any, sandbox: Any) -> None:
    device = sandbox.workspace / "x.py"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
    device.chmod(0o666)
    assert run({"path": "x.py", "code": "print('ran')"}).text() == "ran\n"
    assert device.read_text() == "print('ran')"


IN_THE_WAY = {
    "folder of that name": ("import os; os.mkdir('x.py')", "x.py"),
    "file for a folder": ("open('d', 'w')", "d/x.py"),
    "FIFO for a folder": ("import os; os.mkfifo('d')", "d/x.py"),
    "link to itself": ("import os; os.symlink('d', 'd')", "d/x.py"),
    "name that is too long": ("", "n" * 256),
    "folder whose name is too long": ("", "n" * 256 + "/x.py"),
}


@pytest.mark.parametrize(("before", "path"), IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_what_can_not_be_written_is_a_result_that_names_it(before: str, path: str, run: Any) -> None:
    report = run(before, {"path": path, "code": "print('ran')"})
    assert [code for code, _ in report.endings] == [0, 126]
    assert report.text("stderr").startswith("python3: ")
    assert report.text("stderr").endswith(f": {path}\n")
    assert report.text() == ""


@needs_root
@pytest.mark.parametrize(
    ("before", "path"),
    [
        ("import os; os.mkdir('d', 0)", "d/x.py"),
        ("import os; os.chmod('.', 0)", "x.py"),
    ],
)
def test_a_workspace_without_permissions_is_a_result_that_says_so(before: str, path: str, run: Any) -> None:
    report = run(before, {"path": path, "code": "print('ran')"})
    assert [code for code, _ in report.endings] == [0, 126]
    assert report.text("stderr") == f"python3: Permission denied: {path}\n"


EMPTY = """
import os, shutil
for entry in os.scandir("."):
    shutil.rmtree(entry) if entry.is_dir() else os.remove(entry)
"""


def test_a_workspace_that_earlier_code_has_emptied_is_filled_again(run: Any) -> None:
    report = run(EMPTY, {"path": "d/x.py", "code": "print('ran')"}, files={"d/data": b""})
    assert report.text() == "ran\n"


@pytest.mark.parametrize(
    "path", ["a b.py", "täst.py", "ta\u0308st.py", "\u2025/x.py", "\uff0e\uff0e\uff0fx.py", "C:x.py"]
)
def test_an_odd_name_is_a_file_of_exactly_that_name(path: str, run: Any, sandbox: Any) -> None:
    report = run({"path": path, "code": "print(__file__)"})
    assert report.text().endswith(f"{path}\n")
    assert [str(one.relative_to(sandbox.workspace)) for one in sandbox.workspace.rglob("*.py")] == [path]


RACE = """
import ctypes, hashlib, json, os, sys
os.chdir(workspace.WORKSPACE)
os.mkdir("d")
os.mkdir("elsewhere")
os.symlink("elsewhere", "link")
libc = ctypes.CDLL(None)
calls_left = 0

def swap():
    libc.renameat2(-100, b"d", -100, b"link", 2)  # AT_FDCWD, RENAME_EXCHANGE

def just_before_a_call(event, _):
    global calls_left
    if event in ("open", "os.mkdir", "os.remove"):
        calls_left -= 1
        if calls_left == 0:
            swap()

def write_block(path, content):
    digest = hashlib.sha256(content).hexdigest()
    workspace.replace_file(path, {"path": path, "code": content.decode(), "sha256": digest})

def check_and_write(path, content):
    if not os.path.islink("d"):
        with open(path, "wb") as file:
            file.write(content)

def attempts(write):
    global calls_left
    outcomes = []
    for moment in range(1, 8):
        calls_left = moment
        try:
            write("d/x.py", b"x")
            outcome = "written"
        except OSError:
            outcome = "refused"
        calls_left = 0
        if os.path.islink("d"):
            swap()
        led_astray = os.listdir("elsewhere")
        for name in led_astray:
            os.remove(f"elsewhere/{name}")
        outcomes.append("led astray" if led_astray else outcome)
    return outcomes

sys.addaudithook(just_before_a_call)
outcomes = {"ours": attempts(write_block), "control": attempts(check_and_write)}
with open("report", "w") as report:
    json.dump(outcomes, report)
"""


def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere(run: Any, sandbox: Any) -> None:
    """The swap comes at the worst moments: just before each call of the writer that takes a name."""
    run("", before=RACE)
    report = json.loads((sandbox.workspace / "report").read_text())
    assert "led astray" in report["control"]  # who checks first and writes then
    assert set(report["ours"]) == {"refused", "written"}


def test_a_file_that_leads_out_ends_the_job(run: Any, sandbox: Any) -> None:
    report = run("print('ran')", files={"fine": b"x", "../out": b"x", "later": b"x"}, id="job")
    message = "../out: is not a path inside the workspace"
    assert report.frames == [{"id": "job", "seq": 0, "fault": {"reason": "FileRefused", "message": message}}]
    assert not (sandbox.workspace / "later").exists()
    assert not (sandbox.folder / "out").exists()


@pytest.mark.parametrize("path", ["-", "-c", "-V.py", "--help"])
def test_a_file_name_is_never_taken_for_an_option(path: str, run: Any) -> None:
    report = run({"path": path, "code": "print('ran')"})
    assert report.text() == "ran\n"
