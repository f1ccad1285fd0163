"""A caller goes away, or the client is closed, while something is under way: at once, and no code runs on unseen."""

import asyncio
from urllib.parse import urlsplit

import pytest
from api_calls import Match, call_of
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, in_thread
from faults import Answer, Delay, Hold, Lose
from kubernetes.aio.client import ApiClient
from polling import time_limit_passes_once

from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from executor_client import (
    ClusterRef,
    ClusterUnreachable,
    CodeExecutionClient,
    KubernetesCodeExecutor,
    Limits,
    PreparedBlock,
    Timeout,
)
from executor_client.client import calls

HELLO = (PreparedBlock("python", b'print("hello")'),)
CREATE, CANCEL = Match("create", EXECUTION_PLURAL), Match("patch", EXECUTION_PLURAL, subresource="")
LIST = Match("list", EXECUTION_PLURAL)


@pytest.fixture
def through(stage, make_client, monkeypatch):
    """A client whose calls go through the client's proxy, and whose `close` waits as long as a busy machine takes."""
    monkeypatch.setattr(calls, "_END_SECONDS", 60)
    return make_client(through=stage.client_proxy)


def waiting_at(gate: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'print("begun")\nwait("{gate}")'.encode()),)


def cancelled(stage, agent) -> list[bool]:
    return [one["spec"].get("cancelled", False) for one in stage.records(agent=agent)]


@pytest.mark.parametrize("limited", ["by the caller", "by the request"])
async def test_who_goes_away_while_it_is_created_goes_at_once_and_the_code_is_stopped(
    operator, stage, through, asking, agent, limited
):
    await through.check()
    before, hold = len(stage.client_proxy.seen(CREATE)), Hold()

    async def call() -> None:
        if limited == "by the request":
            await through.execute(waiting_at(agent), asking(start_seconds=14))
            return
        async with time_limit_passes_once(lambda: rule.met):
            await through.execute(waiting_at(agent), asking())

    with stage.client_proxy.fault(CREATE, hold) as rule:
        with pytest.raises(TimeoutError) as raised:
            await call()
        [creation] = stage.client_proxy.seen(CREATE)[before:]
        assert creation.status == 0, "it was not waited for"
        assert isinstance(raised.value, Timeout) is (limited == "by the request")
        hold.release()
        await through.close()
    assert cancelled(stage, agent) == [True], "the client waits for what it has to undo"
    assert (await in_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


@pytest.mark.suspect
async def test_who_goes_away_in_the_moment_of_the_answer_leaves_no_code_that_runs(
    operator, stage, admin, agent, monkeypatch
):
    """The API server has made the record, its answer has come, and AutoGen has not heard of it yet."""
    limits, made = Limits(**LIMITS), []
    path = stage.agent_kubeconfig()
    executor = KubernetesCodeExecutor(
        namespace=SANDBOX, kubeconfig=path, session="per-call", limits=limits, agent=agent, timeout=600
    )
    await executor.start()
    answered = ApiClient.call_api

    async def answered_too_late(api, method, url, header_params=None, body=None, *rest, **how):
        answer = await answered(api, method, url, header_params, body, *rest, **how)
        if CREATE(call_of(method, urlsplit(url).path, {}, b"")):
            made.append(body["metadata"]["name"])
            calling.cancel()
        return answer

    monkeypatch.setattr(ApiClient, "call_api", answered_too_late)
    block = CodeBlock(f'wait("{agent}")', "python")
    calling = asyncio.create_task(executor.execute_code_blocks([block], CancellationToken()))
    with pytest.raises(asyncio.CancelledError):
        await calling
    [name] = made
    record = await in_thread(admin.wait_for_phase, name, "Cancelled")
    assert record["spec"]["cancelled"] is True
    await executor.stop()


async def test_who_goes_away_before_anything_is_created_creates_nothing(operator, stage, through, asking, agent):
    await through.check()
    hold = Hold()
    with stage.client_proxy.fault(LIST, hold) as asked, stage.client_proxy.fault(CREATE, Delay(0)) as created:
        with pytest.raises(TimeoutError):
            async with time_limit_passes_once(lambda: asked.met):
                await through.execute(HELLO, asking())
        hold.release()
        await through.close()
    assert (asked.met, created.met) == (1, 0)
    assert stage.records(agent=agent) == []


async def test_a_session_whose_caller_goes_away_is_ended(operator, stage, through, asking, admin):
    hold = Hold()
    with stage.client_proxy.fault(Match("create", SESSION_PLURAL), hold) as rule:
        with pytest.raises(TimeoutError):
            async with time_limit_passes_once(lambda: rule.met):
                await through.open_session(asking(), outlives_client=True)
        hold.release()
        await through.close()
    [call] = rule.calls
    assert admin.get("codesession", call.sent["metadata"]["name"])["spec"]["ended"] is True


async def test_an_event_loop_that_ends_while_it_is_created_leaves_no_code_behind(operator, stage, asking, agent):
    """Nobody closes the client, the creation was carried out, and its answer is on its way."""
    path = stage.agent_kubeconfig(through=stage.client_proxy)

    async def call() -> None:
        client = CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig=path))
        await client.check()
        async with time_limit_passes_once(lambda: stage.records(agent=agent)):
            await client.execute(waiting_at(agent), asking())

    def run() -> None:
        with pytest.raises(TimeoutError):
            asyncio.run(call())

    with stage.client_proxy.fault(CREATE, Lose("stall"), times=1) as rule:
        await in_thread(run)
    assert rule.met == 1
    assert cancelled(stage, agent) == [True]


async def test_closing_stops_the_code_of_calls(operator, stage, through, asking, agent):
    running = asyncio.create_task(through.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    await through.close()
    with pytest.raises(ClusterUnreachable, match="the client was closed"):
        await running
    assert cancelled(stage, agent) == [True]
    assert (await in_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


@pytest.mark.parametrize("watch", ["shared", "its own"])
async def test_closing_ends_a_wait_with_an_error_of_ours_and_what_was_submitted_runs_on(
    operator, stage, through, asking, agent, client, one_watch, watch, caplog
):
    """The control of the test above."""
    handle = await (through if watch == "shared" else client).submit(waiting_at(agent), asking())
    waiting = asyncio.create_task(through.attach(handle.name).result())
    await stage.script.reached(agent, waiting)
    watches = Match("watch", EXECUTION_PLURAL)
    await in_thread(wait_for, "the watch", lambda: stage.client_proxy.open_streams(watches) == 1)
    await through.close()
    with pytest.raises(ClusterUnreachable, match="the client was closed"):
        await waiting
    assert [one for one in caplog.records if one.name in ("asyncio", "aiohttp.client")] == []
    assert cancelled(stage, agent) == [False]
    stage.script.open(agent)
    assert (await client.attach(handle.name).result()).output == "begun\n"


async def test_the_end_of_a_session_lasts_out_an_outage(operator, stage, through, asking, admin):
    with stage.client_proxy.fault(Match("patch", SESSION_PLURAL), Answer(503), times=2) as rule:
        async with await through.open_session(asking()) as session:
            pass
    assert rule.met == 2
    assert admin.get("codesession", session.name)["spec"]["ended"] is True
