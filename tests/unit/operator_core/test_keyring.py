"""Which keys there are: a new one each day, and an old one as long as it may be needed."""

import base64
import json
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import count

import pytest
from factories import NOW
from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.core.keyring import Keyring, SealingKey

DAY = timedelta(hours=24)
MOMENT = timedelta(microseconds=1)
NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def make() -> Callable[[], bytes]:
    return maker()


def maker() -> Callable[[], bytes]:
    """Keys that can be told apart."""
    numbers: Iterator[int] = count(1)
    return lambda: bytes([next(numbers)]) * 32


def names(ring: Keyring) -> list[str]:
    return [key.name for key in ring.keys]


def test_the_first_one(make: Callable[[], bytes]) -> None:
    assert Keyring().newest is None
    ring = Keyring().renewed(NOW, NOBODY, make)
    assert ring.newest == SealingKey("k20261121120000", b"\1" * 32, NOW)
    assert ring.find("k20261121120000") == ring.newest
    assert ring.find("k20261121120001") is None


def test_another_one_after_a_day(make: Callable[[], bytes]) -> None:
    first = Keyring().renewed(NOW, NOBODY, make)
    assert first.renewed(NOW + DAY - MOMENT, NOBODY, make) == first
    second = first.renewed(NOW + DAY, NOBODY, make)
    assert names(second) == ["k20261121120000", "k20261122120000"]
    assert second.newest
    assert second.newest.private == b"\2" * 32


def test_an_old_one_is_kept_for_a_day_after_it_was_followed(make: Callable[[], bytes]) -> None:
    """Not for a day after it was made: until it was followed, clients have sealed with it."""
    late = NOW + 10 * DAY
    ring = Keyring().renewed(NOW, NOBODY, make).renewed(late, NOBODY, make)
    assert names(ring.renewed(late + DAY - MOMENT, NOBODY, make)) == names(ring)
    assert names(ring.renewed(late + DAY, NOBODY, make)) == ["k20261201120000", "k20261202120000"]


def test_one_that_is_needed_is_kept_until_it_is_not(make: Callable[[], bytes]) -> None:
    ring = Keyring()
    for day in range(5):
        ring = ring.renewed(NOW + day * DAY, {"k20261121120000"}, make)
    assert names(ring) == ["k20261121120000", "k20261124120000", "k20261125120000"]
    assert names(ring.renewed(NOW + 4 * DAY, NOBODY, make)) == ["k20261124120000", "k20261125120000"]


def test_a_key_that_was_never_there_is_not_kept(make: Callable[[], bytes]) -> None:
    assert names(Keyring().renewed(NOW, {"k20000101000000"}, make)) == ["k20261121120000"]


def test_the_clock_goes_back(make: Callable[[], bytes]) -> None:
    ring = Keyring().renewed(NOW, NOBODY, make).renewed(NOW + DAY, NOBODY, make)
    assert ring.renewed(NOW - 9 * DAY, NOBODY, make) == ring


@given(hours=st.lists(st.integers(0, 60), max_size=20), needed=st.integers(0, 3))
def test_whatever_happens(hours: list[int], needed: int) -> None:
    """Never two alike, one to seal with that is not a day old, and what was the newest a day ago or is needed stays."""
    ring, now, make = Keyring(), NOW, maker()
    followed: dict[str, datetime] = {}
    for pause in hours:
        now += timedelta(hours=pause)
        kept = set(names(ring)[:needed])
        before = ring.newest
        ring = Keyring.load(ring.renewed(now, kept, make).dump())
        assert len({key.name for key in ring.keys}) == len({key.private for key in ring.keys}) == len(ring.keys)
        assert ring.newest
        assert now - ring.newest.created_at < DAY
        assert kept <= set(names(ring))
        if before and before != ring.newest:
            followed[before.name] = now
        assert {name for name, since in followed.items() if now - since < DAY} <= set(names(ring))


def test_it_is_stored_and_read_again(make: Callable[[], bytes]) -> None:
    ring = Keyring().renewed(NOW, NOBODY, make).renewed(NOW + DAY, NOBODY, make)
    assert Keyring.load(ring.dump()) == ring
    assert Keyring.load("") == Keyring.load(Keyring().dump()) == Keyring()


@pytest.mark.parametrize("written", [NOW.replace(tzinfo=None), NOW.astimezone(timezone(timedelta(hours=5)))])
def test_a_time_that_was_written_by_hand_can_be_compared(written) -> None:
    key = {"name": "k1", "key": base64.b64encode(b"\1" * 32).decode(), "createdAt": written.isoformat()}
    [loaded] = Keyring.load(json.dumps([key])).keys
    assert loaded.created_at.tzinfo is UTC


SECRET = base64.b64encode(b"PLANTED" * 4 + b"....").decode()
GOOD = {"name": "k1", "key": SECRET, "createdAt": NOW.isoformat()}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([GOOD])[:-1],
        json.dumps([GOOD])[10:],
        json.dumps(GOOD),
        json.dumps(SECRET),
        "null",
        "1",
        SECRET,
        json.dumps([GOOD | {"key": SECRET[:-3]}]),
        json.dumps([GOOD | {"key": f"{SECRET}!!!!"}]),
        json.dumps([GOOD | {"key": None}]),
        json.dumps([GOOD | {"createdAt": SECRET}]),
        json.dumps([{"name": "k1", "key": SECRET}]),
    ],
    ids=lambda text: text[:60],
)
def test_something_else_is_refused_and_not_told(text: str) -> None:
    with pytest.raises(ValueError, match="not the operator's sealing keys") as caught:
        Keyring.load(text)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET[:8] not in shown
    assert "PLANTED" not in shown


def test_no_key_is_shown() -> None:
    key = SealingKey("k1", b"PLANTED" * 4 + b"....", NOW)
    ring = Keyring((key,))
    shown = f"{key!r} {key} {ring!r} {ring} {[ring]}"
    assert "PLANTED" not in shown
    assert SECRET[:8] not in shown
