"""What a store that is slow, hangs or fails does to code that prints: its pod is not read, or its output is cut."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from factories import NOW, UID, a_policy, an_execution, block_end, numbered, output, the_end
from played_pod import PlayedPod

from codeexec_operator.adapters.code_run import CodeRun
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.output_room import FREE_BYTES, OutputRoom
from codeexec_operator.adapters.output_store import OutputStore
from codeexec_operator.adapters.retries import Retries
from codeexec_operator.core import backoff
from codeexec_operator.core.observed import FrameStream, Observed
from codeexec_operator.core.output_parts import PART_BYTES
from codeexec_operator.core.output_place import stored_at
from codeexec_operator.core.transcript import Transcript

PIECE, PIECES = 64 * 1024, 60
TEXT = "x" * PIECE
TRIES = 3


class Files:
    """fsspec's view of a folder, where each write waits for a word, or fails."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self._files, self.error = fsspec.filesystem("file", auto_mkdir=True), error
        self.root, self.began, self.may = f"{folder}/store", threading.Semaphore(0), threading.Semaphore(0)

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        self.began.release()
        if self.error:
            raise self.error
        self.may.acquire(timeout=60)
        self._files.pipe_file(path, data, mode=mode)

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        return self._files.cat_file(path, start, end)


class Pod(PlayedPod):
    """A pod whose code prints, with the connection to it; `read` counts the bytes that were taken from it."""

    def __init__(self, files: Files, seconds: float) -> None:
        store = OutputStore(files, files.root, stored_at("s3://bucket"), seconds=seconds)
        policies = SimpleNamespace(default=a_policy())
        execution = an_execution()
        worker: Any = SimpleNamespace(
            context=SimpleNamespace(outputs=store, output=OutputRoom(), policies=policies),
            meta=execution.metadata,
            run_in_background=self._run_in_background,
            wake=lambda: None,
            attempt=self._attempt,
        )
        seen: Any = lambda: Observed(execution, a_policy(), NOW)  # noqa: E731
        self.run, self.read, self.ended = CodeRun(worker, seen), 0, asyncio.Event()
        self.tasks: list[asyncio.Task[object]] = []
        self.connection = self.connect("pod")

    def _run_in_background(self, job: Coroutine[Any, Any, object]) -> None:
        self.tasks.append(asyncio.create_task(job))

    async def _attempt(self, failure: str, call: Any, *arguments: Any, seconds: float) -> Any:
        assert seconds > 6.7, "the leader outlives an outage of so many seconds"
        return await Retries("run", Metrics("0")).attempt(failure, TRIES, call, *arguments)

    async def start(self) -> None:
        self.run._frames = FrameStream.OPEN
        await self.begin_job(self.connection, self.run)

    async def received(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        frames = numbered(*[output(TEXT)] * PIECES, block_end(), the_end(TEXT * PIECES))
        for frame in frames:
            line = json.dumps({**frame, "id": UID}).encode() + b"\n"
            self.read += len(line)
            yield line
        self.ended.set()
        await asyncio.Event().wait()


async def began(files: Files) -> None:
    assert await asyncio.to_thread(files.began.acquire, True, 30), "no write has begun"


async def test_nothing_is_read_from_the_pod_while_a_part_is_written(tmp_path: Path) -> None:
    files = Files(tmp_path)
    pod = Pod(files, seconds=60)
    await pod.start()
    for part in range(PIECES * PIECE // PART_BYTES):
        await began(files)
        for _ in range(50):
            await asyncio.sleep(0)  # the loop is free to read on
        assert pod.read <= (part + 1) * (PART_BYTES + 2 * PIECE), "at most a part and a line more than is stored"
        files.may.release()
    async with asyncio.timeout(30):
        await pod.ended.wait()
    pod.connection.close()
    stored = {one.name for one in (tmp_path / "store").rglob("*") if one.is_file()}
    assert stored == {f"{first}-{first + 10}" for first in range(0, PIECES, 10)}, "ten pieces make a part"
    assert not pod.run.transcript.parts.lost


@pytest.mark.parametrize(
    ("error", "seconds", "why"),
    [
        (PermissionError("Access Denied"), 60, "did not accept it: PermissionError: Access Denied"),
        (None, 0.05, "did not answer within 0.05 s"),
    ],
)
async def test_a_store_that_takes_nothing_cuts_the_output_and_the_record_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, seconds: float, why: str
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.001)
    files = Files(tmp_path, error)
    pod = Pod(files, seconds)
    await pod.start()
    async with asyncio.timeout(60):
        await pod.ended.wait()
    pod.connection.close()
    for _ in range(TRIES):
        await began(files)
        files.may.release()
    transcript = pod.run.transcript
    assert transcript.parts.lost == f"the output store s3://bucket {why}"
    transcript.finish()
    stream = transcript.stream("stdout")
    assert (stream.truncated, stream.referenced, stream.total_bytes) == (True, False, PIECES * PIECE)
    assert 0 < len(stream.text) <= 262_144
    assert files.began._value == 0, "and it was tried no more often"


async def test_a_part_whose_storing_was_cancelled_is_stored_by_the_next_one_who_stores(tmp_path: Path) -> None:
    files = Files(tmp_path)
    pod = Pod(files, seconds=60)
    await pod.start()
    await began(files)  # the connection stores the first part
    pod.connection.close()
    await asyncio.sleep(0)
    for _ in range(2 * PIECES):
        files.may.release()
    async with asyncio.timeout(30):
        await pod.run.keep()
    parts = pod.run.transcript.parts
    assert parts.frames, "control: there is a part"
    stored = {one.name for one in (tmp_path / "store").rglob("*") if one.is_file()}
    assert stored == {f"{first}-{end}" for first, end in parts.frames}, "and no other is named in the record"


async def test_a_part_counts_until_it_is_stored(tmp_path: Path) -> None:
    files = Files(tmp_path)
    pod = Pod(files, seconds=60)
    run = pod.run
    await run.share.need(PIECE)
    for frame in numbered(output(TEXT)):
        run.transcript.take({**frame, "id": UID}, UID)
    run.share.settle(0)
    assert run.share.taken, "control: it holds much"
    shortening = asyncio.create_task(run.shorten())
    await began(files)
    run.share.settle(20_000)
    assert run.share.taken, "what is being stored is in memory"
    files.may.release()
    assert await shortening
    run.share.settle(0)
    assert not run.share.taken


def test_of_output_that_was_lost_so_little_stays_that_it_needs_no_share() -> None:
    transcript = Transcript()
    for frame in numbered(output(TEXT), output(TEXT, "stderr")):
        transcript.take(frame, frame["id"])
    assert transcript.cut()
    part = transcript.parts.next_part
    assert part
    assert transcript.parts.held_bytes > FREE_BYTES, "control"
    transcript.parts.lose(part, "the store did not answer")
    assert 0 < transcript.parts.held_bytes <= FREE_BYTES
