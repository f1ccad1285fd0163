"""A Python that has started before its script came: nobody can tell, but by the time that it saves."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

WHICH = "import os; print('on standby' if os.path.exists('taken') and not os.remove('taken') else 'started anew')"
NOTE = """
take = runner.Standby.take
def noted(self, *limits):
    if (taken := take(self, *limits)):
        open(f"{workspace.WORKSPACE}/taken", "w")
    return taken
runner.Standby.take = noted
"""
LIMITS = {"pids": 64, "memoryBytes": 256 * 2**20}


@pytest.fixture
def warm(sandbox: Any) -> Iterator[Callable[..., Any]]:
    """Runs jobs in a session whose runner was asked for its report, as the operator does."""
    with sandbox.connect(before=NOTE) as connection:
        connection.say({"report": True, "kernel": False, **LIMITS})
        connection.hear("ready")
        yield connection.run


def bash(code: str) -> dict[str, Any]:
    return {"path": "block.sh", "command": ["bash"], "language": "bash", "code": code}


def test_it_takes_the_first_block_and_there_is_another_for_the_next_job(warm: Any) -> None:
    assert warm(WHICH, WHICH).text() == "on standby\nstarted anew\n"
    assert warm(WHICH).text() == "on standby\n"


def test_without_a_report_there_is_none(run: Any) -> None:
    assert run(WHICH).text() == "started anew\n"


@pytest.mark.parametrize(
    "code",
    [
        "import sys, os; print(sys.argv, sys.orig_argv, sys.path, os.getcwd(), sorted(os.environ.items()))",
        "print(sorted(globals()), __name__, __file__, __doc__, __spec__, __cached__)",
        "'what it is for'\nprint(__doc__)",
        "import sys; print(type(__loader__), sys.flags, sys.stdin.read(), sys.stdout.encoding, sys.stdout.newlines)",
        "def f():\n    raise ValueError('no')\nprint('before')\nf()",
        "def f(:\n",
        "print('\\0'",
        "import sys; sys.exit('bye')",
        "raise SystemExit(7)",
        "import os; os._exit(9)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'last'); print('first')",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "import pickle\nclass C: pass\nprint(pickle.loads(pickle.dumps(C())).__class__)",
        "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('fork').Process(target=print, args=('child',)); p.start(); p.join()",
        "import multiprocessing\ndef f(): print('child', __name__, __file__)\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('spawn').Process(target=f); p.start(); p.join(); print(p.exitcode)",
        "import sys; print(sys._getframe().f_code.co_filename, open(__file__).read())",
        "# coding: latin-1\nprint('\xe9')",
        "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4], len(os.listdir('/proc/self/fd')))",
        "import resource; print([resource.getrlimit(n) for n in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)])",
        "import warnings; warnings.warn('careful')",
        "import runpy, sys; print(sys.modules['__main__'].__dict__ is globals())",
    ],
)
def test_what_it_runs_is_as_by_python_itself(warm: Any, run: Any, code: str) -> None:
    itself = run({"path": "block0.py", "code": code, "command": ["env", "python3"], "language": "other"})
    for ours in (warm(code), run(code)):
        for stream in ("stdout", "stderr"):
            assert ours.text(stream) == itself.text(stream)
        assert ours.endings == itself.endings


def test_names_in_folders_and_modules_beside_the_script(warm: Any) -> None:
    block = {"path": "pkg/main.py", "code": "import helper, sys; print(helper.X, sys.path[0][-4:], __file__[-12:])"}
    assert warm(block, files={"pkg/helper.py": b"X = 1"}).text() == "1 /pkg /pkg/main.py\n"


def test_a_name_that_begins_with_a_dash(warm: Any) -> None:
    assert (
        warm({"path": "-x.py", "code": f"import sys; print(sys.argv); {WHICH}"}).text() == "['./-x.py']\non standby\n"
    )


@pytest.mark.parametrize("limits", [{"pids": 63}, {"memoryBytes": 2**20}])
def test_other_limits_are_left_to_a_new_one(warm: Any, limits: dict[str, int]) -> None:
    assert warm(WHICH, **limits).text() == "started anew\n"


def test_it_is_gone_before_code_of_another_language_runs(warm: Any) -> None:
    report = warm(bash("ls -d /proc/[0-9]* | wc -l"))
    assert int(report.text()) <= 4  # the runner, this shell, ls and wc


def test_one_that_was_killed_is_replaced(sandbox: Any) -> None:
    with sandbox.connect(before=NOTE) as connection:
        connection.say({"report": True, "kernel": False, **LIMITS})
        connection.hear("ready")
        connection.run(bash("true"))
        assert connection.run(WHICH).text() == "on standby\n"


def test_its_end_is_a_time_out_like_any_other(warm: Any) -> None:
    code = "import sys; print('so far', flush=True); open('later', 'w'); print(file=sys.stderr)\nwhile True: pass"
    report = warm(code, timeoutSeconds=60)
    assert (report.text(), report.endings) == ("so far\n", [(124, "DeadlineExceeded")])


def test_after_a_job_that_was_refused_there_is_another(warm: Any, sandbox: Any) -> None:
    (sandbox.workspace / "folder").mkdir(mode=0o777)
    refused = warm(WHICH, files={"folder": b"stands in the way"})
    assert "fault" in refused.frames[-1]
    assert int(warm(bash("ls -d /proc/[0-9]* | wc -l")).text()) <= 4
    assert warm(WHICH).text() == "on standby\n"
