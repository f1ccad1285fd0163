"""Nobody waits without a word: a real scheduler finds no room, a node takes its time, others go first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from cluster_tools import SANDBOX, wait_for
from component_stage import in_thread

from executor_client import ExecutionNotStarted, PreparedBlock, WaitNotice

HELLO = (PreparedBlock("python", b'print("hello")'),)
ROOM = {"cpu": "30m"}
"""For one pod, which requests 20m."""


class Heard:
    """Takes what a client hears of a call that waits."""

    def __init__(self) -> None:
        self.notices: asyncio.Queue[WaitNotice] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def __call__(self, notice: WaitNotice) -> None:
        self._loop.call_soon_threadsafe(self.notices.put_nowait, notice)


def waiting_at(mark: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'wait("{mark}")'.encode()),)


async def cancelled(call: asyncio.Task) -> None:
    """A call that nobody waits for any more."""
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


@pytest.fixture
async def one_place(stage, admin) -> AsyncIterator[None]:
    """The nodes have room for one pod."""
    nodes = (await in_thread(admin.kubectl, "get", "nodes", "-o", "name")).split()
    before = admin.get("node", nodes[0].removeprefix("node/"), "")["status"]["allocatable"]

    def resize(node: str, room: dict[str, str]) -> None:
        status = {"status": {"allocatable": room}}
        admin.patch("node", node.removeprefix("node/"), status, subresource="status")

    for node in nodes[1:]:
        await in_thread(admin.kubectl, "cordon", node)
    await in_thread(resize, nodes[0], {**before, **ROOM})
    yield
    await in_thread(resize, nodes[0], before)
    for node in nodes[1:]:
        await in_thread(admin.kubectl, "uncordon", node)


def delayed(record: dict) -> tuple[str, str]:
    [found] = [one for one in record["status"]["conditions"] if one["type"] == "Delayed"]
    return found["status"], found["reason"]


@pytest.mark.parametrize("kind", ["pod of its own", "session"])
async def test_who_finds_no_room_hears_who_has_it_and_starts_once_there_is_some(
    operator, stage, client, asking, agent, one_place, admin, kind
):
    holder = await client.open_session(asking(), wait=True)
    heard = Heard()
    asked = asking(on_wait=heard)
    session = await client.open_session(asked) if kind == "session" else None
    call = asyncio.create_task(session.execute(HELLO) if session else client.execute(HELLO, asked))
    notice = await heard.notices.get()
    assert notice.reason == "Unschedulable"
    assert "Insufficient cpu" in notice.message
    assert f"1 idle session ({holder.name})" in notice.message
    assert "`codeexec sessions end NAME`" in notice.message
    record = stage.record(agent)
    assert (record["status"]["phase"], record["status"]["reason"]) == ("Starting", "Unschedulable")
    assert delayed(record) == ("True", "Unschedulable")
    assert not stage.script.jobs[record["metadata"]["uid"]]

    def told() -> str:
        return admin.kubectl("-n", SANDBOX, "get", "events.events.k8s.io", "-o", f"jsonpath={EVENT % notice.execution}")

    assert "Insufficient cpu" in await in_thread(wait_for, "an Event", told)
    await holder.end()
    assert (await call).output == "hello\n"
    assert delayed(stage.record(agent)) == ("False", "SandboxReady")
    if session:
        await session.end()


EVENT = '{.items[?(@.regarding.name=="%s")].note}'


async def test_who_waits_for_an_image_hears_so(operator, stage, client, asking, agent):
    heard = Heard()
    with stage.nodes.waiting("ContainerCreating"):
        call = asyncio.create_task(client.execute(HELLO, asking(on_wait=heard)))
        notice = await heard.notices.get()
    assert notice.reason == "PodStarting"
    assert "Its node may still be pulling the image" in notice.message
    await cancelled(call)
    assert (await in_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


async def test_who_waits_for_a_turn_in_a_session_hears_at_which_place(operator, stage, client, asking, agent):
    heard = Heard()
    async with await client.open_session(asking(on_wait=heard), wait=True) as session:
        first = asyncio.create_task(session.execute(waiting_at(agent)))
        await stage.script.reached(agent)
        second = asyncio.create_task(session.execute(HELLO))
        notice = await heard.notices.get()
        assert (notice.reason, notice.message.split(" in ")[0]) == ("WaitingForSession", "position 2 of 2")
        stage.script.open(agent)
        await first
        assert (await second).output == "hello\n"


async def test_who_waits_for_a_pod_of_a_pool_that_finds_no_room_hears_what_to_do(
    operator, stage, client, asking, agent, one_place, make_pool
):
    holder = await client.open_session(asking(), wait=True)
    await make_pool(1, ready=False)
    heard = Heard()
    call = asyncio.create_task(client.execute(HELLO, asking(on_wait=heard)))
    while "Insufficient cpu" not in (notice := await heard.notices.get()).message:
        assert notice.reason == "WaitingForPool"
    assert notice.message.startswith("position 1 of 1 in the queue of pool")
    assert "`codeexec sessions end NAME`" in notice.message
    await holder.end()
    assert (await call).output == "hello\n"


async def test_who_waits_in_vain_fails_and_is_not_refused(hurried, stage, client, asking, agent, one_place):
    holder = await client.open_session(asking(), outlives_client=True, wait=True)
    session = await client.open_session(asking(), outlives_client=True)
    with pytest.raises(ExecutionNotStarted, match=f"1 idle session .{holder.name}."):
        await session.execute(HELLO)
    ended = stage.record(agent)
    assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", "StartTimeout")
    await holder.end()
