"""R-14: what is reached was granted, by the policy or by a human; what was granted is all that is reached."""

from datetime import timedelta

import pytest
from cluster_fixtures import ControlPod
from cluster_tools import SANDBOX, TERMINAL, Admin, a_name, a_policy
from conformance.network_attacks import (
    SOCKETS,
    ask_dns,
    connect_to_dns,
    reach_another_pod,
    reach_the_api_server,
    reach_the_kubelet,
    resolve_a_name,
)

from executor_client import ClusterRef, CodeExecutionClient

pytestmark = pytest.mark.remit("R-14")

OPENING = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "opening", "namespace": SANDBOX},
    "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]},
}
PORT = 8000
REACH = """
import socket, time
late = time.monotonic() + 120
while True:
    try:
        print(socket.create_connection({address!r}, 5).getpeername()[1])
        break
    except OSError as error:
        if time.monotonic() > late:
            print(type(error).__name__)
            break
    time.sleep(0.2)
"""
"""A network plugin takes a moment until a permit works."""
SMALL = {"cpu": "100m", "memory": "96Mi"}


@pytest.fixture(scope="module")
def server(admin: Admin, make_control_pod) -> ControlPod:
    pod = make_control_pod(
        a_name("granted"), {"command": ["python3", "-m", "http.server", str(PORT), "--directory", "/opt"]}
    )
    admin.patch("pod", pod.name, {"metadata": {"labels": {"app": pod.name}}}, pod.namespace)
    return pod


@pytest.fixture
def permit(server: ControlPod) -> dict[str, object]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": server.namespace}},
        "podSelector": {"matchLabels": {"app": server.name}},
        "port": PORT,
    }


async def test_what_was_granted_is_all_that_is_reached(attack, addresses, policy, server, permit, sandbox):
    """Code with a permit for one port of one pod reaches no other pod, no API server, no kubelet and no DNS."""
    policy(egress=[permit])
    text = f"namespaces{{kubernetes.io/metadata.name={server.namespace}}},pods{{app={server.name}}}:{PORT}"
    reaches = (reach_another_pod, reach_the_api_server, reach_the_kubelet, ask_dns, connect_to_dns, resolve_a_name)
    result = await attack(*reaches, *SOCKETS, facts=addresses, silence=True, egress=[text])
    status = sandbox.record(result)["status"]
    assert status["egressProof"]["verdict"] == "Restricted"
    assert [one["permit"] for one in status["egress"]] == [f"{text}/TCP"]
    reached = await sandbox.run(REACH.format(address=(server.ip, PORT)), egress=[text])
    assert reached.output == f"{PORT}\n", "what was granted is reached"


async def test_without_a_grant_nothing_is_opened(control, admin, approver, policy, server, permit):
    """What the policy leaves to approval is reached once a human has approved it; what it does not name is denied."""
    policy(withApproval={"egress": [permit]})
    code = REACH.format(address=(server.ip, PORT))
    name, other = a_name("asks"), a_name("denied")
    admin.submit(name, code, limits=SMALL, timeoutSeconds=300, egress=[permit])
    admin.submit(other, code, limits=SMALL, egress=[{**permit, "port": PORT + 1}])
    assert admin.wait_for_phase(other, *TERMINAL)["status"]["reason"] == "PolicyViolation"
    waiting = admin.wait_for_phase(name, "AwaitingApproval")["status"]
    assert "podName" not in waiting
    async with CodeExecutionClient(ClusterRef(SANDBOX, approver.kubeconfig)) as client:
        await client.approve(await client.get(name), valid=timedelta(minutes=5))
    status = admin.wait_for_phase(name, *TERMINAL)["status"]
    control.succeeded("with the approval of a human the same code reached it", status["stdout"]["text"] == f"{PORT}\n")
    assert status["approval"]["approver"] == approver.me


@pytest.mark.parametrize("target", ["api", "kubelet", "metadata"])
async def test_nobody_can_grant_the_cluster_itself(target, control, admin, policy, addresses, server, permit):
    """API server, nodes and a cloud's metadata are denied whatever the policy says, and nobody is asked."""
    anything = {"cidr": "0.0.0.0/0", "port": 1, "endPort": 65535}
    policy(egress=[anything, permit], withApproval={"egress": [anything]})
    address, port = (addresses | {"metadata": ("169.254.169.254", 80)})[target]
    name, granted = a_name("never"), a_name("granted")
    admin.submit(name, "print(1)", limits=SMALL, egress=[{"cidr": f"{address}/32", "port": port}])
    status = admin.wait_for_phase(name, *TERMINAL)["status"]
    assert (status["phase"], status["reason"]) == ("Denied", "PolicyViolation")
    admin.submit(granted, "print(1)", limits=SMALL, egress=[permit])
    control.succeeded(
        "under the same policy another permit was granted",
        admin.wait_for_phase(granted, *TERMINAL)["status"]["phase"] == "Succeeded",
    )


def test_who_submits_code_can_not_open_the_network(control, admin, agent_kubeconfig):
    """An agent can't create a NetworkPolicy or an ExecutionPolicy, nor delete the one that closes the network."""
    agent = Admin(agent_kubeconfig)
    for thing in (OPENING, a_policy(egress=[{"cidr": "0.0.0.0/0", "port": 443}])):
        control.succeeded(
            f"an administrator may create this object: {thing['kind']} (as a dry run)",
            admin.create(thing, dry_run=True),
        )
        assert agent.try_create(thing, dry_run=True).reason == "Forbidden"
    closing = ("networkpolicy", "codeexec-deny-all")
    allowed = admin.try_delete(*closing, dry_run=True) is None
    control.succeeded("an administrator may delete the NetworkPolicy (as a dry run)", allowed)
    assert agent.try_delete(*closing, dry_run=True).reason == "Forbidden"
