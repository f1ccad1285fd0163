"""Output: complete, or visibly not."""

import hashlib
from typing import Any

import pytest

from codeexec_operator.core.transcript import Transcript

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
    report = run(WRITE.format(data=forged.encode()))
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
    transcript.feed(run(WRITE.format(data=data), outputBytes=1024).raw, "job")
    assert transcript.done, transcript.problem
    assert transcript.stream("stdout").truncated is truncated
