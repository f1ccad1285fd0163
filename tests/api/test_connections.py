"""Only the operator gets into a sandbox pod, and only by attaching to it, whatever RBAC gives to others.

The API server asks admission before it looks for the pod's node. So a connection that admission lets through ends here
with what the API server says to a request that is no websocket, which is the positive control.
"""

from collections.abc import Callable, Iterator

import pytest
from chart.reviews import Account, an_account_for_each_role, an_editor
from cluster_tools import OPERATOR, SANDBOX, Admin, a_name, wait_for
from kube import Kube, Refusal
from weaker_pods import a_hardened_pod

POLICY = "codeexec-connections"
CONNECTIONS = ["exec?command=true", "attach?stdin=true", "portforward?ports=80", "proxy/metrics"]
METHODS = ["GET", "POST"]


@pytest.fixture(scope="module")
def pods(admin, unguarded) -> Iterator[Callable[[str], str]]:
    """Name of a pod that is bound to a node, by namespace. No kubelet is there."""
    node, names = a_name("node"), {}
    admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    address = {"type": "InternalIP", "address": "127.0.0.1"}
    admin.patch("node", node, {"status": {"addresses": [address]}}, subresource="status")
    for namespace in (SANDBOX, unguarded.namespace):
        thing = a_hardened_pod()
        thing["metadata"]["namespace"] = namespace
        names[namespace] = name = admin.create(thing)["metadata"]["name"]
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
        admin.connection.json("POST", f"{admin.resource('pod').path(namespace, name)}/binding", binding)
    yield names.__getitem__
    for namespace, name in names.items():
        admin.delete("pod", name, namespace, gracePeriodSeconds=0)
    admin.delete("node", node)


@pytest.fixture(scope="module")
def editor(admin) -> Iterator[Kube]:
    """Somebody with the built-in role `edit` in the sandbox namespace."""
    with an_editor(admin) as account:
        yield Kube(admin.kubeconfig, account.user, tuple(account.groups))


def said(refusal: Refusal | None) -> str:
    return refusal.message if refusal else ""


def refused_by_policy(refusal: Refusal | None) -> bool:
    return f"ValidatingAdmissionPolicy '{POLICY}' with binding '{POLICY}' denied request" in said(refusal)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", CONNECTIONS)
def test_no_administrator_and_no_editor_gets_into_a_sandbox_pod(admin, editor, unguarded, pods, how, method):
    free = said(admin.try_connect(pods(unguarded.namespace), how, unguarded.namespace, method=method))
    assert ("address not allowed" if "proxy" in how else "pgrade request required") in free, "control"
    for user in (admin, editor):
        assert refused_by_policy(user.try_connect(pods(SANDBOX), how, method=method)), "RBAC lets them"


@pytest.mark.parametrize("method", METHODS)
def test_the_operator_attaches(kubeconfig, pods, method):
    operator = Kube(kubeconfig, OPERATOR)
    assert "pgrade request required" in said(operator.try_connect(pods(SANDBOX), "attach?stdin=true", method=method))
    by_rbac = operator.try_connect(pods(SANDBOX), "exec?command=true", method=method)
    assert "cannot" in said(by_rbac), "RBAC gives the operator nothing else"


def test_no_service_of_a_sandbox_namespace_is_reached_through_the_api_server(admin, editor, unguarded):
    free = admin.try_connect("any", "proxy/", unguarded.namespace, kind="service")
    since_1_37 = 'no endpoints available for service "any"'
    assert any(words in said(free) for words in ('services "any" not found', since_1_37)), "control"
    for user in (admin, editor):
        assert refused_by_policy(user.try_connect("any", "proxy/", kind="service"))


def test_users_for_an_emergency_are_named_in_the_chart(admin, kubeconfig, make_place, chart_policy):
    """They get in by everything but attaching, by which code could run under the name of a record."""
    place, doctor = make_place(), a_name("doctor")
    with chart_policy(place, "connections", **{"sandbox.breakGlassUsers": "{" + doctor + "}"}) as policy:

        def held(user: Kube, how: str) -> bool:
            return f"'{policy}'" in said(user.try_connect("nobody", how, place.namespace))

        wait_for("the policy to be in force", lambda: held(admin, CONNECTIONS[0]))
        user = Kube(kubeconfig, doctor, ("system:masters",))
        assert [how for how in CONNECTIONS if held(user, how)] == ["attach?stdin=true"]


@pytest.fixture(scope="module")
def accounts(admin: Admin) -> Iterator[dict[str, Account]]:
    with an_account_for_each_role(admin) as accounts:
        yield accounts


@pytest.mark.parametrize("role", ["agent", "approver", "viewer"])
@pytest.mark.parametrize("how", CONNECTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_no_role_of_ours_gets_as_far_as_the_policy(admin, accounts, pods, role, how, method):
    user = Kube(admin.kubeconfig, accounts[role].user, tuple(accounts[role].groups))
    refusal = user.try_connect(pods(SANDBOX), how, method=method)
    assert refusal
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert "cannot" in refusal.message
