"""A namespace full of the largest records, and what that costs the operator, which others share."""

import asyncio
import time
from typing import Any

import pytest
from cluster_tools import SANDBOX, a_name
from component_stage import Stage, in_thread
from kubernetes.aio import client as kube
from kubernetes.aio import config
from largest import managed, the_largest_output, the_largest_request
from stored_records import copy_record

from codeexec_api.names import EXECUTION_PLURAL, GROUP, VERSION
from executor_client import ClusterRef, CodeExecutionClient, PreparedBlock

NEIGHBOUR = f"{SANDBOX}-neighbour"
LARGE, PADDED, LIVE = 120, 40, 40
PADDING = 1_200_000
"""Bytes of managedFields, as agents could write them before admission bounded them. Such records are still there."""
MOST_MIB = 300
CALLS = 3
AT_ONCE = 4
MERGE = "application/merge-patch+json"


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

    async def make(self, count: int, meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> list[str]:
        """Records in the first namespace; unfinished, if the status is empty. Their names."""
        return await asyncio.gather(*(self._make(meta, spec, status) for _ in range(count)))

    async def _make(self, meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> str:
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
        return name


async def _succeeds(response: Any) -> None:
    text = await response.read()
    assert response.status in (200, 201), text[:2000]


async def _serves(client: CodeExecutionClient, asking: Any) -> None:
    for _ in range(CALLS):
        assert (await client.execute([PreparedBlock("python", b'print("hello")')], asking())).output == "hello\n"


@pytest.mark.timeout(300, func_only=True)
async def test_a_namespace_full_of_the_largest_records_costs_the_operator_little(two, asking):
    stage, operator, client, writer = two
    await in_thread(operator.start)
    await _serves(client, asking)
    empty = operator.memory_mib()
    await in_thread(operator.stop)

    meta, spec = the_largest_request()
    finished = {"phase": "Succeeded", **the_largest_output()}
    padding = managed({"f:spec": {"f:" + "x" * PADDING: {}}})
    for status, copies in (
        (finished, {f"large-{number}": {} for number in range(LARGE)}),
        ({"phase": "Succeeded"}, {f"padded-{number}": padding for number in range(PADDED)}),
    ):
        [name] = await writer.make(1, {}, {}, status)
        await copy_record(stage.plane, SANDBOX, name, copies)

    begun = time.monotonic()
    await in_thread(operator.start)
    ready = time.monotonic() - begun
    await _serves(client, asking)
    at_start = operator.peak_mib()
    live = asyncio.gather(writer.make(LIVE, {}, {}, finished), writer.make(LIVE, meta, spec, {}))
    await _serves(client, asking)
    await live
    at_most = operator.peak_mib()
    print(
        f"{LARGE} records of the largest output and {PADDED} padded ones: the operator holds {empty} MiB without them; "
        f"{at_start} at most at its start, ready after {ready:.1f} s; {at_most} at most while {LIVE} more end and "
        f"{LIVE} of the largest requests come"
    )
    assert at_start < MOST_MIB
    assert at_most < MOST_MIB
