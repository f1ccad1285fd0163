"""Stateful sessions: Python blocks are cells of an IPython kernel that stays."""

import base64
import hashlib
from typing import Any

import pytest

from codeexec._result import exception_in, is_display

PIXEL = base64.b64encode(b"\x89PNG of a kind").decode()


def bash(code: str) -> dict[str, Any]:
    return {"path": "block.sh", "command": ["bash"], "language": "bash", "code": code}


def test_variables_stay_and_are_those_of_the_session(stateful: Any) -> None:
    first = stateful("x = 41", "print(x)")
    second = stateful("x + 1")
    assert (first.text(), first.text("stderr"), first.endings) == ("41\n", "", [(0, "Completed")] * 2)
    assert (second.text(), second.text("stderr"), second.endings) == ("42\n", "", [(0, "Completed")])
    assert second.totals["stdout"]["sha256"] == hashlib.sha256(b"42\n").hexdigest()


def test_a_kernel_can_be_started_before_the_first_job(stateful: Any) -> None:
    connection = stateful.func.__self__
    connection.say({"report": True, "kernel": True, "pids": 64, "memoryBytes": 2**28})
    assert connection.hear("ready").frames[-1]["kernel"] is True
    there = stateful(bash("cd /proc; echo [0-9]*")).text().split()
    assert stateful("import os; print(os.getpid())").text().strip() in there  # it is the one that was ready


def test_a_kernel_can_be_started_in_a_pod_that_stood_ready_and_the_first_job_waits_behind_it(stateful: Any) -> None:
    """As when a stateful session takes a pod of a pool: the operator does not wait for the second report."""
    connection = stateful.func.__self__
    report = {"report": True, "kernel": False, "pids": 64, "memoryBytes": 2**28}
    connection.say(report)
    assert connection.hear("ready").frames[-1]["kernel"] is False
    connection.say(report | {"kernel": True})
    first = stateful("x = 41", "print(x)")
    assert (first.frames[0]["ready"], first.frames[0]["kernel"]) == (True, True)
    assert (first.text(), first.endings) == ("41\n", [(0, "Completed")] * 2)
    assert stateful("print(x + 1)").text() == "42\n"


def test_a_job_is_cancelled_while_a_kernel_is_started_before_it(stateful: Any, job: Any) -> None:
    connection = stateful.func.__self__
    report = {"report": True, "kernel": True, "pids": 64, "memoryBytes": 2**28}
    connection.say(report, job("print(1)", session=True, stateful=True, id="a"), {"cancel": "a"})
    told = connection.hear("done")
    assert (told.frames[0]["kernel"], told.endings, told.text()) == (False, [(130, "Cancelled")], "")
    assert stateful("print(2)").text() == "2\n"


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("def f():\n    1 / 0\nf()", "ZeroDivisionError", "division by zero"),
        ("try:\n    1 / 0\nexcept Exception as error:\n    raise KeyError('x') from error", "KeyError", "'x'"),
        ("x = = 1", "SyntaxError", "invalid syntax"),
        ("raise ExceptionGroup('many', [ValueError('a')])", "ExceptionGroup", "many (1 sub-exception)"),
    ],
)
def test_the_client_reads_how_a_cell_failed(stateful: Any, code: str, name: str, message: str) -> None:
    failed = stateful(code)
    error = exception_in(failed.text("stderr"))
    assert error
    assert (error.name, error.message[: len(message)], failed.endings) == (name, message, [(1, "NonZeroExit")])


def test_what_is_written_comes_in_order_whoever_writes_it(stateful: Any) -> None:
    code = """
import os, subprocess, sys
from IPython.display import display
for turn in range(20):
    print("print", turn)
    os.system(f"echo child {turn}")
    display(turn)
    subprocess.run(["echo", "run", str(turn)])
    sys.stdout.buffer.write(b"\\xffbytes\\n")
"the value"
"""
    turns = [f"print {turn}\nchild {turn}\n{turn}\nrun {turn}\n\ufffdbytes\n" for turn in range(20)]
    assert stateful(code).text() == "".join(turns) + "'the value'\n"


def test_much_output_of_a_cell_is_complete(stateful: Any) -> None:
    code = (
        "import sys\nfor n in range(5000): sys.stdout.write('x' * 999 + '\\n')\nn = sys.stderr.write('e' * 3_000_000)"
    )
    report = stateful(code, outputBytes=16 * 2**20)
    assert report.text() == ("x" * 999 + "\n") * 5000
    assert report.text("stderr") == "e" * 3_000_000


def test_an_error_is_a_plain_traceback_and_the_kernel_stays(stateful: Any) -> None:
    report = stateful("y = 7\n1 / 0", "print('never')")
    assert report.endings == [(1, "NonZeroExit")]
    assert report.text() == ""
    assert "ZeroDivisionError: division by zero" in report.text("stderr")
    assert "\x1b" not in report.text("stderr")
    assert stateful("y").text() == "7\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit()", 0, ""),
        ("exit(4)", 4, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("1 +", 1, None),
        ("input()", 1, None),
    ],
)
def test_how_a_cell_ends(code: str, exit_code: int, stderr: str | None, stateful: Any) -> None:
    report = stateful(code)
    assert [code for code, _ in report.endings] == [exit_code]
    assert stderr is None or report.text("stderr") == stderr
    assert stateful("print('there')").text("stderr") == ""


ENDS = [
    *(
        "",
        "None",
        "0",
        "False",
        "3",
        "-1",
        "256",
        "2**40 + 5",
        "10**30",
        "-(10**30)",
        "True",
        "3.5",
        "''",
        "'0'",
        "'7'",
    ),
    *("'why'", "'None'", "b'x'", "ValueError()", "ValueError('disk full')", "['a']", "(0, 1)", "object"),
]
"""What `sys.exit` is given."""
OTHER_ENDS = [
    *(f"class E(SystemExit): pass\nraise E({value})" for value in ("", "0", "5", "'why'")),
    "class E(SystemExit): code = 3\nraise E",
    "raise SystemExit",
    "raise SystemExit((0,))",
    "import enum, sys\nclass E(enum.IntEnum): FOUR = 4\nsys.exit(E.FOUR)",
]


def test_a_cell_ends_with_the_code_and_the_words_of_a_script(stateful: Any) -> None:
    for code in (*(f"import sys\nsys.exit({value})" for value in ENDS), *OTHER_ENDS):
        cell = stateful(code)
        script = stateful({**bash(code), "command": ["python3"]})
        assert (cell.endings, cell.text("stderr")) == (script.endings, script.text("stderr")), code


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (r"raise ValueError('bad \ud83d token')", 1),
        (r"import sys; sys.exit('bad \ud83d token')", 1),
        ("class E(SystemExit):\n    code = property(lambda self: self.missing)\nraise E", 1),
        ("import sys\nclass Tee:\n    def write(self, text): pass\nsys.stdout = Tee()", 0),
        ("import sys\nwith open('o.txt', 'w') as sys.stdout: print('hi')", 0),
    ],
    ids=[
        "half a character",
        "half a character at the end",
        "an end without a code",
        "a stream without flush",
        "a closed stream",
    ],
)
def test_a_cell_ends_though_its_words_or_streams_are_broken(stateful: Any, code: str, exit_code: int) -> None:
    stateful("z = 5")
    report = stateful(code, timeoutSeconds=30)
    assert [one[0] for one in report.endings] == [exit_code]
    assert stateful("print(z)").text() == "5\n", "the kernel goes on, and so does its stdout"


def test_pictures_and_html_become_files_and_text_is_printed(stateful: Any, sandbox: Any) -> None:
    code = f"""
from IPython.display import HTML, SVG, Image, display
class Picture:
    def _repr_png_(self): return b"\\x89PNG of an object"
    def __repr__(self): return "a picture"
display(Image(data=__import__("base64").b64decode("{PIXEL}"), format="png"))
display(HTML("<b>é</b>"), SVG("<svg xmlns='http://www.w3.org/2000/svg'></svg>"))
Picture()
"""
    report = stateful("1", code, artifacts={"list": "Changed", "fetch": ["output-*"]})
    assert report.text("stderr") == ""
    assert report.text().splitlines()[-1] == "a picture"
    assert list(report.artifacts) == ["output-2-1.png", "output-2-2.html", "output-2-3.svg", "output-2-4.png"]
    assert all(map(is_display, report.artifacts))
    assert report.sent["output-2-1.png"] == b"\x89PNG of a kind"
    assert report.sent["output-2-2.html"] == "<b>é</b>".encode()
    assert report.sent["output-2-4.png"] == b"\x89PNG of an object"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import os; print('last words', end=''); os._exit(3)", 3),
        ("import os; print('last words', end=''); os._exit(0)", 1),
        ("import os; print('last words', end=''); os.kill(os.getpid(), 9)", 137),
    ],
)
def test_a_kernel_that_ends_is_told_and_replaced(code: str, exit_code: int, stateful: Any) -> None:
    stateful("z = 5")
    report = stateful(code)
    assert report.endings == [(exit_code, "NonZeroExit")]
    assert report.text() == "last words"
    assert report.text("stderr") == f"the Python kernel ended (exit code {exit_code}); its variables are gone\n"
    report = stateful("'z' in globals()")
    assert (report.text(), report.text("stderr"), report.endings) == ("False\n", "", [(0, "Completed")])


def test_a_kernel_that_ends_while_nobody_uses_it_is_told_later(stateful: Any) -> None:
    stateful("z = 5; open('pid', 'w').write(str(__import__('os').getpid()))")
    assert stateful(bash("kill -9 $(cat pid)")).text("stderr") == ""
    report = stateful("'z' in globals()")
    assert report.text() == "False\n"
    assert report.text("stderr") == "the Python kernel had ended; the variables of earlier executions are gone\n"
    assert stateful("1").text("stderr") == ""


def test_a_host_that_is_killed_ends_the_cell(stateful: Any) -> None:
    code = """
import os, time
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if b"kernel_host" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(int(pid), 9)
time.sleep(60)
"""
    report = stateful(code)
    assert report.endings == [(1, "NonZeroExit")]
    assert report.text("stderr") == "the Python kernel ended (exit code 1); its variables are gone\n"
    assert stateful("1").text() == "1\n"


def test_nothing_but_variables_and_files_gets_into_the_next_job(stateful: Any) -> None:
    """A thread of the kernel and a process that a cell has left behind, both writing for ever."""
    noise = """
import os, subprocess, threading, time
written = threading.Event()
def write():
    while True:
        os.write(1, b"noise\\n")
        written.set()
subprocess.Popen(["sh", "-c", "while :; do echo noise of a process; sleep 0.01; echo > heard; done"])
while not os.path.exists("heard"):  # before the other one, which fills all the room that output has
    time.sleep(0.01)
threading.Thread(target=write, daemon=True).start()
written.wait()
"""
    heard = stateful(noise).text()
    assert "noise\n" in heard
    assert "noise of a process\n" in heard
    report = stateful(bash("ls /proc | grep -c '^[0-9]'; for f in /proc/[0-9]*/stat; do cat $f; done"))
    assert "noise" not in report.text()
    # The runner, the two of the kernel, what its cell left as a zombie, and those of this block.
    states = [line.rpartition(") ")[2][0] for line in report.text().splitlines()[1:]]
    assert states.count("T") == 2
    assert "noise" not in stateful().text()


def test_other_blocks_run_as_ever_and_share_the_folder(stateful: Any) -> None:
    report = stateful("open('x', 'w').write('from python')", bash("cat x; exit 3"), "print('never')")
    assert report.text().endswith("from python")
    assert report.endings == [(0, "Completed"), (3, "NonZeroExit")]
    report = stateful(bash("sleep 60"), timeoutSeconds=0.3)
    assert report.endings == [(124, "DeadlineExceeded")]


def test_a_file_that_is_named_like_a_module_does_not_stand_in_the_way(stateful: Any) -> None:
    files = {name: b"raise RuntimeError('planted')" for name in ("zmq.py", "json.py", "ipykernel.py", "random.py")}
    assert stateful("import os; os._exit(1)", files=files).endings == [(1, "NonZeroExit")]
    assert stateful("print(1)").text() == "1\n"


def test_cells_are_confined(stateful: Any) -> None:
    report = stateful(
        "import os, resource, socket\n"
        "def attempt(action, *arguments):\n"
        "    try: action(*arguments)\n"
        "    except PermissionError: print('refused')\n"
        "attempt(socket.socket, socket.AF_INET); attempt(os.kill, 1, 9); attempt(open, '/var/tmp/x', 'w')\n"
        "print(resource.getrlimit(resource.RLIMIT_NPROC))",
        pids=50,
    )
    assert report.text() == "refused\nrefused\nrefused\n(51, 51)\n"


def test_an_image_without_the_kernel_says_so(sandbox: Any) -> None:
    with sandbox.connect(before="runner.ENVIRONMENT['PYTHONPATH'] = '/nowhere'") as connection:
        report = connection.run("print(1)", stateful=True)
    assert report.endings == [(1, "NonZeroExit")]
    assert "ModuleNotFoundError: No module named" in report.text("stderr")
    assert report.text("stderr").endswith("the Python kernel could not be started\n")
    assert report.text() == ""
