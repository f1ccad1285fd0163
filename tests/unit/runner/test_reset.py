"""A pod that is used again: whatever a job leaves, the next one doesn't find, or there is no next one."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leftovers
import pytest

LIMITS = {"pids": 64, "memoryBytes": 256 * 2**20}
REPORT = {"report": True, "kernel": False, **LIMITS}
BARE = """
import confinement
confinement.Confinement.apply = lambda self, pids, file_bytes: None
confinement.Confinement.layers = lambda self: []
"""
ROWS = {
    "Processes",
    "Volumes",
    "VolumeUsage",
    "VolumeAttributes",
    "Queues",
    "SystemVIPC",
    "Locks",
    "Sockets",
    "Terminals",
    "Descriptors",
    "Priority",
    "Limits",
    "OomScore",
    "Execution",
    "Signals",
    "Privileges",
    "Mounts",
    "Namespaces",
    "TerminationLog",
    "Isolation",
}
"""Rows that can be read wherever the tests run."""


class Reused:
    """A runner that is asked to make its pod clean after each job."""

    def __init__(self, connection: Any, job: Any) -> None:
        self._connection, self._job = connection, job
        connection.say(REPORT)
        connection.hear("ready")

    def run(self, code: str, **changes: Any) -> Any:
        job = self._job(code, **changes)
        self._connection.say(job)
        report = self._connection.hear("done", "fault", "error")
        self._connection.say({"ack": job["id"], "reuse": True})
        return report, self._connection.hear("reset").frames[-1]


@pytest.fixture
def isolated(sandbox: Any) -> Any:
    sandbox.isolated = True
    log = Path(sandbox.folder, "log")
    log.write_bytes(b"")
    log.chmod(0o666)
    return sandbox


@pytest.fixture
def places(isolated: Any) -> dict[str, str]:
    names = {"FOLDER": isolated.workspace, "TEMPORARY": isolated.temporary, "LOG": isolated.folder / "log"}
    return {name: str(path) for name, path in names.items()} | {"DEVICE": "/dev/pts/ptmx"}


@pytest.fixture
def here(isolated: Any, places: dict[str, str]) -> str:
    patient = "import reset; reset.SECONDS = 60"  # what takes long on a busy machine ends the pod elsewhere
    return f"{isolated.here}\nfirst_day.TERMINATION_LOG = {places['LOG']!r}\n{patient}\n"


@pytest.fixture
def settled(here: str) -> str:
    """For pods that have to be clean: a busy machine's kernel has time to take back what nobody holds any more."""
    return f"{here}reset.SETTLE_SECONDS = 30\n"


@pytest.fixture
def reused(isolated: Any, settled: str, job: Any) -> Iterator[Reused]:
    with isolated.connect(before=settled) as connection:
        yield Reused(connection, job)


def test_a_pod_that_ran_ordinary_code_is_shown_to_be_clean(reused: Reused) -> None:
    for number in range(5):
        report, reset = reused.run(f"open('x', 'w').write('y'); print({number})")
        assert report.text() == f"{number}\n"
        assert (reset["clean"], reset["found"]) == (True, {})
        assert set(reset["checked"]) >= ROWS
        print(f"reset in {reset['ms']} ms")  # what it may take is in docs/pools.md; the bench measures it


@pytest.mark.suspect
def test_nothing_is_left_of_what_code_plants(isolated: Any, settled: str, job: Any, places: dict[str, str]) -> None:
    assert len(leftovers.CONFINED) >= 30
    with isolated.connect(before=settled) as connection:
        runner = Reused(connection, job)
        for name in leftovers.CONFINED:
            planted, reset = runner.run(leftovers.code(f"{name}()\nprint(seen_{name}())", **places))
            assert planted.text() == "True\n", f"control: {name} is there before the reset: {planted.text('stderr')}"
            assert (reset["clean"], reset["found"]) == (True, {}), name
            found, _ = runner.run(leftovers.code(f"print(seen_{name}())", **places))
            assert found.text() == "False\n", f"{name} {found.text('stderr')}"


NAMES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts")
TOUCH = """
import json, os, time
def below(top):
    for folder, folders, files in os.walk(top):
        folders[:] = [one for one in folders if f"{folder}/{one}" not in ("/dev/shm", "/proc/self")]
        yield folder
        yield from (f"{folder}/{one}" for one in folders + files)
found = [*below("/dev"), *below("/proc"), *PLACES]
found += [f"/proc/{which}/ns/{one}" for which in ("1", "1/task/1") for one in NAMES]
found = [path for path in found if not path.startswith(f"/proc/{os.getpid()}")]
times = {}
for path in found:
    for chosen in (77, 77), None:
        try:
            os.utime(path, chosen, follow_symlinks=False)
        except OSError:
            continue
        times[path] = os.lstat(path).st_mtime_ns
        break
print(json.dumps(times))
time.sleep(1.01 - time.time() % 1)  # queues know whole seconds only
"""
LOOK = (
    "import json, os\nprint(json.dumps({path: os.lstat(path).st_mtime_ns for path in PLACES if os.path.lexists(path)}))"
)


def test_no_time_that_code_can_set_is_there_for_the_next_one(isolated: Any, settled: str, job: Any) -> None:
    """Of devices, of links, of what the kernel says of the runner: their owner sets any time, others the present."""
    places = (f"{isolated.folder}/log", f"{isolated.folder}/queues")
    with isolated.connect(before=settled) as connection:
        runner = Reused(connection, job)
        planted, reset = runner.run(f"PLACES, NAMES = {places!r}, {NAMES!r}\n{TOUCH}")
        times = json.loads(planted.text())
        assert {"/dev/pts/ptmx", "/proc/1/task", "/proc/1/ns/net", *places} <= set(times), "control"
        assert times["/proc/1/task"] == 77 * 10**9, "control"
        assert (reset["clean"], reset["found"]) == (True, {})
        found, _ = runner.run(f"PLACES = {tuple(times)!r}\n{LOOK}")
        assert {path for path, changed in json.loads(found.text()).items() if changed == times[path]} == set()


def test_files_that_lie_in_sockets_are_gone_or_the_pod_is(
    isolated: Any, here: str, job: Any, places: dict[str, str]
) -> None:
    """The kernel takes them back when it likes."""
    name = "descriptors_on_their_way"
    with isolated.connect(before=here) as connection:
        runner = Reused(connection, job)
        planted, reset = runner.run(leftovers.code(f"{name}()\nprint(seen_{name}())", **places))
        assert planted.text() == "True\n"
        if reset["clean"]:
            assert runner.run(leftovers.code(f"print(seen_{name}())", **places))[0].text() == "False\n"
        else:
            assert set(reset["found"]) & {"Sockets", "VolumeUsage"}
            assert connection.hear("never").raw == b"", "the runner has ended"


@pytest.mark.parametrize("name", leftovers.KEPT)
def test_without_a_reset_the_next_job_finds_it(isolated: Any, here: str, places: dict[str, str], name: str) -> None:
    """The control: jobs of a session, which keep files."""
    with isolated.connect(before=here) as session:
        session.run(leftovers.code(f"{name}()", **places))
        assert session.run(leftovers.code(f"print(seen_{name}())", **places)).text() == "True\n"


def test_nothing_is_left_where_nothing_confines_the_code(
    isolated: Any, settled: str, job: Any, places: dict[str, str]
) -> None:
    """The reset doesn't count on the filter: what it refuses is cleaned up, too."""
    with isolated.connect(before=settled + BARE) as connection:
        runner = Reused(connection, job)
        for name in leftovers.UNCONFINED:
            if name in leftovers.SOILING:
                continue
            planted, reset = runner.run(leftovers.code(f"{name}()\nprint(seen_{name}())", **places))
            assert planted.text() == "True\n", f"control: {name} {planted.text('stderr')}"
            assert (reset["clean"], reset["found"]) == (True, {}), name
            found, _ = runner.run(leftovers.code(f"print(seen_{name}())", **places))
            assert found.text() == "False\n", name


@pytest.mark.parametrize("name", leftovers.SOILING)
def test_what_can_not_be_undone_ends_the_pod(
    isolated: Any, here: str, job: Any, places: dict[str, str], name: str
) -> None:
    if name == "niceness_of_the_runner" and os.getpriority(os.PRIO_PROCESS, 0) == 19:
        pytest.skip("these tests are as nice as can be already")
    row = {"key": "Keyrings", "limit_of_the_runner": "Limits"}.get(name, "Priority")
    with isolated.connect(before=here + BARE) as connection:
        runner = Reused(connection, job)
        planted, reset = runner.run(leftovers.code(f"{name}()\nprint(seen_{name}())", **places))
        assert planted.text() == "True\n", planted.text("stderr")
        assert (reset["clean"], row in reset["found"]) == (False, True)
        assert connection.hear("never").raw == b"", "the runner has ended"


CHANGES = {
    "Descriptors": "os.open('/dev/null', os.O_RDONLY)",
    "Execution": "os.umask(0o55)",
    "Signals": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "Processes": "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "Limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (77, 77))",
    "Privileges": "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)",
    "Sockets": "globals().update(kept=socket.socket(socket.AF_UNIX)); kept.bind(chr(0) + 'left')",
}


@pytest.mark.parametrize("row", CHANGES)
def test_a_runner_that_is_not_as_on_its_first_day_is_used_no_more(isolated: Any, here: str, job: Any, row: str) -> None:
    """Code has no known way to do this to the runner, so the runner does it to itself."""
    hook = (
        "import ctypes, os, resource, signal, socket, threading, time\nbegun = runner.run_job\n"
        f"def run_job(*given):\n    ran = begun(*given)\n    {CHANGES[row]}\n    return ran\nrunner.run_job = run_job\n"
    )
    with isolated.connect(before=here + hook) as connection:
        _, reset = Reused(connection, job).run("pass")
        assert reset["clean"] is False
        assert row in reset["found"]


def test_without_a_look_at_the_first_day_nothing_is_shown(isolated: Any, here: str, job: Any) -> None:
    with isolated.connect(before=here) as connection:
        one = job("pass")
        connection.say(one)
        connection.hear("done")
        connection.say({"ack": one["id"], "reuse": True})
        assert connection.hear("reset").frames[-1]["found"] == {"FirstDay": "was not looked at"}


def test_a_row_that_can_not_be_read_is_no_reason_to_go_on(isolated: Any, here: str, job: Any) -> None:
    blind = "import first_day\nfirst_day.QUEUES = '/nowhere'\n"
    with isolated.connect(before=here + blind) as connection:
        _, reset = Reused(connection, job).run("pass")
        assert (reset["clean"], "Queues" in reset["found"]) == (False, True)
        assert "Queues" not in reset["checked"]


def test_a_volume_that_takes_too_long_to_empty_ends_the_pod(isolated: Any, here: str, job: Any) -> None:
    with isolated.connect(before=f"{here}reset.SECONDS = 0\n") as connection:
        _, reset = Reused(connection, job).run("open('x', 'w').write('y')")
        assert (reset["clean"], "Volumes" in reset["found"]) == (False, True)


def test_an_ack_that_does_not_ask_for_it_ends_the_runner(isolated: Any, here: str, job: Any) -> None:
    with isolated.connect(before=here) as connection:
        connection.say(REPORT, one := job("pass"))
        connection.hear("done")
        connection.say({"ack": one["id"]})
        assert connection.hear("reset").raw == b""


def test_a_job_runs_once_and_a_session_gets_no_pod_that_was_used(isolated: Any, settled: str, job: Any) -> None:
    with isolated.connect(before=settled) as connection:
        runner = Reused(connection, job)
        runner.run("print(1)", id="a")
        connection.say(job("print(1)", id="a"))
        assert connection.hear("repeated").frames == [{"repeated": "a"}]
        connection.say(job("print(1)", id="b", session=True))
        [refused] = connection.hear("error", "done").frames
        assert refused["error"] == "an execution has used this pod"
        connection.say(REPORT)
        assert connection.hear("ready").frames[-1]["used"] is True


def test_what_another_job_said_is_not_told_again(isolated: Any, settled: str, job: Any) -> None:
    with isolated.connect(before=settled) as connection:
        runner = Reused(connection, job)
        runner.run("print('secret')", id="a")
        connection.say({"resume": "a", "from": 0})
        assert connection.hear("resumed").frames == [{"resumed": "a", "missing": "Overflowed"}]


def test_a_python_that_waits_for_the_next_job_is_made_after_the_check(reused: Reused) -> None:
    count = "import os; print(len([one for one in os.listdir('/proc') if one.isdecimal()]))"
    for _ in range(2):
        report, reset = reused.run(count)
        assert (report.text(), reset["clean"]) == ("2\n", True)


def test_a_hundred_thousand_files_are_gone_or_the_pod_is(isolated: Any, here: str, job: Any) -> None:
    code = "import os\nfor one in range(100_000): os.close(os.open(f'{one}', os.O_CREAT))"
    with isolated.connect(before=f"{here}reset.SECONDS = 2\n") as connection:
        began = time.monotonic()
        _, reset = Reused(connection, job).run(code, timeoutSeconds=60)
        assert reset["clean"] or "Volumes" in reset["found"], (reset, time.monotonic() - began)
