"""Ready pods that are used more than once: by one requester and agent, one at a time, and only while clean."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import RUNNING, in_thread
from faults import Answer

from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL
from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
CREATE_POD = Match("create", "pods")
NONE_IN_PLACE = Answer(409)
"""To all who make pods, as after a race for a quota: they try again and again. A pool makes a pod in place of one whose
code takes longer than a second, and then doesn't keep the one that comes back.
"""


def python(code: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", code.encode()),)


@pytest.fixture
def reuse(stage) -> Iterator[None]:
    """The policy of the namespace lets a pod run three executions. An operator has to run, `keeps` or the usual one."""
    stage.put_policy(podReuse={"maxExecutions": 3})
    stage.script.soiled = stage.script.silent = False
    yield
    stage.script.soiled = stage.script.silent = False
    stage.drop_policy()


def statuses(stage, agent: str) -> list[dict[str, Any]]:
    records = sorted(stage.records(agent=agent), key=lambda one: one["status"]["startedAt"])
    return [one["status"] for one in records]


def ran_at(stage, record: dict[str, Any]) -> float:
    """When the operator began to write that it runs, by the clock of the proxy. Its code is handed over after that."""
    return min(one.at for one in stage.proxy.seen(RUNNING) if one.call.name == record["metadata"]["name"])


def uses(stage, agent: str) -> list[int]:
    return [one.get("podReset", {}).get("use", 1) for one in statuses(stage, agent)]


@pytest.mark.suspect
async def test_a_pod_runs_three_executions_of_one_agent_and_goes(keeps, stage, client, asking, agent, make_pool, reuse):
    await make_pool(1)
    with stage.proxy.fault(CREATE_POD, NONE_IN_PLACE):
        for _ in range(3):
            assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    found = statuses(stage, agent)
    assert uses(stage, agent) == [1, 2, 3, 1]
    assert len({one["podName"] for one in found[:3]}) == 1
    assert found[3]["podName"] != found[0]["podName"]
    assert "podReset" not in found[0]
    assert found[1]["podReset"] == {
        "use": 2,
        "clean": True,
        "checked": ["Processes", "Volumes"],
        "milliseconds": 2,
    }
    await in_thread(stage.admin.wait_until_gone, "pod", found[0]["podName"])
    assert stage.script.pods_used_twice == 0


async def test_another_agent_never_gets_it(keeps, stage, client, asking, agent, make_pool, reuse):
    await make_pool(2)
    with stage.proxy.fault(CREATE_POD, NONE_IN_PLACE):
        for name in (agent, f"{agent}-2", agent):
            await client.execute(HELLO, asking(agent=name))
    [first, second] = statuses(stage, agent)
    [other] = statuses(stage, f"{agent}-2")
    assert first["podName"] == second["podName"] != other["podName"]
    assert "podReset" not in other


@pytest.mark.parametrize(
    ("code", "limit", "phase"), [("exit(3)", 600, "Failed"), ("wait(30)", 1, "TimedOut")], ids=["exit", "time-out"]
)
async def test_only_after_an_ordinary_end(keeps, stage, client, asking, agent, make_pool, reuse, code, limit, phase):
    await make_pool(1)
    with stage.proxy.fault(CREATE_POD, NONE_IN_PLACE) as rule:
        await client.execute(python(code), asking(timeout_seconds=limit))
        if phase != "Failed":
            rule.end()
        await client.execute(HELLO, asking())
    first, second = statuses(stage, agent)
    assert first["phase"] == phase
    assert (first["podName"] == second["podName"]) is (phase == "Failed")


async def test_it_is_given_up_when_the_policy_changes(keeps, stage, client, asking, agent, make_pool, reuse):
    await make_pool(1)
    with stage.proxy.fault(CREATE_POD, NONE_IN_PLACE):
        await client.execute(HELLO, asking())
        [first] = statuses(stage, agent)
        stage.admin.apply(stage.a_policy())
        await in_thread(stage.admin.wait_until_gone, "pod", first["podName"])  # long before it has been idle for long


async def test_a_pod_is_used_once_where_no_policy_says_otherwise(operator, stage, client, asking, agent, make_pool):
    await make_pool(2)
    resets = stage.script.resets
    for _ in range(3):
        await client.execute(HELLO, asking())
    assert uses(stage, agent) == [1, 1, 1]
    assert len({one["podName"] for one in statuses(stage, agent)}) == 3
    assert stage.script.resets == resets


async def test_a_pod_that_is_not_clean_goes(operator, stage, client, asking, agent, make_pool, reuse):
    await make_pool(1)
    stage.script.soiled = True
    for _ in range(2):
        await client.execute(HELLO, asking())
    first, second = statuses(stage, agent)
    assert first["podName"] != second["podName"]
    assert uses(stage, agent) == [1, 1]
    await in_thread(stage.admin.wait_until_gone, "pod", first["podName"])


async def test_a_pod_whose_runner_says_nothing_goes(operator, stage, client, asking, agent, make_pool, reuse):
    await make_pool(1)
    stage.script.silent = True
    for _ in range(2):
        await client.execute(HELLO, asking())
    first, second = statuses(stage, agent)
    assert first["podName"] != second["podName"]
    await in_thread(stage.admin.wait_until_gone, "pod", first["podName"])


async def test_nobody_shares_a_pod_at_a_time_however_many_ask(operator, stage, client, asking, agent, make_pool, reuse):
    await make_pool(3)

    async def calls(name: str) -> None:
        for _ in range(6):
            assert (await client.execute(HELLO, asking(agent=name))).output == "hello\n"

    agents = [agent, f"{agent}-2"]
    await asyncio.gather(*(calls(name) for name in agents for _ in range(3)))
    tenants, by_pod = defaultdict(set), defaultdict(list)
    for name in agents:
        for one in statuses(stage, name):
            tenants[one["podName"]].add(name)
            by_pod[one["podName"]].append((one["startedAt"], one["finishedAt"], one.get("podReset", {}).get("use", 1)))
    assert all(len(names) == 1 for names in tenants.values())
    for spans in by_pod.values():
        ordered = sorted(spans)
        assert [use for *_, use in ordered] == list(range(1, len(ordered) + 1))
        assert len(ordered) <= 3
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    assert any(len(spans) > 1 for spans in by_pod.values()), "control: pods were used again"
    assert stage.script.pods_used_twice == 0


async def test_nobody_keeps_a_pod_for_long(operator, stage, client, asking, agent, make_pool, reuse):
    [ready] = (await make_pool(1)).pods()
    with stage.proxy.fault(CREATE_POD, NONE_IN_PLACE), stage.admin.following("pod", ready) as pod:
        await client.execute(HELLO, asking())
        record = stage.record(agent)
        assert record["status"]["podName"] == ready
        await in_thread(stage.admin.wait_until_gone, "pod", ready)
    versions = await in_thread(lambda: pod.versions)
    assert all(POOL_LABEL in one["metadata"]["labels"] for one in versions), "it was the pool's to its end"
    deleted_at = stage.proxy.seen(Match("delete", "pods", name=ready))[0].at
    assert deleted_at >= ran_at(stage, record) + 5, "it was kept, though less long if its runner is late"


async def test_code_that_takes_long_gets_its_pod_for_good(operator, stage, client, asking, agent, make_pool, reuse):
    await make_pool(1)
    running = asyncio.create_task(client.execute(python(f'wait("{agent}")'), asking()))
    await stage.script.reached(agent, running)
    record = stage.record(agent)
    pod = record["status"]["podName"]

    def adopted() -> bool:
        return EXECUTION_LABEL in stage.admin.pod(SANDBOX, pod)["metadata"]["labels"]

    await in_thread(wait_for, "its adoption", adopted)
    patches = stage.proxy.seen(Match("patch", "pods", name=pod))
    assert all(one.at >= ran_at(stage, record) + 10 for one in patches)
    stage.script.open(agent)
    await running
    await client.execute(HELLO, asking())
    assert uses(stage, agent) == [1, 1]


async def test_a_new_operator_takes_no_pod_that_was_used(stage, operator, client, asking, agent, make_pool, reuse):
    pool = await make_pool(1)
    await client.execute(HELLO, asking())
    [first] = statuses(stage, agent)
    await in_thread(operator.kill)
    await in_thread(operator.start)
    await client.execute(HELLO, asking())
    assert statuses(stage, agent)[1]["podName"] != first["podName"]
    await in_thread(stage.admin.wait_until_gone, "pod", first["podName"])
    await in_thread(pool.ready, 1)
