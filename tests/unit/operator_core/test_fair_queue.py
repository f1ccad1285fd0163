"""A queue that namespaces share: one that fills it takes no place, and no turn, of another."""

from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.core.fair_queue import FairQueue


def drain(queue: FairQueue[str]) -> list[str]:
    return list(iter(queue.take, None))


def test_namespaces_take_turns_and_within_one_the_first_comes_first() -> None:
    queue = FairQueue[str](10)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert queue.put(item[0], item)
    assert drain(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_full_queue_drops_the_newest_of_the_namespace_that_has_the_most() -> None:
    queue = FairQueue[str](4)
    assert [queue.put("a", f"a{one}") for one in range(6)] == [True] * 4 + [False] * 2
    assert not queue.put("b", "b0")
    assert not queue.put("b", "b1")
    assert not queue.put("b", "b2"), "two for each is fair"
    assert drain(queue) == ["a0", "b0", "a1", "b1"]


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 9))
def test_no_namespace_gets_less_than_its_share(names: list[str], most: int) -> None:
    queue = FairQueue[str](most)
    for name in names:
        queue.put(name, name)
    kept = drain(queue)
    assert len(kept) == min(len(names), most)
    share = most // 3
    assert all(kept.count(one) >= min(names.count(one), share) for one in "abc")
