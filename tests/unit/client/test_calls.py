"""What becomes of the calls of a client that is closed, of a caller that goes away, and of its session."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from polling import clock_jumps_once, settled, time_limit_passes_once, until

import codeexec
from codeexec import sync
from codeexec_api import CodeExecution, Phase
from executor_client import ClusterUnreachable, CodeExecutionClient, Request, SourceBlock
from executor_client.client import calls, session_handle
from executor_client.runtime.asyncio_tasks import completed
from executor_client.testing import FakeBlock, FakeCluster, FakeOutcome
from executor_client.testing.transport import FakeTransport

HANG = [SourceBlock("python", "hang")]
ME = Request(agent="me")


@pytest.fixture
def fake() -> FakeCluster:
    def run(block: FakeBlock) -> FakeOutcome:
        return FakeOutcome(stdout="so far\n", never_ends=block.code == "hang")

    return FakeCluster(run=run)


def states(fake: FakeCluster) -> list[tuple[Phase, bool | None]]:
    return [(one.status.phase, one.spec.cancelled) for one in fake.executions]


def is_watched(fake: FakeCluster) -> bool:
    return bool(fake._simulation.state.executions.versions(fake.executions[-1].metadata.name)._readers)


async def running(fake: FakeCluster, call: Awaitable[Any]) -> "asyncio.Task[Any]":
    """The call, once its code runs."""
    task = asyncio.ensure_future(call)
    await until(lambda: fake.executions and fake.executions[-1].status.phase is Phase.RUNNING and is_watched(fake))
    return task


class Gate:
    """Holds a method of `FakeTransport` up, once it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.asked, self.opened = asyncio.Event(), asyncio.Event()
        held = getattr(FakeTransport, method)

        async def hold(transport: FakeTransport, *arguments: Any) -> Any:
            self.asked.set()
            await self.opened.wait()
            return await held(transport, *arguments)

        monkeypatch.setattr(FakeTransport, method, hold)


async def closes_after(gate: Gate, client: CodeExecutionClient, call: "asyncio.Task[Any]", error: Any) -> None:
    """The client is closed while what the gate holds up is under way: it waits, and the call has this error."""
    await gate.asked.wait()
    closing = asyncio.create_task(client.close())
    with pytest.raises(error):
        await call
    await settled()
    waited = not closing.done()
    gate.opened.set()  # also before this fails: the loop's end would wait for it
    await closing
    assert waited


class TestClosing:
    async def test_the_code_of_calls_that_run_is_stopped(self, fake: FakeCluster) -> None:
        client = fake.client()
        call = await running(fake, client.execute(HANG, ME))
        async with asyncio.timeout(60):
            await client.close()
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await call
        assert states(fake) == [(Phase.CANCELLED, True)]

    async def test_so_it_is_where_output_is_followed(self, fake: FakeCluster) -> None:
        client, seen = fake.client(), threading.Event()
        call = await running(fake, client.execute(HANG, ME, on_output=lambda _: seen.set()))
        await asyncio.to_thread(seen.wait, 30)
        await client.close()
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await call
        assert states(fake) == [(Phase.CANCELLED, True)]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_what_was_submitted_runs_on(self, fake: FakeCluster) -> None:
        client = fake.client()
        handle = await client.submit(HANG, ME)
        waiting = asyncio.create_task(handle.result())
        await until(lambda: is_watched(fake))
        await client.close()
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await waiting
        assert states(fake) == [(Phase.RUNNING, False)]

    async def test_the_end_of_the_block_of_a_client_is_one(self, fake: FakeCluster) -> None:
        async with codeexec.Client(agent="me") as client:
            client._opened[client._ref] = fake.client()
            call = await running(fake, client.run("hang"))
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await call
        assert states(fake) == [(Phase.CANCELLED, True)]

    async def test_of_another_thread_too(self, fake: FakeCluster) -> None:
        with sync.Client(agent="me") as client:
            client._inner._opened[client._inner._ref] = fake.client()
            call = await running(fake, asyncio.to_thread(client.run, "hang"))
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await call
        assert states(fake) == [(Phase.CANCELLED, True)]

    async def test_calls_of_another_event_loop_go_on(self, fake: FakeCluster) -> None:
        client, may_end = fake.client(), threading.Event()

        async def elsewhere() -> None:
            call = asyncio.create_task(client.execute(HANG, ME))
            await asyncio.to_thread(may_end.wait, 30)
            assert not call.done()
            await client.close()
            with pytest.raises(ClusterUnreachable):
                await call

        other = await running(fake, asyncio.to_thread(asyncio.run, elsewhere()))
        await client.check()
        await client.close()
        assert states(fake) == [(Phase.RUNNING, False)]
        may_end.set()
        await other
        assert states(fake) == [(Phase.CANCELLED, True)]

    async def test_a_cluster_that_does_not_answer_holds_it_up_for_some_seconds_only(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(calls, "_END_SECONDS", 0.1)
        client = fake.client()
        call = await running(fake, client.execute(HANG, ME))
        gate = Gate(monkeypatch, "cancel")
        async with asyncio.timeout(60):
            await client.close()
        assert "not all calls ended within 0.1 s: their code may run until its timeout" in caplog.text
        gate.opened.set()
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await call

    async def test_a_close_that_is_cancelled_goes_on_and_the_next_one_waits_for_it(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, gate = fake.client(), Gate(monkeypatch, "close")
        transport: Any = await client.connect()
        closing = asyncio.create_task(client.close())
        await gate.asked.wait()
        closing.cancel()
        newer: Any = await client.connect()
        await closes_after(gate, client, closing, asyncio.CancelledError)
        assert transport._closed
        assert newer._closed

    async def test_a_close_that_is_cancelled_early_closes_all_the_same(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = fake.client()
        transport: Any = await client.connect()
        call = await running(fake, client.execute(HANG, ME))
        gate = Gate(monkeypatch, "cancel")
        closing = asyncio.create_task(client.close())
        await gate.asked.wait()
        closing.cancel()
        await asyncio.wait([closing])
        gate.opened.set()
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await call
        await until(lambda: transport._closed)
        assert states(fake) == [(Phase.CANCELLED, True)]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until this is set, no creation is answered, though it was carried out."""
    answered, create = asyncio.Event(), FakeTransport.create

    async def create_slowly(self: FakeTransport, *arguments: Any) -> CodeExecution:
        created = await create(self, *arguments)
        await completed(answered.wait())
        return created

    monkeypatch.setattr(FakeTransport, "create", create_slowly)
    return answered


class TestGoingAway:
    """While the creation is under way."""

    @pytest.mark.parametrize("request_", [ME, Request(agent="me", start_seconds=60)], ids=["no limit", "limit"])
    async def test_who_is_cancelled_goes_at_once_and_the_code_is_stopped(
        self, fake: FakeCluster, slow: asyncio.Event, request_: Request
    ) -> None:
        client = fake.client()
        with pytest.raises(TimeoutError):
            async with time_limit_passes_once(lambda: fake.executions):
                await client.execute(HANG, request_)
        assert states(fake) == [(Phase.RUNNING, False)], "control: it is created, and not answered yet"
        slow.set()
        await until(lambda: states(fake) == [(Phase.CANCELLED, True)])
        await client.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_a_start_limit_counts_from_the_call(self, fake: FakeCluster, slow: asyncio.Event) -> None:
        client = fake.client()
        for count, call in enumerate((client.execute, client.submit), 1):
            clock_jumps_once(lambda count=count: len(fake.executions) == count, 60)
            with pytest.raises(codeexec.Timeout, match="did not start within 50 s"):
                async with asyncio.timeout(120):
                    await call(HANG, Request(agent="me", start_seconds=50))
        slow.set()
        await client.close()
        assert states(fake) == [(Phase.CANCELLED, True)] * 2

    async def test_what_the_creation_has_taken_of_the_limit_is_not_given_again(
        self, fake: FakeCluster, slow: asyncio.Event
    ) -> None:
        fake.stop_operator()
        clock_jumps_once(slow.is_set, 970)
        clock_jumps_once(lambda: fake.executions and is_watched(fake), 40)
        before = asyncio.get_running_loop().time()
        call = asyncio.create_task(fake.client().execute(HANG, Request(agent="me", start_seconds=1000)))
        await until(lambda: fake.executions)
        slow.set()
        with pytest.raises(codeexec.Timeout):
            await call
        assert asyncio.get_running_loop().time() - before > 1000
        assert [one.spec.cancelled for one in fake.executions] == [True]

    async def test_a_client_that_is_closed_waits_for_it(self, fake: FakeCluster, slow: asyncio.Event) -> None:
        client = fake.client()
        call = asyncio.create_task(client.execute(HANG, ME))
        await until(lambda: fake.executions)
        closing = asyncio.create_task(client.close())
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await call
        await settled()
        waited = not closing.done()
        slow.set()
        await closing
        assert waited
        assert states(fake) == [(Phase.CANCELLED, True)]

    def test_an_event_loop_that_ends_meanwhile_ends_it_all_the_same(
        self, fake: FakeCluster, slow: asyncio.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody closes the client, and the loop cancels the task that undoes the creation."""
        cancel = FakeTransport.cancel
        cancelled: list[str] = []

        async def cancel_slowly(self: FakeTransport, name: str) -> None:
            cancelled.append(name)
            if len(cancelled) == 1:
                await asyncio.Event().wait()
            await cancel(self, name)

        async def call() -> None:
            with pytest.raises(TimeoutError):
                async with time_limit_passes_once(lambda: fake.executions):
                    await fake.client().execute(HANG, ME)
            slow.set()
            await until(lambda: cancelled)

        monkeypatch.setattr(FakeTransport, "cancel", cancel_slowly)
        asyncio.run(call())
        assert states(fake) == [(Phase.CANCELLED, True)]
        assert len(cancelled) == 2, "control: the first one was broken off"


class TestStopping:
    """What stops the code of a caller that goes away is nobody's to break off."""

    async def test_a_client_that_is_closed_waits_for_the_stop_of_a_cancelled_call(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = fake.client()
        call = await running(fake, client.execute(HANG, ME))
        gate = Gate(monkeypatch, "cancel")
        call.cancel()
        await closes_after(gate, client, call, asyncio.CancelledError)
        assert states(fake) == [(Phase.CANCELLED, True)]

    async def test_so_it_does_where_output_was_refused(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: object) -> None:
            raise KeyError

        client, gate = fake.client(), Gate(monkeypatch, "cancel")
        call = asyncio.create_task(client.execute(HANG, ME, on_output=refuse))
        await closes_after(gate, client, call, ClusterUnreachable)
        assert states(fake) == [(Phase.CANCELLED, True)]

    async def test_so_it_does_where_the_call_is_cancelled_in_each_turn(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As `anyio` does."""
        client = fake.client()
        call = await running(fake, client.execute(HANG, ME))
        gate = Gate(monkeypatch, "cancel")
        while not call.done():
            call.cancel()
            await asyncio.sleep(0)
        await closes_after(gate, client, call, asyncio.CancelledError)
        assert states(fake) == [(Phase.CANCELLED, True)]

    @pytest.mark.parametrize("error", [None, KeyError], ids=["end", "abandon"])
    async def test_a_session_is_ended_though_its_block_is_cancelled_again(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
    ) -> None:
        client, gate = fake.client(), Gate(monkeypatch, "end_session")

        async def use() -> None:
            async with await client.open_session(ME):
                if error:
                    raise error

        call = asyncio.create_task(use())
        await gate.asked.wait()
        call.cancel()
        await closes_after(gate, client, call, asyncio.CancelledError)
        assert [one.spec.ended for one in fake.sessions] == [True]

    async def test_an_end_that_fails_when_nobody_waits_for_it_is_a_line_in_the_log(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = fake.client()
        session, gate = await client.open_session(ME), Gate(monkeypatch, "end_session")
        ending = asyncio.create_task(session.end())
        await gate.asked.wait()
        ending.cancel()
        fake.fail()
        await closes_after(gate, client, ending, asyncio.CancelledError)
        assert "could not undo what nobody waits for any more: the fake cluster was told to fail" in caplog.text


Open = Callable[[FakeCluster], Awaitable[Any]]


async def of_the_api(fake: FakeCluster) -> Any:
    return codeexec.Client(agent="me", backend=fake.client()).session()


async def of_the_client(fake: FakeCluster) -> Any:
    return await fake.client().open_session(ME)


@pytest.mark.parametrize("opened", [of_the_api, of_the_client])
class TestSessions:
    """That a session can't be ended hides no error of its block."""

    async def test_an_error_of_the_block_is_what_the_caller_hears_of(
        self, fake: FakeCluster, opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def use() -> None:
            async with await opened(fake):
                fake.fail()
                raise KeyError

        with pytest.raises(KeyError):
            await use()
        [record] = [one for one in caplog.records if one.levelno == logging.WARNING]
        assert "could not end session session-" in record.getMessage()
        assert "the fake cluster was told to fail" in record.getMessage()

    async def test_so_is_a_time_limit(self, fake: FakeCluster, opened: Open) -> None:
        async def use() -> None:
            nonlocal failing
            async with time_limit_passes_once(lambda: failing), await opened(fake):
                fake.fail()
                failing = True
                await asyncio.Event().wait()

        failing = False
        with pytest.raises(TimeoutError):
            await use()

    async def test_without_one_it_is_that_of_the_end(self, fake: FakeCluster, opened: Open) -> None:
        with pytest.raises(ClusterUnreachable):
            async with await opened(fake):
                fake.fail()

    async def test_an_end_that_hangs_does_not_hold_it_up(
        self, fake: FakeCluster, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def hang(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(session_handle, "_ABANDON_SECONDS", 0.05)
        monkeypatch.setattr(FakeTransport, "end_session", hang)
        async with asyncio.timeout(60):
            with pytest.raises(KeyError):
                async with await opened(fake):
                    raise KeyError
        assert "no answer within 0.05 s" in caplog.text
