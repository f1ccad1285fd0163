"""Documents point only to what is there."""

import re
import subprocess
from pathlib import Path

import pytest
from cluster_tools import ROOT

DOCUMENTS = sorted(
    ROOT / name for name in subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).splitlines()
)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document) -> None:
    missing = [target for target in LINK.findall(document.read_text()) if not (document.parent / target).exists()]
    assert missing == []


def headings(page: Path) -> set[str]:
    """As GitHub names them in links."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return {
        re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", shown, re.MULTILINE)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_section_leads_to_a_heading(document) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", document.read_text())
    pages = [((document.parent / target) if target else document, section) for target, section in links]
    assert [
        (page.name, section) for page, section in pages if page.suffix == ".md" and section not in headings(page)
    ] == []


def test_each_test_that_the_readme_of_the_tests_names_is_there() -> None:
    tests = list((ROOT / "tests").rglob("test_*.py"))
    there = {path.stem for path in tests} | set(re.findall(r"def (test_\w+)", "".join(map(Path.read_text, tests))))
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "tests" / "README.md").read_text()))
    assert len(named) > 25
    assert named - there == set()
