"""A connection to a pod ends if its far end is silent, and not because nobody has read it for a while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aiohttp import ClientWebSocketResponse, WSMessage, WSMsgType, web
from kubernetes.aio.client import Configuration

from codeexec_operator.adapters import cluster as doorway
from codeexec_operator.adapters.api_server import ApiServer
from codeexec_operator.adapters.cluster import Cluster, RunnerLink

PING = 0.1
STDOUT, PIECE = b"\x01", b"x" * 65_536
PIECES = 128
"""More than the buffers on the way hold, so that nothing is taken from the socket any more."""


class FarEnd:
    """An API server with one pod, which says so much; it answers pings, or nothing at all."""

    def __init__(self) -> None:
        self.pieces, self.answers = 0, True
        self.pinged = asyncio.Semaphore(0)
        self.said, self.ended = asyncio.Event(), asyncio.Event()
        self.more: asyncio.Queue[bytes] = asyncio.Queue()

    async def attached(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        saying = asyncio.create_task(self._say(socket))
        async for message in socket:
            if message.type is WSMsgType.PING:
                self.pinged.release()
                if self.answers:
                    await socket.pong(message.data)
        self.ended.set()
        saying.cancel()
        return socket

    async def _say(self, socket: web.WebSocketResponse) -> None:
        with suppress(ConnectionError):
            for _ in range(self.pieces):
                await socket.send_bytes(STDOUT + PIECE)
            self.said.set()
            while True:
                await socket.send_bytes(STDOUT + await self.more.get())


@pytest.fixture
async def far_end(monkeypatch: pytest.MonkeyPatch) -> FarEnd:
    monkeypatch.setattr(doorway, "_PING_SECONDS", PING)
    return FarEnd()


@pytest.fixture
async def cluster(far_end: FarEnd) -> AsyncIterator[Cluster]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/box/pods/pod/attach", far_end.attached)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    made = Cluster(ApiServer(configuration))
    yield made
    await made.close()
    await runner.cleanup()


async def ends_within(far_end: FarEnd, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await far_end.ended.wait()
            return True
    return False


async def all_of(link: RunnerLink, size: int) -> int:
    read = 0
    async for data in link.received():
        read += len(data)
        if read >= size:
            break
    return read


async def test_what_nobody_reads_for_a_while_is_all_there_afterwards(
    far_end: FarEnd, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store hangs, or the memory for output is used up: code that prints waits meanwhile."""
    far_end.pieces = PIECES
    async with cluster.attach("box", "pod") as link, asyncio.timeout(60):
        monkeypatch.setattr(doorway, "_PING_SECONDS", 30)  # for whoever reads; the connection has the short one
        pieces = link.received()
        first = await anext(pieces)
        assert not await ends_within(far_end, 10 * PING)
        assert not far_end.said.is_set(), "control: whoever prints has to wait"
        assert len(first) + await all_of(link, (PIECES - 1) * len(PIECE)) == PIECES * len(PIECE)


async def test_who_answers_pings_may_be_quiet_for_long(
    far_end: FarEnd, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorway, "_PING_SECONDS", 60)
    silences, receive = [PING] * 3, ClientWebSocketResponse.receive

    async def receive_or_ping_soon(self: ClientWebSocketResponse, seconds: float | None = None) -> WSMessage:
        """The silence before a ping is short at first, and the answer to it always has half a minute."""
        return await receive(self, silences.pop() if seconds and silences else seconds)

    monkeypatch.setattr(ClientWebSocketResponse, "receive", receive_or_ping_soon)
    async with cluster.attach("box", "pod") as link, asyncio.timeout(60):
        reading = asyncio.create_task(all_of(link, 5))
        for _ in range(3):
            await far_end.pinged.acquire()
        far_end.more.put_nowait(b"hello")
        assert await reading == 5
        assert not silences


async def test_who_answers_no_ping_is_gone(far_end: FarEnd, cluster: Cluster) -> None:
    far_end.answers = False
    async with cluster.attach("box", "pod") as link, asyncio.timeout(30):
        assert await all_of(link, 5) == 0
    assert far_end.pinged._value == 1
