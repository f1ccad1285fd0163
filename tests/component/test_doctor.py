"""`codeexec doctor` on a cluster: its probe, and `--capacity --measure`, which makes calls of each kind."""

import json
from typing import Any

from click.testing import CliRunner
from cluster_tools import SANDBOX
from component_stage import LIMITS, RUNTIME_CLASS, in_thread

from executor_client.cli import main

SIZE = ("--cpu", LIMITS["cpu"], "--memory", LIMITS["memory"])


def doctor(kubeconfig: str, *options: str) -> dict[str, Any]:
    command = ["doctor", "--capacity", "-o", "json", "-n", SANDBOX, "--kubeconfig", kubeconfig, *SIZE, *options]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


async def test_each_kind_of_call_is_measured(operator, stage, admin, make_pool):
    pool = await make_pool(2)
    found = await in_thread(doctor, admin.kubeconfig, "--measure", "3", "--callers", "2")
    measured = found["measured"]
    assert [one["kind"] for one in measured["results"]] == ["pool", "session", "own pod"]
    # An API server asks no kubelet on a loopback address for figures. tests/unit has CPU.
    [note] = measured["notes"]
    assert note == "CPU was not measured: the kubelet of node simulated-000 can't be asked: 400 address not allowed"
    for one in measured["results"]:
        assert 0 < one["p50_s"] <= one["p95_s"]
        assert one["per_second"] > 0
    assert pool.name in [one["pool"] for one in found["pools"]]
    nodes = [one for one in found["nodes"] if one["open"]]
    assert len(nodes) == 3, "the RuntimeClass of the policy tolerates their taint"
    assert sum(one["sandboxes"] for one in nodes) >= 2
    assert found["total"]["more"] > 100


async def test_an_agent_measures_without_cpu_and_is_told_why(operator, stage, agent):
    found = await in_thread(
        doctor, stage.agent_kubeconfig(), "--measure", "2", "--callers", "1", "--runtime-class", RUNTIME_CLASS
    )
    measured = found["measured"]
    assert {one["kind"] for one in measured["results"]} == {"session", "own pod"}
    assert [one["cpu_s"] for one in measured["results"]] == [None, None]
    assert "CPU was not measured: the nodes are unknown" in measured["notes"]
    assert any("no pool has pods of these limits" in one for one in measured["notes"])


async def test_doctor_does_not_wait_for_somebody_who_approves_its_probe(admin, policy):
    await in_thread(lambda: policy(languages=["bash"], withApproval={"languages": ["python"]}))
    command = ["doctor", "-o", "json", "-n", SANDBOX, "--kubeconfig", admin.kubeconfig]
    done = await in_thread(CliRunner().invoke, main, command)
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert found["execution"]["outcome"] == "unknown"
    assert "spec.blocks[0].language: python" in found["execution"]["found"]
    name = next(one for one in found["execution"]["advice"].split() if one.startswith("run-")).rstrip(";")
    await in_thread(admin.wait_for_phase, name, "Cancelled")
