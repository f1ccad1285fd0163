"""What `codeexec audit verify --from-cluster` hears from a real API server. A kubelet, which has logs, is not there."""

from collections.abc import Callable

import pytest
from chart.reviews import Account, an_account
from click.testing import CliRunner, Result
from cluster_tools import SANDBOX, Admin, a_name, wait_for

from executor_client.cli import main

LABELS = {"app.kubernetes.io/part-of": "codeexec", "app.kubernetes.io/component": "operator"}
NEEDS = "it needs `list` on pods and `get` on pods/log there"


@pytest.fixture(scope="module")
def home(make_place) -> str:
    """A namespace for an operator, which is not there yet."""
    return make_place().namespace


@pytest.fixture(scope="module")
def verify(home: str) -> Callable[[str], Result]:
    def call(kubeconfig: str) -> Result:
        options = ["--from-cluster", "--operator-namespace", home, "-n", SANDBOX, "--kubeconfig", kubeconfig]
        return CliRunner().invoke(main, ["audit", "verify", *options])

    return call


@pytest.fixture(scope="module")
def lister(admin: Admin, home: str, kubeconfig_of) -> str:
    """Kubeconfig of an account that may list pods, and not read their logs."""
    account = Account(home, a_name("lister"))
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    meta = {"name": account.name, "namespace": home}
    admin.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules})
    admin.create(*an_account(account, role=account.name))
    user = Admin(kubeconfig_of(*account))
    wait_for("the binding to count", lambda: user.try_list("pods", home) is None)
    return user.kubeconfig


def test_without_an_operator_it_asks_for_the_namespace(verify, admin, home):
    done = verify(admin.kubeconfig)
    assert done.exit_code == 1
    assert (
        f"found no operator pod in namespace '{home}'; pass the operator's namespace with --operator-namespace"
        in done.stderr
    )


def test_an_agent_may_not_list_pods_there(verify, agent_kubeconfig, home):
    done = verify(agent_kubeconfig)
    assert done.exit_code == 1
    assert f"this identity may not list pods in namespace '{home}'" in done.stderr
    assert NEEDS in done.stderr


def test_logs_are_a_right_of_their_own_and_a_pod_that_has_not_started_has_none(verify, admin, home, lister):
    pod = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "operator", "image": "none"}]}
    meta = {"name": a_name("operator"), "namespace": home, "labels": LABELS}
    admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})
    try:
        refused = verify(lister)
        assert refused.exit_code == 1
        assert f"this identity may not get pods/log in namespace '{home}'" in refused.stderr
        assert NEEDS in refused.stderr
        empty = verify(admin.kubeconfig)
        assert (empty.exit_code, "Missing   the logs" in empty.stdout) == (1, True), empty.output
    finally:
        admin.delete("pod", meta["name"], home)
