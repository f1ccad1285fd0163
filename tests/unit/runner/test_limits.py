"""Limits end the code for certain, and what was written until then is kept."""

import fcntl
import json
from typing import Any

import pytest

STUBBORN = {
    "asleep": "import time; time.sleep(600)",
    "ignores signals": "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)",
    "busy": "while True: pass",
    "in a session of its own": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\ntime.sleep(600)"
    ),
    "closes its streams": "import os, time\nos.closerange(0, 3)\ntime.sleep(600)",
    "writes for ever": "while True: print('x' * 1000)",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("case", STUBBORN)
def test_the_limit_ends_the_code(case: str, run: Any) -> None:
    report = run(STUBBORN[case], timeoutSeconds=0.4, outputBytes=1024)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert 400 <= report.blocks[0]["durationMs"] < 60_000


@pytest.mark.suspect
def test_what_was_written_before_the_limit_is_kept(run: Any) -> None:
    late = "import sys, time; print('so far', end=''); open('later', 'w'); print(file=sys.stderr); time.sleep(60)"
    report = run(late, timeoutSeconds=60)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.text() == "so far"
    assert report.totals["stdout"]["bytes"] == 6


def test_the_limit_is_that_of_each_block(run: Any) -> None:
    # Each takes 75 of its 120 seconds.
    report = run("open('later-1', 'w'); print()", "open('later-2', 'w'); print()", timeoutSeconds=120)
    assert report.endings == [(0, "Completed")] * 2


def test_a_block_after_the_limit_is_not_run(run: Any) -> None:
    assert run("import time; time.sleep(60)", "print('never')", timeoutSeconds=0.3).text() == ""


def test_processes_in_the_background_hold_nothing_up_and_are_gone_at_the_end(run: Any, sandbox: Any) -> None:
    code = """
import pathlib, subprocess, time
subprocess.Popen(['sh', '-c', 'exec 9>lock; flock 9; touch held; exec sleep 600'], start_new_session=True)
while not pathlib.Path('held').exists():
    time.sleep(0.01)
"""
    assert run(code).endings == [(0, "Completed")]  # a runner that waited for it would end by its time limit
    with (sandbox.workspace / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused for as long as the process lives


def test_cancelling_ends_the_code(sandbox: Any, job: Any) -> None:
    with sandbox.start() as runner:
        runner.stdin.write(
            json.dumps(job("import time; print('so far', end=''); time.sleep(60)", "print(1)")).encode() + b"\n"
        )
        runner.stdin.flush()
        assert json.loads(runner.stdout.readline())["data"] == "so far"
        runner.stdin.write(b'{"cancel": true}\n')
        runner.stdin.flush()
        block, end = (json.loads(runner.stdout.readline()) for _ in range(2))
        runner.stdin.write(b'{"ack": true}\n')
        runner.stdin.close()
    assert (block["block"], block["exitCode"], block["reason"]) == (0, 130, "Cancelled")
    assert end["done"]


def test_cancelling_together_with_the_job_is_not_lost(run: Any) -> None:
    report = run("import time; time.sleep(60)", "print(2)", then=[{"cancel": True}])
    assert report.text() == ""
    assert report.endings[-1] == (130, "Cancelled")


def test_the_runner_waits_for_the_acknowledgement(sandbox: Any, job: Any) -> None:
    with sandbox.start() as runner:
        runner.stdin.write(json.dumps(job("")).encode() + b"\n")
        runner.stdin.flush()
        while not json.loads(runner.stdout.readline()).get("done"):
            pass
        assert runner.poll() is None
        runner.stdin.write(b'{"ack": true}\n')
        runner.stdin.flush()
        assert runner.wait(60) == 0  # without one it would wait 120 s
        runner.stdin.close()
