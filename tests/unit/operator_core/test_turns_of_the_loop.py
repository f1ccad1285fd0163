"""A connection leaves the event loop to others now and then, and no more often than that."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from played_pod import PlayedPod

LINE = json.dumps({"pong": True}).encode() + b"\n"


@pytest.mark.parametrize(
    ("pieces", "turns"), [([LINE] * 500, 5), ([LINE] * 99, 0), ([LINE * 99], 0), ([LINE * 100], 1), ([LINE * 1000], 10)]
)
async def test_the_loop_turns_once_for_a_hundred_lines_whether_they_came_together_or_not(
    pieces: list[bytes], turns: int
) -> None:
    seen: list[int] = []

    class Link(PlayedPod):
        async def received(self) -> AsyncIterator[bytes]:
            before = len(passed)
            for one in pieces:
                yield one
            seen.append(len(passed) - before)

    passed: list[None] = []

    async def another() -> None:
        while not seen:
            passed.append(None)
            await asyncio.sleep(0)

    connection = Link().connect("pod")
    connection.open()
    await another()
    assert not connection.view.problem
    assert seen == [turns]
