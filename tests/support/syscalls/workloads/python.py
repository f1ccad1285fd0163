"""What Python's standard library asks of the kernel: processes, threads, files, sockets inside the pod, signals."""

import asyncio
import compileall
import concurrent.futures
import contextlib
import ctypes
import faulthandler
import fcntl
import lzma
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import pty
import resource
import select
import selectors
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tarfile
import tempfile
import termios
import threading
import time
import tty
import venv
import zipfile
import zoneinfo
from pathlib import Path


def square(number):
    return number * number


def processes():
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(square, range(4)) == [0, 1, 4, 9]
        with context.Manager() as manager:
            manager.dict(one=1)
        queue = context.SimpleQueue()
        queue.put(1)
        assert queue.get() == 1
        assert context.Semaphore(1).acquire(timeout=1)
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    shared.buf[0] = 1
    shared.close()
    shared.unlink()
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        list(pool.map(square, range(3)))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(square, range(9)))
    subprocess.run(["/bin/true"], check=True)
    subprocess.run("cat | wc -c; exit 0", shell=True, input=b"x" * 100000, capture_output=True, timeout=20, check=True)
    subprocess.run(["true"], start_new_session=True, close_fds=False, process_group=None, umask=0o22, check=True)
    subprocess.run(["true"], preexec_fn=os.getpid, cwd="/", check=True)
    subprocess.run(["true"], process_group=0, check=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["sleep", "5"], timeout=0.1, check=False)
    # A call that a stop has interrupted is begun again.
    sleeper = subprocess.Popen(["sleep", "1"])
    with contextlib.suppress(subprocess.TimeoutExpired):
        sleeper.wait(0.5)
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    sleeper.send_signal(signal.SIGCONT)
    sleeper.wait()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, setsigmask=[], setpgroup=0), 0)
    os.system("true")
    for wait in (
        lambda pid: os.wait4(pid, 0),
        lambda pid: os.waitid(os.P_PID, pid, os.WEXITED),
        lambda pid: os.wait3(0),
    ):
        if (child := os.fork()) == 0:
            os._exit(0)
        wait(child)
    if (child := os.fork()) == 0:
        os.setsid()
        os.setpgid(0, 0) if os.getpid() != os.getsid(0) else None
        os.nice(1)
        os.execvp("true", ["true"])
    descriptor = os.pidfd_open(child)
    select.select([descriptor], [], [], 5)
    os.waitid(os.P_PIDFD, descriptor, os.WEXITED)


def threads():
    event, lock, barrier = threading.Event(), threading.RLock(), threading.Barrier(2)
    started = [threading.Thread(target=barrier.wait) for _ in range(2)]
    for one in started:
        one.start()
    for one in started:
        one.join(5)
    event.wait(0.01)
    with lock:
        threading.Timer(0.01, event.set).start()
        event.wait(5)
    threading.stack_size(1 << 20)
    threading.Thread(target=square, args=[1]).start()


async def coroutines():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, "asyncio.sock")
    reader, writer = await asyncio.open_unix_connection("asyncio.sock")
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    writer.close()
    server.close()
    for arguments in (["cat"], ["sh", "-c", "cat >&2"]):
        child = await asyncio.create_subprocess_exec(
            *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        await child.communicate(b"x" * 10000)
    slow = await asyncio.create_subprocess_shell("sleep 5")
    slow.terminate()
    await slow.wait()
    await asyncio.to_thread(time.sleep, 0.01)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(5), 0.01)
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    await loop.sock_sendall(left, b"x")
    await loop.sock_recv(right, 1)


def sockets():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        left, right = socket.socketpair(socket.AF_UNIX, kind)
        left.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        left.settimeout(1)
        right.send(b"x")
        left.recv(1)
        socket.send_fds(right, [b"x"], [0])
        _, passed, _, _ = socket.recv_fds(left, 1, 1)
        os.close(passed[0])
        left.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        left.close()
        right.close()
    server = socket.socket(socket.AF_UNIX)
    server.bind("server.sock")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("server.sock")
    peer, _ = server.accept()
    server.getsockname()
    client.getpeername()
    with Path(__file__).open("rb") as source:
        peer.sendfile(source)
    client.recv_into(bytearray(10))
    client.shutdown(socket.SHUT_RDWR)
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagram.bind("\0abstract" + str(os.getpid()))
    other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.sendto(b"x", datagram.getsockname())
    datagram.recvfrom(1)
    for one in (server, client, peer, datagram, other):
        one.close()
    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", 80)
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", 9), 0.1)
    socket.gethostname()
    context = ssl.create_default_context()
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    ssl.RAND_bytes(16)


def waiting():
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.write(writer, b"x")
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.poll(10)
    select.select([reader], [], [], 0.01)
    for selector in (selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector):
        with selector() as one:
            one.register(reader, selectors.EVENT_READ)
            one.select(0.01)
    os.eventfd_write(counter := os.eventfd(0), 1)
    os.eventfd_read(counter)
    os.set_blocking(reader, True)
    os.dup2(reader, counter)
    os.close(os.dup(counter))


def signals():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.getitimer(signal.ITIMER_REAL)
    signal.pause()
    signal.alarm(1)
    signal.alarm(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.raise_signal(signal.SIGUSR2)
    signal.sigpending()
    signal.sigwait([signal.SIGUSR2])
    signal.sigtimedwait([signal.SIGUSR2], 0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
    signal.sigwaitinfo([signal.SIGUSR2])
    signal.siginterrupt(signal.SIGALRM, True)
    signal.set_wakeup_fd(-1)
    faulthandler.enable()
    faulthandler.dump_traceback_later(5)
    faulthandler.cancel_dump_traceback_later()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(os.getpgrp(), 0)


def files():
    one = Path("one")
    one.write_bytes(b"x" * 5000)
    with one.open("r+b") as file:
        number = file.fileno()
        file.seek(10)
        os.fsync(number)
        os.fdatasync(number)
        os.ftruncate(number, 4000)
        os.posix_fallocate(number, 0, 6000)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        os.pread(number, 1, 0)
        os.pwrite(number, b"x", 0)
        os.preadv(number, [bytearray(2)], 0)
        os.preadv(number, [bytearray(2)], 0, os.RWF_HIPRI)
        os.pwritev(number, [b"x"], 0)
        os.pwritev(number, [b"x"], 0, os.RWF_DSYNC)
        os.readv(number, [bytearray(2)])
        os.writev(number, [b"x", b"y"])
        os.lseek(number, 0, os.SEEK_DATA)
        os.fstatvfs(number)
        os.fchmod(number, 0o600)
        os.fchown(number, os.getuid(), os.getgid())
        fcntl.flock(number, fcntl.LOCK_EX)
        fcntl.lockf(number, fcntl.LOCK_EX)
        fcntl.fcntl(number, fcntl.F_GETFD)
        with contextlib.suppress(OSError):
            fcntl.fcntl(number, fcntl.F_GETPIPE_SZ)
        with mmap.mmap(number, 0) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            mapped[0] = 1
            mapped.flush()
            mapped.resize(5000)
        with Path("copy").open("wb") as copy:
            os.copy_file_range(number, copy.fileno(), 100, 0)
            os.sendfile(copy.fileno(), number, 0, 100)
    with contextlib.suppress(OSError):
        os.setxattr(one, "user.name", b"value")
        os.getxattr(one, "user.name")
        os.listxattr(one)
        os.removexattr(one, "user.name")
    os.truncate(one, 100)
    os.link(one, "hard")
    os.symlink(one, "soft")
    os.readlink("soft")
    os.stat("soft", follow_symlinks=False)
    os.access(one, os.R_OK)
    os.access(one, os.R_OK, effective_ids=True)
    os.chmod(one, 0o640)
    os.lchown("soft", os.getuid(), os.getgid())
    os.chown(one, os.getuid(), os.getgid())
    os.utime(one, (1, 1))
    os.utime("soft", (1, 1), follow_symlinks=False)
    os.rename("hard", "harder")
    os.replace("harder", "hard")
    os.mkfifo("pipe")
    os.makedirs("folder/deep", exist_ok=True)
    folder = os.open("folder", os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("by-descriptor", dir_fd=folder)
    os.rename("by-descriptor", "renamed", src_dir_fd=folder, dst_dir_fd=folder)
    os.fchdir(folder)
    os.chdir("..")
    os.rmdir("renamed", dir_fd=folder)
    list(os.scandir("."))
    list(os.walk("."))
    list(os.fwalk("."))
    os.statvfs(".")
    os.umask(0o22)
    shutil.copy2(one, "copied")
    shutil.copytree("folder", "tree")
    shutil.rmtree("tree")
    shutil.move("copied", "moved")
    shutil.disk_usage(".")
    shutil.make_archive("archive", "gztar", "folder")
    with tempfile.TemporaryDirectory(), tempfile.TemporaryFile(), tempfile.NamedTemporaryFile():
        pass
    with tarfile.open("all.tar.xz", "w:xz") as archive:
        archive.add(one)
        archive.add("soft")
    with tarfile.open("all.tar.xz") as archive:
        archive.extractall("extracted")
    with zipfile.ZipFile("all.zip", "w") as archive:
        archive.write("copy")
    lzma.compress(b"x" * 100000)
    Path("module.py").write_text("x = 1")
    compileall.compile_dir(".", quiet=1, maxlevels=0)
    venv.create("environment", with_pip=False)


def databases():
    connection = sqlite3.connect("data.db")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA mmap_size=1000000")
    connection.execute("CREATE TABLE one (a, b)")
    connection.executemany("INSERT INTO one VALUES (?, ?)", [(n, str(n)) for n in range(1000)])
    connection.commit()
    connection.execute("VACUUM")
    connection.close()
    plain = sqlite3.connect("plain.db")
    plain.execute("CREATE TABLE one (a)")
    plain.commit()
    plain.close()


def terminals():
    leader, follower = os.openpty()
    os.isatty(follower)
    os.ttyname(follower)
    termios.tcsetattr(follower, termios.TCSANOW, termios.tcgetattr(follower))
    tty.setraw(follower)
    termios.tcsetwinsize(follower, (24, 80))
    os.get_terminal_size(follower)
    termios.tcflush(follower, termios.TCIOFLUSH)
    termios.tcdrain(follower)
    fcntl.ioctl(leader, termios.FIONREAD, bytes(4))
    pid, descriptor = pty.fork()
    if pid == 0:
        os.tcsetpgrp(0, os.tcgetpgrp(0))
        os.execvp("tty", ["tty"])
    with contextlib.suppress(OSError):
        os.read(descriptor, 100)
    os.waitpid(pid, 0)


def machine():
    zoneinfo.ZoneInfo("Europe/Berlin")
    for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_PROCESS_CPUTIME_ID, time.CLOCK_BOOTTIME):
        time.clock_gettime(clock)
        time.clock_getres(clock)
    time.sleep(0.01)
    os.times()
    os.getloadavg()
    os.uname()
    os.sysconf("SC_AVPHYS_PAGES")
    os.cpu_count()
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.sched_getscheduler(0)
    os.sched_getparam(0)
    os.sched_get_priority_max(os.SCHED_OTHER)
    os.sched_get_priority_min(os.SCHED_OTHER)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_yield()
    os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 1)
    os.getresuid()
    os.getresgid()
    os.getgroups()
    os.getsid(0)
    os.getpgid(os.getppid())
    resource.getrusage(resource.RUSAGE_CHILDREN)
    resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
    resource.prlimit(0, resource.RLIMIT_CORE)
    library = ctypes.CDLL(None)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    library.qsort(numbers, 3, 4, compare(lambda a, b: a[0] - b[0]))
    ctypes.CDLL("libm.so.6").abs(1)
    [bytearray(1 << 24) for _ in range(4)]


if __name__ == "__main__":
    # Where the process group is not the shell's, `killpg` reaches nobody else.
    os.setpgid(0, 0)
    for part in (processes, threads, sockets, waiting, signals, files, databases, terminals, machine):
        part()
    asyncio.run(coroutines())
    for arguments in (
        ["-m", "timeit", "-n1", "-r1", "1"],
        ["-m", "json.tool", "/dev/null"],
        ["-X", "importtime", "-c", ""],
    ):
        subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    subprocess.run([sys.executable, "-i", "-c", "1"], input=b"print(1)\n", capture_output=True, check=False)
