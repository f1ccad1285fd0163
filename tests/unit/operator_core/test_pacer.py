"""The lines in which new work waits for the pace of its namespace."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from codeexec_operator.adapters.pacer import Pacer
from codeexec_operator.core.pacing import FEW, WINDOW


def congested() -> Pacer:
    pacer = Pacer()
    for seconds in (0.01, *[1.0] * 10):
        for _ in range(WINDOW):
            pacer.measured(seconds)
    return pacer


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_has_begun_comes_before_what_holds_nothing() -> None:
    pacer, order = Pacer(), []

    async def step(name: str, *, begun: bool) -> None:
        async with pacer.work("flood", begun=begun):
            order.append(name)
            await asyncio.sleep(0)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(pacer.work("quiet"))
        for _ in range(4):
            await stack.enter_async_context(pacer.work("flood"))
        waiting = [asyncio.create_task(step(name, begun=name == "begun")) for name in ("new", "newer", "begun")]
        await asyncio.sleep(0)
        assert order == [], "control: they wait"
    await asyncio.gather(*waiting)
    assert order[0] == "begun"


async def test_a_flood_waits_and_its_neighbour_does_not() -> None:
    pacer, under_way, end = congested(), Counter[str](), asyncio.Event()

    async def begin(namespace: str) -> None:
        async with pacer.work(namespace):
            under_way[namespace] += 1
            await end.wait()

    tasks = [asyncio.create_task(begin("quiet"))]
    await settle()
    tasks += [asyncio.create_task(begin("flood")) for _ in range(1000)]
    tasks += [asyncio.create_task(begin("quiet"))]
    await settle()
    assert under_way["quiet"] == 2
    assert 1 <= under_way["flood"] < FEW
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not pacer._lines
    assert not pacer._timers
    assert not pacer._pacing._under_way


async def test_control_a_flood_that_is_alone_begins_at_once() -> None:
    pacer, under_way, end = congested(), Counter[str](), asyncio.Event()

    async def begin() -> None:
        async with pacer.work("flood"):
            under_way["flood"] += 1
            await end.wait()

    tasks = [asyncio.create_task(begin()) for _ in range(1000)]
    await settle()
    assert under_way["flood"] == 1000
    end.set()
    await asyncio.gather(*tasks)


async def test_within_a_namespace_all_begin_in_the_order_in_which_they_came() -> None:
    pacer, order = congested(), []

    async def begin(number: int) -> None:
        async with pacer.work("flood"):
            order.append(number)
            await asyncio.sleep(0)

    async with pacer.work("quiet"):
        await asyncio.gather(*map(begin, range(20)))
    assert order == list(range(20))


async def test_who_gives_up_in_line_leaves_its_place_to_the_next() -> None:
    pacer, end, begun = congested(), asyncio.Event(), []

    async def begin(number: int) -> None:
        async with pacer.work("flood"):
            begun.append(number)
            await end.wait()

    async with pacer.work("quiet"):
        tasks = [asyncio.create_task(begin(number)) for number in range(10)]
        await settle()
        assert len(begun) < 10
        late = [task for number, task in enumerate(tasks) if number not in begun]
        late[0].cancel()
        end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(begun) == 9
    assert not pacer._lines
