"""Who may do what, as the API server answers; the tables that it is held to are in `rights.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from chart.rights import Cell, NamedRights
from cluster_tools import SANDBOX, SYSTEM, a_name, wait_for
from kube import Kube

RBAC = "rbac.authorization.k8s.io"


class Account(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> list[str]:
        return ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]


AGENT_ACCOUNT = Account(SANDBOX, "codeexec-agent")
OPERATOR_ACCOUNT = Account(SYSTEM, "codeexec-operator")
NOBODY = Account("default", "default")


def an_account(account: Account, *, role: str = "", cluster_role: str = "") -> list[dict]:
    """The account, bound to a Role or ClusterRole in its namespace."""
    metadata = {"name": account.name, "namespace": account.namespace}
    bound = {"kind": "Role" if role else "ClusterRole", "name": role or cluster_role, "apiGroup": RBAC}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": metadata, "roleRef": bound}
    subjects = [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}]
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, binding | {"subjects": subjects}]


@contextmanager
def an_account_for_each_role(kube: Kube) -> Iterator[dict[str, Account]]:
    """The chart's default values name no approver and no viewer, so two are made here."""
    made = {role: Account(SANDBOX, a_name(role)) for role in ("approver", "viewer")}
    for role, account in made.items():
        kube.create(*an_account(account, role=f"codeexec-{role}"))
    yield {"agent": AGENT_ACCOUNT, "operator": OPERATOR_ACCOUNT, **made}
    for namespace, name in made.values():
        kube.delete("serviceaccount", name, namespace)
        kube.delete("rolebinding", name, namespace)


@contextmanager
def an_editor(kube: Kube, namespace: str = SANDBOX) -> Iterator[Account]:
    """An account with the built-in role `edit` in a namespace, and no role of ours."""
    account = Account(namespace, a_name("editor"))
    kube.create(*an_account(account, cluster_role="edit"))
    wait_for("the role of the editor to count", lambda: ("", "pods", "create") in rules_of(kube, account, namespace))
    yield account
    kube.delete("rolebinding", account.name, namespace)
    kube.delete("serviceaccount", account.name, namespace)


def rules_of(kube: Kube, account: Account, namespace: str) -> set[Cell]:
    """All that an account may do in a namespace, without what every account may: also what no table thinks of.

    Where it may do something with one object only, its name stands behind the resource, with a colon.
    """
    return _rules(kube, account, namespace) - _rules(kube, NOBODY, namespace)


def _rules(kube: Kube, account: Account, namespace: str) -> set[Cell]:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    asked = Kube(kube.kubeconfig, account.user).create(review | {"spec": {"namespace": namespace}})
    status = asked["status"]
    assert not status["incomplete"], status.get("evaluationError")
    return {
        (group, f"{resource}{name}", verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in [f":{name}" for name in rule.get("resourceNames", ())] or [""]
        for verb in rule["verbs"]
    }


def by_name(rights: NamedRights) -> set[Cell]:
    return {(group, f"{resource}:{name}", verb) for (group, resource, name), verbs in rights.items() for verb in verbs}
