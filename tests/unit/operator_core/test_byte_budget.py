"""Bytes that many may hold together: nobody gets more than there are, nobody is forgotten."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.adapters.byte_budget import ByteBudget


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_comes_first_gets_room_first_also_a_large_one() -> None:
    budget, let_in = ByteBudget(10), []

    async def want(name: str, size: int) -> None:
        await budget.take(size)
        let_in.append(name)

    await budget.take(6)
    waiting = [asyncio.create_task(want(name, size)) for name, size in (("large", 8), ("small", 2))]
    await settle()
    assert let_in == [], "the small one would fit, and doesn't overtake"
    budget.give(6)
    await asyncio.gather(*waiting)
    assert let_in == ["large", "small"]


async def test_who_wants_more_than_there_is_gets_all_of_it() -> None:
    budget = ByteBudget(10)
    async with budget.holding(1000):
        other = asyncio.create_task(budget.take(1))
        await settle()
        assert not other.done()
    await other


@pytest.mark.parametrize("let_in", [False, True])
async def test_who_is_cancelled_holds_nothing(let_in: bool) -> None:
    budget = ByteBudget(10)
    await budget.take(10)
    first = asyncio.create_task(budget.take(8))
    second = asyncio.create_task(budget.take(10))
    await settle()
    if let_in:
        budget.give(10)  # and it has not run since
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    if not let_in:
        budget.give(10)
    await second


@given(st.lists(st.integers(0, 15), max_size=8), st.data())
def test_never_more_than_there_is_and_everybody_in_the_end(sizes: list[int], data: st.DataObject) -> None:
    async def play() -> None:
        budget, held, most = ByteBudget(10), 0, 0
        cancelled = {index for index in range(len(sizes)) if data.draw(st.booleans())}

        async def hold(size: int) -> None:
            nonlocal held, most
            async with budget.holding(size):
                held += min(size, 10)
                most = max(most, held)
                try:
                    await asyncio.sleep(0)
                finally:
                    held -= min(size, 10)

        tasks = [asyncio.create_task(hold(size)) for size in sizes]
        await asyncio.sleep(0)
        for index in cancelled:
            tasks[index].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= 10
        async with budget.holding(10):
            pass

    asyncio.run(play())
