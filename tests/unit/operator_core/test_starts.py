"""How many pods of each pool may be starting: fair between namespaces, at a cost that doesn't grow with the pools."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.scheduling import PLAIN, Scheduling
from codeexec_operator.core.starts import SHARED_SECONDS, TURN_SECONDS, Demand, Starts, fair_shares


class Counted:
    """Shares as `fair_shares` does, and counts how many namespaces it has looked at."""

    looked_at = 0

    def __call__(self, wanted: Mapping[str, int], limit: int, turn: int) -> Mapping[str, int]:
        self.looked_at += len(wanted)
        return fair_shares(wanted, limit, turn)


def nobody(uid: str) -> None:
    """Nobody waits, or it doesn't matter who."""


def a_demand(namespace: str, wanted: int, starting: int = 0, *, pool: str = "") -> Demand:
    return Demand(pool or namespace, namespace, wanted, starting)


class TestFairShares:
    def test_who_wants_little_gets_it_and_the_rest_is_shared(self) -> None:
        assert fair_shares({"a": 100, "b": 1, "c": 100}, 9, 0) == {"a": 4, "b": 1, "c": 4}

    def test_nobody_gets_more_than_they_want(self) -> None:
        assert fair_shares({"a": 2, "b": 1}, 10, 0) == {"a": 2, "b": 1}
        assert fair_shares({"a": 5, "b": 1, "c": 1}, 13, 0) == {"a": 5, "b": 1, "c": 1}
        assert fair_shares({}, 10, 1) == {}

    def test_what_cannot_be_shared_goes_round(self) -> None:
        wanted = dict.fromkeys("abcde", 1)
        without = {next(one for one, share in fair_shares(wanted, 4, turn).items() if not share) for turn in range(5)}
        assert without == set("abcde")
        assert fair_shares({"a": 1, "b": 1, "c": 1}, 1, 1) == {"a": 0, "b": 1, "c": 0}

    @given(
        wanted=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30)),
        limit=st.integers(0, 40),
        turn=st.integers(0, 9),
    )
    def test_all_is_given_out_and_nobody_gets_two_more_than_one_who_wants_more(
        self, wanted: dict[str, int], limit: int, turn: int
    ) -> None:
        shares = fair_shares(wanted, limit, turn)
        assert all(isinstance(share, int) for share in shares.values())
        assert sum(shares.values()) == min(limit, sum(wanted.values()))
        hungry = [shares[one] for one in wanted if shares[one] < wanted[one]]
        assert all(share <= least + 1 for least in hungry for share in shares.values())


class TestStarts:
    def test_who_alone_wants_pods_gets_all_starts_there_are(self) -> None:
        starts = Starts(nobody)
        assert starts.allowance(a_demand("a", 100), 8, 0) == 8
        assert starts.allowance(a_demand("a", 3), 8, 0) == 3

    def test_what_starts_already_counts_for_all_pools_of_the_namespace(self) -> None:
        starts = Starts(nobody)
        assert starts.allowance(a_demand("a", 100, 5, pool="first"), 8, 0) == 3
        assert starts.allowance(a_demand("a", 100, 0, pool="second"), 8, 0) == 3
        starts.began("second")
        assert starts.allowance(a_demand("a", 100, 5, pool="first"), 8, 0) == 2

    def test_pods_on_other_nodes_take_nothing_from_each_other(self) -> None:
        starts, woken = Starts(lambda uid: woken.append(uid)), []
        dedicated = Scheduling((("pool", "sandboxes"),))
        here, there = a_demand("a", 100, 8), replace(a_demand("b", 100), scheduling=dedicated)
        assert starts.allowance(here, 8, 0) == 0
        assert starts.allowance(there, 6, 0) == 6
        starts.began("b")
        assert starts.allowance(replace(there, starting=6), 6, 0) == 0
        starts.ended("b")
        assert woken == ["b"], "no pod on the nodes of the other has ended"
        assert starts.allowance(replace(there, scheduling=PLAIN), 8, 0) == 4, "its policy names another class"
        assert starts.allowance(here, 8, SHARED_SECONDS) == -4
        starts.forget("b")
        assert starts.allowance(here, 8, 2 * SHARED_SECONDS) == 0

    def test_a_pool_that_moves_to_other_nodes_wakes_those_that_wait_for_its_starts(self) -> None:
        starts, woken = Starts(lambda uid: woken.append(uid)), []
        here, moves = a_demand("a", 8), a_demand("b", 8)
        starts.allowance(moves, 8, 0)
        for _ in range(8):
            starts.began("b")
        starts.allowance(here, 8, 0)
        assert woken == [], "control: it waits"
        starts.allowance(replace(moves, scheduling=Scheduling((("pool", "sandboxes"),))), 8, 0)
        assert woken == ["a"]

    def test_who_comes_later_gets_its_even_share_at_once(self) -> None:
        starts = Starts(nobody)
        starts.allowance(a_demand("a", 100), 8, 0)
        starts.allowance(a_demand("a", 100, 8), 8, 0)
        assert starts.allowance(a_demand("b", 100), 8, 0) == 4
        assert starts.allowance(a_demand("a", 100, 8), 8, SHARED_SECONDS) == -4

    def test_what_others_do_not_want_is_shared_once_shares_are_compared_again(self) -> None:
        starts = Starts(nobody)
        starts.allowance(a_demand("a", 100), 9, 0)
        starts.allowance(a_demand("b", 100), 9, 0)
        starts.allowance(a_demand("c", 1), 9, 0)
        assert starts.allowance(a_demand("a", 100), 9, SHARED_SECONDS) == 4

    def test_what_cannot_be_shared_goes_round(self) -> None:
        starts, served = Starts(nobody), set()
        for turn in range(3):
            for name in "abc":
                if starts.allowance(a_demand(name, 1), 1, turn * TURN_SECONDS):
                    served.add(name)
        assert served == set("abc")

    def test_a_pool_that_is_gone_wants_nothing(self) -> None:
        starts = Starts(nobody)
        starts.allowance(a_demand("a", 100, 8), 8, 0)
        starts.forget("a")
        starts.forget("never-heard-of")
        assert starts.allowance(a_demand("b", 100), 8, 0) == 8
        starts.forget("b")
        assert starts.allowance(a_demand("a", 100), 8, 0) == 8, "nor does it start anything"

    def test_a_start_that_has_ended_is_for_the_pool_of_its_namespace_that_has_waited_longest(self) -> None:
        woken: list[str] = []
        starts = Starts(woken.append)
        for name, pool in (("b", "b"), ("a", "first"), ("a", "second"), ("a", "third")):
            starts.allowance(a_demand(name, 10, 8 if pool == "first" else 0, pool=pool), 8, 0)
        for _ in range(4):
            starts.ended("first")
        assert woken == ["first", "second", "third", "b"]

    def test_or_of_another_namespace_if_none_waits_there(self) -> None:
        woken: list[str] = []
        starts = Starts(woken.append)
        starts.allowance(a_demand("a", 8, 8), 8, 0)
        starts.allowance(a_demand("b", 10), 8, 0)
        starts.allowance(a_demand("c", 10), 8, 0)
        for _ in range(3):
            starts.ended("a")
        assert woken == ["b", "c"]

    def test_who_got_what_it_wants_does_not_wait(self) -> None:
        woken: list[str] = []
        starts = Starts(woken.append)
        starts.allowance(a_demand("a", 10), 8, 0)
        starts.allowance(a_demand("a", 8), 8, 0)
        starts.ended("a")
        assert woken == []

    def test_whose_turn_it_is_by_the_clock_is_told(self) -> None:
        woken: list[str] = []
        starts = Starts(woken.append)
        for name in "abc":
            starts.allowance(a_demand(name, 2), 1, 0)
        starts.began("a")
        woken.clear()
        starts.allowance(a_demand("a", 2, 1), 1, TURN_SECONDS)
        assert woken == ["b"]

    def test_who_waits_is_told_when_there_is_enough_for_all(self) -> None:
        woken: list[str] = []
        starts = Starts(woken.append)
        starts.allowance(a_demand("a", 10, 8), 8, 0)
        starts.allowance(a_demand("b", 6), 8, 0)
        starts.forget("a")
        starts.allowance(a_demand("c", 2), 8, 0)
        assert woken == ["b"]

    def test_what_is_just_enough_for_all_is_not_shared(self) -> None:
        starts = Starts(nobody)
        for name, wanted in (("a", 100), ("b", 100), ("a", 1)):
            starts.allowance(a_demand(name, wanted), 8, 0)
        assert starts.allowance(a_demand("b", 7), 8, 0) == 7
        starts.allowance(a_demand("a", 2), 8, 0)
        assert starts.allowance(a_demand("b", 7), 8, 0) == 4, "one more is too many: shares are the old ones, or even"

    def test_what_ends_frees_a_start_for_each_pool_of_its_namespace(self) -> None:
        starts = Starts(nobody)
        starts.allowance(a_demand("a", 100, 7, pool="first"), 8, 0)
        starts.began("first")
        for ended in (0, 1, 2):
            assert starts.allowance(a_demand("a", 100, pool="second"), 8, 0) == ended
            starts.ended("first")

    def test_no_more_pods_can_end_than_were_starting(self) -> None:
        starts = Starts(nobody)
        starts.allowance(a_demand("a", 100, 1, pool="first"), 8, 0)
        for _ in range(3):
            starts.ended("first")
            assert starts.allowance(a_demand("a", 100, pool="second"), 8, 0) == 8

    def test_a_pool_that_wants_one_more_waits_if_its_namespace_may_start_none(self) -> None:
        woken: list[str] = []
        starts = Starts(woken.append)
        starts.allowance(a_demand("a", 8, 8, pool="first"), 8, 0)
        assert starts.allowance(a_demand("a", 1, pool="second"), 8, 0) == 0
        starts.ended("first")
        assert woken == ["second"]

    def test_who_comes_later_gets_nothing_before_shares_are_compared_again_if_there_is_not_one_for_each(self) -> None:
        starts = Starts(nobody)
        assert starts.allowance(a_demand("a", 2), 1, 0) == 1
        assert starts.allowance(a_demand("b", 2), 1, 0) == 0

    def test_a_pool_that_wants_nothing_more_does_not_wait_though_its_namespace_has_too_much(self) -> None:
        woken: list[str] = []
        starts = Starts(woken.append)
        starts.allowance(a_demand("a", 8, 8, pool="first"), 8, 0)
        starts.allowance(a_demand("b", 8), 8, 0)
        starts.allowance(a_demand("a", 0, pool="second"), 8, SHARED_SECONDS)
        starts.ended("first")
        assert woken == ["b"]

    def test_an_event_costs_the_same_however_many_namespaces_there_are(self) -> None:
        for namespaces in (10, 1000):
            share = Counted()
            starts = Starts(nobody, share)
            names = [f"namespace-{number}" for number in range(namespaces)]
            for name in names:
                starts.allowance(a_demand(name, 10), 4, 0)
            share.looked_at = 0
            for name in names:
                starts.began(name)
                starts.ended(name)
                starts.allowance(a_demand(name, 10), 4, SHARED_SECONDS * 0.9)
            assert share.looked_at == 0, "all namespaces are compared by the clock, not for an event"
            starts.allowance(a_demand(names[0], 10), 4, SHARED_SECONDS)
            assert share.looked_at == namespaces, "control: then they are, once"

    @given(
        st.lists(
            st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.integers(0, 9), st.integers(0, 9)), max_size=30
        ),
        st.integers(1, 12),
    )
    def test_shares_that_are_new_are_the_fair_ones(self, told: list[tuple[str, str, int, int]], limit: int) -> None:
        starts, known, now = Starts(nobody), dict[str, Demand](), 0.0
        for namespace, pool, wanted, starting in told:
            now += SHARED_SECONDS
            uid = namespace + pool
            known[uid] = demand = Demand(uid, namespace, max(wanted, starting), starting)
            allowed = starts.allowance(demand, limit, now)
            of = {name: [one for one in known.values() if one.namespace == name] for name in "abcd"}
            sums = {name: sum(one.wanted for one in here) for name, here in of.items()}
            wants = {name: count for name, count in sums.items() if count}
            fair = fair_shares(wants, limit, int(now / TURN_SECONDS)).get(namespace, 0)
            least = min(sums[namespace], limit // len(wants)) if wants else 0
            assert allowed == max(fair, least) - sum(one.starting for one in of[namespace])
