"""Who may do what, as the API server answers: each role exactly its table, and what it may do is all that it can."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chart.reviews import Account, an_account, an_account_for_each_role, by_name, rules_of
from chart.rights import (
    AGENT,
    APPROVER,
    CHECKPOINTS_AT_HOME,
    EXPORT,
    EXPORT_BY_NAME,
    OPERATOR,
    OPERATOR_AT_HOME,
    OPERATOR_AT_HOME_BY_NAME,
    OPERATOR_BY_NAME,
    OPERATOR_EVERYWHERE,
    OPERATOR_IN_DEFAULT,
    VIEWER,
    VIEWER_EVERYWHERE,
    cells,
)
from cluster_tools import SANDBOX, SYSTEM, Admin, a_name, a_secret, a_session, an_execution, wait_for
from kube import Refusal

ROLES = {"agent": AGENT, "approver": APPROVER, "viewer": VIEWER, "operator": OPERATOR | OPERATOR_EVERYWHERE}

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}


@pytest.fixture(scope="module")
def accounts(admin: Admin) -> Iterator[dict[str, Account]]:
    with an_account_for_each_role(admin) as accounts:
        yield accounts


@pytest.fixture(scope="module")
def user_of(kubeconfig_of, accounts) -> Callable[[str], Admin]:
    """Somebody who has this role, by a token as a client has it."""
    users = {role: Admin(kubeconfig_of(*account)) for role, account in accounts.items()}
    return users.__getitem__


def forbidden(refusal: Refusal | None) -> bool:
    return refusal is not None and (refusal.code, refusal.reason) == (403, "Forbidden")


# --- the tables ----------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_role_may_do_what_its_table_says_and_nothing_else(admin, accounts, role):
    everywhere, here, at_home = set(), set(), set()
    if role == "operator":
        everywhere = cells(OPERATOR_EVERYWHERE)
        here, at_home = by_name(OPERATOR_BY_NAME), cells(OPERATOR_AT_HOME) | by_name(OPERATOR_AT_HOME_BY_NAME)
    assert rules_of(admin, accounts[role], SANDBOX) == cells(ROLES[role]) | here
    assert rules_of(admin, accounts[role], SYSTEM) == everywhere | at_home
    assert rules_of(admin, accounts[role], "kube-system") == everywhere
    in_default = cells(OPERATOR_IN_DEFAULT) if role == "operator" else set()
    assert rules_of(admin, accounts[role], "default") == everywhere | in_default


def test_the_job_for_checkpoints_reads_the_operators_log_and_nothing_else(admin):
    job = Account(SYSTEM, "codeexec-checkpoints")
    assert admin.exists("serviceaccount", job.name, SYSTEM)
    assert rules_of(admin, job, SYSTEM) == cells(CHECKPOINTS_AT_HOME)
    for namespace in (SANDBOX, "kube-system", "default"):
        assert rules_of(admin, job, namespace) == set(), namespace


def test_the_job_for_exports_reads_records_and_writes_how_far_it_got(admin):
    job = Account(SYSTEM, "codeexec-export")
    assert admin.exists("serviceaccount", job.name, SYSTEM)
    assert rules_of(admin, job, SYSTEM) == cells(CHECKPOINTS_AT_HOME)
    assert rules_of(admin, job, SANDBOX) == cells(EXPORT) | by_name(EXPORT_BY_NAME)
    for namespace in ("kube-system", "default"):
        assert rules_of(admin, job, namespace) == set(), namespace


# --- the built-in role "view" --------------------------------------------------------


def test_view_reads_executions_sessions_and_policies_in_any_namespace_and_still_no_secrets(admin):
    """The chart adds to a role that holds all over the cluster."""
    onlooker = Account(a_name("elsewhere"), a_name("onlooker"))
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": onlooker.namespace}})
    admin.create(*an_account(onlooker, cluster_role="view"))
    rights = wait_for("the binding to count", lambda: rules_of(admin, onlooker, onlooker.namespace))
    assert {("", "configmaps", "get"), ("", "pods/log", "get")} <= rights, "control: it is the built-in role"
    assert {cell for cell in rights if cell[0] == "codeexec.dev"} == cells(VIEWER_EVERYWHERE)
    assert ("", "secrets", "get") not in rights


# --- sessions and executions ---------------------------------------------------------


def is_held_back(admin: Admin, user: Admin, kind: str, name: str) -> None:
    """What the role keeps from the user, who may patch the record and no more, and an administrator may do."""
    stored = admin.get(kind, name)
    forged = {"status": {"phase": "Succeeded" if kind == "codeexecution" else "Ended"}}
    for attempt in (
        lambda who: who.try_delete(kind, name, dry_run=True),
        lambda who: who.try_replace(stored, dry_run=True),
        lambda who: who.try_patch(kind, name, forged, subresource="status", dry_run=True),
    ):
        assert attempt(admin) is None, "control"
        assert forbidden(attempt(user))


def is_stopped(user: Admin, kind: str, name: str, *changes: dict[str, Any]) -> None:
    """What the role lets through, and an admission policy or, for these changes of the spec, the CRD stops."""

    def patch(change: dict[str, Any]) -> str:
        return getattr(user.try_patch(kind, name, change), "message", "")

    assert patch({}) == "", "control: a patch as such"
    assert "metadata can't be changed" in patch({"metadata": {"labels": {"example.com/ticket": "7"}}})
    for metadata in ({"ownerReferences": [OWNER]}, {"finalizers": ["example.com/for-ever"]}):
        assert "ValidatingAdmissionPolicy" in patch({"metadata": metadata})
    for change in changes:
        assert "immutable" in patch({"spec": change})


@pytest.mark.parametrize("role", ["agent", "approver"])
def test_a_session_is_ended_and_nothing_else_is_done_with_it(admin, user_of, role):
    user, session = user_of(role), a_session(a_name("session"))
    name = admin.create(session)["metadata"]["name"]
    is_held_back(admin, user, "codesession", name)
    is_stopped(user, "codesession", name, {"maxLifetimeSeconds": 604_800}, {"limits": {"memory": "1Gi"}})
    refused = user.try_create(a_session(a_name("own"), requestedBy=user.me), dry_run=True)
    assert forbidden(refused) if role == "approver" else refused is None
    assert user.try_patch("codesession", name, {"spec": {"ended": True}}) is None
    taken_back = user.try_patch("codesession", name, {"spec": {"ended": False}})
    assert "spec.ended can't be taken back" in taken_back.message


@pytest.mark.parametrize("role", ["agent", "approver"])
def test_an_execution_is_cancelled_and_nothing_else_is_done_with_it(admin, user_of, role):
    user, name = user_of(role), a_name("execution")
    admin.create(an_execution(name, [BLOCK]))
    is_held_back(admin, user, "codeexecution", name)
    is_stopped(user, "codeexecution", name, {"timeoutSeconds": 600})
    assert user.try_patch("codeexecution", name, {"spec": {"cancelled": True}}) is None
    taken_back = user.try_patch("codeexecution", name, {"spec": {"cancelled": False}})
    assert "spec.cancelled can't be taken back" in taken_back.message


def test_an_approver_submits_nothing_and_reads_no_list_of_secrets(admin, user_of):
    approver, agent = user_of("approver"), user_of("agent")
    for thing in (
        an_execution(a_name("own"), [BLOCK], requestedBy=agent.me),
        a_secret(a_name("own"), {"block-0": b"x"}),
    ):
        assert agent.try_create(thing, dry_run=True) is None, "control"
        assert forbidden(approver.try_create(thing, dry_run=True))
    for kind in ("secrets", "pods"):
        assert admin.try_list(kind) is None, "control"
        assert forbidden(approver.try_list(kind))


# --- output --------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["agent", "approver", "viewer"])
def test_output_is_read_by_name_and_never_written(admin, user_of, role):
    user = user_of(role)
    there = "kube-root-ca.crt"  # Kubernetes puts it into every namespace
    metadata = {"name": a_name("forged"), "namespace": SANDBOX}
    new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"stdout": "x"}}
    assert user.try_get("configmap", there) is None
    for attempt in (
        lambda who: who.try_list("configmap"),
        lambda who: who.try_create(new, dry_run=True),
        lambda who: who.try_patch("configmap", there, {"data": {"stdout": "x"}}, dry_run=True),
        lambda who: who.try_delete("configmap", there, dry_run=True),
        lambda who: who.try_get("configmap", "codeexec-operator", SYSTEM),
    ):
        assert attempt(admin) is None, "control"
        assert forbidden(attempt(user))
