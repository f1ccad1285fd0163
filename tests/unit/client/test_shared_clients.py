"""Clients that several use, that are dropped, and that a forked process inherits."""

import asyncio
import gc
import os
import signal
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from polling import until

from codeexec_api import CodeExecution, Phase
from executor_client import (
    ClusterRef,
    ClusterUnreachable,
    KubernetesCodeExecutor,
    Request,
    SessionEnded,
    prepare,
)
from executor_client.model.blocks import SourceBlock
from executor_client.testing import FakeBlock, FakeCluster, FakeOutcome
from executor_client.testing.transport import FakeTransport
from executor_client.transport.connections import Connector
from executor_client.workspace import session_finalizer
from executor_client.workspace.work_dir import Stamp, WorkDir

HANG = [CodeBlock("hang", "python")]
OTHER = [CodeBlock("x", "python")]


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster(run=behave)


def behave(block: FakeBlock) -> FakeOutcome:
    return FakeOutcome(never_ends=True) if block.code == "hang" else FakeOutcome(stdout="ran\n")


async def started(fake: FakeCluster, number: int = 1) -> None:
    """Until so many executions are waited for."""
    records = fake._simulation.state.executions
    await until(lambda: sum(bool(one._readers) for one in records._versions.values()) >= number)


async def test_stop_leaves_a_client_open_that_others_use(fake: FakeCluster) -> None:
    client = fake.client()
    one, other = (KubernetesCodeExecutor(client=client, session="per-call") for _ in range(2))
    running = asyncio.create_task(other.execute_code_blocks(HANG, token := CancellationToken()))
    await started(fake)
    await one.stop()
    assert (await one.execute_code_blocks(OTHER, CancellationToken())).output == "ran\n"
    token.cancel()
    assert (await running).output.endswith("Code execution was cancelled.")


async def test_a_client_that_is_closed_ends_what_waits_with_an_error_of_ours(fake: FakeCluster) -> None:
    """The control of the test above: whether a client is closed can be seen."""
    client = fake.client()
    blocks = prepare([SourceBlock("python", "hang")]).blocks
    running = asyncio.create_task(client.execute(blocks, Request(agent="me")))
    await started(fake)
    async with asyncio.timeout(60):
        await client.close()
    with pytest.raises(ClusterUnreachable, match="the client was closed"):
        await running


@pytest.mark.parametrize("end", [KubernetesCodeExecutor.stop, KubernetesCodeExecutor.restart])
@pytest.mark.parametrize("owns_client", [False, True], ids=["a client of others", "its own client"])
async def test_calls_that_wait_for_their_turn_do_not_run_after_stop(
    fake: FakeCluster,
    end: Callable[[KubernetesCodeExecutor], Awaitable[None]],
    owns_client: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator denies what waits only some time after the session was told to end."""

    async def end_later(self: FakeTransport, name: str) -> None:
        asyncio.get_running_loop().call_later(0.05, self._simulation.end_session, name)

    monkeypatch.setattr(FakeTransport, "end_session", end_later)
    executor = KubernetesCodeExecutor(client=fake.client())
    executor._owns_client = owns_client
    running = asyncio.create_task(executor.execute_code_blocks(HANG, CancellationToken()))
    await started(fake)
    waiting = asyncio.create_task(executor.execute_code_blocks(OTHER, CancellationToken()))
    await started(fake, 2)
    await end(executor)
    with pytest.raises(SessionEnded, match="nothing was run"):
        await waiting
    await asyncio.wait([running])
    assert [one.spec.ended for one in fake.sessions] == [True]
    assert (await executor.execute_code_blocks(OTHER, CancellationToken())).output == "ran\n"
    await executor.stop()


async def test_a_client_is_collected_whether_it_was_closed_or_not(fake: FakeCluster) -> None:
    clients = [fake.client() for _ in range(4)]
    for client in clients:
        await client.check()
    for client in clients[:2]:
        await client.close()
    there = [weakref.ref(client) for client in clients]
    del clients, client
    gc.collect()
    assert [one() for one in there] == [None] * 4


async def test_a_list_holds_what_is_asked_for_only(fake: FakeCluster) -> None:
    client = fake.client()
    request = Request(agent="me")
    for code in ("a", "b", "c", "d", "e"):
        await client.execute([SourceBlock("python", code)], request)
        fake.advance(1)
    held = await client.submit([SourceBlock("python", "hang")], request)
    names = [one.metadata.name for one in await client.list_executions()]
    assert [one.metadata.name for one in await client.list_executions(limit=2)] == names[-2:]
    running = await client.list_executions(phase=Phase.RUNNING)
    assert [one.metadata.name for one in running] == [held.name]
    few = await client.list_executions(takes=lambda one: one.metadata.name != held.name, limit=1)
    assert [one.metadata.name for one in few] == names[-2:-1]

    alive: set[int] = set()
    most = 0

    async def many(_: Phase | None = None) -> AsyncGenerator[CodeExecution, None]:
        nonlocal most
        for number in range(60):
            one = records[-1].model_copy(
                update={"metadata": records[-1].metadata.model_copy(update={"name": f"{number:02}"})}
            )
            alive.add(number)
            weakref.finalize(one, alive.discard, number)
            most = max(most, len(alive))
            yield one
            del one

    records = fake.executions
    transport: Any = await client.connect()
    transport.list = many
    assert [one.metadata.name for one in await client.list_executions(limit=3)] == ["57", "58", "59"]
    assert most <= 8, "twice the limit, and what is on its way"
    most = 0
    assert len(await client.list_executions()) == 60
    assert most == 60, "control: what is held is counted"


Fork = Callable[[Callable[[], object]], int]


@pytest.fixture
def exit_code_of_a_fork() -> Fork:
    """How a child ends that does this, and then ends as a worker of a server does.

    Its finalizers are those of this test: others may delete what the tests of the parent still use.
    """
    others = set(weakref.finalize._registry)  # type: ignore[attr-defined]

    def fork(work: Callable[[], object]) -> int:
        if (child := os.fork()) == 0:
            signal.alarm(60)  # a child that waits for a lock that nobody holds
            try:
                work()
            except BaseException:
                os._exit(3)
            for finalizer in set(weakref.finalize._registry) - others:  # type: ignore[attr-defined]
                finalizer()  # as sys.exit() does
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return fork


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestForks:
    def test_a_child_ends_nothing_of_its_parent(
        self, fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code_of_a_fork: Fork
    ) -> None:
        monkeypatch.setattr(session_finalizer, "_end", lambda *_: (tmp_path / "ended").touch())
        client = fake.client()
        client.cluster = ClusterRef("here")  # type: ignore[misc]
        executor = KubernetesCodeExecutor(client=client)
        asyncio.run(executor.execute_code_blocks(OTHER, CancellationToken()))
        downloads = executor._download_folder().root
        assert exit_code_of_a_fork(gc.collect) == 0
        assert not (tmp_path / "ended").exists()
        assert downloads.is_dir()
        del executor
        gc.collect()
        assert not downloads.exists(), "the control: the parent does end it"

    def test_a_child_has_a_session_of_its_own(self, fake: FakeCluster, exit_code_of_a_fork: Fork) -> None:
        executor = KubernetesCodeExecutor(client=fake.client())
        asyncio.run(executor.execute_code_blocks(OTHER, CancellationToken()))

        def work() -> None:
            with executor._shared._lock if executor._shared else open(os.devnull):  # nobody in the child holds it
                pass
            asyncio.run(executor.execute_code_blocks(OTHER, CancellationToken()))
            assert len(fake.sessions) == 2

        assert executor._shared
        with executor._shared._lock:  # as another thread may, at that moment
            assert exit_code_of_a_fork(work) == 0

    def test_a_child_sends_files_also_if_a_thread_of_its_parent_was_about_to(
        self, fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code_of_a_fork: Fork
    ) -> None:
        unsent, looking, may_go_on = WorkDir.unsent, threading.Event(), threading.Event()

        def unsent_later(self: WorkDir, sent: Mapping[str, Stamp]) -> dict[str, Stamp]:
            looking.set()
            assert may_go_on.wait(60)
            return unsent(self, sent)

        def call() -> None:
            asyncio.run(executor.execute_code_blocks(OTHER, CancellationToken()))

        def work() -> None:
            monkeypatch.undo()
            call()

        (tmp_path / "data").touch()
        executor = KubernetesCodeExecutor(client=fake.client(), work_dir=tmp_path)
        monkeypatch.setattr(WorkDir, "unsent", unsent_later)
        thread = threading.Thread(target=call)
        thread.start()
        try:
            assert looking.wait(60)
            assert exit_code_of_a_fork(work) == 0
        finally:
            may_go_on.set()
            thread.join()

    async def test_connections_of_the_parent_stay(self, exit_code_of_a_fork: Fork) -> None:
        closed: list[int] = []
        connector = Connector(0, context=True)
        connector._close_immediately = lambda *_, **__: closed.append(1) or []  # type: ignore[method-assign]

        def drop() -> None:
            connector.__del__()
            assert closed == []

        connector._conns["there"] = [1]  # type: ignore[index,assignment,call-overload]
        try:
            assert exit_code_of_a_fork(drop) == 0
        finally:
            connector._conns.clear()
        await connector.close()
