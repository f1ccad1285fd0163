"""Documents point only to what is there."""

import re
import subprocess

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
