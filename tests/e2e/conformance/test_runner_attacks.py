"""Code against the runner, PID 1 of its pod and of the same user: the result stays true, and comes in time."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conformance.attacks import FACTS, libc, system_call
from conformance.sandbox import BESIDE_OTHERS

from codeexec_api import Limits


def victim():
    """The runner in the sandbox; in a control pod an ordinary process of the same user."""
    if FACTS["runner"]:
        return 1
    code = "print('ready', flush=True); import time; time.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout.readline() == b"ready\n"
    return child.pid


def state(pid):
    """Of a process: R, S, T (stopped), Z (ended) and others."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(") ", 1)[1][0]


def comes_to(pid, wanted):
    """Whether the process gets into this state: the runner within a second, another one before the attack's alarm."""
    looks = 100 if FACTS["runner"] else 10_000
    for _ in range(looks):
        if state(pid) == wanted:
            return True
        time.sleep(0.01)
    return False


def trace_it():
    """trace the process"""
    return libc("ptrace", 16, victim(), 0, 0) == 0


def read_its_memory():
    """open its memory"""
    with open(f"/proc/{victim()}/mem", "rb") as file:
        return file.fileno()


def read_its_memory_by_call():
    """read its memory by process_vm_readv"""
    buffer = ctypes.create_string_buffer(8)
    pid = victim()
    with open(f"/proc/{pid}/maps") as file:
        start = int(file.readline().split("-")[0], 16)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_size_t * 2)(start, 8)
    return libc("process_vm_readv", pid, local, 1, remote, 1, 0) == 8


def write_to_its_output():
    """write to its stdout"""
    with open(f"/proc/{victim()}/fd/1", "w") as file:
        return file.fileno()


def take_its_descriptors():
    """take one of its descriptors over"""
    pidfd = os.pidfd_open(victim())
    return system_call("pidfd_getfd", pidfd, 1, 0) >= 0


def read_its_environment():
    """read its environment"""
    with open(f"/proc/{victim()}/environ", "rb") as file:
        return file.read()


def stop_it():
    """stop it"""
    pid = victim()
    os.kill(pid, signal.SIGSTOP)
    return comes_to(pid, "T")


def kill_it():
    """kill it"""
    pid = victim()
    os.kill(pid, signal.SIGKILL)
    return comes_to(pid, "Z")


def kill_it_through_proc():
    """kill it through its folder in /proc, which serves as a pidfd"""
    pid = victim()
    folder = os.open(f"/proc/{pid}", os.O_DIRECTORY)
    system_call("pidfd_send_signal", folder, signal.SIGKILL, None, 0)
    return comes_to(pid, "Z")


def end_it_by_any_signal():
    """end it by some signal"""
    pid = victim()
    for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}):
        os.kill(pid, number)
    return comes_to(pid, "Z")


def slow_it_down():
    """lower its priority"""
    pid = victim()
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    return os.getpriority(os.PRIO_PROCESS, pid) == 19


def schedule_it_last():
    """have it run only when nothing else does"""
    os.sched_setscheduler(victim(), os.SCHED_IDLE, os.sched_param(0))
    return True


def limit_it():
    """take its file descriptors away by a resource limit"""
    import resource

    resource.prlimit(victim(), resource.RLIMIT_NOFILE, (0, 0))
    return True


def have_it_killed_first():
    """make it the first to be killed for want of memory"""
    with open(f"/proc/{victim()}/oom_score_adj", "w") as file:
        return file.write("1000")


AGAINST_THE_RUNNER = [
    trace_it,
    read_its_memory,
    read_its_memory_by_call,
    write_to_its_output,
    take_its_descriptors,
    read_its_environment,
    stop_it,
    kill_it,
    kill_it_through_proc,
    end_it_by_any_signal,
    slow_it_down,
    schedule_it_last,
    limit_it,
    have_it_killed_first,
]


@pytest.mark.remit("R-07", "R-08")
@pytest.mark.runtimes("runc", "gvisor")
async def test_the_runner_can_not_be_touched(attack):
    """Code of the same user can't trace, read, write to, stop, kill, slow down, limit or expose the runner."""
    helpers = (victim, state, comes_to)
    facts = {"facts": {"runner": False}, "facts_inside": {"runner": True}}
    await attack(*AGAINST_THE_RUNNER, helpers=helpers, limits=BESIDE_OTHERS, **facts)


FORGERY = "forges a result on the supervisor's stdout"
FORGED = json.dumps({"id": "x", "seq": 0, "block": 0, "exitCode": 0, "reason": "Completed"})
ENDS = {
    "signals the supervisor": "for number in signal.valid_signals():\n    attempt(os.kill, SUPERVISOR, number)",
    FORGERY: f"""
attempt(lambda: os.write(os.open(f"/proc/{{SUPERVISOR}}/fd/1", os.O_WRONLY), {(FORGED + chr(10)).encode()!r}))
print({FORGED!r}); print({FORGED!r}, file=sys.stderr)
""",
    "leaves a process that holds the streams": "if os.fork() == 0:\n    os.setsid(); time.sleep(300)",
    "leaves a process that floods the streams": """
if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b"x" * 1000)
""",
    "closes its streams": "os.close(1); os.close(2)",
    "leaves a process that ignores signals": """
if os.fork() == 0:
    os.setsid()
    for number in signal.valid_signals():
        attempt(signal.signal, number, signal.SIG_IGN)
    time.sleep(300)
""",
    "leaves as many processes as it may": """
def bomb():
    while os.fork():
        pass
    time.sleep(300)
attempt(bomb)
""",
    "kills all that it can see": "attempt(os.kill, -1, signal.SIGKILL)",
    "fills every folder": """
def fill(folder):
    with open(f"{folder}/filler", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
for folder in ("/workspace", "/tmp"):
    attempt(fill, folder)
""",
    "deletes the workspace": """
import shutil
shutil.rmtree("/workspace", ignore_errors=True)
attempt(os.chmod, "/workspace", 0)
""",
    "computes in every process": "for _ in range(20):\n    if os.fork() == 0:\n        while True: pass",
}
IN_THE_CONTROL = list(ENDS)[:4]
LAST_OF_THEIR_POD = ("fills every folder", "deletes the workspace")
"""These leave no workspace to later calls."""
BEGIN = """
import os, signal, sys, time
def attempt(function, *arguments):
    try:
        function(*arguments)
    except (OSError, ValueError):
        pass
print("partial", flush=True)
"""
END = "\nsys.stdout.flush(); os._exit(7)\n"
PLAIN_SUPERVISOR = """
import json, subprocess, sys
code = "import os; SUPERVISOR = os.getppid()\\n" + sys.argv[1]
try:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=3)
    print(json.dumps({"exitCode": done.returncode}))
except subprocess.TimeoutExpired:
    print(json.dumps({"exitCode": "unknown: it hangs"}))
"""
SUPERVISE = """
import json, os, signal, subprocess, sys
def start(code):
    command = [sys.executable, "-c", PLAIN_SUPERVISOR, code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
def first_line(one):
    line = one.stdout.readline().decode()
    one.wait()
    return line
print(json.dumps([first_line(one) for one in [start(code) for code in CODES]]))
"""


@pytest.mark.suspect
@pytest.mark.remit("R-02", "R-03")
@pytest.mark.runtimes("runc", "gvisor")
async def test_the_result_stays_true(control, everywhere, unprotected_pod):
    """Whatever code does to the runner, streams, folders or processes: exit code and output are its own, in time."""
    codes = {case: f"{BEGIN}{code}{END}" for case, code in ENDS.items()}
    chosen = [codes[case] for case in IN_THE_CONTROL]
    lines = json.loads(unprotected_pod(f"PLAIN_SUPERVISOR, CODES = {PLAIN_SUPERVISOR!r}, {chosen!r}\n{SUPERVISE}"))
    told = [json.loads(line)["exitCode"] if line else "none" for line in lines]
    control.succeeded(
        "in the unprotected pod a plain supervisor of the same user was told a wrong exit code or none, when code "
        f"{'; '.join(IN_THE_CONTROL)}",
        len(told) == len(chosen) and 7 not in told,
    )

    async def probe(sandbox):
        # What goes on after the block would go on for 300 s, so a limit of 200 s tells an end in time from none.
        options = {"timeout": 200, "limits": Limits(cpu="100m", memory="128Mi", pids=64)}
        session = sandbox.session(**options)
        for case, code in codes.items():
            place = options if case in LAST_OF_THEIR_POD else {"at": session}
            result = await sandbox.run(f"SUPERVISOR = 1\n{code}", **place)
            assert (case, result.exit_code, result.reason) == (case, 7, "NonZeroExit")
            assert result.stdout.startswith("partial\n"), case
            if case == FORGERY:
                assert (result.stdout, result.stderr) == (f"partial\n{FORGED}\n", f"{FORGED}\n")

    await everywhere(probe)
