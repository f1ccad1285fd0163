"""How fast a namespace with a queue may begin work: at once when it is alone, at a bounded pace beside others."""

import math

import pytest

from codeexec_operator.core.pacing import (
    FEW,
    HIGHEST_LIMIT,
    LOWEST_LIMIT,
    RECENT_SECONDS,
    WINDOW,
    Congestion,
    Pacing,
    rest_after_look,
)

QUICK, SLOW = 0.01, 0.1


def measure(congestion: Congestion, seconds: float, windows: int, now: float = 0.0) -> None:
    for _ in range(windows * WINDOW):
        congestion.measured(seconds, now)


def congested(pacing: Pacing) -> Pacing:
    measure(pacing.congestion, QUICK, 1)
    measure(pacing.congestion, SLOW, 10)
    assert pacing.congestion.limit == LOWEST_LIMIT
    return pacing


def begun_in(pacing: Pacing, seconds: float, took: float, waiting: int = 100) -> int:
    """How often a namespace that always has so much waiting begins something in this time, one after the other."""
    now, begun = 0.0, 0
    while (now := now + pacing.pause("busy", waiting, now)) < seconds:
        pacing.begin("busy", now)
        now += took
        pacing.end("busy", took, now)
        begun += 1
    return begun


def test_the_limit_falls_while_writes_are_slow_and_comes_back() -> None:
    congestion = Congestion()
    measure(congestion, QUICK, 2)
    assert congestion.limit == HIGHEST_LIMIT
    measure(congestion, SLOW, 1)
    assert congestion.limit == HIGHEST_LIMIT / 2
    measure(congestion, SLOW, 20)
    assert congestion.limit == LOWEST_LIMIT
    measure(congestion, QUICK, 30)
    assert congestion.limit == HIGHEST_LIMIT


def test_the_best_of_a_few_seconds_ago_is_not_forgotten() -> None:
    congestion = Congestion()
    measure(congestion, QUICK, 1)
    measure(congestion, SLOW, 1, now=5.0)
    assert congestion.limit == HIGHEST_LIMIT / 2


def test_twice_the_best_is_not_slow_yet() -> None:
    congestion = Congestion()
    measure(congestion, 1.0, 1)
    measure(congestion, 2.0, 1)
    assert congestion.limit == HIGHEST_LIMIT


def test_a_single_slow_write_changes_nothing() -> None:
    congestion = Congestion()
    measure(congestion, QUICK, 1)
    for _ in range(5 * WINDOW):
        for seconds in (SLOW, QUICK, QUICK):
            congestion.measured(seconds, 0.0)
    assert congestion.limit == HIGHEST_LIMIT


def test_an_api_server_that_has_become_slower_for_good_counts_as_quick_after_some_minutes() -> None:
    congestion = Congestion()
    measure(congestion, QUICK, 1)
    measure(congestion, 3 * QUICK, 10)
    assert congestion.limit == LOWEST_LIMIT
    for minute in range(20):
        measure(congestion, 3 * QUICK, 3, now=minute * 60.0)
    assert congestion.limit > 1


def test_a_namespace_that_is_alone_begins_all_at_once_however_slow_the_api_server_is() -> None:
    pacing = congested(Pacing())
    for _ in range(1000):
        assert pacing.pause("busy", 1000, 0.0) == 0
        pacing.begin("busy", 0.0)


def test_beside_another_a_namespace_with_a_queue_keeps_a_quarter_of_a_core_busy() -> None:
    pacing = congested(Pacing())
    pacing.begin("neighbour", 0.0)
    assert begun_in(pacing, 5.0, SLOW) == pytest.approx(5.0 / SLOW * LOWEST_LIMIT, abs=1)


def test_control_beside_another_it_goes_on_when_writes_are_quick() -> None:
    pacing = Pacing()
    measure(pacing.congestion, QUICK, 2)
    pacing.begin("neighbour", 0.0)
    assert begun_in(pacing, 5.0, SLOW) == pytest.approx(5.0 / SLOW, abs=1)


def test_what_it_has_under_way_is_bounded() -> None:
    pacing = congested(Pacing())
    pacing.begin("neighbour", 0.0)
    for _ in range(FEW):
        pacing.begin("busy", 0.0)
    assert pacing.pause("busy", 1, 0.0) == math.inf
    pacing.end("busy", SLOW, 0.0)
    assert pacing.pause("busy", FEW, 0.0) == math.inf, "three are still under way"
    for _ in range(FEW - 2):
        pacing.end("busy", SLOW, 0.0)
    assert pacing.pause("busy", FEW, 0.0) == math.inf, "one is"
    pacing.end("busy", SLOW, 0.0)
    assert 0 < pacing.pause("busy", FEW, 0.0) < math.inf, "none is, and it rests"


def test_a_namespace_with_little_new_work_is_never_held_up() -> None:
    pacing = congested(Pacing())
    pacing.begin("flood", 0.0)
    for call in range(100):
        assert pacing.pause("quiet", FEW - 1, call * SLOW) == 0
        pacing.begin("quiet", call * SLOW)
        pacing.end("quiet", SLOW, call * SLOW)


def test_a_neighbour_that_has_begun_nothing_of_late_counts_no_more() -> None:
    pacing = congested(Pacing())
    pacing.begin("neighbour", 0.0)
    pacing.end("neighbour", SLOW, 0.0)
    pacing.begin("busy", 0.0)
    pacing.begin("busy", RECENT_SECONDS)
    assert pacing.pause("busy", 100, RECENT_SECONDS) == math.inf
    assert pacing.pause("busy", 100, RECENT_SECONDS + 0.1) == 0


def test_long_work_is_followed_by_a_bounded_rest() -> None:
    pacing = congested(Pacing())
    pacing.begin("neighbour", 0.0)
    pacing.begin("busy", 0.0)
    pacing.end("busy", 60.0, 1.0)
    assert pacing.pause("busy", 100, 1.0) == 3.0


def test_what_was_begun_long_ago_is_forgotten() -> None:
    pacing = Pacing()
    for number in range(1000):
        pacing.begin(f"namespace-{number}", number * RECENT_SECONDS)
        pacing.end(f"namespace-{number}", number % 2 * 0.1, number * RECENT_SECONDS)
    assert len(pacing._begun) <= 3
    assert not pacing._under_way
    assert not pacing._rest


@pytest.mark.parametrize(("took", "rest"), [(0, 0), (0.25, 2.25), (4, 7)])
def test_looks_at_many_objects_take_a_tenth_of_the_time_unless_the_rest_is_bounded(took: float, rest: float) -> None:
    assert rest_after_look(took, 7) == rest
