"""Which times the given logs cover, for each namespace. Pure.

A log has the lines of all namespaces that its process serves. Several processes write at the same time: a release may
have several shards, and each shard serves other namespaces. So a shard's log says nothing of another shard's lines.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """Where lines of a chain are."""

    log: str
    namespace: str
    chain: str
    exported: bool
    """In a file of an export, which has lines of this namespace alone."""


class Span(NamedTuple):
    """Of lines: the times of the first and the last one, and the lowest number."""

    first: str
    last: str
    number: int

    def widened(self, other: "Span") -> "Span":
        """Of the lines of both."""
        return Span(min(self.first, other.first), max(self.last, other.last), min(self.number, other.number))


@dataclass
class _Group:
    """Logs that share namespaces, and so are logs of one shard."""

    namespaces: set[str] = field(default_factory=set)
    logs: dict[str, Span] = field(default_factory=dict)
    chains: dict[str, Span] = field(default_factory=dict)

    def joined(self, other: "_Group") -> "_Group":
        namespaces = self.namespaces | other.namespaces
        return _Group(namespaces, _joined(self.logs, other.logs), _joined(self.chains, other.chains))

    @property
    def is_cut_off(self) -> bool:
        """True if the beginning of a chain is not there."""
        return any(span.number > 1 for span in self.chains.values())


class Coverage:
    """Which times the given logs cover: a log that begins before a line and ends after it should have that line.

    Logs that share a namespace count together. A file of an export counts for its namespace alone.
    """

    def __init__(self, spans: Mapping[Place, Span]) -> None:
        self._exports: defaultdict[str, list[Span]] = defaultdict(list)
        self._groups: list[_Group] = []
        for place, span in spans.items():
            if place.exported:
                self._exports[place.namespace].append(span)
            else:
                self._add(_Group({place.namespace}, {place.log: span}, {place.chain: span}))

    def _add(self, group: _Group) -> None:
        apart = []
        for one in self._groups:
            if one.namespaces & group.namespaces or one.logs.keys() & group.logs.keys():
                group = group.joined(one)
            else:
                apart.append(one)
        self._groups = [*apart, group]

    def covers(self, namespace: str, time: str) -> bool:
        """True if a line of this namespace and time should be in the given logs.

        If no log knows the namespace, any shard may have served the namespace. A shard whose log lost its beginning may
        have lost all lines of the namespace.
        """
        exports = self._exports.get(namespace, [])
        told = [(one.is_cut_off, _cover([*one.logs.values(), *exports], time)) for one in self._groups_of(namespace)]
        return any(covered for _, covered in told) and all(covered for cut_off, covered in told if cut_off)

    def until(self, namespace: str) -> str:
        """Time of the newest line in the logs that should have the lines of this namespace; empty: there is none."""
        logs = [span for one in self._groups_of(namespace) for span in one.logs.values()]
        return max((span.last for span in [*logs, *self._exports.get(namespace, [])]), default="")

    def _groups_of(self, namespace: str) -> list[_Group]:
        """The shard that serves this namespace. All shards, if no log knows the namespace."""
        own = [one for one in self._groups if namespace in one.namespaces]
        return own or self._groups or [_Group()]


def _joined(one: Mapping[str, Span], other: Mapping[str, Span]) -> dict[str, Span]:
    return {**one, **{name: span.widened(one.get(name, span)) for name, span in other.items()}}


def _cover(spans: Sequence[Span], time: str) -> bool:
    """Whatever was written after the newest of these logs began should be in that log."""
    newest = max((span.first for span in spans), default="")
    return bool(newest) and (time >= newest or any(span.first <= time <= span.last for span in spans))
