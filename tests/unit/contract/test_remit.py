"""Every line of the remit has a proof, every proof has a control, and the page tells of these proofs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MARK = "mark.remit("
PAGE = ROOT / "docs" / "security" / "conformance.md"


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tests of the remit as pytest itself finds them, in all files of the end-to-end tests that say they are."""
    places = [str(path) for path in sorted((ROOT / "tests/e2e").rglob("test_*.py")) if MARK in path.read_text()]
    target = tmp_path_factory.mktemp("remit") / "collected.json"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--conformance-list", str(target), *places],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(target.read_text())


@pytest.fixture(scope="module")
def remit() -> set[str]:
    from conformance.remit import guarantees

    return set(guarantees())


def test_the_remit_is_complete(remit: set[str]) -> None:
    assert remit == {f"R-{number:02}" for number in range(1, 20)}


def test_every_line_has_a_proof_and_every_proof_a_line(collected: Any, remit: set[str]) -> None:
    proven = {id_ for test in collected["tests"].values() for id_ in test["ids"]}
    assert proven == remit


def test_every_proof_has_a_control(collected: Any) -> None:
    assert [name for name, test in collected["tests"].items() if not test["control"]] == []


def test_every_proof_says_in_one_line_what_it_shows(collected: Any) -> None:
    assert [words for words in collected["words"] if not words.endswith(".")] == []


def test_proofs_are_where_the_suite_looks_for_them(collected: Any) -> None:
    assert [name for name in collected["tests"] if not name.startswith("tests/e2e/conformance/")] == []


def test_the_page_is_of_these_proofs(collected: Any) -> None:
    told = PAGE.read_text()
    missing = [words for words in collected["words"] if words not in told]
    assert missing == [], "run `make conformance`, which writes the page anew"
