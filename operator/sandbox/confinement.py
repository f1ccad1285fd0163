"""The second layer around user code, inside the pod: a seccomp filter, a Landlock ruleset and resource limits.

The first layer is the pod itself (NetworkPolicy, no capabilities, read-only root, the runtime's seccomp profile). This
one needs no privileges, holds when the first has a gap, and keeps code off the runner, which has the same user.
Standard library only. Sources of the numbers: the kernel's `linux/landlock.h`, `linux/seccomp.h`, `asm/unistd.h`.
"""

import contextlib
import ctypes
import errno
import os
import platform
import resource
import socket
import struct

WRITABLE_FOLDERS = ("/workspace", "/tmp", "/dev/shm")
WRITABLE_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"))
RUNNER_PID = 1

_libc = ctypes.CDLL(None, use_errno=True)

# --- seccomp -------------------------------------------------------------------------------------------------------

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = (
    0x20,
    0x54,
    0x15,
    0x35,
    0x45,
    0x06,
)  # of classic BPF, on 32-bit words
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # system calls of x86-64's 32-bit twin have this bit

# uname's machine: (AUDIT_ARCH of the kernel, column in the table below)
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NUMBERS = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW… flag

# System call: (error, conditions). It is refused when a condition holds: (argument, "is" | "is not" | "has", value);
# without conditions always. Process numbers and flags are 32 bits wide; the kernel ignores the rest, and so do we.
_REFUSED = {
    # The network, in every family but AF_UNIX: also where a NetworkPolicy doesn't reach, such as AF_VSOCK. Where
    # something is permitted, `_permitted_sockets` stands in the place of the first.
    "socket": (errno.EACCES, [(0, "is not", socket.AF_UNIX)]),
    "socketpair": (errno.EACCES, [(0, "is not", socket.AF_UNIX)]),
    # io_uring does what system calls do, past this filter. Programs fall back on ENOSYS.
    "io_uring_setup": (errno.ENOSYS, []),
    "io_uring_enter": (errno.ENOSYS, []),
    "io_uring_register": (errno.ENOSYS, []),
    # New namespaces would give capabilities inside them, and other process numbers. What clone3 is asked for lies in
    # memory, where a filter can't look; libraries fall back to clone.
    "unshare": (errno.EPERM, []),
    "setns": (errno.EPERM, []),
    "clone": (errno.EPERM, [(0, "has", _NEW_NAMESPACES)]),
    "clone3": (errno.ENOSYS, []),
    # The runner: the kernel would let the same user signal, slow down or starve it.
    **{
        name: (errno.EPERM, [(argument, "is", RUNNER_PID) for argument in arguments])
        for name, arguments in {
            "kill": [0],
            "tkill": [0],
            "tgkill": [0, 1],
            "rt_sigqueueinfo": [0],
            "rt_tgsigqueueinfo": [0, 1],
            "pidfd_open": [0],
            "ptrace": [1],
            "process_vm_readv": [0],
            "process_vm_writev": [0],
            "kcmp": [0, 1],
            "prlimit64": [0],
            "sched_setparam": [0],
            "sched_setscheduler": [0],
            "sched_setattr": [0],
            "sched_setaffinity": [0],
            "migrate_pages": [0],
            "move_pages": [0],
        }.items()
    },
    # Signals by way of a descriptor. The kernel's PID 1 doesn't hear them, but gVisor's does.
    "pidfd_send_signal": (errno.EPERM, []),
    "fcntl": (errno.EPERM, [(1, "is", command) for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)]),
    "ioctl": (errno.EPERM, [(1, "is", command) for command in (_FIOSETOWN, _SIOCSPGRP)]),
    "setpriority": (errno.EPERM, [(0, "is", _PRIO_USER), (1, "is", RUNNER_PID)]),
    "ioprio_set": (errno.EPERM, [(0, "is", _IOPRIO_WHO_USER), (1, "is", RUNNER_PID)]),
}


_SOCKET_TYPE, _MSG_FASTOPEN = 0xF, 0x20000000
_PROTOCOLS = {"tcp": (socket.SOCK_STREAM, (0, socket.IPPROTO_TCP)), "udp": (socket.SOCK_DGRAM, (0, socket.IPPROTO_UDP))}
"""Where something is permitted: type of the sockets, and which protocols they may have. MPTCP, which Landlock doesn't
look at, is none of them, nor are SCTP, UDP-Lite and pings."""

# Sends that open a connection, past what looks at `connect`.
_OPENING_SENDS = {
    name: (errno.EPERM, [(argument, "has", _MSG_FASTOPEN)])
    for name, argument in {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}.items()
}


def _permitted_sockets(kinds):
    """What follows the number of the call: AF_UNIX passes, of the internet's families only these kinds."""
    refuse, allow = (_RETURN, 0, 0, _ERRNO | errno.EACCES), (_RETURN, 0, 0, _ALLOW)
    body = [
        (_LOAD, 0, 0, _ARGUMENTS),
        (_EQUAL, 0, 1, socket.AF_UNIX),
        allow,
        (_EQUAL, 2, 0, socket.AF_INET),
        (_EQUAL, 1, 0, socket.AF_INET6),
        refuse,
    ]
    for kind in kinds:
        number, protocols = _PROTOCOLS[kind]
        checks = [(_LOAD, 0, 0, _ARGUMENTS + 16)]
        for protocol in protocols:
            checks += [(_EQUAL, 0, 1, protocol), allow]
        checks.append(refuse)
        body += [
            (_LOAD, 0, 0, _ARGUMENTS + 8),
            (_AND, 0, 0, _SOCKET_TYPE),  # the rest are flags
            (_EQUAL, 0, len(checks), number),
            *checks,
        ]
    return [*body, refuse]


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
    program = [
        # A program may switch to another architecture's calls, whose numbers mean other things: none of them.
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    refused = _REFUSED
    if kinds:
        sockets = _permitted_sockets(kinds)
        program += [(_EQUAL, 0, len(sockets), _NUMBERS["socket"][column]), *sockets]
        refused = {name: rule for name, rule in _REFUSED.items() if name != "socket"} | _OPENING_SENDS
    for name, (error, conditions) in refused.items():
        verdict = (_RETURN, 0, 0, _ERRNO | error)
        body = [] if conditions else [verdict]
        for argument, relation, value in conditions:
            jump = (0, 1) if relation != "is not" else (1, 0)
            code = _ANY_BIT if relation == "has" else _EQUAL
            body += [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (code, *jump, value), verdict]
        if conditions:
            body.append((_RETURN, 0, 0, _ALLOW))
        program += [(_EQUAL, 0, len(body), _NUMBERS[name][column]), *body]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


# --- Landlock ------------------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_ASK_VERSION, _PATH_BENEATH, _NET_PORT = 1, 1, 2
_WRITE_FILE, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 14, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11
_ALL_WRITES = 0b0011_1111_1111_0010  # write, remove, make, and move between folders
_BIND_AND_CONNECT_TCP, _CONNECT_TCP = 0b11, 0b10
_KNOWS_PORTS = 4
"""The first version that does."""


def landlock_version():
    """Version of the kernel's Landlock interface; 0 where there is none, as under gVisor."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)))


def _landlock_ruleset(version, ports):
    """A descriptor of the ruleset: writes only where they are meant to go, and TCP to these ports only."""
    writes = _ALL_WRITES
    if version < 2:
        writes &= (1 << 13) - 1  # moves between folders: always refused by version 1
    if version >= 3:
        writes |= _TRUNCATE
    if version >= 5:
        writes |= _IOCTL_DEV
    attributes = (
        struct.pack("QQ", writes, _BIND_AND_CONNECT_TCP) if version >= _KNOWS_PORTS else struct.pack("Q", writes)
    )
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
    os.set_inheritable(ruleset, False)
    for paths, access in (
        (WRITABLE_FOLDERS, writes & ~_MAKE_DEVICES),
        (WRITABLE_DEVICES, writes & (_WRITE_FILE | _TRUNCATE | _IOCTL_DEV)),
    ):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                target = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = struct.pack("=Qi", access, target)
                _checked(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, ctypes.c_uint32(0)))
                os.close(target)
    for port in ports if version >= _KNOWS_PORTS else ():
        rule = struct.pack("QQ", _CONNECT_TCP, port)
        _checked(_libc.syscall(_ADD_RULE, ruleset, _NET_PORT, rule, ctypes.c_uint32(0)))
    return ruleset


# --- both ----------------------------------------------------------------------------------------------------------


class Confinement:
    """What a child process puts itself under before it becomes user code. Made by the runner.

    Args:
        egress: what is permitted, {"tcp": [port, …], "udp": [port, …]}; None: nothing. Of UDP the ports are up to the
            NetworkPolicy: no layer here knows them.
    """

    def __init__(self, egress=None):
        egress = egress or {}
        kinds = [kind for kind in _PROTOCOLS if egress.get(kind)]
        self._permits = bool(kinds)
        program = seccomp_program(platform.machine(), kinds)
        instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
        self._instructions = ctypes.create_string_buffer(instructions, len(instructions))
        self._filter = struct.pack("HxxxxxxP", len(program), ctypes.addressof(self._instructions))
        version = landlock_version()
        self._ruleset = _landlock_ruleset(version, egress.get("tcp", ())) if version else None
        self._knows_ports = version >= _KNOWS_PORTS

    def apply(self, pids, file_bytes):
        """Confine the calling process and everything that it starts. Can't be undone.

        Args:
            pids: processes and threads that the user of this process may have besides the runner.
            file_bytes: largest file that may be written.

        Raises:
            OSError: a layer could not be put on; no user code may run then.
        """
        for limit, value in (
            (resource.RLIMIT_NPROC, pids + 1),
            (resource.RLIMIT_FSIZE, file_bytes),
            (resource.RLIMIT_CORE, 0),
        ):
            ceiling = resource.getrlimit(limit)[1]
            bound = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
            resource.setrlimit(limit, (bound, bound))
        _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if self._ruleset is not None:
            _checked(_libc.syscall(_RESTRICT_SELF, self._ruleset, ctypes.c_uint32(0)))
        _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._filter, 0, 0))

    def layers(self):
        """Names of the layers that hold; sockets are tried, in a process of its own.

        Raises:
            OSError: sockets are not refused here; no user code may run then.
        """
        child = os.fork()
        if child == 0:
            os._exit(self._try())
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise OSError(errno.ENOTSUP, "the seccomp filter could not be put on, or does not refuse sockets")
        layers = ["Seccomp"] + (["Landlock"] if self._ruleset is not None else [])
        return layers + (["LandlockPorts"] if self._permits and self._knows_ports else [])

    def _try(self):
        with contextlib.suppress(OSError):
            self.apply(pids=1 << 20, file_bytes=1 << 40)
            family = socket.AF_NETLINK if self._permits else socket.AF_INET
            try:
                socket.socket(family, socket.SOCK_DGRAM)
            except PermissionError:
                return 0
        return 1


def _checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
