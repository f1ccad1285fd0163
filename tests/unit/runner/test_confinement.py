"""What code can't do inside the second layer. Each attempt succeeds where the layer isn't."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PRELUDE = """
import ctypes, fcntl, os, signal, socket, struct, time
RETURN_AT_ONCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
STACK = ctypes.c_void_p(ctypes.addressof(stack := ctypes.create_string_buffer(1 << 20)) + (1 << 20))
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if (result := getattr(libc, name)(*arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return error.strerror
"""


LONELY_USER = 65531
"""Has no other process: what code does to "all processes of the user" must not reach the machine's own."""


def outside(code: str) -> str:
    """The same code in a process that nobody has confined."""
    python = ["/usr/bin/env", "python3", "-I", "-c", PRELUDE + code]
    user = LONELY_USER if os.geteuid() == 0 else None
    return subprocess.run(python, capture_output=True, text=True, check=True, user=user).stdout


DENIED, NOT_PERMITTED, UNKNOWN = "Permission denied", "Operation not permitted", "Function not implemented"
REFUSED = {
    "IPv4": ("socket.socket(socket.AF_INET, socket.SOCK_STREAM)", DENIED),
    "IPv4 datagrams": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", DENIED),
    "IPv6": ("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)", DENIED),
    "the kernel's own sockets": ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", DENIED),
    "an address family with high bits": ("call('socket', ctypes.c_long(1 << 32 | 2), 2, 0)", DENIED),
    "a signal by a descriptor": (
        "signal.pidfd_send_signal(os.open('/proc/self', os.O_RDONLY | os.O_DIRECTORY), 0)",
        UNKNOWN,
    ),
    "the owner of a pipe": ("fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getpid())", NOT_PERMITTED),
    "the signal of a pipe": ("fcntl.fcntl(os.pipe()[0], fcntl.F_SETSIG, 15)", NOT_PERMITTED),
    "the owner of a socket": (
        "fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', os.getpid()))",
        NOT_PERMITTED,
    ),
    "priorities of all processes of the user": ("os.setpriority(os.PRIO_USER, os.getuid(), 19)", NOT_PERMITTED),
    "the runner as its tracer": ("call('ptrace', 0, 0, 0, 0)", NOT_PERMITTED),
    "a line discipline": ("fcntl.ioctl(os.openpty()[1], 0x5423, struct.pack('i', 0))", NOT_PERMITTED),
    "memory as a file": ("os.memfd_create('one')", NOT_PERMITTED),
    "the bytes of a pipe without a copy": ("call('tee', os.pipe()[0], os.pipe()[1], 0, 0)", NOT_PERMITTED),
    "a namespace": ("call('unshare', 0x10000000)", NOT_PERMITTED),
    "a process in a namespace": (
        "os.getpid() if call('clone', RETURN_AT_ONCE, STACK, 0x10000000 | 17, None) else 0",
        NOT_PERMITTED,
    ),
}


@pytest.mark.parametrize(("attempt", "refusal"), REFUSED.values(), ids=REFUSED)
def test_there_is_no_way_to_have(attempt: str, refusal: str, run: Any) -> None:
    code = f"print(attempt(lambda: {attempt}), flush=True)"
    assert outside(code) == "done\n"
    assert run(PRELUDE + code).text() == f"{refusal}\n"


def test_sockets_inside_the_pod_work(run: Any) -> None:
    code = "left, right = socket.socketpair(); left.send(b'x'); print(right.recv(1)); socket.socket(socket.AF_UNIX)"
    assert run(PRELUDE + code).text() == "b'x'\n"


# Each is aimed at the process with this number. The kernel lets a user do that to processes of the same user.
AIMED = {
    "signal": "os.kill({pid}, 0)",
    "signal a thread": "call('syscall', 200, {pid}, 0)",
    "hold": "os.pidfd_open({pid})",
    "take its open files": "call('prlimit', {pid}, 7, (ctypes.c_ulong * 2)(0, 0), None)",
    "end it by its CPU time": "call('prlimit', {pid}, 0, (ctypes.c_ulong * 2)(0, 0), None)",
    "slow down": "os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
    "schedule as idle": "os.sched_setscheduler({pid}, os.SCHED_IDLE, os.sched_param(0))",
    "pin": "os.sched_setaffinity({pid}, os.sched_getaffinity(0))",
    "slow its files down": "call('syscall', 251, 1, {pid}, 3 << 13)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are those of x86-64")
@pytest.mark.parametrize("attempt", AIMED.values(), ids=AIMED)
def test_nothing_can_be_aimed_at_the_runner(attempt: str, run: Any) -> None:
    code = f"""
child = os.fork()
if child == 0:
    time.sleep(600)
print(attempt(lambda: {attempt.format(pid="child")}), attempt(lambda: {attempt.format(pid=1)}))
os.kill(child, signal.SIGKILL)
"""
    assert run(PRELUDE + code).text() == "done Operation not permitted\n"


def test_threads_work_without_the_call_that_a_filter_can_not_look_into(run: Any) -> None:
    code = "import threading; one = threading.Thread(target=print, args=['here']); one.start(); one.join()"
    assert run(code).text() == "here\n"


@pytest.mark.parametrize("where", ["/var/tmp", "/run/lock"])
def test_files_are_written_only_where_they_are_meant_to_be(where: str, run: Any) -> None:
    """These folders are open to everybody; only Landlock stands in the way."""
    code = f"import tempfile; print(attempt(lambda: tempfile.TemporaryFile(dir={where!r})))"
    assert outside(code) == "done\n"
    assert run(PRELUDE + code).text() == "Permission denied\n"


def test_devices_that_everybody_uses_can_be_used(run: Any) -> None:
    report = run("import os, pty; open('/dev/null', 'w').write('x'); os.openpty(); print('ok')")
    assert report.text() == "ok\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the runner as another user")
def test_processes_and_threads_are_limited_in_number(run: Any) -> None:
    code = """
import os, time
count = 1
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        count += 1
except BlockingIOError as error:
    print(count, error.strerror)
"""
    report = run(code, pids=10)
    assert report.text() == "10 Resource temporarily unavailable\n"
    assert report.endings == [(0, "Completed")]


def test_a_file_is_limited_in_size(run: Any) -> None:
    code = "import os; one = os.open('one', os.O_CREAT | os.O_WRONLY); print(os.write(one, bytes(1001)), flush=True)"
    report = run(code + "\nos.write(one, b'x')", memoryBytes=1000)
    assert report.text() == "1000\n"
    assert "File too large" in report.text("stderr")


def test_there_are_no_core_dumps(run: Any) -> None:
    report = run("import os, resource; print(resource.getrlimit(resource.RLIMIT_CORE)); os.abort()")
    assert report.text() == "(0, 0)\n"
    assert report.endings == [(134, "NonZeroExit")]


def test_no_numbers_of_system_calls_are_no_confinement() -> None:
    """On a machine that the filter doesn't know the runner does not start."""
    code = "import syscall_filter; syscall_filter.seccomp_program('riscv64')"
    folder = os.path.join(os.path.dirname(__file__), "..", "..", "..", "operator", "sandbox")
    done = subprocess.run(["/usr/bin/env", "python3", "-B", "-c", code], cwd=folder, capture_output=True, text=True)
    assert "no seccomp filter for riscv64, only for x86_64, aarch64" in done.stderr


def test_a_runner_says_what_it_has_found_out(sandbox: Any, job: Any) -> None:
    runner = sandbox.start()
    runner.stdin.write(b'{"report": true}\n')
    runner.stdin.flush()
    report = json.loads(runner.stdout.readline())
    own_users = Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"] or os.geteuid() != 0
    assert report == {
        "ready": True,
        "layers": ["Seccomp", "Landlock"],
        "egress": [],
        "bootId": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "userNamespace": own_users,
        "kernel": False,
        "job": None,
        "used": False,
    }
    runner.stdin.close()
    assert runner.wait(100) == 1
    runner.stdout.close()
    runner.stderr.close()
