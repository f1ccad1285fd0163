"""Real pods that stand ready with a kernel.

What else pools do is in component/test_pools.py, test_adoption.py and test_full_pool.py.
"""

import asyncio
import json

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX

from executor_client import Limits

LIMITS = Limits(cpu="100m", memory="96Mi")


@pytest.fixture
def make(make_executor):
    """Executors whose executions ask for what the pools of these tests have."""
    return lambda **options: make_executor(**{"limits": LIMITS, "timeout": 30, **options})


async def run(executor, code: str):
    return await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())


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
