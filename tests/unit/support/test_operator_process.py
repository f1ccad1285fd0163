"""Operators of the component tier: what their environment says."""

import json
from pathlib import Path

import operator_process
import pytest
import telling_operator
from operator_process import LEASE_SECONDS, OperatorProcess
from telling_operator import TIMING

from codeexec_operator.adapters import code_reader, operation
from codeexec_operator.core.timing import Timing


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
    patience = {"start_timeout": 60, "payload_grace": 60, "ping_answer": 15, "give_way": 60}
    assert json.loads(made.environment[TIMING]) == {name: seconds * times for name, seconds in patience.items()}


def test_a_test_about_the_time_that_a_start_may_take_sets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_process, "libfaketime", lambda: tmp_path)
    made = OperatorProcess(
        tmp_path,
        environment={},
        kubeconfig="",
        api_server="https://a:1",
        clock="+0 x10",
        free_lease=lambda: None,
        timing={"start_timeout": 150},
    )
    patience = {"payload_grace": 600, "ping_answer": 150, "give_way": 600}
    assert json.loads(made.environment[TIMING]) == {"start_timeout": 150, **patience}


def test_an_operator_has_the_patience_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "Timing", Timing)  # which is there again after the test
    telling_operator.be_patient({"start_timeout": 150})
    assert operation.Timing() == Timing(start_timeout=150)


def test_an_operator_reads_code_for_as_long_as_a_busy_machine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_reader, "WALL_SECONDS", code_reader.WALL_SECONDS)  # which is there again after the test
    telling_operator.read_code_patiently()
    assert code_reader.WALL_SECONDS == 100
