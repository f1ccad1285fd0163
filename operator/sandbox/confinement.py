"""The second layer around user code, inside the pod: a seccomp filter, a Landlock ruleset and resource limits.

The first layer is the pod itself (NetworkPolicy, no capabilities, read-only root, the runtime's seccomp profile). This
one needs no privileges, holds when the first has a gap, and keeps code off the runner, which has the same user.
`syscall_filter.py` says what the filter allows. Standard library only. Sources of the numbers: the kernel's
`linux/landlock.h`, `linux/prctl.h`.
"""

import contextlib
import ctypes
import errno
import os
import resource
import socket
import struct

from syscall_filter import PROTOCOLS, seccomp_program

WRITABLE_FOLDERS = ("/workspace", "/tmp", "/dev/shm")
WRITABLE_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"))

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38

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


# --- seccomp -------------------------------------------------------------------------------------------------------


def no_new_privileges():
    """What the kernel demands before either layer. Raises OSError."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


class Filter:
    """A program of `syscall_filter.py` as the kernel takes it."""

    def __init__(self, program):
        instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
        self._instructions = ctypes.create_string_buffer(instructions, len(instructions))
        self._pointer = struct.pack("HxxxxxxP", len(program), ctypes.addressof(self._instructions))

    def install(self):
        """Put the calling process and all that it starts under it. Can't be undone. Raises OSError."""
        _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._pointer, 0, 0))


# --- both ----------------------------------------------------------------------------------------------------------


class Confinement:
    """What a child process puts itself under before it becomes user code. Made by the runner.

    Args:
        egress: what is permitted, {"tcp": [port, …], "udp": [port, …]}; None: nothing. Of UDP the ports are up to the
            NetworkPolicy: no layer here knows them.
    """

    def __init__(self, egress=None):
        egress = egress or {}
        kinds = [kind for kind in PROTOCOLS if egress.get(kind)]
        self._permits = bool(kinds)
        self._filter = Filter(seccomp_program(os.uname().machine, kinds))
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
        no_new_privileges()
        if self._ruleset is not None:
            _checked(_libc.syscall(_RESTRICT_SELF, self._ruleset, ctypes.c_uint32(0)))
        self._filter.install()

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
