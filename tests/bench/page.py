"""Puts what `bench.py` has measured into a page: `python tests/bench/page.py docs/performance.md`.

Reads `.codeexec/bench.json`. Replaces what stands between the markers of the page, and writes the figure beside it;
the rest of the page is written by hand.
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

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
PHASES = {
    "create_ack": "the API server has taken the request",
    "adoption": "the operator has decided; a new pod was started and shown to be closed",
    "start": "its start was recorded, and the code is with the runner",
    "run": "the code",
    "propagate": "its end was recorded, and the caller has it",
    "e2e": "all of it",
}


def measured(facts: Mapping[str, Any], figure: str) -> str:
    """What stands between the markers.

    Args:
        facts: what `bench.py` has written.
        figure: the figure's file, as the page refers to it.
    """
    tables = [Table.load(raw) for raw in facts["tables"]]
    by_kind = {one.kind: one for one in tables}
    phases = [one for one in tables if one.kind == "phases"]
    return "\n\n".join(
        [
            f"On {facts['machine']}; {facts['date']}. One call of `print(1)`, {facts['runs']} runs each after "
            f"{facts['not_counted']} not counted; a number in the last columns above 1 means that ours takes longer:",
            _markdown(by_kind["calls"]),
            f"![Each way to make a call, and the phases of ours]({figure})",
            f"Where the time goes, in the same run, {facts['runs']} calls each:",
            _phases(phases),
            f"Calls that begin at the same moment, {facts['burst_rounds']} times:",
            _markdown(by_kind["burst"]),
            "Callers that begin the next call when the last has ended, counted from when the pods that stood ready "
            "were used up:",
            _markdown(by_kind["sustained"]),
            f"10 MB of output, half of it on each stream, {facts['output_runs']} runs, and a printed line on its way:",
            _markdown(by_kind["output"]),
            _markdown(by_kind["lines"]),
        ]
    )


def _markdown(table: Table) -> str:
    return _lines([table.title, *table.headings], [[_name(row), *row.cells] for row in table.rows])


def _name(row: Row) -> str:
    return f"**{row.what}**" if row.what.startswith("codeexec") else row.what


def _phases(ways: Sequence[Table]) -> str:
    """A row for each phase, with the columns of each way."""
    headings = [f"{way.title.removeprefix('phases, ')}: {percentile}" for way in ways for percentile in ("p50", "p99")]
    rows = []
    for number, phase in enumerate(PHASES):
        figures = [milliseconds(seconds) for way in ways for seconds in (way.rows[number].p50, way.rows[number].p99)]
        rows.append([f"`{phase}`: {PHASES[phase]}", *figures])
    return _lines(["phase", *headings], rows)


def _lines(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def main(page: Path) -> None:
    facts = json.loads((ROOT / ".codeexec" / "bench.json").read_text())
    figure = page.with_suffix(".svg")
    before, found, rest = page.read_text().partition(BEGIN)
    _, also, after = rest.partition(END)
    if not (found and also):
        sys.exit(f"{page} lacks the markers {BEGIN} and {END}")
    tables = [Table.load(raw) for raw in facts["tables"]]
    [calls] = [one for one in tables if one.kind == "calls"]
    figure.write_text(svg(calls, [one for one in tables if one.kind == "phases"]))
    page.write_text(f"{before}{BEGIN}\n{measured(facts, figure.name)}\n{END}{after}")
    print(f"wrote {page} and {figure}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
