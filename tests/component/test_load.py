"""Many executions on few pods, and much that is there already: each gets its own answer, nothing is left, it starts."""

import asyncio
import os
import time
from collections.abc import Iterable

import pytest
from api_calls import Call
from cluster_tools import SANDBOX, a_name, wait_for
from component_stage import LIMITS, Stage, in_thread
from kubernetes.aio import client as kube
from kubernetes.aio import config

from codeexec_api.names import EXECUTION_LABEL, EXECUTION_PLURAL, GROUP, PAYLOAD_SECRET_TYPE, VERSION
from executor_client import ClusterRef, CodeExecutionClient, PreparedBlock

EXECUTIONS, AT_ONCE, REPLICAS = 150, 20, 4
NODES, NAMESPACES, RECORDS = 300, 100, 1_000
CALLS = 150
"""Less than there are of nodes or records: nodes come in 30 pages, records in 20."""


@pytest.fixture
async def by_itself(stage, nobody_leads):
    """An operator that talks to the API server without the proxy, which takes the machine's time, too."""
    other = stage.operator(direct=True)
    await in_thread(other.start)
    yield other
    await in_thread(other.end)


@pytest.fixture
async def pool(stage, by_itself, admin):
    name = a_name("load")
    kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool", "metadata": {"name": name, "namespace": SANDBOX}}
    await in_thread(lambda: admin.apply({**kind, "spec": {"replicas": REPLICAS, "limits": LIMITS}}))

    def ready() -> bool:
        return admin.get("sandboxpool", name).get("status", {}).get("readyReplicas", 0) == REPLICAS

    await in_thread(wait_for, "the pool to be full", ready)
    yield name
    await in_thread(admin.delete, "sandboxpool", name, wait=True)
    await in_thread(wait_for, "its pods to go", lambda: not [one for one in stage.pods() if one.startswith(name)])


async def test_each_of_many_gets_its_own_answer_and_its_own_pod(by_itself, stage, admin, client, asking, agent, pool):
    turns = asyncio.Semaphore(AT_ONCE)
    tokens = [os.urandom(8).hex() for _ in range(EXECUTIONS)]

    async def one(token: str):
        async with turns:
            return await client.execute([PreparedBlock("python", f'print("{token}")'.encode())], asking())

    begun = time.monotonic()
    results = await asyncio.gather(*map(one, tokens))
    seconds = time.monotonic() - begun
    assert [(one.exit_code, one.output) for one in results] == [(0, f"{token}\n") for token in tokens]

    records = await in_thread(lambda: stage.records(agent=agent))
    assert len(records) == EXECUTIONS
    assert {one["status"]["phase"] for one in records} == {"Succeeded"}
    assert {one["status"]["poolName"] for one in records} == {pool}
    used = {one["status"]["podName"] for one in records}
    assert len(used) == EXECUTIONS
    assert {stage.script.jobs[one["metadata"]["uid"]] for one in records} == {1}
    assert stage.script.pods_used_twice == 0

    def left() -> set[str]:
        return {one for one in stage.pods() if one.startswith(pool)}

    await in_thread(wait_for, "the pods that were used to go", lambda: not used & left())
    await in_thread(wait_for, "the pool to be as it was", lambda: len(left()) == REPLICAS)
    selector = f"type={PAYLOAD_SECRET_TYPE}"
    listed = await in_thread(admin.list, "secret", fields=selector)
    payloads = [one["metadata"]["labels"][EXECUTION_LABEL] for one in listed]
    assert not set(payloads) & {one["metadata"]["name"] for one in records}
    print(f"{EXECUTIONS} executions in {seconds:.0f} s; the operator holds {by_itself.memory_mib()} MiB")


@pytest.mark.timeout(400)
async def test_an_operator_starts_on_a_large_cluster(large, asking, agent):
    """Nodes, namespaces and records are real objects of a real API server."""
    stage, operator, client = large
    configuration = kube.Configuration(connection_pool_maxsize=40)
    await config.load_kube_config(stage.plane.kubeconfig, client_configuration=configuration)
    async with kube.ApiClient(configuration) as api:
        core, custom = kube.CoreV1Api(api), kube.CustomObjectsApi(api)
        record = await _a_record(client, asking, stage, agent)
        await in_thread(operator.stop)
        turns = asyncio.Semaphore(40)

        async def make(call, *arguments) -> None:
            async with turns:
                response = await call(*arguments)
                await response.read()
                assert response.status == 201, await response.text()

        node, space = core.create_node_without_preload_content, core.create_namespace_without_preload_content
        execution = custom.create_namespaced_custom_object_without_preload_content
        status = custom.patch_namespaced_custom_object_status_without_preload_content

        async def ended(number: int) -> None:
            name = f"old-{number}"
            await make(execution, GROUP, VERSION, SANDBOX, EXECUTION_PLURAL, {**record, "metadata": {"name": name}})
            patch = {"status": record["status"]}
            async with turns:
                where = (GROUP, VERSION, SANDBOX, EXECUTION_PLURAL, name, patch)
                response = await status(*where, _content_type="application/merge-patch+json")
                await response.read()
                assert response.status == 200, await response.text()

        begun = time.monotonic()
        await asyncio.gather(*(make(node, {"metadata": {"name": f"bare-{one}"}}) for one in range(NODES)))
        await asyncio.gather(*(make(space, {"metadata": {"name": f"space-{one}"}}) for one in range(NAMESPACES)))
        await asyncio.gather(*map(ended, range(RECORDS)))
        made = time.monotonic() - begun
        begun, before = time.monotonic(), len(stage.proxy.seen())
        await in_thread(operator.start)
        started = time.monotonic() - begun
        calls = len(_without_repeated_reads(one.call for one in stage.proxy.seen()[before:]))
        assert calls < CALLS, "it asks for pages, and for no object by itself"
        assert (await client.execute([PreparedBlock("python", b'print("hello")')], asking())).output == "hello\n"
        print(
            f"{NODES} nodes, {NAMESPACES} namespaces, {RECORDS} records made in {made:.0f} s; the operator was ready "
            f"after {started:.1f} s and {calls} calls, and holds {operator.memory_mib()} MiB"
        )


def _without_repeated_reads(calls: Iterable[Call]) -> list[Call]:
    """A read is made again if no answer comes in time."""
    reads, others = dict[tuple[object, ...], Call](), list[Call]()
    for call in calls:
        if call.verb in ("get", "list"):
            reads[call.path, *sorted(call.query.items())] = call
        else:
            others.append(call)
    return [*reads.values(), *others]


@pytest.fixture
async def large(tmp_path):
    """A stage of its own, so that no other test has to do with what is made here; an operator and a client."""
    stage = await in_thread(Stage(tmp_path).__enter__)
    operator = stage.operator()
    await in_thread(operator.start)
    client = CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig=stage.agent_kubeconfig()))
    yield stage, operator, client
    await client.close()
    await in_thread(operator.end)
    await in_thread(stage.__exit__)


async def _a_record(client, asking, stage, agent) -> dict:
    """One that has ended, as a pattern for others; requested by the administrator, who makes them."""
    await client.execute([PreparedBlock("python", b'print("old")')], asking())
    one = await in_thread(stage.record, agent)
    spec = {**one["spec"], "requestedBy": stage.admin.me}
    return {"apiVersion": one["apiVersion"], "kind": one["kind"], "spec": spec, "status": one["status"]}
