"""The real API server answers the operator as the one does that unit tests play, also on a bad day."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from cluster_answers import CASES, SPEC, STARTING, Stage
from cluster_tools import SYSTEM, Admin, a_name, an_execution
from control_plane import ControlPlane
from kubernetes.aio import client, config
from played_cluster import REFUSED

from codeexec_api import CodeExecution
from codeexec_operator.adapters.cluster import Cluster

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
    cluster = Cluster(configuration)

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
def silent(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch):
    """An API server that takes connections and answers nothing; the operator waits for less time than otherwise."""
    monkeypatch.setattr("codeexec_operator.adapters.cluster._ANSWER_SECONDS", 0.2)
    plane.programs["kube-apiserver"].pause()
    yield
    plane.programs["kube-apiserver"].resume()


async def test_an_answer_that_does_not_come_is_a_timeout(stage: Stage, silent):
    meta = stage.execution.metadata
    for call in (
        stage.cluster.write_execution(stage.execution, STARTING),
        stage.cluster.delete_network_policy(meta.namespace, meta.name),
        stage.cluster.delete_pod(meta.namespace, meta.name),
    ):
        with pytest.raises(TimeoutError):
            await call
