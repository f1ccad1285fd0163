"""Handles on executions, with logs that break off, are not there, or lie. On the cluster in memory."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from factories import NOW
from polling import clock_jumps_once, settled, until

from codeexec_api import (
    CodeExecution,
    CodeExecutionStatus,
    ConditionType,
    ExecutionPolicySpec,
    Phase,
    PodReset,
    condition,
)
from executor_client import (
    ApprovalWait,
    ClusterUnreachable,
    CodeExecError,
    CodeExecutionClient,
    Execution,
    ExecutionLost,
    ExecutionResult,
    NotFound,
    NotInstalled,
    OutputChunk,
    PreparedBlock,
    Request,
    SessionEnded,
    SourceBlock,
    Timeout,
    WaitNotice,
)
from executor_client.client import execution, waiting
from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome
from executor_client.testing.transport import FakeTransport
from executor_client.transport.protocol import ClusterTransport

ME = Request(agent="me")
OUTCOMES = {
    "both": FakeOutcome(pieces=(("stdout", "1\n"), ("stderr", "E\n"), ("stdout", "2\n"))),
    "large": FakeOutcome(stdout="x" * 3_000_000),
    "hang": FakeOutcome(stdout="so far\n", never_ends=True),
}
FollowLog = Callable[[str, float | None], AsyncGenerator[bytes, None]]
Bend = Callable[[FollowLog, str, float | None], AsyncGenerator[bytes, None]]


def block(code: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", code.encode()),)


@pytest.fixture
def fake() -> FakeCluster:
    fake = FakeCluster()
    fake.answers(OUTCOMES)
    return fake


@pytest.fixture
def client(fake: FakeCluster) -> CodeExecutionClient:
    return fake.client()


def bent(client: CodeExecutionClient, bend: Bend) -> CodeExecutionClient:
    """A client whose logs are what `bend` makes of them."""

    async def connect() -> ClusterTransport:
        transport: Any = await client.connect()
        good = transport.follow_log
        transport.follow_log = lambda pod, last_seconds: bend(good, pod, last_seconds)
        return transport  # type: ignore[no-any-return]

    return CodeExecutionClient(transport=connect)


async def output_of(handle: Execution) -> list[OutputChunk]:
    return [chunk async for chunk in handle.output()]


def text_of(chunks: list[OutputChunk], stream: str = "stdout") -> str:
    return "".join(chunk.text for chunk in chunks if chunk.stream == stream)


async def test_submit_attach_and_result(client: CodeExecutionClient) -> None:
    submitted = await client.submit(block("both"), ME)
    attached = client.attach(submitted.name)
    assert not attached.ended
    result = await attached.result()
    assert attached.ended
    assert (result.output, result.name) == ("1\nE\n2\n", submitted.name)
    assert await output_of(attached) == await output_of(submitted)
    assert text_of(await output_of(attached), "stderr") == "E\n"
    [record] = await client.list_executions()
    assert record == await client.get(submitted.name) == await submitted.finished()


async def test_output_and_result_may_be_waited_for_at_the_same_time(client: CodeExecutionClient) -> None:
    handle = await client.submit(block("hang"), ME)
    reading, waiting = asyncio.create_task(output_of(handle)), asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    await handle.cancel()
    assert text_of(await reading) == "so far\n"
    assert (await waiting).phase is Phase.CANCELLED


async def test_whoever_stops_reading_leaves_nothing_behind_and_the_code_runs_on(
    client: CodeExecutionClient, fake: FakeCluster
) -> None:
    handle = await client.submit(block("hang"), ME)
    output = handle.output()
    assert (await anext(output)).text == "so far\n"
    await output.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not fake.executions[0].status.phase.terminal


def noting(asked: list[float | None]) -> Bend:
    """Logs as they are; how many seconds of them were asked for is added to the list."""

    async def listen(good: FollowLog, pod: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
        asked.append(last_seconds)
        async for line in good(pod, last_seconds):
            yield line

    return listen


async def no_log(good: FollowLog, pod: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
    return
    yield b""


async def one_line_at_a_time(good: FollowLog, pod: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
    async for line in good(pod, last_seconds):
        yield line
        return


async def without_its_start(good: FollowLog, pod: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
    first = True
    async for line in good(pod, last_seconds):
        if not first:
            yield line
        first = False


async def that_fails(good: FollowLog, pod: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
    async for line in good(pod, last_seconds):
        yield line
        raise CodeExecError("broken")


@pytest.mark.parametrize("bend", [no_log, one_line_at_a_time, without_its_start, that_fails])
async def test_whatever_becomes_of_the_log_each_stream_is_whole(
    bend: Bend, client: CodeExecutionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_LOG_AGAIN_SECONDS", 0)
    handle = await bent(client, bend).submit(block("both"), ME)
    chunks = await output_of(handle)
    assert (text_of(chunks), text_of(chunks, "stderr")) == ("1\n2\n", "E\n")


async def test_a_log_that_gives_nothing_for_long_is_still_asked_for(
    client: CodeExecutionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer ends a silent stream every few minutes, and then the code prints."""
    monkeypatch.setattr(execution, "_LOG_AGAIN_SECONDS", 0)
    asked = 0

    async def silent_at_first(good: FollowLog, pod: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
        nonlocal asked
        asked += 1
        if asked > 12:
            async for line in good(pod, last_seconds):
                yield line

    handle = await bent(client, silent_at_first).submit(block("hang"), ME)
    output = handle.output()
    async with asyncio.timeout(60):
        assert (await anext(output)).text == "so far\n"
    await output.aclose()


@pytest.mark.parametrize("reset", [None, PodReset(use=2, clean=True)], ids=["new", "used again"])
async def test_a_log_is_read_without_most_of_what_others_have_said(
    reset: PodReset | None, client: CodeExecutionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is used again has the output of those before in its log. No clock is compared with another."""
    asked: list[float | None] = []
    good_changes = FakeTransport.changes

    async def changes(self: FakeTransport, execution: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        async for one in good_changes(self, execution):
            yield one.model_copy(update={"status": one.status.model_copy(update={"pod_reset": reset})})

    monkeypatch.setattr(FakeTransport, "changes", changes)
    handle = await bent(client, noting(asked)).submit(block("hang"), ME)
    output = handle.output()
    assert (await anext(output)).text == "so far\n"
    await output.aclose()
    [last_seconds] = asked
    assert last_seconds is None if reset is None else last_seconds and 60 < last_seconds < 160


async def test_live_output_comes_however_long_ago_it_was_written(
    fake: FakeCluster, client: CodeExecutionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the fake goes on when the test says so; that of a machine that slept, at once."""
    asked: list[float | None] = []
    request = dataclasses.replace(ME, timeout_seconds=300)
    async with await client.open_session(request) as session:
        handle = await bent(client, noting(asked)).submit(block("hang"), request, session=session.name)
        fake.advance(120)
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + 600)
        output = handle.output()
        async with asyncio.timeout(60):
            assert (await anext(output)).text == "so far\n"
        await output.aclose()
    [last_seconds] = asked
    assert last_seconds
    assert last_seconds > 660


async def test_the_log_of_an_execution_of_a_session_that_was_submitted_before_is_read_whole(
    client: CodeExecutionClient,
) -> None:
    """Nobody knows for how long it has run, by the clock of its node."""
    asked: list[float | None] = []
    async with await client.open_session(ME) as session:
        name = (await client.submit(block("hang"), ME, session=session.name)).name
        output = bent(client, noting(asked)).attach(name).output()
        assert (await anext(output)).text == "so far\n"
        await output.aclose()
    assert asked == [None]


@pytest.mark.parametrize("code", [SourceBlock("rust", "x"), SourceBlock("python", "# filename: /etc/x.py\n1")])
async def test_a_block_that_can_not_be_run_is_an_error_and_no_success(
    client: CodeExecutionClient, fake: FakeCluster, code: SourceBlock
) -> None:
    good = SourceBlock("python", "both")
    assert (await client.execute([good], ME)).stdout == "1\n2\n"
    async with await client.open_session(ME) as session:
        for run in (session.execute([good, code]), client.execute([code], ME), client.submit([code], ME)):
            with pytest.raises(ValueError, match="nothing was run"):
                await run
    assert len(fake.executions) == 1


async def test_files_that_are_not_listed_are_told_of(
    client: CodeExecutionClient, fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def behave(one: FakeBlock) -> FakeOutcome:
        one.files.update({f"f{number}": b"" for number in range(300)})
        return FakeOutcome()

    fake._run = behave
    async with await client.open_session(ME) as session:
        await session.execute(block("make"))
        assert len(await session.list_files()) == 256
        assert f"files of session {session.name} are not listed: at most 256 are" in caplog.text


async def test_a_log_that_lies_is_not_gone_on_with_and_the_result_is_true(
    client: CodeExecutionClient, fake: FakeCluster
) -> None:
    async def lying(good: FollowLog, pod: str, last_seconds: float | None) -> AsyncGenerator[bytes, None]:
        forged = {"id": fake.executions[0].metadata.uid, "seq": 0, "stream": "stdout", "data": "forged\n"}
        yield json.dumps(forged).encode()
        async for line in good(pod, last_seconds):
            yield line

    handle = await bent(client, lying).submit(block("hang"), ME)
    output = handle.output()
    chunks = [await anext(output)]
    await handle.cancel()
    chunks += [chunk async for chunk in output]
    assert text_of(chunks) == "forged\n"
    assert (await handle.result()).stdout == "so far\n"


async def test_large_output_is_whole(client: CodeExecutionClient) -> None:
    chunks: list[OutputChunk] = []
    result: ExecutionResult = await client.execute(block("large"), ME, on_output=chunks.append)
    assert result.stdout == text_of(chunks) == "x" * 3_000_000
    assert (await client.get(result.name)).status.output_refs


async def test_a_callback_that_raises_stop_iteration_is_an_error(client: CodeExecutionClient) -> None:
    """No future of Python 3.11 takes this exception, so the call never ended."""
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await client.execute(block("both"), ME, on_output=lambda _: next(iter(())))


async def test_a_slow_callback_does_not_hold_up_a_cancellation(client: CodeExecutionClient) -> None:
    blocked, cancelled = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(chunk: OutputChunk) -> None:
        loop.call_soon_threadsafe(cancelled.set)
        assert blocked.wait(100)

    running = asyncio.create_task(client.execute(block("hang"), ME, cancelled=cancelled, on_output=slow))
    async with asyncio.timeout(60):
        await cancelled.wait()
        [record] = await client.list_executions()
        assert (await client.attach(record.metadata.name).finished()).status.phase is Phase.CANCELLED
    blocked.set()
    assert (await running).phase is Phase.CANCELLED


async def test_what_is_not_there(client: CodeExecutionClient) -> None:
    for asked in (
        client.get("none"),
        client.attach("none").result(),
        client.cancel("none"),
        client.end_session("none"),
    ):
        with pytest.raises(NotFound):
            await asked
    with pytest.raises(SessionEnded):
        await client.execute((), ME, list_files="All", session="none")


async def test_an_operator_that_is_not_there(
    client: CodeExecutionClient, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "OPERATOR_SECONDS", 0.1)
    fake.stop_operator()
    with pytest.raises(
        NotInstalled, match=r"no operator took up execution run-.* in namespace .* Pass a sandbox namespace"
    ):
        await client.execute(block("both"), ME)
    assert fake.executions[0].spec.cancelled


async def test_who_waits_for_an_operator_hears_so(
    client: CodeExecutionClient, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WORD_SECONDS", 0.05)
    fake.stop_operator()
    heard: list[WaitNotice] = []
    call = asyncio.create_task(client.execute(block("both"), dataclasses.replace(ME, on_wait=heard.append)))
    await until(lambda: heard)
    assert [(one.reason, one.execution) for one in heard] == [("WaitingForOperator", fake.executions[0].metadata.name)]
    assert f"The call waits {execution.OPERATOR_SECONDS:g} s" in heard[0].message
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_an_outage_while_nobody_notices_the_execution_costs_nothing(
    client: CodeExecutionClient, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the API server is away, the operator can't take anything up either. The watch stays open meanwhile."""
    monkeypatch.setattr(waiting, "WORD_SECONDS", 0.05)
    fake.stop_operator()
    heard, watches, get, changes = [], [], FakeTransport.get, FakeTransport.changes
    failures = iter([ClusterUnreachable("could not get the CodeExecution: no answer")])

    async def get_after_an_outage(self: FakeTransport, name: str) -> CodeExecution:
        for failure in failures:
            raise failure
        return await get(self, name)

    def changes_of(self: FakeTransport, record: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        watches.append(record)
        return changes(self, record)

    def start_operator(notice: WaitNotice) -> None:
        heard.append(notice.reason)
        fake.recover()
        simulation = fake._simulation
        with simulation._lock:
            simulation._operator.accept(simulation.state.runs[notice.execution])

    monkeypatch.setattr(FakeTransport, "get", get_after_an_outage)
    monkeypatch.setattr(FakeTransport, "changes", changes_of)
    result = await client.execute(block("both"), dataclasses.replace(ME, on_wait=start_operator))
    assert (result.stdout, heard) == ("1\n2\n", ["WaitingForOperator"])
    assert not fake.executions[0].spec.cancelled
    assert next(failures, None) is None, "control: the record was asked for, in vain"
    assert len(watches) == 1, "a watch that is left is made anew for this execution alone"


async def test_what_a_silent_watch_has_not_told_is_looked_up(
    client: CodeExecutionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anybody hears that there is no operator."""
    monkeypatch.setattr(waiting, "WORD_SECONDS", 0.05)
    changes, heard, watches = FakeTransport.changes, [], []

    async def silent_at_first(self: FakeTransport, record: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        watches.append(record)
        if len(watches) == 1:
            await asyncio.Event().wait()
        async for one in changes(self, record):
            yield one

    monkeypatch.setattr(FakeTransport, "changes", silent_at_first)
    handle = await client.submit(block("hang"), dataclasses.replace(ME, on_wait=heard.append))
    running = asyncio.create_task(handle.result())
    await until(lambda: len(watches) == 2)
    await handle.cancel()
    assert (await running).phase is Phase.CANCELLED
    assert heard == []


async def test_a_callback_that_times_out_is_an_error_of_the_callback(fake: FakeCluster) -> None:
    """`requests.post(…, timeout=3)` raises a TimeoutError, for example."""

    def tell(_: object) -> None:
        raise TimeoutError("the chat did not answer")

    policy = ExecutionPolicySpec.model_validate(
        {"images": [FAKE_IMAGE], "maxTimeoutSeconds": 10, "withApproval": {"maxTimeoutSeconds": 100}}
    )
    client = FakeCluster(policy=policy, run=lambda _: FakeOutcome()).client()
    with pytest.raises(TimeoutError, match="the chat did not answer"):
        await client.execute(block("both"), Request(agent="me", timeout_seconds=60, approval=ApprovalWait(notify=tell)))


# --- sessions ---


async def test_a_session_from_its_start_to_its_end(client: CodeExecutionClient, fake: FakeCluster) -> None:
    def behave(one: FakeBlock) -> FakeOutcome:
        one.files["made"] = b"2"
        return FakeOutcome()

    fake._run = behave
    async with await client.open_session(ME, wait=True) as session:
        await session.upload({"a/b": b"1", "empty": b""})
        result = await session.execute(block("make it"), fetch=["made"])
        assert (result.session, result.files) == (session.name, {"made": b"2"})
        record = await client.get(result.name)
        assert await client.read_artifact(record, "made") == b"2"
        assert await session.download(["a/*", "empty", "none"]) == {"a/b": b"1", "empty": b""}
        joined = await client.join_session(session.name, ME)
        assert {"a/b", "empty", "made"} <= {one.path for one in await joined.list_files()}
    assert [one.spec.ended for one in await client.list_sessions()] == [True]
    await session.end()
    with pytest.raises(SessionEnded, match="is over"):
        await session.list_files()
    with pytest.raises(SessionEnded):
        await session.ready()


# --- queues ---


async def test_in_the_queue_of_a_pool_it_waits_as_long_as_it_takes(
    client: CodeExecutionClient,
) -> None:
    """The limit for the start counts from when it has left the queue; the control: without one, it is over."""
    queued, left = (
        condition(ConditionType.QUEUED, holds=holds, reason="WaitingForPool", message="", now=NOW, generation=1)
        for holds in (True, False)
    )
    handle = await client.submit(block("both"), Request(agent="me", timeout_seconds=1))
    finished = await handle.finished()

    def version(number: int, **status: Any) -> CodeExecution:
        meta = finished.metadata.model_copy(update={"resource_version": str(number)})
        new = CodeExecutionStatus(phase=Phase.STARTING, observed_generation=1, **status)
        return finished.model_copy(update={"metadata": meta, "status": new})

    async def changes(_: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        yield version(1, conditions=(first,))
        waited.append(first)
        await settled()
        yield version(2, conditions=(left,))
        yield finished

    async def get(_: str) -> CodeExecution:
        return record

    async def connect() -> ClusterTransport:
        transport: Any = await client.connect()
        transport.changes, transport.get = changes, get
        return transport  # type: ignore[no-any-return]

    waited: list[object] = []
    for number in range(3):  # each of them lasts for longer than any limit
        clock_jumps_once(lambda number=number: len(waited) > number, 1000)
    first = queued
    record = version(1)
    assert (await Execution(connect, handle.name, version(0)).finished()).status.phase is Phase.SUCCEEDED
    first = left
    with pytest.raises(ExecutionLost, match="did not end within 136 s"):
        await Execution(connect, handle.name, version(0)).finished()
    record = finished
    ended = await Execution(connect, handle.name, version(0)).finished()
    assert ended == finished, "a limit is held against the record, not against what a watch has told of it"


# --- the caller's limit for the start ---


async def after_the_limit(client: CodeExecutionClient, now: Phase | CodeExecError) -> CodeExecution:
    """What waiting comes to: the watch tells of `Starting` and goes silent, the limit passes, and the record is so."""
    submitted = await client.submit(block("both"), ME)
    finished = await submitted.finished()
    [told] = waits(finished, SLOW)
    status = finished.status.model_copy(update={"phase": Phase.RUNNING, "finished_at": None, "conditions": ()})
    records = {
        Phase.STARTING: told,
        Phase.RUNNING: finished.model_copy(update={"status": status}),
        Phase.SUCCEEDED: finished,
    }
    watched: list[CodeExecution] = []
    transport: Any = await client.connect()

    async def changes(latest: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        watched.append(latest)
        yield finished if latest.status.started_at else told
        await asyncio.Event().wait()

    async def get(_: str) -> CodeExecution:
        if isinstance(now, CodeExecError):
            raise now
        return records[now]

    async def connect() -> ClusterTransport:
        return transport  # type: ignore[no-any-return]

    transport.changes, transport.get = changes, get
    clock_jumps_once(lambda: watched, 60)
    return await Execution(connect, submitted.name, told, start_seconds=50).finished()


@pytest.mark.parametrize("now", [Phase.RUNNING, Phase.SUCCEEDED])
async def test_a_start_that_a_silent_watch_has_not_told_of_counts(client: CodeExecutionClient, now: Phase) -> None:
    assert (await after_the_limit(client, now)).status.phase is Phase.SUCCEEDED


async def test_code_that_has_not_started_in_time_by_its_record_is_late(client: CodeExecutionClient) -> None:
    with pytest.raises(Timeout, match=r"did not start within 50 s \(PodStarting\)"):
        await after_the_limit(client, Phase.STARTING)


async def test_where_the_record_of_the_start_cant_be_read_nobody_says_that_nothing_ran(
    client: CodeExecutionClient,
) -> None:
    with pytest.raises(ExecutionLost, match="may have started all the same: its record can't be read: no answer"):
        await after_the_limit(client, ClusterUnreachable("no answer"))


# --- what a caller hears meanwhile ---


def waits(finished: CodeExecution, *said: tuple[ConditionType, str, str]) -> list[CodeExecution]:
    """Versions of a record that waits, for one reason after the other."""
    versions = []
    for number, (kind, reason, message) in enumerate(said, 1):
        shown = condition(kind, holds=True, reason=reason, message=message, now=NOW, generation=1)
        status = CodeExecutionStatus(phase=Phase.STARTING, observed_generation=1, conditions=(shown,))
        meta = finished.metadata.model_copy(update={"resource_version": str(number)})
        versions.append(finished.model_copy(update={"metadata": meta, "status": status}))
    return versions


async def watched(client: CodeExecutionClient, on_wait: Any, *said: tuple[ConditionType, str, str]) -> Execution:
    """A handle on an execution that waits for these reasons, and then ends."""
    submitted = await client.submit(block("both"), ME)
    finished = await submitted.finished()
    first, *rest = waits(finished, *said)
    transport: Any = await client.connect()

    async def changes(_: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        for one in [*rest, finished]:
            yield one

    transport.changes = changes

    async def connect() -> Any:
        return transport

    return Execution(connect, submitted.name, first, on_wait=on_wait)


PLACE = (ConditionType.QUEUED, "WaitingForPool", "position 2 of 2")
NEXT = (ConditionType.QUEUED, "WaitingForPool", "position 1 of 2")
BLOCKED = (ConditionType.DELAYED, "Unschedulable", "no node has room")
SLOW = (ConditionType.DELAYED, "PodStarting", "the pod is not ready yet")


async def test_a_caller_hears_of_everything_new_that_the_code_waits_for(client: CodeExecutionClient) -> None:
    heard: list[WaitNotice] = []
    threads: set[bool] = set()

    def tell(notice: WaitNotice) -> None:
        heard.append(notice)
        threads.add(threading.current_thread() is threading.main_thread())

    handle = await watched(client, tell, PLACE, PLACE, NEXT, BLOCKED)
    assert (await handle.finished()).status.phase is Phase.SUCCEEDED
    assert [(one.reason, one.message) for one in heard] == [PLACE[1:], NEXT[1:], BLOCKED[1:]]
    assert heard[0].execution == handle.name
    assert threads == {False}


async def test_without_a_callback_each_reason_is_logged_once(
    client: CodeExecutionClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="executor_client.client.waiting"):
        await (await watched(client, None, PLACE, NEXT, BLOCKED, SLOW)).finished()
    assert [(one.levelname, one.args[1]) for one in caplog.records if one.args] == [
        ("WARNING", "WaitingForPool"),
        ("WARNING", "Unschedulable"),
        ("INFO", "PodStarting"),
    ]


async def test_what_a_callback_raises_ends_the_wait(client: CodeExecutionClient) -> None:
    def tell(notice: WaitNotice) -> None:
        raise RuntimeError(notice.reason)

    with pytest.raises(RuntimeError, match="Unschedulable"):
        await (await watched(client, tell, BLOCKED)).finished()
