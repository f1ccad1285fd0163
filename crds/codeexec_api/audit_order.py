"""Which lines of several chains came first, although the clocks of operators differ. Pure."""

import itertools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from codeexec_api.audit import AuditEvent
from codeexec_api.audit_findings import CLOCKS_APART, Chain, ReadLine


class _Age(NamedTuple):
    """The smaller one is the older chain."""

    begun: datetime
    """Not before the chain that it continues."""
    depth: int
    """How many chains it continues, one after the other."""
    said: datetime
    """When it began, by its operator's clock."""


class Order:
    """By which lines of all chains follow each other.

    A chain comes after the chain that it continues, unless their times differ by more than clocks do. Else the time
    decides.
    """

    def __init__(self, chains: Mapping[str, Chain]) -> None:
        self._begun = {name: chain[min(chain)].moment for name, chain in chains.items()}
        self._before = {name: before for name, chain in chains.items() if (before := _before(chain, chains))}
        self._ages: dict[str, _Age] = {}
        for name in sorted(self._begun, key=lambda one: self._begun[one], reverse=True):
            self._find_age(name)

    def of(self, line: ReadLine) -> tuple[_Age, str, int]:
        """Its place in the order of all lines."""
        chain = line.body["chain"]
        return self._ages[chain], chain, line.body["sequence"]

    def is_certain(self, one: ReadLine, other: ReadLine) -> bool:
        """True if these lines are in this order whatever the clocks of their operators say."""
        chain, second = one.body["chain"], other.body["chain"]
        if chain == second or abs(self._begun[chain] - self._begun[second]) >= CLOCKS_APART:
            return True
        return (chain in self._those_before(second)) != (second in self._those_before(chain))

    def _those_before(self, chain: str) -> Iterator[str]:
        """The chain before it, the one before that, and so on."""
        seen = {chain}
        while (before := self._before.get(chain)) and before not in seen:
            seen.add(before)
            yield (chain := before)

    def _find_age(self, name: str) -> None:
        line = itertools.chain([name], self._those_before(name))
        unknown = list(itertools.takewhile(lambda one: one not in self._ages, line))
        age = self._ages.get(self._before.get(unknown[-1], "")) if unknown else None
        for one in reversed(unknown):
            said = self._begun[one]
            begun, depth = (age.begun, age.depth) if age else (datetime.min.replace(tzinfo=UTC), 0)
            latest = said + CLOCKS_APART if begun - said > CLOCKS_APART else begun
            age = self._ages[one] = _Age(max(said, latest), depth + 1, said)


def _before(chain: Chain, chains: Mapping[str, Chain]) -> str:
    """The chain that this one continues; empty if it says none, or one that is not given.

    Only its first line about that counts: an operator that ends may hear of the next one, too.
    """
    lines = (chain[number] for number in sorted(chain))
    anchor = next((line.position("after") for line in lines if line.body["event"] == AuditEvent.CONTINUES), None)
    before = chains.get(anchor.chain) if anchor else None
    if anchor and before and before[min(before)].body["namespace"] == chain[min(chain)].body["namespace"]:
        return anchor.chain
    return ""
