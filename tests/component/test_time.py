"""What takes minutes, by an operator whose clock runs ten times as fast, its timers with it, and is ahead."""

import asyncio
import base64
import json
from datetime import timedelta

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, SYSTEM, a_secret, age_the_sealing_key, wait_for
from component_stage import LIMITS, in_thread
from faults import Answer, Cut, Stall, WatchError

from codeexec_api.names import EXECUTION_PLURAL, GROUP, POOL_PLURAL, VERSION
from executor_client import CodeExecError, PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
EXECUTIONS = Match("watch", EXECUTION_PLURAL)


async def test_a_watch_that_has_gone_silent_is_opened_again(hurried, stage):
    """By kopf. What matters to a client until then is in `test_silent_watches.py`."""
    await in_thread(wait_for, "the watch", lambda: stage.proxy.open_streams(EXECUTIONS))
    before = len(stage.proxy.seen(EXECUTIONS))
    assert stage.proxy.silence_open(EXECUTIONS) >= 1
    await in_thread(wait_for, "another watch", lambda: len(stage.proxy.seen(EXECUTIONS)) > before)


async def test_a_payload_that_no_execution_came_for_is_deleted(hurried, stage, admin, agent):
    await in_thread(lambda: admin.apply(a_secret(agent, {"block-0": b"x"})))
    await in_thread(wait_for, "the payload to be deleted", lambda: not admin.exists("secret", agent, SANDBOX))


@pytest.mark.parametrize("verb", ["list", "delete"])
async def test_sweeping_goes_on_after_an_error(hurried, stage, admin, agent, verb):
    with stage.proxy.fault(Match(verb, "secrets"), Answer(500), times=1) as rule:
        await in_thread(lambda: admin.apply(a_secret(agent, {"block-0": b"x"})))
        await rule.hit()
        await in_thread(wait_for, "the payload to be deleted", lambda: not admin.exists("secret", agent, SANDBOX))


async def test_output_whose_time_is_over_is_deleted_and_the_record_stays(hurried, stage, client, asking, agent, admin):
    await in_thread(lambda: stage.put_policy(outputTTLSeconds=300))  # 30 s of this machine, to read it before
    try:
        result = await client.execute((PreparedBlock("python", b"fill(900_000)"),), asking())
        assert len(result.output) == 900_000
        [ref] = [one["name"] for one in stage.record(agent)["status"]["outputRefs"]][:1]
        await in_thread(wait_for, "the output to be deleted", lambda: not admin.exists("configmap", ref, SANDBOX))
        assert stage.record(agent)["status"]["stdout"]["totalBytes"] == 900_000
    finally:
        await in_thread(stage.drop_policy)


async def test_the_leases_of_clients_are_looked_at(hurried, stage):
    looks = Match("list", "leases", namespace=SANDBOX)
    await in_thread(wait_for, "a look at the Leases", lambda: stage.proxy.seen(looks))
    assert {one.call.query["limit"] for one in stage.proxy.seen(looks)} == {"100"}


async def test_a_session_ends_when_nothing_has_run_in_it_for_so_long(hurried, client, asking, admin):
    session = await client.open_session(asking(), idle_timeout_seconds=60, outlives_client=True)
    status = await in_thread(wait_for, "the session to end", lambda: ended_session(admin, session.name))
    assert (status["phase"], status["reason"]) == ("Ended", "IdleTimeout")


@pytest.mark.parametrize("fault", [Answer(500), Cut()], ids=str)
async def test_a_pool_doesnt_wait_for_ever_for_a_pod_of_which_nobody_knows(impatient, stage, admin, agent, fault):
    kind = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "SandboxPool",
        "metadata": {"name": agent, "namespace": SANDBOX},
    }

    def ready() -> bool:
        return admin.get("sandboxpool", agent).get("status", {}).get("readyReplicas", 0) == 2

    with stage.proxy.fault(Match("create", "pods"), fault, times=1) as rule:
        await in_thread(lambda: admin.apply({**kind, "spec": {"replicas": 2, "limits": LIMITS}}))
        await in_thread(wait_for, "2 pods to be ready", ready)
    assert rule.met == 1
    await in_thread(admin.delete, "sandboxpool", agent, wait=True)


async def test_a_policy_that_changed_behind_a_silent_watch_counts_after_a_while(
    hurried, stage, client, asking, admin, stack
):
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    with stage.proxy.fault(Match("watch", "executionpolicies"), Stall()):
        stage.proxy.silence_open(Match("watch", "executionpolicies"))
        stack.callback(stage.drop_policy)
        await in_thread(admin.apply, stage.a_policy(languages=["bash"]))
        while (await client.execute(HELLO, asking())).exit_code == 0:
            continue


async def test_the_sealing_key_is_replaced_when_it_is_a_day_old(hurried, stage, admin, client, asking):
    def keys() -> list[dict]:
        held = admin.get("secret", "codeexec-sealing", SYSTEM)
        return json.loads(base64.b64decode(held["data"]["keys.json"]))

    before = await in_thread(keys)
    await in_thread(age_the_sealing_key, admin, timedelta(days=2))
    await in_thread(hurried.restart)
    newest = (await in_thread(keys))[-1]["name"]
    assert newest not in {one["name"] for one in before}
    published = lambda: admin.get("configmap", "codeexec-sealing-key")["data"].values()  # noqa: E731
    await in_thread(wait_for, "it to be published", lambda: newest in published())
    assert (await client.execute(HELLO, asking())).output == "hello\n"


# --- what was missed, or is left over ---


@pytest.fixture
def missing(stage):
    """Does something while the watch on a kind is away; then the API server says that it is too late to hear of it."""

    async def miss(resource, do, *arguments):
        watch = Match("watch", resource, namespace=SANDBOX)
        with stage.proxy.fault(watch, Answer(503)) as away:
            stage.proxy.cut_open(watch)
            await away.hit()
            await in_thread(do, *arguments)
            with stage.proxy.fault(watch, WatchError(410), times=1) as gone:
                await gone.hit()

    return miss


def gauge(operator, start):
    [line] = [one for one in operator.metrics().splitlines() if one.startswith(start)]
    return float(line.rpartition(" ")[2])


async def test_a_request_whose_deletion_was_missed_is_forgotten(hurried, stage, client, asking, agent, admin, missing):
    waits = f'codeexec_current_executions{{phase="AwaitingApproval",sandbox_namespace="{SANDBOX}"}}'
    await in_thread(lambda: stage.put_policy(languages=["bash"], withApproval={"languages": ["python"]}))
    waiting = asyncio.create_task(client.execute(HELLO, asking()))
    try:
        await in_thread(wait_for, "it to wait for approval", lambda: gauge(hurried, waits) == 1)
        name = stage.record(agent)["metadata"]["name"]
        await missing(EXECUTION_PLURAL, admin.delete, EXECUTION_PLURAL, name)
        await in_thread(wait_for, "it to be forgotten", lambda: gauge(hurried, waits) == 0)
    finally:
        await in_thread(stage.drop_policy)
    with pytest.raises(CodeExecError):
        await waiting


async def test_a_pool_whose_deletion_was_missed_is_forgotten(hurried, agent, admin, missing):
    wanted = f'codeexec_pool_wanted_pods{{sandbox_namespace="{SANDBOX}"}}'
    meta = {"name": agent, "namespace": SANDBOX}
    pool = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool", "metadata": meta}
    await in_thread(lambda: admin.apply({**pool, "spec": {"replicas": 1, "limits": LIMITS}}))
    await in_thread(wait_for, "it to be heard of", lambda: gauge(hurried, wanted) == 1)
    await missing(POOL_PLURAL, admin.delete, POOL_PLURAL, agent)
    await in_thread(wait_for, "it to be forgotten", lambda: gauge(hurried, wanted) == 0)


async def test_what_was_opened_and_not_closed_again_is_closed_later(hurried, stage, client, asking, agent, admin):
    await in_thread(lambda: stage.put_policy(egress=[{"cidr": "203.0.113.7/32", "port": 443, "protocol": "TCP"}]))
    try:
        with stage.proxy.fault(Match("delete", "networkpolicies"), Answer(500), times=5) as rule:
            result = await client.execute(HELLO, asking(egress=("203.0.113.7/32:443",)))
            assert result.output == "hello\n"
            await rule.hit(5)
        name = stage.record(agent)["status"]["podName"]
        await in_thread(wait_for, "it to be closed", lambda: not admin.exists("networkpolicy", name))
    finally:
        await in_thread(stage.drop_policy)


def ended_session(admin, name):
    status = admin.get("codesession", name).get("status", {})
    return status if status.get("phase") in ("Ended", "Failed", "Lost", "Denied") else None
