"""A connection leaves the event loop to others now and then, and no more often than that."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from codeexec_operator.adapters.connection import Connection

LINE = json.dumps({"pong": True}).encode() + b"\n"


@pytest.mark.parametrize(
    ("pieces", "turns"), [([LINE] * 500, 0), ([LINE * 99], 0), ([LINE * 100], 1), ([LINE * 1000], 10)]
)
async def test_the_loop_turns_once_for_a_hundred_lines_that_came_together(pieces: list[bytes], turns: int) -> None:
    seen: list[int] = []

    class Link:
        async def end_line(self) -> None:
            pass

        async def send(self, message: Mapping[str, Any]) -> None:
            pass

        async def received(self) -> AsyncIterator[bytes]:
            before = len(passed)
            for one in pieces:
                yield one
            seen.append(len(passed) - before)

    @asynccontextmanager
    async def attach(namespace: str, pod: str) -> AsyncIterator[Any]:
        yield Link()

    passed: list[None] = []

    async def another() -> None:
        while not seen:
            passed.append(None)
            await asyncio.sleep(0)

    cluster: Any = SimpleNamespace(attach=attach)
    connection = Connection(cluster, "a", "pod", epoch=1, greeting={}, reusable=True, changed=lambda: None)
    connection.open()
    await another()
    assert not connection.view.problem
    assert seen == [turns]
