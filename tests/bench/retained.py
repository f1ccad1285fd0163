"""Shows what 10,000 records cost: the time of a warm call, and the operator's memory, before and with them.

Run by `make bench-records`, which also shows what the operator takes while 20 pods stand ready and nothing happens. The
records are made while the operator is down, so that it finds them all when it starts; each is as one of a call of
`print(1)` is. With LARGEST=1 it is 300 records, each with the largest output that a record holds. They are deleted at
the end. AutoGen's Local executor is timed in turn with ours, so that a machine that has become slower shows.
"""

import asyncio
import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from kubernetes.aio import client, config

from executor_client import KubernetesCodeExecutor, Limits

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT, SANDBOX, SYSTEM, whoami
from largest import the_largest_output
from stage import Pool, without_the_default_pool

LARGEST = os.environ.get("LARGEST") == "1"
RECORDS = int(os.environ.get("RECORDS", "300" if LARGEST else "10000"))
RUNS = int(os.environ.get("RUNS", "30"))
AT_A_TIME = 8
WHERE = ("codeexec.dev", "v1alpha1", SANDBOX, "codeexecutions")
SEED = "codeexec.dev/bench-seed"
MERGE = "application/merge-patch+json"
DEPLOYMENT = "codeexec-operator"
SETTLE_SECONDS = 30
IDLE_SECONDS = 90
POOLED = 20
SMALL = Limits(cpu="50m", memory="64Mi")
"""Of the pods that only stand there: limits count towards the quota of the namespace."""
PAUSE_SECONDS = 6
"""Between calls: the pool is full again by then, mostly."""
WARM_UP = 2


class Cluster:
    """What this needs of the cluster."""

    def __init__(self, api: client.ApiClient) -> None:
        self._apps: Any = client.AppsV1Api(api)
        self._core: Any = client.CoreV1Api(api)
        self._custom: Any = client.CustomObjectsApi(api)
        self._me = whoami(os.environ["KUBECONFIG"])

    async def scale_operator(self, replicas: int) -> float:
        """Seconds until it is so."""
        begun = time.perf_counter()
        await self._apps.patch_namespaced_deployment_scale(
            DEPLOYMENT, SYSTEM, {"spec": {"replicas": replicas}}, _content_type=MERGE
        )
        while not await self._operators_are(replicas):  # noqa: ASYNC110 it is asked for
            await asyncio.sleep(0.2)
        return time.perf_counter() - begun

    async def _operators_are(self, count: int) -> bool:
        """Counting none that is on its way in or out."""
        return len(await self._operators()) == count == len(await self._operators(ready=True))

    async def _operators(self, *, ready: bool = False) -> list[str]:
        pods = (await self._core.list_namespaced_pod(SYSTEM)).items
        mine = [pod for pod in pods if pod.metadata.name.startswith(DEPLOYMENT)]
        if ready:
            mine = [pod for pod in mine if all(one.ready for one in pod.status.container_statuses or [])]
        return [pod.metadata.name for pod in mine]

    async def operator_use(self) -> tuple[float, float, float]:
        """Memory in MiB (the working set, as the kubelet counts it), CPU seconds so far, and when they were counted."""
        [name] = await self._operators(ready=True)
        node = (await self._core.read_namespaced_pod(name, SYSTEM)).spec.node_name
        answer = await self._core.connect_get_node_proxy_with_path_without_preload_content(node, "stats/summary")
        [pod] = [one for one in json.loads(await answer.read())["pods"] if one["podRef"]["name"] == name]
        counted_at = datetime.fromisoformat(pod["cpu"]["time"]).timestamp()
        return pod["memory"]["workingSetBytes"] / 2**20, pod["cpu"]["usageCoreNanoSeconds"] / 1e9, counted_at

    async def a_record(self) -> Mapping[str, Any]:
        """The newest that there is."""
        found: Any = await self._custom.list_namespaced_custom_object(*WHERE)
        newest: Mapping[str, Any] = max(found["items"], key=lambda one: str(one["metadata"]["creationTimestamp"]))
        return newest

    async def copy(self, record: Mapping[str, Any], count: int) -> None:
        """Make so many records like this one, which is finished."""
        numbers = iter(range(count))

        async def some() -> None:
            for number in numbers:
                await self._copy(record)
                if number % 1000 == 999:
                    print(f"  {number + 1} of {count} records", file=sys.stderr)

        await asyncio.gather(*(some() for _ in range(AT_A_TIME)))

    async def _copy(self, record: Mapping[str, Any]) -> None:
        name = f"seed-{secrets.token_hex(6)}"
        kind = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "CodeExecution"}
        meta = {"name": name, "labels": {SEED: "true"}}
        spec = record["spec"] | {"requestedBy": self._me}
        await self._custom.create_namespaced_custom_object(*WHERE, kind | {"metadata": meta, "spec": spec})
        status = {"status": record["status"]}
        await self._custom.patch_namespaced_custom_object_status(*WHERE, name, status, _content_type=MERGE)

    async def delete_copies(self) -> None:
        await self._custom.delete_collection_namespaced_custom_object(*WHERE, label_selector=SEED)

    async def was_warm(self, name: str) -> bool:
        """True if this execution found a pod that stood ready."""
        found: Any = await self._custom.get_namespaced_custom_object(*WHERE, name)
        status = found["status"]
        return bool(status.get("poolName")) and all(one["type"] != "Queued" for one in status["conditions"])


async def timed(executor: CodeExecutor) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
    assert (result.exit_code, result.output) == (0, "1\n"), result
    return (time.perf_counter() - begun) * 1000, result


async def warm_calls(cluster: Cluster) -> tuple[float, float]:
    """Medians in milliseconds: ours with a pod that stood ready, and the peer's."""
    local = LocalCommandLineCodeExecutor(timeout=60)
    ours: list[float] = []
    theirs: list[float] = []
    async with KubernetesCodeExecutor(agent="bench", session="per-call") as executor:
        while len(ours) < WARM_UP + RUNS:
            await asyncio.sleep(PAUSE_SECONDS)
            milliseconds, result = await timed(executor)
            if await cluster.was_warm(result.execution):
                ours.append(milliseconds)
                theirs.append((await timed(local))[0])
    return statistics.median(ours[WARM_UP:]), statistics.median(theirs[WARM_UP:])


async def idle_cpu(cluster: Cluster) -> float:
    """Share of a core that the operator takes while nothing happens, in percent."""
    await asyncio.sleep(SETTLE_SECONDS)
    _, before, begun = await cluster.operator_use()
    await asyncio.sleep(IDLE_SECONDS)
    _, after, ended = await cluster.operator_use()
    return 100 * (after - before) / (ended - begun)


async def measure(cluster: Cluster) -> dict[str, float]:
    ours, peer = await warm_calls(cluster)
    idle = await idle_cpu(cluster)
    memory, _, _ = await cluster.operator_use()
    return {"p50_ms": ours, "local_p50_ms": peer, "operator_mib": memory, "idle_cpu_percent": idle}


async def main() -> None:
    await config.load_kube_config(os.environ["KUBECONFIG"])
    async with client.ApiClient() as api:
        cluster = Cluster(api)
        await cluster.delete_copies()
        async with without_the_default_pool(api), Pool(api, POOLED, SMALL):
            idle = await idle_cpu(cluster)
        few = await measure(cluster)
        record = await cluster.a_record()
        if LARGEST:
            record = {**record, "status": {**record["status"], **the_largest_output()}}
        await cluster.scale_operator(0)
        try:
            await cluster.copy(record, RECORDS)
            started = await cluster.scale_operator(1)
            many = await measure(cluster)
        finally:
            await cluster.scale_operator(1)
            await cluster.delete_copies()
    rise = many["p50_ms"] / few["p50_ms"] / (many["local_p50_ms"] / few["local_p50_ms"])
    size = len(json.dumps(record))
    print(f"{'':<32}{'few records':>14}{RECORDS:>8} records, {size} bytes each")
    for what in few:
        print(f"{what:<32}{few[what]:>14.1f}{many[what]:>15.1f}")
    print(f"p50 with them / without: {many['p50_ms'] / few['p50_ms']:.2f}; beside the Local executor's: {rise:.2f}")
    print(f"the operator was ready {started:.1f} s after it was started with them")
    print(f"idle with {POOLED} pods that stand ready, it takes {idle:.2f} % of a core")
    figures = {"records": RECORDS, "bytes_each": size, "few": few, "many": many, "ready_after_s": started}
    figures |= {"pooled": POOLED, "idle_cpu_percent_pooled": idle}
    (ROOT / ".codeexec" / "records.json").write_text(json.dumps(figures, indent=2) + "\n")


asyncio.run(main())
