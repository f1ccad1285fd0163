"""The Leases by which clients say that they are there: each belongs to the user who made it."""

from collections.abc import Callable
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, a_name

PADDED = [
    {
        "manager": "m",
        "operation": "Update",
        "apiVersion": "coordination.k8s.io/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {f"f:{index}-{'x' * 200}": {} for index in range(100)},
    }
]
NOW, LATER = "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:10.000000Z"


@pytest.fixture(scope="module")
def agent(make_user: Callable[..., Admin]) -> Admin:
    return make_user("agent")


@pytest.fixture(scope="module")
def other(make_user: Callable[..., Admin]) -> Admin:
    """Another identity with the same role."""
    return make_user("agent")


def a_lease(user: Admin, name: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name or f"codeexec-client-{a_name('one')}", "namespace": SANDBOX},
        "spec": {"holderIdentity": user.me, "leaseDurationSeconds": 35, "renewTime": NOW, **spec},
    }


@pytest.fixture
def lease(agent: Admin) -> str:
    return str(agent.create(a_lease(agent))["metadata"]["name"])


def test_control_an_agent_creates_renews_and_deletes_its_own(agent, admin, lease):
    assert agent.try_patch("lease", lease, {"spec": {"renewTime": LATER}}) is None
    assert admin.get("lease", lease)["spec"]["renewTime"] == LATER
    agent.delete("lease", lease)
    assert not admin.exists("lease", lease)


def test_nobody_touches_the_lease_of_another(agent, other, admin, lease):
    """It would end the sessions of the other, or keep them."""
    assert other.me != agent.me
    said = str(other.try_patch("lease", lease, {"spec": {"renewTime": LATER}}))
    assert f"spec.holderIdentity is '{agent.me}', but must be the user who" in said
    with pytest.raises(Exception, match="holderIdentity is"):
        other.delete("lease", lease)
    assert "spec.holderIdentity" in str(other.try_create(a_lease(agent)))
    assert admin.get("lease", lease)["spec"]["renewTime"] == NOW


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"holderIdentity": "other"}}, "only spec.renewTime"),
        ({"spec": {"leaseDurationSeconds": 1}}, "only spec.renewTime"),
        ({"metadata": {"labels": {"a": "b"}}}, "no metadata.labels"),
        ({"metadata": {"annotations": {"a": "b" * 1000}}}, "no metadata.labels"),
        ({"metadata": {"finalizers": ["a.b/c"]}}, "no metadata.labels"),
        ({"metadata": {"managedFields": PADDED}}, "metadata.managedFields must have at most 16384 bytes"),
    ],
    ids=["holder", "duration", "labels", "annotations", "finalizers", "managed fields"],
)
def test_nothing_else_is_stored_in_a_lease(agent, lease, change, said):
    assert said in str(agent.try_patch("lease", lease, change))


def test_no_other_lease_can_be_made(agent):
    assert "metadata.name must begin with codeexec-client-" in str(agent.try_create(a_lease(agent, a_name("leader"))))


def test_an_administrator_does_as_ever(admin):
    made = admin.create(a_lease(admin, a_name("leader"), holderIdentity="somebody"))
    admin.delete("lease", made["metadata"]["name"])
