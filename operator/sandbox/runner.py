"""PID 1 of every sandbox pod: runs one job of code blocks and reports on stdout, one JSON object a line.

Started by the image with `python3 -I` on this folder; uses the standard library only. The operator attaches to the
container and talks to it over stdin and stdout; nothing else may be written to stdout.

Environment: CODEEXEC_EGRESS_TARGETS, JSON: what must not answer, see `egress.py`. Code can't read it here.

In:   {"report": true}                               asks for the first line below, as soon as it is known
      {"id", "blocks": [{"path", "command": [...], "code"}], "files": [{"path", "data": base64}],
       "timeoutSeconds", "outputBytes", "memoryBytes", "pids"}  the job; later {"cancel": true}, at last {"ack": true}
Out:  {"ready": true, "layers": [...], "egress": [{"name", "address", "port", "protocol", "answered"}]}
      {"id", "seq", "stream": "stdout"|"stderr", "data"}                       output as it comes
      {"id", "seq", "block", "exitCode", "reason", "startedAt", "durationMs", "stdoutBytes", "stderrBytes"}
      {"id", "seq", "done": true, "stdout": {"bytes", "sha256"}, "stderr": {...}}   totals; sha256 is of the text sent
      {"id", "seq", "error"}                                                    the job could not be run

It has to be PID 1 of its own PID namespace, because it ends a job by killing every other process that it can see.
User code is a child in a session of its own, confined by `confinement.py`: its streams are pipes to the runner, its
stdin is empty.
"""

import base64
import codecs
import contextlib
import ctypes
import errno
import hashlib
import json
import os
import selectors
import signal
import stat
import sys
import time

from confinement import Confinement
from egress import prove_closed

WORKSPACE = "/workspace"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "USER": "sandbox",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    # Output that was printed must not be lost in a buffer when the limit ends the code.
    "PYTHONUNBUFFERED": "1",
    # Python puts the folder of the script first on its path; modules are found there without byte-code litter.
    "PYTHONDONTWRITEBYTECODE": "1",
    # Matplotlib: its list of fonts stays out of the workspace, and it draws without a display.
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "MPLBACKEND": "Agg",
    # Else NumPy starts a thread for each core of the node, whatever the pod's share of them is.
    "OPENBLAS_NUM_THREADS": "1",
}
CHUNK = 64 * 1024
EGRESS_SECONDS = 10
ACK_SECONDS = 10
COLLECT_SECONDS = 0.005
PR_SET_DUMPABLE = 4


class Stream:
    """One of the two output streams: a pipe that all blocks write to, and what has come out of it."""

    def __init__(self, name, limit):
        self.name = name
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self.room = limit
        self.total = 0
        self.truncated = False
        self.digest = hashlib.sha256()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def take(self, data, final=False):
        """Count bytes and return the text to send for them; the part beyond the limit is counted only."""
        self.total += len(data)
        text = self._decode(data, final)
        encoded = text.encode()
        if len(encoded) > self.room:
            encoded = encoded[: self.room]
            text = encoded.decode(errors="ignore")
            encoded = text.encode()
            self.room = 0
            self.truncated = True
        else:
            self.room -= len(encoded)
        self.digest.update(encoded)
        return text


class Runner:
    """Runs one job. `wake` is readable whenever a child has ended."""

    def __init__(self, job, commands, wake, confinement):
        self.id = job["id"]
        self.job = job
        self.confinement = confinement
        self.commands = commands
        self.wake = wake
        self.sequence = 0
        self.cancelled = False
        self.reaped = {}
        self.streams = [Stream(name, job["outputBytes"]) for name in ("stdout", "stderr")]
        self.selector = selectors.DefaultSelector()
        self.selector.register(0, selectors.EVENT_READ, self._read_commands)
        self.selector.register(wake, selectors.EVENT_READ, self._reap)
        for stream in self.streams:
            self.selector.register(stream.reader, selectors.EVENT_READ, stream)
        self.cancelled = any(message.get("cancel") for message in commands.take_waiting())

    def run(self):
        """Run the blocks in order until one fails, then end every process and report the totals."""
        for file in self.job["files"]:
            write_file(file["path"], base64.b64decode(file["data"]))
        for index, block in enumerate(self.job["blocks"]):
            result = self._run_block(block)
            self._send(block=index, **result)
            if result["exitCode"] != 0 or self.cancelled:
                break
        kill_everything()
        for stream in self.streams:
            os.close(stream.writer)
            self._drain(stream)
            self._send_output(stream, b"", final=True)
        totals = {
            one.name: {"bytes": one.total, "sha256": one.digest.hexdigest(), "truncated": one.truncated}
            for one in self.streams
        }
        self._send(done=True, **totals)

    def _run_block(self, block):
        counted = [stream.total for stream in self.streams]
        ooms = oom_kills()
        started, clock = time.time(), time.monotonic()
        try:
            write_file(block["path"], block["code"].encode())
            self.reaped.clear()  # process numbers are used again
            # A name that starts with a dash is a file, too.
            path = f"./{block['path']}" if block["path"].startswith("-") else block["path"]
            pid = self._spawn([*block["command"], path])
        except OSError as error:
            message = f"{' '.join(block['command'])}: {error.strerror}: {error.filename}\n"
            self._send_output(self.streams[1], message.encode())
            code, reason = 126, "NonZeroExit"
        else:
            code, reason = self._wait(pid, clock + self.job["timeoutSeconds"], ooms)
        for stream in self.streams:
            self._drain(stream)
        return {
            "exitCode": code,
            "reason": reason,
            "startedAt": started,
            "durationMs": round((time.monotonic() - clock) * 1000),
            "stdoutBytes": self.streams[0].total - counted[0],
            "stderrBytes": self.streams[1].total - counted[1],
        }

    def _spawn(self, command):
        pid = os.fork()
        if pid == 0:
            self._become(command)
        return pid

    def _become(self, command):
        """In the child: turn into the program. What fails here ends as in a shell, with a message and 126 or 127."""
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for descriptor, source in enumerate((nothing, *(stream.writer for stream in self.streams))):
                os.dup2(source, descriptor)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program would inherit that
                signal.signal(number, signal.SIG_DFL)
            self.confinement.apply(pids=self.job["pids"], file_bytes=self.job["memoryBytes"])
            os.execvpe(command[0], command, ENVIRONMENT)
        except BaseException as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            with contextlib.suppress(OSError):
                os.write(2, f"{command[0]}: {getattr(error, 'strerror', None) or error}\n".encode())
            os._exit(code)

    def _wait(self, pid, deadline, ooms):
        """Serve the streams until the child ends, the limit is reached or the job is cancelled."""
        self._reap()
        while pid not in self.reaped:
            left = deadline - time.monotonic()
            if left <= 0 or self.cancelled:
                kill_everything()
                return (130, "Cancelled") if self.cancelled else (124, "DeadlineExceeded")
            busy = False
            for key, _ in self.selector.select(left):
                if isinstance(key.data, Stream):
                    busy = self._read(key.data)
                else:
                    key.data()
            if busy:
                time.sleep(COLLECT_SECONDS)  # many small writes become one frame
        code = os.waitstatus_to_exitcode(self.reaped.pop(pid))
        code = 128 - code if code < 0 else code
        if code == 0:
            return 0, "Completed"
        return code, "OutOfMemory" if oom_kills() > ooms else "NonZeroExit"

    def _reap(self):
        """Collect every child that has ended, orphans of user code too: they become children of PID 1."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, CHUNK)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):  # a child that has made us its tracer only stands still
                self.reaped[pid] = status

    def _read(self, stream):
        """Read what a pipe holds once; False when it is empty or has no writer any more."""
        try:
            data = os.read(stream.reader, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._send_output(stream, data)
        return bool(data)

    def _drain(self, stream):
        """Read what was written until now; bounded, because a background process may write for ever."""
        for _ in range(64):
            if not self._read(stream):
                return

    def _read_commands(self):
        messages = self.commands.read()
        self.cancelled = self.cancelled or any(message.get("cancel") for message in messages)
        if self.commands.ended:  # the operator is gone; the limits of the pod stand
            self.selector.unregister(0)

    def _send_output(self, stream, data, final=False):
        text = stream.take(data, final)
        if text:
            self._send(stream=stream.name, data=text)

    def _send(self, **fields):
        send(id=self.id, seq=self.sequence, **fields)
        self.sequence += 1


def send(**frame):
    """Write one line to stdout, completely."""
    line = memoryview(json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    while line:
        line = line[os.write(1, line) :]


def write_file(path, content):
    """Write a file in the workspace, whatever earlier code has planted there.

    No part of the path may be a link, and what stands under the name must be a plain file without a second name. The
    folders are held open, so one that background code swaps for a link meanwhile leads nowhere. Once written, the file
    is like any other of the sandbox: background code can still change it before it is started. That gains nothing,
    because both run as the same user in the same pod.

    Raises:
        OSError: names the path; a part of it is a link, too long or no folder, or the file is not plain or can't be
            written.
    """
    *folders, name = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in (*folders, name)):
        raise PermissionError(errno.EPERM, "is not a path inside the workspace", path)
    try:
        # Without O_DIRECTORY, with which gVisor follows links all the same (google/gvisor#14786). A link or a file that
        # is opened like this instead of a folder is of no use: nothing can be opened below it.
        hold = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(WORKSPACE, hold)
        try:
            for part in folders:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
                inner = os.open(part, hold, dir_fd=folder)
                os.close(folder)
                folder = inner
            # O_NONBLOCK: opening a FIFO, or a file that is leased, must not hang.
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, 0o644, dir_fd=folder), "wb") as out:
                found = os.fstat(out.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                    raise PermissionError(errno.EPERM, "is a device, a pipe or a file with a second name", path)
                out.truncate()
                out.write(content)
        finally:
            os.close(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def kill_everything():
    """Kill every process in this PID namespace but this one, and wait until all are gone."""
    if os.getpid() != 1:  # outside a container this would kill the machine
        raise RuntimeError("not PID 1")
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


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


class Input:
    """Lines of JSON on stdin, from the operator."""

    def __init__(self):
        self.ended = False
        self._buffer = b""
        self._waiting = []

    def read(self):
        """Take what is there (waits if nothing is) and return the complete messages in it."""
        data = os.read(0, CHUNK)
        self.ended = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]

    def next(self):
        """Wait for the next message; None if stdin ends before."""
        while not self._waiting and not self.ended:
            self._waiting = self.read()
        return self._waiting.pop(0) if self._waiting else None

    def take_waiting(self):
        """Messages that came together with the last one."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def wait_for_ack(self, seconds):
        """Wait until the operator says that it has everything, but no longer than `seconds`."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            while not self.ended and selector.select(max(0, deadline - time.monotonic())):
                if any(message.get("ack") for message in self.read()):
                    return


def await_job(commands, report):
    """The job, once it comes; None if stdin ends before. `report` is sent to whoever asks for it."""
    while (message := commands.next()) is not None:
        if message.get("report"):
            send(ready=True, **report)
        elif "blocks" in message:
            return message
    return None


def main():
    """Prove that the network is closed, wait for a job, run it, and wait until the operator has what came of it."""
    if os.getpid() != 1:
        sys.exit("runner: must be PID 1 of a container, because it kills every process that it can see")
    # Not dumpable: code of the same user can't read this process's memory or open its descriptors.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit(f"runner: prctl(PR_SET_DUMPABLE): {os.strerror(ctypes.get_errno())}")
    targets = json.loads(os.environ.get("CODEEXEC_EGRESS_TARGETS", "[]"))
    confinement = Confinement()
    answered = prove_closed(targets, EGRESS_SECONDS)
    report = {
        "layers": confinement.layers(),
        "egress": [{**target, "answered": one} for target, one in zip(targets, answered, strict=True)],
    }
    wake, wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # The kernel drops every signal that PID 1 has no handler for, so user code can't end the runner by one. The price:
    # the runner doesn't hear the kubelet's SIGTERM either, and a deleted pod ends by the SIGKILL after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    commands = Input()
    job = await_job(commands, report)
    if job is None:
        sys.exit("runner: stdin ended before a job arrived")
    try:
        os.chdir(WORKSPACE)
        Runner(job, commands, wake, confinement).run()
    except Exception as error:  # whatever it is, the operator has to hear of it
        send(id=job.get("id"), seq=-1, error=f"{type(error).__name__}: {error}")
    commands.wait_for_ack(ACK_SECONDS)  # the frames are safe with the operator only once it says so
