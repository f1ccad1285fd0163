"""Nobody waits without a word: a real scheduler finds no room, a node takes its time, others go first."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from cluster_tools import SANDBOX, a_name, wait_for
from component_stage import LIMITS, in_thread

from executor_client import ExecutionNotStarted, Limits, PreparedBlock, WaitNotice

HELLO = (PreparedBlock("python", b'print("hello")'),)
ROOM = {"cpu": "30m"}
"""For one pod, which requests 20m."""
PULLING = "Its node may still be pulling the image"


class Heard:
    """Takes what a client hears of a call that waits."""

    def __init__(self) -> None:
        self.notices: asyncio.Queue[WaitNotice] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def __call__(self, notice: WaitNotice) -> None:
        self._loop.call_soon_threadsafe(self.notices.put_nowait, notice)

    async def of(self, reason: str, words: str = "") -> WaitNotice:
        """The first with this reason and these words. Others may come before it: all who are waited for may be slow."""
        heard: list[WaitNotice] = []
        try:
            async with asyncio.timeout(100):
                while not heard or heard[-1].reason != reason or words not in heard[-1].message:
                    heard.append(await self.notices.get())
        except TimeoutError:
            raise AssertionError(f"waited in vain for {reason} ({words}), heard {heard}") from None
        return heard[-1]


def waiting_at(mark: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'wait("{mark}")'.encode()),)


async def cancelled(call: asyncio.Task) -> None:
    """A call that nobody waits for any more."""
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


def not_ready(node: dict) -> list[str]:
    """Taints of a node that was registered a moment ago."""
    return [one["key"] for one in node["spec"]["taints"] if one["key"].startswith("node.kubernetes.io/")]


@pytest.fixture
async def one_place(stage, admin) -> AsyncIterator[None]:
    """There is room for one pod: on a node of its own, since pods of other tests may still be on the others."""
    others = [one["metadata"]["name"] for one in await in_thread(admin.list, "node")]
    await in_thread(admin.kubectl, "cordon", *others)
    with stage.nodes.one_more(node := a_name("one-place"), **ROOM):
        await in_thread(wait_for, "the node to take pods", lambda: not_ready(admin.get("node", node)) == [])
        yield
    await in_thread(admin.kubectl, "uncordon", *others)


async def test_who_waits_for_a_session_to_be_ready_hears_who_has_the_room(operator, client, asking, one_place):
    holder, heard = await client.open_session(asking(), wait=True), Heard()
    opening = asyncio.create_task(client.open_session(asking(on_wait=heard), wait=True))
    notice = await heard.of("Unschedulable")
    assert (notice.execution, notice.namespace) == ("", SANDBOX)
    assert f"1 idle session ({holder.name})" in notice.message
    await holder.end()
    session = await opening
    assert notice.session == session.name
    await session.end()


def delayed(record: dict) -> tuple[str, str]:
    [found] = [one for one in record["status"]["conditions"] if one["type"] == "Delayed"]
    return found["status"], found["reason"]


@pytest.mark.suspect
@pytest.mark.parametrize("kind", ["pod of its own", "session"])
async def test_who_finds_no_room_hears_who_has_it_and_starts_once_there_is_some(
    operator, stage, client, asking, agent, one_place, admin, kind
):
    holder = await client.open_session(asking(), wait=True)
    heard = Heard()
    asked = asking(on_wait=heard)
    session = await client.open_session(asked) if kind == "session" else None
    call = asyncio.create_task(session.execute(HELLO) if session else client.execute(HELLO, asked))
    notice = await heard.of("Unschedulable")
    assert "Insufficient cpu" in notice.message
    assert f"1 idle session ({holder.name})" in notice.message
    assert "`codeexec sessions end NAME`" in notice.message
    record = stage.record(agent)
    assert (record["status"]["phase"], record["status"]["reason"]) == ("Starting", "Unschedulable")
    assert delayed(record) == ("True", "Unschedulable")
    assert not stage.script.jobs[record["metadata"]["uid"]]

    def told(events: list[dict]) -> bool:
        ours = [one["note"] for one in events if one["regarding"].get("name") == notice.execution]
        return any("Insufficient cpu" in note for note in ours)

    await in_thread(admin.wait_until_all, "an Event that says so", "events.events.k8s.io", told)
    await holder.end()
    assert (await call).output == "hello\n"
    assert delayed(stage.record(agent)) == ("False", "SandboxReady")
    if session:
        await session.end()


async def test_who_waits_for_an_image_hears_so(operator, stage, client, asking, agent):
    heard = Heard()
    with stage.nodes.waiting("ContainerCreating"):
        call = asyncio.create_task(client.execute(HELLO, asking(on_wait=heard)))
        await heard.of("PodStarting", PULLING)
    await cancelled(call)
    assert (await in_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


async def test_codeexec_run_shows_what_its_call_waits_for(operator, stage, agent):
    options = ["-n", SANDBOX, "--agent", agent, "--cpu", LIMITS["cpu"], "--memory", LIMITS["memory"]]
    command = ["run", "--kubeconfig", str(stage.agent_kubeconfig(SANDBOX)), *options, "-c", 'print("hello")']
    with stage.nodes.waiting("ContainerCreating"):
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "executor_client", *command, stdout=PIPE, stderr=PIPE
        )
        assert run.stderr
        lines = [""]
        while "codeexec: waiting (PodStarting): " not in lines[-1] or PULLING not in lines[-1]:
            lines.append((await run.stderr.readline()).decode())  # before it there may be others, as in `Heard.of`
            assert lines[-1].startswith("codeexec: waiting ("), lines
        run.send_signal(signal.SIGINT)
        output, _ = await run.communicate()
    assert (output, run.returncode) == (b"", 130)
    assert (await in_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


async def test_who_waits_for_a_turn_in_a_session_hears_at_which_place(operator, stage, client, asking, agent):
    heard = Heard()
    async with await client.open_session(asking(on_wait=heard), wait=True) as session:
        first = asyncio.create_task(session.execute(waiting_at(agent)))
        await stage.script.reached(agent, first)
        second = asyncio.create_task(session.execute(HELLO))
        await heard.of("WaitingForSession", "position 2 of 2 in")
        stage.script.open(agent)
        await first
        assert (await second).output == "hello\n"


async def test_who_waits_for_a_pod_of_a_pool_that_finds_no_room_hears_what_to_do(
    operator, stage, client, asking, agent, one_place, make_pool
):
    holder = await client.open_session(asking(), wait=True)
    pool = await make_pool(1, ready=False)
    await in_thread(wait_for, "the operator to know the pool", pool.pods)
    heard = Heard()
    call = asyncio.create_task(client.execute(HELLO, asking(on_wait=heard)))
    notice = await heard.of("WaitingForPool", "Insufficient cpu")
    assert notice.message.startswith("position 1 of 1 in the queue of pool")
    assert "`codeexec sessions end NAME`" in notice.message
    await holder.end()
    assert (await call).output == "hello\n"


async def test_who_waits_in_vain_fails_and_is_not_refused(impatient, stage, client, asking, agent, one_place):
    holder = await client.open_session(asking(), outlives_client=True, wait=True)
    session = await client.open_session(asking(), outlives_client=True)
    with pytest.raises(ExecutionNotStarted, match=f"1 idle session .{holder.name}."):
        await session.execute(HELLO)
    ended = stage.record(agent)
    assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", "StartTimeout")
    await holder.end()


# --- pools give way ---


@pytest.mark.parametrize("kind", ["pod of its own", "session"])
async def test_a_ready_pod_of_a_full_node_gives_way_to_work_and_the_pool_refills_only_into_what_fits(
    operator, stage, client, asking, agent, one_place, make_pool, kind
):
    pool = await make_pool(1)
    [ready] = pool.pods()
    own = asking(limits=Limits(cpu="90m", memory="96Mi"))  # which the pool doesn't serve
    session = await client.open_session(own) if kind == "session" else None
    blocks = waiting_at(agent)
    call = asyncio.create_task(session.execute(blocks) if session else client.execute(blocks, own))
    await stage.script.reached(agent, call)
    await in_thread(wait_for, "one pod of the pool to wait for room", lambda: pool.pods() and ready not in pool.pods())
    assert len(pool.pods()) == 1
    stage.script.open(agent)
    assert (await call).exit_code == 0
    if session:
        await session.end()
    await in_thread(pool.ready, 1)


async def test_a_pool_has_one_pod_at_most_that_waits_for_room(operator, one_place, make_pool):
    pool = await make_pool(4, ready=False)
    await in_thread(pool.ready, 1)
    await in_thread(
        wait_for, "one other pod to wait for room", lambda: pool.status()["replicas"] == len(pool.pods()) == 2
    )
    before = pool.status()["observedGeneration"]
    await in_thread(pool.scale, 5)
    await in_thread(wait_for, "another look at it", lambda: pool.status()["observedGeneration"] > before)
    assert len(pool.pods()) == 2


async def test_a_pod_that_was_claimed_never_gives_way(operator, stage, client, asking, agent, one_place, make_pool):
    await make_pool(1)
    running = asyncio.create_task(client.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    heard = Heard()
    own = asking(agent=f"{agent}-2", limits=Limits(cpu="90m", memory="96Mi"), on_wait=heard)
    second = asyncio.create_task(client.execute(HELLO, own))
    await heard.of("Unschedulable")
    stage.script.open(agent)
    assert (await running).exit_code == 0
    assert (await second).output == "hello\n"
    assert stage.record(agent)["status"]["phase"] == "Succeeded"


async def test_a_loop_of_single_calls_does_not_starve_a_session(
    operator, stage, client, asking, agent, one_place, make_pool
):
    await make_pool(1)
    over = asyncio.Event()

    async def loop() -> int:
        calls = 0
        while not over.is_set():
            assert (await client.execute(HELLO, asking(agent=f"{agent}-loop"))).output == "hello\n"
            calls += 1
        return calls

    loops = [asyncio.create_task(loop()) for _ in range(4)]
    session = await client.open_session(asking())
    assert (await session.execute(HELLO)).output == "hello\n"
    await session.end()
    over.set()
    assert sum(await asyncio.gather(*loops)) > 0
