"""Sessions take ready pods of pools: each pod is used by one, whoever else asks and whatever goes wrong meanwhile."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from api_calls import Match
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, in_thread
from faults import Answer, Lose, Stall

from codeexec_api.names import EXECUTION_PLURAL, POOL_LABEL, SESSION_LABEL, SESSION_PLURAL
from executor_client import KubernetesCodeExecutor, Limits, PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
NEVER = CancellationToken()
CREATE_POD = Match("create", "pods")
ADOPT = Match("patch", "pods", subresource="")
RECORD = Match("patch", SESSION_PLURAL, subresource="status", where=lambda call: call.phase == "Ready")
"""Of a session that has got a pod, which its record names."""


def python(code: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", code.encode()),)


def record_of(stage, session) -> dict[str, Any]:
    return dict(stage.admin.get("codesession", session.name).get("status", {}))


def origin(stage, session) -> tuple[str, str]:
    """Pool and pod, as the record has them."""
    status = record_of(stage, session)
    return status.get("poolName", ""), status.get("podName", "")


def adopted(stage, session, pod: str) -> bool:
    meta = stage.admin.pod(SANDBOX, pod)["metadata"]
    [owner] = meta["ownerReferences"]
    return (owner["kind"], owner["name"]) == ("CodeSession", session.name) and POOL_LABEL not in meta["labels"]


async def test_a_session_gets_a_ready_pod_makes_it_its_own_and_the_pool_fills_up_again(
    operator, stage, client, asking, agent, make_pool
):
    pool = await make_pool(1)
    [ready] = pool.pods()
    session = await client.open_session(asking(), wait=True, max_lifetime_seconds=600)
    status = record_of(stage, session)
    assert (status["poolName"], status["podName"], status["phase"]) == (pool.name, ready, "Ready")
    assert (await session.execute(HELLO)).output == "hello\n"
    assert stage.record(agent)["status"]["podName"] == ready
    assert "poolName" not in stage.record(agent)["status"]
    await in_thread(wait_for, "the pod to be the session's own", lambda: adopted(stage, session, ready))
    pod = stage.admin.pod(SANDBOX, ready)
    assert pod["metadata"]["labels"][SESSION_LABEL] == session.name
    assert 600 < pod["spec"]["activeDeadlineSeconds"] < 1020, "lowered from a day and more"
    await in_thread(pool.ready, 1)
    await in_thread(wait_for, "one pod in use", lambda: pool.status()["claimedReplicas"] == 1)
    await session.end()
    await in_thread(stage.admin.wait_until_gone, "pod", ready)
    await in_thread(wait_for, "no pod in use", lambda: pool.status()["claimedReplicas"] == 0)
    assert (await client.execute(HELLO, asking(agent=f"{agent}-2"))).output == "hello\n"
    assert stage.record(f"{agent}-2")["status"]["podName"] != ready


async def test_a_stateful_session_gets_one_too_and_its_kernel_is_started(operator, stage, client, asking, make_pool):
    pool = await make_pool(1)
    before = stage.script.kernels
    async with await client.open_session(asking(), stateful=True, wait=True) as session:
        assert (await session.execute(HELLO)).output == "hello\n"
        assert origin(stage, session)[0] == pool.name
    assert stage.script.kernels == before + 1


async def test_a_kernel_stands_by_in_a_stateful_pool_and_only_stateful_sessions_get_it(
    operator, stage, client, asking, agent, make_pool
):
    plain = await make_pool(1)
    before = stage.script.kernels
    stateful = await make_pool(1, stateful=True)
    assert stage.script.kernels == before + 1, "it is there before anybody asks"
    async with await client.open_session(asking(), wait=True) as session:
        assert origin(stage, session)[0] == plain.name
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert stage.record(agent)["status"]["poolName"] == plain.name
    [ready] = stateful.pods()
    async with await client.open_session(asking(), stateful=True, wait=True) as session:
        assert (await session.execute(HELLO)).output == "hello\n"
        assert origin(stage, session) == (stateful.name, ready)


async def test_a_stateful_session_takes_a_plain_pod_if_no_kernel_is_ready(operator, stage, client, asking, make_pool):
    plain = await make_pool(1)
    with stage.nodes.waiting("ContainerCreating"):
        await make_pool(1, ready=False, stateful=True)
        async with await client.open_session(asking(), stateful=True, wait=True) as session:
            assert origin(stage, session)[0] == plain.name
            assert (await session.execute(HELLO)).output == "hello\n"


async def test_of_two_sessions_that_want_one_ready_pod_one_gets_it_and_the_other_a_pod_of_its_own(
    operator, stage, client, asking, make_pool
):
    pool = await make_pool(1)
    [ready] = pool.pods()
    with stage.proxy.fault(CREATE_POD, Answer(429)):
        sessions = await asyncio.gather(client.open_session(asking()), client.open_session(asking()))
        await in_thread(
            wait_for, "both to have a pod's name", lambda: all(origin(stage, session)[1] for session in sessions)
        )
    results = await asyncio.gather(*(session.execute(HELLO) for session in sessions))
    assert [one.output for one in results] == ["hello\n"] * 2
    first, second = sorted((origin(stage, session) for session in sessions), reverse=True)
    assert first == (pool.name, ready)
    assert (second[0], second[1] == ready) == ("", False)
    for session in sessions:
        await session.end()


async def test_a_session_with_other_limits_makes_its_own_pod(operator, stage, client, asking, make_pool):
    pool = await make_pool(1)
    before = pool.pods()
    other = asking(limits=Limits(cpu="90m", memory="96Mi"))
    async with await client.open_session(other, wait=True) as session:
        assert (await session.execute(HELLO)).output == "hello\n"
        pool_name, pod = origin(stage, session)
        assert (pool_name, pod in before, pool.pods()) == ("", False, before)


async def test_nobody_shares_a_pod_however_many_ask_at_once(operator, stage, client, asking, agent, make_pool):
    await make_pool(3)

    async def in_session(number: int) -> str:
        async with await client.open_session(asking()) as session:
            request = [session.execute(HELLO) for _ in range(2)]
            assert [one.output for one in await asyncio.gather(*request)] == ["hello\n"] * 2
            return origin(stage, session)[1]

    sessions = asyncio.gather(*(in_session(number) for number in range(6)))
    calls = asyncio.gather(*(client.execute(HELLO, asking(agent=f"{agent}-alone")) for _ in range(8)))
    pods = await sessions
    assert [one.output for one in await calls] == ["hello\n"] * 8
    alone = [one["status"]["podName"] for one in stage.records(agent=f"{agent}-alone")]
    assert len({*pods, *alone}) == len(pods) + len(alone) == 14
    assert stage.script.pods_used_twice == 0


# --- what a first call costs ---


def counts(seen: Iterable[Any], *resources: str) -> Counter[tuple[str, str, str]]:
    calls = [one.call for one in seen]
    return Counter((one.verb, one.resource, one.phase) for one in calls if one.resource in resources)


@pytest.mark.suspect
async def test_the_first_call_of_an_executor_is_made_of_these_requests(
    operator, stage, asking, agent, make_pool, one_watch
):
    await make_pool(1)
    path = stage.agent_kubeconfig(through=stage.client_proxy)
    client, served = len(stage.client_proxy.seen()), len(stage.proxy.seen())
    async with KubernetesCodeExecutor(
        namespace=SANDBOX, kubeconfig=path, limits=Limits(**LIMITS), agent=agent
    ) as executor:
        result = await executor.execute_code_blocks([CodeBlock(language="python", code='print("hello")')], NEVER)
        assert result.output == "hello\n"
        kinds = (EXECUTION_PLURAL, SESSION_PLURAL, "configmaps")  # another thread keeps the Lease
        by_client = counts(stage.client_proxy.seen()[client:], *kinds)
        assert by_client == {
            ("list", EXECUTION_PLURAL, ""): 2,
            ("watch", EXECUTION_PLURAL, ""): 1,
            ("get", "configmaps", ""): 1,
            ("create", SESSION_PLURAL, ""): 1,
            ("create", EXECUTION_PLURAL, ""): 1,
        }
        record = stage.record(agent)  # others of earlier tests may be ending yet
        names = {record["metadata"]["name"], record["spec"]["sessionRef"]["name"]}
        of_objects = (one for one in stage.proxy.seen()[served:] if one.call.name in names)
        asked = counts(of_objects, EXECUTION_PLURAL, SESSION_PLURAL)
        # Two watches bring the two objects. An operator that hears of the execution first reads its session.
        assert asked.pop(("get", SESSION_PLURAL, ""), 0) <= 1
        # Its record says that it was accepted if its session isn't ready a moment later.
        assert asked.pop(("patch", EXECUTION_PLURAL, "Starting"), 0) <= 1
        assert asked == {
            ("patch", SESSION_PLURAL, "Ready"): 1,
            ("patch", EXECUTION_PLURAL, "Running"): 1,
            ("patch", EXECUTION_PLURAL, "Succeeded"): 1,
        }


ASKED = {
    "executions": Match("list", EXECUTION_PLURAL),
    "identity": Match("create", "selfsubjectreviews"),
    "sealing key": Match("get", "configmaps"),
}


@pytest.mark.parametrize("slow", ASKED)
async def test_what_a_first_call_has_to_know_is_asked_for_at_the_same_time(operator, stage, make_client, asking, slow):
    client = make_client(through=stage.client_proxy)
    before = len(stage.client_proxy.seen())
    with stage.client_proxy.fault(ASKED[slow], Stall(), times=1):
        call = asyncio.create_task(client.execute(HELLO, asking()))

        def all_asked() -> bool:
            calls = [one.call for one in stage.client_proxy.seen()[before:]]
            return all(any(one(call) for call in calls) for one in ASKED.values())

        await in_thread(wait_for, "all to be asked for while one is not answered", all_asked)
        call.cancel()
        stage.client_proxy.cut_open(ASKED[slow])
        with suppress(asyncio.CancelledError):
            await call


# --- the operator, while a pod changes hands ---


@pytest.mark.parametrize("fault", [Answer(409), Answer(503), Lose("504")], ids=str)
async def test_a_record_that_cant_be_written_at_once_costs_no_second_pod(
    operator, stage, client, asking, make_pool, fault
):
    pool = await make_pool(1)
    [ready] = pool.pods()
    with stage.proxy.fault(RECORD, fault, times=1) as rule:
        async with await client.open_session(asking()) as session:
            assert (await session.execute(HELLO)).output == "hello\n"
            assert origin(stage, session) == (pool.name, ready)
    assert rule.met == 1


async def test_a_session_goes_on_when_the_operator_went_before_its_record_named_the_pod(
    operator, stage, client, asking, agent, make_pool
):
    pool = await make_pool(1)
    with stage.proxy.fault(RECORD, Stall()) as rule:
        session = await client.open_session(asking())
        await rule.hit()
        await in_thread(operator.kill)
    await in_thread(operator.start)
    assert (await session.execute(HELLO)).output == "hello\n"
    await in_thread(pool.ready, 1)
    assert (await client.execute(HELLO, asking(agent=f"{agent}-alone"))).output == "hello\n"
    assert stage.record(f"{agent}-alone")["status"]["podName"] != origin(stage, session)[1]
    assert stage.script.pods_used_twice == 0
    await session.end()


async def test_a_session_goes_on_when_the_operator_went_before_its_pod_was_adopted(
    operator, stage, client, asking, agent, make_pool
):
    pool = await make_pool(1)
    with stage.proxy.fault(ADOPT, Stall()) as rule:
        session = await client.open_session(asking())
        running = asyncio.create_task(session.execute(python(f'wait("{agent}")\nprint("done")')))
        await stage.script.reached(agent, running)
        await rule.hit()
        await in_thread(operator.kill)
    await in_thread(operator.start)
    await in_thread(pool.ready, 1)
    name, pod = origin(stage, session)
    assert name == pool.name
    stage.script.open(agent)
    assert (await running).output == "done\n"
    await in_thread(wait_for, "the pod to be the session's own", lambda: adopted(stage, session, pod))
    assert (await session.execute(HELLO)).output == "hello\n"
    await session.end()
    await in_thread(stage.admin.wait_until_gone, "pod", pod)


async def test_an_adoption_that_fails_is_made_again(operator, stage, client, asking, make_pool):
    await make_pool(1)
    with stage.proxy.fault(ADOPT, Answer(503), times=3) as rule:
        session = await client.open_session(asking(), wait=True)
        await rule.hit(3)
    pod = origin(stage, session)[1]
    await in_thread(wait_for, "the pod to be the session's own", lambda: adopted(stage, session, pod))
    await session.end()


@pytest.mark.parametrize("call", [RECORD, ADOPT], ids=["before its record named it", "before it was adopted"])
async def test_a_session_that_is_deleted_while_it_takes_a_pod_leaves_no_pod(
    operator, stage, client, asking, admin, make_pool, call
):
    pool = await make_pool(1)
    [ready] = pool.pods()
    with stage.proxy.fault(call, Answer(503)) as rule:
        session = await client.open_session(asking())
        await rule.hit()
        await in_thread(admin.delete, "codesession", session.name, wait=True)
        await in_thread(stage.admin.wait_until_gone, "pod", ready)
    await in_thread(pool.ready, 1)
    assert ready not in pool.pods()


async def test_a_pod_of_a_session_is_the_same_after_a_restart_and_ends_with_it(
    operator, stage, client, asking, make_pool
):
    await make_pool(1)
    session = await client.open_session(asking(), wait=True, idle_timeout_seconds=1800)
    pod = origin(stage, session)[1]
    await in_thread(operator.stop)
    await in_thread(operator.start)
    assert (await session.execute(HELLO)).output == "hello\n"
    assert origin(stage, session)[1] == pod
    await session.end()
    await in_thread(stage.admin.wait_until_gone, "pod", pod)


async def test_an_idle_session_in_a_pod_of_a_pool_ends_with_its_pod(operator, stage, client, asking, make_pool):
    pool = await make_pool(1)
    session = await client.open_session(asking(), idle_timeout_seconds=1)  # nobody may see it ready, so soon it ends
    idle = lambda one: one.get("status", {}).get("reason") == "IdleTimeout"  # noqa: E731
    ended = await in_thread(stage.admin.wait_until, "it to end", "codesession", session.name, idle)
    assert ended["status"]["poolName"] == pool.name
    await in_thread(stage.admin.wait_until_gone, "pod", ended["status"]["podName"])


async def test_a_session_outlives_the_pool_that_its_pod_is_from(operator, stage, client, asking, admin, make_pool):
    pool = await make_pool(1)
    session = await client.open_session(asking(), wait=True)
    pod = origin(stage, session)[1]
    await in_thread(wait_for, "the pod to be the session's own", lambda: adopted(stage, session, pod))
    await in_thread(pool.scale, 0)
    await in_thread(wait_for, "no ready pods", lambda: pool.pods() == {pod})
    assert (await session.execute(HELLO)).output == "hello\n"
    await session.end()
