"""What the runner tells of its isolation, from what the kernel shows in /proc."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "operator" / "sandbox" / "isolation.py"


@pytest.fixture(scope="module")
def isolation() -> Any:
    spec = importlib.util.spec_from_file_location("sandbox_isolation", SOURCE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("         0          0 4294967295\n", False),
        ("         0     524288      65536\n", True),
        ("         0          0      65536\n", True),
        ("         0          0      65532\n     65532     165532          1\n", True),
    ],
    ids=["the node's users", "a range of its own", "not all of them", "one of its own"],
)
def test_users_are_its_own_unless_all_are_mapped_to_themselves(
    isolation: Any, tmp_path: Path, lines: str, expected: bool
) -> None:
    (tmp_path / "uid_map").write_text(lines)
    assert isolation.in_user_namespace(tmp_path / "uid_map") is expected


def test_what_the_kernel_does_not_show_is_not_claimed(isolation: Any, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert (isolation.boot_id(nowhere), isolation.in_user_namespace(nowhere)) == ("", False)
