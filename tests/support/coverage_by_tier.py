"""Which part of the code each tier of tests runs: a table of rooms and tiers, from what `coverage run` left.

`coverage_by_tier.py unit api` reads `.codeexec/coverage/TIER/`. With `--adapters 85` it fails if the named tiers
together run less than 85 % of the operator's adapters.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).parents[2]
DATA = ROOT / ".codeexec" / "coverage"
OPERATOR = "operator/codeexec_operator"
ROOMS = {
    "codeexec_api": "crds/codeexec_api",
    "operator core": f"{OPERATOR}/core",
    "operator manifests": f"{OPERATOR}/manifests",
    "operator adapters": f"{OPERATOR}/adapters",
    "operator handlers": f"{OPERATOR}/handlers",
    "executor_client": "executor_client",
    "codeexec": "codeexec",
}


@dataclass(frozen=True)
class Share:
    """How many lines of a room there are, and how many were run."""

    lines: int
    run: int

    @property
    def percent(self) -> float:
        return 100 * self.run / self.lines

    def __str__(self) -> str:
        return f"{self.percent:.1f} %"


def shares(tiers: Sequence[str]) -> dict[str, Share]:
    """Of each room, by these tiers together."""
    with tempfile.TemporaryDirectory() as folder:
        coverage = Coverage(data_file=str(Path(folder) / "data"), config_file=str(ROOT / "pyproject.toml"))
        coverage.combine([str(DATA / tier) for tier in tiers], keep=True)
        found = {}
        for room, place in ROOMS.items():
            lines = missing = 0
            for path in sorted((ROOT / place).rglob("*.py")):
                _, statements, _, not_run, _ = coverage.analysis2(str(path))
                lines, missing = lines + len(statements), missing + len(not_run)
            found[room] = Share(lines, lines - missing)
        return found


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tiers", nargs="+", help="which tiers: names of folders in .codeexec/coverage")
    parser.add_argument("--adapters", type=float, default=0, help="how many percent of the adapters have to be run")
    asked = parser.parse_args()
    if lacking := [tier for tier in asked.tiers if not any((DATA / tier).glob("*"))]:
        print(f"no coverage of {', '.join(lacking)} in {DATA}: run the tier first", file=sys.stderr)
        return 1
    columns = {tier: shares([tier]) for tier in asked.tiers}
    columns["together"] = shares(asked.tiers)
    print("coverage".ljust(20) + "lines".rjust(7) + "".join(name.rjust(11) for name in columns))
    for room in ROOMS:
        lines = columns["together"][room].lines
        print(
            room.ljust(20) + str(lines).rjust(7) + "".join(str(column[room]).rjust(11) for column in columns.values())
        )
    adapters = columns["together"]["operator adapters"]
    if adapters.percent < asked.adapters:
        print(
            f"operator adapters: {adapters} of the lines are run, which is less than {asked.adapters:g} %",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
