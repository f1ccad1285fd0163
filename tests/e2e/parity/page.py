"""Renders the table for the terminal, and `docs/parity.md`. The same outcome gives the same text."""

from collections.abc import Iterable, Mapping
from typing import Any

from parity.case import Case, Group, Seen
from parity.suite import GROUPS, PARTIES

NOT_RUN = "not run"
_LONG = 110
Outcome = Mapping[str, Mapping[str, Seen | None]]
"""The result of each executor, by case and executor. None: the executor was not run."""


def table(outcome: Outcome) -> str:
    """One row for each case that ran, comparing the other two executors with Docker's."""
    rows = [("case", "Local", "Docker", "ours")]
    for group in GROUPS:
        ran = [case for case in group.cases if case.id in outcome]
        rows += [(case.id, *(_verdict(case, party, outcome[case.id]) for party in PARTIES)) for case in ran]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", _counts(outcome)])


def page(outcome: Outcome, facts: Mapping[str, str]) -> str:
    """The page of a run in which every case ran and held."""
    parts = [
        "# Parity with AutoGen's executors",
        "This page shows how `KubernetesCodeExecutor` (ours) differs from AutoGen's Local and Docker executors. Read "
        "it when you replace one of them. `make parity` generates this page; do not edit it.",
        "One run plays the same cases on all three executors, and every cell is an observed result. The Docker "
        "executor is the reference. If ours differs from it, the last column gives the reason. The suite fails on a "
        "difference without a reason, and on a reason without a difference.",
        f"**{_counts(outcome)}** Observed with:",
        _rows(("", "this machine"), facts.items()),
        "How to read the cells:\n\n"
        "- A number is the exit code. A text in quotes is the output.\n"
        "- “says” lists the expected words that the output contains. The rest of the output varies.\n"
        "- `…` replaces digests and names that differ in each run. `/workspace` is the folder in which code runs.\n"
        "- Docker's executor runs our sandbox image, so both have the same programs.",
        *(_section(group, outcome) for group in GROUPS),
    ]
    return "\n\n".join(parts) + "\n"


def _section(group: Group, outcome: Outcome) -> str:
    head = ("case", *PARTIES, "why ours differs from Docker's")
    rows = [
        (case.about, *(_cell(outcome[case.id][party]) for party in PARTIES), _bars(case.why)) for case in group.cases
    ]
    return f"## {group.title}\n\n{_rows(head, rows)}"


def _counts(outcome: Outcome) -> str:
    cases = [case for group in GROUPS for case in group.cases if case.id in outcome]
    other = sum(outcome[case.id]["ours"] != case.docker for case in cases)
    return f"{len(cases)} cases: {len(cases) - other} the same as Docker, {other} different for a stated reason."


def _verdict(case: Case, party: str, seen: Mapping[str, Seen | None]) -> str:
    if seen[party] is None:
        return NOT_RUN
    if seen[party] != case.expected(party):
        return "NOT AS EXPECTED"
    if party == "Docker":
        return "reference"
    return "same" if seen[party] == case.docker else "different"


def _cell(seen: Seen | None) -> str:
    """An observation in one line of Markdown."""
    if seen is None:
        return NOT_RUN
    if seen.keys() == {"exit code", "output"}:
        return f"{seen['exit code']}, {_value(seen['output'])}"
    if seen.keys() == {"exit code", "says"}:
        return ", ".join([str(seen["exit code"]), *([f"says {_list(seen['says'])}"] if seen["says"] else [])])
    if seen.keys() == {"raises", "message"}:
        return f"raises {seen['raises']}" + (f": {_value(seen['message'])}" if seen["message"] else "")
    return "; ".join(f"{name}: {_value(value)}" for name, value in seen.items()) or "nothing"


def _list(values: Iterable[Any]) -> str:
    return " and ".join(map(_value, values))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return _list(value) or "nothing"
    if not isinstance(value, str):
        return str(value)
    text = value.encode("unicode_escape").decode() if not value.isprintable() else value
    if len(text) > _LONG:
        text = f"{text[: _LONG - 20]}…{text[-19:]}"
    fence = "``" if "`" in text else "`"
    return f'{fence}"{_bars(text)}"{fence}'


def _bars(text: str) -> str:
    return text.replace("|", "\\|")


def _rows(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *body])
