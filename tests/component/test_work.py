"""What the operator does for each kind of object, without a kubelet: sessions, pools, approvals, policies, output."""

import asyncio
import base64
import gzip
import json

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, a_name, an_approval, wait_for
from component_stage import LIMITS, in_thread
from faults import Answer, Cut, Delay, Lose, Stall
from scripted_runner import noise

from codeexec_api import Reason
from codeexec_api.names import EXECUTION_PLURAL
from executor_client import ExecutionLost, PreparedBlock, SessionEnded

HELLO = (PreparedBlock("python", b'print("hello")'),)
ATTACH = Match("connect", "pods", subresource="attach")
CREATE_POD = Match("create", "pods")


def python(code: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", code.encode()),)


# --- sessions -------------------------------------------------------------------------------------------------------


async def test_executions_of_a_session_run_one_after_the_other_in_one_pod(operator, stage, client, asking, agent):
    async with await client.open_session(asking(), wait=True) as session:
        first = asyncio.create_task(session.execute(python(f'wait("{agent}")\nprint("first")')))
        await stage.script.reached(agent, first)
        second = asyncio.create_task(session.execute(HELLO))
        stage.script.open(agent)
        assert [(await one).output for one in (first, second)] == ["first\n", "hello\n"]
    records = stage.records(agent=agent)
    assert len({one["status"]["podName"] for one in records}) == 1
    for record in records:
        stage.ran_once(record)


async def test_what_is_submitted_to_a_session_that_has_ended_is_refused(operator, client, asking):
    async with await client.open_session(asking(), wait=True) as session:
        pass
    with pytest.raises(SessionEnded):
        await session.execute(HELLO)


async def test_nothing_runs_in_a_session_while_its_end_is_written(operator, stage, client, asking, agent):
    """The session has been idle, and the API server takes its time with that status."""
    others = {one["metadata"]["name"] for one in stage.admin.list("codesession")}  # of which some may be ending yet
    ours_ends = lambda call: call.phase == "Ended" and call.name not in others  # noqa: E731
    ended = Match("patch", "codesessions", subresource="status", where=ours_ends)
    with stage.proxy.fault(ended, Delay(5), times=1) as fault:
        session = await client.open_session(asking(), wait=True, idle_timeout_seconds=1)
        await fault.hit()
        with pytest.raises(SessionEnded):
            await session.execute(HELLO)
    stage.never_ran(stage.record(agent))


async def test_a_session_that_is_ended_stops_what_runs_in_it(operator, stage, client, asking, agent):
    session = await client.open_session(asking(), wait=True)
    running = asyncio.create_task(session.execute(python(f'wait("{agent}")')))
    await stage.script.reached(agent, running)
    await session.end()
    result = await running
    assert result.exit_code != 0
    assert (await in_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


async def test_code_of_a_session_is_stopped_and_the_session_goes_on(operator, stage, client, asking, agent):
    async with await client.open_session(asking(), wait=True) as session:
        running = asyncio.create_task(session.execute(python(f'wait("{agent}")')))
        await stage.script.reached(agent, running)
        await client.cancel(stage.record(agent)["metadata"]["name"])
        assert (await running).exit_code == 130
        assert (await session.execute(HELLO)).output == "hello\n"


@pytest.mark.parametrize("fault", [Answer(500), Answer(409), Cut(), Lose("504")], ids=str)
async def test_a_session_starts_whatever_its_first_calls_are_answered(operator, stage, client, asking, fault):
    status = Match("patch", "codesessions", subresource="status")
    with stage.proxy.fault(CREATE_POD, fault, times=1) as pod, stage.proxy.fault(status, fault, times=1) as write:
        async with await client.open_session(asking(), wait=True) as session:
            assert (await session.execute(HELLO)).output == "hello\n"
        assert (pod.met, write.met) == (1, 1)


async def test_a_session_survives_a_broken_connection_and_a_restart_of_the_operator(
    operator, stage, client, asking, agent
):
    async with await client.open_session(asking(), wait=True) as session:
        assert stage.proxy.cut_open(ATTACH) >= 1
        assert (await session.execute(HELLO)).output == "hello\n"
        await in_thread(operator.stop)
        await in_thread(operator.start)
        assert (await session.execute(HELLO)).output == "hello\n"
    assert len({one["status"]["podName"] for one in stage.records(agent=agent)}) == 1


async def test_a_session_whose_pod_goes_is_lost_and_so_is_what_ran_in_it(operator, stage, client, asking, agent, admin):
    session = await client.open_session(asking(), wait=True)
    running = asyncio.create_task(session.execute(python(f'wait("{agent}")')))
    await stage.script.reached(agent, running)
    pod = stage.record(agent)["status"]["podName"]
    await in_thread(admin.delete, "pod", pod, gracePeriodSeconds=0)
    with pytest.raises(ExecutionLost):
        await running
    with pytest.raises(SessionEnded):
        await session.execute(HELLO)


async def test_an_execution_of_a_session_that_is_deleted_leaves_the_session_free(
    operator, stage, client, asking, agent, admin
):
    async with await client.open_session(asking(), wait=True) as session:
        running = await client.submit(python(f'wait("{agent}")'), asking(), session=session.name)
        await stage.script.reached(agent)
        await in_thread(admin.delete, EXECUTION_PLURAL, running.name, wait=True)
        assert (await session.execute(HELLO)).output == "hello\n"


# --- what decides ---------------------------------------------------------------------------------------------------


async def test_a_policy_that_changes_counts_for_the_next_execution(operator, stage, client, asking, agent, policy):
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    await in_thread(lambda: policy(languages=["bash"]))
    result = await client.execute(HELLO, asking())
    assert result.exit_code != 0
    assert "python" in result.output


async def test_code_that_a_human_has_to_approve_runs_once_they_have(operator, stage, client, asking, admin, policy):
    await in_thread(lambda: policy(languages=["bash"], withApproval={"languages": ["python"]}))
    waiting = await client.submit(HELLO, asking())
    record = await in_thread(admin.wait_for_phase, waiting.name, "AwaitingApproval")
    stage.never_ran(record)
    with stage.proxy.fault(Match("list", "executionapprovals"), Answer(503), times=1) as rule:
        await in_thread(lambda: admin.apply(an_approval(record, admin.me)))
        assert (await waiting.result()).output == "hello\n"
        assert rule.met == 1
    stage.ran_once(record)


async def test_code_that_a_human_denies_never_runs(operator, stage, client, asking, agent, admin, policy):
    await in_thread(lambda: policy(languages=["bash"], withApproval={"languages": ["python"]}))
    waiting = await client.submit(HELLO, asking())
    record = await in_thread(admin.wait_for_phase, waiting.name, "AwaitingApproval")
    denial = an_approval(record, admin.me, decision="Deny")
    del denial["spec"]["grants"], denial["spec"]["expiresAt"]
    await in_thread(lambda: admin.apply(denial))
    assert (await waiting.result()).exit_code != 0
    assert (await in_thread(stage.ended, agent))["status"]["phase"] == "Denied"
    stage.never_ran(record)


async def test_code_rules_are_read_before_anything_runs(operator, stage, client, asking, agent, policy):
    await in_thread(lambda: policy(codeRules=[{"imports": ["socket"], "action": "Deny"}]))
    result = await client.execute(python("import socket"), asking())
    assert "socket" in result.output
    stage.never_ran(stage.record(agent))
    assert (await client.execute(HELLO, asking())).output == "hello\n"


# --- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Answer(409), Answer(500), Answer(504), Cut(), Lose("504")], ids=str)
async def test_large_output_is_kept_whole_whatever_a_call_is_answered(operator, stage, client, asking, agent, fault):
    with stage.proxy.fault(Match("create", "configmaps"), fault, times=1) as rule:
        result = await client.execute(python("fill(1_500_000)"), asking())
    assert (len(result.output), rule.met) == (1_500_000, 1)
    stage.ran_once(stage.record(agent))


async def test_no_output_is_lost_in_an_outage_that_the_operator_survives(operator, stage, client, asking, agent):
    """Connections that are cut use up seven tries in less time than a leader has without the API server."""
    with stage.proxy.fault(Match("create", "configmaps"), Cut(), times=7) as rule:
        result = await client.execute(python("fill(1_500_000)"), asking())
    assert (len(result.output), result.truncated, rule.met) == (1_500_000, False, 7)
    assert operator.running
    stage.ran_once(stage.record(agent))


LOUD, SHARES_OF_A_NAMESPACE = 24, 16


async def test_loud_executions_store_what_they_hold_when_others_need_the_memory(operator, stage, client, asking, agent):
    """What each has said is less than a part, so that it would be held until its end."""
    stored, code = Match("create", "configmaps"), python(f'fill(600_000)\nwait("{agent}")')
    before = len(stage.proxy.seen(stored))
    loud = [asyncio.create_task(client.execute(code, asking())) for _ in range(LOUD)]

    def others_had_room() -> bool:
        return len(stage.proxy.seen(stored)) - before >= LOUD - SHARES_OF_A_NAMESPACE

    await in_thread(wait_for, "those that sit on their memory to store what they hold", others_had_room)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    stage.script.open(agent)
    assert {len((await one).output) for one in loud} == {600_000}
    for record in stage.records(agent=agent):
        stage.ran_once(record)


@pytest.mark.suspect
async def test_output_that_can_t_be_kept_is_marked(operator, stage, client, asking, agent, admin):
    """The namespace's quota of ConfigMaps is used up: the code still runs, and the result says what is missing."""
    full = a_name("full")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": full, "namespace": SANDBOX}}
    # Some that are counted may be of records of earlier tests that are being deleted: the output is larger than those.
    await in_thread(admin.create, quota | {"spec": {"hard": {"count/configmaps": "10000"}}})

    def counted(found) -> str | None:
        return found.get("status", {}).get("used", {}).get("count/configmaps")

    def in_force(found) -> bool:
        return bool(found.get("status", {}).get("hard") == found["spec"]["hard"] and counted(found))

    try:
        found = await in_thread(admin.wait_until, "the quota to be counted", "resourcequota", full, counted)
        room = {"spec": {"hard": {"count/configmaps": str(int(counted(found)) + 1)}}}
        await in_thread(admin.patch, "resourcequota", full, room)
        await in_thread(admin.wait_until, "the quota to be in force", "resourcequota", full, in_force)
        result = await client.execute(python("noise(6_000_000)"), asking())
        small = await client.execute(HELLO, asking(agent=f"{agent}-2"))
    finally:
        await in_thread(admin.delete, "resourcequota", full)
    status = stage.record(agent)["status"]
    assert status["phase"] == "Succeeded"
    assert status["stdout"]["totalBytes"] == 6_000_000, "control: the code has written all of it"
    assert "not all output could be kept" in status["message"]
    assert 0 < status["stdout"]["keptBytes"] < 6_000_000
    assert result.stdout == noise(6_000_000)[: status["stdout"]["keptBytes"]]
    assert "stdout truncated" in result.output
    assert small.output == "hello\n"


async def test_large_output_is_immutable_owned_and_goes_with_its_record(operator, stage, client, asking, agent, admin):
    await client.execute(python("noise(2_000_000)"), asking())
    record = stage.record(agent)
    names = [one["name"] for one in record["status"]["outputRefs"]]
    assert len(names) >= 2
    parts = [admin.get("configmap", name) for name in names]
    for part in parts:
        assert part["immutable"] is True
        assert part["metadata"]["ownerReferences"][0]["uid"] == record["metadata"]["uid"]
        assert "codeexec.dev/expires-at" in part["metadata"]["annotations"]
    joined = b"".join(gzip.decompress(base64.b64decode(part["binaryData"]["stdout.gz"])) for part in parts)
    assert joined.decode() == noise(2_000_000)
    assert len(record["status"]["stdout"]["text"]) <= 4096
    await in_thread(lambda: admin.delete("codeexecution", record["metadata"]["name"], wait=True))
    for name in names:
        await in_thread(admin.wait_until_gone, "configmap", name)


async def test_code_ends_with_its_exit_code(operator, client, asking):
    assert (await client.execute(python("exit(3)"), asking())).exit_code == 3


async def test_code_is_ended_at_its_limit(operator, stage, client, asking, agent):
    result = await client.execute(python(f'wait("{agent}")'), asking(timeout_seconds=1))
    assert result.exit_code == 124
    assert stage.record(agent)["status"]["phase"] == "TimedOut"


async def test_code_is_cancelled(operator, stage, client, asking, agent):
    cancelled = asyncio.Event()
    running = asyncio.create_task(client.execute(python(f'wait("{agent}")'), asking(), cancelled=cancelled))
    await stage.script.reached(agent, running)
    cancelled.set()
    assert (await running).exit_code == 130
    assert stage.record(agent)["status"]["phase"] == "Cancelled"


async def test_code_that_does_not_hear_of_its_cancellation_ends_with_its_pod(operator, stage, client, asking, agent):
    execution = await client.submit(python(f'print("{agent}")\nstuck()'), asking())
    await in_thread(stage.admin.running_execution, agent)
    await execution.cancel()
    record = await in_thread(stage.ended, agent)
    assert record["status"]["phase"] == "Cancelled"
    await in_thread(stage.admin.wait_until_gone, "pod", record["status"]["podName"])


async def test_what_the_operator_does_is_measured_and_told(operator, stage, client, asking, agent, admin):
    def counted() -> float:
        lines = [line for line in operator.metrics().splitlines() if line.startswith("codeexec_executions_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if 'phase="Succeeded"' in line)

    before = await in_thread(counted)
    await client.execute(HELLO, asking())
    await in_thread(wait_for, "one more to be counted", lambda: counted() == before + 1)
    name = stage.record(agent)["metadata"]["name"]
    audit = [json.loads(line) for line in operator.log.read_text().splitlines() if line.startswith("{")]
    assert any(name in json.dumps(one) for one in audit)


async def test_a_request_for_a_way_out_opens_it_and_closes_it_again(
    operator, stage, client, asking, agent, policy, admin
):
    await in_thread(lambda: policy(egress=[{"cidr": "203.0.113.7/32", "port": 443, "protocol": "TCP"}]))
    delete = Match("delete", "networkpolicies")
    create = Match("create", "networkpolicies")
    code = python(f'wait("{agent}")\nprint("hello")')
    with stage.proxy.fault(create, Answer(500), 1) as rule, stage.proxy.fault(delete, Answer(500), 1) as closing:
        running = asyncio.create_task(client.execute(code, asking(egress=("203.0.113.7/32:443",))))
        await stage.script.reached(agent, running)
        record = stage.record(agent)
        uid, name = record["metadata"]["uid"], record["status"]["podName"]
        made, pod = admin.get("networkpolicy", name), admin.pod(SANDBOX, name)
        stage.script.open(agent)
        result = await running
        await closing.hit()
    assert (result.output, rule.met) == ("hello\n", 1)
    label = {"egress.codeexec.dev/execution": uid}
    assert made["spec"]["podSelector"] == {"matchLabels": label}, "it is for this pod alone"
    assert label.items() <= pod["metadata"]["labels"].items()
    assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == [uid]
    assert made["metadata"]["creationTimestamp"] <= pod["metadata"]["creationTimestamp"]
    await in_thread(admin.wait_until_gone, "networkpolicy", name)
    assert admin.exists("networkpolicy", "codeexec-deny-all"), "control: that of the namespace stays"


async def test_an_execution_that_waits_for_a_silent_runner_can_be_cancelled(operator, stage, client, asking, agent):
    with stage.proxy.fault(ATTACH, Stall(after=0)) as rule:
        execution = await client.submit(HELLO, asking())
        await rule.hit()
        await execution.cancel()
        assert (await execution.finished()).status.phase.value == "Cancelled"
    stage.never_ran(stage.record(agent))


# --- kubectl --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "ended", "not_so"), [('print("hello")', "True", "False"), ("exit(3)", "False", "True")]
)
async def test_kubectl_waits_for_success(operator, stage, admin, client, asking, agent, code, ended, not_so):
    await client.execute(python(code), asking())
    name = stage.record(agent)["metadata"]["name"]
    wait = ("wait", "--namespace", SANDBOX, f"codeexecution/{name}", "--timeout=0s")
    admin.kubectl(*wait, "--for=condition=Finished")
    admin.kubectl(*wait, f"--for=condition=Succeeded={ended}")
    assert admin.try_kubectl(*wait, f"--for=condition=Succeeded={not_so}").returncode, "control"


async def test_kubectl_shows_a_record_in_columns(operator, stage, admin, client, asking, agent):
    await client.execute(HELLO, asking())
    record = stage.record(agent)
    name, status = record["metadata"]["name"], record["status"]
    header, row = admin.kubectl("-n", SANDBOX, "get", "cex", name).splitlines()
    assert header.split() == ["NAME", "AGENT", "LANGUAGE", "PHASE", "REASON", "EXIT", "DURATION", "AGE"]
    *cells, exit_code, duration, _ = row.split()
    assert cells == [name, agent, "python", "Succeeded", "Completed"]
    assert exit_code == "0"
    assert duration.endswith("s")
    wide = admin.kubectl("-n", SANDBOX, "get", "cex", name, "-o", "wide", "--no-headers").split()
    assert {record["spec"]["requestedBy"], status["podName"], status["nodeName"], "Closed"} <= set(wide)
    assert status["codeDigest"].removeprefix("sha256:")[:12] in wide


def test_kubectl_describe_tells_of_what_somebody_has_to_know(operator, admin):
    code = {"Succeeded": 'print("hello")', "Failed": "exit(3)", "TimedOut": 'wait("never")', "Denied": 'print("hello")'}
    limits = {"TimedOut": 1, "Denied": 86_400}
    names = {end: a_name(end.lower()) for end in code}
    for end, name in names.items():
        admin.submit(name, code[end], limits=LIMITS, timeoutSeconds=limits.get(end, 600))
    for end, name in names.items():
        admin.wait_for_phase(name, end)

    def reasons(events: list[dict]) -> set[str]:
        return {one["reason"] for one in events}

    for end, reason in (("Denied", "PolicyViolation"), ("TimedOut", "DeadlineExceeded")):
        told = lambda events, reason=reason: reason in reasons(events)  # noqa: E731
        of_it = f"involvedObject.name={names[end]}"
        admin.wait_until_all(f"an Event {reason} of {names[end]}", "event", told, fields=of_it)
        described = admin.kubectl("-n", SANDBOX, "describe", "codeexecution", names[end])
        assert reason in described.partition("\nEvents:")[2]
    waits = {Reason.POD_STARTING, Reason.UNSCHEDULABLE}  # of a slow machine
    for end in ("Succeeded", "Failed"):
        others = reasons(admin.list("event", fields=f"involvedObject.name={names[end]}")) - waits
        assert not others, "the usual way is told of by the record alone"
