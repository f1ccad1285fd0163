"""Prints the slowest tests of JUnit files as a Markdown table: `python tests/support/slowest.py FILE...`."""

import sys
from pathlib import Path
from xml.etree import ElementTree

MOST = 30


def name_of(case: ElementTree.Element) -> str:
    """The file below `tests`, and the name of the test."""
    path = case.get("classname", "").replace(".", "/") + ".py"
    return f"{path.removeprefix('tests/')}::{case.get('name')}"


def durations(files: list[Path]) -> dict[str, float]:
    """Seconds of each test with its fixtures, by file and name; the longest if it ran several times."""
    found: dict[str, float] = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            name = name_of(case)
            found[name] = max(found.get(name, 0.0), float(case.get("time", 0)))
    return found


def table(seconds: dict[str, float]) -> str:
    slowest = sorted(seconds.items(), key=lambda one: -one[1])[:MOST]
    share = sum(taken for _, taken in slowest) / max(sum(seconds.values()), 0.001)
    rows = [f"| {taken:.1f} | `{name.replace('|', chr(92) + '|')}` |" for name, taken in slowest]
    all_of_them = (
        f"{len(seconds)} tests took {sum(seconds.values()) / 60:.1f} min; these {len(slowest)} are {share:.0%} of it."
    )
    return "\n".join(["| s | test |", "|---:|---|", *rows, "", all_of_them])


if __name__ == "__main__":
    print(table(durations([Path(argument) for argument in sys.argv[1:]])))
