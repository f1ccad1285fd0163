"""One attempt for all that want its outcome, also its failure."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from executor_client import CodeExecutionClient, Request, SourceBlock
from executor_client.exceptions import ClusterUnreachable
from executor_client.runtime.asyncio_tasks import SingleFlight, reminded
from executor_client.testing import FakeCluster
from executor_client.transport.cluster import Transport
from executor_client.transport.kube_api import KubeApi


class Attempts:
    """Attempts that end when they are told to."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.fails = True
        self.may_end = asyncio.Event()

    async def attempt(self) -> str:
        self.begun += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails:
            raise ClusterUnreachable("no answer")
        return "found"


async def turns() -> None:
    """Let what is ready to run do so."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_failure_is_that_of_all_that_wait() -> None:
    attempts = Attempts()
    ask = SingleFlight(attempts.attempt)
    waiting = [asyncio.create_task(ask()) for _ in range(8)]
    await turns()
    attempts.may_end.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(one) for one in outcomes] == ["no answer"] * 8
    assert attempts.begun == 1
    attempts.fails = False
    assert (await ask(), attempts.begun) == ("found", 2), "who comes later makes another attempt"


async def test_who_goes_away_ends_it_for_no_other() -> None:
    attempts = Attempts()
    attempts.fails = False
    ask = SingleFlight(attempts.attempt)
    first, second = (asyncio.create_task(ask()) for _ in range(2))
    await turns()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert attempts.cancelled == 0
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert attempts.cancelled == 1, "nobody waits for it any more, and it has ended before its last caller goes on"
    attempts.may_end.set()
    assert await ask() == "found"


async def test_callers_of_an_attempt_that_failed_count_for_no_other() -> None:
    """They go on a moment after its end, and another attempt may be under way by then."""
    attempts = Attempts()
    ask = SingleFlight(attempts.attempt)
    first = asyncio.create_task(ask())
    await turns()
    attempts.may_end.set()
    await asyncio.sleep(0)
    assert ask._latest
    assert (ask._latest.task.done(), first.done()) == (True, False), "control"
    attempts.may_end.clear()
    second, third = (asyncio.create_task(ask()) for _ in range(2))
    await turns()
    third.cancel()
    await asyncio.gather(first, third, return_exceptions=True)
    assert (attempts.cancelled, second.done()) == (0, False)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert attempts.cancelled == 1


async def test_a_reminder_comes_once_between_items_and_disturbs_none() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def items() -> AsyncGenerator[int, None]:
        for number, gate in enumerate(gates):
            await gate.wait()
            yield number

    gates[0].set()
    seen: list[int | None] = []
    async with aclosing(items()) as source, aclosing(reminded(source, 0.01)) as heard:
        async for one in heard:
            seen.append(one)
            if one is None:
                for gate in gates:
                    gate.set()
    assert seen == [0, None, 1, 2]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def to_nobody() -> Transport:
    """A connection to a port that refuses it; its HTTP session holds the event loop."""
    return Transport(KubeApi(Configuration(host="http://127.0.0.1:1"), "sandboxes"))


@pytest.mark.parametrize("connect", [FakeCluster().client().connect, to_nobody], ids=["fake", "real"])
def test_a_client_that_lives_on_keeps_no_loop_that_has_ended(connect: Callable[[], Awaitable[Any]]) -> None:
    client, loops = CodeExecutionClient(transport=connect), []

    async def call() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        with suppress(ClusterUnreachable):
            await client.execute([SourceBlock("python", "1")], Request(agent="a"))

    asyncio.run(call())
    gc.collect()
    assert loops[0]() is None


async def test_concurrent_first_calls_open_one_connection() -> None:
    fake, opened = FakeCluster().client(), 0

    async def connect() -> Any:
        nonlocal opened
        opened += 1
        await asyncio.sleep(0)
        return await fake.connect()

    async with CodeExecutionClient(transport=connect) as client:
        await asyncio.gather(*(client.execute([SourceBlock("python", "1")], Request(agent="a")) for _ in range(10)))
    assert opened == 1


@pytest.mark.parametrize("calls", [1, 8])
async def test_calls_at_the_same_time_fail_at_the_same_time(calls: int) -> None:
    asked = 0

    async def connect() -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        raise ClusterUnreachable("no answer")

    async with CodeExecutionClient(transport=connect) as client:
        outcomes = await asyncio.gather(*(client.check() for _ in range(calls)), return_exceptions=True)
    assert (asked, {str(one) for one in outcomes}) == (1, {"no answer"})
