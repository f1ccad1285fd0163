"""A namespace full of the largest records, and what that costs the operator, which others share."""

import asyncio
import statistics
import time
from contextlib import suppress
from typing import Any

import pytest
from cluster_tools import SANDBOX, a_name
from component_stage import Stage, in_thread
from kubernetes.aio import client as kube
from kubernetes.aio import config
from largest import managed, the_largest_output, the_largest_request

from codeexec_api.names import EXECUTION_PLURAL, GROUP, VERSION
from executor_client import ClusterRef, CodeExecutionClient, PreparedBlock

NEIGHBOUR = f"{SANDBOX}-neighbour"
LARGE, PADDED, LIVE = 120, 40, 40
PADDING = 1_200_000
"""Bytes of managedFields, as agents could write them before admission bounded them. Such records are still there."""
MOST_MIB = 300
CALLS = 20
AT_ONCE = 4
MERGE = "application/merge-patch+json"
BINDING = ("validatingadmissionpolicybinding", "codeexec-records")


@pytest.fixture
async def two(tmp_path):
    """A stage of its own with two sandbox namespaces, an operator that has not been started, and the neighbour."""
    stage = await in_thread(Stage(tmp_path, namespaces=(SANDBOX, NEIGHBOUR)).__enter__)
    operator = stage.operator(direct=True)
    client = CodeExecutionClient(ClusterRef(NEIGHBOUR, kubeconfig=stage.agent_kubeconfig(NEIGHBOUR)))
    configuration = kube.Configuration(connection_pool_maxsize=AT_ONCE)
    await config.load_kube_config(stage.plane.kubeconfig, client_configuration=configuration)
    async with kube.ApiClient(configuration) as api:
        yield stage, operator, client, Writer(stage, kube.CustomObjectsApi(api))
    await client.close()
    await in_thread(operator.end)
    await in_thread(stage.__exit__)


BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}


class Writer:
    """Makes records as the administrator, without an operator."""

    def __init__(self, stage: Stage, custom: Any) -> None:
        self._me, self._custom = stage.admin.me, custom
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def make(self, count: int, meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> None:
        """Records in the first namespace; unfinished, if the status is empty."""
        await asyncio.gather(*(self._make(meta, spec, status) for _ in range(count)))

    async def _make(self, meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> None:
        where = (GROUP, VERSION, SANDBOX, EXECUTION_PLURAL)
        name = a_name("large")
        least = {"blocks": [BLOCK], "source": {"agent": "large"}, "requestedBy": self._me}
        payload = {} if "sealedPayload" in spec else {"payloadRef": {"name": name}}
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "CodeExecution"}
        record = {**kind, "metadata": {"name": name, **meta}, "spec": {**least, **payload, **spec}}
        async with self._turns:
            created = self._custom.create_namespaced_custom_object_without_preload_content
            await _succeeds(await created(*where, record))
            if status:
                patched = self._custom.patch_namespaced_custom_object_status_without_preload_content
                await _succeeds(await patched(*where, name, {"status": status}, _content_type=MERGE))


async def _succeeds(response: Any) -> None:
    text = await response.read()
    assert response.status in (200, 201), text[:2000]


async def p95(client: CodeExecutionClient, asking: Any) -> float:
    """Of calls of the neighbour, in milliseconds."""
    times = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        assert (await client.execute([PreparedBlock("python", b'print("hello")')], asking())).output == "hello\n"
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.quantiles(times, n=20)[-1]


@pytest.mark.timeout(580, func_only=True)
async def test_a_namespace_full_of_the_largest_records_costs_the_operator_little(two, asking):
    stage, operator, client, writer = two
    await in_thread(operator.start)
    await p95(client, asking)
    alone, empty = await p95(client, asking), operator.memory_mib()
    await in_thread(operator.stop)

    meta, spec = the_largest_request()
    finished = {"phase": "Succeeded", **the_largest_output()}
    await writer.make(LARGE, {}, {}, finished)
    binding = await in_thread(stage.admin.get, *BINDING)
    await in_thread(stage.admin.delete, *BINDING)
    await _until_open(writer)
    await writer.make(PADDED, managed({"f:spec": {"f:" + "x" * PADDING: {}}}), {}, {"phase": "Succeeded"})
    kept = {key: binding["metadata"][key] for key in ("name", "labels")}
    await in_thread(stage.admin.create, {**binding, "metadata": kept})

    begun = time.monotonic()
    await in_thread(operator.start)
    ready, beside = time.monotonic() - begun, await p95(client, asking)
    at_start = operator.peak_mib()
    live = asyncio.gather(writer.make(LIVE, {}, {}, finished), writer.make(LIVE, meta, spec, {}))
    under_way = await p95(client, asking)
    await live
    at_most = operator.peak_mib()
    print(
        f"{LARGE} records of the largest output and {PADDED} padded ones: the operator holds {empty} MiB without them; "
        f"{at_start} at most at its start, ready after {ready:.1f} s; {at_most} at most while {LIVE} more end and "
        f"{LIVE} of the largest requests come; p95 of a neighbour's call {alone:.0f} ms alone, {beside:.0f} beside "
        f"them ({beside / alone:.2f} times), {under_way:.0f} while more come ({under_way / alone:.2f} times)"
    )
    assert at_start < MOST_MIB
    assert at_most < MOST_MIB


async def _until_open(writer: Writer) -> None:
    """Until the API server has heard that the policy is not bound any more."""
    async with asyncio.timeout(30):
        while True:
            with suppress(AssertionError):
                await writer.make(1, managed({"f:spec": {"f:" + "x" * PADDING: {}}}), {}, {"phase": "Succeeded"})
                return
