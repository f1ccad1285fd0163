"""R-14: there is nothing to ask for egress with."""

import json

import pytest
from cluster_tools import SANDBOX, Admin, a_name, an_execution, image

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-14")]

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
CREATE = ["create", "--dry-run=server", "-f", "-"]
OPENING = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "opening", "namespace": SANDBOX},
    "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]},
}


def a_policy():
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "ExecutionPolicy",
        "metadata": {"name": "default", "namespace": SANDBOX},
        "spec": {"images": [image()]},
    }


def test_no_field_asks_for_egress(control, admin):
    """Neither an execution nor a policy has a field that opens the network."""
    execution = an_execution(a_name("egress"), [BLOCK])
    for kind, good in (("an execution", execution), ("a policy", a_policy())):
        accepted = admin.kubectl(*CREATE, stdin=json.dumps(good))
        control.succeeded(f"{kind} without such a field was accepted", accepted)
        for field in ("egress", "hostNetwork", "dnsPolicy"):
            bad = good | {"spec": good["spec"] | {field: ["example.com"]}}
            assert f'unknown field "spec.{field}"' in admin.try_kubectl(*CREATE, stdin=json.dumps(bad)).stderr


def test_who_submits_code_can_not_open_the_network(control, admin, agent_kubeconfig):
    """An agent can't create a NetworkPolicy or an ExecutionPolicy, nor delete the one that closes the network."""
    agent = Admin(agent_kubeconfig)
    for thing in (OPENING, a_policy()):
        control.succeeded(
            f"an administrator may create this object: {thing['kind']} (as a dry run)",
            admin.kubectl(*CREATE, stdin=json.dumps(thing)),
        )
        assert "forbidden" in agent.try_kubectl(*CREATE, stdin=json.dumps(thing)).stderr
    delete = ["-n", SANDBOX, "delete", "networkpolicy", "codeexec-deny-all", "--dry-run=server"]
    control.succeeded("an administrator may delete the NetworkPolicy (as a dry run)", admin.kubectl(*delete))
    assert "forbidden" in agent.try_kubectl(*delete).stderr
