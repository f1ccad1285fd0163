"""Prints each test that was skipped, then each that failed.

`failed.py unit api` reads the JUnit files `unit.xml` and `api.xml` of these tiers.

`make check` and `make test` end with these lines, because a CI shows the end of a log. A tier without a file did not
get to its end.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from slowest import name_of

REPORTS = Path(__file__).parents[2] / ".codeexec" / "reports"
MOST_TESTS = 50
MOST_CHARACTERS = 400


def failures(tiers: Sequence[str], reports: Path = REPORTS) -> Iterator[str]:
    """A line for each test that failed, and for each tier without a report."""
    for tier in tiers:
        file = reports / f"{tier}.xml"
        if not file.exists():
            yield f"{tier}: no report, so this tier did not get to its end"
            continue
        yield from _told(file, "failure", "error")


def skips(tiers: Sequence[str], reports: Path = REPORTS) -> Iterator[str]:
    """A line for each test that was skipped: what it would have shown is not shown."""
    for tier in tiers:
        if (file := reports / f"{tier}.xml").exists():
            yield from _told(file, "skipped")


def _told(file: Path, *kinds: str) -> Iterator[str]:
    for case in ElementTree.parse(file).iter("testcase"):
        for kind in kinds:
            if (told := case.find(kind)) is not None:
                message = " ".join(told.get("message", "").split())
                yield f"{name_of(case)}: {message[:MOST_CHARACTERS]}"


def main() -> int:
    tiers = sys.argv[1:]
    _print("SKIPPED", list(skips(tiers)))
    found = list(failures(tiers))
    _print("FAILED", found)
    return 1 if found else 0


def _print(what: str, lines: Sequence[str]) -> None:
    for line in lines[:MOST_TESTS]:
        print(f"{what} {line}")
    if len(lines) > MOST_TESTS:
        print(f"and {len(lines) - MOST_TESTS} more: see {REPORTS}")


if __name__ == "__main__":
    sys.exit(main())
