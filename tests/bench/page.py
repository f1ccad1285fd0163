"""Writes the measurements of `bench.py` into a page: `python tests/bench/page.py docs/performance.md`.

Reads `.codeexec/bench.json`. Replaces the text between the page's markers and writes the figure beside the page. The
rest of the page is written by hand.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT
from plot import svg
from tables import Row, Table, milliseconds

PHASES = {
    "create_ack": "the API server accepts the request",
    "adoption": "the operator decides; a new pod also starts and is proven closed",
    "start": "the start is recorded, and the runner gets the code",
    "run": "the code runs",
    "propagate": "the end is recorded, and the caller gets it",
    "e2e": "total",
}


def measured(facts: Mapping[str, Any], figure: str) -> str:
    """The text between the markers.

    Args:
        facts: the content of `bench.json`.
        figure: the figure's file name, as the page links to it.
    """
    tables = [Table.load(raw) for raw in facts["tables"]]
    by_kind = {one.kind: one for one in tables}
    phases = [one for one in tables if one.kind == "phases"]
    return "\n\n".join(
        [
            f"Measured on {facts['machine']}; {facts['date']}. One call of `print(1)`, {facts['runs']} runs each after "
            f"{facts['not_counted']} warm-up runs. The last columns divide codeexec's p50 by the row's p50; a ratio "
            "above 1 means that codeexec is slower.",
            _markdown(by_kind["calls"]),
            f"![Times of all ways to make a call, and the phases of codeexec calls]({figure})",
            f"Time by phase, in the same run, {facts['runs']} calls each:",
            _phases(phases),
            f"Calls that start at the same time, {facts['burst_rounds']} rounds:",
            _markdown(by_kind["burst"]),
            "Callers that start the next call as soon as the previous one ends. Counting begins when the initially "
            "ready pods are used up:",
            _markdown(by_kind["sustained"]),
            f"10 MB of output, half on each stream, {facts['output_runs']} runs; then the delay of one printed line:",
            _markdown(by_kind["output"]),
            _markdown(by_kind["lines"]),
        ]
    )


def _markdown(table: Table) -> str:
    return as_markdown([table.title, *table.headings], [[_name(row), *row.cells] for row in table.rows])


def _name(row: Row) -> str:
    return f"**{row.what}**" if row.what.startswith("codeexec") else row.what


def _phases(ways: Sequence[Table]) -> str:
    """One row for each phase, with columns for each way."""
    headings = [f"{way.title.removeprefix('phases, ')}: {percentile}" for way in ways for percentile in ("p50", "p99")]
    rows = []
    for number, phase in enumerate(PHASES):
        figures = [milliseconds(seconds) for way in ways for seconds in (way.rows[number].p50, way.rows[number].p99)]
        rows.append([f"`{phase}`: {PHASES[phase]}", *figures])
    return as_markdown(["phase", *headings], rows)


def as_markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what stands between the page's markers of this name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, also, after = rest.partition(end)
    if not (found and also):
        sys.exit(f"{page} lacks the markers {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main(page: Path) -> None:
    facts = json.loads((ROOT / ".codeexec" / "bench.json").read_text())
    figure = page.with_suffix(".svg")
    tables = [Table.load(raw) for raw in facts["tables"]]
    [calls] = [one for one in tables if one.kind == "calls"]
    figure.write_text(svg(calls, [one for one in tables if one.kind == "phases"]))
    write_between(page, "bench", measured(facts, figure.name))
    print(f"wrote {page} and {figure}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
