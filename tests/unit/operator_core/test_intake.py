"""Which requests are held, and in which order those that wait are read."""

import random
import sys
from dataclasses import replace
from typing import Any

import pytest

from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_operator.core.intake import Bounds, Intake, Ticket, is_pending

BOUNDS = Bounds(pending=3, pending_bytes=100, bytes=200, total_bytes=300, free_bytes=20, reads=2, spare=1)


def a_ticket(name: str, namespace: str = "box", weight: int = 10, **more: Any) -> Ticket:
    facts = {"created": "2026-01-01T00:00:00Z", "plural": EXECUTION_PLURAL} | more
    return Ticket(namespace=namespace, name=name, uid=f"{namespace}/{name}", weight=weight, **facts)


def arrive(intake: Intake, *tickets: Ticket) -> list[bool]:
    return [intake.arrives(ticket, pending=True) for ticket in tickets]


def taken(intake: Intake) -> list[str]:
    """Names of all that are read now, whose reads have ended."""
    names = []
    while ticket := intake.take():
        names.append(ticket.name)
        intake.was_read(ticket)
    return names


def test_so_many_are_held_and_the_others_wait_for_their_turn() -> None:
    intake = Intake(BOUNDS)
    assert arrive(intake, *(a_ticket(str(number)) for number in range(5))) == [True, True, True, False, False]
    assert intake.take() is None
    assert intake.waits("box")
    assert arrive(intake, a_ticket("0")) == [True], "it is held already"
    intake.leave("box/1")
    assert taken(intake) == ["3"]
    intake.decided("box/0")
    assert taken(intake) == ["4"]
    assert not intake.waits("box")


def test_what_was_decided_twice_makes_room_once() -> None:
    intake = Intake(BOUNDS)
    arrive(intake, *(a_ticket(str(number)) for number in range(5)))
    intake.decided("box/0")
    intake.decided("box/0")
    assert taken(intake) == ["3"]


def test_a_session_that_was_decided_weighs_nothing_and_is_held_until_it_leaves() -> None:
    intake = Intake(BOUNDS)
    session, execution = a_ticket("session", plural=SESSION_PLURAL), a_ticket("execution")
    assert arrive(intake, session, execution) == [True, True]
    intake.decided(session.uid)
    assert intake.leave(execution.uid)
    assert intake.holds(session.uid)
    assert intake.leave(session.uid)
    assert not intake.leave(session.uid)
    assert not intake._shares


def test_the_oldest_is_next_and_what_is_cancelled_before_it() -> None:
    intake = Intake(replace(BOUNDS, spare=0))
    arrive(intake, *(a_ticket(f"held-{number}") for number in range(3)))
    late, early = (
        a_ticket(name, created=f"2026-01-01T00:00:0{second}Z") for name, second in (("late", 2), ("early", 1))
    )
    cancelled = a_ticket("cancelled", created="2026-01-01T00:00:09Z")
    arrive(intake, late, early, cancelled, replace(cancelled, cancelled=True))
    assert [ticket.name for ticket in intake.waiting("box")] == ["cancelled", "early", "late"]
    for number in range(3):
        intake.leave(f"box/held-{number}")
    assert taken(intake) == ["cancelled", "early", "late"]


def test_nobody_overtakes_who_waits() -> None:
    """The first is large, and a small one would fit; nor does it get in when it is heard of again."""
    intake = Intake(BOUNDS)
    large, small = a_ticket("large", weight=95), a_ticket("small", weight=5)
    assert arrive(intake, a_ticket("held"), large, small, small) == [True, False, False, False]
    intake.leave("box/held")
    assert taken(intake) == ["large", "small"]


def test_another_namespace_overtakes_nobody_who_waits_for_what_all_share() -> None:
    """Else one that always has more would take each byte that gets free."""
    intake = Intake(BOUNDS)
    for box in ("one", "two", "three"):
        intake.arrives(a_ticket("held", box, 95), pending=False)
    large, next_of_two, small = a_ticket("large", "one", 60), a_ticket("next", "two", 15), a_ticket("small", "new", 15)
    assert arrive(intake, large) == [False]
    assert intake.take() is None
    intake.leave("three/held")
    intake.arrives(a_ticket("held", "three", 60), pending=False)
    assert intake.take() is None, "35 bytes are free"
    assert arrive(intake, next_of_two, small) == [False, True], "what is free for each namespace is no one else's"
    intake.leave("three/held")
    assert taken(intake) == ["large", "next"]


def test_what_is_cancelled_has_room_beside_those_that_are_held() -> None:
    """Even if these are never decided: their bytes are all in use."""
    intake = Intake(BOUNDS)
    for number in range(2):
        intake.arrives(a_ticket(str(number), weight=100), pending=False)
    ticket = a_ticket("waits")
    assert arrive(intake, ticket) == [False]
    assert taken(intake) == []
    arrive(intake, replace(ticket, cancelled=True))
    assert taken(intake) == ["waits"]


def test_cancelled_requests_have_a_bound_too() -> None:
    intake = Intake(BOUNDS)
    tickets = [a_ticket(str(number), cancelled=True) for number in range(20)]
    assert sum(arrive(intake, *tickets)) == BOUNDS.pending + BOUNDS.spare


def test_bytes_are_bounded_and_a_namespace_that_holds_little_always_gets_on() -> None:
    intake = Intake(BOUNDS)
    for name in "abc":
        both = a_ticket(f"{name}1", name, 90), a_ticket(f"{name}2", name, 90)
        assert arrive(intake, *both) == [True, False], "bytes of what is new"
    assert arrive(intake, a_ticket("d1", "d", 90)) == [False], "bytes of all"
    assert arrive(intake, a_ticket("e1", "e", 10), a_ticket("e2", "e", 10)) == [True, True]
    assert arrive(intake, a_ticket("f1", "f", 15), a_ticket("f2", "f", 80)) == [True, False], (
        "control: no more than that"
    )
    for name in "ab":
        assert taken(intake) == []
        intake.leave(f"{name}/{name}1")
    assert taken(intake) == ["d1", "f2"], "d1 did not fit before, and f2, which did, has not overtaken it"
    intake.leave("c/c1")
    assert taken(intake) == ["a2"]


def test_bytes_of_all_that_is_new_count() -> None:
    intake = Intake(BOUNDS)
    tickets = a_ticket("1", weight=40), a_ticket("2", weight=40), a_ticket("3", weight=30)
    assert arrive(intake, *tickets) == [True, True, False]


@pytest.mark.parametrize(("weight", "held"), [(20, True), (21, False)])
def test_what_each_namespace_has_free_may_be_used_up(weight: int, held: bool) -> None:
    intake = Intake(replace(BOUNDS, total_bytes=10))
    assert arrive(intake, a_ticket("1", weight=weight)) == [held]


def test_a_request_that_is_larger_than_all_bounds_is_held_when_it_is_alone() -> None:
    intake = Intake(replace(BOUNDS, bytes=1000))
    assert arrive(intake, a_ticket("large", weight=150), a_ticket("small")) == [True, False]


def test_code_counts_until_it_was_verified() -> None:
    intake = Intake(replace(BOUNDS, bytes=100))
    assert arrive(intake, a_ticket("1", weight=90, code=80), a_ticket("2", weight=90, code=80)) == [True, False]
    intake.decided("box/1")
    assert taken(intake) == ["2"]


def test_a_session_that_was_decided_counts_no_more() -> None:
    intake = Intake(replace(BOUNDS, bytes=100))
    for number in range(20):
        assert arrive(intake, a_ticket(str(number), weight=90, plural=SESSION_PLURAL)) == [True]
        intake.decided(f"box/{number}")


def test_what_is_further_on_is_held_whatever_there_is() -> None:
    intake = Intake(BOUNDS)
    assert all(intake.arrives(a_ticket(str(number), weight=90), pending=False) for number in range(20))
    waits = a_ticket("waits")
    assert arrive(intake, waits) == [False]
    assert intake.arrives(waits, pending=False)
    assert not intake.waits("box")


def test_so_many_are_read_at_the_same_time() -> None:
    intake = Intake(replace(BOUNDS, pending=5))
    arrive(intake, *(a_ticket(str(number)) for number in range(10)))
    for number in range(5):
        intake.leave(f"box/{number}")
    first, second = intake.take(), intake.take()
    assert first
    assert second
    assert intake.take() is None
    intake.was_read(first)
    assert intake.take()


def test_namespaces_take_turns() -> None:
    intake = Intake(replace(BOUNDS, total_bytes=60, free_bytes=0))
    for number in range(6):
        intake.arrives(a_ticket(str(number), "other"), pending=False)
    for name in ("a", "b"):
        arrive(intake, *(a_ticket(f"{name}{number}", name) for number in range(3)))
    for number in range(4):
        intake.leave(f"other/{number}")
    assert taken(intake) == ["a0", "b0", "a1", "b1"]


def test_nothing_is_left_of_what_is_gone() -> None:
    chance, intake, there = random.Random(3), Intake(BOUNDS), set[str]()
    for _ in range(5000):
        number, namespace = chance.randrange(20), chance.choice("abc")
        uid = f"{namespace}/{number}"
        match chance.randrange(4):
            case 0:
                cancelled = chance.random() < 0.1
                ticket = a_ticket(str(number), namespace, chance.randrange(1, 60), cancelled=cancelled)
                intake.arrives(ticket, pending=chance.random() < 0.9)
                there.add(uid)
            case 1:
                intake.decided(uid)
            case 2:
                assert intake.leave(uid) == (uid in there)
                there.discard(uid)
            case _:
                taken(intake)
        assert {*intake._held, *intake._waiting} == there
        for share in intake._shares.values():
            assert share.pending <= BOUNDS.pending + BOUNDS.spare
            assert share.pending_bytes <= max(BOUNDS.pending_bytes, 60)
    for uid in there:
        intake.leave(uid)
    assert (intake._shares, intake._turns, intake._reading, intake._bytes) == ({}, {}, {}, 0)


def test_a_ticket_says_what_a_request_takes_and_needs() -> None:
    meta = {"namespace": "box", "name": "run-1", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    sealed = {"keyName": "key-1", "data": "x" * 16_000}
    code = Ticket.of(EXECUTION_PLURAL, {"metadata": meta, "spec": {"sealedPayload": sealed, "cancelled": True}})
    assert (code.key, code.payload, code.cancelled, code.code) == ("key-1", "", True, 16_000)
    assert code.created == meta["creationTimestamp"]
    wide = {"source": {"agent": "x" * 16_000 + "\N{GRINNING FACE}"}, "payloadRef": {"name": "run-1"}}
    files = Ticket.of(EXECUTION_PLURAL, {"metadata": meta, "spec": wide})
    assert (files.key, files.payload, files.cancelled, files.code) == ("", "run-1", False, 0)
    assert files.weight > 64_000 > code.weight > 16_000, "each character takes four bytes if one of them does"


def test_a_request_weighs_what_all_of_its_parts_take() -> None:
    meta = {"namespace": "box", "name": "run-1", "uid": "u"}
    empty, block = Ticket.of(EXECUTION_PLURAL, {"metadata": meta}), {"code": "x" * 1000}
    spec = {"blocks": [block, block]}
    parts = [spec, "blocks", spec["blocks"], *2 * [block, "code", block["code"]]]
    added = sum(map(sys.getsizeof, parts)) - sys.getsizeof({})
    assert Ticket.of(EXECUTION_PLURAL, {"metadata": meta, "spec": spec}).weight - empty.weight == pytest.approx(
        1.2 * added, abs=2
    )


@pytest.mark.parametrize(
    ("status", "pending"), [(None, True), ({}, True), ({"phase": "Pending"}, True), ({"phase": "Starting"}, False)]
)
def test_nothing_was_decided_about_a_request_without_a_phase(status: Any, pending: bool) -> None:
    assert is_pending({"status": status}) is pending


def test_one_that_left_and_came_back_while_it_is_read_is_not_read_twice_at_a_time() -> None:
    """Its handler was cancelled while it waited for a turn, because the watch ended. The next list tells of it."""
    intake = Intake(replace(BOUNDS, pending=1))
    again = a_ticket("again")
    arrive(intake, a_ticket("0"), again, a_ticket("2", created="2026-01-02T00:00:00Z"))
    intake.leave("box/0")
    assert intake.take() is again
    intake.leave(again.uid)
    assert arrive(intake, replace(again)) == [False], "the other one waits, too"
    assert intake.take() is None
    intake.was_read(again)
    assert taken(intake) == ["again"]
    intake.leave(again.uid)
    assert taken(intake) == ["2"]
