"""Makes a pod as it was before any code had run in it, and shows that it is. Standard library only.

A pod that isn't shown to be so is used no more. Code of the user has nothing to say in this: all its processes are
killed first, and what is looked at afterwards is looked at by the runner.
"""

import contextlib
import ctypes
import gc
import os
import stat
import time

import first_day
from channel import send
from emptying import empty

SECONDS = 2
"""How long a pod may take to be emptied; one with more in it is not worth it."""
SETTLE_SECONDS = 0.1
"""How long the kernel may take to take back what nobody holds any more, such as what lies in sockets."""
SETTLE_LOOKS = 10
"""Made at least, however late it is: the pod may have stood still."""
_TIMED = ("/dev", "/proc")
"""Where code can set times of what is not in a volume. The rest of the pod is read-only."""
_NAMES = tuple(f"/proc/{which}/ns/{name}" for which in ("1", "1/task/1") for name in first_day.NAMESPACES)
"""What lies there in folders that nobody may list, though the names are known."""
_CLOSED = ("fd", "fdinfo", "map_files", "net")
"""Folders of a process in which only the process itself, or nobody, can set times."""
_IPC_RMID = 0
_libc = ctypes.CDLL(None, use_errno=True)


class Reset:
    """What has to be done before the first job, and after each."""

    def __init__(self, children, nothing):
        """`nothing` is the empty input that code has; what code did to it is gone once it is opened anew."""
        self._children, self._nothing = children, nothing
        self._before = None
        self.clean = False
        """Whether the pod was shown to be as on its first day, and no job was begun since."""
        self.any = False
        """Whether it was ever used again."""

    def remember(self):
        """Take in how the pod looks. No code has run yet, and nothing waits for any."""
        if self._before is None:
            gc.collect()
            self._before = first_day.look()

    def run(self, job):
        """Clean up, look, and tell. Returns whether another job may come."""
        began, self.any = time.monotonic(), True
        found = {"FirstDay": "was not looked at"} if self._before is None else self._clean_up(began + SECONDS)
        checked = sorted(self._before or ())
        self.clean = not found
        took = round((time.monotonic() - began) * 1000, 1)
        send(reset=job, clean=self.clean, checked=checked, found=found, ms=took)
        return self.clean

    def _clean_up(self, deadline):
        self._children.kill_all()
        anew = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(anew, self._nothing, inheritable=False)
        os.close(anew)
        problems = {}
        for path in first_day.VOLUMES:
            try:
                empty(path, deadline)
                _restore(path, self._before["VolumeAttributes"][path])
            except (OSError, TimeoutError, KeyError) as error:
                problems["Volumes"] = f"could not be emptied ({type(error).__name__})"
        _remove_ipc(self._before)
        _set_times()
        _empty_termination_log(self._before)
        gc.collect(0)
        settled, looks = time.monotonic() + SETTLE_SECONDS, 0
        while found := first_day.differences(self._before, first_day.look()):
            looks += 1
            if time.monotonic() >= settled and looks >= SETTLE_LOOKS:
                break
            time.sleep(0.002)
        return found | problems


def _restore(path, before):
    """Give a folder the attributes that it had. When it was changed tells of this reset, where it is another's."""
    kept = dict(before["marks"])
    for name in os.listxattr(path):
        if name not in kept:
            os.removexattr(path, name)
    for name, value in kept.items():
        if os.getxattr(path, name) != value:
            os.setxattr(path, name, value)
    if before["changed"] is None:
        os.utime(path)
    else:
        os.chmod(path, stat.S_IMODE(before["mode"]))
        os.utime(path, ns=(before["changed"], before["changed"]))


def _remove_ipc(before):
    """Queues, and System V objects. What can't be removed is found afterwards."""
    with contextlib.suppress(OSError):
        for name in frozenset(os.listdir(first_day.QUEUES)) - before.get("Queues", frozenset()):
            with contextlib.suppress(OSError):
                os.unlink(f"{first_day.QUEUES}/{name}")
    with contextlib.suppress(OSError, ValueError, IndexError):
        now, known = first_day.sysv_objects(), before.get("SystemVIPC", {})
        for number in now["shm"] - known.get("shm", frozenset()):
            _libc.shmctl(number, _IPC_RMID, None)
        for number in now["msg"] - known.get("msg", frozenset()):
            _libc.msgctl(number, _IPC_RMID, None)
        for number in now["sem"] - known.get("sem", frozenset()):
            _libc.semctl(number, 0, _IPC_RMID)


def _set_times():
    """Set all times to now that code could have set outside the volumes. What this user can't set, code can't either.

    Whoever may write to a device, or use a link, can set its times to the present; and this process's folders in /proc
    are of code's user, who can set any time. There is no row for that: with a user namespace, devices are those of the
    node, and other pods can set their times, too.
    """
    found = [path for top in _TIMED for path in _below(top)]
    for path in (first_day.QUEUES, first_day.TERMINATION_LOG, *_NAMES, *found):
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)


def _below(top):
    for folder, folders, files in os.walk(top):
        yield from (f"{folder}/{name}" for name in (*folders, *files))
        folders[:] = [name for name in folders if _can_be_set_in(folder, name)]


def _can_be_set_in(folder, name):
    path = f"{folder}/{name}"
    if path in first_day.VOLUMES or (name in _CLOSED and folder.startswith("/proc/")):
        return False
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def _empty_termination_log(before):
    if known := before.get("TerminationLog"):
        with contextlib.suppress(OSError):
            if os.stat(first_day.TERMINATION_LOG).st_size != known["size"]:
                os.truncate(first_day.TERMINATION_LOG, known["size"])
            if known["changed"] is not None:
                os.utime(first_day.TERMINATION_LOG, ns=(known["changed"], known["changed"]))
