"""Processes of user code: how they begin, and how all of them end. Standard library only."""

import contextlib
import os
import signal
import time

from channel import CHUNK

STOP_SECONDS = 2
STOP_LOOKS = 20
"""Made at least, however late it is: a node that stands still for a while costs nobody a kernel."""
MOST_AT_ONCE = 1000
_STATE, _TERMINAL, _CPU, _THREADS = 0, 4, slice(11, 13), 17  # in /proc/PID/stat, behind the name


class Children:
    """The children of PID 1: those it has started, and orphans of user code, which are only collected."""

    def __init__(self, loop):
        """From now on `loop` collects every child that ends."""
        self._statuses = {}
        self._stopped = set()
        self._wake, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
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
        self._stopped.discard(pid)

    def reap(self):
        """Collect children that have ended, and no more at once: code may start them faster than they are collected."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, CHUNK)
        for _ in range(MOST_AT_ONCE):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._note(pid, status)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b"\0")  # so that the loop comes again: there may be more

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

        Those that stand still can neither write nor start anything, nor let another go on. But whoever ends may let
        another go on by that, and can't be stopped any more. So a time is looked for in which nothing happens: of the
        others none lives, two looks at them are the same, and meanwhile the kept stand still.
        """
        _check_pid()
        deadline, looks = time.monotonic() + STOP_SECONDS, 0
        before = None
        while time.monotonic() < deadline or looks < STOP_LOOKS:
            looks += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP)
            self.reap()
            if any(self.status(pid) is not None for pid in kept):
                break
            if any([self._has_turned(pid) for pid in kept]):
                before = None
            living, look = _look(kept)
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if living or not self._stopped.issuperset(kept):
                before = None
                time.sleep(0.001)
            elif look != before:
                before = look
            elif any(_has_terminal(pid) for pid in kept):
                break
            elif all(_facts(pid)[_STATE] == b"T" for pid in kept):
                return True
            else:
                time.sleep(0.001)  # one was killed while it stood still
        self.kill_all()
        return False

    def _has_turned(self, pid):
        """Whether a child has come to a stop, with all of its threads, or has gone on, since this was asked last."""
        with contextlib.suppress(ChildProcessError):  # it is ending
            event = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            if event is None:
                return False
            if event.si_code == os.CLD_STOPPED:
                self._stopped.add(pid)
                return True
        self._stopped.discard(pid)
        return True


def _check_pid():
    if os.getpid() != 1:  # outside a container this would kill the machine
        raise RuntimeError("not PID 1")


def _look(kept):
    """Which other processes live, and what differs from look to look if one was started in between.

    That is the number given last, and all numbers: Linux lists one process after the other, and may miss one that is
    started meanwhile. gVisor tells no last number, and lists the processes of one moment.
    """
    with open("/proc/loadavg", "rb") as file:
        newest = file.read().rpartition(b" ")[2]
    others = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    others = [pid for pid in others if pid != 1 and pid not in kept]
    return [pid for pid in others if _lives(pid)], (newest, others)


def _lives(pid):
    """Whether any thread of a process has not ended. Its state is that of its first one, which tells of no other."""
    facts = _facts(pid)
    return facts is not None and (facts[_STATE] not in (b"Z", b"X") or int(facts[_THREADS]) > 1)


def _has_terminal(pid):
    """Whether the leader of a session would go on when its terminal hangs up, which may come late."""
    return _facts(pid)[_TERMINAL] != b"0"


def _facts(pid):
    """What the kernel says of a process, from its state on; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


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
    facts = _facts(pid)
    return sum(map(int, facts[_CPU])) / os.sysconf("SC_CLK_TCK") if facts else 0


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
