"""What the runner sees of its pod before any code has run in it, as a list of named rows. Standard library only.

A pod that is used again has to look the same, row by row. The values of rows hold no names that code has chosen, so
that what is told of a difference can go into a log.
"""

import ctypes
import fcntl
import os
import resource
import struct

import isolation

VOLUMES = ("/workspace", "/tmp", "/dev/shm")
"""What code can write to, and is emptied."""
TERMINATION_LOG = "/dev/termination-log"
QUEUES = "/dev/mqueue"
NEEDED = ("Processes", "Volumes", "VolumeAttributes", "Descriptors", "Privileges", "Mounts", "Queues", "SystemVIPC")
"""Without these nothing is shown."""
MORE_MEMORY = 16 * 2**20
"""So much more may be in use than on the first day: the runner's own, and what the kernel counts late."""

_libc = ctypes.CDLL(None, use_errno=True)
_PR_GET_TIMERSLACK, _PERSONALITY_ASKED = 30, 0xFFFFFFFF
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
_OFD_GETLK = 36
_MSG_INFO, _SHM_INFO, _SEM_INFO = 12, 14, 19
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts")
_VARYING = ("Vm", "Rss", "Hugetlb", "State", "FDSize", "SigQ", "voluntary", "nonvoluntary", "Threads")
_SIGNALS = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")


def look():
    """Each row that can be read here, by its name. A value is anything that can be compared."""
    rows = {}
    for name, row in ROWS.items():
        try:
            rows[name] = row()
        except (OSError, ValueError, KeyError, IndexError):  # there is nothing of the kind here, as under gVisor
            continue
    return rows


def differences(before, now):
    """Of two looks: each row that is not as it was, and how, in words that hold nothing of code's."""
    found = {name: "can't be looked at here" for name in NEEDED if name not in before}
    for name, value in before.items():
        if name not in now:
            found[name] = "can't be looked at any more"
        elif words := _difference(name, value, now[name]):
            found[name] = words
    return found


def _difference(name, before, now):
    if name == "Memory":
        more = {key: now[key] - before[key] for key in before if now[key] > before[key] + MORE_MEMORY}
        return "; ".join(f"{key}: {value} bytes more" for key, value in more.items())
    if name == "Sockets":  # some of the runner's own may have been there at first
        return f"{len(now - before)} more" if now - before else ""
    if before == now:
        return ""
    if isinstance(before, frozenset):
        return f"{len(now - before)} more, {len(before - now)} fewer"
    changed = [key for key in before if before[key] != now.get(key)] if isinstance(before, dict) else []
    return f"changed: {', '.join(map(str, changed))}" if changed else "changed"


# --- rows ---


def _processes():
    """Numbers of all processes, zombies too, and of this one's threads."""
    return frozenset(name for name in os.listdir("/proc") if name.isdecimal()) | {
        f"thread {name}" for name in os.listdir("/proc/self/task")
    }


def attributes(path):
    """Of a folder or a file. When it was last changed only its owner can set, so it counts where that is this user."""
    found = os.stat(path, follow_symlinks=False)
    marks = tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
    changed_at = found.st_mtime_ns if found.st_uid == os.geteuid() else None
    return {
        "mode": found.st_mode,
        "owner": (found.st_uid, found.st_gid),
        "links": found.st_nlink,
        "size": found.st_size,
        "number": found.st_ino,
        "changed": changed_at,
        "marks": marks,
    }


def _volume_usage():
    """Blocks and files in use, where a volume has a file system of its own in memory."""
    own = _tmpfs_mounts()
    found = {path: os.statvfs(path) for path in VOLUMES if path in own}
    return {path: (one.f_blocks - one.f_bfree, one.f_files - one.f_ffree) for path, one in found.items()}


def _tmpfs_mounts():
    return {line.split()[4] for line in _lines("/proc/self/mountinfo") if line.partition(" - ")[2].startswith("tmpfs ")}


def _queues():
    if not os.path.ismount(QUEUES):
        raise ValueError("queues can't be listed")
    return frozenset(os.listdir(QUEUES))


def sysv_objects():
    """Numbers of System V shared memories, queues and semaphores, by kind."""
    return {
        kind: frozenset(int(line.split()[1]) for line in _lines(f"/proc/sysvipc/{kind}")[1:])
        for kind in ("shm", "msg", "sem")
    }


def _sysv_ipc():
    """The same, and how many of each the kernel counts, for kernels whose lists are empty."""
    listed = sysv_objects()
    counts = (ctypes.c_int * 32)(), (ctypes.c_int * 32)(), (ctypes.c_int * 32)()
    _libc.shmctl(0, _SHM_INFO, counts[0])
    _libc.msgctl(0, _MSG_INFO, counts[1])
    _libc.semctl(0, 0, _SEM_INFO, counts[2])
    # used_ids of struct shm_info, msgpool of struct msginfo, semusz of struct seminfo
    return {**listed, "counted": (counts[0][0], counts[1][0], counts[2][7])}


def _keyrings():
    """Keys that can be seen, and how many the kernel counts for this user."""
    mine = [line.split() for line in _lines("/proc/key-users") if line.split(":")[0].strip() == str(os.getuid())]
    counted = tuple((one[2].partition("/")[0], one[3].partition("/")[0]) for one in mine)
    return {"keys": frozenset(line.split()[0] for line in _lines("/proc/keys")), "counted": counted}


def _locks():
    """Whether each volume's own folder can be locked. Of other files only the runner's descriptors are left.

    The kernel's list of locks would cost ten milliseconds, and hold up locks of the whole node meanwhile.
    """
    found = {}
    for path in VOLUMES:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind = struct.unpack_from("h", fcntl.fcntl(folder, _OFD_GETLK, asked))[0]
            found[path] = kind == fcntl.F_UNLCK
        except BlockingIOError:
            found[path] = False
        finally:
            os.close(folder)
    return found


def _sockets():
    """Unix sockets of this network namespace: pods that are used again allow no others."""
    return frozenset(line.split()[6] for line in _lines("/proc/net/unix")[1:])


def _descriptors():
    """This process's own, where each leads, how it was opened, and how many locks it has."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            facts = _lines(f"/proc/self/fdinfo/{name}")
            flags, locks = ([one for one in facts if one.startswith(kind)] for kind in ("flags:", "lock:"))
            found[name] = (os.readlink(f"/proc/self/fd/{name}"), flags, len(locks))
        except FileNotFoundError:  # that of the list itself
            continue
    return found


def _priority():
    number = _IOPRIO_GET[os.uname().machine]
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": os.sched_getscheduler(0),
        "parameter": os.sched_getparam(0).sched_priority,
        "affinity": frozenset(os.sched_getaffinity(0)),
        "ioprio": _libc.syscall(number, 1, 0),
    }


def _limits():
    return {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}


def _execution():
    """Personality, slack of timers, mask of new files, folder."""
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "personality": _libc.personality(ctypes.c_ulong(_PERSONALITY_ASKED)),
        "timer slack": _libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0),
        "umask": mask,
        "folder": os.getcwd(),
    }


def _status():
    return dict(line.split(":", 1) for line in _lines("/proc/self/status") if ":" in line)


def _signals():
    """Mask, handlers, and what waits; SIGCHLD waits only for a moment."""
    found = _status()
    return {name: found[name] for name in _SIGNALS}


def _privileges():
    """Users, capabilities, seccomp, no_new_privs, tracer: the rest of what the kernel says of this process."""
    return {name: value for name, value in _status().items() if not name.startswith((*_VARYING, *_SIGNALS))}


def _namespaces():
    there = [name for name in NAMESPACES if os.path.lexists(f"/proc/self/ns/{name}")]
    return {name: os.readlink(f"/proc/self/ns/{name}") for name in there}


def _termination_log():
    """What the kubelet would read; code can write there where the kernel has no Landlock."""
    return attributes(TERMINATION_LOG)


def _memory():
    """Of the container: what is neither cache nor the kernel's."""
    found = dict(line.split() for line in _lines("/sys/fs/cgroup/memory.stat"))
    return {"anonymous": int(found["anon"]), "shared": int(found["shmem"])}


def _container_processes():
    """Tasks of the container, whichever process numbers they see."""
    return {"tasks": int(_lines("/sys/fs/cgroup/pids.current")[0])}


def _lines(path):
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()


ROWS = {
    "Processes": _processes,
    "Volumes": lambda: {path: len(os.listdir(path)) for path in VOLUMES},
    "VolumeUsage": _volume_usage,
    "Queues": _queues,
    "SystemVIPC": _sysv_ipc,
    "Keyrings": _keyrings,
    "Locks": _locks,
    "Sockets": _sockets,
    "Terminals": lambda: frozenset(os.listdir("/dev/pts")),
    "Descriptors": _descriptors,
    "Priority": _priority,
    "Limits": _limits,
    "OomScore": lambda: _lines("/proc/self/oom_score_adj")[0],
    "Execution": _execution,
    "Signals": _signals,
    "Privileges": _privileges,
    "Mounts": lambda: tuple(_lines("/proc/self/mountinfo")),
    "Namespaces": _namespaces,
    "TerminationLog": _termination_log,
    "Memory": _memory,
    "ContainerProcesses": _container_processes,
    "Isolation": isolation.facts,
    "VolumeAttributes": lambda: {path: attributes(path) for path in VOLUMES},
}
