"""R-12 where the network is open: nobody's code is handed over; told to warn only, the second layer holds alone."""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_tools import SANDBOX, TERMINAL, Admin, a_name, wait_for
from conformance.network_attacks import REACHES, SOCKETS
from conformance.sandbox import BESIDE_OTHERS

pytestmark = [
    pytest.mark.remit("R-12"),
    pytest.mark.release,
    pytest.mark.suspect,
    # The limit of a test leaves out its fixtures: it must not end the one that closes the network again.
]

DENY_ALL = "codeexec-deny-all"
SMALL = {"cpu": "100m", "memory": "64Mi"}


def _try(admin: Admin, verdict: str) -> dict[str, Any] | None:
    """The status of a new execution, if its egress proof has this verdict."""
    name = a_name(verdict.lower())
    admin.submit(name, "print('ran')", limits=SMALL, ttlSecondsAfterFinished=0)
    status = admin.wait_for_phase(name, *TERMINAL)["status"]
    return status if status.get("egressProof", {}).get("verdict") == verdict else None


class Network:
    """The network of the sandbox, which is opened for a test and closed again whatever happens."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._policy = self._definition()
        self._agent = self._cilium()

    def without_policy(self) -> dict[str, Any]:
        """What comes of an execution in the sandbox namespace without its NetworkPolicy."""
        if self._agent:
            self._enforce("default")
        self._admin.delete("networkpolicy", DENY_ALL)
        return wait_for("an execution to find the network open", lambda: _try(self._admin, "Open"))

    def without_engine(self) -> dict[str, Any]:
        """The same on a node whose network plugin enforces no policy, as many do, with the policy in place."""
        if not self._agent:
            pytest.skip("needs the node of the test cluster, with Docker and Cilium")
        self._admin.apply(self._policy)
        self._enforce("never")
        return wait_for("an execution to find the network open", lambda: _try(self._admin, "Open"))

    def close(self) -> dict[str, Any]:
        """Undo both, whether they were done or not; what comes of an execution that finds it closed."""
        self._admin.apply(self._policy)
        if self._agent:
            self._enforce("default")
        return wait_for("an execution to find the network closed", lambda: _try(self._admin, "Closed"))

    def _definition(self) -> dict[str, Any]:
        kept = self._admin.get("networkpolicy", DENY_ALL)
        kept["metadata"] = {
            key: kept["metadata"].get(key, {}) for key in ("name", "namespace", "labels", "annotations")
        }
        return kept

    def _cilium(self) -> list[str]:
        """The command that sets up the node's network plugin; empty if there is none."""
        [node, *_] = self._admin.list("node")
        agent = ["docker", "exec", node["metadata"]["name"], "cilium-dbg", "config"]
        if not shutil.which("docker") or subprocess.run(agent, capture_output=True, timeout=30).returncode != 0:
            return []
        return agent

    def _enforce(self, when: str) -> None:
        done = subprocess.run(
            [*self._agent, f"PolicyEnforcement={when}"], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def network(admin: Admin) -> Iterator[Network]:
    """Closed again after the tests of this file. If that can't be shown, the run ends here: others would run open."""
    one = Network(admin)
    try:
        yield one
    finally:
        try:
            one.close()
        except BaseException as error:
            pytest.exit(f"the network of {SANDBOX} was opened by a test, and could not be closed again: {error!r}", 4)


@pytest.fixture(params=["engine_disarmed", "policy_removed"])
def closed_and_open(request: pytest.FixtureRequest, network: Network) -> tuple[dict[str, Any], dict[str, Any]]:
    """What came of the same execution before and after the network was opened in one of two ways."""
    ways = {"engine_disarmed": network.without_engine, "policy_removed": network.without_policy}
    return network.close(), ways[request.param]()


@pytest.fixture
def policy_removed(network: Network) -> None:
    """No NetworkPolicy in the sandbox namespace, and a network plugin that would enforce it."""
    network.without_policy()


def test_no_code_where_the_network_is_open(control, closed_and_open):
    """Where nothing enforces the NetworkPolicy, or it is gone, no code is handed over; the message names the fix."""
    before, status = closed_and_open
    control.succeeded("with the policy in force the same code ran", before["stdout"]["text"] == "ran\n")
    assert (status["phase"], status["reason"]) == ("Denied", "EgressNotEnforced")
    assert {"startedAt", "blocks", "stdout", "exitCode"} & set(status) == set()
    assert "NetworkPolicy codeexec-deny-all" in status["message"]
    assert "Nothing was run" in status["message"]
    assert "NetworkPolicy" not in status.get("layers", [])


async def test_the_second_layer_holds_alone(policy_removed, attack, control, addresses, sandbox, policy):
    """With the NetworkPolicy gone and the proof told to warn only, code still opens no socket, and the record warns."""
    policy(egressProof="Warn")
    result = await attack(*REACHES, *SOCKETS, facts=addresses, limits=BESIDE_OTHERS)  # in a pod that is made now
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
