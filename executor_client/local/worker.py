"""The process beside each block that `LocalSandboxExecutor` runs: confines it, waits for it, ends all that it started.

A script of its own, started as `python -I worker.py` with nothing of the caller's environment: so the caller keeps its
signals, its children and its threads to itself. Standard library and sandlock only; Linux only.

Its stdin is a socket to the caller, one JSON object a line:

In:   {"argv": [...], ...}    `plan.Plan` as an object, first
      the end of the stream   ends the block, and comes by itself when the caller dies
Out:  {"unfit": text}         instead of all else: this machine can't confine code, and none ran
      {"failed": text}        the same, but for another reason than the machine
      {"started": true}
      {"exit": code, "killed": bool}   the block and everything that it had started are gone

stdout and stderr are the block's own; nothing is written to them here.

sandlock (Landlock, seccomp and a supervisor of system calls) is the wall. What is done here before it starts, for
itself and with that for the code, closes what was found open in it (docs/local-sandbox.md): capabilities, Multipath
TCP and other protocols that Landlock doesn't know, attributes of files by descriptor, other processes' settings.
"""

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

_libc: Final = ctypes.CDLL(None, use_errno=True)

# --- what sandlock leaves open -------------------------------------------------------------------------------------

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 23, 24, 38, 36
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 22, 2, 47, 4
_CAPABILITY_VERSION: Final = 0x20080522
_AGAIN_SECONDS: Final = 0.05
_PIDFD_GETFD: Final = 438
_PIDFD_THREAD: Final = os.O_EXCL
_MOST_ENTRY_BYTES: Final = 1 << 16
_TIMES_BYTES: Final = 32
SUPERVISED: Final = ("getdents64", "utimensat")
"""System calls that are made here, in the place of the block."""


def install(program: Sequence[Sequence[int]]) -> None:
    """Have the kernel look at each system call from now on, also of all processes that this one starts."""
    instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(instructions, len(instructions))
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(kept))
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_, 0, 0))


def _drop_capabilities() -> None:
    """Let go of every capability for good, also where the caller is root."""
    capability = 0
    while (held := _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0)) >= 0:
        if held == 1 and os.geteuid() == 0:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        capability += 1
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _checked(_libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), struct.pack("=6I", *[0] * 6)))


def _limit(which: int, value: int) -> None:
    most = resource.getrlimit(which)[1]
    bound = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(which, (bound, bound))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _confine_self(plan: dict[str, Any]) -> None:
    os.umask(0o077)
    cores = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(cores)  # not the same for all blocks that run at the same time
    os.sched_setaffinity(0, (cores[first:] + cores[:first])[: plan["cores"]])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, plan["file_bytes"])
    _drop_capabilities()
    install(plan["filter"])


# --- the block -----------------------------------------------------------------------------------------------------


def _end_descendants(*, reap: bool) -> None:
    """Kill what is left of the block's processes, wherever they went: orphans come to this process."""
    me = os.getpid()
    while True:
        parents: dict[int, int] = {}
        gone: set[int] = set()
        for entry in Path("/proc").iterdir():
            with suppress(ValueError, OSError):  # not a process, or no more
                pid = int(entry.name)
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                parents[pid] = int(parent)
                if state in b"ZX":
                    gone.add(pid)
        family = {me}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        alive = family - gone - {me}
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in gone & family if reap else ():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not alive:
            return


class _ByDescriptor:
    """Lists a folder, or sets times, through an open descriptor, in the place of the block.

    sandlock lets code open each folder above what it may read, and Landlock looks at no descriptor that is open. So
    this looks where it leads. It acts on a copy, which no other thread of the block can exchange in between.
    """

    def __init__(self, sandlock: Any, plan: dict[str, Any]) -> None:
        self._action = sandlock.NotifAction
        self.on_exception = sandlock.handler.ExceptionPolicy.DENY_EIO
        self._listing, self._timing = (plan["numbers"][name] for name in SUPERVISED)
        self._writable = [os.path.realpath(path) for path in plan["writable"]]
        self._readable = self._writable + [os.path.realpath(path) for path in plan["readable"]]

    def handle(self, call: Any) -> Any:
        """What becomes of one system call."""
        try:
            if call.syscall_nr == self._listing:
                return self._action.returns(self._list(call))
            if call.args[1]:  # a path, which sandlock has looked at
                return self._action.continue_()
            return self._action.returns(self._set_times(call))
        except OSError as error:
            return self._action.errno(error.errno or errno.EIO)

    def _list(self, call: Any) -> int:
        entries = ctypes.create_string_buffer(min(call.args[2] & 0xFFFF_FFFF, _MOST_ENTRY_BYTES))
        with self._copy(call, self._readable) as folder:
            length = _checked(_libc.syscall(self._listing, folder, entries, len(entries)))
        if length and not call.write(call.args[1], entries.raw[:length]):
            raise OSError(errno.EFAULT, "no place for the entries")
        return length

    def _set_times(self, call: Any) -> int:
        times = call.read(call.args[2], _TIMES_BYTES) if call.args[2] else None
        with self._copy(call, self._writable) as file:
            return _checked(_libc.syscall(self._timing, file, None, times, call.args[3] & 0xFFFF_FFFF))

    @contextmanager
    def _copy(self, call: Any, folders: Sequence[str]) -> Iterator[int]:
        """A copy of the block's descriptor, if it is that of something in one of these folders."""
        process = os.pidfd_open(call.pid, _PIDFD_THREAD)
        try:
            copy = _checked(_libc.syscall(_PIDFD_GETFD, process, ctypes.c_int(call.args[0] & 0xFFFF_FFFF), 0))
        finally:
            os.close(process)
        try:
            path = Path(f"/proc/self/fd/{copy}").readlink()
            if not any(path.is_relative_to(folder) for folder in folders):
                raise OSError(errno.EACCES, "not the block's")
            yield copy
        finally:
            os.close(copy)


class _Block:
    """The confined process, and who waits for it."""

    def __init__(self, sandlock: Any, plan: dict[str, Any]) -> None:
        self._box = sandlock.Sandbox(
            # Paths go through sandlock's supervisor with this, which refuses what Landlock has no rule for: looking at
            # files, and changing their mode, owner, times and attributes.
            chroot="/",
            fs_readable=plan["readable"],
            fs_writable=plan["writable"],
            clean_env=True,
            env=plan["env"],
            cwd=plan["cwd"],
            max_memory=plan["memory_bytes"],
            max_processes=plan["processes"],
            max_cpu=plan["cpu_percent"],
            net_allow=[f"tcp://{endpoint}" for endpoint in plan["endpoints"]],
        )
        by_descriptor = _ByDescriptor(sandlock, plan)
        self._handlers = [(name, by_descriptor) for name in SUPERVISED]
        self._argv = plan["argv"]
        self.ended, self._told = os.pipe()
        self.result: Any = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(Exception):
            self.result = self._box.run_with_handlers(self._argv, self._handlers)
        os.write(self._told, b".")

    def kill(self) -> None:
        """End it, from outside of its process group as well: code may have left that. sandlock itself reaps it."""
        _end_descendants(reap=False)
        while not select.select([self.ended], [], [], _AGAIN_SECONDS)[0]:  # it may not have started before
            _end_descendants(reap=False)


def main() -> None:
    """Run one block."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # stdin of the block
    plan = json.loads(control.makefile("rb").readline())
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        import sandlock
    except ImportError as error:
        _refuse(control, "unfit", f"sandlock can't be loaded: {error}")
    try:
        found, needed = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
        if found < needed:
            _refuse(
                control,
                "unfit",
                f"the kernel has Landlock ABI {max(0, found)}, but {needed} or newer is needed (Linux 6.12)",
            )
        for endpoint in plan["endpoints"]:
            _look_up(control, endpoint)
        _confine_self(plan)
        # Its Python class can't give handlers to a process that keeps the streams of this one; its library can.
        library = sandlock._sdk._lib
        library.sandlock_run_with_handlers = library.sandlock_run_interactive_with_handlers
        block = _Block(sandlock, plan)
    except (OSError, RuntimeError) as error:
        _refuse(control, "failed", f"{type(error).__name__}: {error}")
    control.sendall(b'{"started": true}\n')
    ready, _, _ = select.select([control.fileno(), block.ended], [], [])
    if block.ended not in ready:
        block.kill()
    _end_descendants(reap=True)
    result = block.result
    if result is None or result.error:
        _refuse(control, "failed", f"sandlock: {result.error if result else 'no result'}")
    killed = result.reason == sandlock.ExitReason.KILLED or result.signal == signal.SIGKILL
    code = 128 + result.signal if result.signal > 0 else result.exit_code
    with suppress(OSError):
        control.sendall(json.dumps({"exit": 137 if killed else code, "killed": killed}).encode() + b"\n")
    os._exit(0)


def _look_up(control: socket.socket, endpoint: str) -> None:
    """Find out whether there is such a host; sandlock looks it up by itself, and says nothing if there is none."""
    try:
        socket.getaddrinfo(endpoint.rpartition(":")[0].strip("[]"), None)
    except OSError as error:
        _refuse(control, "failed", f"endpoints has {endpoint!r}, which can't be looked up: {error.strerror}")


def _refuse(control: socket.socket, kind: str, text: str) -> NoReturn:
    control.sendall(json.dumps({kind: text}).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception:  # stderr is the block's: no traceback there
        os._exit(70)
