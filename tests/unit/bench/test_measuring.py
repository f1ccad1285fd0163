"""What is timed of something that is made anew for each run, and in which order."""

from measuring import Contender, Fresh, in_turn, one_after_the_other


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
