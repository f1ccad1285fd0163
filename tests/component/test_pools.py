"""What a pool does, without a kubelet: it fills, gives its pods out in turn, and goes, and nobody is left behind."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, in_thread
from faults import Answer, Cut, Lose, Stall

from codeexec_api.names import EXECUTION_LABEL
from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
ATTACH = Match("connect", "pods", subresource="attach")
CREATE_POD = Match("create", "pods")


def python(code: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", code.encode()),)


async def test_a_pool_gives_its_pods_out_and_fills_up_again(operator, stage, client, asking, agent, make_pool):
    pool = await make_pool(2)
    before = pool.pods()
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    record = stage.record(agent)
    assert (record["status"]["poolName"], record["status"]["podName"] in before) == (pool.name, True)
    await in_thread(stage.admin.wait_until_gone, "pod", record["status"]["podName"])
    await in_thread(pool.ready, 2)
    stage.ran_once(record)


async def test_a_pool_grows_and_shrinks(operator, make_pool):
    pool = await make_pool(1)
    for count in (3, 1):
        await in_thread(pool.scale, count)
        await in_thread(pool.ready, count)
        await in_thread(wait_for, f"{count} pods", lambda count=count: len(pool.pods()) == count)


async def test_executions_wait_for_a_pod_of_the_pool_in_their_order(operator, stage, client, asking, agent, make_pool):
    pool, allowed = await make_pool(1), []
    with stage.proxy.fault(replace(CREATE_POD, where=lambda _: not (allowed and allowed.pop())), Answer(429)):
        submitted = [await client.submit(HELLO, asking()) for _ in range(4)]
        waiting = {asyncio.create_task(one.result()): one.name for one in submitted}
        for execution in submitted:  # there is never a pod for two of them
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [(waiting.pop(task), task.result().output) for task in ended] == [(execution.name, "hello\n")]
            allowed.append(True)
    records = stage.records(agent=agent)
    assert {one["status"]["poolName"] for one in records} == {pool.name}
    for record in records:
        stage.ran_once(record)


@pytest.mark.parametrize("fault", [*map(Answer, (409, 429, 403, 503)), Cut(), Lose("504")], ids=str)
async def test_a_pool_becomes_ready_whatever_a_call_of_its_own_is_answered(operator, stage, make_pool, fault):
    with stage.proxy.fault(CREATE_POD, fault, times=1) as rule, stage.proxy.fault(ATTACH, fault, times=1) as attach:
        pool = await make_pool(2)
        assert (rule.met, attach.met) == (1, 1)
    await in_thread(wait_for, "no pod too many", lambda: len(pool.pods()) == 2)


async def test_a_pool_finds_out_that_a_waiting_pod_is_silent(operator, stage, make_pool):
    """Nobody says that the connection is dead: the pod is asked, gives no answer, and is replaced."""
    pool = await make_pool(1)
    before = pool.pods()
    assert stage.proxy.silence_open(ATTACH) >= 1
    await in_thread(wait_for, "another pod", lambda: pool.pods() and not pool.pods() & before)
    await in_thread(pool.ready, 1)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_pool_keeps_its_pods_when_the_operator_went(operator, stage, client, asking, make_pool, how):
    pool = await make_pool(2)
    before, made = pool.pods(), len(stage.proxy.seen(CREATE_POD))
    await in_thread(getattr(operator, how))
    connections = len(stage.proxy.seen(ATTACH))
    await in_thread(operator.start)
    await in_thread(wait_for, "both to be asked again", lambda: len(stage.proxy.seen(ATTACH)) >= connections + 2)
    await in_thread(pool.ready, 2)
    assert pool.pods() == before
    assert stage.proxy.seen(CREATE_POD)[made:] == [], "not one too many"
    assert (await client.execute(HELLO, asking())).output == "hello\n"


async def test_a_pool_keeps_its_pods_when_its_connections_break(operator, stage, make_pool):
    pool = await make_pool(2)
    before = pool.pods()
    with stage.proxy.fault(ATTACH, Answer(503), times=2) as rule:
        assert stage.proxy.cut_open(ATTACH) >= 2
        await rule.hit(2)
    await in_thread(pool.ready, 2)
    assert pool.pods() == before


async def test_code_in_a_pod_of_a_pool_goes_on_when_the_operator_went_before_it_was_adopted(
    operator, stage, client, asking, agent, make_pool
):
    pool = await make_pool(1)
    with stage.proxy.fault(Match("patch", "pods"), Stall()) as rule:
        running = asyncio.create_task(client.execute(python(f'wait("{agent}")\nprint("done")'), asking()))
        await stage.script.reached(agent, running)
        await rule.hit()
        await in_thread(operator.kill)
    await in_thread(operator.start)
    await in_thread(pool.ready, 1)
    stage.script.open(agent)
    assert (await running).output == "done\n"
    record = stage.record(agent)
    stage.ran_once(record)
    await in_thread(stage.admin.wait_until_gone, "pod", record["status"]["podName"])


async def test_a_pod_of_a_pool_that_goes_is_replaced_and_never_handed_out(
    operator, stage, client, asking, agent, admin, make_pool
):
    pool = await make_pool(2)
    before = {name: admin.pod(SANDBOX, name) for name in pool.pods()}
    gone = min(before, key=lambda name: before[name]["metadata"]["creationTimestamp"])
    await in_thread(admin.delete, "pod", gone, gracePeriodSeconds=0)
    await in_thread(wait_for, "another pod", lambda: gone not in (there := pool.pods()) and len(there) == 2)
    await in_thread(pool.ready, 2)
    results = await asyncio.gather(*(client.execute(HELLO, asking()) for _ in range(3)))
    assert {one.output for one in results} == {"hello\n"}
    records = stage.records(agent=agent)
    used = {one["status"]["podName"] for one in records}
    assert (gone in used, len(used)) == (False, 3)
    assert used & (before.keys() - {gone}), "control: the other one was"
    for record in records:
        stage.ran_once(record)


async def test_a_pool_that_the_policy_forbids_says_so(operator, admin, make_pool, policy):
    pool = await make_pool(1)
    await in_thread(lambda: policy(maxLimits={"cpu": "50m", "memory": "64Mi", "ephemeralStorage": "64Mi"}))
    await in_thread(wait_for, "the pool to be empty", lambda: not pool.pods())

    def forbidden(one) -> bool:
        ready = next(told for told in one["status"]["conditions"] if told["type"] == "Ready")
        return (ready["status"], ready["reason"]) == ("False", "PolicyViolation")

    await in_thread(admin.wait_until, "it to say so", "sandboxpool", pool.name, forbidden)


async def test_a_pool_that_was_changed_has_new_pods(operator, admin, make_pool):
    pool = await make_pool(1)
    [old] = pool.pods()
    await in_thread(admin.patch, "sandboxpool", pool.name, {"spec": {"limits": {"pids": 64}}})
    await in_thread(admin.wait_until_gone, "pod", old)
    await in_thread(pool.ready, 1)


@pytest.fixture
async def in_line(stage, client, asking, agent, admin, make_pool):
    """A pool whose only pod is taken, that pod, who waits for the next one, and what lets that be made."""
    pool = await make_pool(1)
    [taken] = pool.pods()
    with ExitStack() as full:
        full.enter_context(stage.proxy.fault(CREATE_POD, Answer(429)))
        running = asyncio.create_task(client.execute(python(f'wait("{agent}")'), asking()))
        await stage.script.reached(agent, running)
        adopted = lambda pod: EXECUTION_LABEL in pod["metadata"]["labels"]  # noqa: E731
        await in_thread(admin.wait_until, "the pod to be the execution's", "pod", taken, adopted)
        code = python(f'wait("{agent}-2")\nprint("hello")')
        waiting = await client.submit(code, asking(agent=f"{agent}-2"))

        def is_in_line(record) -> bool:
            return any(one["type"] == "Queued" for one in record.get("status", {}).get("conditions", ()))

        await in_thread(admin.wait_until, "it to be in line", "cex", waiting.name, is_in_line)
        yield pool, taken, waiting, full.close
    stage.script.open(agent)
    await running


async def test_a_pool_that_goes_leaves_nobody_waiting(operator, stage, admin, agent, in_line):
    pool, _, waiting, make_room = in_line
    stage.script.open(f"{agent}-2")
    await in_thread(admin.delete, "sandboxpool", pool.name)
    own = lambda one: one["status"].get("podName", "").startswith(waiting.name)  # noqa: E731
    await in_thread(admin.wait_until, "a pod of its own to be asked for", "cex", waiting.name, own)
    make_room()
    assert (await waiting.result()).output == "hello\n"


@pytest.mark.suspect
async def test_who_waits_while_the_pool_changes_gets_the_pod_that_was_asked_for(operator, stage, admin, agent, in_line):
    """The next pod of the pool has other limits: it is for others."""
    pool, taken, waiting, make_room = in_line
    changed = await in_thread(admin.patch, "sandboxpool", pool.name, {"spec": {"limits": {"cpu": "150m"}}})
    known = lambda one: one["status"].get("observedGeneration") == changed["metadata"]["generation"]  # noqa: E731
    await in_thread(admin.wait_until, "the operator to know of it", "sandboxpool", pool.name, known)
    make_room()
    result = asyncio.create_task(waiting.result())
    await stage.script.reached(f"{agent}-2", result)
    status = admin.get("cex", waiting.name)["status"]
    assert "poolName" not in status
    [container] = admin.pod(SANDBOX, status["podName"])["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == LIMITS["cpu"]
    stage.script.open(f"{agent}-2")
    assert (await result).output == "hello\n"
    await in_thread(pool.ready, 1)
    [ready] = pool.pods() - {taken}
    assert admin.pod(SANDBOX, ready)["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "150m"
