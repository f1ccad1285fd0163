"""docs/troubleshooting.md has one complete entry for each reason, and quotes only commands that exist."""

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import click
import pytest
from cluster_tools import ROOT

from codeexec_api import approval
from codeexec_api.phases import Reason
from executor_client import exceptions
from executor_client.cli import main

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
PARTS = ("Meaning", "Do", "More")
HEADER = "| reason | what it means | what to do | what shows more |"
VOID = (approval.OTHER_EXECUTION, approval.SELF_APPROVAL, approval.OTHER_GRANTS, approval.REVOKED, approval.EXPIRED)


@dataclass(frozen=True)
class Entry:
    """What the page says about one reason: name and text of each part."""

    reason: str
    parts: tuple[tuple[str, str], ...]


def entries(page: str) -> Iterator[Entry]:
    """Sections `### Reason` with a bullet for each part, and rows of tables with the columns of `HEADER`."""
    for heading, body in re.findall(r"^### ([^\n]+)\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL):
        bullets = re.findall(r"^- \*\*(\w+):\*\*(.*?)(?=^- |\Z)", body, re.MULTILINE | re.DOTALL)
        if bullets or " " not in heading:
            yield Entry(heading, tuple((name, text.strip()) for name, text in bullets))
    for table in page.split(HEADER)[1:]:
        _, *rows = table.lstrip("\n").split("\n\n")[0].splitlines()
        for row in rows:
            reason, *cells = (cell.strip() for cell in row.removeprefix("|").removesuffix("|").split("|"))
            yield Entry(reason.strip("`"), tuple(zip(PARTS, cells, strict=True)))


def commands(page: str) -> Iterator[str]:
    """What follows `codeexec` in each command that the page quotes, in the text or in a block."""
    blocks = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    quoted = [line.removeprefix("$ ").split("#")[0] for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    quoted += re.findall(r"`([^`]+)`", prose)
    for one in quoted:
        words = one.removeprefix("kubectl ").split()
        if words[:1] == ["codeexec"] and len(words) > 1:
            yield " ".join(words[1:])


def problem_of(command: str) -> str:
    """Why this command can't be typed like this; empty if it can. Names of files and objects are not looked at."""
    at: click.Command = main
    words = command.split()
    while words and isinstance(at, click.Group):
        name = words.pop(0)
        if name not in at.commands:
            return f"No such command '{name}'."
        at = at.commands[name]
    context = click.Context(at)
    try:
        values, left, _ = at.make_parser(context).parse_args(words)
        for option in at.params:
            if isinstance(option.type, click.Choice) and option.name in values:
                option.type.convert(values[option.name], option, context)
    except click.UsageError as error:
        return error.format_message()
    return f"Got unexpected extra argument ({' '.join(left)})" if left else ""


FOUND = list(entries(PAGE))
COMMANDS = sorted(set(commands(PAGE)))


def test_each_reason_has_exactly_one_entry_and_no_entry_is_about_anything_else() -> None:
    assert Counter(one.reason for one in FOUND) == Counter(reason.value for reason in Reason)


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: entry.reason)
def test_each_entry_says_what_it_means_what_to_do_and_what_shows_more(entry: Entry) -> None:
    assert tuple(name for name, _ in entry.parts) == PARTS
    assert all(text for _, text in entry.parts)


def test_each_exception_is_among_the_symptoms() -> None:
    names = [name for name, one in inspect.getmembers(exceptions, inspect.isclass) if issubclass(one, Exception)]
    symptoms = PAGE.split("### Python raises an exception")[1].split("\n#")[0]
    first_cells = re.findall(r"^\| (`.+?) \|", symptoms, re.MULTILINE)
    assert Counter(re.findall(r"`(\w+)`", " ".join(first_cells))) == Counter(names)


def test_each_cause_of_a_decision_that_does_not_count_is_explained() -> None:
    section = PAGE.split("### Decisions that do not count")[1].split("\n#")[0]
    assert Counter(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == Counter(VOID)


def test_every_link_within_the_page_leads_to_a_heading() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors


def test_commands_are_found_in_blocks_and_in_the_text() -> None:
    """Control for the next test, which would pass if it looked at nothing."""
    assert "audit list --since 24h --phase Failed" in COMMANDS
    assert "approve NAME -n NAMESPACE --uid UID" in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_can_be_typed_as_it_is_quoted(command: str) -> None:
    assert problem_of(command) == ""


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("explain FILE", "No such command 'explain'"),
        ("audit tell NAME", "No such command 'tell'"),
        ("run --ram 1Gi", "No such option"),
        ("get --phase Broken", "'Broken' is not one of"),
        ("doctor NAME", "unexpected extra argument"),
    ],
)
def test_a_command_that_can_not_be_typed_is_noticed(command: str, problem: str) -> None:
    assert problem in problem_of(command)
