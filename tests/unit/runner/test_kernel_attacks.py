"""Nothing that a kernel says or leaves behind ends the runner, or is the answer of another cell."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"


def bash(code: str) -> dict[str, Any]:
    return {"path": "block.sh", "command": ["bash"], "language": "bash", "code": code}


# Where there is Landlock, a cell can't open what its host has open.
AS_UNDER_GVISOR = "import confinement; confinement.landlock_version = lambda: 0"
SPEAKS_FOR_ITS_HOST = """
import os, time
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if b"kernel_host" in open(f"/proc/{pid}/cmdline", "rb").read(): folder = f"/proc/{pid}/fd"
pipes = [fd for fd in os.listdir(folder) if int(fd) > 2 and os.readlink(f"{folder}/{fd}").startswith("pipe:")]
answers = os.open(f"{folder}/{pipes[0]}", os.O_WRONLY)
os.write(answers, b'{"cell": 1, "exitCode": 7}'.ljust(4095) + b"\\n" + REST + b"\\n")  # 4096 bytes are read at once
time.sleep(60)
"""
NO_ANSWERS = {
    "a list": b"[]",
    "nested deeply": b"[" * 4000,
    "infinite": b'{"cell": 1, "exitCode": 1e999}',
    "no end": b" " * 9000,
}


@pytest.mark.parametrize("before", [AS_UNDER_GVISOR])
@pytest.mark.parametrize("rest", NO_ANSWERS)
def test_what_code_says_in_the_name_of_its_host_ends_the_kernel_at_most(rest: str, stateful: Any) -> None:
    first = stateful(SPEAKS_FOR_ITS_HOST.replace("REST", repr(NO_ANSWERS[rest])))
    assert first.endings == [(7, "NonZeroExit")]  # the control: what code said was heard
    second = stateful("print('there')")
    told = second.text("stderr")
    if second.endings == [(1, "NonZeroExit")]:  # the rest was heard with the order for this cell only
        second = stateful("print('there')")
    assert (second.text(), second.endings) == ("there\n", [(0, "Completed")])
    assert "the Python kernel" in told
    assert told.endswith("gone\n")


LINES = {
    b'{"cell": 2, "exitCode": 0}': 0,
    b' {"exitCode":255,"cell":2} ': 255,
    **dict.fromkeys(b'{"cell": 2, "exitCode": %s}' % code for code in b"256 -1 1e999 1.0 NaN true null [] {}".split()),
    **dict.fromkeys(b'{"cell": %s, "exitCode": 0}' % cell for cell in b"1 3 null [] {} 1e999".split()),
    **dict.fromkeys(
        (b"", b"1", b"null", b'"ready"', b"[]", b"\xff\xfe\x00", b"{}", b'{"cell": 2}', b'{"exitCode": 0}')
    ),
    b'{"cell": 2, "exitCode": 0, "more": 1}': None,
    b'{"ready": true}': None,  # it was ready before
    b"9" * 4096: None,
    b"[" * 4096: None,
}


def test_of_all_lines_only_the_answer_that_is_waited_for_is_taken() -> None:
    """Others are told from it without an exception, whatever they are, and it is taken once."""
    code = f"""
import kernel
def taken(line):
    one = kernel.Kernel(None, None, None, {{}})
    one._ready, one._cell, one._awaiting = True, 2, True
    took = one._take(line)
    assert took == (one.answer is not None) and not one._take({b'{"cell": 2, "exitCode": 0}'!r} if took else line)
    return one.answer
print([taken(line) for line in {list(LINES)!r}])
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=SOURCES, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{list(LINES.values())}\n", "")


@pytest.mark.parametrize("before", [AS_UNDER_GVISOR])
@pytest.mark.parametrize("space", [b"", b" " * 4096], ids=["at once", "behind a space"])
def test_no_cell_has_ended_before_it_was_to_begin(space: bytes, stateful: Any) -> None:
    first = b'{"cell": 1, "exitCode": 0}'.ljust(4095)
    ahead = SPEAKS_FOR_ITS_HOST.replace('b\'{"cell": 1, "exitCode": 7}\'.ljust(4095)', repr(first))
    report = stateful(ahead.replace("REST", repr(space + b'{"cell": 2, "exitCode": 0}')), "print('ran')")
    assert report.endings == [(0, "Completed"), (1, "NonZeroExit")]
    assert report.text("stderr") == "the Python kernel ended (exit code 1); its variables are gone\n"
    assert stateful("print('ran')").text() == "ran\n"


REPORT = {"report": True, "kernel": True, "pids": 64, "memoryBytes": 2**28}


@pytest.mark.parametrize("before", [AS_UNDER_GVISOR])
def test_a_kernel_that_is_not_heard_any_more_is_dead_before_another_starts(stateful: Any) -> None:
    stateful(SPEAKS_FOR_ITS_HOST.replace("REST", "b'[]'"))
    connection = stateful.func.__self__
    connection.say(REPORT)
    assert connection.hear("ready").frames[-1]["kernel"] is True
    there = stateful(bash("cd /proc; echo [0-9]*")).text().split()
    assert len(there) == 4  # the runner, the two of the new kernel, and this shell


SPOILS = """
import contextlib, fcntl, os
for name in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
        if "interrupted" in os.readlink(f"/proc/self/fd/{name}"): inherited = int(name)
file = os.open(f"/proc/self/fd/{inherited}", os.O_RDWR)
ATTACK
"""
ATTACKS = {
    "sealed": "n = fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)",
    "large": "os.ftruncate(file, 1 << 20)",
    "empty": "os.ftruncate(file, 0)",
    "closed": "os.close(inherited)",
    "set": "n = os.pwrite(file, b'1', 0)",
    "flags": "n = fcntl.fcntl(inherited, fcntl.F_SETFL, os.O_APPEND)",
}


@pytest.mark.parametrize("before", [AS_UNDER_GVISOR])
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_code_does_to_the_word_that_it_is_interrupted_is_its_own_loss(attack: str, stateful: Any) -> None:
    assert stateful(SPOILS.replace("ATTACK", ATTACKS[attack])).endings == [(0, "Completed")]
    assert stateful("print('there')").text() == "there\n"
    # It has begun, so that the signal reaches it, whatever the word is.
    late = stateful("f = open('later', 'w'); print()\nwhile True: pass", timeoutSeconds=60)
    assert late.endings == [(124, "DeadlineExceeded")]
    assert "done" in late.frames[-1]


DEEP = """
import os, sys
os.chdir(os.path.dirname(os.environ["IPYTHONDIR"]))
for number in range(1500): os.mkdir("d"); os.chdir("d")
os._exit(3)
"""


@pytest.mark.parametrize("before", ["kernel.FOLDER_SECONDS = 60"])
def test_a_folder_that_is_too_deep_does_not_end_the_runner(stateful: Any, sandbox: Any) -> None:
    report = stateful(DEEP)
    assert report.endings == [(3, "NonZeroExit")]
    assert "done" in report.frames[-1]
    assert stateful("print('there')").text() == "there\n"
    assert len(list(sandbox.temporary.iterdir())) == 1  # that of the new kernel


@pytest.fixture
def small(sandbox: Any) -> None:
    """The kernel's folder is in a small file system, as `/tmp` is in a pod."""
    sandbox.workspace_bytes = 2**20


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("before", ["kernel.FOLDERS = workspace.WORKSPACE"])
def test_a_full_disk_keeps_the_kernel_from_starting_and_not_the_runner_from_running(stateful: Any) -> None:
    stateful("import os; os._exit(3)")
    stateful(bash("cat /dev/zero >fill 2>/dev/null || true"))
    connection = stateful.func.__self__
    connection.say(REPORT)
    assert connection.hear("ready").frames[-1]["kernel"] is False
    report = stateful("print('never')")
    assert (report.text(), report.endings) == ("", [(1, "NonZeroExit")])
    assert report.text("stderr").endswith("No space left on device\nthe Python kernel could not be started\n")
    assert stateful(bash("rm fill"), "print('there')").text() == "there\n"
