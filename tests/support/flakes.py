"""Runs every test that was flaky once, 20 times beside two processes that take all the CPU they get: `make flakes`.

A test that has been mended is marked `suspect`. Those that may run beside others are run 20 times by pytest's workers.
Those that are marked `release` run alone, in one run of pytest that goes through them 20 times (`-p flakes` makes it
do so): they share what Helm takes a minute for, and nothing else. RUNS and HOGS change the sizes, TIERS the folders.
Arguments go to pytest, so that one suspect can be looked at alone: `python tests/support/flakes.py -k approved`. Ends
with 1 if any test failed once.
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
REPORTS: Final = ROOT / ".codeexec" / "reports" / "flakes"
RUNS: Final = int(os.environ.get("RUNS", "20"))
HOGS: Final = int(os.environ.get("HOGS", "2"))
WORKERS: Final = os.environ.get("E2E_WORKERS", "2")
TIERS: Final = os.environ.get("TIERS", "tests/unit tests/api tests/component tests/e2e").split()
BESIDE_OTHERS: Final = "suspect and not release"
ALONE: Final = "suspect and release"
ENVIRONMENT: Final = {
    "LOAD_EXECUTIONS": "12",  # a race shows in a few, 20 times
    **os.environ,
    "PYTHONPATH": str(Path(__file__).parent),  # for `-p flakes`
}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One round after the other, so that what a file sets up is set up anew in each, if there are several files."""
    items[:] = items * RUNS


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes compute meanwhile; they end with us, too, when we are killed."""
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1_000_000))"
    hogs = [subprocess.Popen([sys.executable, "-I", "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


class Tally:
    """How often each test has run and failed."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.broken = 0
        """Runs of pytest that went wrong as a whole."""

    def pytest(self, name: str, *arguments: str) -> None:
        """Run pytest and count what it reports."""
        report = REPORTS / f"{name}.xml"
        begun = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        with (REPORTS / f"{name}.log").open("w") as log:
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT).returncode
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        failed = [_name_of(one) for one in cases if {"failure", "error"} & {part.tag for part in one}]
        self.ran.update(map(_name_of, cases))
        self.failed.update(failed)
        self.broken += bool(code and not failed)
        spent = time.monotonic() - begun
        print(f"{name}: {len(cases)} tests in {spent:.0f} s, {len(failed)} failed, exit {code}", flush=True)


def _name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def files(marked: str, arguments: Sequence[str]) -> list[str]:
    """Those that have tests which are marked so: to collect all others takes a busy machine half a minute each time."""
    command = [sys.executable, "-m", "pytest", *TIERS, "-m", marked, "--collect-only", "-q", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return sorted({line.split("::")[0] for line in done.stdout.splitlines() if "::" in line})


def main() -> int:
    """0 if each suspect has run RUNS times and none has failed."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    for old in REPORTS.iterdir():
        old.unlink()
    more = sys.argv[1:]
    beside, alone = files(BESIDE_OTHERS, more), files(ALONE, more)
    tally = Tally()
    with busy(HOGS):
        for number in range(1, RUNS + 1 if beside else 1):
            workers = ("-n", WORKERS, "--dist", "loadfile")
            tally.pytest(f"run-{number}", *beside, "-m", BESIDE_OTHERS, *workers, *more)
        if alone:
            tally.pytest("alone", *alone, "-m", ALONE, "-p", "flakes", *more)
    for name, count in tally.failed.most_common():
        print(f"{count:>3} of {tally.ran[name]}: {name}")
    fewer = {name: count for name, count in tally.ran.items() if count != RUNS}
    for name, count in fewer.items():
        print(f"ran {count} times instead of {RUNS}: {name}")
    if not tally.ran:
        print("no test is marked `suspect`, or none is what was asked for")
    well = tally.ran and not (tally.failed or fewer or tally.broken)
    print(f"{len(tally.ran)} tests, {RUNS} times each: no failure" if well else f"logs are in {REPORTS}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
