"""Processes of user code: how they begin, and how all of them end. Standard library only."""

import contextlib
import os
import signal
import time

from channel import CHUNK

STOP_SECONDS = 2


class Children:
    """The children of PID 1: those it has started, and orphans of user code, which are only collected."""

    def __init__(self, loop):
        """From now on `loop` collects every child that ends."""
        self._statuses = {}
        self._wake, wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        loop.add(self._wake, self.reap, urgent=True)

    def start(self, command, environment, streams, confine, inherited=()):
        """Start a program as `spawn` does; its status is kept until `forget`."""
        pid = spawn(command, environment, streams, confine, inherited)
        self._statuses[pid] = None
        return pid

    def status(self, pid):
        """Wait status of a program that was started; None while it runs."""
        return self._statuses[pid]

    def await_end(self, pid):
        """Wait until a program that was killed has ended."""
        while self._statuses[pid] is None:
            self._note(*os.waitpid(-1, 0))

    def forget(self, pid):
        """The program is of no interest any more; its number may be used again."""
        del self._statuses[pid]

    def reap(self):
        """Collect every child that has ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, CHUNK)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._note(pid, status)

    def _note(self, pid, status):
        # A child that has made us its tracer only stands still.
        if pid in self._statuses and not os.WIFSTOPPED(status):
            self._statuses[pid] = status

    def kill_all(self):
        """Kill every process in this PID namespace but this one, and wait until all are gone."""
        _check_pid()
        while True:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            self._note(pid, status)

    def kill_all_but(self, kept):
        """Stop these children and kill every other process. False, and all are dead, if that doesn't succeed.

        Those that stand still can neither write nor start anything, nor let another go on.
        """
        _check_pid()
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP)
            self.reap()
            if any(self.status(pid) is not None for pid in kept):
                break
            others = [pid for pid in _living() if pid not in kept]
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not others and all(_stands_still(pid) for pid in kept):
                return True
            time.sleep(0.001)
        self.kill_all()
        return False


def _check_pid():
    if os.getpid() != 1:  # outside a container this would kill the machine
        raise RuntimeError("not PID 1")


def _living():
    """Numbers of all other processes that have not ended."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]
    return [pid for pid in numbers if _state(f"/proc/{pid}") not in "ZX"]


def _stands_still(pid):
    """Whether no thread of the process runs."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return all(_state(f"/proc/{pid}/task/{thread}") in "TtZX" for thread in threads)


def _state(folder):
    """The letter of a process or a thread; X if it is gone."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return "X"


def spawn(command, environment, streams, confine, inherited=()):
    """Start a program in a session of its own and return its process number.

    What fails in the child ends as in a shell, with a message and 126 or 127.

    Args:
        command: program, looked up on PATH, and arguments.
        environment: all of it.
        streams: descriptors for 0, 1 and 2.
        confine: is called in the child as the last thing before the program.
        inherited: further descriptors that the program gets, under the same numbers.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for descriptor, source in enumerate(streams):
            os.dup2(source, descriptor)
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program would inherit that
            signal.signal(number, signal.SIG_DFL)
        confine()
        os.execvpe(command[0], command, environment)
    except BaseException as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        with contextlib.suppress(OSError):
            os.write(2, f"{command[0]}: {getattr(error, 'strerror', None) or error}\n".encode())
        os._exit(code)


def exit_code(status):
    """Of a wait status, as in a shell: 128 and the number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def cpu_seconds(pid):
    """How long all threads of a process have had a processor; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = file.read().rpartition(b") ")[2].split()[11:13]
    except OSError:
        return 0
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def oom_kills():
    """How many processes of this container the kernel has killed for want of memory (cgroup v2, then v1)."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except OSError:
            continue
    return 0
