"""Blocks, their order and how they end."""

import hashlib
import time
from typing import Any

import pytest


def test_one_block(run: Any) -> None:
    before = time.time()
    report = run("print('hello')", id="job")
    assert (report.text(), report.text("stderr")) == ("hello\n", "")
    [block] = report.blocks
    assert (block["exitCode"], block["reason"], block["stdoutBytes"], block["stderrBytes"]) == (0, "Completed", 6, 0)
    assert before <= block["startedAt"] <= time.time()
    assert 0 < block["durationMs"] < 90_000
    assert report.totals["done"] is True
    assert report.totals["stdout"]["bytes"] == 6
    assert report.totals["stdout"]["sha256"] == hashlib.sha256(b"hello\n").hexdigest()
    assert [frame["seq"] for frame in report.frames] == list(range(len(report.frames)))
    assert {frame["id"] for frame in report.frames} == {"job"}
    assert (report.status, report.errors) == (0, "")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(124)", 124),
        ("raise ValueError", 1),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 11)", 139),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_exit_codes(code: str, exit_code: int, run: Any) -> None:
    assert run(code).endings == [(exit_code, "Completed" if exit_code == 0 else "NonZeroExit")]


THREE_PROGRAMS = """
for program in ("python3", "bash", "sh"):
    os.symlink(f"/usr/bin/{program}", f"{kernel.FOLDERS}/{program}")
runner.ENVIRONMENT["PATH"] = kernel.FOLDERS
"""


def test_a_language_that_the_image_lacks_is_told_with_those_it_has(run: Any) -> None:
    node = {"path": "a.js", "command": ["node"], "language": "javascript", "code": "console.log(1)"}
    report = run("print('before')", node, "print('never')", before=THREE_PROGRAMS)
    assert report.endings == [(0, "Completed"), (1, "NonZeroExit")]
    assert report.text() == "before\n"
    assert report.text("stderr") == (
        "unknown language javascript: the sandbox image has no node (Unsupported language: javascript); "
        "supported languages: python, bash, sh\n"
    )
    assert report.blocks[1]["stderrBytes"] == len(report.text("stderr"))


def test_a_program_that_can_not_be_started_is_named(run: Any) -> None:
    """Its file is there, but what it names as its interpreter is not."""
    code = "open('odd', 'w').write('#!/no/such/program'); import os; os.chmod('odd', 0o755)"
    broken = {"path": "b", "command": ["./odd"], "language": "other", "code": ""}
    report = run(code, broken)
    assert report.endings == [(0, "Completed"), (127, "NonZeroExit")]
    assert "./odd: No such file or directory" in report.text("stderr")


def test_shells(run: Any) -> None:
    report = run(
        {"path": "a.sh", "command": ["sh"], "code": "echo $0"}, {"path": "b.sh", "command": ["bash"], "code": "exit 7"}
    )
    assert report.text() == "a.sh\n"
    assert [code for code, _ in report.endings] == [0, 7]


def test_blocks_share_the_workspace_and_stop_at_the_first_failure(run: Any) -> None:
    report = run("open('x', 'w').write('from one')", "print(open('x').read()); raise SystemExit(4)", "print('never')")
    assert [code for code, _ in report.endings] == [0, 4]
    assert report.text() == "from one\n"


def test_bytes_are_counted_for_each_block(run: Any) -> None:
    report = run("print('one')", "import sys; sys.stderr.write('three')")
    assert [(block["stdoutBytes"], block["stderrBytes"]) for block in report.blocks] == [(4, 0), (0, 5)]


def test_stdin_is_empty(run: Any) -> None:
    assert run("import sys; print(repr(sys.stdin.read()))").text() == "''\n"


def test_the_environment_is_exactly_the_table(run: Any) -> None:
    report = run("import os; print(dict(os.environ))", before="print(runner.ENVIRONMENT, file=sys.stderr)")
    assert report.text() == report.errors


def test_code_inherits_no_descriptors(run: Any) -> None:
    # The last one is that of listing the folder.
    assert run("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))").text() == "[0, 1, 2, 3]\n"


def test_code_may_be_empty_or_not_ascii(run: Any) -> None:
    report = run("", "print('é€😀\\0')")
    assert report.text() == "é€😀\0\n"
    assert [code for code, _ in report.endings] == [0, 0]


def test_a_process_number_that_is_used_again_is_not_mistaken_for_an_old_one(run: Any) -> None:
    """Block one leaves an orphan behind that ends with 7, and sees to it that block two gets its process number."""
    # Which number comes next can be set by root, but not by confined code: a process outside does it.
    servant = """
for name in ("wanted", "done"):
    os.mkfifo(f"{workspace.WORKSPACE}/{name}")
if os.fork() == 0:
    wanted = open(f"{workspace.WORKSPACE}/wanted").read()
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(wanted)
    open(f"{workspace.WORKSPACE}/done", "w").close()
    os._exit(0)
"""
    orphan = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        time.sleep(0.1)
        os._exit(7)
    os._exit(0)
os.wait()
pid = os.read(read, 20).decode()
while os.path.exists(f"/proc/{pid}"):
    time.sleep(0.01)
with open("wanted", "w") as wanted:
    wanted.write(str(int(pid) - 1))
open("done").read()
print(pid)
"""
    report = run(orphan, "import os; print(os.getpid())", privileged=True, before=servant)
    first, *rest = report.text().split()
    assert report.endings == [(0, "Completed"), (0, "Completed")]
    assert rest == [first]
