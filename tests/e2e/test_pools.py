"""Real pods that stand ready, and who gets them.

What else pools do is in component/test_pools.py and component/test_full_pool.py.
"""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX

from executor_client import Limits

pytestmark = pytest.mark.e2e

LIMITS = Limits(cpu="100m", memory="96Mi")


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
    assert {one["kernel"] for one in said if "ready" in one} == {True}, "before anybody has asked for one"
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
