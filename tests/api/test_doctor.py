"""What `codeexec doctor` hears from a real API server about rights and RuntimeClasses. It runs no code here."""

import json

import pytest
from click.testing import CliRunner, Result
from cluster_tools import SANDBOX, Admin, a_name

from executor_client.cli import main


def doctor(kubeconfig: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "-o", "json", "-n", SANDBOX, "--kubeconfig", kubeconfig, *options])


def findings(done: Result) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["outcome"], one["found"]) for one in json.loads(done.stdout)}


@pytest.fixture
def nobody(admin: Admin, kubeconfig_of) -> str:
    """Kubeconfig of an account without any role."""
    account = a_name("nobody")
    meta = {"name": account, "namespace": SANDBOX}
    admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    return kubeconfig_of(SANDBOX, account)


def test_it_names_the_rights_that_are_missing_and_runs_nothing(nobody, agent_kubeconfig):
    done = doctor(nobody)
    found = findings(done)
    assert found["rights"][0] == "failed"
    assert "create codeexecutions.codeexec.dev" in found["rights"][1]
    assert found["execution"] == ("unknown", "no code was run, because a check failed")
    assert done.exit_code == 1
    allowed = doctor(agent_kubeconfig, "--no-run")
    assert findings(allowed)["rights"][0] == "ok", "control"
    assert allowed.exit_code == 0


def test_it_looks_for_the_runtime_class(admin, kubeconfig, agent_kubeconfig):
    there = a_name("runtime")
    admin.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": there}, "handler": "x"})
    try:
        for name, outcome, exit_code in ((there, "ok", 0), ("nothing", "failed", 1)):
            done = doctor(kubeconfig, "--no-run", "--runtime-class", name)
            assert (findings(done)["runtime class"][0], done.exit_code) == (outcome, exit_code)
        asked_by_agent = doctor(agent_kubeconfig, "--no-run", "--runtime-class", "nothing")
        assert findings(asked_by_agent)["runtime class"][0] == "unknown"
    finally:
        admin.delete("runtimeclass", there)
