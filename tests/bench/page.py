"""Writes the measurements of `bench.py` into a page: `python tests/bench/page.py docs/performance.md`.

Reads `.codeexec/bench.json`, and `.codeexec/burst.json` if `make bench-burst` has written it. Keeps the run in a file
of `bench/` beside the page. Replaces the text between the page's markers and writes the figures beside the page. The
rest of the page is written by hand.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT
from density import text
from history import by_date, entry, rows_over_time, said, wins_and_losses
from plot import history_svg, svg
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
            *_resets(by_kind),
            f"10 MB of output, half on each stream, {facts['output_runs']} runs; then the delay of one printed line:",
            _markdown(by_kind["output"]),
            _markdown(by_kind["lines"]),
            *_start(facts, by_kind),
            *_density(facts, by_kind),
            *_verdicts(tables),
        ]
    )


def _resets(by_kind: Mapping[str, Table]) -> list[str]:
    if "resets" not in by_kind:
        return []
    return [
        "Between two executions, the runner cleans a pod that is used again, and shows that the pod is clean. Each "
        "record has the time in `status.podReset.milliseconds`:",
        _markdown(by_kind["resets"]),
    ]


def _start(facts: Mapping[str, Any], by_kind: Mapping[str, Table]) -> list[str]:
    """What starts from nothing, if it was measured."""
    found = []
    if "first" in by_kind:
        found += [
            f"From nothing to the first result: an executor is constructed, started and called, {facts['first_runs']} "
            "times each. The pool is the default one, with one pod:",
            _markdown(by_kind["first"]),
        ]
    if "tti" in by_kind:
        found += [
            "[ComputeSDK's method](https://github.com/computesdk/benchmarks), sequential: a sandbox is created, runs "
            f"its first command and is destroyed, {facts['tti_runs']} times without a pause. Destruction is not timed:",
            _markdown(by_kind["tti"]),
        ]
    if "burst100" in by_kind:
        burst = facts["burst"]
        right = "; ".join(f"{name.removeprefix('codeexec: ')}: {one}" for name, one in burst["worked"].items())
        found += [
            f"ComputeSDK's burst, on {burst['nodes']} simulated nodes, {burst['rounds']} rounds. Nothing runs in these "
            f"pods, so this is the time of the control plane alone. Right results: {right}.",
            _markdown(by_kind["burst100"]),
        ]
    return found


def _density(facts: Mapping[str, Any], by_kind: Mapping[str, Table]) -> list[str]:
    if "density" not in by_kind:
        return []
    return [f"Density: {' '.join(text(facts['density']))}", _markdown(by_kind["density"])]


def _verdicts(tables: Sequence[Table]) -> list[str]:
    """Losses beside wins."""
    wins, losses = wins_and_losses(tables)
    rows = [["slower", one.what, one.ours, one.peer, f"{one.ratio:.2f}"] for one in losses]
    rows += [["faster", one.what, one.ours, one.peer, f"{one.ratio:.2f}"] for one in wins]
    head = ["codeexec is", "at", "codeexec's row", "than", "ratio"]
    return [
        f"Losses and wins: codeexec is slower in {len(losses)} comparisons, and faster in {len(wins)}.",
        as_markdown(head, rows),
    ]


def over_time(entries: Sequence[Mapping[str, Any]], figure: str) -> str:
    """The text between the markers of the history.

    Args:
        entries: the files of docs/bench.
        figure: the figure's file name.
    """
    head, *body = rows_over_time(entries)
    text = said(entries)
    sentences = "\n".join(text)
    return "\n\n".join([sentences, f"![Ratios of all runs]({figure})", as_markdown(head, body)])


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


def _facts() -> dict[str, Any]:
    """Of the last run, with the burst on simulated nodes if there was one."""
    facts: dict[str, Any] = json.loads((ROOT / ".codeexec" / "bench.json").read_text())
    burst = ROOT / ".codeexec" / "burst.json"
    if burst.exists():
        facts["burst"] = json.loads(burst.read_text())
        facts["tables"].append(facts["burst"]["table"])
    return facts


def keep(facts: Mapping[str, Any], folder: Path) -> list[Mapping[str, Any]]:
    """Add a run to the history; gives all entries, the oldest first."""
    folder.mkdir(exist_ok=True)
    name = f"{facts['at'].replace(':', '').partition('+')[0]}.json"
    (folder / name).write_text(json.dumps(entry(facts), indent=2) + "\n")
    return kept(folder)


def kept(folder: Path) -> list[Mapping[str, Any]]:
    """All entries, the oldest first."""
    return by_date([json.loads(path.read_text()) for path in folder.glob("*.json")])


def main(page: Path) -> None:
    facts = _facts()
    figure, history = page.with_suffix(".svg"), page.with_name(f"{page.stem}-history.svg")
    tables = [Table.load(raw) for raw in facts["tables"]]
    [calls] = [one for one in tables if one.kind == "calls"]
    figure.write_text(svg(calls, [one for one in tables if one.kind == "phases"]))
    write_between(page, "bench", measured(facts, figure.name))
    entries = keep(facts, page.parent / "bench")
    history.write_text(history_svg(entries))
    write_between(page, "history", over_time(entries, history.name))
    print(f"wrote {page}, {figure} and {history}", *said(entries), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
