"""How long resets of pods took, as records tell."""

from datetime import UTC, datetime
from typing import Any

import page
from resets import seconds_of
from tables import table

SINCE = datetime(2026, 1, 1, 12, 0, 0, 500_000, UTC)


def a_record(reset: Any = None, *, at: str = "2026-01-01T12:00:00Z", agent: str = "bench") -> dict[str, Any]:
    status = {"podReset": reset} if reset else {}
    return {"metadata": {"creationTimestamp": at}, "spec": {"source": {"agent": agent}}, "status": status}


def test_resets_of_this_run_and_of_nobody_else_count() -> None:
    reset = {"use": 2, "clean": True, "checked": ["Processes"], "milliseconds": 4}
    before = a_record(reset, at="2026-01-01T11:59:59Z")
    records = [a_record(reset), a_record(), before, a_record(reset, agent="another")]
    records += [{**a_record(), "status": None}, a_record(reset | {"milliseconds": 12}, at="2026-01-01T12:00:31Z")]
    assert seconds_of(records, "bench", SINCE) == [0.004, 0.012]


def test_the_page_has_them_where_they_were_measured() -> None:
    measured = table("resets", "cleaning a pod", {"codeexec: until clean": [0.004, 0.012]})
    [said, shown] = page._resets({"resets": measured})
    assert "status.podReset.milliseconds" in said
    assert "| **codeexec: until clean** | 8 ms | 12 ms | 12 ms |" in shown
    assert page._resets({}) == []
