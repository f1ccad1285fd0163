"""The allow-list of system calls: its answer for each number on both architectures, and what the kernel makes of it."""

import errno
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from syscalls.bpf import verdict
from syscalls.headers import has_headers, numbers

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"
MACHINES = [
    pytest.param(machine, marks=pytest.mark.skipif(not has_headers(machine), reason="needs linux-libc-dev"))
    for machine in ("x86_64", "aarch64")
]
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}
F_SETOWN, TCGETS, EVERYTHING = 8, 0x5401, 0xFFFF_FFFF_FFFF_FFFF


@functools.cache
def of_the_sandbox(expression: str) -> Any:
    """What an expression is worth among the modules of the sandbox image, which are no package."""
    code = f"import json, syscall_filter as f, system_calls as s; print(json.dumps({expression}, default=sorted))"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=SOURCES, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def program(machine: str, *kinds: str) -> Any:
    return of_the_sandbox(f"f.seccomp_program({machine!r}, {kinds!r})")


def listed(name: str) -> set[str]:
    return set(of_the_sandbox(f"f.{name}"))


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    column = {"x86_64": 0, "aarch64": 1}[machine]
    ours = {name: row[column] for name, row in of_the_sandbox("s.CALLS").items() if row[column] is not None}
    theirs = numbers(machine)
    newer = {name: number for name, number in theirs.items() if number > max(ours.values())}
    assert ours == {name: number for name, number in theirs.items() if name not in newer}
    assert not newer.keys() & listed("ALLOWED")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kinds", [(), ("tcp",), ("tcp", "udp")], ids=["closed", "TCP", "TCP and UDP"])
def test_each_number_has_the_answer_of_the_list(machine: str, kinds: tuple[str, ...]) -> None:
    """Known and listed: allowed, whatever the arguments are, but where a rule looks at them. Else an error."""
    names = {number: name for name, number in numbers(machine).items()}
    allowed, judged = listed("ALLOWED"), set(of_the_sandbox("f.RULES"))
    if kinds:
        judged |= {"sendto", "sendmsg", "sendmmsg"}
    filter_ = program(machine, *kinds)
    for number in (*range(2048), 0x4000_0000, 0x4000_0001, 0x4000_0209, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF):
        answers = {verdict(filter_, machine, number, [value] * 6) for value in (0, 1, F_SETOWN, TCGETS, EVERYTHING)}
        name = names.get(number)
        if name in judged:
            assert len(answers) == 2, f"{name}: a rule that never or always refuses"
        elif name in allowed:
            assert answers == {0}, name
        else:
            assert answers == {errno.EPERM if name and number < 424 else errno.ENOSYS}, (number, name)


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_are_unknown(machine: str) -> None:
    assert {verdict(program(machine), OTHER[machine], number) for number in range(512)} == {errno.ENOSYS}


NEVER = """
acct add_key adjtimex bpf chroot clone3 delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick
init_module io_setup io_submit io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load
kexec_load keyctl landlock_create_ruleset memfd_create memfd_secret migrate_pages modify_ldt mount mount_setattr
move_mount move_pages mq_open msgget msgsnd name_to_handle_at open_by_handle_at open_tree perf_event_open pidfd_getfd
pidfd_send_signal pivot_root process_madvise process_mrelease process_vm_readv process_vm_writev ptrace quotactl reboot
remap_file_pages request_key seccomp semget semop set_mempolicy_home_node sethostname setns settimeofday setuid shmat
shmget splice swapon sync syncfs syslog tee umount2 unshare uselib userfaultfd vhangup vmsplice
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_what_exploits_are_made_of_is_refused(machine: str) -> None:
    known = numbers(machine)
    assert {
        name for name in NEVER.split() if name in known and not verdict(program(machine), machine, known[name])
    } == set()


THREAD = 0x003D0F00  # what the C library asks `clone` for
REFUSED: dict[str, dict[tuple[int, ...], int]] = {
    "socket": {(family, 1): errno.EACCES for family in (socket.AF_INET, socket.AF_INET6, 16, 17, 38, 40, 1 << 32 | 2)},
    "socketpair": {(socket.AF_INET, 1): errno.EACCES},
    "clone": {(flag | THREAD,): errno.EPERM for flag in (0x80, *(1 << bit for bit in (17, 25, 26, 27, 28, 29, 30)))},
    "kill": {(1, 9): errno.EPERM, (1 << 32 | 1, 9): errno.EPERM},
    "tkill": {(1, 9): errno.EPERM},
    "tgkill": {(1, 7, 9): errno.EPERM, (7, 1, 9): errno.EPERM},
    "pidfd_open": {(1,): errno.EPERM},
    "prlimit64": {(1, 7): errno.EPERM},
    "setpriority": {(0, 1): errno.EPERM, (2, 0): errno.EPERM},
    "ioprio_set": {(1, 1): errno.EPERM, (3, 0): errno.EPERM},
    "fcntl": {(5, command): errno.EPERM for command in (8, 10, 15)},
    # TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS, FIOSETOWN, SIOCSPGRP, SIOCGIFCONF, FS_IOC_SETFLAGS, KVM, a number of none
    "ioctl": {
        (0, request): errno.EPERM
        for request in (0x5412, 0x541C, 0x5423, 0x541D, 0x8901, 0x8902, 0x8912, 0x40086602, 0xAE00, 0x1234)
    },
    # PR_SET_SECCOMP, PR_SET_MM, PR_SET_PTRACER, PR_CAP_AMBIENT, PR_SET_SYSCALL_USER_DISPATCH, PR_SET_SPECULATION_CTRL
    "prctl": {(option,): errno.EPERM for option in (22, 35, 0x59616D61, 47, 59, 53)},
    "personality": {(persona,): errno.EPERM for persona in (8, 0x0040000, 0x0400000)},
    "mknodat": {(3, 0, 0o020600): errno.EPERM, (3, 0, 0o060600): errno.EPERM},
}
PASSED: dict[str, list[tuple[int, ...]]] = {
    "socket": [(socket.AF_UNIX, kind) for kind in (1, 2, 5)],
    "socketpair": [(socket.AF_UNIX, 1)],
    "clone": [(THREAD,), (17,), (0x4111,)],
    "kill": [(0, 0), (7, 9), (2**32 - 1, 15)],
    "tgkill": [(7, 8, 6)],
    "prlimit64": [(0, 7)],
    "setpriority": [(0, 0), (0, 7)],
    "fcntl": [(5, command) for command in (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032)],
    # TCGETS, TIOCSPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, TIOCGPTN, TIOCSPTLCK, FICLONE, TCGETS2
    "ioctl": [
        (0, request)
        for request in (0x5401, 0x5410, 0x5413, 0x541B, 0x5421, 0x5451, 0x80045430, 0x40045431, 0x40049409, 0x802C542A)
    ],
    "prctl": [(option,) for option in (1, 15, 23, 36, 38)],
    "personality": [(0,), (0xFFFFFFFF,), (EVERYTHING,)],
    "mknodat": [(3, 0, mode) for mode in (0o010600, 0o100600, 0o140600)],
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", REFUSED)
def test_arguments_decide_where_they_matter(name: str, machine: str) -> None:
    number, filter_ = numbers(machine)[name], program(machine)
    assert {one: verdict(filter_, machine, number, one) for one in REFUSED[name]} == REFUSED[name]
    assert {verdict(filter_, machine, number, one) for one in PASSED.get(name, [(0,)])} == {0}


# What x86-64 has, and arm64 under another name only.
NEWER_FORMS = {
    "access": "faccessat", "alarm": "setitimer", "arch_prctl": "prctl", "chmod": "fchmodat", "chown": "fchownat",
    "creat": "openat", "dup2": "dup3", "epoll_create": "epoll_create1", "epoll_wait": "epoll_pwait",
    "eventfd": "eventfd2", "fork": "clone", "futimesat": "utimensat", "getdents": "getdents64", "getpgrp": "getpgid",
    "inotify_init": "inotify_init1", "lchown": "fchownat", "link": "linkat", "lstat": "newfstatat",
    "mkdir": "mkdirat", "mknod": "mknodat", "open": "openat", "pause": "ppoll", "pipe": "pipe2", "poll": "ppoll",
    "readlink": "readlinkat", "rename": "renameat", "rmdir": "unlinkat", "select": "pselect6",
    "signalfd": "signalfd4", "stat": "newfstatat", "symlink": "symlinkat", "time": "gettimeofday",
    "unlink": "unlinkat", "utime": "utimensat", "utimes": "utimensat", "vfork": "clone",
}  # fmt: skip


def test_arm64_has_a_form_of_each_allowed_call() -> None:
    calls, allowed = of_the_sandbox("s.CALLS"), listed("ALLOWED")
    assert {name for name in allowed if calls[name][1] is None} == set(NEWER_FORMS)
    assert {name for name in NEWER_FORMS.values() if name not in allowed or calls[name][1] is None} == set()


def test_nothing_is_listed_that_needs_no_listing() -> None:
    calls = of_the_sandbox("s.CALLS")
    observed = {name for name, row in calls.items() if row[2]}
    assert listed("SUPPLEMENT") <= calls.keys() - observed
    assert listed("DECLINED") <= observed
    assert set(of_the_sandbox("f.RULES")) <= listed("ALLOWED")


# Each call without an argument that means anything, in a process of its own and with a time limit: without the filter
# some of them wait.
PROBE = """
import ctypes, json, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def probe(number):
    if (child := os.fork()) == 0:
        signal.alarm(SECONDS)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
        os._exit(ctypes.get_errno() if result == -1 else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps({number: probe(number) for number in NUMBERS}))
"""


@pytest.mark.skipif(os.uname().machine not in OTHER, reason="the filter knows x86-64 and arm64")
def test_the_kernel_answers_as_the_list_says(run: Any) -> None:
    """Each refused number of this machine's table, and some that no table has, tried on the kernel itself."""
    machine = os.uname().machine
    allowed = listed("ALLOWED")
    refused = {number: name for name, number in numbers(machine).items() if name not in allowed}
    unknown = dict.fromkeys((*range(470, 512), *(0x4000_0000 + number for number in (0, 1, 59, 520))), "unknown")
    tried = refused | unknown
    code = PROBE.replace("NUMBERS", str(sorted(tried)))
    python = ["/usr/bin/env", "python3", "-I", "-c", code.replace("SECONDS", "5")]
    isolated = ["unshare", "--user", "--pid", "--fork", "--kill-child", *python]
    outside = json.loads(subprocess.run(isolated, capture_output=True, text=True, check=True).stdout)
    inside = json.loads(run(code.replace("SECONDS", "60"), timeoutSeconds=90).text())
    expected = {number: errno.EPERM if 0 <= number < 424 else errno.ENOSYS for number in tried}
    assert {int(number): answer for number, answer in inside.items()} == expected
    free = {tried[int(number)] for number, answer in outside.items() if answer not in (errno.EPERM, errno.ENOSYS)}
    assert {"userfaultfd", "memfd_create", "shmget", "keyctl", "splice", "ptrace", "process_vm_readv"} <= free
