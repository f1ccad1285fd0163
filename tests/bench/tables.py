"""Measurements as tables, for the terminal and as JSON. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


SHOWN: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "wall_s": ("all done: p50", milliseconds),
    "per_second": ("calls/s", "{:.2f}".format),
}
"""Figures that rows may have besides percentiles: heading and format."""


@dataclass(frozen=True)
class Row:
    """One contender, or one phase."""

    what: str
    all_s: Sequence[float]
    """Seconds of each call."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """By their keys in `SHOWN`."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """By heading: a median of codeexec, divided by this row's."""

    @property
    def p50(self) -> float:
        return statistics.median(self.all_s)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.all_s, n=20, method="inclusive")[-1]

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.all_s, n=100, method="inclusive")[-1]

    @property
    def cells(self) -> list[str]:
        """The row's cells as text."""
        return [
            *map(milliseconds, (self.p50, self.p95, self.p99)),
            *(SHOWN[key][1](value) for key, value in self.figures.items()),
            *(f"{ratio:.2f}" for ratio in self.ratios.values()),
        ]

    def dump(self) -> dict[str, Any]:
        percentiles = {"p50_s": self.p50, "p95_s": self.p95, "p99_s": self.p99}
        return {"what": self.what, **percentiles, **self.figures, "ratios": self.ratios, "all_s": list(self.all_s)}

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> "Row":
        figures = {key: raw[key] for key in SHOWN if key in raw}
        return cls(raw["what"], raw["all_s"], figures, raw["ratios"])


@dataclass(frozen=True)
class Table:
    """Rows with the same columns."""

    kind: str
    """The table's kind, for the page: `calls`, `phases`, `first`, `tti`, `burst`, `burst100`, `sustained`, `resets`,
    `output`, `lines`, `density`."""
    title: str
    rows: Sequence[Row]

    @property
    def headings(self) -> list[str]:
        first = self.rows[0]
        return ["p50", "p95", "p99", *(SHOWN[key][0] for key in first.figures), *first.ratios]

    def text(self) -> str:
        lines = [(self.title, self.headings), *((row.what, row.cells) for row in self.rows)]
        widths = [max(10, len(heading) + 2) for heading in self.headings]
        return "\n".join(
            f"{first:<56}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            for first, cells in lines
        )

    def dump(self) -> dict[str, Any]:
        return {"kind": self.kind, "title": self.title, "results": [row.dump() for row in self.rows]}

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> "Table":
        return cls(raw["kind"], raw["title"], [Row.load(one) for one in raw["results"]])


def table(
    kind: str,
    title: str,
    times: Mapping[str, Sequence[float]],
    ratios: Mapping[str, str] | None = None,
    figures: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """A table of measurements.

    Args:
        kind: see `Table`.
        title: heading of the first column.
        times: seconds of each call, by row.
        ratios: by column heading, the row whose median is divided by each row's.
        figures: further figures of each row, by key in `SHOWN`.
    """
    medians = {name: statistics.median(values) for name, values in times.items()}
    return Table(
        kind,
        title,
        [
            Row(
                name,
                values,
                (figures or {}).get(name, {}),
                {heading: medians[one] / medians[name] for heading, one in (ratios or {}).items()},
            )
            for name, values in times.items()
        ],
    )
