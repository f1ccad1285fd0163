"""How many pods of each pool may be starting at the same time. Pure.

What is known is kept up to date as pools change, so an event costs the same however many pools there are. Only while
more pods are wanted than may start are the shares of all namespaces compared, and then at most once in SHARED_SECONDS.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from codeexec_api.scheduling import PLAIN, Scheduling

STARTS_PER_NODE: Final = 6
"""Pods that start at the same time take the time from each other, and from the code that runs. With more of them at the
same time, more start in a second: a node waits for its runtime and its network between the steps of each."""
TURN_SECONDS: Final = 10
"""How long namespaces have what can't be shared evenly: about what a pod takes to start."""
SHARED_SECONDS: Final = 0.2
"""How long shares count before they are compared again."""


def fair_shares(wanted: Mapping[str, int], limit: int, turn: int) -> dict[str, int]:
    """How many of `limit` starts each namespace gets: all get the same, but none more than it wants.

    Another `turn` lets others have what can't be shared evenly.
    """
    shares = dict.fromkeys(wanted, 0)
    names = deque(sorted(wanted))
    names.rotate(-turn)
    while (hungry := [one for one in names if shares[one] < wanted[one]]) and limit > 0:
        each = max(1, limit // len(hungry))
        for one in hungry:
            more = min(each, wanted[one] - shares[one], limit)
            shares[one] += more
            limit -= more
    return shares


@dataclass
class Demand:
    """Of one pool."""

    uid: str
    namespace: str
    wanted: int
    """How many pods would be starting, if only this pool were there."""
    starting: int
    scheduling: Scheduling = PLAIN
    """On which nodes they start."""


Share = Callable[[Mapping[str, int], int, int], Mapping[str, int]]


class Starts:
    """Shares what the nodes can start between namespaces, and tells pools that wait when they may start more.

    Pods that start on dedicated nodes take nothing from those that start elsewhere.

    Args:
        wake: called with the UID of a pool that is to ask again.
        share: compares the namespaces.
    """

    def __init__(self, wake: Callable[[str], None], share: Share = fair_shares) -> None:
        self._make = partial(_Starts, wake, share)
        self._on: dict[Scheduling, _Starts] = {}
        self._of: dict[str, _Starts] = {}
        """By the UID of the pool."""

    def allowance(self, demand: Demand, limit: int, now: float) -> int:
        """How many pods this pool may start now, besides those that are starting.

        `limit` is for all pods of all namespaces that start on these nodes. `now` is by a clock that is never set.
        """
        here = self._on.get(demand.scheduling) or self._on.setdefault(demand.scheduling, self._make())
        if self._of.get(demand.uid) is not here:
            self.forget(demand.uid)
            self._of[demand.uid] = here
        return here.allowance(demand, limit, now)

    def began(self, uid: str) -> None:
        """A pod of this pool is starting."""
        if here := self._of.get(uid):
            here.began(uid)

    def ended(self, uid: str) -> None:
        """A pod of this pool isn't starting any more, so another one may."""
        if here := self._of.get(uid):
            here.ended(uid)

    def forget(self, uid: str) -> None:
        """This pool is gone."""
        if here := self._of.pop(uid, None):
            here.forget(uid)


class _Starts:
    """Those on the same nodes."""

    def __init__(self, wake: Callable[[str], None], share: Share) -> None:
        self._wake, self._share = wake, share
        self._demands: dict[str, Demand] = {}
        self._wanted: Counter[str] = Counter()
        self._starting: Counter[str] = Counter()
        self._all_wanted = 0
        self._waiting: dict[str, dict[str, Demand]] = {}
        """Pools that want more than they may start, by namespace; the first has waited longest."""
        self._shared: tuple[float, Mapping[str, int]] = (float("-inf"), {})
        """When namespaces were compared, and the share of each."""

    def allowance(self, demand: Demand, limit: int, now: float) -> int:
        self._know(demand)
        allowed = self._share_of(demand.namespace, limit, now) - self._starting[demand.namespace]
        if demand.wanted - demand.starting > max(0, allowed):
            self._waiting.setdefault(demand.namespace, {})[demand.uid] = demand
        else:
            self._wait_no_more(demand)
        if self._all_wanted <= limit:
            for one in list(self._waiting):
                self._wake_in(one)
        return allowed

    def began(self, uid: str) -> None:
        self._add(uid, 1)

    def ended(self, uid: str) -> None:
        demand = self._add(uid, -1)
        if self._waiting and demand:
            self._wake_in(demand.namespace if demand.namespace in self._waiting else next(iter(self._waiting)))

    def _wake_in(self, namespace: str) -> None:
        chosen = next(iter(self._waiting[namespace].values()))
        self._wait_no_more(chosen)
        self._wake(chosen.uid)

    def forget(self, uid: str) -> None:
        if demand := self._demands.get(uid):
            self._know(Demand(uid, demand.namespace, 0, 0))
            self._wait_no_more(demand)
            del self._demands[uid]
            for one in list(self._waiting) if demand.starting else ():
                self._wake_in(one)

    def _share_of(self, namespace: str, limit: int, now: float) -> int:
        wanted = self._wanted[namespace]
        if self._all_wanted <= limit:
            return wanted
        shared_at, shares = self._shared
        if now >= shared_at + SHARED_SECONDS:
            shares = self._share(self._wanted, limit, int(now / TURN_SECONDS))
            self._shared = (now, shares)
            others = [one for one in self._waiting if one != namespace]
            for one in [one for one in others if shares[one] > self._starting[one]]:
                self._wake_in(one)
        even = limit // len(self._wanted)  # no fair share is less
        return min(wanted, max(even, shares.get(namespace, 0)))

    def _know(self, demand: Demand) -> None:
        before = self._demands.get(demand.uid, Demand(demand.uid, demand.namespace, 0, 0))
        self._demands[demand.uid] = demand
        self._all_wanted += demand.wanted - before.wanted
        for counter, more in (
            (self._wanted, demand.wanted - before.wanted),
            (self._starting, demand.starting - before.starting),
        ):
            counter[demand.namespace] += more
            if not counter[demand.namespace]:
                del counter[demand.namespace]

    def _add(self, uid: str, more: int) -> Demand | None:
        if known := self._demands.get(uid):
            self._know(Demand(uid, known.namespace, known.wanted, max(0, known.starting + more)))
        return known

    def _wait_no_more(self, demand: Demand) -> None:
        here = self._waiting.get(demand.namespace, {})
        here.pop(demand.uid, None)
        if not here:
            self._waiting.pop(demand.namespace, None)
