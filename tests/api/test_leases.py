"""The Leases by which clients say that they are there: each belongs to the user who made it, and they are bounded."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, Admin, a_name, a_secret
from fault_proxy import FaultProxy
from faults import Answer
from kubernetes.aio import client, config

from codeexec_api.names import LEASE_PREFIX
from codeexec_operator.adapters.api_server import ApiServer
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.sweeper import LeaseSweeper
from executor_client.transport.cluster import Transport

MOST = 2048
"""Bytes of managedFields that a Lease may have."""
NOW, LATER = "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:10.000000Z"
NEVER = "9999-12-31T23:59:59.999999Z"
COUNT = "count/leases.coordination.k8s.io"


def an_entry(fields: dict[str, Any], manager: str = "m") -> dict[str, Any]:
    kind = {"operation": "Apply", "apiVersion": "coordination.k8s.io/v1", "fieldsType": "FieldsV1"}
    return {"manager": manager, **kind, "fieldsV1": fields}


PADDED = [an_entry({f"f:{index}-{'x' * 200}": {} for index in range(100)})]
PADDING = {
    "long names": [an_entry({f"f:{index}-{'x' * 200}": {} for index in range(11)})],
    "short names": [an_entry({f"f:{number:x}": {f"f:{one:x}": {} for one in range(12)} for number in range(16)})],
    "many managers": [an_entry({"f:a": {}}, f"m{number}") for number in range(16)],
}
"""Little more than is allowed."""


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
        ({"metadata": {"managedFields": PADDED}}, "metadata.managedFields must have at most 2048 bytes"),
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


# --- how much there may be ---


def stored(admin: Admin, name: str) -> int:
    """Bytes of its managedFields."""
    return len(json.dumps(admin.get("lease", name)["metadata"]["managedFields"], separators=(",", ":")))


@pytest.mark.parametrize("padding", PADDING.values(), ids=PADDING.keys())
def test_a_new_lease_brings_no_padding(agent: Admin, admin: Admin, padding: list[dict[str, Any]]) -> None:
    """The operator lists them, and an agent may create many."""
    lease = a_lease(agent)
    lease["metadata"]["managedFields"] = padding
    assert f"metadata.managedFields must have at most {MOST} bytes" in str(agent.try_create(lease))
    name = str(admin.create(lease)["metadata"]["name"])
    assert MOST < stored(admin, name) < 2 * MOST, "control: the administrator may, and all of it is stored"
    admin.delete("lease", name)
    for entry in padding:
        entry["fieldsV1"] = dict(list(entry["fieldsV1"].items())[: len(entry["fieldsV1"]) // 2] or entry["fieldsV1"])
    lease["metadata"]["managedFields"] = padding[: max(len(padding) // 2, 1)]
    assert agent.try_create(lease) is None, "control: it is the size"
    assert stored(admin, name) < MOST


async def test_a_client_needs_little_of_that(agent: Admin, admin: Admin) -> None:
    transport = await Transport.connect(kubeconfig=agent.kubeconfig, context=None, namespace=SANDBOX)
    name = f"{LEASE_PREFIX}{a_name('real')}"
    for _ in range(3):
        await transport.renew_lease(name, 35, datetime.now(UTC))
    assert stored(admin, name) * 5 < MOST
    await transport.delete_lease(name)
    await transport.close()


async def test_a_race_for_the_quota_costs_a_client_nothing(agent: Admin, admin: Admin, tmp_path: Path) -> None:
    name = f"{LEASE_PREFIX}{a_name('race')}"
    race = Answer(409, message='Operation cannot be fulfilled on resourcequotas "codeexec": the object was modified')
    with FaultProxy(agent.kubeconfig) as proxy, proxy.fault(Match("create", "leases"), race, times=2) as rule:
        path = str(proxy.write_kubeconfig(tmp_path / "kubeconfig"))
        transport = await Transport.connect(kubeconfig=path, context=None, namespace=SANDBOX)
        await transport.renew_lease(name, 35, datetime.now(UTC))
        await transport.close()
    assert rule.met == 2
    assert admin.exists("lease", name)


@pytest.fixture
def full(admin: Admin, lease: str) -> Iterator[None]:
    """The quota of Leases is used up by what is there."""
    before = admin.get("resourcequota", "codeexec")["spec"]["hard"][COUNT]

    def put_in_force(count: str) -> None:
        admin.patch("resourcequota", "codeexec", {"spec": {"hard": {COUNT: count}}})
        in_force = lambda found: found["status"]["hard"].get(COUNT) == count  # noqa: E731
        admin.wait_until(f"a quota of {count} Leases", "resourcequota", "codeexec", in_force)

    put_in_force(str(len(admin.list("lease"))))
    yield
    put_in_force(before)


@pytest.mark.usefixtures("full")
def test_how_many_leases_there_may_be_is_bounded_and_clients_that_have_one_go_on(agent, admin, lease):
    assert "exceeded quota: codeexec" in str(agent.try_create(a_lease(agent)))
    assert agent.try_patch("lease", lease, {"spec": {"renewTime": LATER}}) is None
    agent.delete("lease", lease)
    counted = lambda found: int(found["status"]["used"][COUNT]) < int(found["status"]["hard"][COUNT])  # noqa: E731
    admin.wait_until("the deletion to be counted", "resourcequota", "codeexec", counted)
    assert agent.try_create(a_lease(agent)) is None


# --- what the operator deletes ---


@pytest.fixture
def namespace(admin: Admin) -> Iterator[str]:
    """One without a quota and without the policy."""
    name = a_name("leases")
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    admin.delete("namespace", name)


@pytest.fixture
async def cluster(kubeconfig: str) -> AsyncIterator[Cluster]:
    configuration = client.Configuration()
    await config.load_kube_config(kubeconfig, client_configuration=configuration)
    cluster = Cluster(ApiServer(configuration))
    yield cluster
    await cluster.close()


async def test_the_operator_deletes_what_nobody_renews_whatever_time_it_tells(admin, cluster, namespace):
    """A Lease that names a time in the future stayed for ever, and that of a client whose clock is behind did not."""

    def make(name: str, renewed: str) -> None:
        lease = a_lease(admin, name, renewTime=renewed)
        lease["metadata"] |= {"namespace": namespace, "managedFields": PADDED}
        admin.create(lease)

    def there() -> set[str]:
        return {one["metadata"]["name"] for one in admin.list("lease", namespace)}

    for number in range(120):
        make(f"codeexec-client-padded-{number}", NEVER)
    make("codeexec-client-behind", "2001-01-01T00:00:00.000000Z")
    make("another", NOW)
    sweeper = LeaseSweeper(cluster, namespace)
    await sweeper.look()
    assert len(there()) == 122, "control: whether anybody renews them is not known yet"
    behind = {"spec": {"renewTime": "2001-01-01T00:00:10.000000Z"}}
    assert admin.try_patch("lease", "codeexec-client-behind", behind, namespace) is None
    await sweeper.look()
    assert there() == {"codeexec-client-behind", "another"}


async def test_of_leases_the_operator_reads_no_more_than_a_page_of_metadata(admin, cluster, namespace):
    for number in range(101):
        lease = a_lease(admin, f"codeexec-client-{number}")
        lease["metadata"]["namespace"] = namespace
        admin.create(lease)
    pages = [page async for page in cluster.list_leases(namespace)]
    assert [len(page["items"]) for page in pages] == [100, 1]
    assert not any("spec" in one for page in pages for one in page["items"])


async def test_the_operator_keeps_no_managed_fields_of_what_agents_make(agent, admin, cluster):
    payload = a_secret(a_name("padded"), {"block-0": b"x"})
    payload["metadata"]["managedFields"] = [an_entry({"f:type": {}}) | {"apiVersion": "v1"}]
    agent.create(payload)
    listed = {one["metadata"]["name"]: one["metadata"] for one in await cluster.list_payloads(SANDBOX)}
    name = payload["metadata"]["name"]
    whole = admin.get("secret", name)["metadata"]
    assert whole.pop("managedFields"), "control: the API server does"
    assert listed[name] == whole
