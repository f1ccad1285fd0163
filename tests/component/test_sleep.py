"""Sessions that sleep: their files are stored, their pod goes, and the next call finds the files, whatever happens."""

import asyncio
import queue
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import in_thread
from faults import Answer, Fault, Lose, Stall

from codeexec_api import Phase
from codeexec_api.names import SESSION_PLURAL
from codeexec_api.output_store import STORE_VARIABLE
from executor_client import PreparedBlock
from executor_client.exceptions import SessionDenied, SessionEnded

WRITE, SHOW = 'write("a.txt")\nwrite("d.txt")', 'show("a.txt")\nshow("d.txt")'
SHOWN = "a.txt 640\nd.txt 640\n"
ASLEEP = Match("patch", SESSION_PLURAL, subresource="status", where=lambda call: call.phase == "Asleep")
WAKING = Match("patch", SESSION_PLURAL, subresource="status", where=lambda call: call.phase == "Starting")
DELETE_POD, CREATE_POD = Match("delete", "pods"), Match("create", "pods")


def python(code: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", code.encode()),)


@pytest.fixture
def store(stores):
    """Its folder, which is not there before the first session sleeps."""
    folder = Path(urlsplit(stores.environment[STORE_VARIABLE]).path)
    yield folder
    shutil.rmtree(folder) if folder.is_dir() else folder.unlink(missing_ok=True)


@pytest.fixture
async def keeper(stage, stores, store):
    """An operator with an output store, in a namespace whose policy lets sessions sleep."""
    await in_thread(lambda: stage.put_policy(sessionSleep={"minAfterSeconds": 1}))
    yield stores
    await in_thread(stage.drop_policy)


@pytest.fixture
def status(stage):
    def of(session) -> dict[str, Any]:
        return dict(stage.admin.get("codesession", session.name).get("status", {}))

    return of


@pytest.fixture
async def a_session(keeper, client, asking):
    """A session with files in its workspace, which sleeps as soon as it is idle for a second."""
    session = await client.open_session(asking(), sleep_after_seconds=1, wait=True)
    await session.execute(python(WRITE))
    yield session
    await session.end()


@pytest.fixture
def sleeps(stage, status):
    """Waits until a session sleeps and has no pod."""

    async def wait(session) -> dict[str, Any]:
        def asleep() -> bool:
            return status(session).get("phase") == "Asleep" and not {
                one for one in stage.pods() if one.startswith(session.name)
            }

        await in_thread(wait_for, "the session to sleep without a pod", asleep)
        return status(session)

    return wait


@asynccontextmanager
async def falling_asleep(stage, session, gate: str, call: Match, fault: Fault, **options: Any):
    """While this fault has met the sleep after a call that writes files.

    A session that waits for its first call on a busy machine sleeps before it: the fault does not meet that sleep.
    """
    running = asyncio.create_task(session.execute(python(f'{WRITE}\nwait("{gate}")')))
    await stage.script.reached(gate, running)
    with stage.proxy.fault(call, fault, **options) as rule:
        stage.script.open(gate)
        await running
        await rule.hit()
        yield


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    [found] = [one for one in status["conditions"] if one["type"] == kind]
    return found["status"], found["reason"], found["message"]


async def test_an_idle_session_has_no_pod_and_the_next_call_finds_its_files(
    stage, keeper, a_session, sleeps, store, admin, agent
):
    first = stage.record(agent)["status"]["podName"]
    recorded = await sleeps(a_session)
    assert "podName" not in recorded
    stored = recorded["storedFiles"]
    assert (stored["url"], stored["entries"], stored["sizeBytes"]) == (store.as_uri(), 2, 10)
    uid = admin.get("codesession", a_session.name)["metadata"]["uid"]
    assert (store / SANDBOX / uid / stored["sha256"]).is_file()
    assert "Asleep" in admin.kubectl("-n", SANDBOX, "get", "codesession", a_session.name)
    with admin.following("codesession", a_session.name) as record:  # soon after the result it sleeps again
        result = await a_session.execute(python(SHOW))
        assert (result.phase, result.stdout) == (Phase.SUCCEEDED, SHOWN)
        awake = (await in_thread(record.wait_for_phase, "Ready"))["status"]
    assert (awake["podName"] != first, awake["executions"]) == (True, 1)
    assert (await sleeps(a_session))["sleeps"] == recorded["sleeps"] + 1
    assert (await a_session.execute(python(SHOW))).stdout == SHOWN


async def test_it_wakes_in_a_ready_pod_of_a_pool(stage, keeper, client, asking, agent, make_pool, status, admin):
    pool = await make_pool(1)
    session = await client.open_session(asking(), sleep_after_seconds=1, wait=True)
    await session.execute(python(WRITE))
    await in_thread(wait_for, "it to sleep", lambda: status(session)["phase"] == "Asleep")
    await in_thread(admin.wait_until_gone, "pod", stage.record(agent)["status"]["podName"])
    another = f'codeexec_pool_ready_pods{{sandbox_namespace="{SANDBOX}"}} 1.0'  # the pool's status comes later
    await in_thread(wait_for, "another pod to be ready", lambda: another in keeper.metrics().splitlines())
    [ready] = pool.pods()
    with admin.following("codesession", session.name) as record:  # soon after the result it sleeps again
        assert (await session.execute(python(SHOW))).stdout == SHOWN
        awake = (await in_thread(record.wait_for_phase, "Ready"))["status"]
    assert (awake["poolName"], awake["podName"]) == (pool.name, ready)
    await session.end()
    await in_thread(wait_for, "its pod to go", lambda: ready not in stage.pods())


async def test_calls_that_wait_are_run_one_after_the_other(stage, a_session, sleeps):
    await sleeps(a_session)
    results = await asyncio.gather(*(a_session.execute(python(SHOW)) for _ in range(4)))
    assert [one.stdout for one in results] == [SHOWN] * 4


async def test_a_call_that_waits_for_a_session_to_wake_is_told_why_and_runs_in_the_next_pod(
    stage, keeper, client, asking, sleeps, status
):
    heard = queue.SimpleQueue()
    session = await client.open_session(asking(on_wait=heard.put), sleep_after_seconds=1, wait=True)
    await session.execute(python(WRITE))
    await sleeps(session)
    while not heard.empty():
        heard.get_nowait()
    with stage.nodes.waiting("ContainerCreating", "the image is being pulled"):
        running = asyncio.create_task(session.execute(python(SHOW)))
        notice = await in_thread(heard.get, True, 60)
        while "the image is being pulled" not in notice.message:  # it may wait for an operator or a node before
            notice = await in_thread(heard.get, True, 60)
        assert (notice.reason, session.name in notice.message) == ("PodStarting", True)
    # The next pod starts: soon the session is woken again.
    with stage.admin.following("codesession", session.name) as record:
        await in_thread(stage.admin.delete, "pod", status(session)["podName"], wait=True)
        await in_thread(record.wait_until, "it to sleep on", lambda one: one["status"]["reason"] == "PodLost")
    assert (await running).stdout == SHOWN
    await session.end()


@pytest.mark.parametrize("fault", [Answer(409), Answer(503), Lose("504")], ids=str)
async def test_a_record_that_is_not_written_at_once_loses_no_file(stage, keeper, client, asking, sleeps, agent, fault):
    session = await client.open_session(asking(), sleep_after_seconds=1, wait=True)
    async with falling_asleep(stage, session, agent, ASLEEP, fault, times=1):
        await sleeps(session)
    assert (await session.execute(python(SHOW))).stdout == SHOWN
    await session.end()


@pytest.mark.parametrize("call", [ASLEEP, DELETE_POD], ids=["before it sleeps on record", "before its pod goes"])
async def test_an_operator_that_is_killed_while_a_session_falls_asleep_loses_no_file(
    stage, keeper, client, asking, sleeps, agent, call
):
    session = await client.open_session(asking(), sleep_after_seconds=1, wait=True)
    async with falling_asleep(stage, session, agent, call, Stall()):
        await in_thread(keeper.kill)
        await in_thread(stage.free_lease)
    await in_thread(keeper.start)
    await sleeps(session)
    assert (await session.execute(python(SHOW))).stdout == SHOWN
    await session.end()


@pytest.mark.parametrize("call", [CREATE_POD, WAKING], ids=["before it has a pod", "before it wakes on record"])
async def test_an_operator_that_is_killed_while_a_session_wakes_runs_the_call_once(
    stage, keeper, a_session, sleeps, agent, call
):
    await sleeps(a_session)
    with stage.proxy.fault(call, Stall()) as rule:
        running = asyncio.create_task(a_session.execute(python(SHOW)))
        await rule.hit()
        await in_thread(stage.taken_up, agent, 2)
        await in_thread(keeper.kill)
        await in_thread(stage.free_lease)
    await in_thread(keeper.start)
    result = await running
    assert result.stdout == SHOWN
    assert stage.script.jobs[stage.admin.get("codeexecution", result.name)["metadata"]["uid"]] == 1


async def test_an_operator_that_takes_over_wakes_what_another_has_put_to_sleep(stage, keeper, a_session, sleeps):
    await sleeps(a_session)
    await in_thread(keeper.stop)
    await in_thread(keeper.start)
    assert (await a_session.execute(python(SHOW))).stdout == SHOWN


async def test_files_that_become_others_on_their_way_back_end_the_session_before_any_code(
    stage, keeper, a_session, sleeps, status
):
    await sleeps(a_session)
    stage.script.spoiled = True
    try:
        with pytest.raises(SessionEnded, match="FilesDiffer"):
            await a_session.execute(python(SHOW))
    finally:
        stage.script.spoiled = False
    ended = status(a_session)
    assert (ended["phase"], ended["reason"]) == ("Failed", "FilesDiffer")
    assert "a.txt is another one" in ended["message"]
    assert ended["executions"] == 1


@pytest.mark.parametrize("how", ["another content", "gone"])
async def test_objects_that_are_not_as_they_were_end_the_session_before_any_code(
    stage, keeper, a_session, sleeps, status, store, how
):
    await sleeps(a_session)
    for one in (store / SANDBOX).rglob("*"):
        if one.is_file():
            one.unlink()
            if how == "another content":
                one.write_bytes(b"{}\n")
    with pytest.raises(SessionEnded, match="FilesDiffer"):
        await a_session.execute(python(SHOW))
    assert status(a_session)["phase"] == "Failed"
    words = "holds another object" if how == "another content" else "no longer holds"
    assert words in status(a_session)["message"]


async def test_what_can_not_be_kept_keeps_the_session_awake_and_its_record_says_why(
    stage, keeper, client, asking, status
):
    stage.script.unkept = "link: is a link, a pipe, a socket or a device"
    try:
        session = await client.open_session(asking(), sleep_after_seconds=1, wait=True)
        await session.execute(python(WRITE))
        await in_thread(wait_for, "its record to say so", lambda: "Asleep" in str(status(session).get("conditions")))
    finally:
        stage.script.unkept = ""
    shown = condition(status(session), "Asleep")
    assert shown[:2] == ("False", "FilesNotStored")
    assert "link: is a link" in shown[2]
    assert (await session.execute(python(SHOW))).stdout == SHOWN
    await session.end()


async def test_a_store_that_fails_keeps_the_session_awake(stage, keeper, client, asking, status, store):
    store.write_text("not a folder")
    session = await client.open_session(asking(), sleep_after_seconds=1, wait=True)
    await session.execute(python(WRITE))
    await in_thread(wait_for, "its record to say so", lambda: "Asleep" in str(status(session).get("conditions")))
    assert condition(status(session), "Asleep")[:2] == ("False", "StoreUnavailable")
    assert store.as_uri() in condition(status(session), "Asleep")[2]
    assert (await session.execute(python(SHOW))).stdout == SHOWN
    await session.end()


async def test_a_store_that_fails_when_it_wakes_costs_no_file(stage, keeper, a_session, sleeps, admin, store):
    await sleeps(a_session)
    aside = store.with_name("aside")
    store.rename(aside)
    store.write_text("not a folder")
    running = asyncio.create_task(a_session.execute(python(SHOW)))
    without_store = lambda one: one["status"]["reason"] == "StoreUnavailable"  # noqa: E731
    found = await in_thread(admin.wait_until, "it to sleep on", "codesession", a_session.name, without_store)
    assert condition(found["status"], "Delayed")[0] == "True"
    store.unlink()
    aside.rename(store)
    assert (await running).stdout == SHOWN


async def test_a_session_that_sleeps_ends_when_it_is_idle_for_too_long(keeper, client, asking, sleeps, status):
    session = await client.open_session(asking(), sleep_after_seconds=1, idle_timeout_seconds=30, wait=True)
    await session.execute(python(WRITE))
    await sleeps(session)
    await in_thread(wait_for, "it to end", lambda: status(session)["reason"] == "IdleTimeout")
    with pytest.raises(SessionEnded):
        await session.execute(python(SHOW))


async def test_without_a_store_no_session_may_sleep_and_the_denial_says_what_to_do(operator, stage, client, asking):
    await in_thread(lambda: stage.put_policy(sessionSleep={"minAfterSeconds": 1}))
    try:
        with pytest.raises(SessionDenied, match=r"sleep_after=60 is not allowed .*outputStore\.url"):
            await client.open_session(asking(), sleep_after_seconds=60, wait=True)
    finally:
        await in_thread(stage.drop_policy)
