"""The benchmark's figures over time: what of a run is kept, wins and losses, and what got worse. Pure.

A run is kept as a file of docs/bench: date, commit, machine, versions, and each table without its single calls. Ratios
are compared and not times, because codeexec and its peers see the same machine: a ratio above 1 means that codeexec is
slower than its peer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tables import Table

WORSE: Final = 1.1
"""A ratio that is higher by more than this is a regression."""
OURS: Final = "codeexec"
_FACTS: Final = ("at", "date", "commit", "machine", "versions", "runs", "load_average", "density")


@dataclass(frozen=True)
class Comparison:
    """One of codeexec's medians, divided by a peer's."""

    what: str
    """Title of the table."""
    ours: str
    """The row of ours, as the column names it."""
    peer: str
    ratio: float

    @property
    def key(self) -> str:
        """The same in each run."""
        return f"{self.what}: {self.ours} / {self.peer}"


@dataclass(frozen=True)
class Regression:
    """A ratio that got worse."""

    key: str
    before: float
    now: float

    def __str__(self) -> str:
        """One sentence."""
        more = 100 * (self.now / self.before - 1)
        return f"{self.key}: {shown(self.now)}, before {shown(self.before)} ({more:.0f} % worse)"


def entry(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run, whose facts `bench.json` has."""
    tables = [{**one, "results": [_without_calls(row) for row in one["results"]]} for one in facts["tables"]]
    return {**{key: facts[key] for key in _FACTS if key in facts}, "tables": tables}


def _without_calls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "all_s"}


def comparisons(tables: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """Each ratio with a peer, of tables as `bench.json` or an entry has them."""
    return [
        Comparison(table["title"], heading.removesuffix(" / this"), row["what"], ratio)
        for table in tables
        for row in table["results"]
        if not row["what"].startswith(OURS)
        for heading, ratio in row["ratios"].items()
    ]


def regressions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Regression]:
    """What got worse between two entries, the worst first."""
    old = ratios(before)
    found = [Regression(key, old[key], new) for key, new in ratios(now).items() if key in old]
    return sorted((one for one in found if one.now > WORSE * one.before), key=lambda one: -one.now / one.before)


def ratios(run: Mapping[str, Any]) -> dict[str, float]:
    """Each ratio of an entry, by its key."""
    return {one.key: one.ratio for one in comparisons(run["tables"])}


def shown(ratio: float) -> str:
    """A ratio for people: small ones with a digit more, so that a change can be seen."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}"


def by_date(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """From the oldest on."""
    return sorted(entries, key=lambda one: str(one["at"]))


def wins_and_losses(tables: Sequence[Table]) -> tuple[list[Comparison], list[Comparison]]:
    """What codeexec is faster in than a peer, and what it is slower in, the most extreme first."""
    found = comparisons([one.dump() for one in tables])
    wins = sorted((one for one in found if one.ratio < 1), key=lambda one: one.ratio)
    return wins, sorted((one for one in found if one.ratio >= 1), key=lambda one: -one.ratio)


def rows_over_time(entries: Sequence[Mapping[str, Any]], last: int = 6) -> Iterator[list[str]]:
    """A table: the first row has the dates of the last entries, each other row a ratio at these dates."""
    recent = by_date(entries)[-last:]
    yield ["ratio", *(f"{one['date']} ({one['commit'][:7]})" for one in recent), "change"]
    found = [ratios(one) for one in recent]
    for key in dict.fromkeys(key for one in reversed(found) for key in one):
        values = [one.get(key) for one in found]
        cells = ["-" if value is None else shown(value) for value in values]
        known = [value for value in values[-2:] if value]
        change = f"{100 * (known[1] / known[0] - 1):+.0f} %" if len(values) > 1 and len(known) == 2 else "-"
        yield [key, *cells, change]


def said(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the last entry is worse in than the one before, as sentences."""
    *_, before, now = [None, *by_date(entries)]
    if before is None:
        return ["There is no earlier run to compare with."]
    lines = []
    if before["machine"] != now["machine"]:
        lines.append(f"The machine differs from that of {before['date']}: {before['machine']}.")
    worse = regressions(before, now)
    bound = f"{100 * (WORSE - 1):.0f} %"
    if not worse:
        return [*lines, f"No ratio got worse by more than {bound} since {before['date']}."]
    return [*lines, f"Worse by more than {bound} than on {before['date']}:", *(f"- {one}" for one in worse)]
