"""Which Secrets and ConfigMaps the operator deletes: nothing but what executions bring and leave behind."""

import pytest
from chart.install import Object
from cluster_tools import OPERATOR, SANDBOX, Admin, a_name


@pytest.fixture(scope="module")
def operator(kubeconfig) -> Admin:
    return Admin(kubeconfig, OPERATOR)


def an_object(kind: str, **more: object) -> Object:
    metadata = {"name": a_name("deleted"), "namespace": SANDBOX}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


@pytest.mark.parametrize(("kind", "more"), [("Secret", {"type": "codeexec.dev/payload"}), ("ConfigMap", {})])
def test_payloads_and_output_are_deleted(admin, operator, kind, more):
    made = an_object(kind, **more)
    made["metadata"]["labels"] = {"codeexec.dev/execution": "run-1"}
    admin.create(made)
    assert operator.try_delete(kind, made["metadata"]["name"]) is None
    assert not admin.exists(kind, made["metadata"]["name"])


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [("Secret", {"type": "Opaque"}, "type must be"), ("ConfigMap", {}, "labels must have codeexec.dev/execution")],
)
def test_a_compromised_operator_deletes_nothing_else(admin, operator, kind, more, said):
    made = an_object(kind, **more)
    admin.create(made)
    refusal = operator.try_delete(kind, made["metadata"]["name"])
    assert refusal is not None
    assert "'codeexec-deletions'" in refusal.message
    assert said in refusal.message
    assert admin.try_delete(kind, made["metadata"]["name"]) is None, "control: others delete it"
