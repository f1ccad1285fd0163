"""Ways to leave something for the next job: each plants it, and `seen_…` of the same name says whether it is there.

Their source is sent to a runner. `FOLDER` is the workspace, `TEMPORARY` another volume, `LOG` what stands for
/dev/termination-log, and `DEVICE` a device that anybody may write to. What is not a file lives in a process that
`daemon` starts.
"""

import ctypes
import fcntl
import inspect
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = TEMPORARY = LOG = DEVICE = ""
libc = ctypes.CDLL(None, use_errno=True)


def daemon(work: Callable[[], object], name: str = "leftover") -> None:
    """A process of its own session, whose parent is PID 1; returns when it has done its work."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        assert os.read(reader, 1) == b"y", name
        os.close(reader)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (1, 2):
        os.dup2(os.open("/dev/null", os.O_WRONLY), number)
    libc.prctl(15, name.encode(), 0, 0, 0)
    kept = work()
    os.write(writer, b"y")
    os.close(writer)
    while True:
        time.sleep(100 if kept is None else 99)


def names() -> set[str]:
    """Of all processes."""
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as file:
                found.add(file.read().strip())
        except OSError:
            continue
    return found


# --- files ---


def file():
    Path(f"{FOLDER}/left").write_text("x")


def seen_file():
    return os.path.exists(f"{FOLDER}/left")


def file_in_another_volume():
    Path(f"{TEMPORARY}/left").write_text("x")


def seen_file_in_another_volume():
    return os.path.exists(f"{TEMPORARY}/left")


def file_in_shared_memory():
    Path("/dev/shm/left").write_text("x")


def seen_file_in_shared_memory():
    return os.path.exists("/dev/shm/left")


def name_that_is_no_text():
    os.close(os.open(os.fsencode(FOLDER) + b"/\xff\n\x01" + b"n" * 200, os.O_CREAT))


def seen_name_that_is_no_text():
    return any(b"\xff" in one for one in os.listdir(os.fsencode(FOLDER)))


def folder_that_nobody_may_open():
    os.makedirs(f"{FOLDER}/closed/inner")
    Path(f"{FOLDER}/closed/inner/left").write_text("x")
    os.chmod(f"{FOLDER}/closed/inner", 0)
    os.chmod(f"{FOLDER}/closed", 0)


def seen_folder_that_nobody_may_open():
    return os.path.exists(f"{FOLDER}/closed")


def file_that_nobody_may_write():
    os.makedirs(f"{FOLDER}/fixed")
    os.close(os.open(f"{FOLDER}/fixed/left", os.O_CREAT, 0o400))
    os.chmod(f"{FOLDER}/fixed", 0o500)


def seen_file_that_nobody_may_write():
    return os.path.exists(f"{FOLDER}/fixed/left")


def depth():
    os.mkdir(f"{FOLDER}/deep")
    os.chdir(f"{FOLDER}/deep")
    for _ in range(3000):
        os.mkdir("deeper")
        os.chdir("deeper")
    Path("left").write_text("x")


def seen_depth():
    return os.path.exists(f"{FOLDER}/deep/deeper")


def breadth():
    os.mkdir(f"{FOLDER}/wide")
    for number in range(2000):
        Path(f"{FOLDER}/wide/{number}").touch()


def seen_breadth():
    return os.path.exists(f"{FOLDER}/wide/1999")


def hard_link():
    Path(f"{TEMPORARY}/one-name").write_text("x")
    os.link(f"{TEMPORARY}/one-name", f"{TEMPORARY}/another-name")


def seen_hard_link():
    return os.path.exists(f"{TEMPORARY}/another-name")


def link_out_of_the_volume():
    os.symlink("/etc", f"{FOLDER}/link")


def seen_link_out_of_the_volume():
    return os.path.lexists(f"{FOLDER}/link")


def pipe_with_a_name():
    os.mkfifo(f"{FOLDER}/fifo")


def seen_pipe_with_a_name():
    return os.path.exists(f"{FOLDER}/fifo")


def socket_with_a_name():
    socket.socket(socket.AF_UNIX).bind(f"{TEMPORARY}/socket")


def seen_socket_with_a_name():
    return os.path.exists(f"{TEMPORARY}/socket")


def module_that_the_next_python_finds():
    Path(f"{FOLDER}/json.py").write_text("planted = True")


def seen_module_that_the_next_python_finds():
    import json

    return os.path.exists(f"{FOLDER}/json.py") or hasattr(json, "planted")


def settings_of_a_shell():
    Path(f"{FOLDER}/.bashrc").write_text("x")
    os.makedirs(f"{FOLDER}/.config/python")


def seen_settings_of_a_shell():
    return os.path.exists(f"{FOLDER}/.bashrc") or os.path.exists(f"{FOLDER}/.config")


def cache_of_a_library():
    os.makedirs(f"{TEMPORARY}/matplotlib")
    Path(f"{TEMPORARY}/matplotlib/fontlist.json").write_text("x")


def seen_cache_of_a_library():
    return os.path.exists(f"{TEMPORARY}/matplotlib/fontlist.json")


def folder_in_the_place_of_the_next_block():
    os.makedirs(f"{FOLDER}/next.py/in")


def seen_folder_in_the_place_of_the_next_block():
    return os.path.isdir(f"{FOLDER}/next.py")


def large_file():
    os.posix_fallocate(os.open(f"{FOLDER}/large", os.O_CREAT | os.O_WRONLY), 0, 8 * 2**20)


def seen_large_file():
    found = os.statvfs(FOLDER)
    return (found.f_blocks - found.f_bfree) * found.f_frsize > 4 * 2**20


# --- marks of the volume itself ---


def mode_of_the_volume():
    os.chmod(FOLDER, 0o1771)


def seen_mode_of_the_volume():
    return os.stat(FOLDER).st_mode & 0o7777 == 0o1771


def time_of_the_volume():
    os.utime(FOLDER, (77, 77))


def seen_time_of_the_volume():
    return int(os.stat(FOLDER).st_mtime) == 77


def attribute_of_the_volume():
    os.setxattr(FOLDER, "user.left", b"x")


def seen_attribute_of_the_volume():
    return "user.left" in os.listxattr(FOLDER)


def default_acl_of_the_volume():
    entry = [
        b"\x02\0\0\0",
        b"\x01\0\x07\0\xff\xff\xff\xff",
        b"\x04\0\x07\0\xff\xff\xff\xff",
        b"\x20\0\x07\0\xff\xff\xff\xff",
    ]
    os.setxattr(FOLDER, "system.posix_acl_default", b"".join(entry))


def seen_default_acl_of_the_volume():
    return "system.posix_acl_default" in os.listxattr(FOLDER)


def times_of_what_belongs_to_others():
    os.utime(DEVICE)
    time.sleep(0.15)
    os.utime(LOG)


def seen_times_of_what_belongs_to_others():
    return 0.1 < os.stat(LOG).st_mtime - os.stat(DEVICE).st_mtime < 10


# --- processes, and what lives in them ---


def process():
    daemon(lambda: None, "left-process")


def seen_process():
    return "left-process" in names()


def process_that_is_stopped():
    daemon(lambda: None, "left-stopped")
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if pid != "1" and Path(f"/proc/{pid}/comm").read_text().strip() == "left-stopped":
            os.kill(int(pid), signal.SIGSTOP)


def seen_process_that_is_stopped():
    return "left-stopped" in names()


def process_that_ignores_signals():
    daemon(lambda: [signal.signal(one, signal.SIG_IGN) for one in (1, 2, 3, 15)], "left-deaf")


def seen_process_that_ignores_signals():
    return "left-deaf" in names()


def process_that_makes_others():
    def work():
        if os.fork() == 0:
            while True:
                if os.fork() == 0:
                    os._exit(0)
                os.wait()

    daemon(work, "left-forking")


def seen_process_that_makes_others():
    return "left-forking" in names()


def zombie():
    def work():
        if os.fork() == 0:
            libc.prctl(15, b"left-zombie", 0, 0, 0)
            os._exit(0)
        while "left-zombie" not in names():
            time.sleep(0.001)

    daemon(work)


def seen_zombie():
    return "left-zombie" in names()


def threads():
    import threading

    daemon(
        lambda: [threading.Thread(target=time.sleep, args=(99,), daemon=True).start() for _ in range(9)], "left-threads"
    )


def seen_threads():
    return "left-threads" in names()


def abstract_socket():
    def work():
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0left")
        listener.listen()
        return listener

    daemon(work)


def seen_abstract_socket():
    try:
        socket.socket(socket.AF_UNIX).connect("\0left")
    except ConnectionRefusedError:
        return False
    return True


def descriptors_on_their_way():
    def work():
        one, other = socket.socketpair()
        held = os.open(f"{TEMPORARY}/held", os.O_CREAT | os.O_RDWR)
        os.posix_fallocate(held, 0, 2**21)
        os.unlink(f"{TEMPORARY}/held")
        socket.send_fds(one, [b"x"], [held, one.fileno(), other.fileno()])
        os.close(held)
        one.detach(), other.detach()

    daemon(work)


def seen_descriptors_on_their_way():
    found = os.statvfs(TEMPORARY)
    return (found.f_blocks - found.f_bfree) * found.f_frsize >= 2**21


def file_without_a_name():
    def work():
        held = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR)
        os.posix_fallocate(held, 0, 2**21)

    daemon(work)


def seen_file_without_a_name():
    found = os.statvfs("/dev/shm")
    return (found.f_blocks - found.f_bfree) * found.f_frsize >= 2**21


def flags_of_the_input():
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)


def seen_flags_of_the_input():
    return bool(fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK)


def lock_of_the_input():
    fcntl.flock(0, fcntl.LOCK_EX)


def seen_lock_of_the_input():
    try:
        fcntl.flock(os.open("/dev/null", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def lock_of_the_volume():
    daemon(lambda: fcntl.flock(os.open(TEMPORARY, os.O_RDONLY), fcntl.LOCK_EX))


def seen_lock_of_the_volume():
    try:
        fcntl.flock(os.open(TEMPORARY, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def lock_of_a_file_of_the_image():
    daemon(lambda: fcntl.flock(os.open("/etc/passwd", os.O_RDONLY), fcntl.LOCK_EX))


def seen_lock_of_a_file_of_the_image():
    try:
        fcntl.flock(os.open("/etc/passwd", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def lease():
    def work():
        held = os.open(f"{TEMPORARY}/leased", os.O_CREAT | os.O_RDONLY)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)

    daemon(work)


def seen_lease():
    with open("/proc/locks") as file:
        return "LEASE" in file.read()


def terminal():
    daemon(os.openpty)


def seen_terminal():
    return any(one.isdecimal() for one in os.listdir("/dev/pts"))


def many_processes():
    daemon(lambda: [os.fork() or time.sleep(99) for _ in range(20)], "left-many")


def seen_many_processes():
    return "left-many" in names()


def working_folder():
    def work():
        os.mkdir(f"{TEMPORARY}/inside")
        os.chdir(f"{TEMPORARY}/inside")

    daemon(work, "left-inside")


def seen_working_folder():
    return "left-inside" in names() or os.path.exists(f"{TEMPORARY}/inside")


# --- where nothing confines the code ---


def system_v_memory():
    assert libc.shmget(0x6C656674, 4096, 0o1666) >= 0


def seen_system_v_memory():
    return libc.shmget(0x6C656674, 4096, 0) >= 0


def system_v_queue():
    assert libc.msgget(0x6C656674, 0o1666) >= 0


def seen_system_v_queue():
    return libc.msgget(0x6C656674, 0) >= 0


def system_v_semaphores():
    assert libc.semget(0x6C656674, 3, 0o1666) >= 0


def seen_system_v_semaphores():
    return libc.semget(0x6C656674, 3, 0) >= 0


def message_queue():
    assert libc.mq_open(b"/left", os.O_CREAT | os.O_RDWR, 0o666, None) >= 0


def seen_message_queue():
    return libc.mq_open(b"/left", os.O_RDWR) >= 0


def termination_log():
    Path(LOG).write_text("left")


def seen_termination_log():
    return os.path.getsize(LOG) > 0


def user_namespace():
    daemon(lambda: libc.unshare(0x10000000 | 0x20000000), "left-namespace")


def seen_user_namespace():
    return "left-namespace" in names()


def key():
    number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    assert libc.syscall(number, b"user", b"left", b"x", 1, -4) > 0


def seen_key():
    with open("/proc/keys") as file:
        return " left:" in file.read()


def niceness_of_the_runner():
    os.setpriority(os.PRIO_PROCESS, 1, 19)


def seen_niceness_of_the_runner():
    return os.getpriority(os.PRIO_PROCESS, 1) == 19


def processors_of_the_runner():
    os.sched_setaffinity(1, {min(os.sched_getaffinity(1))})


def seen_processors_of_the_runner():
    return len(os.sched_getaffinity(1)) == 1


def scheduler_of_the_runner():
    os.sched_setscheduler(1, os.SCHED_BATCH, os.sched_param(0))


def seen_scheduler_of_the_runner():
    return os.sched_getscheduler(1) == os.SCHED_BATCH


def limit_of_the_runner():
    resource.prlimit(1, resource.RLIMIT_NOFILE, (99, 99))


def seen_limit_of_the_runner():
    return resource.prlimit(1, resource.RLIMIT_NOFILE) == (99, 99)


def io_priority_of_the_runner():
    number = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
    assert libc.syscall(number, 1, 1, 3 << 13) == 0


def seen_io_priority_of_the_runner():
    number = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
    return libc.syscall(number, 1, 1) == 3 << 13


_HERE = [one for one in list(globals().values()) if inspect.isfunction(one) and one.__module__ == __name__]
_PLANTED = [one.__name__ for one in _HERE if f"seen_{one.__name__}" in globals()]
UNCONFINED = _PLANTED[_PLANTED.index("system_v_memory") :]
"""What the seccomp filter, or Landlock, refuses, so that it has to be tried without."""
SOILING = UNCONFINED[UNCONFINED.index("key") :]
"""What can't be undone: the pod has to go."""
_ALL = _PLANTED[: _PLANTED.index("system_v_memory")]
CONFINED = [name for name in _ALL if name != "descriptors_on_their_way"]
"""What code can plant, and what is gone after each reset."""
KEPT = [name for name in _ALL[: _ALL.index("process")] if name != "time_of_the_volume"]
"""What a session keeps from one job to the next; the next job itself changes when the volume was changed."""


def code(call: str, **places: str) -> str:
    """Code that does this, with all that it needs."""
    source = inspect.getsource(sys.modules[__name__])
    head = source[source.index("import ctypes") : source.index("_HERE =")]
    return f"{head}\n{''.join(f'{name} = {value!r}{chr(10)}' for name, value in places.items())}\n{call}\n"
