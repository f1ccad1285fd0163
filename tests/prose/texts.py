"""Writes the prose that is not in Markdown files as Markdown, for the prose linter: `texts.py FOLDER`.

Three files: the descriptions of the CRDs, the help of the command line, the comments of the chart's values.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from executor_client.cli import main as command_line

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "codeexec"


def descriptions(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Each field that has a description, below one of an OpenAPI schema."""
    if "description" in schema:
        yield path, schema["description"]
    for name, field in schema.get("properties", {}).items():
        yield from descriptions(field, f"{path}.{name}")
    if "items" in schema:
        yield from descriptions(schema["items"], f"{path}[]")


def of_crds() -> Iterator[tuple[str, str]]:
    """Where, and what it says."""
    for file in sorted((CHART / "files" / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        for version in crd["spec"]["versions"]:
            yield from descriptions(version["schema"]["openAPIV3Schema"], crd["spec"]["names"]["kind"])
            for column in version.get("additionalPrinterColumns", ()):
                yield f"{crd['spec']['names']['kind']} column {column['name']}", column.get("description", "")


def of_commands(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """The help of a command, of its options, and of the commands below it."""
    yield name, command.help or ""
    for option in command.params:
        if isinstance(option, click.Option):
            yield f"{name} {option.opts[-1]}", option.help or ""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from of_commands(one, f"{name} {one.name}")


def of_values() -> Iterator[tuple[str, str]]:
    """Each block of comment lines."""
    comment: list[str] = []
    for number, line in enumerate((CHART / "values.yaml").read_text().splitlines(), 1):
        if found := re.match(r"\s*# ?(.*)", line):
            comment.append(found[1].removeprefix("-- "))
        elif comment:
            yield f"values.yaml line {number}", " ".join(comment)
            comment = []


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"crds": of_crds(), "command-line": of_commands(command_line, "codeexec"), "values": of_values()}
    for name, found in texts.items():
        pages = [f"## `{where}`\n\n{inspect.cleandoc(text)}\n" for where, text in found if text.strip()]
        (folder / f"{name}.md").write_text("\n".join(pages))
    (folder / "notes.md").write_text((CHART / "templates" / "NOTES.txt").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
