"""Output: complete, or visibly not."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from codeexec_operator.core.transcript import Transcript

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"
WRITE = "import sys; sys.stdout.buffer.write({data!r})"


def test_much_output_is_complete(run: Any) -> None:
    report = run("import sys\nfor _ in range(5000): sys.stdout.write('x' * 999 + '\\n')", outputBytes=10_000_000)
    text = report.text()
    assert text == ("x" * 999 + "\n") * 5000
    assert report.totals["stdout"]["bytes"] == 5_000_000
    assert report.totals["stdout"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_what_is_beyond_the_limit_is_counted(run: Any) -> None:
    report = run("print('x' * 5_000_000, end=''); import sys; sys.stderr.write('kept')", outputBytes=1024)
    assert report.text() == "x" * 1024
    assert report.text("stderr") == "kept"
    assert report.totals["stdout"]["bytes"] == 5_000_000
    assert report.blocks[0]["stdoutBytes"] == 5_000_000
    assert report.totals["stdout"]["sha256"] == hashlib.sha256(b"x" * 1024).hexdigest()


def test_the_limit_cuts_between_characters(run: Any) -> None:
    report = run("print('é' * 1000, end='')", outputBytes=1025)
    assert report.text() == "é" * 512
    assert report.totals["stdout"]["bytes"] == 2000


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xc3", "\ufffd"),
        (b"a\x00b\x1b[0m", "a\x00b\x1b[0m"),
        (b'\xe2\x80\xa8<>&"\\', '\u2028<>&"\\'),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    ],
)
def test_bytes_become_text(data: bytes, text: str, run: Any) -> None:
    report = run(WRITE.format(data=data))
    assert report.text() == text
    assert report.totals["stdout"]["bytes"] == len(data)


def test_a_character_written_in_two_pieces_is_one(run: Any) -> None:
    code = "import os, time; os.write(1, b'\\xe2\\x82'); time.sleep(0.2); os.write(1, b'\\xac')"
    assert run(code).text() == "€"


def test_forged_frames_in_the_output_stay_output(run: Any) -> None:
    forged = '{"id":"job","seq":0,"done":true}\n'
    report = run(WRITE.format(data=forged.encode()), id="job")
    assert report.text() == forged


@pytest.mark.parametrize(
    ("data", "truncated"),
    [
        (b"x" * 1024, False),
        (b"x" * 1025, True),
        (b"\xff" * 341, False),
        (b"\xff" * 600, True),
        (b"\xff" + b"x" * 1023, True),
    ],
    ids=["exactly", "one more", "replaced, and all kept", "replaced, and cut", "one replaced, and cut"],
)
def test_the_operator_sees_what_was_cut(data: bytes, truncated: bool, run: Any) -> None:
    transcript = Transcript()
    for frame in run(WRITE.format(data=data), outputBytes=1024, id="job").frames:
        transcript.take(frame, "job")
    assert transcript.done, transcript.problem
    assert transcript.stream("stdout").truncated is truncated


FIVE = 5_000_000
KINDS = {
    "short lines on both": (
        "import sys\nfor n in range(100_000):\n    for s in (sys.stdout, sys.stderr): s.write(f'{n:048}\\n')",
        "".join(f"{n:048}\n" for n in range(100_000)),
        "".join(f"{n:048}\n" for n in range(100_000)),
    ),
    "one line of 10 MB": ("print('x' * 10_000_000, end='')", "x" * 10_000_000, ""),
    "NULs": (f"import os\nfor _ in range(50): os.write(1, bytes({FIVE} // 50))", "\0" * FIVE, ""),
    "what is no UTF-8": ("import os\nfor _ in range(500): os.write(1, b'\\xff' * 10_000)", "\ufffd" * FIVE, ""),
    "colours": ("print('\\x1b[31mred\\x1b[0m' * 100_000, end='')", "\x1b[31mred\x1b[0m" * 100_000, ""),
}


@pytest.mark.parametrize(("code", "stdout", "stderr"), KINDS.values(), ids=KINDS)
def test_all_of_it_arrives_in_order(code: str, stdout: str, stderr: str, run: Any) -> None:
    report = run(code, outputBytes=16 * 2**20, memoryBytes=2**30)
    assert report.text() == stdout
    assert report.text("stderr") == stderr
    assert report.totals["stdout"]["sha256"] == hashlib.sha256(stdout.encode()).hexdigest()
    assert not report.totals["stdout"]["truncated"]


def test_a_frame_is_never_much_longer_than_its_text(run: Any) -> None:
    report = run("import os; os.write(1, bytes(3_000)); os.write(2, b'\"plain\"' * 100)")
    kinds = {frame["stream"]: "data64" in frame for frame in report.frames if "stream" in frame}
    assert kinds == {"stdout": True, "stderr": False}
    report = run("import os; os.write(1, os.urandom(30_000)); os.write(2, bytes(60_000))")
    assert max(map(len, report.raw.splitlines())) < 82_000


def test_much_output_is_compressed_and_little_stays_readable(run: Any) -> None:
    report = run("import os; os.write(1, b'a line\\n' * 5_000); os.write(2, b'a line\\n' * 500)")
    compressed = {frame["stream"]: "gzip64" in frame for frame in report.frames if "stream" in frame}
    assert compressed == {"stdout": True, "stderr": False}
    assert report.text() == "a line\n" * 5_000
    assert len(report.raw) < 10_000


def test_a_megabyte_without_an_end_of_line_survives_the_limit(run: Any) -> None:
    code = (
        "import os, time\nleft = b'x' * 1_000_000\nwhile left: left = left[os.write(1, left):]\n"
        "open('later', 'w'); os.write(2, b'.'); time.sleep(60)"
    )
    report = run(code, outputBytes=2**21, timeoutSeconds=60)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.text() == "x" * 1_000_000


UNTIL_WRITTEN = """
import channel
gave_up = []
def meanwhile(*_):
    gave_up.append(time.monotonic() + 60)
    while not glob.glob(f"{workspace.WORKSPACE}/written"):
        if time.monotonic() > gave_up[0]:
            open(f"{workspace.WORKSPACE}/blocked", "w").close()
            break
        time.sleep(0.01)
    return [], [], []
channel.select.select = meanwhile
"""
"""The runner waits for more output, after little has come, until the code has made the file `written`."""


def test_code_goes_on_while_the_runner_waits_for_more(run: Any) -> None:
    code = """
import os
for stream in 1, 2: os.write(stream, b"little"), os.write(stream, b"x" * 900_000)
open("written", "w")
print(os.path.exists("blocked"))
"""
    report = run(code, before=UNTIL_WRITTEN, outputBytes=2**21, timeoutSeconds=90)
    assert report.text() == "little" + "x" * 900_000 + "False\n"
    assert report.text("stderr") == "little" + "x" * 900_000


def test_a_user_with_many_pipes_prints_as_much(run: Any) -> None:
    """The kernel gives an unprivileged user 64 MiB of pipes, then smaller ones. The sandbox has a user of its own."""
    before = """
import fcntl
held = [os.pipe() for _ in range(100)]
try:
    for _, writer in held: fcntl.fcntl(writer, 1031, 1 << 20)
except PermissionError:
    os.write(2, b"no more")
"""
    report = run("print('x' * 1_000_000)", before=before, outputBytes=2**21)
    assert report.errors == "no more"
    assert report.text() == "x" * 1_000_000 + "\n"


def test_the_runner_waits_for_no_more_while_a_stream_has_more() -> None:
    code = """
import os, select, channel
loop, waits, rounds = channel.Loop(), [], []
for says in (True, True), (True, False), (False, False), (None, True), (None, None):
    loop = channel.Loop()
    for said in says:
        reader, writer = os.pipe()
        os.write(writer, b"x")
        loop.add(reader, lambda said=said: said)
    rounds, waits = [], []
    select.select = lambda *arguments: waits.append(arguments) or ([], [], [])
    loop.serve(lambda: rounds.append(1) or len(rounds) > 1, collect=1)
    print(says, len(waits))
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=SOURCES, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "(True, True) 1",
        "(True, False) 0",
        "(False, False) 0",
        "(None, True) 1",
        "(None, None) 0",
    ]


def test_what_is_urgent_is_heard_during_the_wait_and_ends_it_only_if_that_was_waited_for() -> None:
    code = """
import itertools, os, time, channel
ticks = itertools.count()
time.monotonic = lambda: next(ticks) / 100  # it goes on with each look, and at no other time
for enough in 10**9, 3:
    loop, heard = channel.Loop(), []
    for react, urgent in ((lambda: True, False), (lambda: heard.append(1), True)):
        reader, writer = os.pipe()
        os.write(writer, b"x")  # which is never read
        loop.add(reader, react, urgent=urgent)
    began = time.monotonic()
    loop.serve(lambda: len(heard) >= enough or time.monotonic() >= began + 0.5, collect=0.5)
    print(len(heard) >= 3, time.monotonic() - began >= 0.5)
loop, rounds = channel.Loop(), []
for react, urgent in ((lambda: rounds.append(1) or True, False), (lambda: None, True)):
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.add(reader, react, urgent=urgent)
began = time.monotonic()
loop.serve(lambda: time.monotonic() >= began + 1, collect=0.1)
print(len(rounds) <= 11)
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=SOURCES, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True", "True False", "True"]


FLOOD = """
os.write(1, bytes(2**20))
def flood():
    while True: os.write(1, bytes(65536))
threading.Thread(target=flood, daemon=True).start()
"""
ORPHANS = """
def fork():
    while True:
        try: return os.fork()
        except BlockingIOError: time.sleep(0.001)  # it has as many processes as it may
def orphans():
    while True:
        if fork() == 0:
            for _ in range(8):
                if fork() == 0: os._exit(0)
            os._exit(0)
        os.wait()
if os.fork() == 0: orphans()
"""


@pytest.mark.parametrize("loud", [FLOOD, ORPHANS], ids=["output beyond the limit", "processes that end"])
def test_code_gets_no_more_frames_than_one_in_five_milliseconds_for_single_bytes(loud: str, run: Any) -> None:
    write = "for _ in range(2000): os.write(2, b'.'); time.sleep(0.0002)"
    report = run(f"import os, threading, time\n{loud}\n{write}", outputBytes=2**19)
    [block] = report.blocks
    assert block["stderrBytes"] == 2000
    assert report.totals["stdout"]["truncated"] is (loud is FLOOD)
    frames = [frame for frame in report.frames if frame.get("stream") == "stderr"]
    assert len(frames) <= block["durationMs"] / 5 + 20


def test_what_is_beyond_the_limit_is_taken_in_as_fast_as_it_comes(run: Any) -> None:
    """Between two waits of five milliseconds the runner takes in what a pipe holds, a mebibyte, and no less."""
    counting = "import select\nwait = select.select\nselect.select = lambda *given: os.write(2, b'.') and wait(*given)"
    report = run("import os\nfor _ in range(64): os.write(1, bytes(2**20))", before=counting, outputBytes=1024)
    assert report.totals["stdout"]["bytes"] == 2**26
    assert len(report.errors) < 400


def test_what_is_in_the_pipe_at_the_end_is_read_however_it_got_there(run: Any) -> None:
    """A pipe of a mebibyte in which each piece has to be read by itself."""
    code = """
import fcntl, os, signal
fcntl.fcntl(1, 1031, 1 << 20)
fcntl.fcntl(1, fcntl.F_SETFL, os.O_WRONLY | os.O_DIRECT)
for n in range(200):
    os.write(1, b"%03d\\n" % n)
os.kill(os.getpid(), signal.SIGKILL)
"""
    report = run(code, outputBytes=2**21)
    assert report.endings == [(137, "NonZeroExit")]
    assert report.text() == "".join(f"{n:03}\n" for n in range(200))


def test_a_process_in_the_background_is_heard_until_its_block_ends(run: Any) -> None:
    code = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    os.write(1, b"begun\\n")
    os.close(write)
    while not os.path.exists("last"): time.sleep(0.01)
    os.write(1, b"heard\\n")
    open("heard", "w")
    time.sleep(60)
os.close(write)
os.read(read, 1)
open("last", "w")
while not os.path.exists("heard"): time.sleep(0.01)
"""
    report = run(code, "print('next')")
    assert report.text() == "begun\nheard\nnext\n"
    assert [block["stdoutBytes"] for block in report.blocks] == [12, 5]
