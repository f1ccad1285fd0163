"""Slots that namespaces share: nobody gets more than there are, and a namespace that floods holds up no other."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.adapters.fair_semaphore import FairSemaphore

FLOOD = 1000


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("flooding", [1, 3])
async def test_who_comes_after_a_flood_waits_for_one_turn_of_each_other_namespace(flooding: int) -> None:
    slots, order = FairSemaphore(1), []

    async def want(namespace: str) -> None:
        async with slots.slot(namespace):
            order.append(namespace)
            await asyncio.sleep(0)

    flood = [want(f"flood-{one % flooding}") for one in range(FLOOD)]
    waiting = [asyncio.create_task(one) for one in (*flood, want("quiet"), want("quiet"))]
    await asyncio.gather(*waiting)
    first, second = (place for place, one in enumerate(order) if one == "quiet")
    assert (first, second - first) == (flooding + 1, flooding + 1) if flooding > 1 else (2, 2)


async def test_a_namespace_leaves_slots_to_others_that_come_later() -> None:
    slots = FairSemaphore(4, 3)
    flood = [asyncio.create_task(slots.take("flood")) for _ in range(FLOOD)]
    await settle()
    assert sum(one.done() for one in flood) == 3
    await slots.take("quiet")  # at once: it would wait for ever, because nothing is given back
    late = asyncio.create_task(slots.take("quiet"))
    await settle()
    assert not late.done()
    slots.give("flood")  # whoever floods has waited longer
    slots.give("flood")
    await late
    for one in flood:
        one.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_within_a_namespace_the_first_is_served_first() -> None:
    slots, order = FairSemaphore(1), []

    async def want(number: int) -> None:
        async with slots.slot("one"):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*map(want, range(5)))
    assert order == [0, 1, 2, 3, 4]


async def test_a_turn_lasts_until_the_loop_has_gone_round() -> None:
    slots, order = FairSemaphore(1), []

    async def work(namespace: str, times: int) -> None:
        for _ in range(times):
            await slots.turn(namespace)
            order.append(namespace)

    await asyncio.gather(*(work("flood", 3) for _ in range(50)), work("quiet", 3))
    *_, last = (place for place, one in enumerate(order) if one == "quiet")
    assert last <= 7
    assert Counter(order) == {"flood": 150, "quiet": 3}


@pytest.mark.parametrize("handed_over", [False, True])
async def test_who_is_cancelled_holds_nothing(handed_over: bool) -> None:
    slots = FairSemaphore(1)
    await slots.take("one")
    first = asyncio.create_task(slots.take("two"))
    second = asyncio.create_task(slots.take("three"))
    await settle()
    if handed_over:
        slots.give("one")  # and it has not run since
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    if not handed_over:
        slots.give("one")
    await second
    slots.give("three")
    assert not slots._held
    assert not slots._waiting


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 3), st.integers(1, 3), st.data())
def test_never_more_than_there_are_and_everybody_in_the_end(
    wanted: list[str], most: int, each: int, data: st.DataObject
) -> None:
    async def play() -> None:
        slots, holding, served = FairSemaphore(most, each), Counter[str](), 0

        async def want(namespace: str) -> None:
            nonlocal served
            async with slots.slot(namespace):
                holding[namespace] += 1
                assert holding.total() <= most
                assert holding[namespace] <= each
                try:
                    await asyncio.sleep(0)
                finally:
                    holding[namespace] -= 1
                served += 1

        tasks = [asyncio.create_task(want(one)) for one in wanted]
        await asyncio.sleep(0)
        cancelled = data.draw(st.lists(st.sampled_from(tasks))) if tasks else []
        for one in cancelled:
            one.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert served >= len(wanted) - len({id(one) for one in cancelled})
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results)
        assert not slots._held
        assert not slots._waiting

    asyncio.run(play())
