"""R-12 where the network is open: nobody's code is handed over; told to warn only, the second layer holds alone."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_tools import SANDBOX, TERMINAL, Admin, a_name, wait_for
from conformance.network_attacks import REACHES, SOCKETS

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-12")]

DENY_ALL = "codeexec-deny-all"
SMALL = {"cpu": "100m", "memory": "64Mi"}


def _try(admin: Admin, verdict: str) -> dict[str, Any] | None:
    """The status of a new execution, if its egress proof has this verdict."""
    name = a_name(verdict.lower())
    admin.submit(name, "print('ran')", limits=SMALL, ttlSecondsAfterFinished=0)
    status = admin.wait_for_phase(name, *TERMINAL)["status"]
    return status if status.get("egressProof", {}).get("verdict") == verdict else None


@pytest.fixture
def engine_disarmed(admin: Admin) -> Iterator[dict[str, Any]]:
    """A node whose network plugin enforces no policy, as many do, with the policy in place; yields what came of an
    execution there."""
    node = json.loads(admin.kubectl("get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"]
    agent = ["docker", "exec", node, "cilium-dbg", "config"]
    if not shutil.which("docker") or subprocess.run(agent, capture_output=True).returncode != 0:
        pytest.skip("needs the node of the test cluster, with Docker and Cilium")
    subprocess.run([*agent, "PolicyEnforcement=never"], check=True, capture_output=True)
    try:
        yield wait_for("an execution to find the network open", lambda: _try(admin, "Open"))
    finally:
        subprocess.run([*agent, "PolicyEnforcement=default"], check=True, capture_output=True)
        wait_for("an execution to find the network closed again", lambda: _try(admin, "Closed"))


@pytest.fixture(scope="module")
def policy_removed(admin: Admin) -> Iterator[dict[str, Any]]:
    """The sandbox namespace without its NetworkPolicy, until the tests of this file are done; yields what came of an
    execution there."""
    kept = admin.get("networkpolicy", DENY_ALL)
    kept["metadata"] = {key: kept["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    admin.kubectl("-n", SANDBOX, "delete", "networkpolicy", DENY_ALL)
    try:
        yield wait_for("an execution to find the network open", lambda: _try(admin, "Open"))
    finally:
        admin.apply(kept)
        wait_for("an execution to find the network closed again", lambda: _try(admin, "Closed"))


@pytest.mark.parametrize("gap", ["engine_disarmed", "policy_removed"])
async def test_no_code_where_the_network_is_open(control, sandbox, request, gap):
    """Where nothing enforces the NetworkPolicy, or it is gone, no code is handed over; the message names the fix."""
    before = await sandbox.run("print('ran')")
    control.succeeded("with the policy in force the same code ran", before.output == "ran\n")
    status = request.getfixturevalue(gap)
    assert (status["phase"], status["reason"]) == ("Denied", "EgressNotEnforced")
    assert {"startedAt", "blocks", "stdout", "exitCode"} & set(status) == set()
    assert "NetworkPolicy codeexec-deny-all" in status["message"]
    assert "No code was run" in status["message"]
    assert "NetworkPolicy" not in status.get("layers", [])


async def test_the_second_layer_holds_alone(policy_removed, attack, control, addresses, sandbox, policy):
    """With the NetworkPolicy gone and the proof told to warn only, code still opens no socket, and the record warns."""
    policy(egressProof="Warn")
    result = await attack(*REACHES, *SOCKETS, facts=addresses)
    status = sandbox.record(result)["status"]
    reached = {one["name"] for one in status["egressProof"]["targets"] if not one["refused"]}
    control.succeeded(
        "in the same pod, before the code, the runner without the second layer reached the API server, DNS, the "
        "kubelet and the operator",
        reached >= {"api-server", "dns", "kubelet", "canary"},
    )
    [condition] = [one for one in status["conditions"] if one["type"] == "EgressClosed"]
    assert (condition["status"], "answered from inside the pod" in condition["message"]) == ("False", True)
    assert "Seccomp" in status["layers"]
    assert "NetworkPolicy" not in status["layers"]
