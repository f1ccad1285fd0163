"""Parts of output in the owner's store: created once, by few threads, in bounded time, and never in the loop's way."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from factories import NOW, UID, an_execution
from object_storage import ObjectStorage
from polling import until

from codeexec_api import CodeExecution
from codeexec_api.digests import sha256_hex
from codeexec_api.output_store import MAX_OBJECT_BYTES, below, load_part
from codeexec_api.store_files import open_store
from codeexec_operator.adapters import output_store
from codeexec_operator.adapters.output_store import THREADS, THREADS_OF_ONE, OutputStore
from codeexec_operator.adapters.outputs import StoreDamage, StoreFailure
from codeexec_operator.core.output_parts import OutputPart
from codeexec_operator.core.output_place import stored_at

CONTENTS = {"stdout.gz": b"\x00out\n", "order.gz": b"order"}
RUN = an_execution()
FOLDER = f"{RUN.metadata.namespace}/{UID}"


def a_part(index: int = 0, contents: dict[str, bytes] = CONTENTS) -> OutputPart:
    return OutputPart(index, (index, index + 1), contents, {})


@pytest.fixture(params=["file", "memory", "s3 and a folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/store"
    elif request.param == "memory":
        yield "memory://store"
        fsspec.filesystem("memory").store.clear()
    else:
        with ObjectStorage() as storage:
            for name, value in storage.environment.items():
                monkeypatch.setenv(name, value)
            yield "s3://bucket/folder" if "folder" in request.param else "s3://bucket"


def there(url: str, part: int = 0) -> bytes:
    files, root = open_store(url)
    return files.cat_file(below(root, f"{FOLDER}/{part}-{part + 1}"))


async def test_a_part_is_an_object_named_after_namespace_and_uid(url: str) -> None:
    store = OutputStore.open(url)
    for index in (0, 1):
        assert await store.create_output(RUN, a_part(index), NOW) is None
    assert load_part(there(url)) == load_part(there(url, 1)) == CONTENTS


async def test_a_part_that_is_there_already_is_fine(url: str) -> None:
    store = OutputStore.open(url)
    for _ in range(2):
        assert await store.create_output(RUN, a_part(), NOW) is None


async def test_another_object_of_this_name_stays_as_it_is_and_the_fault_names_it(url: str) -> None:
    store = OutputStore.open(url)
    await store.create_output(RUN, a_part(), NOW)
    before = there(url)
    fault = await store.create_output(RUN, a_part(contents={"stdout.gz": b"other"}), NOW)
    assert fault
    assert f"the output store {url} holds another object of this name: " in fault.message
    assert fault.message.endswith(f"{FOLDER}/0-1")
    assert there(url) == before


async def test_a_write_that_was_interrupted_is_finished(url: str) -> None:
    store = OutputStore.open(url)
    await store.create_output(RUN, a_part(), NOW)
    files, root = open_store(url)
    files.pipe_file(below(root, f"{FOLDER}/0-1"), there(url)[:9])
    assert await store.create_output(RUN, a_part(), NOW) is None
    assert load_part(there(url)) == CONTENTS


async def test_an_object_of_a_session_is_named_by_its_digest_and_read_back(url: str) -> None:
    store, data = OutputStore.open(url), b"content"
    for _ in range(2):
        await store.keep(RUN.metadata.namespace, UID, sha256_hex(data), data)
    assert await store.load(RUN.metadata.namespace, UID, sha256_hex(data)) == data
    files, root = open_store(url)
    assert files.cat_file(below(root, f"{FOLDER}/{sha256_hex(data)}")) == data


class Forgetful:
    """A store that takes each object and keeps none."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        pass

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        raise FileNotFoundError(path)


async def test_an_object_of_a_session_that_was_taken_and_is_not_there_is_a_damage() -> None:
    store = OutputStore(Forgetful(), "root", stored_at("s3://bucket"))
    with pytest.raises(StoreDamage, match="no longer holds"):
        await store.keep(RUN.metadata.namespace, UID, sha256_hex(b"content"), b"content")


async def test_an_object_of_a_session_that_is_another_one_or_gone_is_a_damage(url: str) -> None:
    store, name = OutputStore.open(url), sha256_hex(b"content")
    with pytest.raises(StoreDamage, match=f"{url} no longer holds .*{name}"):
        await store.load(RUN.metadata.namespace, UID, name)
    files, root = open_store(url)
    files.pipe_file(below(root, f"{FOLDER}/{name}"), b"other")
    with pytest.raises(StoreDamage, match=f"{url} holds another object of this name: .*{name}"):
        await store.load(RUN.metadata.namespace, UID, name)
    with pytest.raises(StoreDamage, match="holds another object of this name"):
        await store.keep(RUN.metadata.namespace, UID, name, b"content")


@pytest.mark.parametrize(("namespace", "name"), [("..", "a" * 64), ("a", "../" * 20 + "abcd"), ("a", "A" * 64)])
async def test_a_session_has_no_object_of_another_name(url: str, namespace: str, name: str) -> None:
    with pytest.raises(ValueError, match="no object of an output store"):
        await OutputStore.open(url).load(namespace, UID, name)


@pytest.mark.parametrize("namespace", ["..", "a/../b", ""])
async def test_a_name_that_no_api_server_gives_leads_nowhere(url: str, namespace: str) -> None:
    metadata = RUN.metadata.model_copy(update={"namespace": namespace})
    with pytest.raises(ValueError, match="no object of an output store"):
        await OutputStore.open(url).create_output(RUN.model_copy(update={"metadata": metadata}), a_part(), NOW)


def test_a_store_without_a_backend_is_named() -> None:
    with pytest.raises(StoreFailure, match=r"nothing://x can't be used: ValueError: Protocol not known"):
        OutputStore.open("nothing://x")


async def test_an_object_that_is_larger_than_any_part_is_another_one_and_not_held(url: str) -> None:
    files, root = open_store(url)
    files.pipe_file(below(root, f"{FOLDER}/0-1"), bytes(2 * MAX_OBJECT_BYTES))
    outcome = await asyncio.gather(OutputStore.open(url).create_output(RUN, a_part(), NOW), return_exceptions=True)
    assert f"it has {2 * MAX_OBJECT_BYTES} bytes; no part has more" in str(outcome) or "another object" in str(outcome)


def test_what_is_missing_for_a_protocol_is_named() -> None:
    with pytest.raises(StoreFailure, match=r"the output store hdfs://x can't be used: .*No module named 'pyarrow'"):
        OutputStore.open("hdfs://x")


def a_run_in(namespace: str) -> CodeExecution:
    return RUN.model_copy(update={"metadata": RUN.metadata.model_copy(update={"namespace": namespace})})


class Stubborn:
    """A store that answers when it is let, or with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.gate = error, threading.Event()
        self.inside = self.most = self.done = 0
        self._lock = threading.Lock()

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.gate.wait(60)
        with self._lock:
            self.inside -= 1
            self.done += 1
        if self.error:
            raise self.error


def stubborn(files: Stubborn, seconds: float = 0.05) -> OutputStore:
    return OutputStore(files, "root", stored_at("s3://bucket"), seconds=seconds)


async def test_a_store_that_hangs_has_a_time_limit_and_the_loop_goes_on() -> None:
    files: Any = Stubborn()
    async with asyncio.timeout(60):
        with pytest.raises(StoreFailure, match=r"the output store s3://bucket did not answer within 0\.05 s"):
            await stubborn(files).create_output(RUN, a_part(), NOW)
    await until(lambda: files.inside == 1)  # control: the thread still hangs, and the loop has gone on
    files.gate.set()


async def test_a_store_that_fails_is_quoted() -> None:
    files = Stubborn(PermissionError("Access Denied"))
    files.gate.set()
    with pytest.raises(StoreFailure, match="s3://bucket did not accept it: PermissionError: Access Denied"):
        await stubborn(files, 30).create_output(RUN, a_part(), NOW)


async def test_who_does_not_lead_any_more_writes_nothing(url: str) -> None:
    def deposed() -> None:
        raise SystemExit("another replica leads")

    store = OutputStore.open(url)
    store.ask_first(deposed)
    with pytest.raises(SystemExit):
        await store.create_output(RUN, a_part(), NOW)
    with pytest.raises(FileNotFoundError):
        there(url)


async def test_a_call_that_hangs_keeps_its_thread_and_the_rest_goes_on_after_it() -> None:
    files = Stubborn()
    store = stubborn(files, 0.2)
    calls = [store.create_output(RUN, a_part(index), NOW) for index in range(3 * THREADS)]
    failed = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in failed} == {StoreFailure}
    await until(lambda: files.inside == THREADS_OF_ONE)
    assert files.most == THREADS_OF_ONE
    files.gate.set()
    store._seconds = 30
    assert await store.create_output(RUN, a_part(), NOW) is None, "the threads are free again"


async def test_a_namespace_that_holds_its_threads_leaves_the_others_to_its_neighbours() -> None:
    class StubbornToOne(Stubborn):
        def pipe_file(self, path: str, data: bytes, mode: str) -> None:
            if FOLDER in path:
                super().pipe_file(path, data, mode)

    files = StubbornToOne()
    store = stubborn(files, 30)
    flood = [asyncio.create_task(store.create_output(RUN, a_part(index), NOW)) for index in range(3 * THREADS)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert await store.create_output(a_run_in("neighbour"), a_part(), NOW) is None
    assert not any(one.done() for one in flood), "control: they still hang, or wait for a thread"
    files.gate.set()
    assert await asyncio.gather(*flood) == [None] * len(flood)
    assert files.most == THREADS_OF_ONE


async def test_all_namespaces_together_have_no_more_threads_than_there_are() -> None:
    files = Stubborn()
    store = stubborn(files, 0.2)
    runs = [a_run_in(f"namespace-{number}") for number in range(3)]
    calls = [store.create_output(one, a_part(index), NOW) for one in runs for index in range(THREADS)]
    failed = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in failed} == {StoreFailure}
    await until(lambda: files.inside == THREADS)
    assert files.most == THREADS
    files.gate.set()


class HangsAtFirst(Stubborn):
    """A store that takes some calls and never answers them, such as a file server that was away."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._left = calls

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        self._left -= 1
        if self._left >= 0:
            super().pipe_file(path, data, mode)


async def test_calls_that_hang_for_ever_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    files = HangsAtFirst(THREADS)
    store = stubborn(files, 0.1)
    runs = [a_run_in(f"namespace-{number}") for number in range(THREADS)]
    failed = await asyncio.gather(*(store.create_output(one, a_part(), NOW) for one in runs), return_exceptions=True)
    assert {type(one) for one in failed} == {StoreFailure}
    await until(lambda: files.inside == THREADS)  # control: they hang
    store._seconds = 60
    assert await store.create_output(RUN, a_part(), NOW) is None
    assert files.inside == THREADS, "and they still do"
    assert "call 1 that hangs was given up" in caplog.text
    files.gate.set()


async def test_no_more_threads_than_so_many_are_left_behind_and_the_store_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(output_store, "MOST_HUNG", 3)
    files, runs = Stubborn(), [a_run_in(f"namespace-{number}") for number in range(5 * THREADS)]
    store = stubborn(files, 0.05)
    said = "3 calls hang, and no thread is started for another one; repair it or restart the operator"

    def all_hang(inside: int) -> bool:
        """So many calls are inside, and each was given up or has been found to hang when no more may be given up."""
        return len(store._hung) + caplog.text.count(said) >= files.inside >= inside

    for inside in (THREADS, THREADS + 3, THREADS + 3):
        calls = [store.create_output(one, a_part(), NOW) for one in runs]
        failed = await asyncio.gather(*calls, return_exceptions=True)
        caplog.clear()
        await until(lambda inside=inside: all_hang(inside), every=0.01)
    assert files.most == THREADS + 3
    assert said in str(failed[-1])
    assert said in caplog.text
    files.gate.set()
    store._seconds = 60
    assert await store.create_output(RUN, a_part(), NOW) is None, "as soon as they end, it goes on"
    assert await asyncio.gather(*(store.create_output(one, a_part(), NOW) for one in runs)) == [None] * len(runs)
    assert files.most == THREADS + 3


async def test_a_thread_that_can_t_start_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Stubborn()
    files.gate.set()
    store = stubborn(files, 30)
    with monkeypatch.context() as patched:
        patched.setattr(output_store, "in_thread", lambda _: (_ for _ in ()).throw(RuntimeError("no more threads")))
        for _ in range(THREADS + 1):
            with pytest.raises(StoreFailure, match="no more threads"):
                await store.create_output(RUN, a_part(), NOW)
    async with asyncio.timeout(60):
        assert await store.create_output(RUN, a_part(), NOW) is None


async def test_the_panic_of_a_backend_is_a_failure_of_the_store() -> None:
    class Panic(BaseException):
        """As obstore's, which is none of Exception."""

    files = Stubborn(Panic("index out of bounds"))  # type: ignore[arg-type]
    files.gate.set()
    store = stubborn(files, 30)
    for _ in range(THREADS + 1):
        with pytest.raises(StoreFailure, match="Panic: index out of bounds"):
            await store.create_output(RUN, a_part(), NOW)
