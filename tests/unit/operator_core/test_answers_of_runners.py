"""A runner has what was handed to it once it has answered a ping that came behind."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

from played_pod import PlayedPod
from polling import settled


class Pod(PlayedPod):
    """Says what the test lets it say, and takes down what it is asked."""

    def __init__(self) -> None:
        self.pings: list[object] = []
        self._says: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()

    async def send(self, message: Mapping[str, Any]) -> None:
        if "ping" in message:
            self.pings.append(message["ping"])

    def say(self, frame: Mapping[str, Any] | None) -> None:
        """Say this. None: the connection ends."""
        self._says.put_nowait(frame)

    async def received(self) -> AsyncIterator[bytes]:
        while (frame := await self._says.get()) is not None:
            yield json.dumps(frame).encode() + b"\n"


def a_job() -> Any:
    """Takes nothing of what comes."""
    share = SimpleNamespace(need=lambda _: asyncio.sleep(0), settle=lambda _: None)
    return SimpleNamespace(uid="job", share=share, cut_off=lambda: None)


async def test_only_the_answer_to_this_ping_counts() -> None:
    pod = Pod()
    connection = pod.connect("a")
    await pod.begin_job(connection, a_job())
    await connection.ping()
    answered = asyncio.create_task(connection.answers("job"))
    for frame in ({"pong": True}, {"id": "another", "seq": 0, "stream": "stdout", "data": "x"}, {"pong": ["job"]}):
        pod.say(frame)
        await settled()
        assert not answered.done()
    assert pod.pings == [True, "job"]
    pod.say({"pong": "job"})
    assert await answered
    connection.close()


async def test_no_answer_comes_once_the_connection_has_ended() -> None:
    pod = Pod()
    connection = pod.connect("a")
    await pod.begin_job(connection, a_job())
    answered = asyncio.create_task(connection.answers("job"))
    await settled()
    pod.say(None)
    assert not await answered
    assert not await connection.answers("job")
    assert pod.pings == ["job"]
