"""Files that are generated are those that the contract generates now."""

from pathlib import Path

import pytest

from codeexec_api.__main__ import generate

ROOT = Path(__file__).parents[3]
FILES = generate()


@pytest.mark.parametrize("name", FILES)
def test_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == FILES[name], "run `make generate`"


def test_the_chart_installs_no_other_crds_and_crds_shows_the_same() -> None:
    generated = {ROOT / name for name in FILES if name != "docs/phases.md"}
    assert set((ROOT / "charts/codeexec/files/crds").iterdir()) == generated
    assert {path.resolve() for path in (ROOT / "crds").glob("*.yaml")} == generated
