"""Which system calls user code may make: an allow-list, as a seccomp program. Pure, standard library only.

The list is what the workloads of tests/support/syscalls were seen to use (`system_calls.py`) and `SUPPLEMENT`, less
`DECLINED`. What is not on the list fails with one of two errors:

EPERM   a call that Linux had before version 5.1.
ENOSYS  a newer call. Libraries have to work on kernels without it, so they fall back to an older one.

`RULES` look at the arguments of some calls. They see numbers only, never what lies in memory.
Sources of the numbers: the kernel's `linux/seccomp.h`, `linux/audit.h`, `linux/sched.h`, `asm-generic/ioctls.h`.
"""

import errno
import socket

from system_calls import CALLS, IOCTL_REQUESTS, PRCTL_REQUESTS

_LOAD, _AND, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06  # of classic BPF
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_LONGEST_JUMP = 255

# uname's machine: (AUDIT_ARCH of the kernel, column of CALLS)
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_FIRST_OF_LINUX_5_1 = 424
_RUNNER_PID = 1

# Not seen on the machine where the workloads ran, and needed by what owners put into images of their own.
_SUPPLEMENT = {
    "older forms, of musl, static programs and older C libraries": "accept open stat lstat pipe fork select getdents"
    " mknod utime utimes futimesat getrlimit setrlimit eventfd signalfd time gettimeofday nanosleep",
    "newer forms, and those that arm64 has instead of older ones": "faccessat ppoll epoll_pwait2 preadv recvmmsg"
    " sendmmsg execveat",
    "threads and memory of other runtimes: Go, Java, .NET, OpenMP": "get_robust_list getcpu membarrier mincore mlock"
    " mlock2 mlockall munlock munlockall pkey_free pkey_mprotect",
    "the rest of families that were seen in part": "timer_delete timer_getoverrun timer_gettime timerfd_create"
    " timerfd_settime timerfd_gettime tkill rt_sigqueueinfo rt_tgsigqueueinfo fremovexattr llistxattr lremovexattr"
    " lsetxattr sched_getattr sched_setattr sched_setparam sched_rr_get_interval ioprio_set",
    "files of databases": "readahead sync_file_range",
    "programs ask which personality they have": "personality",
}
# Seen, and not allowed.
_DECLINED = {
    "what it is asked for lies in memory, where a filter can't look; libraries fall back to clone": "clone3",
    "placement in the node's memory, which OpenBLAS and taskset do without": "mbind get_mempolicy set_mempolicy",
    "the kernel's log": "syslog",
}
SUPPLEMENT = frozenset(" ".join(_SUPPLEMENT.values()).split())
DECLINED = frozenset(" ".join(_DECLINED.values()).split())
ALLOWED = (frozenset(name for name, (_, _, users) in CALLS.items() if users) | SUPPLEMENT) - DECLINED

_PRIO_USER, _IOPRIO_WHO_USER = 2, 3
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW… flag
_DEVICE = 0x2000  # the bit of a mode that character and block devices have, and neither files, pipes nor sockets
_MSG_FASTOPEN = 0x20000000

# Terminals (TCXONC, TIOCEXCL, TIOCNXCL, TIOCOUTQ, TIOCPKT, TIOCNOTTY, TIOCGSID, TCGETS2 to TCSETSF2), descriptors
# (FIONCLEX, FIOASYNC), sockets (SIOCATMARK), files (FS_IOC_GETFLAGS, FS_IOC_FIEMAP). Not among them: input for a
# terminal (TIOCSTI), the console (TIOCLINUX), line disciplines (TIOCSETD), owners of descriptors.
_MORE_IOCTLS = (
    *(0x540A, 0x540C, 0x540D, 0x5411, 0x5420, 0x5422, 0x5429, 0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),
    *(0x5450, 0x5452, 0x8905, 0x80086601, 0xC020660B),
)
# PDEATHSIG, DUMPABLE, NAME, SECCOMP (to look), TIMERSLACK, CHILD_SUBREAPER, NO_NEW_PRIVS, TID_ADDRESS, THP_DISABLE,
# SET_VMA (names of memory).
_MORE_PRCTLS = (1, 2, 3, 4, 16, 21, 29, 30, 36, 37, 38, 39, 40, 41, 42, 0x53564D41)

# System call: (error, conditions). It is refused when a condition holds: (argument, "is" | "has", value) or
# (argument, "is none of", values). Numbers of processes, flags and requests are 32 bits wide; the kernel ignores the
# rest, and so do we.
RULES = {
    # The network, in every family but AF_UNIX: also where a NetworkPolicy doesn't reach, such as AF_VSOCK. Where
    # something is permitted, `_permitted_sockets` stands in the place of the first.
    "socket": (errno.EACCES, [(0, "is none of", [socket.AF_UNIX])]),
    "socketpair": (errno.EACCES, [(0, "is none of", [socket.AF_UNIX])]),
    # New namespaces would give capabilities inside them, and other process numbers.
    "clone": (errno.EPERM, [(0, "has", _NEW_NAMESPACES)]),
    # The runner: the kernel would let the same user signal, slow down or starve it.
    **{
        name: (errno.EPERM, [(argument, "is", _RUNNER_PID) for argument in arguments])
        for name, arguments in {
            "kill": [0],
            "tkill": [0],
            "tgkill": [0, 1],
            "rt_sigqueueinfo": [0],
            "rt_tgsigqueueinfo": [0, 1],
            "pidfd_open": [0],
            "prlimit64": [0],
            "sched_setparam": [0],
            "sched_setscheduler": [0],
            "sched_setattr": [0],
            "sched_setaffinity": [0],
        }.items()
    },
    "setpriority": (errno.EPERM, [(0, "is", _PRIO_USER), (1, "is", _RUNNER_PID)]),
    "ioprio_set": (errno.EPERM, [(0, "is", _IOPRIO_WHO_USER), (1, "is", _RUNNER_PID)]),
    # Signals by way of a descriptor. The kernel's PID 1 doesn't hear them, but gVisor's does.
    "fcntl": (errno.EPERM, [(1, "is", command) for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)]),
    "ioctl": (errno.EPERM, [(1, "is none of", sorted({*IOCTL_REQUESTS, *_MORE_IOCTLS}))]),
    "prctl": (errno.EPERM, [(0, "is none of", sorted({*PRCTL_REQUESTS, *_MORE_PRCTLS}))]),
    "personality": (errno.EPERM, [(0, "is none of", [0, 0xFFFFFFFF])]),  # the usual one, and asking
    "mknod": (errno.EPERM, [(1, "has", _DEVICE)]),
    "mknodat": (errno.EPERM, [(2, "has", _DEVICE)]),
}
# Sends that open a connection, past what looks at `connect`.
_OPENING_SENDS = {
    name: (errno.EPERM, [(argument, "has", _MSG_FASTOPEN)])
    for name, argument in {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}.items()
}

_SOCKET_TYPE = 0xF
PROTOCOLS = {"tcp": (socket.SOCK_STREAM, (0, socket.IPPROTO_TCP)), "udp": (socket.SOCK_DGRAM, (0, socket.IPPROTO_UDP))}
"""Where something is permitted: type of the sockets, and which protocols they may have. MPTCP, which Landlock doesn't
look at, is none of them, nor are SCTP, UDP-Lite and pings."""


def _answer(error):
    return [(_RETURN, 0, 0, 0x00050000 | error)]


_ALLOW = [(_RETURN, 0, 0, 0x7FFF0000)]


def _permitted_sockets(kinds):
    """AF_UNIX passes, of the internet's families only these kinds."""
    refuse = _answer(errno.EACCES)
    body = [
        (_LOAD, 0, 0, _ARGUMENTS),
        (_EQUAL, 0, 1, socket.AF_UNIX),
        *_ALLOW,
        (_EQUAL, 2, 0, socket.AF_INET),
        (_EQUAL, 1, 0, socket.AF_INET6),
        *refuse,
    ]
    for kind in kinds:
        number, protocols = PROTOCOLS[kind]
        checks = [(_LOAD, 0, 0, _ARGUMENTS + 16)]
        for protocol in protocols:
            checks += [(_EQUAL, 0, 1, protocol), *_ALLOW]
        checks += refuse
        body += [
            (_LOAD, 0, 0, _ARGUMENTS + 8),
            (_AND, 0, 0, _SOCKET_TYPE),  # the rest are flags
            (_EQUAL, 0, len(checks), number),
            *checks,
        ]
    return [*body, *refuse]


def _judged(error, conditions):
    """A call whose arguments are looked at."""
    body = []
    for argument, relation, value in conditions:
        body.append((_LOAD, 0, 0, _ARGUMENTS + 8 * argument))
        if relation == "is none of":
            body += [(_EQUAL, len(value) - position, 0, one) for position, one in enumerate(value)]
        else:
            body.append((_EQUAL if relation == "is" else _ANY_BIT, 0, 1, value))
        body += _answer(error)
    return [*body, *_ALLOW]


def _search(runs):
    """A binary search for the number: of each run its first number, and what to do from there to the next run."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    low, high = _search(runs[:middle]), _search(runs[middle:])
    if len(low) <= _LONGEST_JUMP:
        return [(_AT_LEAST, len(low), 0, runs[middle][0]), *low, *high]
    return [(_AT_LEAST, 0, 1, runs[middle][0]), (_JUMP, 0, 0, len(low)), *low, *high]


def seccomp_program(machine, kinds=()):
    """The filter as a list of BPF instructions (code, jump if true, jump if false, constant).

    Args:
        machine: as uname says.
        kinds: what is permitted, of "tcp" and "udp"; without any no socket but AF_UNIX can be had.

    Raises:
        OSError: the numbers of this machine's system calls are not known.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOTSUP, f"no seccomp filter for {machine}, only for {', '.join(_ARCHITECTURES)}")
    architecture, column = _ARCHITECTURES[machine]
    bodies = {name: _judged(*rule) for name, rule in (RULES | (_OPENING_SENDS if kinds else {})).items()}
    if kinds:
        bodies["socket"] = _permitted_sockets(kinds)
    answers = {
        numbers[column]: bodies.get(name, _ALLOW) if name in ALLOWED else _answer(errno.EPERM)
        for name, numbers in CALLS.items()
        if numbers[column] is not None and (name in ALLOWED or numbers[column] < _FIRST_OF_LINUX_5_1)
    }
    unknown = _answer(errno.ENOSYS)
    runs = [(0, answers.get(0, unknown))]
    for number in range(1, max(answers) + 2):
        answer = answers.get(number, unknown)
        if answer != runs[-1][1]:
            runs.append((number, answer))
    return [
        # A program may switch to another architecture's calls, whose numbers mean other things: none of them. Those of
        # x86-64's 32-bit twin, x32, are higher than all of the numbers above, and so unknown.
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        *unknown,
        (_LOAD, 0, 0, _NUMBER),
        *_search(runs),
    ]


def refusing(machine, names):
    """A filter that refuses these calls as a kernel without them does, and no others; for `machine` see above."""
    _, column = _ARCHITECTURES[machine]
    calls = [(_EQUAL, 0, 1, CALLS[name][column]) for name in names]
    return [(_LOAD, 0, 0, _NUMBER), *(one for call in calls for one in (call, *_answer(errno.ENOSYS))), *_ALLOW]
