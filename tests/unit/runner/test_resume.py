"""The runner keeps what it has said, and says it again to an operator that attaches later; an older one it refuses."""

from typing import Any

WAITS = "import os, time\nos.write(1, b'one\\n')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"
LARGE = "import base64, os; print(base64.b64encode(os.urandom({size} * 3 // 4)).decode())"
"""It doesn't get shorter by compression."""
MIB = 2**20


def go_on(sandbox: Any) -> None:
    (sandbox.workspace / "go").touch()


def test_frames_come_again_from_the_number_that_is_asked_for(session: Any, job: Any) -> None:
    report = session.run("print(1)", id="a")
    for start in range(len(report.frames) + 1):
        session.say({"resume": "a", "from": start}, {"ping": start})
        first, *again, _ = session.hear("pong").frames
        assert (first, again) == ({"resumed": "a"}, report.frames[start:])


def test_a_job_that_runs_goes_on_where_it_was(session: Any, sandbox: Any, job: Any) -> None:
    session.say(job(WAITS, session=True, id="a"))
    before = session.hear("stream").frames
    session.say({"resume": "a", "from": 0}, {"ping": 1})
    assert session.hear("pong").frames == [{"resumed": "a"}, *before, {"pong": 1}]
    go_on(sandbox)
    rest = session.hear("done")
    assert rest.text() == "two\n"
    assert [frame["seq"] for frame in (*before, *rest.frames)] == list(range(len(before) + len(rest.frames)))


def test_a_single_job_is_told_again_until_it_is_acknowledged(sandbox: Any, job: Any) -> None:
    with sandbox.connect() as runner:
        runner.say(job("print(1)", id="a"))
        report = runner.hear("done")
        runner.say({"report": True, "kernel": False}, {"resume": "a", "from": 0}, {"ping": 1})
        ready, resumed, *again, _ = runner.hear("pong").frames
        assert (ready["job"], ready["used"], resumed, again) == ("a", True, {"resumed": "a"}, report.frames)
        runner.say({"ack": "a"})


def test_what_was_never_begun_or_is_no_longer_known_is_said(session: Any) -> None:
    session.say({"resume": "a", "from": 0})
    assert session.hear("resumed").frames == [{"resumed": "a", "missing": "NeverBegun"}]
    session.run("", id="a")
    session.run("", id="b")
    session.say({"resume": "a", "from": 0})
    assert session.hear("resumed").frames == [{"resumed": "a", "missing": "Forgotten"}]


def test_more_than_is_kept_is_said_and_what_is_kept_comes_again(session: Any) -> None:
    report = session.run(LARGE.format(size=6 * MIB), id="a", outputBytes=8 * MIB)
    session.say({"resume": "a", "from": 0})
    assert session.hear("resumed").frames == [{"resumed": "a", "missing": "Overflowed"}]
    start = len(report.frames) // 2
    session.say({"resume": "a", "from": start}, {"ping": 1})
    assert session.hear("pong").frames[1:-1] == report.frames[start:]


def test_what_was_acknowledged_is_kept_no_longer(session: Any) -> None:
    session.run("print(1)", id="a")
    session.say({"ack": "a"}, {"resume": "a", "from": 0})
    assert session.hear("resumed").frames == [{"resumed": "a", "missing": "Overflowed"}]


def test_a_job_that_could_not_be_run_is_told_again(session: Any, job: Any) -> None:
    session.say(job("", session=True, id="a", artifacts=None))
    failed = session.hear("error").frames
    session.say({"resume": "a", "from": 0}, {"ping": 1})
    assert session.hear("pong").frames[1:-1] == failed


def test_no_job_is_begun_twice(session: Any, sandbox: Any, job: Any) -> None:
    one = job("open('times', 'a').write('x')", session=True, id="a")
    session.say(one, one)
    session.hear("done")
    assert session.hear("repeated").frames == [{"repeated": "a"}]
    assert (sandbox.workspace / "times").read_text() == "x"


def test_an_older_epoch_is_refused_and_what_it_had_asked_for_is_dropped(session: Any, sandbox: Any, job: Any) -> None:
    session.say(job(WAITS, session=True, id="a", epoch=[1, 1]))
    session.hear("stream")
    session.say(job("open('late', 'w')", session=True, id="b", epoch=[1, 1]))
    session.say({"ping": 1, "epoch": [2, 1]})
    assert session.hear("pong").frames == [{"pong": 1}]
    session.say({"cancel": "a", "epoch": [1, 2]})
    assert session.hear("refused").frames == [{"refused": [1, 2]}]
    go_on(sandbox)
    assert session.hear("done").endings == [(0, "Completed")]
    session.say({"resume": "b", "from": 0, "epoch": [2, 1]})
    assert session.hear("resumed").frames == [{"resumed": "b", "missing": "NeverBegun"}]
    assert not (sandbox.workspace / "late").exists()


def test_a_line_that_an_operator_before_has_begun_is_no_part_of_the_next(session: Any) -> None:
    session.say(b'{"put": "x", "epoch": [1, 1], "da', b"\n", {"report": True, "kernel": False, "epoch": [2, 1]})
    frames = session.hear("ready").frames
    assert frames[-1]["ready"] is True
    assert session.run("print(1)", epoch=[2, 1]).text() == "1\n"
