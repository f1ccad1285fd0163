"""Which payloads nobody will come for."""

from typing import Any

import pytest
from factories import NOW, SECRET_UID, a_secret, seconds

from codeexec_operator.core.retention import orphaned_payloads


def aged(age: float, **changes: Any) -> dict[str, Any]:
    secret = a_secret(**changes)
    secret["metadata"]["creationTimestamp"] = (NOW - seconds(age)).isoformat().replace("+00:00", "Z")
    return secret


@pytest.mark.parametrize(
    ("secret", "orphaned"),
    [
        (aged(0), False),
        (aged(600), False),
        (aged(601), True),
        (aged(601, type="Opaque"), False),
    ],
    ids=["new", "at the limit", "old", "old, but not a payload"],
)
def test_old_payloads_only(secret: dict[str, Any], orphaned: bool) -> None:
    assert orphaned_payloads([secret], NOW) == ([("run-1", SECRET_UID)] if orphaned else [])
