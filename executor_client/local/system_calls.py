"""Which system calls sandlock leaves open and code may not make: a seccomp filter that `worker.py` installs. Pure."""

import errno
from typing import Final

_NOT_HERE: Final = 0xFFFF_FFFF
"""Number of a system call that an architecture never had."""
_AF_UNIX: Final = 1
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of classic BPF, on 32-bit words
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_X32: Final = 0x40000000
_MSG_FASTOPEN: Final = 0x20000000
_NEW_NAMESPACES: Final = 0x7E020080
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR = 0x40086602, 0x401C5820

ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""uname's machine: AUDIT_ARCH of the kernel, and column in the table of numbers."""
NUMBERS: Final = {
    "socket": (41, 198),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "fchmod": (91, 52),
    "fchown": (93, 55),
    "fsetxattr": (190, 7),
    "fremovexattr": (199, 16),
    "inotify_add_watch": (254, 27),
    "mq_open": (240, 180),
    "syslog": (103, 116),
    "getdents": (78, _NOT_HERE),
    "getdents64": (217, 61),
    "futimesat": (261, _NOT_HERE),
    "utime": (132, _NOT_HERE),
    "utimes": (235, _NOT_HERE),
    "utimensat": (280, 88),
    "ioctl": (16, 29),
    "clone": (56, 220),
    "clone3": (435, 435),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    **{
        name: (number, number)
        for name, number in {
            "open_tree": 428,
            "move_mount": 429,
            "fsopen": 430,
            "fspick": 433,
            "mount_setattr": 442,
            "fchmodat2": 452,
            "setxattrat": 463,
            "removexattrat": 466,
            "open_tree_attr": 467,
            "file_setattr": 469,
        }.items()
    },
}

Condition = tuple[int, str, int]
Refusals = dict[str, tuple[int, list[Condition]]]

Program = tuple[tuple[int, int, int, int], ...]
"""BPF instructions: code, jump if true, jump if false, constant."""

# System call: (error, conditions); refused when one holds: (argument, "is" | "is not" | "has", value). Without: always.
_REFUSED: Final[Refusals] = {
    # Attributes by descriptor: Landlock knows none, and sandlock looks at paths only. Files that may be read may be
    # the caller's own, such as those of its virtual environment.
    **{name: (errno.EPERM, []) for name in ("fchmod", "fchown", "fsetxattr", "fremovexattr")},
    "ioctl": (errno.EPERM, [(1, "is", request) for request in (_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR)]),
    # Older ways to list folders and to set times, which sandlock doesn't look at.
    **{name: (errno.ENOSYS, []) for name in ("getdents", "futimesat", "utime", "utimes")},
    # Newer ways to the same; libraries fall back to the older calls, which sandlock looks at.
    **{name: (errno.ENOSYS, []) for name in ("fchmodat2", "setxattrat", "removexattrat", "file_setattr")},
    # Handles on files that may not be opened, and mounts.
    **{
        name: (errno.ENOSYS, [])
        for name in ("open_tree", "open_tree_attr", "move_mount", "fsopen", "fspick", "mount_setattr")
    },
    # Who opens what, anywhere; a queue that other programs see; the kernel's log.
    **{name: (errno.EPERM, []) for name in ("inotify_add_watch", "mq_open", "syslog")},
    "clone": (errno.EPERM, [(0, "has", _NEW_NAMESPACES)]),
    "clone3": (errno.ENOSYS, []),  # what it is asked for lies in memory; libraries fall back to clone
    # Other processes of the same user; and the cores that the block was given.
    **{
        name: (errno.EPERM, [(0, "is not", 0)])
        for name in (
            "prlimit64",
            "sched_setparam",
            "sched_setscheduler",
            "sched_setattr",
            "migrate_pages",
            "move_pages",
        )
    },
    "setpriority": (errno.EPERM, [(0, "is not", 0), (1, "is not", 0)]),
    "ioprio_set": (errno.EPERM, []),
    "sched_setaffinity": (errno.EPERM, []),
}
_NO_NETWORK: Final[Refusals] = {"socket": (errno.EACCES, [(0, "is not", _AF_UNIX)])}
# Plain TCP, and UDP for names, which sandlock looks up in the worker and refuses to the code.
_NETWORK: Final[Refusals] = {
    "socket": (errno.EACCES, [(0, "has", 0xFFFF_FFFF & ~0b1011), (2, "has", 0xFFFF_FFFF & ~0b1_0111)]),
    # Opens a connection without `connect`, which is what Landlock and sandlock look at.
    "sendto": (errno.EPERM, [(3, "has", _MSG_FASTOPEN)]),
    "sendmsg": (errno.EPERM, [(2, "has", _MSG_FASTOPEN)]),
    "sendmmsg": (errno.EPERM, [(3, "has", _MSG_FASTOPEN)]),
}


def refused(*, network: bool) -> Refusals:
    """What code may not call; with `network` if it may open connections to some endpoints."""
    return _REFUSED | (_NETWORK if network else _NO_NETWORK)


def numbers(machine: str) -> dict[str, int]:
    """Of all system calls that are named here, on one of `ARCHITECTURES`."""
    return {name: number[ARCHITECTURES[machine][1]] for name, number in NUMBERS.items()}


def seccomp_program(machine: str, refused: Refusals) -> Program:
    """The filter that refuses these calls on one of `ARCHITECTURES`."""
    architecture, column = ARCHITECTURES[machine]
    program = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for name, (error, conditions) in refused.items():
        verdict = (_RETURN, 0, 0, _ERRNO | error)
        body = [] if conditions else [verdict]
        for argument, relation, value in conditions:
            jump = (1, 0) if relation == "is not" else (0, 1)
            body += [
                (_LOAD, 0, 0, 16 + 8 * argument),
                (_ANY_BIT if relation == "has" else _EQUAL, *jump, value),
                verdict,
            ]
        if conditions:
            body.append((_RETURN, 0, 0, _ALLOW))
        program += [(_EQUAL, 0, len(body), NUMBERS[name][column]), *body]
    return (*program, (_RETURN, 0, 0, _ALLOW))
