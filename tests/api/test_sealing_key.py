"""The keys that small code is sealed with are the operator's alone, whatever RBAC gives to others."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chart.reviews import an_editor
from cluster_tools import OPERATOR, SANDBOX, SYSTEM, a_name, wait_for
from kube import Kube, Refusal

from codeexec_api.names import KEY_NAME, PUBLIC_KEY, SEALING_KEY

PUBLISHED = ("configmap", SEALING_KEY, SANDBOX)
PRIVATE = ("secret", "codeexec-sealing", SYSTEM)
FALSE_KEY = {"data": {KEY_NAME: "ZmFsc2U=", PUBLIC_KEY: base64.b64encode(b"x" * 32).decode()}}
KEPT = {"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "0badcafe-0001"}


@pytest.fixture(scope="module", params=[PUBLISHED, PRIVATE], ids=["published", "private"])
def key(request) -> tuple[str, str, str]:
    """Kind, name and namespace of what holds a key."""
    return request.param


@pytest.fixture(scope="module")
def editor_of(admin) -> Iterator[Callable[[str], Kube]]:
    """Somebody with the built-in role `edit` in a namespace."""
    with an_editor(admin, SANDBOX) as here, an_editor(admin, SYSTEM) as there:
        users = {one.namespace: Kube(admin.kubeconfig, one.user, tuple(one.groups)) for one in (here, there)}
        yield users.__getitem__


def said(refusal: Refusal | None) -> str:
    """What our policy said; another refusal is none of what is tried here."""
    if refusal is None:
        return ""
    assert "ValidatingAdmissionPolicy 'codeexec-sealing' with binding 'codeexec-sealing' denied" in refusal.message
    return refusal.message


def change(user: Kube, key: tuple[str, str, str], patch: dict[str, Any]) -> str:
    kind, name, namespace = key
    return said(user.try_patch(kind, name, patch, namespace, dry_run=True))


def a_thing(key: tuple[str, str, str], name: str, **content: Any) -> dict[str, Any]:
    """An object of the same kind and namespace."""
    kind, _, namespace = key
    kinds = {"configmap": "ConfigMap", "secret": "Secret"}
    return {"apiVersion": "v1", "kind": kinds[kind], "metadata": {"name": name, "namespace": namespace}, **content}


def attempts(key: tuple[str, str, str], name: str) -> dict[str, Callable[[Kube], str]]:
    """What would be done to an object of this kind and namespace."""
    kind, _, namespace = key
    false = a_thing(key, name, **FALSE_KEY)
    return {
        "patch": lambda user: said(user.try_patch(kind, name, FALSE_KEY, namespace, dry_run=True)),
        "apply": lambda user: said(user.try_apply(false, dry_run=True)),
        "replace": lambda user: said(user.try_replace(false, dry_run=True)),
        "lock": lambda user: said(user.try_patch(kind, name, {"immutable": True}, namespace, dry_run=True)),
        "own": lambda user: said(
            user.try_patch(kind, name, {"metadata": {"ownerReferences": [KEPT]}}, namespace, dry_run=True)
        ),
        "delete": lambda user: said(user.try_delete(kind, name, namespace, dry_run=True)),
        "delete as a collection": lambda user: said(
            user.try_delete_collection(kind, namespace, fields=f"metadata.name={name}", dry_run=True)
        ),
    }


@pytest.mark.parametrize("attempt", attempts(PUBLISHED, ""))
def test_an_editor_does_nothing_to_a_key(admin, editor_of, key, attempt):
    kind, name, namespace = key
    other, editor = a_name("other"), editor_of(namespace)
    admin.create(a_thing(key, other))
    assert attempts(key, other)[attempt](editor) == "", "positive control: another of its kind"
    assert "must be changed by the operator only" in attempts(key, name)[attempt](editor)
    admin.delete(kind, other, namespace)


def test_an_editor_does_not_put_a_false_key_where_there_is_none(admin, editor_of, key):
    """Admission comes before the API server finds that there is one of this name."""
    _, name, namespace = key
    false = a_thing(key, name, **FALSE_KEY)
    assert "must be changed by the operator only" in said(editor_of(namespace).try_create(false, dry_run=True))
    assert "must be written by the operator only" in said(admin.try_create(false, dry_run=True))


def test_an_administrator_labels_empties_and_deletes_a_key_but_writes_none(admin, kubeconfig, key):
    kind, name, namespace = key
    operator = Kube(kubeconfig, OPERATOR)
    written = {"data": {"keys.json": "e30="}} if kind == "secret" else FALSE_KEY
    before = admin.get(kind, name, namespace)
    operator.patch(kind, name, written, namespace)
    try:
        assert "must be written by the operator only" in change(admin, key, {"data": {"another": "eA=="}})
        assert change(admin, key, {"metadata": {"labels": {"app.kubernetes.io/version": "9"}}}) == "", "as Helm does"
        assert change(admin, key, {"data": None}) == "", "as docs/install.md says"
        assert said(admin.try_delete(kind, name, namespace, dry_run=True)) == "", "as Helm does"
    finally:
        operator.patch(kind, name, {"data": None}, namespace)
    assert admin.get(kind, name, namespace).get("data") == before.get("data")


def test_namespace_with_a_key_can_be_deleted(admin, make_place, chart_policy):
    """The namespace controller deletes what is in a namespace, one by one or as a collection."""
    place = make_place()
    admin.create(a_thing(("configmap", "", place.namespace), SEALING_KEY))
    with chart_policy(place, "sealing") as policy:

        def refused() -> bool:
            refusal = admin.try_patch("configmap", SEALING_KEY, FALSE_KEY, place.namespace, dry_run=True)
            return refusal is not None and f"'{policy}'" in refusal.message

        wait_for("the policy to be in force", refused)
        admin.delete("namespace", place.namespace, wait=True)
