"""How fast a namespace with a queue of new work may begin it, while another namespace has work, too.

The limit follows the latency of the API server, as that of TCP Vegas follows the latency of a network: it falls by half
while requests take more than twice as long as they did in the best of times, and grows again when they don't. A limit
below 1 means that a namespace rests after each piece of work: with 0.25, three times as long as the work took. So what
is begun for it keeps at most a quarter of a core busy, however slow the API server is.
"""

import math
from collections import Counter, OrderedDict
from statistics import median
from typing import Final

LOWEST_LIMIT: Final = 0.25
HIGHEST_LIMIT: Final = 4.0
FEW: Final = 4
"""A namespace with less new work than that, waiting and under way, begins it at once."""
RECENT_SECONDS: Final = 60.0
"""A namespace that has begun something within this time is a neighbour that can be hurt."""
WINDOW: Final = 8
"""Requests whose median is looked at together."""

_SLOWER: Final = 2.0
_DOWN: Final = 0.5
_UP: Final = 1.25
_FORGET_SECONDS: Final = 300.0
"""After so long, twice the best latency counts as the best: the API server may have become another one."""
_LONGEST_WORK_SECONDS: Final = 1.0
"""What takes longer is waiting for something else than a processor."""


def rest_after_look(took: float, longest: float) -> float:
    """Seconds until many objects are looked at again: nine times as long as the last look took, or `longest` if less.

    So looks take a tenth of the time, unless one takes longer than a ninth of `longest`.
    """
    return min(9 * took, longest)


class Congestion:
    """How much work of one namespace may be under way, by what requests of the same kind took."""

    def __init__(self) -> None:
        self.limit = HIGHEST_LIMIT
        self._best, self._best_at = math.inf, 0.0
        self._window: Final[list[float]] = []

    def measured(self, seconds: float, now: float) -> None:
        """A request has taken so long."""
        self._window.append(seconds)
        if len(self._window) < WINDOW:
            return
        middle = median(self._window)
        self._window.clear()
        self._best = min(middle, self._best * (1 + (now - self._best_at) / _FORGET_SECONDS))
        self._best_at = now
        change = _DOWN if middle > _SLOWER * self._best else _UP
        self.limit = min(max(self.limit * change, LOWEST_LIMIT), HIGHEST_LIMIT)


class Pacing:
    """Which namespace may begin something now. Times are seconds of one clock."""

    def __init__(self) -> None:
        self.congestion: Final = Congestion()
        self._under_way: Final[Counter[str]] = Counter()
        self._begun: Final[OrderedDict[str, float]] = OrderedDict()
        """When a namespace has begun something; the last one is at the end."""
        self._rest: Final[dict[str, float]] = {}
        """Until when a namespace rests."""

    def pause(self, namespace: str, waiting: int, now: float) -> float:
        """Seconds until the next of those that wait may begin: infinite, until something of the namespace has ended."""
        if self._under_way[namespace] + waiting < FEW or not self._has_neighbour(namespace, now):
            return 0.0
        if self._under_way[namespace] >= max(1, int(self.congestion.limit)):
            return math.inf
        return max(0.0, self._rest.get(namespace, 0.0) - now)

    def begin(self, namespace: str, now: float) -> None:
        """Something of it begins."""
        self._under_way[namespace] += 1
        self._rest.pop(namespace, None)
        self._begun[namespace] = now
        self._begun.move_to_end(namespace)
        oldest, at = next(iter(self._begun.items()))
        if now - at > RECENT_SECONDS:
            del self._begun[oldest]

    def end(self, namespace: str, took: float, now: float) -> None:
        """Something of it has ended."""
        self._under_way[namespace] -= 1
        rest = min(took, _LONGEST_WORK_SECONDS) * (1 / self.congestion.limit - 1)
        if rest > 0:
            self._rest[namespace] = now + rest
        if not self._under_way[namespace]:
            del self._under_way[namespace]

    def _has_neighbour(self, namespace: str, now: float) -> bool:
        others = (at for name, at in reversed(self._begun.items()) if name != namespace)
        return now - next(others, -math.inf) <= RECENT_SECONDS
