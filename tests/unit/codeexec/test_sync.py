"""`codeexec.sync`: the same calls without `async`, in a thread with an event loop."""

import asyncio
import contextvars
import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from first_page import DATA, LOAD, PNG
from polling import until

import codeexec
from codeexec import _client, _loop, sync
from codeexec._files import Files
from codeexec._loop import LoopThread
from codeexec._records import Approvals, Executions, Sessions
from codeexec.testing import FakeBlock, FakeCluster, FakeOutcome


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "codeexec-sync" and one.is_alive()]


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


def test_a_client_that_is_closed_while_results_are_read_does_not_make_them_look_complete(fake: FakeCluster) -> None:
    with sync.Client(agent="a", backend=fake.client()) as client:
        for _ in range(2):
            client.run("print(6 * 7)")
        records = client.executions.list()
        next(records)
    with pytest.raises(codeexec.ClusterUnreachable, match="closed before all results were read"):
        next(records)
    client.close()  # the attempt has started another thread


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
    thread.join(60)
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
import os, signal, sys, threading, time
sys.path.insert(0, {os.getcwd()!r})
from codeexec import sync
from codeexec._files import Files
from codeexec._records import Approvals, Executions, Sessions
from codeexec.testing import FakeCluster, FakeOutcome
fake = FakeCluster(run=lambda block: FakeOutcome(stdout="started", never_ends=True))
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without
def main_thread():
    time.sleep(0.05)
    with open(f"/proc/self/task/{{os.getpid()}}/status") as file:
        return [line for line in file if line.startswith(("State", "voluntary", "nonvoluntary"))]
def interrupt(chunk):  # Python loses a signal that comes just before a lock is waited for
    before = None
    while before != (before := main_thread()) or "S (sleeping)" not in str(before): pass
    os.kill(os.getpid(), signal.SIGINT)
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
            os._exit(0 if client._loop._serving is None and client._loop.call(asyncio.sleep, 0, 7) == 7 else 1)
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


def test_close_waits_for_the_callbacks() -> None:
    """What a callback writes to, such as a file, may be closed behind the client."""
    fake, began, closed = FakeCluster(run=lambda _: FakeOutcome(stdout="1")), threading.Event(), threading.Event()
    client, early = sync.Client(agent="a", backend=fake.client()), list[bool]()

    def callback(_: codeexec.OutputChunk) -> None:
        [thread] = threads()
        began.set()
        thread.join(60)
        early.append(closed.wait(0.2))

    call = begun(lambda: client.run("print(1)", on_output=callback))
    assert began.wait(60)
    client.close()
    closed.set()
    assert early == [False]
    with pytest.raises(codeexec.ClusterUnreachable, match="closed"):
        call.result(60)


@pytest.mark.parametrize("more", [0, 1], ids=["closed by the callback", "and used again"])
def test_close_waits_for_callbacks_although_somebody_has_closed_the_client_before(more: int) -> None:
    fake, closing, closed = FakeCluster(run=lambda _: FakeOutcome(stdout="1")), threading.Event(), threading.Event()
    client, early = sync.Client(agent="a", backend=fake.client()), list[bool]()

    def callback(_: codeexec.OutputChunk) -> None:
        client.close()
        closing.set()
        early.append(closed.wait(0.2))

    call = begun(lambda: client.run("print(1)", on_output=callback))
    assert closing.wait(60)
    for _ in range(more):
        client.run("print(1)")
    client.close()
    closed.set()
    assert early == [False]
    with pytest.raises(codeexec.ClusterUnreachable, match="closed"):
        call.result(60)


def begun(call: Callable[[], Any]) -> "Future[Any]":
    """What a call gives, in a thread that the end of the tests does not wait for."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def played(program: str) -> str:
    """What a program prints in a process of its own."""
    start = f"import sys\nsys.path.insert(0, {os.getcwd()!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", start + program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.run("print(1)", tiemout=5),
        lambda client: client.run(),
        lambda client: client.session().files.write("a.txt"),
    ],
)
def test_a_wrong_argument_is_an_error(fake: FakeCluster, call: Callable[[Any], object]) -> None:
    with sync.Client(agent="a", backend=fake.client()) as client:
        with pytest.raises(TypeError, match="argument"):
            begun(lambda: call(client)).result(60)
        assert client.run("print(6 * 7)").text == "42"


class WantedLock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._lock, self._tell = threading.Lock(), tell

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._tell()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_call_that_races_with_close_ends(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is stopped, or would be, once the call has found it, and before the call begins there."""
    client, closing = sync.Client(agent="a", backend=fake.client()), threading.Event()
    client.run("print(6 * 7)")
    running = client._loop._running

    def slowly() -> Any:
        found = running()
        begun(client._loop.stop).add_done_callback(lambda _: closing.set())
        assert closing.wait(60)
        return found

    monkeypatch.setattr(client._loop, "_lock", WantedLock(closing.set))
    monkeypatch.setattr(client._loop, "_running", slowly)
    with pytest.raises(codeexec.ClusterUnreachable, match="closed"):
        begun(lambda: client._loop.call(asyncio.Event().wait)).result(60)
    monkeypatch.setattr(client._loop, "_running", running)
    assert client.run("print(6 * 7)").text == "42"
    client.close()


CLOSE = """
import threading
import codeexec
from codeexec import sync
from codeexec.local import Sandbox
from codeexec.testing import FakeCluster, FakeOutcome
fake = FakeCluster(run=lambda block: FakeOutcome(stdout="started", never_ends=True))
client = sync.Client(agent="a", backend={backend})
other = sync.Client(agent="b", backend=FakeCluster(run=lambda block: FakeOutcome(stdout="1")).client())
try:
    client.run("print('started', flush=True)\\nwhile True: pass", on_output=lambda _: {close})
except codeexec.ClusterUnreachable as error:
    print(error)
client.close()
other.close()
for one in threading.enumerate():
    if one.name.startswith("codeexec-sync"):
        one.join()
print("ended")
"""


@pytest.mark.parametrize("close", ["client.close()", "other.run('1', on_output=lambda _: client.close())"])
@pytest.mark.parametrize("backend", ["fake.client()", "Sandbox()"])
def test_a_callback_may_close_the_client(backend: str, close: str) -> None:
    if backend == "Sandbox()":
        sandlock = pytest.importorskip("sandlock", reason="there is no sandlock for this system")
        if sandlock.landlock_abi_version() < sandlock.min_landlock_abi():
            pytest.skip("the kernel's Landlock is too old for the local sandbox (Linux 6.12)")
    closed = played(CLOSE.format(backend=backend, close=close))
    assert closed == "the client was closed while the call ran\nended\n"


def interrupted(moment: int, call: Callable[[], object]) -> bool:
    """Whether there is such a moment: Ctrl-C comes after that many calls that `_loop.py` makes or gets."""
    left = moment

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        ours = _loop.__file__ in (frame.f_code.co_filename, frame.f_back and frame.f_back.f_code.co_filename)
        left -= ours and event != "c_call"  # Python handles no signal there
        if not left:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a loop that was about to begin
async def test_ctrl_c_at_any_moment(fake: FakeCluster) -> None:
    moments = itertools.count(1)
    while await survives(next(moments), fake):
        pass
    assert next(moments) > 50


async def survives(moment: int, fake: FakeCluster) -> bool:
    """Whether there is such a moment: all goes on after it."""
    found = begun(lambda: comes_through(moment, sync.Client(agent="a", backend=fake.client()))).result(60)
    await until(lambda: not threads() or not gc.collect())  # where a thread was started, and nobody told
    await until(lambda: not threads())
    return found


def comes_through(moment: int, client: sync.Client) -> bool:
    found = interrupted(moment, lambda: (client.run("print(6 * 7)"), client.close()))
    assert client.run("print(6 * 7)").text == "42"
    client.close()
    return found


def test_a_callback_may_exit(fake: FakeCluster) -> None:
    """What ends a thread, and an event loop, is raised where the call was made, and harms no other call."""
    with sync.Client(agent="a", backend=fake.client()) as client:
        waits = threading.Event()

        async def wait() -> None:
            waits.set()
            await asyncio.Event().wait()

        other = begun(lambda: client._loop.call(wait))
        assert waits.wait(60)
        with pytest.raises(SystemExit, match="3"):
            begun(lambda: client.run("print(6 * 7)", on_output=lambda _: sys.exit(3))).result(60)
        [thread] = threads()
        assert client.run("print(6 * 7)").text == "42"
        assert [thread] == threads()
        assert not other.done()
    with pytest.raises(codeexec.ClusterUnreachable, match="closed"):
        other.result(60)


def test_many_callbacks_may_wait_at_the_same_time(fake: FakeCluster) -> None:
    many = 40  # more than the threads of an event loop by default
    meeting = threading.Barrier(many)
    seen: list[str] = []

    def call() -> None:
        client.run("print(6 * 7)", on_output=wait)

    def wait(_: object) -> None:
        meeting.wait(60)
        client.run("print(6 * 7)", on_output=lambda chunk: seen.append(chunk.text))

    with sync.Client(agent="a", backend=fake.client()) as client:
        for one in [begun(call) for _ in range(many)]:
            one.result(90)
    assert seen == ["42\n"] * many


def test_an_iterator_that_nobody_holds_waits_for_nothing(fake: FakeCluster) -> None:
    """The garbage collector may find it in any thread, whatever that holds."""
    closed = threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    with sync.Client(agent="a", backend=fake.client()) as client:
        iterators = [client._loop.iterate(numbers())]
        assert next(iterators[0]) == 1

        def collect() -> None:
            with client._loop._lock:
                iterators.clear()

        begun(collect).result(60)
        assert closed.wait(60)


async def test_the_garbage_collector_may_end_it_in_a_thread_of_its_own() -> None:
    loop = LoopThread()
    with pytest.raises(codeexec.ClusterUnreachable, match="closed"):
        begun(lambda: loop.call(in_worker, lambda: loop._end())).result(60)
    await until(lambda: not threads())
    assert begun(lambda: loop.call(asyncio.sleep, 0, 7)).result(60) == 7
    loop.stop()


async def in_worker(call: Callable[[], object]) -> None:
    await asyncio.to_thread(contextvars.Context().run, call)  # where nothing says that this is a callback
    await asyncio.Event().wait()


def test_the_end_of_the_process_stops_the_code_of_a_call() -> None:
    program = """
import atexit, threading
from codeexec import sync
from codeexec.testing import FakeCluster, FakeOutcome
fake = FakeCluster(run=lambda block: FakeOutcome(stdout="started", never_ends=True))
atexit.register(lambda: print([(one.status.phase.value, one.spec.cancelled) for one in fake.executions]))
client, began = sync.Client(agent="a", backend=fake.client()), threading.Event()

def run():
    try:
        client.run("while True: pass", on_output=lambda _: began.set())
    except Exception as error:
        print(error)

threading.Thread(target=run, daemon=True).start()
began.wait(60)
"""
    assert "[('Cancelled', True)]\n" in played(program)


def test_threads_that_begin_at_the_same_time_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, load = threading.Barrier(2), _client._cluster_client

    def slowly() -> Any:
        meeting.wait(60)
        return load()

    monkeypatch.setattr(_client, "_cluster_client", slowly)
    client = sync.Client(agent="a")
    sessions = [begun(client.session) for _ in range(2)]
    one, other = [session.result(60)._inner._handle._executes for session in sessions]
    assert one is other is client._inner._backend
    client.close()


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
