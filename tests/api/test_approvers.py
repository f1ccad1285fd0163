"""Nobody approves their own request in the name of another: not who can act as the requester either.

The CRD compares names. The built-in role `edit` may impersonate ServiceAccounts and create tokens for them, so its
holders can request in the name of an agent.
"""

from collections.abc import Callable
from typing import Any

import pytest
from chart.reviews import RBAC
from cluster_tools import SANDBOX, Admin, a_name, an_approval, an_execution, wait_for
from kube import Kube

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
GRANTS = [{"field": "spec.limits.memory", "value": "128Mi"}]
ACCOUNTS, USERS = {"resources": ["serviceaccounts"]}, {"resources": ["users"]}
CONSTRAINED = {"apiGroups": ["authentication.k8s.io"]}
CORE = {"apiGroups": [""]}
RIGHTS = {
    "to impersonate the account": ("agent", {**CORE, **ACCOUNTS, "verbs": ["impersonate"]}),
    "to impersonate the account, constrained": (
        "agent",
        {**CONSTRAINED, **ACCOUNTS, "verbs": ["impersonate:serviceaccount"]},
    ),
    "to make tokens": ("agent", {**CORE, "resources": ["serviceaccounts/token"], "verbs": ["create"]}),
    "to impersonate the user": ("user", {**CORE, **USERS, "verbs": ["impersonate"]}),
    "to impersonate the user, constrained": (
        "user",
        {**CONSTRAINED, **USERS, "verbs": ["impersonate:user-info"]},
    ),
}


@pytest.fixture
def approver(admin, kubeconfig) -> Kube:
    """A user who may decide, and nothing else so far."""
    user = a_name("approver")
    admin.create(_binding(user, "Role", "codeexec-approver", SANDBOX))
    return Kube(kubeconfig, user)


@pytest.fixture
def waiting(admin, make_user, kubeconfig) -> Callable[[str], dict[str, Any]]:
    """The record of an execution that waits for approval: of an agent with a ServiceAccount, or of a user."""

    def make(requester: str) -> dict[str, Any]:
        if requester == "agent":
            agent: Kube = make_user("agent")
            name = agent.me
        else:
            name = a_name("user")
            admin.create(_binding(name, "Role", "codeexec-agent", SANDBOX))
            agent = Kube(kubeconfig, name)
            wait_for("the role to count", lambda: agent.try_list("cex") is None)
        made = agent.create(an_execution(a_name("waiting"), [BLOCK], requestedBy=name))
        status = {"phase": "AwaitingApproval", "approval": {"grants": GRANTS}}
        return admin.patch("cex", made["metadata"]["name"], {"status": status}, subresource="status")

    return make


def _binding(user: str, kind: str, role: str, namespace: str = "") -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": a_name("bound"), **where},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


def said(user: Kube, record: dict[str, Any], name: str, **spec: Any) -> str:
    refusal = user.try_create(an_approval(record, name, **spec), dry_run=True)
    return refusal.message if refusal else ""


def accepted(user: Kube, record: dict[str, Any], name: str) -> Callable[[], bool]:
    return lambda: said(user, record, name) == ""


@pytest.mark.parametrize(("requester", "rule"), RIGHTS.values(), ids=RIGHTS)
def test_who_can_act_as_the_requester_does_not_approve(admin, approver, waiting, requester, rule):
    record, name = waiting(requester), _name(approver)
    wait_for("the approver to count", accepted(approver, record, name))  # positive control: without the right
    role = a_name("right")
    admin.create({"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": [rule]})
    admin.create(_binding(name, "ClusterRole", role, SANDBOX if requester == "agent" else ""))
    wait_for("the approval to be refused", lambda: "codeexec-approvers" in said(approver, record, name))
    assert "nobody approves their own request" in said(approver, record, name)
    assert said(approver, record, name, decision="Deny") == "", "a denial harms nobody"
    other = waiting("user" if requester == "agent" else "agent")
    assert said(approver, other, name) == "", "control: of another requester"


def test_an_editor_who_is_an_approver_does_not_approve_what_an_account_asks_for(admin, approver, waiting):
    """The account's token is there for the asking; the approval isn't."""
    record, name = waiting("agent"), _name(approver)
    wait_for("the approver to count", accepted(approver, record, name))
    admin.create(_binding(name, "ClusterRole", "edit", SANDBOX))
    wait_for("the role to count", lambda: approver.try_list("pod") is None)
    account = record["spec"]["requestedBy"].rpartition(":")[2]
    path = approver.resource("serviceaccount").path(SANDBOX, account, "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    assert approver.connection.json("POST", path, request)["status"]["token"], "positive control"
    wait_for("the approval to be refused", lambda: "codeexec-approvers" in said(approver, record, name))


def test_an_administrator_approves(admin: Admin, waiting):
    """Who may take the policy out of force can't be bound by it."""
    assert said(admin, waiting("agent"), admin.me) == ""


def _name(user: Kube) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    return str(user.create(review)["status"]["userInfo"]["username"])
