"""The figures of the page: how long a call takes in each way, where the time of ours goes, and ratios over time."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from history import by_date, ratios
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from tables import Table, milliseconds

OURS, OTHERS, TEXT = "#1f6feb", "#8c959f", "#24292f"
PHASE_COLOURS = ("#a5d6ff", "#54aeff", "#0969da", "#bf8700", "#8250df")
_LINES = ("#0969da", "#bf8700", "#8250df", "#1a7f37", "#cf222e", "#57606a", "#db61a2", "#0550ae")
_SETTINGS = {
    "svg.hashsalt": "codeexec",  # else the names of its parts differ each time
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


def svg(calls: Table, phases: Sequence[Table]) -> str:
    """The figure; the same for the same tables.

    Args:
        calls: a row for each way to make a call.
        phases: a table for each way of ours, whose rows are phases and last their sum.
    """
    with mpl.rc_context(_SETTINGS):
        heights = [len(calls.rows) + 1.5, len(phases) + 1.5]
        figure = Figure(figsize=(9, 0.3 * sum(heights) + 1), layout="constrained", facecolor="white")
        above, below = figure.subplots(2, 1, height_ratios=heights)
        _draw_calls(above, calls)
        _draw_phases(below, phases)
        return _as_text(figure)


def history_svg(entries: Sequence[Mapping[str, Any]]) -> str:
    """Each ratio of all runs, as a line; the same for the same entries."""
    runs = by_date(entries)
    found = [ratios(one) for one in runs]
    keys = list(dict.fromkeys(key for one in found for key in one))
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(12, 0.22 * len(keys) + 1.5), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for number, key in enumerate(keys):
            places = [place for place, one in enumerate(found) if key in one]
            values = [found[place][key] for place in places]
            style = ("-", "--", ":")[number // len(_LINES) % 3]
            axes.plot(places, values, f"o{style}", color=_LINES[number % len(_LINES)], markersize=4, label=key)
        axes.axhline(1, color=TEXT, linewidth=1)
        axes.set_yscale("log")
        axes.set_xticks(range(len(runs)), [str(one["date"]) for one in runs])
        axes.set_title("codeexec's p50 / the peer's: below the line codeexec is faster", loc="left")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=7)
        return _as_text(figure)


def _as_text(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # Matplotlib ends some lines with a space.
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _draw_calls(axes: Axes, calls: Table) -> None:
    for place, row in enumerate(calls.rows):
        colour = OURS if row.what.startswith("codeexec") else OTHERS
        p50, p95, p99 = (1000 * seconds for seconds in (row.p50, row.p95, row.p99))
        axes.plot([p50, p99], [place, place], color=colour, linewidth=2, alpha=0.5)
        axes.plot(p50, place, "o", color=colour, markersize=7)
        axes.plot([p95, p99], [place, place], "|", color=colour, markersize=9, markeredgewidth=2)
        axes.annotate(
            milliseconds(row.p50), (p50, place), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ms"))
    _name_rows(axes, [row.what for row in calls.rows])
    axes.grid(axis="x", which="both", color="#d0d7de", linewidth=0.5)
    axes.set_title(f"{calls.title}: p50 (dot), p95 and p99 (strokes), logarithmic", loc="left")


def _draw_phases(axes: Axes, phases: Sequence[Table]) -> None:
    """Shares, because one way takes twenty times as long as another."""
    labels: Mapping[str, str] = dict(zip([row.what for row in phases[0].rows[:-1]], PHASE_COLOURS, strict=True))
    for place, table in enumerate(phases):
        *parts, _ = table.rows
        whole, start = sum(row.p50 for row in parts), 0.0
        for row in parts:
            share = 100 * row.p50 / whole
            label = row.what if place == 0 else None
            axes.barh(place, share, left=start, height=0.6, color=labels[row.what], label=label)
            start += share
    names = [f"{table.title.removeprefix('phases, ')}: {milliseconds(table.rows[-1].p50)}" for table in phases]
    _name_rows(axes, names)
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_title("where the time goes: each phase's share of the p50", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=len(labels), frameon=False)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """From top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
