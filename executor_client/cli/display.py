"""How the commands show things: records as JSON, rows as tables, output that can't control the terminal."""

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from codeexec_api import CodeExecution, CodeSession, ExecutionApproval, Phase
from codeexec_api.names import API_VERSION, APPROVAL_KIND, EXECUTION_KIND, SESSION_KIND
from executor_client.results import CANCELLED, ExecutionResult, OutputChunk, StreamName

_NOTES: Final = {
    Phase.TIMED_OUT: "Timeout: {message}",
    Phase.CANCELLED: CANCELLED,
    Phase.OUT_OF_MEMORY: "OutOfMemory: {message}",
    Phase.DENIED: "Denied: {message}",
    Phase.EXPIRED: "Expired: {message}",
    Phase.AWAITING_APPROVAL: "Not run yet: {message}",
}
_GAP: Final = 3
"""Blanks between the columns of a table."""
_WRAPPED: Final = frozenset({"AGENT", "MESSAGE"})
"""Columns that are wrapped on a terminal that is too narrow."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BLANKS: Final = re.compile(" {2,}")
_LINE_ENDS: Final = str.maketrans({"\t": "\\t", "\n": "\\n"})
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


def visible(output: str) -> str:
    """Output for a terminal: what would control it, but for line ends and tabs, is shown by its number."""
    return _CONTROLS.sub(lambda one: f"\\x{ord(one[0]):02x}", output.replace("\r\n", "\n"))


class Printer:
    """Writes what the code writes, as it comes: as it is into pipes and files, made visible on a terminal."""

    def __init__(self) -> None:
        self._held: dict[StreamName, str] = {}

    def __call__(self, chunk: OutputChunk) -> None:
        """Write one piece to the stream of its name."""
        if not getattr(sys, chunk.stream).isatty():
            _write(chunk.stream, chunk.text)
            return
        text = self._held.pop(chunk.stream, "") + chunk.text
        if text.endswith("\r"):  # perhaps half of a line end
            self._held[chunk.stream] = "\r"
            text = text[:-1]
        _write(chunk.stream, visible(text))

    def finish(self) -> None:
        """Write what was held back."""
        for stream, text in self._held.items():
            _write(stream, visible(text))
        self._held.clear()


def report(result: ExecutionResult) -> None:
    """Say on stderr what the output doesn't: how it ended, if not by itself, and that something is missing."""
    if result.truncated:
        click.echo("codeexec: the output is truncated; the record says how much there was", err=True)
    if note := _NOTES.get(result.phase):
        click.echo(f"codeexec: {one_line(note.format(message=result.message))}", err=True)


def _write(stream: StreamName, text: str) -> None:
    out = getattr(sys, stream).buffer
    out.write(text.encode())
    out.flush()


def plain(text: str) -> str:
    """Text that a human decides by: besides, what has no shape of its own, turns writing around or is an odd blank."""
    return "".join(one if _has_a_shape(one) else f"\\u{ord(one):04x}" for one in visible(text))


def _has_a_shape(character: str) -> bool:
    return character in " \n\t" or unicodedata.category(character)[0] not in "CZ"


def one_line(text: str) -> str:
    """Text that somebody else wrote, as a cell of a table: it can't look like several."""
    return _BLANKS.sub(" ", plain(text).translate(_LINE_ENDS))


def echo_json(value: Any) -> None:
    """Show a value as JSON."""
    click.echo(json.dumps(value, indent=2))


def echo_fields(fields: Mapping[str, str]) -> None:
    """Show names and values, one a line; those without a value are left out."""
    console = terminal()
    width = max(map(len, fields), default=0) + 2
    for name, value in fields.items():
        if value and console:
            console.print(Text.assemble((f"{name + ':':<{width}}", "bold"), styled(one_line(value))), soft_wrap=True)
        elif value:
            click.echo(f"{name + ':':<{width}}{one_line(value)}")


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show rows in columns: on a terminal in colour and, where words allow, within its width; else as they are."""
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
        table.add_column(column, no_wrap=not wraps)
        pieces = [piece for text in (column, *texts) for piece in (text.split() if wraps else [text])]
        needed += max(map(cell_len, pieces)) + _GAP
    for row in cells:
        table.add_row(*map(styled, row))
    # What can't be wrapped is never cut: the lines may be longer than the terminal is wide, as with kubectl.
    console.width = max(console.width, needed)
    console.print(table)


def terminal() -> Console | None:
    """The terminal that stdout is, if it is one."""
    console = Console(file=sys.stdout, highlight=False)
    return console if console.is_terminal else None


def styled(text: str) -> Text:
    """Text in the colour that goes with it, if it is a phase or an outcome."""
    return Text(text, style=_STYLES.get(text.strip(), ""))


def age(since: datetime | None, until: datetime) -> str:
    """How long ago, as kubectl says it: 5s, 3m, 2h, 4d."""
    if since is None:
        return ""
    seconds = max(int((until - since).total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length or (unit == "d" and seconds >= length):
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def size(count: int) -> str:
    """A number of bytes, as people say it."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


_KINDS: Final = {CodeExecution: EXECUTION_KIND, CodeSession: SESSION_KIND, ExecutionApproval: APPROVAL_KIND}


def as_object(record: CodeExecution | CodeSession | ExecutionApproval) -> dict[str, Any]:
    """A record as the API server has it, as far as this client reads it."""
    body = record.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"apiVersion": API_VERSION, "kind": _KINDS[type(record)], **body}


def as_list(records: Iterable[CodeExecution | CodeSession]) -> dict[str, Any]:
    """Records as `kubectl get -o json` lists them."""
    return {"apiVersion": "v1", "kind": "List", "items": [as_object(record) for record in records]}
