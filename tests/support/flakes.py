"""Runs every test that was flaky once, 20 times beside two processes that take all the CPU they get: `make flakes`.

A test that has been mended is marked `suspect`. RUNS and HOGS change the sizes; arguments go to pytest, so that one
suspect can be looked at alone: `python tests/support/flakes.py -k approved`. Ends with 1 if any test failed once.
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

ROOT: Final = Path(__file__).parents[2]
REPORTS: Final = ROOT / ".codeexec" / "reports" / "flakes"
RUNS: Final = int(os.environ.get("RUNS", "20"))
HOGS: Final = int(os.environ.get("HOGS", "2"))
TIERS: Final = ("tests/unit", "tests/component", "tests/e2e")


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


def failures(report: Path) -> list[str]:
    """Names of the tests that failed, or whose fixtures did."""
    cases = ElementTree.parse(report).iter("testcase")
    return [
        f"{one.get('classname')}::{one.get('name')}" for one in cases if {"failure", "error"} & {e.tag for e in one}
    ]


def suspects(arguments: Sequence[str]) -> list[str]:
    """Files with tests marked `suspect`: to collect all others takes a busy machine half a minute each time."""
    command = [sys.executable, "-m", "pytest", *TIERS, "-m", "suspect", "--collect-only", "-q", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return sorted({line.split("::")[0] for line in done.stdout.splitlines() if "::" in line})


def run(number: int, files: Sequence[str], arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Exit code of pytest, and which tests failed."""
    report = REPORTS / f"run-{number}.xml"
    command = [sys.executable, "-m", "pytest", *files, "-m", "suspect", "-q", f"--junitxml={report}", *arguments]
    environment = {"LOAD_EXECUTIONS": "12"} | os.environ  # a race shows in a few, 20 times
    with (REPORTS / f"run-{number}.log").open("w") as log:
        code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment).returncode
    return code, failures(report) if report.exists() else ["(pytest made no report)"]


def main() -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    for old in REPORTS.glob("run-*"):
        old.unlink()
    files = suspects(sys.argv[1:])
    if not files:
        print("no test is marked `suspect`, or none is what was asked for")
        return 1
    failed: Counter[str] = Counter()
    runs_that_failed = 0
    with busy(HOGS):
        for number in range(1, RUNS + 1):
            begun = time.monotonic()
            code, names = run(number, files, sys.argv[1:])
            failed.update(names)
            runs_that_failed += bool(code)
            print(
                f"run {number} of {RUNS}: {time.monotonic() - begun:.0f} s, exit {code}, {len(names)} failed",
                flush=True,
            )
    for name, count in failed.most_common():
        print(f"{count:>3} of {RUNS}: {name}")
    print(f"{runs_that_failed} of {RUNS} runs failed; logs are in {REPORTS}" if runs_that_failed else "no failure")
    return int(runs_that_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
