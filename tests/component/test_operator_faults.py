"""The API server, or the way to it, fails the operator: code runs once or not at all, its record ends, others go on."""

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from aiohttp import WSMsgType
from api_calls import Match
from cluster_tools import SANDBOX, SYSTEM, wait_for
from component_stage import OPERATOR, RUNNING, in_thread
from fault_proxy import FaultProxy
from faults import Answer, Cut, Delay, Fault, Lose, Stall, WatchError
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import load_kube_config

from codeexec_api.names import EXECUTION_PLURAL, SANDBOX_CONTAINER
from codeexec_operator.adapters import cluster as doorway
from codeexec_operator.adapters.api_server import ApiServer
from codeexec_operator.adapters.cluster import Cluster
from executor_client import ExecutionLost, ExecutionNotStarted, PreparedBlock
from executor_client.client import execution

HELLO = (PreparedBlock("python", b'print("hello")'),)
PROMISED_SECONDS = 15
"""From when a pod is gone until the record says so: docs/reliability.md."""
CREATE_POD, ATTACH = Match("create", "pods"), Match("connect", "pods", subresource="attach")
STATUS = Match("patch", EXECUTION_PLURAL, subresource="status")
EXECUTIONS = Match("watch", EXECUTION_PLURAL)
ATTACHING = {"container": SANDBOX_CONTAINER, "stdin": "true", "stdout": "true"}


def on_the_way(fault: Fault, proxy: FaultProxy, stack) -> list:
    """This fault, once each, for the calls on the way of an execution from the pod to the result."""
    ended = Match("patch", EXECUTION_PLURAL, subresource="status", where=lambda call: call.phase == "Succeeded")
    return [stack.enter_context(proxy.fault(match, fault, times=1)) for match in (CREATE_POD, ATTACH, ended)]


@pytest.mark.parametrize(
    "fault",
    [
        *(Answer(status) for status in (409, 410, 500, 502, 503, 504)),
        Answer(429, retry_after=1),
        Delay(1.5),
        Cut(),
        Lose("cut"),
        Lose("504"),
    ],
    ids=str,
)
async def test_code_runs_once_whatever_a_call_on_its_way_is_answered(
    operator, stage, client, asking, agent, stack, fault
):
    rules = on_the_way(fault, stage.proxy, stack)
    result = await client.execute(HELLO, asking())
    assert (result.exit_code, result.output) == (0, "hello\n")
    assert [rule.met for rule in rules] == [1, 1, 1]
    stage.ran_once(stage.record(agent))


async def test_a_call_that_is_never_answered_is_given_up_and_made_again(operator, stage, client, asking, agent):
    with stage.proxy.fault(CREATE_POD, Stall(), times=1) as rule:
        result = await client.execute(HELLO, asking())
    assert (result.output, rule.met) == ("hello\n", 1)
    stage.ran_once(stage.record(agent))


async def test_a_pod_that_is_forbidden_is_an_end_with_its_reason_and_the_next_one_runs(
    operator, stage, client, asking, agent
):
    refused = Answer(403, message="no pods today")
    with stage.proxy.fault(CREATE_POD, refused, times=1), pytest.raises(ExecutionNotStarted, match="no pods today"):
        await client.execute(HELLO, asking())
    record = stage.record(agent)
    assert (record["status"]["phase"], record["status"]["reason"]) == ("Failed", "PodRefused")
    stage.never_ran(record)
    assert (await client.execute(HELLO, asking())).output == "hello\n"


@pytest.mark.parametrize("status", [403, 429, 503])
async def test_a_record_that_cant_be_written_is_written_later(operator, stage, client, asking, agent, status):
    with stage.proxy.fault(STATUS, Answer(status), times=2) as rule:
        assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert rule.met == 2
    stage.ran_once(stage.record(agent))


@pytest.mark.parametrize("fault", [Answer(409), Answer(503), Cut()], ids=str)
async def test_no_code_is_handed_over_before_its_record_says_that_it_runs(
    operator, stage, client, asking, agent, fault
):
    with stage.proxy.fault(RUNNING, fault) as rule:
        waiting = asyncio.create_task(client.execute(HELLO, asking()))
        await rule.hit(2)
        stage.never_ran(stage.record(agent))
    assert (await waiting).output == "hello\n"
    stage.ran_once(stage.record(agent))


@pytest.mark.parametrize("how", ["cut", "504", "stall"])
async def test_a_lost_answer_to_the_write_before_the_hand_over_costs_no_execution(
    operator, stage, client, asking, agent, how
):
    with stage.proxy.fault(RUNNING, Lose(how), times=1) as rule:
        assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert rule.met == 1
    stage.ran_once(stage.record(agent))


async def test_a_connection_to_the_runner_that_breaks_is_made_again_and_misses_nothing(
    operator, stage, client, asking, agent
):
    code = f'print("before")\nwait("{agent}")\nprint("after")'
    waiting = asyncio.create_task(client.execute((PreparedBlock("python", code.encode()),), asking()))
    await stage.script.reached(agent, waiting)
    with stage.proxy.fault(ATTACH, Answer(503), times=2) as rule:
        assert stage.proxy.cut_open(ATTACH) >= 1
        await rule.hit(2)
        stage.script.open(agent)
    assert (await waiting).output == "before\nafter\n"
    stage.ran_once(stage.record(agent))


async def test_a_pod_that_goes_behind_a_silent_connection_is_noticed(operator, stage, client, asking, agent, admin):
    block = PreparedBlock("python", f'wait("{agent}")'.encode())
    waiting = asyncio.create_task(client.execute((block,), asking()))
    await stage.script.reached(agent, waiting)
    assert stage.proxy.silence_open(ATTACH) >= 1
    status = stage.record(agent)["status"]
    admin.delete("pod", status["podName"], gracePeriodSeconds=0)
    told_at = datetime.now(UTC)
    with pytest.raises(ExecutionLost):
        await waiting
    stage.recorded_within(PROMISED_SECONDS, told_at, stage.record(agent))


async def test_a_ping_is_answered_by_the_far_end_of_a_connection_and_silence_ends_it(
    operator, stage, client, asking, agent, monkeypatch
):
    """The API server passes pings on. The operator's own pings are far apart, so this is a connection of the test."""
    configuration = Configuration()
    path = stage.proxy.write_kubeconfig(stage.folder / agent, token=stage.token(SYSTEM, OPERATOR))
    await load_kube_config(str(path), client_configuration=configuration)
    cluster = Cluster(ApiServer(configuration))
    waiting = asyncio.create_task(client.execute((PreparedBlock("python", f'wait("{agent}")'.encode()),), asking()))
    await stage.script.reached(agent, waiting)
    name = stage.record(agent)["status"]["podName"]
    async with cluster._api.attach(f"/api/v1/namespaces/{SANDBOX}/pods/{name}/attach", ATTACHING) as websocket:
        assert websocket.protocol == "v4.channel.k8s.io"
        await websocket.ping(b"there?")
        async with asyncio.timeout(20):
            while (answer := await websocket.receive()).type is WSMsgType.BINARY:
                pass
        assert (answer.type, bytes(answer.data)) == (WSMsgType.PONG, b"there?")
    monkeypatch.setattr(doorway, "_PING_SECONDS", 0.5)
    async with cluster.attach(SANDBOX, name) as link:
        assert stage.proxy.silence_open(Match("connect", "pods", name, "attach")) >= 1
        async with asyncio.timeout(20):
            assert b"".join([data async for data in link.received()]) == b""
    await cluster.close()
    stage.script.open(agent)
    with suppress(ExecutionLost):
        await waiting  # its own connection was silenced, too


@pytest.mark.parametrize("fault", [WatchError(410), Answer(500), Answer(503), Answer(429), Cut()], ids=str)
async def test_a_watch_that_fails_is_opened_again_and_misses_nothing(operator, stage, client, asking, agent, fault):
    with stage.proxy.fault(EXECUTIONS, fault, times=1) as rule:
        stage.proxy.cut_open(EXECUTIONS)
        waiting = asyncio.create_task(client.execute(HELLO, asking()))
        await rule.hit()
        assert (await waiting).output == "hello\n"
    stage.ran_once(stage.record(agent))
    assert operator.running


async def test_a_watch_that_says_error_does_not_end_the_operator(operator, stage, client, asking):
    with stage.proxy.fault(EXECUTIONS, WatchError(500), times=1) as rule:
        stage.proxy.cut_open(EXECUTIONS)
        await rule.hit()
        over = lambda: stage.proxy.open_streams(EXECUTIONS) or not operator.running  # noqa: E731
        await asyncio.to_thread(wait_for, "another watch, or the end of the operator", over)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert operator.running


@pytest.mark.parametrize("fault", [WatchError(410), WatchError(500), Answer(403), Answer(503), Cut()], ids=str)
async def test_payloads_that_cant_be_watched_are_read(operator, stage, client, asking, agent, fault):
    secrets = Match("watch", "secrets")
    large = PreparedBlock("python", f'print("hello")  # {"x" * 20_000}'.encode())
    with stage.proxy.fault(secrets, fault, times=2) as rule:
        stage.proxy.cut_open(secrets)
        await rule.hit()
        assert (await client.execute((large,), asking())).output == "hello\n"
        await rule.hit(2)
    stage.ran_once(stage.record(agent))


async def test_an_api_server_that_sheds_load_is_left_alone_for_so_long_as_it_says(operator, stage, client, asking):
    before = len(stage.proxy.seen(CREATE_POD))
    with stage.proxy.fault(CREATE_POD, Answer(429, retry_after=4), times=3) as rule:
        assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert rule.met == 3
    at = [one.at for one in stage.proxy.seen(CREATE_POD)[before:] if one.status == 429]
    assert len(at) == 3
    assert all(later - earlier >= 4 for earlier, later in pairwise(at))


async def test_readiness_says_that_the_api_server_is_away_and_liveness_does_not(operator, stage):
    one = Match("get", "configmaps")

    def ready() -> bool:
        return operator.answers("readyz")

    with stage.proxy.fault(one, Answer(503)):
        await asyncio.to_thread(wait_for, "it to be said", lambda: not ready())
        assert await asyncio.to_thread(operator.answers, "livez")
    await asyncio.to_thread(wait_for, "it to be taken back", ready)


async def test_an_outage_of_some_seconds_costs_nothing_but_time(operator, stage, client, asking, agent, monkeypatch):
    monkeypatch.setattr(execution, "OPERATOR_SECONDS", 600)  # twenty calls may take a busy operator longer than usual
    with stage.proxy.fault(Match(), Cut()) as rule:
        stage.proxy.cut_open(Match())
        waiting = asyncio.create_task(client.execute(HELLO, asking()))
        record = await in_thread(stage.made, agent)
        await rule.hit(20)
        stage.never_ran(record)
    begun = time.monotonic()
    assert (await waiting).output == "hello\n"
    print(f"{time.monotonic() - begun:.1f} s after an outage in which {rule.met} calls failed")
    stage.ran_once(record)


def test_a_test_that_fails_can_tell_what_the_operator_waits_for(operator):
    said = operator.tasks()
    assert "Thread" in said
    assert f"{SANDBOX}: payloads: Supervisor.add.<locals>.begin" in said
