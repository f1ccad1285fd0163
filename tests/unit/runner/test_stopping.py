"""Between its cells a kernel stands still, and of what its cells have started nothing is left.

Its threads could write to the file of a shell before that opens it. Each attack has its control.
"""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest


def bash(code: str) -> dict[str, Any]:
    return {"path": "block.sh", "command": ["bash"], "language": "bash", "code": code}


WAKES_ITSELF = """
import ctypes, errno, os, signal, threading, time
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("rest", ctypes.c_int * 13)]  # 0: by a signal
libc = ctypes.CDLL(None, use_errno=True)
timer, event = ctypes.c_void_p(), Event(None, signal.SIGCONT)
if libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0:
    # Again and again: the first may come before it is stopped. Without a handler, Linux 6.13 would not repeat it.
    signal.signal(signal.SIGCONT, lambda *_: None)
    every_300_ms = (ctypes.c_long * 4)(0, 300_000_000, 0, 300_000_000)
    libc.timer_settime(timer, 0, ctypes.byref(every_300_ms), None)
else:
    print(errno.errorcode[ctypes.get_errno()])
def write():
    while True:
        with open("count", "a") as file: file.write("x")
threading.Thread(target=write, daemon=True).start()
while not os.path.exists("count"): time.sleep(0.001)
"""
UNTIL_AWAKE = bash(
    "before=$(stat -c %s count); while [ $before = $(stat -c %s count) ]; do sleep 0.01; done; echo awake"
)
WATCH = bash("""
before=$(stat -c %s count)
for n in $(seq 100); do
    [ $before = $(stat -c %s count) ] || { echo awake; exit; }
    sleep 0.01
done
echo asleep
""")


def test_a_kernel_is_stopped_while_other_blocks_run(stateful: Callable[..., Any]) -> None:
    assert stateful(WAKES_ITSELF, WATCH).text() == "ENOSYS\nasleep\n"
    assert stateful(WATCH).text() == "asleep\n"
    grows = "import time; size = len(open('count').read())\nwhile len(open('count').read()) == size: time.sleep(0.01)"
    assert stateful(grows).endings == [(0, "Completed")]  # it goes on with the next cell


@pytest.mark.parametrize("before", ["kernel.stay_stopped = lambda: None"])
def test_the_control_a_timer_wakes_a_kernel_that_was_stopped(stateful: Callable[..., Any]) -> None:
    assert stateful(WAKES_ITSELF, UNTIL_AWAKE).text() == "awake\n"


REPORT = {"report": True, "kernel": True, "pids": 64, "memoryBytes": 2**28}


def test_a_kernel_that_was_stopped_stays_so_when_an_operator_connects_anew(stateful: Callable[..., Any]) -> None:
    stateful(WAKES_ITSELF)
    connection = stateful.func.__self__  # type: ignore[attr-defined]
    connection.say(REPORT)
    assert connection.hear("ready").frames[-1]["kernel"] is True
    assert stateful(WATCH).text() == "asleep\n"


OF_ANY_SYSTEM = """
import ctypes, mmap, os, signal, threading, time
libc, EXIT = ctypes.CDLL(None), 60 if os.uname().machine == "x86_64" else 93
def end_thread(): libc.syscall(EXIT, 0)
def write():
    while True:
        with open("count", "a") as file: file.write("x")
open("count", "w").close()
is_ready, ready = os.pipe()
"""
LEADER_ENDS = f"""{OF_ANY_SYSTEM}
if os.fork() == 0:
    def live():
        os.write(ready, b"x")
        write()
    with open("pid", "w") as file: print(os.getpid(), file=file)
    threading.Thread(target=live).start()
    end_thread()
n = os.read(is_ready, 1)
"""
LEADER_ENDS_AND_ANOTHER_WAKES = f"""{OF_ANY_SYSTEM}
told, tell = os.pipe()
def sleep():
    libc.prctl(1, signal.SIGCONT)  # PR_SET_PDEATHSIG
    write()
def wake():
    if os.fork() == 0:
        threading.Thread(target=sleep).start()
        end_thread()
    memory = mmap.mmap(-1, 60 << 20)
    memory.write(bytes(60 << 20))  # so that its end takes long
    os.write(ready, b"x")
    os.read(told, 1)
    end_thread()
if os.fork() == 0:
    threading.Thread(target=wake).start()
    end_thread()
os.read(is_ready, 1)
n = os.write(tell, b"x")
"""
WAKE = "kill -CONT $(cat pid) 2>/dev/null\n"
BY_THE_LEADER = "import processes; processes._lives = lambda pid: processes._facts(pid)[0] not in (b'Z', b'X')"


@pytest.mark.parametrize(
    ("attack", "watch"),
    [(LEADER_ENDS, bash(WAKE + WATCH["code"])), (LEADER_ENDS_AND_ANOTHER_WAKES, WATCH)],
    ids=["alone", "woken"],
)
def test_a_process_whose_first_thread_has_ended_ends_with_its_block(
    attack: str, watch: dict[str, Any], stateful: Callable[..., Any]
) -> None:
    assert stateful(attack, watch).text() == "asleep\n"
    assert stateful("print(1)").text() == "1\n"


@pytest.mark.parametrize("before", [BY_THE_LEADER])
def test_the_control_it_lives_where_its_first_thread_speaks_for_all(stateful: Callable[..., Any]) -> None:
    assert stateful(LEADER_ENDS, bash(WAKE + UNTIL_AWAKE["code"])).text() == "awake\n"


# Without a kernel: the real `kill_all_but` as PID 1, and a child that is kept.
STAGE = """
import ctypes, glob, io, json, os, signal, sys, time
import channel, processes
processes.STOP_SECONDS = 60  # the machine may be busy
children = processes.Children(channel.Loop())
told, tell = os.pipe()
nothing = os.open(os.devnull, os.O_RDONLY)
def start(code):
    pid = children.start([sys.executable, "-I", "-c", code], {}, (nothing, tell, 2), lambda: None)
    os.read(told, 1)
    return pid
def facts(task):
    with open(f"/proc/{task}/stat") as file: return file.read().rpartition(") ")[2].split()
def becomes(pid, state):
    while facts(pid)[0] != state: time.sleep(0.001)
def others():
    there = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in there if pid not in (1, kept) and facts(pid)[0] != "Z"]
def end_others():
    for pid in others():
        os.kill(pid, signal.SIGKILL)
        becomes(pid, "Z")
def stop():
    os.kill(kept, signal.SIGSTOP)
    becomes(kept, "T")
def while_listed(act, times=1):
    stop()
    listdir, left = os.listdir, [act] * times
    def list_and_act(path):
        names = listdir(path)
        if path == "/proc" and left:
            act = left.pop()
            os.listdir = listdir
            act()
            os.listdir = list_and_act
        return names
    os.listdir = list_and_act
def awake():
    tasks = [task for task in glob.glob("[0-9]*/task/*", root_dir="/proc") if not task.startswith("1/")]
    return [task for task in tasks if facts(task)[0] not in "TZX"]
def goes_on():
    while f"{kept}/task/{kept}" not in awake(): pass
    return True
def kill():
    kept_it = children.kill_all_but((kept,))
    return {"kept": kept_it, "awake": awake(), "there": children.status(kept) is None}
"""
STILL = {"kept": True, "awake": [], "there": True}
DEAD = {"kept": False, "awake": [], "there": False}


@pytest.fixture
def stage(sandbox: Any) -> Callable[[str, str], Any]:
    """Runs Python as PID 1, which starts `kept` and others, and tells what an expression is worth in the end."""

    def play(code: str, expression: str = "kill()") -> Any:
        whole = f"{STAGE}\n{code}\nprint(json.dumps({expression}), flush=True)\nos._exit(0)"
        command = sandbox.command(before=f"exec({whole!r}, globals())")
        done = subprocess.run(command, capture_output=True, env=sandbox.environment, cwd="/", timeout=60)
        return json.loads(done.stdout or json.dumps(done.stderr.decode()))

    return play


IDLE = "import os, time\nos.write(1, b'x')\nwhile True: time.sleep(60)"
HEARS_OF_ENDS = """
import ctypes, os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
def stay():
    os.write(1, b'x')
    while True: time.sleep(60)
"""
OF_ITS_CHILD = f"""{HEARS_OF_ENDS}
if ctypes.CDLL(None).syscall(56 if os.uname().machine == "x86_64" else 220, signal.SIGCONT, 0, 0, 0, 0) == 0: stay()
while True: time.sleep(60)
"""
OF_THE_LAST_OF_ITS_GROUP = f"""{HEARS_OF_ENDS}
leader = os.getpid()
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setpgid(0, leader)
        stay()
while True: time.sleep(60)
"""


@pytest.mark.parametrize("kept", [IDLE, OF_ITS_CHILD, OF_THE_LAST_OF_ITS_GROUP], ids=["alone", "child", "group"])
def test_whom_the_end_of_another_lets_go_on_is_stopped_again(kept: str, stage: Any) -> None:
    """The kernel sends SIGCONT to the parent of one that was cloned so, and to a group that is left behind."""
    assert stage(f"kept = start({kept!r})") == STILL
    assert stage(f"kept = start({kept!r})\nwhile_listed(end_others)") == STILL


def test_a_node_that_stood_still_costs_nobody_a_kernel(stage: Any) -> None:
    assert stage(f"processes.STOP_SECONDS, processes.STOP_LOOKS = 0, 10_000\nkept = start({IDLE!r})") == STILL


@pytest.mark.parametrize("kept", [OF_ITS_CHILD, OF_THE_LAST_OF_ITS_GROUP], ids=["child", "group"])
def test_the_control_the_end_of_another_lets_it_go_on(kept: str, stage: Any) -> None:
    assert stage(f"kept = start({kept!r})\nstop()\nend_others()", "goes_on()")


FORKS = """
import os, signal
CONTINUED = {signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, CONTINUED)  # one that comes before it is waited for is kept
os.write(1, b'x')
while signal.sigwait(CONTINUED):
    if os.fork() == 0:
        os.write(1, b'x')
        continue
    LAST_ACT
"""
FORKS_AND_ENDS = FORKS.replace("LAST_ACT", "os._exit(0)")
FORKS_AND_STOPS = FORKS.replace("LAST_ACT", "os.kill(os.getpid(), signal.SIGSTOP)")
WHILE_LISTED = {
    "one after the other": f"""
kept, _ = start({IDLE!r}), start({FORKS_AND_ENDS!r})
def act():
    [other] = others()
    os.kill(other, signal.SIGCONT)
    os.read(told, 1)
    becomes(other, "Z")
while_listed(act, 3)
""",
    "the kept": f"""
kept = start({FORKS_AND_STOPS!r})
def act():
    os.kill(kept, signal.SIGCONT)
    os.read(told, 1)
    becomes(kept, "T")
while_listed(act)
""",
}
TELLS_NO_NUMBERS = """
def without_numbers(path, mode):
    return io.BytesIO(b"0.00 0.00 0.00 0/0 0\\n") if path == "/proc/loadavg" else open(path, mode)
processes.open = without_numbers
"""


@pytest.mark.suspect
@pytest.mark.parametrize("system", ["", TELLS_NO_NUMBERS], ids=["Linux", "gVisor"])
@pytest.mark.parametrize("who", WHILE_LISTED)
def test_what_is_started_while_processes_are_listed_is_found(who: str, system: str, stage: Any) -> None:
    assert stage(f"{system}{WHILE_LISTED[who]}") == STILL


@pytest.mark.parametrize("when", [1, 2])
def test_a_kept_one_that_ends_meanwhile_is_told(when: int, stage: Any) -> None:
    ends = f"""
kept, reap, times = start({IDLE!r}), children.reap, []
def reap_and_end():
    reap()
    times.append(1)
    if len(times) == {when}:
        os.kill(kept, signal.SIGKILL)
        becomes(kept, "Z")
children.reap = reap_and_end
"""
    assert stage(ends) == DEAD


LARGE = f"memory = b'x' * (60 << 20)  # so that its end takes long\n{IDLE}"


def test_one_that_is_killed_while_it_stands_still_is_told(stage: Any) -> None:
    assert stage(f"kept = start({LARGE!r})", "[kill(), os.kill(kept, signal.SIGKILL), kill()]")[::2] == [STILL, DEAD]


HAS_A_TERMINAL = """
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
terminal = os.open(TERMINAL, os.O_RDWR)
os.write(1, b'x')
while True: time.sleep(60)
"""
TERMINAL = f"""
master, slave = os.openpty()
kept = start({HAS_A_TERMINAL!r}.replace("TERMINAL", repr(os.ttyname(slave))))
def hang_up():
    os.close(slave)
    os.close(master)
"""


def test_one_with_a_terminal_which_can_hang_up_later_is_not_kept(stage: Any) -> None:
    assert stage(TERMINAL) == DEAD


def test_the_control_a_terminal_that_hangs_up_lets_it_go_on(stage: Any) -> None:
    blind = "processes._has_terminal = lambda pid: False\n"
    assert stage(f"{blind}{TERMINAL}", "[kill(), hang_up(), goes_on()]")[::2] == [STILL, True]


FLOOD = """
import processes
waitpid, until = os.waitpid, time.monotonic() + 120
def endless(pid, options):  # as where many cores start processes, and one collects them
    return (31337, 0) if options and time.monotonic() < until else waitpid(pid, options)
processes.os.waitpid = endless
"""


def test_processes_that_end_without_end_do_not_outlast_the_limit(run: Callable[..., Any]) -> None:
    report = run("import time; time.sleep(600)", timeoutSeconds=1, before=FLOOD)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.blocks[0]["durationMs"] < 60_000
