"""Which queues of the API server the requests of the operator and of agents wait in (API priority and fairness)."""

from collections.abc import Callable

import pytest
from chart.reviews import OPERATOR_ACCOUNT
from cluster_tools import SANDBOX, SYSTEM, Admin, wait_for

EXECUTIONS = f"/apis/codeexec.dev/v1alpha1/namespaces/{SANDBOX}/codeexecutions"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/codeexec-operator"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
AGENT = f"system:serviceaccount:{SANDBOX}:codeexec-agent"
SESSIONS = f"/apis/codeexec.dev/v1alpha1/namespaces/{SANDBOX}/codesessions"
OTHER = "system:serviceaccount:kube-public:anybody"
SCHEMAS = ("codeexec-operator-lease", "codeexec-operator", "codeexec-creations", "codeexec-agents")
POSTED = {
    WHOAMI: {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    SESSIONS: {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "CodeSession",
        "metadata": {"name": "queued"},
        "spec": {"source": {"agent": "queued"}, "requestedBy": AGENT},
    },
}
OF_EVERYBODY = ("service-accounts", "workload-low")
"""FlowSchema and level of Kubernetes' own for ServiceAccounts."""


@pytest.fixture(scope="module")
def queue_of(admin) -> Callable[..., tuple[str, str]]:
    """FlowSchema and level that the API server chooses for a user's GET, or for what is posted, by their names."""

    def name(kind: str, uid: str) -> str:
        return next((one["metadata"]["name"] for one in admin.list(kind, None) if one["metadata"]["uid"] == uid), uid)

    def ask(user: str, path: str, **query: str) -> tuple[str, str]:
        namespace = user.split(":")[2]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        connection = Admin(admin.kubeconfig, user, groups).connection
        how = ("POST", path, POSTED[path]) if path in POSTED else ("GET", path)
        headers = connection.request(*how, **query).headers
        return (
            name("flowschema", headers["X-Kubernetes-PF-FlowSchema-UID"]),
            name("prioritylevelconfiguration", headers["X-Kubernetes-PF-PriorityLevel-UID"]),
        )

    return ask


@pytest.fixture(scope="module")
def lease(admin) -> None:
    spec = {"holderIdentity": "nobody", "leaseDurationSeconds": 1}
    meta = {"name": "codeexec-operator", "namespace": SYSTEM}
    admin.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec})


@pytest.fixture
def in_force(queue_of) -> None:
    wait_for("the FlowSchemas to count", lambda: queue_of(AGENT, EXECUTIONS)[0] == "codeexec-agents")
    wait_for("the FlowSchemas to count", lambda: queue_of(OPERATOR_ACCOUNT.user, "/version")[0] == "codeexec-operator")


def test_the_operator_and_agents_wait_in_queues_of_their_own(in_force, lease, queue_of):
    operator = OPERATOR_ACCOUNT.user
    ours, agents = ("codeexec-operator", "codeexec-operator"), ("codeexec-agents", "codeexec-agents")
    assert queue_of(operator, EXECUTIONS) == ours
    assert queue_of(operator, EXECUTIONS, watch="true", timeoutSeconds="1") == ours
    assert queue_of(operator, "/api/v1/nodes") == ours
    assert queue_of(operator, "/version") == ours
    assert queue_of(operator, LEASES) == ("codeexec-operator-lease", "leader-election")
    assert queue_of(AGENT, EXECUTIONS) == agents
    assert queue_of(AGENT, EXECUTIONS, watch="true", timeoutSeconds="1") == agents


def test_what_agents_create_waits_in_queues_of_its_own(in_force, queue_of):
    assert queue_of(AGENT, SESSIONS, dryRun="All") == ("codeexec-creations", "codeexec-creations")


def test_what_agents_ask_for_elsewhere_and_others_ask_for_waits_where_it_did(in_force, queue_of):
    assert queue_of(AGENT, WHOAMI) == OF_EVERYBODY
    assert queue_of(OTHER, WHOAMI) == OF_EVERYBODY


def test_control_without_them_the_operator_waits_with_agents_and_everybody(in_force, lease, admin, queue_of):
    kept = [admin.get("flowschema", name, "") for name in SCHEMAS]
    try:
        for name in SCHEMAS:
            admin.delete("flowschema", name, "")
        wait_for("them to count no more", lambda: queue_of(AGENT, EXECUTIONS) == OF_EVERYBODY)
        wait_for("them to count no more", lambda: queue_of(OPERATOR_ACCOUNT.user, LEASES) == OF_EVERYBODY)
        wait_for("them to count no more", lambda: queue_of(OPERATOR_ACCOUNT.user, EXECUTIONS) == OF_EVERYBODY)
    finally:
        for one in kept:
            metadata = {key: one["metadata"][key] for key in ("name", "labels")}
            admin.apply({**{key: one[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata})
