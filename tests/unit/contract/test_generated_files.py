"""Files that are generated are those that the contract generates now."""

from pathlib import Path

import pytest

from codeexec_api.__main__ import generate

ROOT = Path(__file__).parents[3]
FILES = generate()


@pytest.mark.parametrize("name", FILES)
def test_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == FILES[name], "run `make generate`"


def test_the_charts_copies_are_the_crds() -> None:
    originals = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    copies = {path.name: path.read_text() for path in (ROOT / "charts/codeexec/files/crds").glob("*.yaml")}
    assert originals
    assert copies == originals
