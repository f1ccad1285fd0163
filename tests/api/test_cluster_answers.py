"""The real API server answers the operator as the one does that unit tests play, also on a bad day."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from cluster_answers import CASES, SPEC, STARTING, Stage
from cluster_tools import SANDBOX, SYSTEM, Admin, a_name, a_secret, an_execution
from control_plane import ControlPlane
from factories import IMAGE
from kubernetes.aio import client, config
from played_cluster import REFUSED

from codeexec_api import CodeExecution
from codeexec_api.names import EXECUTION_LABEL
from codeexec_operator.adapters.api_server import ApiServer
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.manifests.pod import build_pod

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}


@pytest.fixture(scope="module")
def operator_kubeconfig(kubeconfig_of) -> str:
    return kubeconfig_of(SYSTEM, "codeexec-operator")


@pytest.fixture
async def stage(admin: Admin, operator_kubeconfig: str) -> AsyncIterator[Stage]:
    """The operator's own doorway, with its rights and no others."""
    name = a_name("answers")
    stored = admin.create(an_execution(name, [BLOCK], **SPEC))
    configuration = client.Configuration()
    await config.load_kube_config(operator_kubeconfig, client_configuration=configuration)
    cluster = Cluster(ApiServer(configuration))

    async def forget() -> None:
        admin.delete("codeexecution", name, wait=True)

    yield Stage(cluster, CodeExecution.parse(stored), forget)
    await forget()
    await cluster.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_real_api_server_answers_as_the_played_one(case: Callable[[Stage], Awaitable[None]], stage: Stage):
    await case(stage)


async def test_a_network_policy_that_admission_refuses_is_a_fault(stage: Stage):
    meta = stage.execution.metadata
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}
    everything = {"metadata": {"name": meta.name, "namespace": meta.namespace}, "spec": spec}
    fault = await stage.cluster.create_network_policy(everything)
    assert fault.reason == REFUSED.reason
    assert fault.message.startswith(REFUSED.message)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cluster._NODES_AT_A_TIME", "cluster._AT_A_TIME", "api_server._METADATA"):
        monkeypatch.setattr(f"codeexec_operator.adapters.{name}", 2)


async def test_requests_are_answered_beside_any_number_of_watches(stage: Stage, admin: Admin):
    """Each namespace has one for as long as it is served; kept apart, they leave the connections of requests alone."""
    watches = [stage.cluster.watch_payloads(SANDBOX) for _ in range(101)]
    begun = [asyncio.create_task(anext(one)) for one in watches]
    secret = a_secret(a_name("payload"), {"block-0": b"x"})
    turn = 0
    try:
        async with asyncio.timeout(60):
            while not all(one.done() for one in begun):  # a watch that began later hears of a later change
                secret["metadata"] = {**secret["metadata"], "annotations": {"turn": str(turn := turn + 1)}}
                await asyncio.to_thread(admin.apply, secret)
            assert await stage.stored() == stage.execution
    finally:
        for one in begun:
            one.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        await asyncio.gather(*(one.aclose() for one in watches))


async def test_the_addresses_of_the_api_server_are_those_of_its_endpoints(stage: Stage, admin: Admin):
    """This tier's API server listens on the loopback interface, and so has no endpoint of its own."""
    metadata = {"namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}}
    ports = {"endpoints": [{"addresses": ["192.0.2.10"]}], "ports": [{"name": "https", "port": 6443}]}
    slices = {
        a_name("kubernetes"): {"addressType": "IPv4", **ports},
        a_name("kubernetes"): {"addressType": "IPv6", **ports, "endpoints": [{"addresses": ["2001:db8::10"]}]},
    }
    assert await stage.cluster.list_api_servers() == set(), "control"
    try:
        for name, content in slices.items():
            own = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {**metadata, "name": name}}
            admin.create({**own, **content})
        assert await stage.cluster.list_api_servers() == {"192.0.2.10", "2001:db8::10"}
    finally:
        for name in slices:
            admin.delete("endpointslice", name, "default")


async def test_what_comes_in_pages_comes_whole(stage: Stage, admin: Admin, small_pages):
    names = {a_name("page") for _ in range(5)}
    execution, where = stage.execution, stage.execution.metadata.namespace
    pod = build_pod(execution, image=IMAGE, deadline_seconds=60)
    try:
        for name in names:
            admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, a_secret(name, {}))
            assert await stage.cluster.create_pod({**pod, "metadata": {**pod["metadata"], "name": name}}) is None
        pods = await stage.cluster.list_pods(where, f"{EXECUTION_LABEL}={execution.metadata.name}")
        assert sorted(one["metadata"]["name"] for one in pods) == sorted(names)
        nodes = [one.name for one in await stage.cluster.list_nodes(())]
        payloads = [one["metadata"]["name"] for one in await stage.cluster.list_payloads(where)]
        for found in (nodes, payloads):
            assert sorted(one for one in found if one in names) == sorted(names)
    finally:
        for name in names:
            admin.delete("node", name)
            admin.delete("secret", name)
            await stage.cluster.delete_pod(where, name)


@pytest.fixture
def silent(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch):
    """An API server that takes connections and answers nothing; the operator waits for less time than otherwise."""
    monkeypatch.setattr("codeexec_operator.adapters.api_server.ANSWER_SECONDS", 0.2)
    plane.programs["kube-apiserver"].pause()
    yield
    plane.programs["kube-apiserver"].resume()


@pytest.mark.suspect
async def test_an_answer_that_does_not_come_is_a_timeout(stage: Stage, silent):
    meta = stage.execution.metadata
    for call in (
        stage.cluster.write_status(stage.execution, STARTING),
        stage.cluster.delete_network_policy(meta.namespace, meta.name),
        stage.cluster.delete_pod(meta.namespace, meta.name),
    ):
        with pytest.raises(TimeoutError):
            await call
