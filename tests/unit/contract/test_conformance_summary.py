"""What a run says of the remit is what was shown in it: no more in a run of some proofs, or of several workers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import remit

ROOT = Path(__file__).parents[3]
SUITE = """
import pytest
from conformance.plugin import CONTROLS, RUNTIMES

@pytest.fixture
def control(request):
    yield
    request.node.stash[CONTROLS] = ["it was done"]

@pytest.mark.remit("R-01")
def test_one(control, request):
    '''One is shown.'''
    request.node.stash[RUNTIMES] = ["runc"]

@pytest.mark.remit("R-01", "R-02")
@pytest.mark.parametrize("case", ["a", "b"])
def test_two(control, case):
    '''Two is shown.'''

@pytest.mark.remit("R-03")
def test_three(control):
    '''Three is shown.'''
    assert FAILS
"""


def planned(*nodes, ids=("R-01",)):
    return {node: {"file": "tests/x.py", "words": "It is shown.", "ids": ids, "case": ""} for node in nodes}


def shown(passed=True, skipped=""):
    return {"passed": passed, "skipped": skipped, "controls": ["c"], "runtimes": ["runc"]}


def verdict(tests, results, *, complete=True):
    first, *_ = remit.lines(remit.proofs(tests, results), complete=complete)
    return first.verdict


def test_proven_is_what_all_proofs_have_shown():
    assert verdict(planned("a", "b"), {"a": shown(), "b": shown()}) == remit.PROVEN
    assert verdict(planned("a", "b"), {"a": shown(), "b": shown(passed=False)}) == remit.NOT_PROVEN
    assert verdict(planned("a", "b"), {"a": shown(), "b": shown(skipped="no gVisor")}) == remit.PROVEN
    assert verdict(planned("a"), {"a": shown(skipped="no gVisor")}) == remit.NOT_PROVEN


def test_what_some_proofs_have_shown_is_not_proven():
    assert verdict(planned("a", "b"), {"a": shown()}) == remit.HELD
    assert verdict(planned("a"), {"a": shown()}, complete=False) == remit.HELD
    assert verdict(planned("a"), {"a": shown(passed=False)}, complete=False) == remit.NOT_PROVEN
    assert verdict(planned("a"), {}) == remit.NOT_PROVEN


def test_cases_of_a_proof_are_told_together():
    tests = planned("t[x]", "t[y]")
    [proof] = remit.proofs(tests, {"t[x]": shown(), "t[y]": {**shown(), "runtimes": ["runc", "gvisor"]}})
    assert (proof.planned, proof.passed, proof.runtimes, proof.controls) == (2, 2, ["runc", "gvisor"], ["c"])


def test_the_page_tells_what_was_not_tried_of_a_proof():
    """A case that was skipped is not among those that were shown, though another one of the same proof was."""
    tests = {name: test | {"case": case} for case in "xy" for name, test in planned(f"t[{case}]").items()}

    def told(**results):
        found = remit.proofs(tests, {f"t[{case}]": result for case, result in results.items()})
        [entry] = [line for line in remit.page(remit.lines(found, complete=True), {}).splitlines() if "It is" in line]
        return entry.partition("x.py))")[2]

    assert told(x=shown(), y=shown()) == " Runtimes: runc. Cases: x; y."
    assert told(x=shown(), y=shown(skipped="why")) == " **not tried here: y: why** Runtimes: runc. Cases: x."
    assert told(x=shown(skipped="a"), y=shown(skipped="b")) == " **not tried here: x: a; y: b**"
    assert told(x=shown(passed=False), y=shown()) == f" **{remit.NOT_PROVEN}** Runtimes: runc. Cases: x; y."


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["one process", "two workers"])
def test_the_table_is_the_same_with_workers(workers, tmp_path):
    """These tests are not the whole remit, so none of it is proven, and no page is written."""
    (tmp_path / "test_some.py").write_text(SUITE.replace("FAILS", "False"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conformance.plugin", *workers]
    done = subprocess.run(
        [*command, "--conformance-page", str(page), "test_some.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}/tests/support:{ROOT}/tests/e2e", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("R-")]
    assert [(row[:4], *re.split(r" {2,}", row)[-2:]) for row in rows] == [
        ("R-01", "2 of 2", remit.HELD),
        ("R-02", "1 of 1", remit.HELD),
        ("R-03", "1 of 1", remit.NOT_PROVEN),
    ]
    assert "is not written: not all tests of the remit ran" in done.stdout
    assert not page.exists()
