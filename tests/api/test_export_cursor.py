"""Only the export job says which records were exported, whatever RBAC gives to others. Agents delete no record."""

import re
from collections.abc import Callable, Iterator

import pytest
from chart.reviews import an_editor
from cluster_tools import OPERATOR, SANDBOX, SYSTEM, a_name, a_session
from kube import Kube, Refusal

from codeexec_api.names import EXPORT_CURSOR

JOB = f"system:serviceaccount:{SYSTEM}:codeexec-export"
FORGED = {"data": {"codeexecutions": "999999999999", "codesessions": "999999999999"}}
CURSOR = ("configmap", EXPORT_CURSOR)


@pytest.fixture(scope="module")
def editor(admin) -> Iterator[Kube]:
    """Somebody with the built-in role `edit`."""
    with an_editor(admin, SANDBOX) as account:
        yield Kube(admin.kubeconfig, account.user, tuple(account.groups))


def said(refusal: Refusal | None) -> str:
    if refusal is None:
        return ""
    assert "ValidatingAdmissionPolicy 'codeexec-export' with binding 'codeexec-export' denied" in refusal.message
    return refusal.message


def a_cursor(name: str = EXPORT_CURSOR) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SANDBOX}, **FORGED}


ATTEMPTS: dict[str, Callable[[Kube, str], Refusal | None]] = {
    "patch": lambda user, name: user.try_patch("configmap", name, FORGED, SANDBOX, dry_run=True),
    "apply": lambda user, name: user.try_apply(a_cursor(name), dry_run=True),
    "replace": lambda user, name: user.try_replace(a_cursor(name), dry_run=True),
    "delete": lambda user, name: user.try_delete("configmap", name, SANDBOX, dry_run=True),
    "delete as a collection": lambda user, name: user.try_delete_collection(
        "configmap", SANDBOX, fields=f"metadata.name={name}", dry_run=True
    ),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_an_editor_does_nothing_to_it(admin, editor, attempt):
    other = a_name("other")
    admin.create(a_cursor(other))
    assert ATTEMPTS[attempt](editor, other) is None, "positive control: another ConfigMap"
    assert "must be changed by the export job only" in said(ATTEMPTS[attempt](editor, EXPORT_CURSOR))
    admin.delete("configmap", other, SANDBOX)


def test_the_operator_reads_it_and_forges_none(admin):
    """It may create ConfigMaps, for output."""
    operator = Kube(admin.kubeconfig, OPERATOR)
    assert "must be changed by the export job only" in said(operator.try_create(a_cursor(), dry_run=True))
    refusal = operator.try_delete(*CURSOR, SANDBOX, dry_run=True)
    assert refusal
    # Two policies refuse this. The API server tells of one of them, and does not say which comes first.
    assert re.search(r"ValidatingAdmissionPolicy 'codeexec-(export|deletions)' .* denied request", refusal.message)


def test_the_job_writes_it_and_an_administrator_empties_it(admin):
    job = Kube(admin.kubeconfig, JOB)
    assert job.try_patch(*CURSOR, FORGED, SANDBOX, dry_run=True) is None
    assert "must be written by the export job only" in said(admin.try_patch(*CURSOR, FORGED, SANDBOX, dry_run=True))
    assert said(admin.try_patch(*CURSOR, {"data": None}, SANDBOX, dry_run=True)) == "", "the next export begins anew"
    assert said(admin.try_delete(*CURSOR, SANDBOX, dry_run=True)) == "", "as Helm does"


@pytest.mark.parametrize("user", ["codeexec-agent", "codeexec-operator"])
def test_nobody_deletes_records_unless_the_values_limit_them(admin, user):
    namespace = SANDBOX if user == "codeexec-agent" else SYSTEM
    somebody = Kube(admin.kubeconfig, f"system:serviceaccount:{namespace}:{user}")
    name = a_name("kept")
    admin.create(a_session(name))
    refusal = somebody.try_delete("codesession", name, SANDBOX)
    assert refusal is not None
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    admin.delete("codesession", name, SANDBOX)
