"""Operators of the component tier: what their environment says."""

from pathlib import Path

import operator_process
import pytest
from operator_process import LEASE_SECONDS, OperatorProcess


@pytest.mark.parametrize(
    ("clock", "times"), [(None, 1), ("-300s", 1), ("+0 x20", 20), ("+11m x10", 10)], ids=["right", "wrong", "20", "10"]
)
def test_an_operator_whose_timers_run_fast_has_as_much_time_to_renew_its_lease(
    clock: str | None, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_process, "libfaketime", lambda: tmp_path)
    made = OperatorProcess(
        tmp_path, environment={}, kubeconfig="", api_server="https://a:1", clock=clock, free_lease=lambda: None
    )
    assert made.environment["CODEEXEC_LEASE_SECONDS"] == str(LEASE_SECONDS * times)
