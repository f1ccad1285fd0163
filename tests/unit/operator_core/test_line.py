"""Who waits, in order."""

from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.core.line import Line


def test_who_is_first_is_told_by_the_key_and_then_by_who_came_first() -> None:
    line: Line[str] = Line(lambda name: name[0])
    assert [line.join(name) for name in ("b1", "b2", "a1", "b1")] == [True, True, True, False]
    assert (list(line), line.first, len(line)) == (["a1", "b1", "b2"], "a1", 3)
    assert [line.place(name) for name in ("a1", "b1", "b2", "nobody")] == [0, 1, 2, 0]
    assert ("b1" in line, "nobody" in line) == (True, False)


def test_who_has_left_comes_again_behind_its_equals() -> None:
    line: Line[str] = Line(len)
    for name in "ab":
        line.join(name)
    assert (line.leave("a"), line.leave("a"), line.join("a"), list(line)) == (True, False, True, ["b", "a"])


def test_nobody_is_first_where_nobody_waits() -> None:
    assert (Line[str](len).first, len(Line[str](len))) == (None, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_it_is_always_sorted_and_tells_each_place(steps: list[tuple[bool, int]]) -> None:
    line: Line[int] = Line(lambda number: number % 3)
    played: list[int] = []
    for joins, number in steps:
        if joins and number not in played:
            played.append(number)
        elif not joins and number in played:
            played.remove(number)
        assert (line.join if joins else line.leave)(number) in (True, False)
        in_order = sorted(played, key=lambda one: one % 3)
        assert list(line) == in_order
        assert [line.place(one) for one in in_order] == list(range(len(played)))


def test_whoever_was_let_in_stays_first_whoever_comes_and_comes_again_as_one_of_many() -> None:
    line: Line[str] = Line(lambda name: name)
    line.join("b")
    line.let_in("b")
    line.let_in("b")
    line.join("a")
    assert (list(line), line.place("b"), line.place("a"), len(line)) == (["b", "a"], 0, 1, 2)
    assert (line.leave("b"), line.first, line.join("b"), list(line)) == (True, "a", True, ["a", "b"])
