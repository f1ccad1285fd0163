"""How many requests are held in memory. Those that come beyond that wait as little more than a name, in order. Pure.

A request is held from when it was read until it is over. What is `PENDING` has bounds of its own: nothing was decided
about it, so it can wait without anybody noticing. What is further on stays: it may have a pod, or run.
"""

import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from codeexec_api import Phase
from codeexec_api.names import EXECUTION_PLURAL
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.core.line import Line

_MIB: Final = 1024 * 1024
_EACH: Final = 32 * 1024
"""Bytes of memory that the worker of the smallest request takes, about."""
_PARSED: Final = 1.2
"""Times as many bytes as a request has as JSON in memory, it takes when it was read."""


@dataclass(frozen=True)
class Bounds:
    """For the requests of a namespace that are held, unless it says otherwise."""

    pending: int = 500
    """Requests that are `Pending`."""
    pending_bytes: int = 32 * _MIB
    """Of these."""
    bytes: int = 64 * _MIB
    """Of all executions that aren't over."""
    total_bytes: int = 192 * _MIB
    """The same, of all namespaces together."""
    free_bytes: int = _MIB
    """Of each namespace, whatever all the others hold."""
    reads: int = 4
    """Requests that are read again at the same time, because it is their turn."""
    spare: int = 8
    """More that are `Pending` and cancelled: their end makes room."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What is known of a request that waits. `weight` is how many bytes it takes when it is held."""

    plural: str
    namespace: str
    name: str
    uid: str
    created: str
    weight: int
    code: int = 0
    """How many of these are sealed code, which is let go of once it was verified."""
    cancelled: bool = False
    payload: str = ""
    """Name of its payload, which nobody may delete."""
    key: str = ""
    """Name of the key that its payload is sealed with. The same."""

    @classmethod
    def of(cls, plural: str, raw: Mapping[str, Any]) -> "Ticket":
        """From an object of the API server."""
        meta, spec = raw["metadata"], raw.get("spec") or {}
        sealed, ref = spec.get("sealedPayload") or {}, spec.get("payloadRef") or {}
        payload = ref.get("name", "")
        return cls(
            plural=plural,
            namespace=sys.intern(meta["namespace"]),
            name=meta["name"],
            uid=meta["uid"],
            created=meta.get("creationTimestamp") or "",
            weight=_EACH + int(_PARSED * _size_of(spec)),
            code=len(sealed.get("data") or ""),
            cancelled=bool(spec.get("cancelled")),
            payload=meta["name"] if payload == meta["name"] else payload,
            key=sys.intern(sealed.get("keyName") or ""),
        )

    @classmethod
    def least(cls, plural: str, meta: ObjectMeta) -> "Ticket":
        """For a request that is looked after already, so that its own size was never looked at."""
        return cls(plural, meta.namespace, meta.name, meta.uid, "", _EACH)


def is_pending(raw: Mapping[str, Any]) -> bool:
    """True if nothing was decided about a request yet."""
    return (raw.get("status") or {}).get("phase") in (None, Phase.PENDING.value)


def _size_of(value: Any) -> int:
    """Bytes in memory. The schema says how deep a request is nested, so this ends."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(_size_of(key) + _size_of(each) for key, each in value.items())
    return size + sum(map(_size_of, value)) if isinstance(value, list) else size


def _order(ticket: Ticket) -> tuple[bool, str]:
    return not ticket.cancelled, ticket.created


@dataclass
class _Share:
    """What one namespace has."""

    held: int = 0
    pending: int = 0
    pending_bytes: int = 0
    bytes: int = 0
    reading: dict[str, Ticket] = field(default_factory=dict)
    line: Line[Ticket] = field(default_factory=lambda: Line(_order))

    @property
    def empty(self) -> bool:
        return not (self.held or self.reading or self.line)


class Intake:
    """Says which requests are held. `take` gives those to be read, and `was_read` says that a read has ended."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self._bounds: Final = bounds
        self._shares: Final[dict[str, _Share]] = {}
        self._held: Final[dict[str, tuple[Ticket, bool]]] = {}
        """By UID, with whether it is pending."""
        self._waiting: Final[dict[str, Ticket]] = {}
        """By UID."""
        self._reading: Final[dict[str, Ticket]] = {}
        """Those whose turn it is, by UID. They are held already, and nobody looks after them yet."""
        self._turns: Final[OrderedDict[str, None]] = OrderedDict()
        """Namespaces in which some wait and may fit, in the order of the next turns."""
        self._bytes = 0
        self._full = False
        """True if one that would fit in its namespace waits for what all share: nobody is to overtake it."""

    def arrives(self, ticket: Ticket, *, pending: bool) -> bool:
        """True if a request is held from now on, or was already; else it waits."""
        if ticket.uid in self._held:
            return True
        before = self._waiting.get(ticket.uid)
        if before and pending and before.cancelled == ticket.cancelled:
            return False  # in its place in the line
        if before:
            self.leave(ticket.uid)
        share = self._shares.setdefault(ticket.namespace, _Share())
        if not pending or (not (before or share.line) and self._fits(ticket, share)):
            self._hold(ticket, share, pending=pending)
            return True
        self._waiting[ticket.uid] = ticket
        share.line.join(ticket)
        self._turns.setdefault(ticket.namespace)
        return False

    def take(self) -> Ticket | None:
        """The next one that is to be read, and is held from now on. Namespaces take turns."""
        self._full = False
        for namespace in list(self._turns):
            share = self._shares[namespace]
            ticket = share.line.first
            reads = len(share.reading) >= self._bounds.reads or (ticket and ticket.uid in share.reading)
            if ticket is None or reads or not self._fits_here(ticket, share):
                del self._turns[namespace]  # until something of it has changed
            elif self._fits(ticket, share):
                share.line.leave(ticket)
                del self._waiting[ticket.uid]
                self._hold(ticket, share, pending=True)
                share.reading[ticket.uid] = self._reading[ticket.uid] = ticket
                self._turns.move_to_end(namespace)
                return ticket
            else:
                self._full = True
        return None

    def was_read(self, ticket: Ticket) -> None:
        """So another one may be read."""
        share = self._shares[ticket.namespace]
        del share.reading[ticket.uid], self._reading[ticket.uid]
        self._tidy(ticket.namespace, share)

    def holds(self, uid: str) -> bool:
        """True if it is held."""
        return uid in self._held

    def decided(self, uid: str) -> None:
        """Something was decided about it, so its code was verified, too."""
        ticket, pending = self._held.get(uid, (None, False))
        if ticket and pending:
            self._let_go(ticket, pending=True)
            self._hold(ticket, self._shares.setdefault(ticket.namespace, _Share()), pending=False)

    def leave(self, uid: str) -> bool:
        """It is over, or gone. False if it neither was held nor has waited."""
        ticket, pending = self._held.pop(uid, (None, False))
        if ticket:
            self._let_go(ticket, pending=pending)
            return True
        if waited := self._waiting.pop(uid, None):
            share = self._shares[waited.namespace]
            share.line.leave(waited)
            self._tidy(waited.namespace, share)
        return waited is not None

    def waits(self, namespace: str) -> bool:
        """True if some of a namespace wait."""
        share = self._shares.get(namespace)
        return bool(share and share.line)

    def waiting(self, namespace: str) -> list[Ticket]:
        """Those of a namespace that wait, in order, behind those that are read."""
        share = self._shares.get(namespace)
        return [*share.reading.values(), *share.line] if share else []

    def all_waiting(self) -> list[Ticket]:
        """Those of all namespaces."""
        return [*self._reading.values(), *self._waiting.values()]

    def _fits(self, ticket: Ticket, share: _Share) -> bool:
        shared = not self._full and self._bytes + ticket.weight <= self._bounds.total_bytes
        return (shared or self._is_free(ticket, share)) and self._fits_here(ticket, share)

    def _is_free(self, ticket: Ticket, share: _Share) -> bool:
        """True if what all others hold doesn't matter."""
        return ticket.cancelled or share.bytes + ticket.weight <= self._bounds.free_bytes

    def _fits_here(self, ticket: Ticket, share: _Share) -> bool:
        """True if its own namespace has room for it."""
        bounds, weight = self._bounds, ticket.weight
        if share.pending >= bounds.pending + ticket.cancelled * bounds.spare:
            return False
        if share.pending and share.pending_bytes + weight > bounds.pending_bytes:
            return False
        return ticket.cancelled or share.bytes + weight <= bounds.bytes

    def _hold(self, ticket: Ticket, share: _Share, *, pending: bool) -> None:
        self._held[ticket.uid] = ticket, pending
        self._count(ticket, share, pending=pending, by=1)

    def _let_go(self, ticket: Ticket, *, pending: bool) -> None:
        share = self._shares[ticket.namespace]
        self._count(ticket, share, pending=pending, by=-1)
        self._tidy(ticket.namespace, share)

    def _count(self, ticket: Ticket, share: _Share, *, pending: bool, by: int) -> None:
        weight = ticket.weight if pending else ticket.weight - ticket.code
        if not pending and ticket.plural != EXECUTION_PLURAL:
            weight = 0  # a session may live for days, asleep or with a pod
        share.held += by
        share.bytes += by * weight
        self._bytes += by * weight
        if pending:
            share.pending += by
            share.pending_bytes += by * weight

    def _tidy(self, namespace: str, share: _Share) -> None:
        if share.empty:
            self._shares.pop(namespace, None)
            self._turns.pop(namespace, None)
        elif share.line:
            self._turns.setdefault(namespace)
