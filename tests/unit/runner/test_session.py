"""A session: several jobs on one connection, and nothing of one in the next but files."""

import base64
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"


def bash(code: str) -> dict[str, Any]:
    return {"path": "block.sh", "command": ["bash"], "language": "bash", "code": code}


def test_jobs_follow_each_other_and_share_files(session: Any) -> None:
    first = session.run("open('x', 'w').write('kept'); print('one')", id="a")
    second = session.run("print(open('x').read())", id="b")
    assert (first.text(), second.text()) == ("one\n", "kept\n")
    for report, name in ((first, "a"), (second, "b")):
        assert {frame["id"] for frame in report.frames} == {name}
        assert [frame["seq"] for frame in report.frames] == list(range(len(report.frames)))
    assert second.totals["stdout"]["bytes"] == 5


def test_a_job_that_has_its_pod_alone_is_refused_where_a_session_was(session: Any, job: Any) -> None:
    session.run("open('x', 'w').write('kept')", id="a")
    session.say(job("print(open('x').read())", id="b"))
    assert session.hear("done", "error").frames == [{"id": "b", "seq": -1, "error": "a session has used this pod"}]
    assert session.run("print(open('x').read())", id="c").text() == "kept\n", "the session goes on"


def test_a_job_without_blocks_only_puts_and_lists(session: Any) -> None:
    session.run(files={"a": b"1"})
    report = session.run(files={"d/b": b"22"}, artifacts={"list": "All", "fetch": []})
    assert report.endings == []
    assert [(path, size) for path, (size, _) in report.artifacts.items()] == [("a", 1), ("d/b", 2)]


def test_a_connection_that_ends_leaves_no_part_of_a_file(session: Any) -> None:
    def put(path: str, append: bool = False) -> dict[str, Any]:
        return {"put": path, "data": base64.b64encode(b"half").decode(), "append": append, "epoch": [1, 1]}

    session.say({"report": True, "kernel": False, "epoch": [1, 1]}, put("d/whole"), put("d/part"), put("d/part", True))
    session.say({"ping": 1, "epoch": [1, 1]})
    session.hear("pong")
    session.say({"report": True, "kernel": False, "epoch": [1, 2]})
    report = session.run(artifacts={"list": "All", "fetch": []}, epoch=[1, 2])
    assert list(report.artifacts) == ["d/whole"]


def test_a_report_and_a_ping_are_answered_while_a_job_runs(session: Any, job: Any) -> None:
    session.say(job(WAITS, session=True, id="a"), {"report": True, "kernel": False}, {"ping": 2})
    [ready, pong] = session.hear("pong").frames
    assert (ready["ready"], ready["job"], ready["used"], pong) == (True, "a", True, {"pong": 2})
    session.say({"cancel": "a"})
    session.hear("done")
    session.say({"report": True, "kernel": False})
    assert session.hear("ready").frames[-1]["job"] is None


@pytest.mark.suspect
def test_all_processes_are_gone_before_the_end_is_told(session: Any) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    os.write(1, b"noise")
    with open("written", "w") as file:
        file.write(str(os.getpid()))
    os.rename("written", "heard")
    while True:
        try:
            os.write(1, b"noise")
        except OSError:  # that nobody reads any more does not end it
            pass
while not os.path.exists("heard"):
    time.sleep(0.01)
"""
    assert "noise" in session.run(code).text()
    report = session.run("import os; print(os.path.exists('/proc/' + open('heard').read()))")
    assert report.text() == "False\n"


def runs(word: str) -> bool:
    """Whether a process of this machine has this word in its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return True
    return False


@pytest.mark.parametrize("follows", [True, False], ids=["a session", "a job alone"])
def test_a_process_that_writes_nothing_is_gone_before_the_end_is_told(follows: bool, sandbox: Any, job: Any) -> None:
    """One that writes ends by itself: its pipe is closed."""
    word = f"86400.{os.getpid()}"
    code = f"""
import os, subprocess, time
left = subprocess.Popen(["sleep", "{word}"], start_new_session=True)
while "{word}" not in open(f"/proc/{{left.pid}}/cmdline").read(): time.sleep(0.01)
print("begun", end="")
while not os.path.exists("looked"): time.sleep(0.01)
"""
    with sandbox.connect() as connection:
        connection.say(job(code, session=follows))
        assert connection.hear("stream").text() == "begun"
        assert runs(word)  # the control
        (sandbox.workspace / "looked").touch()
        assert "done" in connection.hear("done", "fault", "error").totals
        assert not runs(word)


def test_what_code_has_done_to_its_pipes_is_not_there_for_the_next(session: Any) -> None:
    change = "import fcntl, os; fcntl.fcntl(1, 1031, 4096); os.set_blocking(1, False); print(os.get_blocking(1))"
    look = "import fcntl, os; print(fcntl.fcntl(1, 1032), os.get_blocking(1))"
    report = session.run(change, look)
    assert report.text() == "False\n4096 False\n"  # the control: within a job they stay
    assert session.run(look).text() == "1048576 True\n"


def test_half_a_character_does_not_get_into_the_next(session: Any) -> None:
    assert session.run("import os; os.write(1, b'\\xe2\\x82')").text() == "\ufffd"
    assert session.run("import os; os.write(1, b'\\xac')").text() == "\ufffd"


def test_a_limit_ends_one_job_only(session: Any) -> None:
    assert session.run("import time; time.sleep(60)", timeoutSeconds=0.3).endings == [(124, "DeadlineExceeded")]
    assert session.run("print('on')").text() == "on\n"


@pytest.mark.parametrize("whom", ["long", True])
def test_cancelling_ends_one_job_only(whom: Any, session: Any, job: Any) -> None:
    session.say(job("import time; print('so far', end=''); time.sleep(60)", session=True, id="long"))
    session.hear("stream")
    session.say({"cancel": whom})
    assert session.hear("done").endings == [(130, "Cancelled")]
    assert session.run("print('on')", id="next").endings == [(0, "Completed")]


def test_a_cancellation_of_another_job_is_not_heeded(session: Any, job: Any, sandbox: Any) -> None:
    session.say({"cancel": True}, {"cancel": "earlier"}, job(WAITS, session=True), {"cancel": "earlier"})
    session.say({"cancel": "next"}, job("print('on')", session=True, id="next"), {"ping": 1})
    session.hear("pong")
    (sandbox.workspace / "go").touch()
    assert session.hear("done").endings == [(0, "Completed")]
    # It came ahead of its job, when that was not known.
    assert session.hear("done").endings == [(0, "Completed")]


def test_a_cancellation_behind_a_job_that_waits_is_kept_for_it(session: Any, job: Any, sandbox: Any) -> None:
    session.say(job(WAITS, session=True, id="a"), job("print(1)", session=True, id="b"), {"cancel": "b"}, {"ping": 1})
    session.hear("pong")
    (sandbox.workspace / "go").touch()
    assert session.hear("done").endings == [(0, "Completed")]
    assert session.hear("done").endings == [(130, "Cancelled")]


def test_a_line_that_was_cut_off_is_told_and_the_next_is_heeded(session: Any) -> None:
    session.say(b'{"put": "x", "data": "abc\n', {"report": True, "kernel": False})
    report = session.hear("ready")
    assert report.frames[0] == {"id": None, "seq": -1, "error": "a line that is not a JSON object"}
    assert report.frames[1]["ready"] is True
    assert session.run("print('on')").text() == "on\n"


def test_a_job_that_can_not_be_run_does_not_end_the_session(session: Any) -> None:
    report = session.run("print(1)", timeoutSeconds="soon")
    assert report.frames[-1]["seq"] == -1
    assert "error" in report.frames[-1]
    assert session.run("print(1)").text() == "1\n"


PEAK = """
import atexit, resource
atexit.register(lambda: os.write(2, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss).encode()))
"""


def test_files_of_16_mb_are_put_in_little_memory(sandbox: Any) -> None:
    content = bytes(range(256)) * 65536
    code = "import hashlib; print(hashlib.sha256(open('big', 'rb').read()).hexdigest())"
    report = sandbox.run(code, files={"big": content}, before=PEAK)
    assert report.text() == hashlib.sha256(content).hexdigest() + "\n"
    assert int(report.errors) < 32 * 1024  # KiB


def test_a_job_of_a_megabyte_is_run(session: Any) -> None:
    assert session.run("#" * 1_000_000 + "\nprint('ran')").text() == "ran\n"


def test_pieces_of_a_file_are_joined(session: Any, job: Any, sandbox: Any) -> None:
    def put(path: str, text: bytes, append: bool) -> dict[str, Any]:
        return {"put": path, "data": base64.b64encode(text).decode(), "append": append}

    session.say(put("a", b"one ", False), put("a", b"two", True), put("b", b"", False), job(session=True))
    assert "done" in session.hear("done", "fault").totals
    assert (sandbox.workspace / "a").read_bytes() == b"one two"
    assert (sandbox.workspace / "b").read_bytes() == b""
    session.say(put("a", b"new", False), put("b", b"more", False), put("a", b"!", True), job(session=True))
    assert session.hear("done", "fault").totals["fault"] == {
        "reason": "FileRefused",
        "message": "a: is a piece of a file whose first piece is missing",
    }
    assert session.run("print(open('a').read())").text() == "new\n"  # and the refusal is forgotten


@pytest.mark.parametrize(
    ("plant", "path"),
    [
        ("os.symlink('victim', 'x')", "x"),
        ("os.link('victim', 'x')", "x"),
        ("os.mkfifo('x')", "x"),
        ("os.mkdir('x')", "x"),
        ("os.symlink('.', 'd')", "d/victim"),
        ("", "n" * 256),
    ],
)
def test_a_put_is_refused_where_earlier_code_has_planted_something(
    plant: str, path: str, session: Any, sandbox: Any
) -> None:
    session.run(f"import os; open('victim', 'w').write('before'); {plant or 'pass'}")
    report = session.run("print('never')", files={path: b"through"})
    [fault] = report.frames
    assert fault["fault"]["reason"] == "FileRefused"
    assert fault["fault"]["message"].startswith(f"{path}: ")
    assert (sandbox.workspace / "victim").read_text() == "before"
    assert session.run("print('on')").text() == "on\n"
