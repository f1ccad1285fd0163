"""Output of the commands: records as JSON, and names, values and rows as text."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from codeexec_api import CodeExecution, CodeSession, ExecutionApproval
from codeexec_api.names import API_VERSION
from executor_client.cli.escaping import one_line, rows_of, visible
from executor_client.model.results import NOTES, ExecutionResult, OutputChunk, StreamName

_GAP: Final = 3
"""Spaces between the columns of a table."""
_WRAPPED: Final = frozenset({"AGENT", "ARTIFACT", "ASKS-FOR", "FOUND", "MESSAGE", "VALUE"})
"""Columns that wrap if the terminal is too narrow: those with text of agents, which may be of any length.

None is the first of its table: its second line would begin at the left edge, where it may look like a field.
"""
_WORD: Final = 20
"""Columns that a word has in them at least; longer ones are folded, and do not wrap to the terminal's left edge."""
_NAME: Final = re.compile("[a-z0-9:@/._-]*")
"""Digests and names of objects: to copy, they stay in one piece. They can't look like the name of a field."""
_STYLES: Final = {
    "Succeeded": "green",
    "Ready": "green",
    "ok": "green",
    "Running": "cyan",
    "Starting": "cyan",
    "Pending": "cyan",
    "Ended": "dim",
    "AwaitingApproval": "yellow",
    "Approved": "cyan",
    "Cancelled": "yellow",
    "warning": "yellow",
    "unknown": "yellow",
    "Denied": "red",
    "Expired": "red",
    "Failed": "red",
    "TimedOut": "red",
    "OutOfMemory": "red",
    "Lost": "red",
    "failed": "red",
}


class Printer:
    """Writes output as it comes: unchanged to pipes and files, with control characters escaped to a terminal."""

    def __init__(self) -> None:
        self._held: dict[StreamName, str] = {}

    def __call__(self, chunk: OutputChunk) -> None:
        """Write one piece of output to its stream."""
        if not getattr(sys, chunk.stream).isatty():
            _write(chunk.stream, chunk.text)
            return
        text = self._held.pop(chunk.stream, "") + chunk.text
        if text.endswith("\r"):  # possibly the first half of a line end
            self._held[chunk.stream] = "\r"
            text = text[:-1]
        _write(chunk.stream, visible(text))

    def finish(self) -> None:
        """Write what is still buffered."""
        for stream, text in self._held.items():
            _write(stream, visible(text))
        self._held.clear()


def report(result: ExecutionResult) -> None:
    """Write to stderr what the output does not show: that it is truncated, and why the execution ended."""
    if result.truncated:
        click.echo("codeexec: the output is truncated; the record has its full size", err=True)
    if note := NOTES.get(result.phase):
        click.echo(f"codeexec: {one_line(note.format(message=result.message))}", err=True)


def _write(stream: StreamName, text: str) -> None:
    out = getattr(sys, stream).buffer
    out.write(text.encode())
    out.flush()


def echo_json(value: Any) -> None:
    """Show a value as JSON."""
    click.echo(json.dumps(value, indent=2))


def echo_fields(fields: Mapping[str, str]) -> None:
    """Show names and values, one per line, without empty values. On a terminal, a long value stays in its column."""
    console = terminal()
    width = max(map(len, fields), default=0) + 2
    room = max(console.width - width, 1) if console else None
    for name, value in fields.items():
        if not value:
            continue
        text = one_line(value)
        first, *others = [text] if _NAME.fullmatch(text) else rows_of(text, room, words=True)
        for label, row in ((f"{name}:", first), *(("", one) for one in others)):
            if console:
                console.print(Text.assemble((f"{label:<{width}}", "bold"), styled(row)), soft_wrap=True)
            else:
                click.echo(f"{label:<{width}}{row}")


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show rows in columns. On a terminal, use colours, and wrap columns that may wrap."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    console = terminal()
    if console is None:
        lines = [list(columns), *cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo((" " * _GAP).join(padded).rstrip())
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    needed = 0
    for column, *texts in zip(columns, *cells, strict=True):
        wraps = column in _WRAPPED
        table.add_column(column, no_wrap=not wraps, overflow="fold")
        lengths = [cell_len(piece) for text in (column, *texts) for piece in (text.split() if wraps else [text])]
        needed += (min(max(lengths), _WORD) if wraps else max(lengths)) + _GAP
    for row in cells:
        table.add_row(*map(styled, row))
    # Nothing is cut: as with kubectl, lines may be longer than the terminal is wide. Names, for example.
    console.width = max(console.width, needed)
    console.print(table)


def terminal() -> Console | None:
    """The terminal that stdout is connected to, if any."""
    console = Console(file=sys.stdout, highlight=False)
    return console if console.is_terminal else None


def styled(text: str) -> Text:
    """Colour text that is a phase or an outcome."""
    return Text(text, style=_STYLES.get(text.strip(), ""))


def age(since: datetime | None, until: datetime) -> str:
    """The time between two moments as kubectl writes it: 5s, 3m, 2h, 4d."""
    if since is None:
        return ""
    seconds = max(int((until - since).total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length or (unit == "d" and seconds >= length):
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def size(count: int) -> str:
    """A number of bytes with a unit."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


Shown = TypeVar("Shown", CodeExecution, CodeSession)


def echo_record(record: Shown, show: Callable[[Shown], None], *, as_json: bool) -> None:
    """Show one record, as JSON or by `show`."""
    if as_json:
        echo_json(as_object(record))
    else:
        show(record)


def echo_records(
    records: Sequence[Shown],
    columns: Sequence[str],
    row: Callable[[Shown, datetime], Sequence[str]],
    at: datetime,
    *,
    as_json: bool,
) -> None:
    """Show records, as JSON or as a table. `row` receives the time `at` to compute ages."""
    if as_json:
        echo_json({"apiVersion": "v1", "kind": "List", "items": [as_object(record) for record in records]})
    else:
        echo_table(columns, (row(one, at) for one in records))


def as_object(record: CodeExecution | CodeSession | ExecutionApproval) -> dict[str, Any]:
    """A record as the API server returns it, limited to the fields that this client knows."""
    body = record.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"apiVersion": API_VERSION, "kind": record.kind, **body}


@contextmanager
def json_list() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show objects as `kubectl get -o json` lists them, each as soon as it is there.

    If an error ends the block, the end of the list is missing, so that nobody takes a part for the whole.
    """
    click.echo('{"apiVersion": "v1", "kind": "List", "items": [', nl=False)
    between = "\n"

    def echo(item: Mapping[str, Any]) -> None:
        nonlocal between
        click.echo(f"{between}{json.dumps(item, indent=2)}", nl=False)
        between = ",\n"

    yield echo
    click.echo("\n]}")
