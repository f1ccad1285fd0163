"""The streams of the command line: whoever calls it may have closed some, or reads them with fewer characters."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click


def prepare() -> None:
    """Drop what is written to a closed stream, and write a character that stdout lacks as an escape.

    Nothing else gets the descriptor of a closed stream, in the order of their numbers.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - it stays open
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class InputFile(click.Path):
    """A file to read; - is standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse - where standard input is closed."""
        if value == "-" and sys.stdin is None:
            self.fail("- is standard input, which is closed: name a file", param, ctx)
        return super().convert(value, param, ctx)
