"""Many executions on few pods: each gets its own answer and its own pod, no pod too many is made, nothing is left."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, wait_for
from kubernetes.aio import client, config, watch

from codeexec_api.names import CLIENT_LABEL, EXECUTION_LABEL, EXECUTION_PLURAL, GROUP, PAYLOAD_SECRET_TYPE, VERSION
from codeexec_operator.core.pool import STARTS_PER_NODE
from executor_client import Limits

pytestmark = pytest.mark.e2e

EXECUTIONS = int(os.environ.get("LOAD_EXECUTIONS", "500"))
"""Fewer for a first look."""
AT_ONCE = 20
REPLICAS = 4
WATCH_SECONDS = 1900
RECORDS = f"/apis/{GROUP}/{VERSION}/namespaces/{SANDBOX}/{EXECUTION_PLURAL}"


@dataclass(frozen=True)
class Seen:
    """A version of an object. Those of all kinds have one order: that in which the API server has stored them."""

    version: int
    kind: str
    change: str
    raw: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])


@asynccontextmanager
async def everything_seen(kubeconfig: str) -> AsyncIterator[list[Seen]]:
    """From now on, every version of every pod and every execution of the namespace is noted here."""
    await config.load_kube_config(kubeconfig)
    async with client.ApiClient() as api:
        core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        sources = {
            "pod": (core.list_namespaced_pod, (SANDBOX,)),
            "execution": (custom.list_namespaced_custom_object, (GROUP, VERSION, SANDBOX, EXECUTION_PLURAL)),
        }
        seen: list[Seen] = []
        since = (await core.list_namespaced_pod(SANDBOX, limit=1)).metadata.resource_version

        async def note(kind: str) -> None:
            method, where = sources[kind]
            # Without a time of its own the client ends a request after five minutes, a watch, too.
            options = {"resource_version": since, "timeout_seconds": WATCH_SECONDS, "_request_timeout": WATCH_SECONDS}
            async with watch.Watch().stream(method, *where, **options) as events:
                async for event in events:
                    raw = event["raw_object"]
                    seen.append(Seen(int(raw["metadata"]["resourceVersion"]), kind, event["type"], raw))

        async with asyncio.TaskGroup() as tasks:
            watches = [tasks.create_task(note(kind)) for kind in sources]
            yield seen
            for one in watches:
                one.cancel()


@pytest.fixture
def forget(admin):
    """Takes the records away after the test that it is given one of; 500 are in the way of other tests."""
    labels: list[str] = []

    def of_client(name: str) -> str:
        """The label that all records have that came from the same client as this one."""
        label = f"{CLIENT_LABEL}={admin.execution(name)['metadata']['labels'][CLIENT_LABEL]}"
        labels.append(label)
        return label

    yield of_client
    for label in labels:
        admin.kubectl("delete", "--raw", f"{RECORDS}?labelSelector={label}")


@pytest.mark.timeout(1800)
async def test_each_of_500_gets_its_own_answer_and_its_own_pod(make_pool, make_executor, admin, policy, forget):
    policy(podTTLSeconds=0)
    pool = make_pool(REPLICAS)
    pool.ready(REPLICAS)
    executor = make_executor(limits=Limits(cpu="100m", memory="96Mi"), timeout=30)
    turns = asyncio.Semaphore(AT_ONCE)
    tokens = [os.urandom(8).hex() for _ in range(EXECUTIONS)]

    async def one(token: str):
        async with turns:
            return await executor.execute_code_blocks([CodeBlock(f"print('{token}')", "python")], CancellationToken())

    before = set(pool.pods())
    async with everything_seen(admin.kubeconfig) as seen:
        begun = time.monotonic()
        results = await asyncio.gather(*map(one, tokens))
        seconds = time.monotonic() - begun
        label = forget(results[0].execution)
        assert [(one.exit_code, one.output) for one in results] == [(0, f"{token}\n") for token in tokens]

        listed = json.loads(admin.kubectl("-n", SANDBOX, "get", EXECUTION_PLURAL, "-l", label, "-o", "json"))["items"]
        records = {one["metadata"]["name"]: one["status"] for one in listed}
        assert records.keys() == {one.execution for one in results}
        assert {status["phase"] for status in records.values()} == {"Succeeded"}
        assert {status["poolName"] for status in records.values()} == {pool.name}
        used = {status["podName"] for status in records.values()}
        assert len(used) == EXECUTIONS

        # In threads: what becomes of the pods meanwhile is to be seen, too.
        await asyncio.to_thread(pool.ready, REPLICAS)
        await asyncio.to_thread(wait_for, "the pods that were used to go", lambda: not used & all_pods(admin))
        left = set(pool.pods())
        assert len(left) == REPLICAS
        assert not payloads(admin, records.keys())
    made = before | left | {one.name for one in seen if one.kind == "pod" and one.name.startswith(f"{pool.name}-")}
    given_up = made - used - left
    ahead, starting = most_at_a_time(seen, made, before)
    print(
        f"{len(made)} pods for {EXECUTIONS} executions in {seconds:.0f} s, {len(given_up)} given up; at a time at most "
        f"{ahead} pods more than executions, and {starting} that start"
    )
    assert len(made) == EXECUTIONS + REPLICAS + len(given_up)
    assert ahead <= REPLICAS + len(given_up)
    assert starting <= STARTS_PER_NODE * len(admin.kubectl("get", "nodes", "-o", "name").split())


def all_pods(admin) -> set[str]:
    return set(admin.kubectl("-n", SANDBOX, "get", "pods", "-o", "name").replace("pod/", "").split())


def payloads(admin, executions) -> list[str]:
    """Names of the Secrets with code of these executions that are still there."""
    selector = f"type={PAYLOAD_SECRET_TYPE}"
    found = json.loads(admin.kubectl("-n", SANDBOX, "get", "secrets", "--field-selector", selector, "-o", "json"))
    return [
        one["metadata"]["name"] for one in found["items"] if one["metadata"]["labels"][EXECUTION_LABEL] in executions
    ]


def most_at_a_time(seen: Sequence[Seen], ours: set[str], before: set[str]) -> tuple[int, int]:
    """By how many the pods ever made were ahead of the executions ever created, and how many were starting, at most.

    The pool makes pods for `replicas` and for each execution that waits. Whoever waits was created before, and who
    doesn't any more has taken a pod, so it is ahead by `replicas` at most, and by those that were no good. A pod is
    taken for started when the kubelet says that it runs, which is before the operator knows; and one that no node had
    room for is left out, because the operator doesn't count it while that is so.

    Args:
        seen: what the API server has stored.
        ours: all pods of the pool.
        before: those that were there before.
    """
    made, starting, homeless = set(before), set(), set()
    created = most_ahead = most_starting = 0
    for one in sorted(seen, key=lambda one: one.version):
        if one.kind == "execution":
            created += one.change == "ADDED"
        elif one.name in ours:
            made.add(one.name)
            if unschedulable(one.raw):
                homeless.add(one.name)
            if one.change != "DELETED" and one.raw["status"]["phase"] == "Pending":
                starting.add(one.name)
            else:
                starting.discard(one.name)
            most_ahead = max(most_ahead, len(made) - created)
            most_starting = max(most_starting, len(starting - homeless))
    return most_ahead, most_starting


def unschedulable(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)
