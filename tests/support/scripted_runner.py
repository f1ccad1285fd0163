"""A SIMULATED runner that does what the code of a test says, and tells how often each job was handed to one.

No code is run. It is a list of these calls, with literals:

    print("words")     what comes out
    fill(800_000)      so many bytes of output
    noise(800_000)     the same, but they can't be compressed well
    wait("gate")       until the test opens this gate, the job is cancelled, or its time is over
    wait(3)            the same, but for so many seconds
    exit(3)            ends with this code
    stuck()            never ends, and doesn't hear of a cancellation
    write("path")      makes a file in the workspace, whose content is its path; mode 0o640
    show("path")       prints the content and the mode of a file

Imports do nothing: they are there for whoever reads the code before it runs.

A session that sleeps takes its files along, as the real runner's does: in one piece each, so they have to be small.

What it says goes to whoever is attached, and into the log of its pod. A job goes on when its connection ends, as the
real one does.
"""

import ast
import asyncio
import base64
import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from codeexec_operator.core.frames import Lines
from codeexec_operator.core.readiness import LAYERS

Frame = dict[str, Any]
Files = dict[str, tuple[int, bytes]]
"""Mode and content by path."""
_PIECE: Final = 64 * 1024
_MOST_LINES: Final = 1_000
"""The script of a test is a few lines. To parse what takes long would hold up the runners of all other pods."""


@dataclass
class Script:
    """What all runners of a test share. Used from several threads."""

    jobs: Counter[str] = field(default_factory=Counter)
    """How often each job was handed to a runner, by the UID of its execution."""
    pods_used_twice: int = 0
    """Of those that are for one job only, or that were not made clean."""
    resets: int = 0
    """How often a runner was asked to make its pod clean."""
    soiled: bool = False
    """True: pods are found not to be clean then."""
    silent: bool = False
    """True: nothing is said of it."""
    kernels: int = 0
    """How often one was asked for."""
    boot_id: str = ""
    """Of the kernel that runners see."""
    unkept: str = ""
    """What runners say of a workspace that can't be told as a whole; empty if each can."""
    spoiled: bool = False
    """True: a file that is put into a workspace becomes another one."""
    network_open: bool = False
    """True: whatever a runner connects to for its egress proof answers."""
    refused: int = 0
    """Messages of an older epoch than the one that counted."""
    clock_ahead: float = 0
    """By how many seconds the clocks of all nodes, and so of the runners, are ahead."""
    _gates: dict[str, threading.Event] = field(default_factory=dict)
    _arrived: Counter[str] = field(default_factory=Counter)
    _lock: threading.Condition = field(default_factory=threading.Condition)

    def time(self) -> float:
        """The time by the clocks of the nodes."""
        return time.time() + self.clock_ahead

    def open(self, gate: str) -> None:
        """Whoever waits there goes on, now and later."""
        self.gate(gate).set()

    def gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())

    def arrive(self, gate: str) -> None:
        with self._lock:
            self._arrived[gate] += 1
            self._lock.notify_all()

    def wait_at(self, gate: str, seconds: float = 100, *, until: Callable[[], bool] = lambda: False) -> None:
        """Until code waits at this gate, and so runs; or until there is no point in waiting any more."""
        with self._lock:
            if not self._lock.wait_for(lambda: self._arrived[gate] > 0 or until(), seconds):
                raise AssertionError(f"waited {seconds} s in vain for code to come to wait({gate!r})")

    async def reached(self, gate: str, call: asyncio.Future[Any] | None = None, seconds: float = 100) -> None:
        """`wait_at`, in a thread. If the call that runs the code is over before, that is what the test fails with."""
        if call:
            call.add_done_callback(self._look_again)
        await asyncio.to_thread(self.wait_at, gate, seconds, until=lambda: call is not None and call.done())
        if call and call.done() and not self._arrived[gate]:
            raise AssertionError(f"the call was over before its code came to wait({gate!r})") from call.exception()

    def _look_again(self, _: object) -> None:
        with self._lock:
            self._lock.notify_all()

    def handed_over(self, uid: str) -> None:
        with self._lock:
            self.jobs[uid] += 1


class RunnerLog:
    """What a runner has said, for those who are attached and those who read its log later."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._times: list[float] = []
        self.over = False
        self._changed = asyncio.Event()

    def add(self, line: bytes, now: float) -> None:
        self.lines.append(line)
        self._times.append(now)
        self._wake()

    def end(self) -> None:
        self.over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, start: int = 0, since: float = 0) -> AsyncIterator[bytes]:
        """Each line from this one on that has come since then, until there are no more."""
        while True:
            while start < len(self.lines):
                if self._times[start] >= since:
                    yield self.lines[start]
                start += 1
            if self.over:
                return
            await self._changed.wait()


class ScriptedRunner:
    """The runner of one pod.

    Args:
        targets: of the egress proof, as the pod's environment names them.
        script: what it shares with all others.
    """

    def __init__(self, targets: Sequence[Mapping[str, Any]], script: Script) -> None:
        self.log = RunnerLog()
        self.jobs = self._dirty_jobs = 0
        self.exited = self._alone = False
        self._targets, self._script = targets, script
        self._lines = Lines()
        self._running: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._frames: dict[str, list[Frame]] = {}
        """What was said of each job that was begun."""
        self._epoch: list[int] = []
        self._files: Files = {}

    def take(self, data: bytes) -> None:
        """What comes on its stdin, in pieces of any size."""
        for line in self._lines.feed(data):
            if line.strip():
                self._take(json.loads(line))

    def stop(self) -> None:
        """Its container is gone."""
        for task, _ in self._running.values():
            task.cancel()
        self.log.end()

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["epoch"] < self._epoch:
            self._script.refused += 1
            self._send({"refused": message["epoch"]})
            return
        self._epoch = message["epoch"]
        if "put" in message:
            self._put(message)
        else:
            self._answer(message)

    def _answer(self, message: Mapping[str, Any]) -> None:
        if "report" in message:
            egress = [{**target, "answered": self._script.network_open} for target in self._targets]
            facts = {"layers": sorted(LAYERS), "egress": egress, "userNamespace": True, "bootId": self._script.boot_id}
            facts |= {"job": next(iter(self._running), None), "used": bool(self._frames or self._files)}
            self._script.kernels += bool(message["kernel"])
            self._send({"ready": True, **facts, "kernel": bool(message["kernel"])})
        elif "resume" in message:
            self._resume(message["resume"], message["from"])
        elif "blocks" in message:
            self._begin(message)
        elif "ping" in message:
            self._send({"pong": message["ping"]})
        elif "cancel" in message:
            for uid, (_, cancelled) in self._running.items():
                if message["cancel"] in (True, uid):
                    cancelled.set()
        elif message.get("reuse"):
            self._reset(message["ack"])
        elif "ack" in message and self.jobs:
            self.exited = True
            self.log.end()

    def _put(self, message: Mapping[str, Any]) -> None:
        mode, content = self._files.get(message["put"], (0, b"")) if message["append"] else (message.get("mode"), b"")
        data = base64.b64decode(message["data"]) + (b"!" if self._script.spoiled else b"")
        self._files[message["put"]] = (0o644 if mode is None else mode), content + data

    def _reset(self, uid: str) -> None:
        self._script.resets += 1
        self._dirty_jobs = 0
        found = {"Volumes": "a file was left"} if self._script.soiled else {}
        rows = {"clean": not found, "checked": ["Processes", "Volumes"], "found": found, "ms": 2.5}
        if not self._script.silent:
            self._send({"reset": uid, **rows})

    def _resume(self, uid: str, start: int) -> None:
        if uid not in self._frames or uid != next(reversed(self._frames)):
            self._send({"resumed": uid, "missing": "Forgotten" if uid in self._frames else "NeverBegun"})
            return
        self._send({"resumed": uid})
        for frame in self._frames[uid][start:]:
            self._send(frame)

    def _begin(self, job: Mapping[str, Any]) -> None:
        if job["id"] in self._frames:
            self._send({"repeated": job["id"]})
            return
        frames = self._frames[job["id"]] = []

        def tell(frame: Frame) -> None:
            frames.append(frame)
            self._send(frame)

        self.jobs += 1
        self._dirty_jobs += 1
        self._script.handed_over(job["id"])
        self._alone = self._alone or not job["session"]
        if self._dirty_jobs == 2 and self._alone:
            self._script.pods_used_twice += 1
        cancelled = asyncio.Event()
        task = asyncio.create_task(_Job(job, self._script, tell, cancelled, self._files).run())
        self._running[job["id"]] = task, cancelled
        task.add_done_callback(lambda _: self._running.pop(job["id"], None))

    def _send(self, frame: Frame) -> None:
        self.log.add(json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode() + b"\n", self._script.time())


class _Job:
    """One job, from its first block to its totals."""

    def __init__(
        self,
        job: Mapping[str, Any],
        script: Script,
        send: Callable[[Frame], None],
        cancelled: asyncio.Event,
        files: Files,
    ) -> None:
        self._files = files
        self._job, self._script, self._send, self._cancelled = job, script, send, cancelled
        self._said = {"stdout": bytearray(), "stderr": bytearray()}
        self._number = 0

    async def run(self) -> None:
        for index, block in enumerate(self._job["blocks"]):
            begun, before = self._script.time(), {name: len(said) for name, said in self._said.items()}
            code, reason = await self._run(block["code"])
            written = {f"{name}Bytes": len(said) - before[name] for name, said in self._said.items()}
            took = round((self._script.time() - begun) * 1000)
            self._tell(block=index, exitCode=code, reason=reason, startedAt=begun, durationMs=took, **written)
            if code:
                break
        told: Frame = {"artifactsOmitted": 0}
        if self._job["artifacts"]["list"] == "Whole":
            if self._script.unkept:
                self._tell(fault={"reason": "FileRefused", "message": self._script.unkept})
                return
            self._tell_files(self._job["artifacts"]["fetch"])
            told = {"whole": True}
        totals = {
            name: {"bytes": len(said), "sha256": hashlib.sha256(said).hexdigest(), "truncated": False}
            for name, said in self._said.items()
        }
        self._tell(done=True, **totals, **told)

    def _tell_files(self, fetch: bool) -> None:
        for index, (path, (mode, content)) in enumerate(sorted(self._files.items())):
            digest = hashlib.sha256(content).hexdigest()
            self._tell(artifact=index, path=path, size=len(content), sha256=digest, mode=mode)
            if fetch:
                self._tell(file=index, data64=base64.b64encode(content).decode())

    async def _run(self, code: str) -> tuple[int, str]:
        try:
            async with asyncio.timeout(self._job["timeoutSeconds"]):
                for name, argument in calls_of(code):
                    match name:
                        case "print" | "write" | "show":
                            self._do(name, argument)
                        case "fill" | "noise":
                            self._fill(int(argument), compressible=name == "fill")
                        case "wait":
                            if not await self._wait(argument):
                                return 130, "Cancelled"
                        case "exit":
                            return int(argument), "NonZeroExit" if argument else "Completed"
                        case "stuck":
                            await asyncio.Future[None]()
        except TimeoutError:
            return 124, "DeadlineExceeded"
        except ValueError as error:
            self._write("stderr", f"{error}\n")
            return 1, "NonZeroExit"
        return 0, "Completed"

    def _do(self, name: str, argument: str) -> None:
        """What takes no time."""
        if name == "print":
            self._write("stdout", f"{argument}\n")
        elif name == "write":
            self._files[argument] = (0o640, argument.encode())
        else:
            mode, content = self._files.get(argument, (0, b"nothing"))
            self._write("stdout", f"{content.decode()} {mode:o}\n")

    async def _wait(self, gate: str | int) -> bool:
        """False if it is cancelled before."""
        begun, opened = time.monotonic(), self._script.gate(str(gate))
        self._script.arrive(str(gate))
        while not (opened.is_set() or (isinstance(gate, int) and time.monotonic() >= begun + gate)):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await self._cancelled.wait()
            if self._cancelled.is_set():
                return False
        return True

    def _fill(self, size: int, *, compressible: bool) -> None:
        for piece in _pieces(size, compressible=compressible):
            self._write("stdout", piece)

    def _write(self, stream: str, text: str) -> None:
        self._said[stream] += text.encode()
        self._tell(stream=stream, data=text)

    def _tell(self, **frame: Any) -> None:
        self._send({"id": self._job["id"], "seq": self._number, **frame})
        self._number += 1


def noise(size: int) -> str:
    """What `noise(size)` writes."""
    return "".join(_pieces(size, compressible=False))


def _pieces(size: int, *, compressible: bool) -> Iterator[str]:
    chance = random.Random(size)
    for start in range(0, size, _PIECE):
        text = "x" * _PIECE if compressible else base64.b64encode(chance.randbytes(_PIECE)).decode()
        yield text[: min(_PIECE, size - start)]


def calls_of(code: str) -> list[tuple[str, Any]]:
    """The calls that code consists of, with their one literal each. Nothing is evaluated.

    Raises:
        ValueError: it is something else.
    """
    if (lines := code.count("\n")) > _MOST_LINES:
        raise ValueError(f"the scripted runner does not understand {lines} lines")
    calls = []
    for statement in ast.parse(code).body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                pass
            case ast.Expr(ast.Call(ast.Name(name), [ast.Constant(value)], [])):
                calls.append((name, value))
            case ast.Expr(ast.Call(ast.Name(name), [], [])):
                calls.append((name, None))
            case _:
                raise ValueError(f"the scripted runner does not understand {ast.unparse(statement)!r}")
    return calls
