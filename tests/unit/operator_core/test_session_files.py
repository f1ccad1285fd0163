"""The files of a session on their way, with a store that hangs or fails, and a pod that a test plays."""

import asyncio
import base64
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from factories import a_session
from played_pod import PlayedPod
from polling import until

from codeexec_api import PodLimits, Reason
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.output_room import OutputRoom
from codeexec_operator.adapters.output_store import OutputStore
from codeexec_operator.adapters.retries import Retries
from codeexec_operator.adapters.session_files import SessionFiles
from codeexec_operator.core import actions, backoff
from codeexec_operator.core.output_parts import PART_BYTES
from codeexec_operator.core.output_place import CONFIG_MAPS, stored_at
from codeexec_operator.core.timing import Timing

URL = "s3://bucket"
TRIES = 2
CONTENT = base64.b64encode(b"".join(hashlib.sha256(bytes([number])).digest() for number in range(200)))


class Files:
    """fsspec's view of a folder, where writes can be held up, or fail."""

    def __init__(self, folder: Path) -> None:
        self._files, self.root = fsspec.filesystem("file", auto_mkdir=True), f"{folder}/store"
        self.error: Exception | None = None
        self.hangs = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        if self.hangs.is_set():
            asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), self.loop).result(1)
        if self.error:
            raise self.error
        self._files.pipe_file(path, data, mode=mode)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.error:
            raise self.error
        found: bytes = self._files.cat_file(path, start=start, end=end)
        return found


class Pod(PlayedPod):
    """A pod with files, which tells them and takes others."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, bytes]] = {"a/": (0o700, b""), "a/b": (0o640, CONTENT)}
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.connection = self.connect("pod")

    async def send(self, message: Mapping[str, Any]) -> None:
        if "put" in message:
            mode, before = self.files.get(message["put"], (0, b"")) if message["append"] else (message["mode"], b"")
            self.files[message["put"]] = mode, before + base64.b64decode(message["data"])
        elif "blocks" in message:
            self._tell(message["id"], message["artifacts"]["fetch"])

    def _tell(self, job: str, fetch: bool) -> None:
        frames: list[dict[str, Any]] = []
        for index, (path, (mode, content)) in enumerate(sorted(self.files.items())):
            digest = None if path.endswith("/") else hashlib.sha256(content).hexdigest()
            frames.append({"artifact": index, "path": path, "size": len(content), "sha256": digest, "mode": mode})
            if fetch and digest:
                frames.append({"file": index, "data64": base64.b64encode(content).decode()})
        for number, frame in enumerate([*frames, {"done": True, "whole": True}]):
            self.said.put_nowait(json.dumps({"id": job, "seq": number, **frame}).encode() + b"\n")

    async def says(self, frame: Mapping[str, Any]) -> None:
        """Say this, and wait until it was heard."""
        heard = self.connection.view.heard_at
        self.said.put_nowait(json.dumps(frame).encode() + b"\n")
        await until(lambda: self.connection.view.heard_at != heard and self.said.empty())

    async def received(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.said.get()


class Session:
    """What looks after a session, with its files."""

    def __init__(
        self,
        files: Files | None,
        seconds: float = 60,
        *,
        transfers: FairSemaphore | None = None,
        timing: Timing = Timing(),  # noqa: B008 - it is frozen
    ) -> None:
        self.tasks: list[asyncio.Task[object]] = []
        place = stored_at(URL) if files else CONFIG_MAPS
        store = OutputStore(files, files.root, place, seconds=seconds) if files else None
        worker: Any = SimpleNamespace(
            context=SimpleNamespace(
                outputs=SimpleNamespace(files=store, place=place),
                output=OutputRoom(),
                transfers=transfers or FairSemaphore(1),
                timing=timing,
            ),
            meta=a_session().metadata,
            run_in_background=self._run_in_background,
            wake=lambda: None,
            attempt=self._attempt,
        )
        self.files = SessionFiles(worker, PodLimits())

    def _run_in_background(self, job: Coroutine[Any, Any, object]) -> None:
        self.tasks.append(asyncio.create_task(job))

    async def _attempt(self, failure: str, call: Any, *arguments: Any) -> Any:
        return await Retries("session", Metrics("0")).attempt(failure, TRIES, call, *arguments)

    async def store(self, pod: Pod) -> Any:
        self.files.act(actions.StoreFiles(), pod.connection, needed=False)
        await until(lambda: self.files.storing is not None and not self.files.storing.running)
        return self.files.storing

    async def restore(self, pod: Pod, stored: Any) -> Any:
        self.files.act(actions.RestoreFiles(stored), pod.connection, needed=True)
        await until(lambda: self.files.restoring is not None and not self.files.restoring.running)
        return self.files.restoring


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.001)


@pytest.fixture
async def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def pods() -> AsyncIterator[tuple[Pod, Pod]]:
    """One with files, and an empty one."""
    both = Pod(), Pod()
    both[1].files.clear()
    for pod in both:
        pod.connection.open()
    await until(lambda: all(pod.connection._link for pod in both))
    yield both
    for pod in both:
        pod.connection.close()


async def test_what_is_stored_comes_back_in_another_pod(files: Files, pods: tuple[Pod, Pod]) -> None:
    session = Session(files)
    transfer = await session.store(pods[0])
    assert (transfer.problem, transfer.stored.entries, transfer.stored.size_bytes) == ("", 2, len(CONTENT))
    assert transfer.stored.url == URL
    restored = await session.restore(pods[1], transfer.stored)
    assert restored.problem == ""
    assert pods[1].files == pods[0].files


async def test_the_same_files_make_the_same_objects(files: Files, pods: tuple[Pod, Pod]) -> None:
    first = await Session(files).store(pods[0])
    again = await Session(files).store(pods[0])
    assert first.stored.sha256 == again.stored.sha256
    assert len([one for one in Path(files.root).rglob("*") if one.is_file()]) == 2


async def test_nothing_is_stored_if_somebody_has_come_or_there_is_no_store(files: Files, pods: tuple[Pod, Pod]) -> None:
    for session, needed in ((Session(files), True), (Session(None), False)):
        session.files.act(actions.StoreFiles(), pods[0].connection, needed=needed)
        assert session.files.storing is None


async def test_a_store_that_hangs_holds_up_nobody_who_needs_the_session(files: Files, pods: tuple[Pod, Pod]) -> None:
    session = Session(files)
    files.hangs.set()
    session.files.act(actions.StoreFiles(), pods[0].connection, needed=False)
    await until(lambda: pods[0].said.empty())
    session.files.act(actions.KeepAwake(), pods[0].connection, needed=True)
    assert session.files.storing is None
    pods[0].said.put_nowait(b'{"pong":true}\n')
    heard = pods[0].connection.view.heard_at
    await until(lambda: pods[0].said.empty() and pods[0].connection.view.heard_at != heard)
    assert session.files.storing is None, "and what the runner tells late changes nothing"


async def test_a_call_waits_until_the_runner_has_told_all_of_a_list_that_nobody_wants_any_more(
    files: Files, pods: tuple[Pod, Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner reads nothing meanwhile. The time of a call that was handed over would pass."""
    pod, jobs = pods[0], []
    monkeypatch.setattr(pod, "_tell", lambda job, _: jobs.append(job))
    session = Session(files)
    session.files.act(actions.StoreFiles(), pod.connection, needed=False)
    await until(lambda: bool(jobs))
    session.files.act(actions.KeepAwake(), pod.connection, needed=True)
    entry = {"artifact": 0, "path": "a/", "size": 0, "sha256": None, "mode": 0o700}
    await pod.says({"id": jobs[0], "seq": 0, **entry})
    assert pod.connection.view.handed == jobs[0], "it goes on, though what it says is ignored"
    await pod.says({"id": jobs[0], "seq": 1, "done": True, "whole": True})
    assert pod.connection.view.handed == ""


@pytest.mark.parametrize(
    "frame", [{"id": "a", "seq": -1, "error": "it can't be run"}, {"id": "a", "fault": {}}, {"repeated": "a"}, None]
)
async def test_nobody_waits_for_a_job_of_which_no_more_comes(pods: tuple[Pod, Pod], frame: Any) -> None:
    """None: the connection has ended."""
    pod, cut_off = pods[0], asyncio.Event()
    job: Any = SimpleNamespace(uid="a", cut_off=cut_off.set, share=SimpleNamespace(settle=lambda _: None))
    await pod.connection.start(job, [])
    assert pod.connection.view.handed == "a", "control"
    pod.connection.abandon("a")
    if frame:
        await pod.says({"id": "b", "seq": 0, "done": True})
        assert pod.connection.view.handed == "a", "another job has ended"
        await pod.says(frame)
    else:
        pod.connection.close()
        await until(lambda: pod.connection.view.ready is None and pod.connection._link is None)
    assert pod.connection.view.handed == ""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("error", "seconds", "why"),
    [
        (PermissionError("Access Denied"), 60, "did not accept it: PermissionError: Access Denied"),
        (None, 0.05, "did not answer within 0.05 s"),
    ],
)
async def test_a_store_that_takes_nothing_is_quoted(
    files: Files, pods: tuple[Pod, Pod], error: Exception | None, seconds: float, why: str
) -> None:
    files.error = error
    if error is None:
        files.hangs.set()
    transfer = await Session(files, seconds).store(pods[0])
    assert (transfer.stored, transfer.reason) == (None, Reason.STORE_UNAVAILABLE)
    assert transfer.problem == f"the output store {URL} {why}"


@pytest.mark.usefixtures("quick")
async def test_a_store_that_gives_nothing_may_give_it_later(files: Files, pods: tuple[Pod, Pod]) -> None:
    session = Session(files)
    stored = (await session.store(pods[0])).stored
    files.error = PermissionError("Access Denied")
    failed = await session.restore(pods[1], stored)
    assert (failed.reason, "could not be read" in failed.problem) == (Reason.STORE_UNAVAILABLE, True)
    files.error = None
    assert (await session.restore(pods[1], stored)).problem == ""


async def test_another_store_than_the_record_names_is_not_read(files: Files, pods: tuple[Pod, Pod]) -> None:
    session = Session(files)
    stored = (await session.store(pods[0])).stored
    elsewhere = await session.restore(pods[1], stored.model_copy(update={"url": "s3://other"}))
    assert elsewhere.reason is Reason.STORE_UNAVAILABLE
    assert "s3://other, which this operator does not have" in elsewhere.problem


@pytest.mark.parametrize("which", ["list", "part"])
@pytest.mark.parametrize("how", ["another content", "gone"])
async def test_an_object_that_is_not_as_it_was_is_a_difference(
    files: Files, pods: tuple[Pod, Pod], which: str, how: str
) -> None:
    session = Session(files)
    stored = (await session.store(pods[0])).stored
    [found] = [
        one for one in Path(files.root).rglob("*") if one.is_file() and (one.name == stored.sha256) is (which == "list")
    ]
    found.write_bytes(b"{}\n") if how == "another content" else found.unlink()
    transfer = await session.restore(pods[1], stored)
    assert transfer.reason is Reason.FILES_DIFFER
    assert found.name in transfer.problem


@pytest.mark.parametrize("path", ["left", "a/b"])
async def test_a_pod_that_has_other_files_afterwards_is_a_difference(
    files: Files, pods: tuple[Pod, Pod], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(files)
    stored = (await session.store(pods[0])).stored
    tell = pods[1]._tell

    def spoil(job: str, fetch: bool) -> None:
        pods[1].files[path] = (0o600, b"other")
        tell(job, fetch)

    monkeypatch.setattr(pods[1], "_tell", spoil)
    transfer = await session.restore(pods[1], stored)
    assert (transfer.reason, path in transfer.problem) == (Reason.FILES_DIFFER, True)


async def test_a_connection_that_ends_is_begun_anew(files: Files, pods: tuple[Pod, Pod], monkeypatch: Any) -> None:
    session = Session(files)
    monkeypatch.setattr(pods[0], "_tell", lambda *_: None)
    session.files.act(actions.StoreFiles(), pods[0].connection, needed=False)
    assert session.files.storing is not None
    pods[0].connection.close()
    await until(lambda: session.files.storing is None)


async def test_few_sessions_list_their_files_at_a_time(files: Files, pods: tuple[Pod, Pod], monkeypatch: Any) -> None:
    one_at_a_time = FairSemaphore(1)
    first, second = (Session(files, transfers=one_at_a_time) for _ in range(2))
    stored = (await first.store(pods[0])).stored
    asked = asyncio.Event()
    monkeypatch.setattr(pods[0], "_tell", lambda *_: asked.set())
    first.files.act(actions.StoreFiles(), pods[0].connection, needed=False)
    await asked.wait()
    second.files.act(actions.RestoreFiles(stored), pods[1].connection, needed=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert pods[1].files == {}, "the list of the first session is in memory"
    first.files.act(actions.KeepAwake(), pods[0].connection, needed=True)
    await until(lambda: not second.files.restoring.running)
    assert second.files.restoring.problem == ""
    assert pods[1].files == pods[0].files


async def test_a_runner_that_never_ends_its_list_holds_up_no_other(
    files: Files, pods: tuple[Pod, Pod], monkeypatch: Any
) -> None:
    one_at_a_time = FairSemaphore(1)
    monkeypatch.setattr(pods[0], "_tell", lambda *_: None)
    transfer = await Session(files, transfers=one_at_a_time, timing=Timing(workspace_transfer=0.05)).store(pods[0])
    assert (transfer.stored, transfer.reason) == (None, Reason.FILES_NOT_STORED)
    assert transfer.problem == "it took longer than 0.05 s"
    assert (await Session(files, transfers=one_at_a_time).store(pods[1])).problem == ""


async def test_a_session_that_is_needed_while_it_waits_to_list_its_files_lists_nothing(
    files: Files, pods: tuple[Pod, Pod]
) -> None:
    one_at_a_time = FairSemaphore(1)
    session = Session(files, transfers=one_at_a_time)
    async with one_at_a_time.slot("other"):
        session.files.act(actions.StoreFiles(), pods[0].connection, needed=False)
        await asyncio.sleep(0)
        session.files.act(actions.KeepAwake(), pods[0].connection, needed=True)
    await asyncio.gather(*session.tasks)
    assert session.files.storing is None
    assert not Path(files.root).exists()


class Slow(Files):
    """A store whose reads wait until they may go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may, self.reads = threading.Event(), 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self.reads += 1
        self.may.wait(30)
        return super().cat_file(path, start, end)


@pytest.mark.parametrize("how", ["given up", "connection lost"])
async def test_a_restore_that_has_no_pod_any_more_keeps_no_slot_and_reads_no_further(
    files: Files, pods: tuple[Pod, Pod], tmp_path: Path, how: str
) -> None:
    pods[0].files = {name: (0o640, hashlib.shake_256(name.encode()).digest(PART_BYTES)) for name in "abc"}
    stored = (await Session(files).store(pods[0])).stored
    one_at_a_time, slow = FairSemaphore(1), Slow(tmp_path)
    session = Session(slow, transfers=one_at_a_time)
    session.files.act(actions.RestoreFiles(stored), pods[1].connection, needed=True)
    await until(lambda: slow.reads == 1)
    assert not one_at_a_time.free_for("other"), "control: it is on its way"
    if how == "given up":
        session.files.forget()
    else:
        pods[1].connection.close()
        slow.may.set()
    async with asyncio.timeout(60), one_at_a_time.slot("other"):
        pass
    slow.may.set()
    await asyncio.gather(*session.tasks, return_exceptions=True)
    assert slow.reads == (1 if how == "given up" else 2), "the list, and at most one of three parts"
    assert session.files.restoring is None
