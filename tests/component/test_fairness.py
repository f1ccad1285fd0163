"""A namespace that floods the operator, and what a neighbour with ready pods notices of it.

`make bench-fairness` runs this with the whole flood, FLOOD=10000, and prints both p95 side by side.
"""

import asyncio
import os
import statistics
import time
from typing import Any

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, a_name, wait_for
from component_stage import LIMITS, RUNNING, Stage, in_thread
from kubernetes.aio import client as kube
from kubernetes.aio import config

from codeexec_api.names import EXECUTION_PLURAL, GROUP, SESSION_PLURAL, VERSION
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

NOISY, QUIET = f"{SANDBOX}-noisy", f"{SANDBOX}-quiet"
FLOOD = int(os.environ.get("FLOOD", "800"))
"""Executions that are there when the operator starts, and as many again while it works; a tenth as many sessions."""
LOUD, HOSTILE, AT_ONCE = 20, 4, 20
CALLS = 30
MOST_BEFORE = 150
"""Requests for the flooding namespace that may come between a call of the neighbour and the start of its code.

A call needs three turns of the operator: to look at it, to give it a pod and to write its start. While each is waited
for, as many requests of the other namespace are under way as one namespace may have (25).
"""
HELLO = [PreparedBlock("python", b'print("hello")')]
BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
RULES = [{"imports": ["os"], "action": "Note"}]


@pytest.fixture
async def two(tmp_path):
    """A stage of its own with two namespaces: an operator that has not been started, and a client in each."""
    quotas = {"pods": 5000, "cpu": "5000", "memory": "5000Gi", "ephemeralStorage": "5000Gi", "secrets": 50000}
    values = {"resourceQuota": {**quotas, "configMaps": 50000}}
    stage = await in_thread(Stage(tmp_path, namespaces=(NOISY, QUIET), values=values).__enter__)
    operator = stage.operator()
    clients = [
        CodeExecutionClient(ClusterRef(name, kubeconfig=stage.agent_kubeconfig(name, through=proxy)))
        for name, proxy in ((NOISY, None), (QUIET, stage.client_proxy))
    ]
    yield stage, operator, *clients
    for client in clients:
        await client.close()
    await in_thread(operator.end)
    await in_thread(stage.__exit__)


@pytest.fixture
async def flood(two):
    """Makes objects of the noisy namespace, so many at a time."""
    stage, *_ = two
    configuration = kube.Configuration(connection_pool_maxsize=AT_ONCE)
    await config.load_kube_config(stage.plane.kubeconfig, client_configuration=configuration)
    turns = asyncio.Semaphore(AT_ONCE)
    async with kube.ApiClient(configuration) as api:
        create = kube.CustomObjectsApi(api).create_namespaced_custom_object_without_preload_content

        async def one(plural: str, kind: str, spec: dict[str, Any]) -> None:
            name = a_name("flood")
            spec = {"source": {"agent": "flood"}, "requestedBy": stage.admin.me, **spec}
            if plural == EXECUTION_PLURAL:
                spec |= {"payloadRef": {"name": name}, "blocks": [BLOCK]}
            record = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}
            async with turns:
                response = await create(GROUP, VERSION, NOISY, plural, record)
                assert response.status == 201, await response.text()

        async def make(executions: int, sessions: int) -> None:
            """Executions without code, and sessions."""
            made = [one(EXECUTION_PLURAL, "CodeExecution", {}) for _ in range(executions)]
            made += [one(SESSION_PLURAL, "CodeSession", {"limits": LIMITS}) for _ in range(sessions)]
            await asyncio.gather(*made)

        yield make


async def ready_pods(stage: Stage, count: int) -> None:
    kind = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "SandboxPool",
        "metadata": {"name": "quiet", "namespace": QUIET},
    }
    stage.admin.apply({**kind, "spec": {"replicas": count, "limits": LIMITS}})
    ready = lambda: stage.admin.get("sandboxpool", "quiet", QUIET).get("status", {}).get("readyReplicas", 0) == count  # noqa: E731
    wait_for(f"{count} pods to be ready", ready, 120)


async def calls(client: CodeExecutionClient, agent: str) -> float:
    """One after the other; p95 in milliseconds."""
    asked, times = Request(agent=agent, timeout_seconds=60, limits=Limits(**LIMITS)), []
    for _ in range(CALLS):
        begun = time.perf_counter()
        assert (await client.execute(HELLO, asked)).output == "hello\n"
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.quantiles(times, n=20)[-1]


def waited_behind(stage: Stage, agent: str) -> list[int]:
    """For each call of this agent: requests for the noisy namespace from its creation to the start of its code."""
    created = {
        one.call.sent["metadata"]["name"]: one.at
        for one in stage.client_proxy.seen(Match("create", EXECUTION_PLURAL))
        if one.call.sent["spec"]["source"]["agent"] == agent
    }
    started = {one.call.name: one.at for one in stage.proxy.seen(RUNNING) if one.call.namespace == QUIET}
    noise = [one.at for one in stage.proxy.seen(Match(namespace=NOISY))]
    assert len(created) == CALLS
    return sorted(sum(since < at < started[name] for at in noise) for name, since in created.items())


@pytest.mark.timeout(580, func_only=True)
async def test_a_namespace_that_floods_holds_up_no_other(two, flood):
    stage, operator, noisy, quiet = two
    await in_thread(operator.start)
    await in_thread(lambda: stage.admin.apply(stage.a_policy(NOISY, codeRules=RULES)))
    await in_thread(lambda: asyncio.run(ready_pods(stage, CALLS + 5)))
    await calls(quiet, "warm-up")
    alone = await calls(quiet, "alone")
    await in_thread(operator.stop)

    await flood(FLOOD, FLOOD // 20)
    await in_thread(operator.start)
    await in_thread(lambda: asyncio.run(ready_pods(stage, CALLS + 5)))
    asked = Request(agent="noise", timeout_seconds=60, limits=Limits(**LIMITS))
    codes = [b"fill(800_000)"] * LOUD + [b"a\n" * 400_000] * HOSTILE
    noise = [asyncio.create_task(noisy.execute([PreparedBlock("python", code)], asked)) for code in codes]
    noise.append(asyncio.create_task(flood(FLOOD, FLOOD // 20)))
    beside = await calls(quiet, "beside")
    for one in noise:
        one.cancel()
    await asyncio.gather(*noise, return_exceptions=True)

    behind = await in_thread(waited_behind, stage, "beside")
    print(
        f"{2 * FLOOD} executions, {FLOOD // 10} sessions, {LOUD} large outputs and {HOSTILE} hostile codes of another "
        f"namespace: p95 of {CALLS} calls {alone:.0f} ms without them, {beside:.0f} ms beside them "
        f"({beside / alone:.2f} times); requests for that namespace before the code of a call started: at most "
        f"{behind[-1]}, median {statistics.median(behind):.0f}"
    )
    assert behind[-1] <= MOST_BEFORE
