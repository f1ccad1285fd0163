"""What the lock files name."""

import re

from cluster_tools import ROOT


def locked(name: str) -> set[tuple[str, str]]:
    """Names and versions in requirements/NAME.txt."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return set(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", text, re.MULTILINE))
