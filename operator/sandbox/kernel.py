"""The IPython kernel of a stateful session, seen from the runner. Standard library only.

Two processes, confined as user code is and of the same user: the kernel (`kernel_app.py`, ipykernel), which writes the
output of cells straight to its pipes, and the host (`kernel_host.py`, jupyter_client), which hands cells to it. Code
can tamper with both; it gains nothing that it couldn't print itself. The runner believes them how a cell has ended,
once and after the cell was handed over, and no more.

Runner to host: {"cell": number}, with the descriptor of its source. Host to runner: {"ready": true},
{"cell": number, "exitCode"}.
A cell is interrupted by SIGINT, which the kernel heeds while code runs. A byte in memory that the kernel can read says
so, too, for a cell that has not begun. The runner clears it before each cell, and never reads it.
Between cells both are stopped, so that a thread that a cell has left behind does nothing while other blocks run. The
runner lets them go on for a cell only.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time

from emptying import empty
from output import Pipe
from processes import cpu_seconds, exit_code
from source import Source, memory_file
from stoppable import stay_stopped

FOLDERS = "/tmp"
START_SECONDS = 60
FOLDER_SECONDS = 1
"""How long it may take to delete what code has left in the folder of the two."""
LONGEST_LINE = 4096
GOES_ON, INTERRUPTED = b"0", b"1"
_HERE = os.path.dirname(os.path.abspath(__file__))


class Kernel:
    """The two processes; none are there until the first `start`, and none after `drop`."""

    def __init__(self, loop, children, confinement, environment):
        self.pids = ()
        """Host and kernel."""
        self.pipes = ()
        """The kernel's stdout and stderr."""
        self.answer = None
        """Exit code of the cell, once it has ended."""
        self.unannounced = False
        """Whether variables have been lost and no output has said so."""
        self._loop = loop
        self._children = children
        self._confinement = confinement
        self._environment = environment
        self._folder = None
        self._orders = self._answers = self._interrupted = None
        self._line = b""
        self._ready = self._deaf = self._listening = self._awaiting = False
        self._cell = 0

    @property
    def gone(self):
        """Whether there is no kernel that could take a cell: it was never started, or one of the two has ended."""
        return not self.pids or self._deaf or any(self._children.status(pid) is not None for pid in self.pids)

    @property
    def cpu_seconds(self):
        """How long the two have had a processor."""
        return sum(map(cpu_seconds, self.pids))

    def start(self, pids, file_bytes, stopped, seconds=START_SECONDS):
        """Start the two processes and wait until they take cells.

        Args:
            pids: see `Confinement.apply`.
            file_bytes: see `Confinement.apply`.
            stopped: is asked whether to give up.
            seconds: after which to give up.

        Returns:
            Whether they do, and what they have written meanwhile. If they don't, they are killed.
        """
        words = []
        try:
            connection = self._make_folder()
        except OSError as error:  # code has left no room for it
            self._remove_folder()
            return False, f"{error.filename or self._folder}: {error.strerror}\n"
        self.pipes = (Pipe(), Pipe())
        self.direct([lambda _, text: words.append(text)] * 2)
        self._line, self._ready, self._deaf, self._awaiting = b"", False, False, False

        def confine():
            stay_stopped()
            self._confinement.apply(pids, file_bytes)

        self._spawn(connection, confine)
        self._loop.add(self._answers, self._listen)
        self._listening = True
        for pipe in self.pipes:
            self._loop.add(pipe.reader, pipe.read)
        self._loop.serve(lambda: self._ready or self.gone or stopped(), time.monotonic() + seconds)
        ready = self._ready and not self.gone
        if not ready:
            self._kill()
        for pipe in self.pipes:
            pipe.drain()
        if not ready:
            announced = not self.unannounced
            self.drop()
            self.unannounced = not announced  # it had no variables yet
        return ready, "".join(words)[-LONGEST_LINE:]

    def _make_folder(self):
        """A folder of their own, and the file in it that says how they connect."""
        self._folder = f"{FOLDERS}/kernel-{os.urandom(4).hex()}"
        os.mkdir(self._folder, 0o700)
        connection = f"{self._folder}/connection.json"
        with open(connection, "w") as file:
            json.dump(_connection(self._folder), file)
        return connection

    def _remove_folder(self):
        """Code may have filled it with anything."""
        with contextlib.suppress(OSError):
            empty(self._folder, time.monotonic() + FOLDER_SECONDS)
            os.rmdir(self._folder)

    def _spawn(self, connection, confine):
        environment = self._environment | _settings(self._folder)
        orders, self._orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setblocking(False)
        self._answers, answers = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._answers, False)
        self._interrupted = memory_file("interrupted")
        # A description of its own: what code sets on that does not hold for the runner's.
        interrupted = os.open(f"/proc/self/fd/{self._interrupted}", os.O_RDONLY | os.O_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        out, err = (pipe.writer for pipe in self.pipes)
        # -P: without the programs' folder on the path of imports. -s: nor what code has installed for its user.
        host = [sys.executable, "-P", "-s", f"{_HERE}/kernel_host.py", connection]
        kernel = [sys.executable, "-P", "-s", f"{_HERE}/kernel_app.py", connection, str(interrupted)]
        self.pids = (
            self._children.start(host, environment, (orders.fileno(), answers, err), confine),
            self._children.start(kernel, environment, (nothing, out, err), confine, [interrupted]),
        )
        orders.close()
        for descriptor in (answers, nothing, interrupted):
            os.close(descriptor)

    def direct(self, sinks):
        """Where the output goes from now on: see `Pipe`."""
        for pipe, sink in zip(self.pipes, sinks, strict=False):
            pipe.sink = sink

    def execute(self, block):
        """Let both go on, and have a block run as a cell; `answer` or `gone` tells of its end."""
        self.answer = None
        self._listen()
        if self._line:  # nothing was to be said yet
            self._deaf = True
        if self._deaf:
            return
        self._cell += 1
        self._awaiting = True
        self._say(GOES_ON)
        source = Source()
        try:
            source.seal(block)
            socket.send_fds(self._orders, [json.dumps({"cell": self._cell}).encode()], [source.descriptor])
        except OSError:  # full or closed: it doesn't listen any more
            self._deaf = True
        finally:
            source.close()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def interrupt(self):
        """Raise KeyboardInterrupt in the cell, even before it begins, and signal the processes that it waits for."""
        self._say(INTERRUPTED)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pids[1], signal.SIGINT)

    def _say(self, word):
        with contextlib.suppress(OSError):  # code may have sealed it: then its cell is not interrupted before it begins
            os.pwrite(self._interrupted, word, 0)

    def exit_code(self):
        """With what the kernel has ended, never 0; 1 if that is not known."""
        status = self._children.status(self.pids[1])
        return (exit_code(status) if status is not None else 0) or 1

    def drop(self):
        """Kill the two if they live, and forget them."""
        self._kill()
        for pid in self.pids:
            self._children.forget(pid)
        for pipe in self.pipes:
            self._loop.remove(pipe.reader)
            pipe.close()
        if self._listening:
            self._loop.remove(self._answers)
        self._orders.close()
        os.close(self._answers)
        os.close(self._interrupted)
        self._remove_folder()
        self.pids = self.pipes = ()
        self.unannounced = True

    def _kill(self):
        for pid in self.pids:
            if self._children.status(pid) is None:
                os.kill(pid, signal.SIGKILL)
                self._children.await_end(pid)

    def _listen(self):
        """Hear answers; code can write there, too, and anything. After what is no answer, nothing is heard any more."""
        if not self._listening:
            return
        try:
            data = os.read(self._answers, LONGEST_LINE)
        except BlockingIOError:
            return
        *lines, self._line = (self._line + data).split(b"\n")
        if not data or len(self._line) > LONGEST_LINE or not all(map(self._take, lines)):
            self._loop.remove(self._answers)
            self._listening, self._deaf = False, True

    def _take(self, line):
        """Whether a line is what is to be said now: once that it is ready, and once how each cell has ended."""
        try:
            message = json.loads(line)
        except Exception:  # whatever it is: nesting, for one, is no ValueError
            return False
        if message == {"ready": True} and not self._ready:
            self._ready = True
            return True
        code = message.get("exitCode") if isinstance(message, dict) else None
        if not self._awaiting or message != {"cell": self._cell, "exitCode": code}:
            return False
        if type(code) is not int or not 0 <= code <= 255:
            return False
        self.answer, self._awaiting = code, False
        return True


def _connection(folder):
    """What Jupyter calls a connection file: with `ipc`, ports are endings of the names of sockets."""
    ports = {f"{name}_port": number for number, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
    key = os.urandom(16).hex()
    return {"transport": "ipc", "ip": f"{folder}/s", "key": key, "signature_scheme": "hmac-sha256", **ports}


def _settings(folder):
    """Beside what all code gets in its environment: figures become images, settings stay out of the workspace."""
    folders = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    backend = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    return backend | {name: f"{folder}/{name.lower()}" for name in folders}
