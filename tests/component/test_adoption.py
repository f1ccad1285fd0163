"""A ready pod becomes the own pod of an execution only if the code takes longer than a second."""

import asyncio
from collections.abc import Iterator

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import RUNNING, in_thread
from faults import Stall

from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL
from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
CHANGES_OF_PODS = Match("patch,delete", "pods")


@pytest.fixture
def keeps_pods(operator, stage) -> Iterator[None]:
    """The policy of the namespace keeps pods for a minute after their code has ended."""
    stage.put_policy(podTTLSeconds=60)
    yield
    stage.drop_policy()


def labels(stage, pod: str) -> dict[str, str]:
    return stage.admin.pod(SANDBOX, pod)["metadata"]["labels"]


async def test_code_that_ends_soon_costs_no_change_of_its_pod(operator, stage, client, asking, agent, make_pool):
    await make_pool(1)
    await client.execute(HELLO, asking())
    record = stage.record(agent)
    pod = record["status"]["podName"]
    await in_thread(stage.admin.wait_until_gone, "pod", pod)
    changes = [one for one in stage.proxy.seen(CHANGES_OF_PODS) if one.call.name == pod]
    assert {one.call.verb for one in changes} - {"patch"} == {"delete"}
    # On a busy machine also this code may take longer than a second.
    ran_at = min(one.at for one in stage.proxy.seen(RUNNING) if one.call.name == record["metadata"]["name"])
    assert all(one.at >= ran_at + 1 for one in changes if one.call.verb == "patch")


async def test_code_that_takes_longer_gets_its_pod_for_good(operator, stage, client, asking, agent, make_pool):
    pool = await make_pool(1)
    [ready] = pool.pods()
    before = stage.admin.pod(SANDBOX, ready)
    running = asyncio.create_task(client.execute((PreparedBlock("python", f'wait("{agent}")'.encode()),), asking()))
    await stage.script.reached(agent, running)
    record = stage.record(agent)
    status = record["status"]
    assert (status["poolName"], status["podName"]) == (pool.name, ready)
    reasons = {one["type"]: one["reason"] for one in status["conditions"]}
    assert (reasons["Accepted"], "Queued" in reasons) == ("PodClaimed", False)
    proof = status["egressProof"]
    assert (proof["verdict"], proof["checkedAt"] <= record["metadata"]["creationTimestamp"]) == ("Closed", True)

    its_own = lambda pod: EXECUTION_LABEL in pod["metadata"]["labels"]  # noqa: E731
    pod = await in_thread(stage.admin.wait_until, "its adoption", "pod", ready, its_own)
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("CodeExecution", record["metadata"]["uid"])
    assert POOL_LABEL not in pod["metadata"]["labels"]
    deadlines = [one["spec"].pop("activeDeadlineSeconds") for one in (pod, before)]
    assert deadlines[0] < 86_400 < deadlines[1], "it is lowered, and nothing else is changed"
    assert pod["spec"] == before["spec"]
    stage.script.open(agent)
    await running


async def test_an_execution_that_is_deleted_before_that_leaves_no_pod(
    operator, stage, client, asking, agent, make_pool
):
    await make_pool(1)
    running = asyncio.create_task(client.execute((PreparedBlock("python", f'wait("{agent}")'.encode()),), asking()))
    await stage.script.reached(agent, running)
    record = stage.record(agent)
    pod = record["status"]["podName"]
    stage.admin.delete("codeexecution", record["metadata"]["name"])
    await in_thread(stage.admin.wait_until_gone, "pod", pod)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_operator_deletes_what_is_left_and_the_pool_is_well(
    operator, stage, client, asking, agent, make_pool, keeps_pods
):
    pool = await make_pool(1)
    with stage.proxy.fault(Match("patch", "pods"), Stall()):  # the pod stays the pool's however long the code takes
        await client.execute(HELLO, asking())
        used = stage.record(agent)["status"]["podName"]
        ended = lambda: stage.admin.pod(SANDBOX, used)["status"]["phase"] == "Succeeded"  # noqa: E731
        await in_thread(wait_for, "the runner to end", ended)
        assert POOL_LABEL in labels(stage, used)
        await in_thread(operator.kill)
    await in_thread(operator.start)
    await in_thread(stage.admin.wait_until_gone, "pod", used)
    await in_thread(pool.ready, 1)
    assert "gave up" not in operator.tail()

    def well() -> bool:
        return any(one["reason"] == "PoolReady" for one in pool.status()["conditions"] if one["type"] == "Ready")

    await in_thread(wait_for, "the pool to say that it is well", well)
