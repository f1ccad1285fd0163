"""What is timed of something that is made anew for each run, and in which order."""

import asyncio

import pytest
from measuring import Contender, Fresh, each_its_own, in_turn, one_after_the_other


class Played:
    """Notes what is done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def fresh(self, name: str) -> Fresh:
        async def begin() -> Contender:
            self.done.append(f"{name} begins")

            async def end() -> None:
                self.done.append(f"{name} ends")

            return end

        async def before() -> None:
            self.done.append(f"before {name}")

        return Fresh(begin, before)


async def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    played = Played()
    times = await in_turn({"a": played.fresh("a"), "b": played.fresh("b")}, 1)
    round_ = [f"{one} {what}" if what != "before" else f"before {one}" for one in "ab" for what in WHAT]
    assert played.done == 2 * round_
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 1, "b": 1}


async def test_one_after_the_other_each_is_ended_before_the_next_begins() -> None:
    played = Played()
    times = await one_after_the_other({"a": played.fresh("a"), "b": played.fresh("b")}, 2)
    assert played.done[:6] == 2 * ["before a", "a begins", "a ends"]
    assert played.done[6:] == 2 * ["before b", "b begins", "b ends"]
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 2, "b": 2}


WHAT = ("before", "begins", "ends")


# --- callers at the same time ---


class Peers:
    """So many, of which each notices calls at the same time."""

    def __init__(self, count: int) -> None:
        self.busy = [0] * count
        self.most = [0] * count
        self.calls = [self._call(number) for number in range(count)]

    def _call(self, number: int) -> Contender:
        async def call() -> None:
            self.busy[number] += 1
            self.most[number] = max(self.most[number], self.busy[number])
            for _ in range(1 + number):
                await asyncio.sleep(0)
            self.busy[number] -= 1

        return call


async def in_loops(call: Contender, callers: int) -> None:
    async def caller() -> None:
        for _ in range(5):
            await call()

    await asyncio.gather(*(caller() for _ in range(callers)))


@pytest.mark.parametrize("callers", [1, 4, 8])
async def test_each_caller_has_its_own_and_few_callers_use_few(callers: int) -> None:
    peers = Peers(8)
    await in_loops(each_its_own(peers.calls), callers)
    assert sorted(peers.most) == [0] * (8 - callers) + [1] * callers


async def test_the_control_what_all_share_has_several_calls_at_the_same_time() -> None:
    peers = Peers(1)
    await in_loops(peers.calls[0], 4)
    assert peers.most == [4]


async def test_a_call_that_fails_gives_its_own_back() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    call = each_its_own([fails])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await call()
