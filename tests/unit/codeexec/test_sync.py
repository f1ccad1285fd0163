"""`codeexec.sync`: the same calls without `async`, in a thread with an event loop."""

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from first_page import DATA, LOAD, PNG

import codeexec
from codeexec import sync
from codeexec._files import Files
from codeexec._records import Approvals, Executions, Sessions
from codeexec.testing import FakeBlock, FakeCluster, FakeOutcome


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "codeexec-sync"]


def play(fake: FakeCluster) -> bytes | None:
    with sync.Client(agent="analyst", backend=fake.client()) as client:
        assert client.run("print(6 * 7)").stdout == "42\n"
        with client.session() as session:
            session.files.write("data.csv", DATA)
            session.run(LOAD).raise_for_error()
            return session.run("df.plot()").displays[0].png


def test_the_first_page(fake: FakeCluster) -> None:
    assert play(fake) == PNG
    assert [one.status.reason for one in fake.sessions] == ["EndRequested"]


async def test_where_an_event_loop_runs_already(fake: FakeCluster) -> None:
    assert play(fake) == PNG


def test_from_several_threads_at_once() -> None:
    meeting = threading.Barrier(4)

    def run(block: FakeBlock) -> FakeOutcome:
        return FakeOutcome(stdout=block.code)

    with sync.Client(agent="a", backend=FakeCluster(run=run).client()) as client, ThreadPoolExecutor(4) as pool:

        def call(number: int) -> str:
            meeting.wait()
            return client.run(f"print({number})").stdout

        assert list(pool.map(call, range(4))) == [f"print({number})" for number in range(4)]
        assert len(threads()) == 1


def test_close_ends_the_thread_and_a_later_call_starts_another(fake: FakeCluster) -> None:
    client = sync.Client(agent="a", backend=fake.client())
    assert not threads()
    client.run("print(6 * 7)")
    [thread] = threads()
    client.close()
    assert not thread.is_alive()
    assert client.run("print(6 * 7)").text == "42"
    client.close()
    assert not threads()


def test_a_client_that_nobody_holds_ends_its_thread(fake: FakeCluster) -> None:
    client = sync.Client(agent="a", backend=fake.client())
    client.run("print(6 * 7)")
    [thread], gone = threads(), weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_what_code_does_is_raised_where_it_was_called() -> None:
    fake = FakeCluster()
    fake.fail()
    with sync.Client(agent="a", backend=fake.client()) as client, pytest.raises(codeexec.ClusterUnreachable):
        client.run("print(1)")


def test_records_are_iterated_over_with_for(fake: FakeCluster) -> None:
    with sync.Client(agent="a", backend=fake.client()) as client:
        name = client.run("print(6 * 7)").execution
        client.run("print(6 * 7)")
        assert len(list(client.executions.list())) == 2
        for record in client.executions.list():  # left before its end
            assert record.status.phase is codeexec.Phase.SUCCEEDED
            break
        assert "".join(chunk.text for chunk in client.executions.output(name)) == "42\n"
        with pytest.raises(codeexec.NotFound):
            list(client.executions.output("run-gone"))


def test_a_session_that_was_attached_to_goes_on(fake: FakeCluster) -> None:
    with sync.Client(agent="a", backend=fake.client()) as client:
        session = client.session(stateful=False)
        session.start()
        with client.sessions.attach(session.name) as same:
            same.files.write("a.txt", "a")
        assert session.files.read_text("a.txt") == "a"
        session.end()
        assert client.sessions.get(session.name).status.phase.value == "Ended"


def test_callbacks_may_call_the_client(fake: FakeCluster) -> None:
    seen: list[str] = []
    with sync.Client(agent="a", backend=fake.client()) as client:
        client.run("print(6 * 7)", on_output=lambda chunk: seen.append(client.run("print(6 * 7)").stdout + chunk.text))
    assert seen == ["42\n42\n"]


def test_a_coroutine_of_the_client_can_not_wait_for_itself(fake: FakeCluster) -> None:
    client = sync.Client(agent="a", backend=fake.client())

    async def call() -> None:
        client.run("print(6 * 7)")

    with client, pytest.raises(RuntimeError, match=r"use codeexec\.Client there"):
        client._loop.call(call)


def test_the_context_of_the_caller_counts(fake: FakeCluster) -> None:
    """Spans of the application are the parents of those of a call."""
    variable = contextvars.ContextVar("variable", default="")
    variable.set("caller's")

    async def read() -> str:
        return variable.get()

    with sync.Client(agent="a", backend=fake.client()) as client:
        assert client._loop.call(read) == "caller's"


def test_ctrl_c_stops_the_code() -> None:
    """In a process of its own: the signal comes while the main thread waits for code that never ends."""
    program = f"""
import os, signal, sys, threading
sys.path.insert(0, {os.getcwd()!r})
from codeexec import sync
from codeexec._files import Files
from codeexec._records import Approvals, Executions, Sessions
from codeexec.testing import FakeCluster, FakeOutcome
fake = FakeCluster(run=lambda block: FakeOutcome(stdout="started", never_ends=True))
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without
interrupt = lambda chunk: os.kill(os.getpid(), signal.SIGINT)
with sync.Client(agent="a", backend=fake.client()) as client:
    try:
        client.run("while True: pass", on_output=interrupt)
    except KeyboardInterrupt:
        print([(one.status.phase.value, one.spec.cancelled) for one in fake.executions])
print([one.name for one in threading.enumerate()])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("[('Cancelled', True)]\n['MainThread']\n", "")


def test_a_forked_process_begins_anew(fake: FakeCluster) -> None:
    with sync.Client(agent="a", backend=fake.client()) as client:
        client.run("print(6 * 7)")
        child = os.fork()
        if child == 0:
            os._exit(0 if client._loop._loop is None and client._loop.call(asyncio.sleep, 0, 7) == 7 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.run("print(6 * 7)").text == "42"


def test_a_client_that_is_closed_meanwhile_says_so() -> None:
    fake, began = FakeCluster(run=lambda _: FakeOutcome(stdout="started", never_ends=True)), threading.Event()
    client = sync.Client(agent="a", backend=fake.client())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.run, "while True: pass", on_output=lambda _: began.set())
        assert began.wait(60)
        client.close()
        with pytest.raises(codeexec.ClusterUnreachable, match="closed"):
            waiting.result(60)


@pytest.mark.parametrize(
    ("there", "twin"),
    [
        (codeexec.Client, sync.Client),
        (codeexec.Session, sync.Session),
        (Files, sync.Files),
        (Executions, sync.Executions),
        (Sessions, sync.Sessions),
        (Approvals, sync.Approvals),
    ],
)
def test_each_call_has_a_twin_that_is_described(there: type, twin: type) -> None:
    assert public(twin) == public(there)
    assert all(getattr(twin, name).__doc__ for name in public(twin))


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}
