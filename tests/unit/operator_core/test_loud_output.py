"""Connections to loud code are not read faster than there is memory for, in the operator as a whole."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from factories import numbered, output, take_part
from played_pod import PlayedPod

from codeexec_operator.adapters.output_room import FREE_BYTES, SHARE_BYTES, OutputRoom, Share
from codeexec_operator.core.transcript import Transcript

PIECE = 64 * 1024
SAID = 8 * PIECE
"""Less than a part."""


@dataclass
class Job(PlayedPod):
    """Code in a pod of its own. It prints, and then goes on without a word."""

    uid: str
    room: OutputRoom
    says: int
    transcript: Transcript = field(default_factory=Transcript)
    parts: int = 0
    read: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.share = Share(self.room, f"namespace-{self.uid}", self)
        self.connection = self.connect(self.uid)

    async def begin(self) -> None:
        await self.begin_job(self.connection, self)

    async def received(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        size = min(self.says, PIECE)
        for frame in numbered(*[output("x" * size)] * (self.says // size)):
            line = json.dumps({**frame, "id": self.uid}).encode() + b"\n"
            for start in range(0, len(line), 10_000):
                self.read += 1
                yield line[start : start + 10_000]
        await asyncio.Event().wait()

    @property
    def held_bytes(self) -> int:
        return self.transcript.parts.held_bytes

    async def shorten(self) -> bool:
        self.transcript.cut()
        await self.store_parts()
        return True

    def run_in_background(self, job: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(job))

    async def store_parts(self) -> None:
        while take_part(self.transcript.parts):
            await asyncio.sleep(0)
            self.parts += 1

    def progressed(self) -> None:
        pass

    def cut_off(self) -> None:
        pass

    def resumed(self, missing: str) -> None:
        pass


async def read(jobs: list[Job], sizes: list[int]) -> None:
    """Until all that they have said was read."""
    async with asyncio.timeout(60):
        while any(job.transcript._streams["stdout"].kept_bytes < job.says for job in jobs):
            sizes.append(sum(job.held_bytes for job in jobs))
            await asyncio.sleep(0)


async def test_loud_ones_hold_no_more_than_the_room_and_what_is_free_and_all_are_read() -> None:
    shares, room, sizes = 4, OutputRoom(4 * SHARE_BYTES), list[int]()
    loud = [Job(f"loud-{number}", room, SAID) for number in range(60)]
    for job in loud:
        await job.begin()
    quiet = Job("quiet", room, 1000)
    await quiet.begin()
    await read([quiet], [])
    assert any(job.transcript._streams["stdout"].kept_bytes < SAID for job in loud), "control: it overtakes them"
    await read(loud, sizes)
    most = shares * (SAID + PIECE) + len(loud) * FREE_BYTES
    assert max(sizes) <= most < len(loud) * SAID
    assert room.taken_bytes <= shares * SHARE_BYTES
    assert sum(job.parts for job in loud) >= len(loud) - shares, "those that had sat on theirs have stored it"
    for job in [*loud, quiet]:
        job.connection.close()


async def test_a_connection_that_nobody_follows_holds_no_long_line() -> None:
    room = OutputRoom(SHARE_BYTES)
    job = Job("stray", room, SAID)
    job.connection.open()
    async with asyncio.timeout(60):
        while job.read < SAID // 10_000:
            assert room.taken_bytes == 0
            await asyncio.sleep(0)
    job.connection.close()
    assert not job.connection.view.problem
