"""How long the operator waits before it makes a failed request again."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.core.backoff import LONGEST_RETRY_AFTER_SECONDS, LONGEST_SECONDS, pause

CHANCES = st.floats(0, 1)
STATUSES = st.sampled_from([None, 403, 404, 409, 410, 429, 500, 503])


@pytest.mark.parametrize(
    ("failures", "chance", "status", "retry_after", "seconds"),
    [
        (1, 0, 503, None, 0.05),
        (1, 1, 503, None, 0.1),
        (1, 1, None, None, 0.1),
        (4, 1, 500, None, 0.8),
        (4, 0, 500, None, 0.4),
        (8, 1, 500, None, LONGEST_SECONDS),
        (10_000, 1, 500, None, LONGEST_SECONDS),
        (1, 1, 409, None, 0),
        (1, 1, 404, None, 0),
        (2, 1, 409, None, 0.2),
        (1, 1, 429, 4, 4.1),
        (1, 0, 503, 4, 4.05),
        (1, 1, 409, 1, 1.1),
        (1, 1, 429, 0, 0.1),
        (1, 1, 429, 86_400, LONGEST_RETRY_AFTER_SECONDS + 0.1),
    ],
)
def test_the_pause(failures: int, chance: float, status: int | None, retry_after: float | None, seconds: float) -> None:
    assert pause(failures, chance, status, retry_after) == pytest.approx(seconds)


@given(st.integers(2, 10**9), CHANCES, STATUSES)
def test_it_has_a_bound_and_half_of_it_is_certain(failures: int, chance: float, status: int | None) -> None:
    least = pause(failures, 0, status)
    assert least <= pause(failures, chance, status) <= 2 * least <= LONGEST_SECONDS
    assert least >= 0.1


@given(st.integers(1, 10**6), CHANCES, STATUSES, st.floats(0, 10**6))
def test_what_the_server_asks_for_is_kept(failures: int, chance: float, status: int | None, retry_after: float) -> None:
    waits = pause(failures, chance, status, retry_after)
    assert min(retry_after, LONGEST_RETRY_AFTER_SECONDS) <= waits <= LONGEST_RETRY_AFTER_SECONDS + LONGEST_SECONDS


@given(STATUSES, st.lists(CHANCES, min_size=60, max_size=60))
def test_the_number_of_tries_in_an_outage_has_a_bound(status: int | None, chances: list[float]) -> None:
    """Of 20 s: 10 tries, and not one for each answer."""
    ends = itertools.accumulate(pause(failures, chance, status) for failures, chance in enumerate(chances, 1))
    assert 1 + sum(end < 20 for end in ends) <= 10
