"""How long to wait before what has failed is tried again."""

from typing import Final

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0


def backoff(failures: int, chance: float) -> float:
    """Seconds: twice as many after each failure, up to a limit, and spread so that not all come back at once.

    Args:
        failures: how many there were in a row, at least 1.
        chance: at random, from 0 to 1; the wait is between half and all of what it could be.
    """
    longest: float = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
    return longest * (1 + chance) / 2
