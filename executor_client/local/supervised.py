"""Runs one block under `worker.py`, and reads what it gives out. Blocking: for a thread. Linux only."""

import json
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from codeexec_api import Event
from executor_client.exceptions import ExecutionLost, ExecutionNotStarted, LocalSandboxUnavailable
from executor_client.local.plan import Plan
from executor_client.local.record import BlockEnd, Output
from executor_client.model.results import StreamName

_WORKER: Final = Path(__file__).with_name("worker.py")
_START_SECONDS: Final = 60
_END_SECONDS: Final = 30
"""How long the end of all processes may take, once it was asked for."""
_CHUNK: Final = 1 << 16


class Stop:
    """Tells a block that runs in a thread to end. May be set from any thread, once or more often, or before it runs.

    It holds descriptors only while a block listens: thousands of calls may wait for their turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer: socket.socket | None = None
        self.is_set = False
        """Whether the block is to end."""
        self.over = ""
        """What the block was to run in is over, in words; empty where the caller has cancelled the call."""

    def set(self, over: str = "") -> None:
        """End the block."""
        with self._lock:
            if not self.is_set:
                self.is_set, self.over = True, over
            if self._writer:
                self._writer.close()

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """Inside is what can be read from once it is set."""
        reader, writer = socket.socketpair()
        with reader, writer:
            with self._lock:
                self._writer = writer
                if self.is_set:
                    writer.close()
            yield reader


def run_block(python: str, plan: Plan, timeout_seconds: int, output: Output, stop: Stop) -> BlockEnd:
    """Run one block until all of its processes are gone.

    Args:
        python: interpreter for the worker.
        plan: what is run, and within what.
        timeout_seconds: counts from the start of the code.
        output: gets what the block writes.
        stop: ends it.

    Raises:
        LocalSandboxUnavailable: this machine can't confine code; none ran.
        ExecutionNotStarted: the worker or the sandbox does not start.
        ExecutionLost: the worker has died, or does not end.
    """
    try:
        run = _Run(python, plan, output)
    except OSError as error:
        raise ExecutionNotStarted(f"the supervisor of the block can't be started: {error.strerror}") from error
    return run.wait(timeout_seconds, stop)


class _Run:
    def __init__(self, python: str, plan: Plan, output: Output) -> None:
        self._output = output
        self._control, theirs = socket.socketpair()
        with theirs, ExitStack() as unless_started:
            unless_started.callback(self._control.close)
            self._process = subprocess.Popen(  # noqa: S603 - our own script; the plan is data
                [python, "-I", "-B", str(_WORKER)],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,
            )
            unless_started.pop_all()
        self._pipes: dict[Any, StreamName] = {self._process.stdout: "stdout", self._process.stderr: "stderr"}
        self._plan = json.dumps(asdict(plan)).encode() + b"\n"
        self._heard = b""
        self._asked: Event | None = None
        self._started: float | None = None

    def wait(self, timeout_seconds: int, stop: Stop) -> BlockEnd:
        try:
            with selectors.DefaultSelector() as selector, stop.listening() as stopped:
                for source in (self._control, stopped, *self._pipes):
                    selector.register(source, selectors.EVENT_READ)
                self._control.sendall(self._plan)
                self._listen(selector, timeout_seconds, stopped)
            return self._end()
        finally:
            self._close()

    def _listen(self, selector: selectors.BaseSelector, timeout_seconds: int, stopped: socket.socket) -> None:
        """Until the worker is gone, and with it all that can write."""
        deadline = time.monotonic() + _START_SECONDS
        while self._control in selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(max(left, 0))
            if left <= 0 and all(key.fileobj is not self._control for key, _ in ready):  # what is said came in time
                deadline = self._late()
                continue
            for key, _ in ready:
                if key.fileobj is stopped:
                    selector.unregister(stopped)
                    deadline = self._ask(Event.CANCEL)
                elif key.fileobj is not self._control:
                    self._take(key.fileobj, selector)
                elif not self._hear():
                    selector.unregister(self._control)
                elif self._started is None and self._asked is None and b'"started"' in self._heard:
                    self._started = time.monotonic()
                    deadline = self._started + timeout_seconds
        for pipe in self._pipes if b'"exit"' in self._heard else ():
            while any(key.fileobj is pipe for key, _ in selector.select(0)):
                self._take(pipe, selector)

    def _late(self) -> float:
        if self._asked is not None:
            raise ExecutionLost("the processes of the block could not be ended; look for them on this machine")
        if self._started is None:
            raise ExecutionNotStarted(f"the supervisor of the block did not start within {_START_SECONDS} s")
        return self._ask(Event.DEADLINE)

    def _ask(self, event: Event) -> float:
        """Have the worker end the block; returns until when it may take."""
        self._asked = self._asked or event
        self._control.shutdown(socket.SHUT_WR)
        return time.monotonic() + _END_SECONDS

    def _hear(self) -> bytes:
        try:
            data = self._control.recv(_CHUNK)
        except ConnectionError:
            return b""
        self._heard += data
        return data

    def _take(self, pipe: Any, selector: selectors.BaseSelector) -> None:
        data = pipe.read1(_CHUNK)
        if not data:
            selector.unregister(pipe)
        self._output.add(self._pipes[pipe], data)

    def _end(self) -> BlockEnd:
        answers: dict[str, Any] = {}
        for line in self._heard.splitlines():
            answers |= json.loads(line)
        if "unfit" in answers:
            raise LocalSandboxUnavailable(
                f"this machine can't confine code: {answers['unfit']}; nothing was run. docs/local-sandbox.md says "
                "what is needed; KubernetesCodeExecutor does not need this"
            )
        if "failed" in answers and self._asked:  # the code was ended while the sandbox was starting it
            return BlockEnd(self._asked, 0, 0)
        if "failed" in answers:
            raise ExecutionNotStarted(f"the local sandbox could not be started: {answers['failed']}; nothing was run")
        if not answers:
            code = self._process.wait()
            raise ExecutionNotStarted(f"the supervisor of the block died (exit code {code}) before the code started")
        if "exit" not in answers:
            raise ExecutionLost(
                f"the supervisor of the block died (exit code {self._process.wait()}); the code may have run in part, "
                "and some of its processes may still run"
            )
        duration = round((time.monotonic() - (self._started or time.monotonic())) * 1000)
        if self._asked:
            return BlockEnd(self._asked, 0, duration)
        if answers["killed"]:
            return BlockEnd(Event.OUT_OF_MEMORY, 137, duration)
        code = int(answers["exit"])
        return BlockEnd(Event.EXITED_NONZERO if code else Event.EXITED_ZERO, code, duration)

    def _close(self) -> None:
        self._control.close()  # which ends the block, if it runs
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in self._pipes:
            pipe.close()
