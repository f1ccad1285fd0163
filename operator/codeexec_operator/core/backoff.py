"""How long to wait before a failed request is made again: exponential back-off with jitter, and Retry-After."""

from typing import Final

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 10.0
"""Half of the longest gap that an outage may leave behind it (20 s, docs/reliability.md)."""
LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
"""A server that asks for more is asked again after so long."""
_CONFLICTS: Final = (404, 409)
"""The object is gone or another: to look at it again is no repetition."""


def pause(failures: int, chance: float, status: int | None = None, retry_after: float | None = None) -> float:
    """Seconds until the next try.

    The pause doubles with each failure. Half of it is by chance ("equal jitter"), so that those who failed together
    don't come back together. The other half is certain, so the number of tries in a given time has a bound.

    Args:
        failures: how many there were in a row, 1 or more.
        chance: a random number from 0 to 1.
        status: what the API server answered; None if no answer came.
        retry_after: how many seconds it asked for, if it did. The pause comes on top.
    """
    if failures == 1 and status in _CONFLICTS and not retry_after:
        return 0.0
    longest: float = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(failures - 1, 32))
    return min(retry_after or 0.0, LONGEST_RETRY_AFTER_SECONDS) + longest / 2 * (1 + chance)
