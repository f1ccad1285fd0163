"""Who may do what: the agent no more than it needs, the operator no more than it uses."""

import pytest
from cluster_tools import SANDBOX, SYSTEM

pytestmark = pytest.mark.e2e

AGENT = f"system:serviceaccount:{SANDBOX}:codeexec-agent"
OPERATOR = f"system:serviceaccount:{SYSTEM}:codeexec-operator"

ALLOWED = [
    (AGENT, "create", "codeexecutions"),
    (AGENT, "get", "codeexecutions"),
    (AGENT, "watch", "codeexecutions"),
    (AGENT, "patch", "codeexecutions"),
    (AGENT, "create", "secrets"),
    (OPERATOR, "patch", "codeexecutions/status"),
    (OPERATOR, "create", "pods"),
    (OPERATOR, "delete", "pods"),
    (OPERATOR, "get", "pods/attach"),
    (OPERATOR, "delete", "secrets"),
]
FORBIDDEN = [
    (AGENT, "delete", "codeexecutions"),
    (AGENT, "patch", "codeexecutions/status"),
    (AGENT, "get", "secrets"),
    (AGENT, "list", "secrets"),
    (AGENT, "create", "pods"),
    (AGENT, "create", "pods/exec"),
    (AGENT, "get", "pods/attach"),
    (AGENT, "create", "executionpolicies"),
    (OPERATOR, "create", "pods/exec"),
    (OPERATOR, "create", "secrets"),
    (OPERATOR, "patch", "codeexecutions"),
    (OPERATOR, "delete", "codeexecutions"),
    (OPERATOR, "patch", "executionpolicies"),
    (OPERATOR, "delete", "networkpolicies"),
    (OPERATOR, "create", "rolebindings"),
]


def _can(admin, user, verb, resource, namespace=SANDBOX):
    kind, _, subresource = resource.partition("/")  # kubectl would take what follows a slash for a name
    question = ["auth", "can-i", verb, kind, "--subresource", subresource, "--namespace", namespace, "--as", user]
    return admin.try_kubectl(*question).stdout.strip() == "yes"


@pytest.mark.parametrize(("user", "verb", "resource"), ALLOWED)
def test_allowed(admin, user, verb, resource):
    assert _can(admin, user, verb, resource)


@pytest.mark.parametrize(("user", "verb", "resource"), FORBIDDEN)
def test_forbidden(admin, user, verb, resource):
    assert not _can(admin, user, verb, resource)


@pytest.mark.parametrize("resource", ["secrets", "pods", "codeexecutions"])
def test_operator_has_no_rights_elsewhere(admin, resource):
    for verb in ("get", "list", "create", "delete"):
        assert not _can(admin, OPERATOR, verb, resource, "kube-system")
