"""All executions together hold a bounded amount of output, nobody waits for ever, and who prints little never waits."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from codeexec_operator.adapters.output_room import FREE_BYTES, SHARE_BYTES, OutputRoom, Share

PIECE = 64 * 1024
FULL = 10 * PIECE
"""When an execution stores what it has by itself."""


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@dataclass
class Loud:
    """An execution whose output comes in pieces, and is stored when there is much of it, or when others need room."""

    room: OutputRoom
    namespace: str = "a"
    held_bytes: int = 0
    stored: list[int] = field(default_factory=list)
    can_shorten: bool = True
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.share = Share(self.room, self.namespace, self)

    async def shorten(self) -> bool:
        if self.can_shorten:
            await self._store()
        return self.can_shorten

    def run_in_background(self, job: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(job))

    async def say(self, size: int) -> None:
        await self.share.need(size)
        self.held_bytes += size
        if self.held_bytes >= FULL:
            await self._store()
        self.share.settle(0)

    async def _store(self) -> None:
        await asyncio.sleep(0)  # the API server answers
        self.stored.append(self.held_bytes)
        self.held_bytes = 0

    def begin(self, pieces: int) -> asyncio.Task[None]:
        async def run() -> None:
            for _ in range(pieces):
                await self.say(PIECE)
                await asyncio.sleep(0)
            self.share.close()

        return asyncio.create_task(run())


def a_room(shares: int) -> OutputRoom:
    return OutputRoom(shares * SHARE_BYTES)


async def test_many_loud_ones_together_hold_no_more_than_the_room_and_all_end() -> None:
    room, most = a_room(8), 0
    loud = [Loud(room, namespace=f"namespace-{number % 20}") for number in range(200)]
    running = {one.begin(25) for one in loud}
    async with asyncio.timeout(60):
        while running:
            _, running = await asyncio.wait(running, timeout=0)
            most = max(most, room.taken_bytes)
            held = [one.held_bytes for one in loud if one.held_bytes > FREE_BYTES]
            assert len(held) * SHARE_BYTES <= 8 * SHARE_BYTES, "who has no share holds little"
            await asyncio.sleep(0)
    assert most == 8 * SHARE_BYTES, "control: all the room was used"
    assert room.taken_bytes == 0
    assert sum(sum(one.stored) + one.held_bytes for one in loud) == 200 * 25 * PIECE


async def test_who_prints_little_goes_on_while_all_the_room_is_taken() -> None:
    room = a_room(2)
    stuck = [Loud(room, namespace=str(number), can_shorten=False) for number in range(2)]
    for one in stuck:
        await one.say(PIECE)
    waits = asyncio.create_task(Loud(room).say(PIECE))
    quiet = Loud(room)
    await asyncio.wait_for(quiet.say(FREE_BYTES), 60)
    await settle()
    assert (quiet.held_bytes, waits.done()) == (FREE_BYTES, False)
    stuck[0].share.close()
    await asyncio.wait_for(waits, 60)


async def test_who_sits_on_its_share_stores_what_it_has_when_another_one_waits() -> None:
    room = a_room(2)
    sits, other = Loud(room, namespace="a"), Loud(room, namespace="b")
    await sits.say(PIECE)
    await other.say(PIECE)
    await settle()
    assert sits.stored == [], "control: nobody waits"
    await asyncio.wait_for(Loud(room, namespace="c").say(PIECE), 60)
    assert (sits.stored, other.stored) == ([PIECE], [])


async def test_as_many_are_asked_as_wait() -> None:
    room = a_room(4)
    sitting = [Loud(room, namespace=str(number)) for number in range(4)]
    for one in sitting:
        await one.say(PIECE)
    late = [Loud(room, namespace=str(number)) for number in range(40)]
    await asyncio.wait_for(asyncio.gather(*(one.say(PIECE) for one in late)), 60)


async def test_one_that_can_not_store_is_not_asked_again_and_others_are() -> None:
    room = a_room(2)
    stuck, sits = Loud(room, namespace="a", can_shorten=False), Loud(room, namespace="b")
    await stuck.say(PIECE)
    await sits.say(PIECE)
    for _ in range(3):
        await asyncio.wait_for(Loud(room, namespace="c").say(PIECE), 60)
    assert (len(stuck.tasks), sits.stored) == (1, [PIECE])


async def test_a_line_that_is_not_complete_can_not_be_stored_and_keeps_its_share() -> None:
    room = a_room(2)
    halfway, sits = Loud(room, namespace="a"), Loud(room, namespace="b")
    await halfway.share.need(PIECE)
    halfway.share.settle(PIECE)
    await sits.say(PIECE)
    await asyncio.wait_for(Loud(room, namespace="c").say(PIECE), 60)
    assert (halfway.share.taken, len(halfway.tasks)) == (True, 1)
    halfway.share.settle(0)
    assert not halfway.share.taken


async def test_one_namespace_leaves_half_of_the_room_to_others() -> None:
    room = a_room(4)
    flood = [asyncio.create_task(Loud(room, namespace="flood", can_shorten=False).say(PIECE)) for _ in range(50)]
    await settle()
    assert room.taken_bytes == 2 * SHARE_BYTES
    other = Loud(room, namespace="other", can_shorten=False)
    await asyncio.wait_for(other.say(PIECE), 60)
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_a_namespace_whose_shares_are_wanted_by_itself_takes_none_from_others() -> None:
    room = a_room(4)
    other = Loud(room, namespace="other")
    await other.say(PIECE)
    flood = [Loud(room, namespace="flood") for _ in range(3)]
    await asyncio.wait_for(asyncio.gather(*(one.say(PIECE) for one in flood)), 60)
    assert [one.stored for one in flood] == [[PIECE], [], []]
    assert other.stored == []


async def test_a_namespace_that_comes_late_waits_for_one_share_of_each_namespace_and_not_for_its_whole_line() -> None:
    room, order = a_room(4), []
    holders = [Loud(room, namespace=name, can_shorten=False) for name in "aabb"]
    for one in holders:
        await one.say(PIECE)

    async def wait(namespace: str) -> None:
        one = Loud(room, namespace=namespace, can_shorten=False)
        await one.say(PIECE)
        order.append(namespace)
        await settle()
        one.share.close()

    waiting = []
    for namespace in ("flood", "flood", "flood", "flood", "late"):
        waiting.append(asyncio.create_task(wait(namespace)))
        await settle()
    holders[0].share.close()
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert order[:2] == ["flood", "late"]


@pytest.mark.parametrize("takes", ["its namespace's", "all of it"])
async def test_who_is_cancelled_while_it_waits_holds_nothing(takes: str) -> None:
    room = a_room(2)
    holders = [Loud(room, namespace=name, can_shorten=False) for name in ("a", "b")]
    for one in holders:
        await one.say(PIECE)
    waits = asyncio.create_task(Loud(room, namespace="a" if takes == "its namespace's" else "c").say(PIECE))
    await settle()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    for one in holders:
        one.share.close()
    both = [Loud(room, namespace=name) for name in ("a", "c")]
    await asyncio.wait_for(asyncio.gather(*(one.say(PIECE) for one in both)), 60)


async def test_who_has_ended_while_it_waited_holds_nothing() -> None:
    room = a_room(2)
    holders = [Loud(room, namespace=name, can_shorten=False) for name in ("a", "b")]
    for one in holders:
        await one.say(PIECE)
    late = Loud(room, namespace="c")
    waits = asyncio.create_task(late.share.need(PIECE))
    await settle()
    late.share.close()
    holders[0].share.close()
    await asyncio.wait_for(waits, 60)
    assert room.taken_bytes == SHARE_BYTES
