"""The client finds its cluster from inside a pod; every other way is shown in `tests/component/test_clusters.py`."""

import pytest
from cluster_tools import SANDBOX, a_name, image
from waits import SECONDS


@pytest.fixture
def elsewhere(admin):
    """A namespace of the agents' own, with a service account that has the agent's role in the sandbox namespace."""
    name, rbac = a_name("codeexec-agents"), "rbac.authorization.k8s.io"
    admin.create_namespace(name)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent", "namespace": name}}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": SANDBOX},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "codeexec-agent"},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": name}],
    }
    admin.apply(account, binding)
    yield name
    admin.kubectl("-n", SANDBOX, "delete", "rolebinding", name)
    admin.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize(("account", "phase", "words"), [("agent", "Succeeded", "42"), ("default", "Failed", "403")])
def test_from_inside_a_pod_by_its_service_account(admin, elsewhere, account, phase, words):
    container = {
        "name": "agent",
        "image": image("OPERATOR_IMAGE"),
        "command": ["python3", "-m", "executor_client", "run", "-c", "print(6*7)"],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "CODEEXEC_NAMESPACE", "value": SANDBOX}],
        "resources": {"requests": {"cpu": "50m"}},
    }
    admin.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent", "namespace": elsewhere},
            "spec": {"serviceAccountName": account, "restartPolicy": "Never", "containers": [container]},
        }
    )

    pod = admin.wait_until(
        "the agent's pod to end",
        "pod",
        "agent",
        lambda found: found["status"]["phase"] in ("Succeeded", "Failed"),
        2 * SECONDS,
        elsewhere,
    )
    assert (pod["status"]["phase"], words in admin.logs(elsewhere, "agent")) == (phase, True)
