"""Which times the given logs cover, for each namespace. Pure.

A log has the lines of all namespaces that its process serves. Several processes write at the same time: a release may
have several shards, and each shard serves other namespaces. So a shard's log says nothing of another shard's lines.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

_Key = TypeVar("_Key")


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

    logs: list[Span] = field(default_factory=list)
    is_cut_off: bool = False
    """True if the beginning of a chain is not there."""


class Coverage:
    """Which times the given logs cover: a log that begins before a line and ends after it should have that line.

    Logs that share a namespace count together. A file of an export counts for its namespace alone.
    """

    def __init__(self, spans: Mapping[Place, Span]) -> None:
        exports: dict[tuple[str, str], Span] = {}
        logs: dict[str, Span] = {}
        chains: dict[str, Span] = {}
        places = [place for place in spans if not place.exported]
        for place, span in spans.items():
            if place.exported:
                widen(exports, (place.namespace, place.log), span)
            else:
                widen(logs, place.log, span)
                widen(chains, place.chain, span)
        self._exports: defaultdict[str, list[Span]] = defaultdict(list)
        for (namespace, _), span in exports.items():
            self._exports[namespace].append(span)
        first = _joined((place.namespace, place.log) for place in places)
        groups: defaultdict[str, _Group] = defaultdict(_Group)
        for log, span in logs.items():
            groups[first[log]].logs.append(span)
        for place in places:
            if chains[place.chain].number > 1:
                groups[first[place.log]].is_cut_off = True
        self._groups = tuple(groups.values())
        self._of = {place.namespace: groups[first[place.log]] for place in places}

    def covers(self, namespace: str, time: str) -> bool:
        """True if a line of this namespace and time should be in the given logs.

        If no log knows the namespace, any shard may have served the namespace. A shard whose log lost its beginning may
        have lost all lines of the namespace.
        """
        exports = self._exports.get(namespace, [])
        told = [(one.is_cut_off, _cover([*one.logs, *exports], time)) for one in self._groups_of(namespace)]
        return any(covered for _, covered in told) and all(covered for cut_off, covered in told if cut_off)

    def until(self, namespace: str) -> str:
        """Time of the newest line in the logs that should have the lines of this namespace; empty: there is none."""
        logs = [span for one in self._groups_of(namespace) for span in one.logs]
        return max((span.last for span in [*logs, *self._exports.get(namespace, [])]), default="")

    def _groups_of(self, namespace: str) -> Sequence[_Group]:
        """The shard that serves this namespace. All shards, if no log knows the namespace."""
        own = self._of.get(namespace)
        return (own,) if own else self._groups or (_Group(),)


def _joined(pairs: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """For each log the first one of its group, where logs of one namespace are of one group."""
    before: dict[str, str] = {}
    of_namespace: dict[str, str] = {}

    def first(log: str) -> str:
        while before[log] != log:
            before[log] = log = before[before[log]]
        return log

    for namespace, log in pairs:
        before.setdefault(log, log)
        before[first(log)] = first(of_namespace.setdefault(namespace, log))
    return {log: first(log) for log in before}


def widen(spans: dict[_Key, Span], key: _Key, span: Span) -> None:
    """Have the span of this key cover these lines, too."""
    spans[key] = span.widened(spans.get(key, span))


def _cover(spans: Sequence[Span], time: str) -> bool:
    """Whatever was written after the newest of these logs began should be in that log."""
    newest = max((span.first for span in spans), default="")
    return bool(newest) and (time >= newest or any(span.first <= time <= span.last for span in spans))
