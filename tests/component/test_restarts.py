"""Operator, API server and etcd go and come back: nothing runs twice, every record ends, and work goes on."""

import asyncio
import itertools
import signal
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from api_calls import Match
from cluster_tools import a_name, wait_for
from component_stage import LIMITS, RUNNING, in_thread
from faults import Answer, Cut, Delay, Stall

from codeexec_api.names import EXECUTION_PLURAL, EXPIRES_ANNOTATION
from codeexec_operator.adapters.records import AT_A_TIME
from executor_client import CodeExecError, ExecutionLost, ExecutionNotStarted, PreparedBlock
from executor_client.transport import outage

HELLO = (PreparedBlock("python", b'print("hello")'),)
CREATE_POD = Match("create", "pods")
BOUND = Match("patch", EXECUTION_PLURAL, subresource="status", where=lambda call: call.phase == "Starting")
ENDED = Match("patch", EXECUTION_PLURAL, subresource="status", where=lambda call: call.phase == "Succeeded")


def waiting_at(gate: str, first: str = "") -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'{first}wait("{gate}")\nprint("done")'.encode()),)


@pytest.mark.parametrize("meanwhile", [False, True], ids=["ends later", "ends meanwhile"])
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_code_that_ran_when_the_operator_went_ends_with_its_true_result(
    operator, stage, client, asking, agent, how, meanwhile
):
    running = asyncio.create_task(client.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    pod = stage.record(agent)["status"]["podName"]
    await in_thread(getattr(operator, how))
    if meanwhile:
        stage.script.open(agent)
    await in_thread(operator.start)
    stage.script.open(agent)
    assert (await running).output == "done\n"
    record = stage.record(agent)
    assert (record["status"]["phase"], record["status"]["podName"]) == ("Succeeded", pod)
    stage.ran_once(record)
    await in_thread(stage.admin.wait_until_gone, "pod", pod)


async def test_a_cancellation_while_there_is_no_operator_is_heeded_by_the_next(operator, stage, client, asking, agent):
    execution = await client.submit(waiting_at(agent), asking())
    await stage.script.reached(agent)
    await in_thread(operator.kill)
    await execution.cancel()
    await in_thread(operator.start)
    record = await in_thread(stage.ended, agent)
    assert record["status"]["phase"] == "Cancelled"
    stage.ran_once(record)


async def test_a_pod_that_goes_while_there_is_no_operator_is_told_of(operator, stage, client, asking, agent, admin):
    running = asyncio.create_task(client.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    pod = stage.record(agent)["status"]["podName"]
    await in_thread(operator.kill)
    await in_thread(admin.delete, "pod", pod, gracePeriodSeconds=0)
    await in_thread(operator.start)
    with pytest.raises(ExecutionLost, match="the pod was deleted while the code ran"):
        await running


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_session_goes_on_when_the_operator_went(operator, stage, client, asking, agent, how):
    async with await client.open_session(asking(), wait=True) as session:
        running = asyncio.create_task(session.execute(waiting_at(agent)))
        await stage.script.reached(agent, running)
        queued = asyncio.create_task(session.execute(HELLO))
        await in_thread(stage.taken_up, agent, 2)
        await in_thread(getattr(operator, how))
        await in_thread(operator.start)
        stage.script.open(agent)
        assert (await running).output == "done\n"
        assert (await queued).output == "hello\n"
        assert (await session.execute(HELLO)).output == "hello\n"
    for record in stage.records(agent=agent):
        stage.ran_once(record)


async def test_the_result_of_code_that_ended_is_taken_up_before_the_next_code_of_its_session_starts(
    operator, stage, client, asking, agent, monkeypatch
):
    """A runner forgets what it has said of a job when the next begins, and long lists come in pages."""
    names = itertools.chain(["f"], map("{:03}".format, itertools.count()))
    monkeypatch.setattr("executor_client.client.running.secrets", SimpleNamespace(token_hex=lambda _: next(names)))
    async with await client.open_session(asking(), wait=True) as session:
        running = asyncio.create_task(session.execute(waiting_at(agent)))
        await stage.script.reached(agent, running)
        submitted = (client.submit(HELLO, asking(), session=session.name) for _ in range(AT_A_TIME + 5))
        queued = await asyncio.gather(*submitted)
        await in_thread(operator.kill)
        stage.script.open(agent)
        later_pages = Match("list", EXECUTION_PLURAL, where=lambda call: "continue" in call.query)
        with stage.proxy.fault(later_pages, Delay(3)) as rule:  # also of lists that are made for another reason
            await in_thread(operator.start)
            await rule.hit()
            assert {(await one.result()).output for one in queued} == {"hello\n"}
        assert (await running).output == "done\n"
    for record in stage.records(agent=agent):
        stage.ran_once(record)


async def test_output_of_code_that_runs_through_a_restart_stays_as_long_as_its_namespaces_policy_says(
    operator, stage, client, asking, agent, admin, stack
):
    stack.callback(stage.drop_policy)
    await in_thread(lambda: stage.put_policy(outputTTLSeconds=600))
    running = asyncio.create_task(client.execute(waiting_at(agent, "fill(800_000)\n"), asking()))
    await stage.script.reached(agent, running)
    await in_thread(operator.kill)
    stage.script.open(agent)
    await in_thread(operator.start)
    assert len((await running).output) > 800_000
    record = stage.record(agent)
    [part, *_] = record["status"]["outputRefs"]
    kept = await in_thread(admin.get, "configmap", part["name"])
    expires_at = datetime.fromisoformat(kept["metadata"]["annotations"][EXPIRES_ANNOTATION])
    assert expires_at < datetime.fromisoformat(record["status"]["startedAt"]) + timedelta(seconds=3600)


@pytest.mark.suspect
async def test_the_audit_log_tells_of_the_last_line_before_it_though_finished_records_are_not_watched(
    operator, stage, client, asking, agent
):
    await client.execute(HELLO, asking())
    await in_thread(operator.stop)
    begin = operator.log.stat().st_size
    # The list of columns, which comes when the executions have been looked through. Kopf's and others' have none.
    lists = Match("list", "codesessions", where=lambda call: "includeObject" in call.query)
    before = len(stage.proxy.seen(lists))
    await in_thread(operator.start)
    await in_thread(wait_for, "finished sessions to be listed", lambda: len(stage.proxy.seen(lists)) > before)
    await in_thread(operator.stop)
    said = operator.log.read_bytes()[begin:].decode()
    # The newest by its time: an operator of another test may have had a clock that was ahead.
    records = [*stage.records(), *stage.admin.list("codesession")]
    last = max((one["status"]["audit"] for one in records), key=lambda anchor: datetime.fromisoformat(anchor["time"]))
    assert '"Continues"' in said
    assert f'"chain":"{last["chain"]}"' in said
    await in_thread(operator.start)


async def test_what_was_submitted_while_there_was_no_operator_runs_once_it_is_there_and_what_was_over_stays_so(
    operator, stage, client, asking, agent, admin
):
    await client.execute(HELLO, asking(agent=f"{agent}-over"))
    over, in_a_secret = stage.record(f"{agent}-over"), a_name("in-a-secret")
    await in_thread(operator.stop)
    submitted = [await client.submit(HELLO, asking()) for _ in range(3)]
    await in_thread(lambda: admin.submit(in_a_secret, 'print("hello")', limits=LIMITS, source={"agent": agent}))
    await in_thread(operator.start)
    assert [(await one.result()).output for one in submitted] == ["hello\n"] * 3
    done = await in_thread(admin.wait_for_phase, in_a_secret, "Succeeded")
    assert done["status"]["stdout"]["text"] == "hello\n"
    assert stage.record(f"{agent}-over")["status"] == over["status"]
    for record in (over, *stage.records(agent=agent)):
        stage.ran_once(record)


@pytest.mark.parametrize(
    "match", [CREATE_POD, Match("connect", subresource="attach"), RUNNING], ids=["pod", "attach", "running"]
)
async def test_an_operator_that_is_killed_before_the_hand_over_runs_nothing_twice(
    operator, stage, client, asking, agent, match
):
    """If it was killed before the hand-over, the one after it can't know that nothing was handed over."""
    execution = await _stuck_at(match, operator, stage, client, asking)
    await in_thread(operator.start)
    record = await in_thread(stage.ended, agent)
    assert record["status"]["reason"]
    assert stage.script.jobs[record["metadata"]["uid"]] == (record["status"]["phase"] == "Succeeded")
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    with_result = record["status"]["phase"] == "Succeeded"
    assert with_result or await _raises(execution)


async def _stuck_at(match, operator, stage, client, asking):
    with stage.proxy.fault(match, Stall()) as rule:
        execution = await client.submit(HELLO, asking())
        await rule.hit()
        await in_thread(operator.kill)
    return execution


async def _raises(execution) -> bool:
    try:
        await execution.result()
    except CodeExecError:
        return True
    return False


async def test_an_execution_whose_pod_was_starting_runs_after_a_restart(operator, stage, client, asking, agent):
    with stage.proxy.fault(Match("connect", subresource="attach"), Stall()) as rule:
        execution = await client.submit(HELLO, asking())
        await rule.hit()
        await in_thread(operator.stop)
    with stage.operator():  # its pod has another address
        assert (await execution.result()).output == "hello\n"


async def test_code_in_a_secret_that_the_next_operator_has_not_heard_of_runs(operator, stage, client, asking, agent):
    large = PreparedBlock("python", b'print("hello")  #' + 200_000 * b"x")
    with stage.proxy.fault(Match("connect", subresource="attach"), Stall()) as attached:
        execution = await client.submit((large,), asking())
        await attached.hit()
        await in_thread(operator.stop)
    assert "payloadRef" in stage.record(agent)["spec"]
    fault = stage.proxy.fault
    with fault(Match("watch", "secrets"), Stall()), fault(Match("list", "secrets"), Stall()), stage.operator():
        assert (await execution.result()).output == "hello\n"


@pytest.mark.suspect
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_after_a_restart_of_the_api_server_executions_run_again(operator, stage, client, asking, agent, how):
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    epoch = stage.lease()["leaseTransitions"]
    await in_thread(stage.plane.restart_api_server, how)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert operator.running
    assert stage.lease()["leaseTransitions"] == epoch, "it still leads: the API server was back in time"
    for record in stage.records(agent=agent):
        stage.ran_once(record)


async def test_code_that_runs_through_a_restart_of_the_api_server_ends_with_its_true_result(
    operator, stage, make_client, asking, agent, monkeypatch
):
    monkeypatch.setattr(outage, "OUTAGE_SECONDS", 300)  # a busy machine may take minutes to start an API server
    client = make_client(through=stage.client_proxy)
    running = asyncio.create_task(client.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    # An API server that has just started forbids what it will allow (test_client_faults.py); a balancer knows that.
    with stage.client_proxy.fault(Match(), Answer(503)):
        await in_thread(stage.plane.restart_api_server)
    stage.script.open(agent)
    assert (await running).output == "done\n"
    stage.ran_once(stage.record(agent))


async def test_after_a_restart_of_etcd_executions_run_again(operator, stage, client, asking, agent):
    running = asyncio.create_task(client.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    before = len(stage.proxy.seen(ENDED))
    await in_thread(stage.plane.stop_etcd)
    try:
        stage.script.open(agent)
        # Not for longer: a leader that can't renew its Lease ends.
        await in_thread(wait_for, "the result to be written", lambda: stage.proxy.seen(ENDED)[before:])
    finally:
        await in_thread(stage.plane.start_etcd)
    assert (await running).output == "done\n"
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    for record in stage.records(agent=agent):
        stage.ran_once(record)


async def test_an_operator_that_stood_still_goes_on_where_it_was(operator, stage, client, asking, agent):
    running = asyncio.create_task(client.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    operator.pause()
    try:
        stage.script.open(agent)
        queued = await client.submit(HELLO, asking())
    finally:
        operator.resume()
    assert (await running).output == "done\n"
    assert (await queued.result()).output == "hello\n"
    for record in stage.records(agent=agent):
        stage.ran_once(record)


async def test_an_operator_that_finds_no_api_server_waits_for_it(operator, stage, client, asking):
    await in_thread(operator.stop)
    with stage.proxy.fault(Match("list,watch", EXECUTION_PLURAL), Cut()) as rule:
        operator.start(ready=False)
        await rule.hit(2)
    await in_thread(operator.wait_until_ready)
    assert (await client.execute(HELLO, asking())).output == "hello\n"


async def test_one_request_that_fails_at_its_start_costs_seconds(operator, stage):
    await in_thread(operator.stop)
    keys = Match("get", "secrets", name="codeexec-sealing")
    with stage.proxy.fault(keys, Answer(503), times=1) as rule:
        operator.start(ready=False)
        await rule.hit()
        await in_thread(operator.wait_until_ready)


async def test_an_execution_that_is_deleted_while_the_operator_is_away_leaves_no_pod(
    operator, stage, client, asking, agent, admin
):
    execution = await client.submit(waiting_at(agent), asking())
    await stage.script.reached(agent)
    pod = stage.record(agent)["status"]["podName"]
    await in_thread(operator.stop)
    await in_thread(admin.delete, EXECUTION_PLURAL, execution.name, wait=True)
    await in_thread(operator.start)
    await in_thread(stage.admin.wait_until_gone, "pod", pod)


async def test_a_deletion_that_was_missed_leaves_nothing_that_waits_for_ever(
    operator, stage, client, asking, agent, admin
):
    """The record goes while the operator's watch is away; the next list doesn't have it."""
    execution = await client.submit(waiting_at(agent), asking())
    await stage.script.reached(agent)
    pod, worker = stage.record(agent)["status"]["podName"], f"ExecutionWorker {execution.name}:"
    assert worker in await in_thread(operator.tasks), "control"
    with stage.proxy.fault(Match("list,watch", EXECUTION_PLURAL), Answer(503)) as rule:
        stage.proxy.cut_open(Match("watch", EXECUTION_PLURAL))
        await rule.hit()
        await in_thread(admin.delete, EXECUTION_PLURAL, execution.name, wait=True)
    stage.script.open(agent)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    await in_thread(admin.wait_until_gone, "pod", pod)
    await in_thread(wait_for, "its worker to end", lambda: worker not in operator.tasks())


async def test_a_pod_that_is_taken_away_before_the_code_starts_is_an_end_with_a_reason(
    operator, stage, client, asking, agent, admin
):
    with stage.proxy.fault(Match("connect", subresource="attach"), Stall()) as rule:
        execution = await client.submit(HELLO, asking())
        await rule.hit()
        pod = stage.record(agent)["status"]["podName"]
        await in_thread(admin.delete, "pod", pod, gracePeriodSeconds=0)
        with pytest.raises((ExecutionNotStarted, ExecutionLost), match="pod was deleted before"):
            await execution.result()
    stage.never_ran(stage.record(agent))
