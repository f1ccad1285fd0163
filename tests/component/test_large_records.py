"""A namespace full of the largest records, and what that costs the operator, which others share."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_tools import SANDBOX, a_name, wait_for
from component_stage import Stage, in_thread
from kubernetes.aio import client as kube
from kubernetes.aio import config
from largest import ESCAPED, FACE, managed, the_largest_output, the_largest_request
from operator_process import OperatorProcess
from stored_records import copy_record

from codeexec_api.names import EXECUTION_PLURAL, GROUP, VERSION
from executor_client import ClusterRef, CodeExecutionClient, PreparedBlock

NEIGHBOUR = f"{SANDBOX}-neighbour"
LARGE, PADDED, LIVE = 120, 40, 40
PADDING = 1_200_000
"""Bytes of managedFields, as agents could write them before admission bounded them. Such records are still there."""
MOST_MIB = 300
REQUESTS, LARGEST = 3000, 200
HELD, MORE_MIB = 500, 200
"""Of requests that nothing was decided about: as docs/scale.md says; with a page of the largest, as kopf lists."""
ANNOTATED = 700
ANNOTATIONS = {"annotations": {"a": ESCAPED * 32_700 + FACE}}
"""As agents could write them before admission bounded them to 4 KiB: six times as much in the JSON of a list."""
LOOK = Path(__file__).parents[1] / "support/look_once.py"
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


async def _without_them(operator: OperatorProcess, client: CodeExecutionClient, asking: Any) -> int:
    """MiB that the operator holds before there are many records. It is stopped then."""
    await in_thread(operator.start)
    await _serves(client, asking)
    empty = operator.memory_mib()
    await in_thread(operator.stop)
    return empty


async def test_a_namespace_full_of_the_largest_records_costs_the_operator_little(two, asking):
    stage, operator, client, writer = two
    empty = await _without_them(operator, client, asking)

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


@pytest.mark.timeout(500)  # two waits of 120 and 180 s, beside all else
async def test_a_namespace_full_of_requests_costs_the_operator_no_more_than_it_takes_in_at_a_time(two, asking):
    stage, operator, client, writer = two
    empty = await _without_them(operator, client, asking)

    sealed = {"sealedPayload": {"keyName": "none", "data": "A" * 21_848}}
    [small] = await writer.make(1, {}, sealed, {})
    await copy_record(stage.plane, SANDBOX, small, {f"small-{number:04}": {} for number in range(REQUESTS)})
    for filler, name in ((FACE, "faces"), (ESCAPED, "escaped")):
        [large] = await writer.make(1, *the_largest_request(filler), {})
        await copy_record(stage.plane, SANDBOX, large, {f"{name}-{number:04}": {} for number in range(LARGEST // 2)})

    await in_thread(operator.start)
    many = lambda: _pending(operator) > 3 * HELD  # noqa: E731
    await in_thread(wait_for, "more to be heard of than the operator takes in at a time", many, 120)
    begun = time.monotonic()
    await _serves(client, asking)
    served = time.monotonic() - begun
    left = await in_thread(_pending, operator)
    assert left > HELD, "control: they were not over before"
    over = lambda: _pending(operator) < left - HELD  # noqa: E731
    await in_thread(wait_for, "others to be taken in after all that it held", over, 180)
    at_most = operator.peak_mib()
    print(
        f"{REQUESTS} requests with 16 KiB of code and {LARGEST} of the largest: the operator holds {empty} MiB without "
        f"them, and {at_most} at most; {CALLS} calls of a neighbour took {served:.1f} s with {left} of them left"
    )
    assert at_most < empty + MORE_MIB


async def test_a_look_at_all_that_is_unfinished_takes_little_whatever_annotations_it_has(two):
    stage, _, _, writer = two
    [name] = await writer.make(1, {}, {}, {})
    copies = {f"annotated-{number:03}": ANNOTATIONS for number in range(ANNOTATED)}
    await copy_record(stage.plane, SANDBOX, name, copies)

    look = [sys.executable, str(LOOK), stage.plane.kubeconfig, SANDBOX]
    said = await in_thread(subprocess.check_output, look, text=True)
    found, more = map(int, said.split())
    print(f"a look at {found} unfinished requests with large annotations takes {more} MiB")
    assert found == ANNOTATED + 1, "control"
    assert more < MORE_MIB


def _pending(operator: OperatorProcess) -> int:
    """How many of the requests nothing was decided about."""
    name = f'codeexec_current_executions{{phase="Pending",sandbox_namespace="{SANDBOX}"}} '
    return int(float(next(line for line in operator.metrics().splitlines() if line.startswith(name)).split()[-1]))
