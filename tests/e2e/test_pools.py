"""Pods that stand ready: how a pool fills, how executions get its pods, and what it never does."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_fixtures import QUOTA, Pool, use_up_the_quota
from cluster_tools import SANDBOX, Admin, a_name, wait_for

from executor_client import Limits

pytestmark = pytest.mark.e2e

LIMITS = Limits(cpu="100m", memory="96Mi")
RAW_LIMITS = {"cpu": "100m", "memory": "96Mi"}


@pytest.fixture
def make(make_executor):
    """Executors whose executions ask for what the pools of these tests have."""
    return lambda **options: make_executor(**{"limits": LIMITS, "timeout": 30, **options})


async def run(executor, code: str):
    return await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())


def condition(thing, kind: str):
    found = thing.get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), None)


async def test_a_stateful_session_gets_a_pod_in_which_a_kernel_stands_by(make_pool, make, admin):
    pool = make_pool(1, stateful=True, limits={"cpu": "500m", "memory": "192Mi"})
    limits = Limits(cpu="500m", memory="192Mi")
    await asyncio.to_thread(pool.ready, 1)
    [ready] = pool.pods()
    said = [json.loads(line) for line in admin.logs(SANDBOX, ready).splitlines()]
    assert [one["kernel"] for one in said if "ready" in one] == [True], "before anybody has asked for one"
    async with make(session="per-executor", stateful=True, limits=limits) as executor:
        assert (await run(executor, "x = 6")).exit_code == 0
        result = await run(executor, "print(7 * x)")
    record = admin.execution(result.execution)
    assert (result.output, record["status"]["podName"]) == ("42\n", ready)
    plain = await run(make(limits=limits), "print(1)")
    assert "poolName" not in admin.execution(plain.execution)["status"], "it is not for executions"


async def test_an_execution_gets_a_pod_that_stands_ready_and_owns_it_after_a_second(make_pool, make, admin):
    pool = make_pool(2)
    await asyncio.to_thread(pool.ready, 2)
    waiting = pool.pods()
    assert len(waiting) == 2
    result = await run(make(), "import os, time; time.sleep(3); print(os.getuid() != 0)")
    assert (result.exit_code, result.output) == (0, "True\n")
    record = admin.execution(result.execution)
    status = record["status"]
    assert (status["poolName"], status["podName"] in waiting) == (pool.name, True)
    assert status["egressProof"]["verdict"] == "Closed"
    assert status["egressProof"]["checkedAt"] < record["metadata"]["creationTimestamp"]
    assert condition(record, "Accepted")["reason"] == "PodClaimed"
    assert condition(record, "Queued") is None

    # The pod goes with the record, and its deadline is lowered.
    before = waiting[status["podName"]]

    def adopted(pod: dict[str, Any]) -> bool:
        return "codeexec.dev/execution" in pod["metadata"]["labels"]

    what = "the pod to be the execution's"
    pod = await asyncio.to_thread(admin.wait_until, what, "pod", status["podName"], adopted)
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("CodeExecution", record["metadata"]["uid"])
    assert "codeexec.dev/pool" not in pod["metadata"]["labels"]
    age = datetime.now(UTC) - datetime.fromisoformat(pod["status"]["startTime"])
    assert pod["spec"]["activeDeadlineSeconds"] <= age.total_seconds() + 30 + 15 + 300
    assert before["spec"]["activeDeadlineSeconds"] > 86_400
    # Apart from that it is the pod that it was.
    for each in (pod, before):
        del each["spec"]["activeDeadlineSeconds"]
    assert pod["spec"] == before["spec"]

    # Other limits are not those of the pool.
    other = await run(make(limits=Limits(cpu="150m", memory="96Mi")), "print(1)")
    own = admin.execution(other.execution)["status"]
    assert "poolName" not in own
    assert own["podName"].startswith(other.execution)


@pytest.mark.suspect
async def test_a_pod_that_is_lost_is_never_handed_out(make_pool, make, admin):
    pool = make_pool(2)
    await asyncio.to_thread(pool.ready, 2)
    lost, _ = sorted(pool.pods().values(), key=lambda pod: pod["metadata"]["creationTimestamp"])
    admin.delete("pod", lost["metadata"]["name"], gracePeriodSeconds=0)
    replaced = lambda: lost["metadata"]["name"] not in (there := pool.pods()) and len(there) == 2  # noqa: E731
    await asyncio.to_thread(wait_for, "another pod in its place, so that the loss is known", replaced)
    results = await asyncio.gather(*(run(make(), "print(1)") for _ in range(3)))
    used = {admin.execution(one.execution)["status"]["podName"] for one in results}
    assert lost["metadata"]["name"] not in used
    assert len(used) == 3


def in_line(admin: Admin, name: str) -> dict[str, Any]:
    """The condition of an execution, once it has a place in the queue."""

    def is_in_line(record: dict[str, Any]) -> bool:
        return (condition(record, "Queued") or {}).get("status") == "True"

    return condition(admin.wait_until(f"{name} to be in line", "cex", name, is_in_line), "Queued")


@pytest.fixture(scope="class")
def make_full(admin: Admin) -> Iterator[Callable[[], Pool]]:
    """Makes a pool that has handed out its only pod and can't make another: the namespace may have no more."""
    kind = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "SandboxPool"}
    made: list[tuple[str, str]] = []

    def make() -> Pool:
        pool, first = Pool(admin, a_name("pool")), a_name("first")
        meta = {"name": pool.name, "namespace": SANDBOX}
        admin.apply({**kind, "metadata": meta, "spec": {"replicas": 1, "limits": RAW_LIMITS}})
        made.extend((("sandboxpool", pool.name), ("codeexecution", first)))
        pool.ready(1)
        use_up_the_quota(admin)
        admin.submit(first, "import time; time.sleep(600)", limits=RAW_LIMITS, timeoutSeconds=600)
        admin.wait_for_phase(first, "Running")
        return pool

    yield make
    for kind_of, name in [("resourcequota", QUOTA), *made]:
        admin.delete(kind_of, name)


@pytest.fixture(scope="class")
def full(make_full) -> Pool:
    return make_full()


class TestAFullPool:
    """One for all of these; the last makes room."""

    def test_the_limit_of_who_waits_is_its_own(self, full, admin):
        name = a_name("impatient")
        admin.submit(name, "print(1)", limits=RAW_LIMITS, queueTimeoutSeconds=2)
        status = admin.wait_for_phase(name, "Failed")["status"]
        assert status["reason"] == "QueueTimeout"
        assert "spec.queueTimeoutSeconds" in status["message"]
        admin.wait_until_gone("secret", name)

    def test_who_waits_can_be_cancelled(self, full, admin):
        name = a_name("unwanted")
        admin.submit(name, "print(1)", limits=RAW_LIMITS)
        in_line(admin, name)
        admin.patch("codeexecution", name, {"spec": {"cancelled": True}})
        assert admin.wait_for_phase(name, "Cancelled")["status"]["reason"] == "CancelRequested"
        forgotten = "the pool to forget it"
        admin.wait_until(forgotten, "sandboxpool", full.name, lambda pool: not pool["status"].get("queued"))

    def test_who_finds_no_pod_waits_in_line_and_sees_where(self, full, admin):
        names = [a_name(f"waits{number}") for number in range(3)]
        for number, name in enumerate(names, 1):
            admin.submit(name, "print('at last')", limits=RAW_LIMITS)
            place = in_line(admin, name)["message"]
            assert place.startswith(f"position {number} of {number} in the queue of pool '{full.name}'")

        def says_why(record: dict[str, Any]) -> bool:
            return "quota" in condition(record, "Queued")["message"]

        assert admin.wait_until("what is wrong to be said", "cex", names[0], says_why)["status"]["phase"] == "Starting"
        counted = "the pool to count them"
        admin.wait_until(counted, "sandboxpool", full.name, lambda pool: pool["status"].get("queued") == 3)
        admin.delete("resourcequota", QUOTA)
        done = [admin.wait_for_phase(name, "Succeeded", seconds=75) for name in names]
        assert {one["status"]["stdout"]["text"] for one in done} == {"at last\n"}
        assert condition(done[0], "Queued")["status"] == "False"
