"""Who waits, in order. The place of anybody is found without a look at all the others."""

import itertools
from bisect import bisect_left, insort_right
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """Ordered by a key, which is asked for when somebody gets in line. Of equal ones the first that came is first.

    Whoever was let in is before all others, until it leaves.
    """

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._tickets: dict[T, tuple[bool, Any, int, T]] = {}
        self._places: list[tuple[bool, Any, int, T]] = []
        """The first of each is False for whoever was let in. Numbers differ, so nobody is compared with another."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._places)

    def __contains__(self, claimant: object) -> bool:
        """True if it waits."""
        return claimant in self._tickets

    def __iter__(self) -> Iterator[T]:
        """In order. Nobody may get in line or leave meanwhile."""
        return (claimant for *_, claimant in self._places)

    @property
    def first(self) -> T | None:
        """Whose turn is next."""
        return next(iter(self), None)

    def join(self, claimant: T) -> bool:
        """Get in line; False if it waits already."""
        if claimant in self._tickets:
            return False
        ticket = self._tickets[claimant] = (True, self._key(claimant), next(self._numbers), claimant)
        insort_right(self._places, ticket)
        return True

    def let_in(self, claimant: T) -> None:
        """It is its turn: whoever gets in line from now on is behind it, whatever the key says."""
        before = self._tickets.get(claimant)
        if before and self.leave(claimant):
            ticket = self._tickets[claimant] = (False, *before[1:])
            insort_right(self._places, ticket)

    def leave(self, claimant: T) -> bool:
        """Wait no more; False if it didn't."""
        ticket = self._tickets.pop(claimant, None)
        if ticket is None:
            return False
        del self._places[bisect_left(self._places, ticket)]
        return True

    def place(self, claimant: T) -> int:
        """How many are before it; 0 if it doesn't wait."""
        ticket = self._tickets.get(claimant)
        return bisect_left(self._places, ticket) if ticket else 0
