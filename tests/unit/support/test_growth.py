"""`make soak` finds what grows, also when it runs for minutes only, and isn't misled by what comes and goes."""

import random
from dataclasses import replace

import pytest
from growth import BOUNDS, Sample, slopes

STEADY = Sample(0, memory_mib=150, descriptors=60, threads=8, tasks=90, objects=12, records=500, surplus=0)
CALLS_PER_SECOND = 0.5


def run(minutes: float, leak: str = "", per_call: float = 0, every: float = 10) -> list[Sample]:
    """Calls come and go, so that everything moves; something may be left behind by each call."""
    moving, samples = random.Random(1), []
    for number in range(int(minutes * 60 / every)):
        seconds = number * every
        calls = int(seconds * CALLS_PER_SECOND)
        moved = {name: getattr(STEADY, name) + moving.uniform(0, bound.moves) for name, bound in BOUNDS.items()}
        if leak:
            moved[leak] += calls * per_call
        samples.append(replace(STEADY, seconds=seconds, records=STEADY.records + calls, **moved))
    return samples


def growing(samples: list[Sample]) -> list[str]:
    return [slope.name for slope in slopes(samples) if slope.grows]


@pytest.mark.parametrize("minutes", [3, 120])
def test_what_comes_and_goes_with_the_load_does_not_grow_and_records_grow_by_design(minutes: float) -> None:
    samples = run(minutes)
    assert growing(samples) == []
    [records] = [slope for slope in slopes(samples) if slope.name == "records"]
    assert records.per_hour == pytest.approx(3600 * CALLS_PER_SECOND, rel=0.01)
    assert "by design" in str(records)


@pytest.mark.parametrize("leak", ["descriptors", "tasks", "threads", "objects", "surplus"])
@pytest.mark.parametrize(("minutes", "calls"), [(3, 1), (120, 40)])
def test_what_is_left_behind_by_calls_grows(leak: str, minutes: float, calls: int) -> None:
    """In three minutes by each call; in two hours by one of so many."""
    samples = run(minutes, leak, 1 / calls)
    assert growing(samples) == [leak]
    assert f"{leak:<12}" in (text := " ".join(map(str, slopes(samples))))
    assert "GROWS" in text


@pytest.mark.parametrize(("minutes", "kib"), [(3, 500), (120, 25)])
def test_memory_that_each_call_keeps_grows(minutes: float, kib: float) -> None:
    assert growing(run(minutes, "memory_mib", kib / 1024)) == ["memory_mib"]


def test_what_has_grown_at_first_only_is_steady() -> None:
    """Caches that are being filled."""
    filling = [replace(one, memory_mib=one.memory_mib + min(number, 360) / 4) for number, one in enumerate(run(120))]
    assert growing(filling) == []


def test_too_few_samples_have_no_slope() -> None:
    assert slopes(run(1)[:4]) == []
    assert slopes(run(1)[:5])
