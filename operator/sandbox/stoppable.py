"""Keeps a process that was stopped from waking itself. Standard library only.

SIGCONT lets a process go on, and a process can arrange for the system to send it one later: by a timer, or with a
message of a queue. (The third way, the signal of a descriptor's owner, is refused to all code in `confinement.py`.)
"""

import ctypes
import errno
import os
import platform
import struct

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # of classic BPF
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_TIMER_CREATE_MQ_NOTIFY = {"x86_64": (222, 244), "aarch64": (107, 184)}

_libc = ctypes.CDLL(None, use_errno=True)


def stay_stopped():
    """Refuse both calls to this process and all that it starts, as a kernel without them does. Can't be undone.

    Calls of other architectures are refused by the filter of `confinement.py`.

    Raises:
        OSError: that could not be done; no user code may run then.
    """
    timer_create, mq_notify = _TIMER_CREATE_MQ_NOTIFY[platform.machine()]
    program = (
        (_LOAD, 0, 0, 0),
        (_EQUAL, 1, 0, timer_create),
        (_EQUAL, 0, 1, mq_notify),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    instructions = b"".join(struct.pack("=HBBI", *one) for one in program)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    pointer = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, pointer, 0, 0)):
        if _libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
