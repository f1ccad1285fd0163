"""This machine as the backend: the same calls, or a refusal by name."""

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from first_page import DATA, PNG
from polling import until

import codeexec
from codeexec import sync
from codeexec.local import Sandbox
from executor_client.client import session_handle


@pytest.fixture(autouse=True)
def not_production(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CODEEXEC_ENVIRONMENT", "OTEL_RESOURCE_ATTRIBUTES", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sandbox() -> Sandbox:
    """Skips what can't be had on this machine: see docs/local-sandbox.md."""
    sandlock = pytest.importorskip("sandlock", reason="there is no sandlock for this system")
    if sandlock.landlock_abi_version() < sandlock.min_landlock_abi():
        pytest.skip("the kernel's Landlock is too old for the local sandbox (Linux 6.12)")
    return Sandbox()


@pytest.fixture
def client(sandbox: Sandbox) -> codeexec.Client:
    return codeexec.Client(agent="analyst", backend=sandbox)


FOR_EVER = "print(1, flush=True)\nwhile True: pass"
SHOW = f"open('output-1-1.png', 'wb').write({PNG!r})"


async def test_the_first_page_as_far_as_this_machine_has_it(client: codeexec.Client) -> None:
    assert (await client.run("print(6 * 7)")).stdout == "42\n"
    with pytest.raises(codeexec.NotSupported, match="keeps no Python variables: pass stateful=False"):
        client.session()
    async with client.session(stateful=False) as session:
        await session.files.write("data.csv", DATA)
        (await session.run("assert len(open('data.csv').read().split()) == 3")).raise_for_error()
        result = await session.run(SHOW)
        assert result.displays[0].png == PNG


def test_the_same_without_async(sandbox: Sandbox) -> None:
    with sync.Client(agent="analyst", backend=sandbox) as client:
        assert client.run("print(6 * 7)").stdout == "42\n"
        with client.session(stateful=False) as session:
            session.files.write("data.csv", DATA)
            assert session.run(SHOW).displays[0].png == PNG


async def test_a_call_of_its_own_has_files_of_its_own(client: codeexec.Client) -> None:
    code = "import os; print(sorted(os.listdir('.'))); open('b.bin', 'wb').write(b'\\x00'); open('c', 'w')"
    result = await client.run(code, files={"a/x.txt": "ü", "d": b""}, fetch=["b.*"])
    assert "'a', 'd'" in result.stdout
    assert dict(result.files) == {"b.bin": b"\x00"}
    assert [(one.path, one.fetched) for one in result.artifacts] == [("b.bin", True), ("c", False)]
    assert (await client.run(SHOW)).displays[0].png == PNG
    assert "d" not in (await client.run("ls", language="sh")).stdout.split()


async def test_a_display_does_not_push_out_what_was_asked_for(client: codeexec.Client) -> None:
    names = {"output-1-1.png": 2 * 2**20, "output-1-2.png": 5, "results.bin": 15 * 2**20}
    code = f"for name, size in {names}.items(): open(name, 'wb').truncate(size)"
    result = await client.run(code, fetch=["results.bin"])
    assert {path: len(content) for path, content in result.files.items()} == {"results.bin": 15 * 2**20}
    assert [one.path for one in result.displays] == ["output-1-2.png"]
    assert [(one.size_bytes, one.fetched, bool(one.sha256)) for one in result.artifacts] == [
        (size, path != "output-1-1.png", True) for path, size in names.items()
    ]


async def test_the_error_of_the_code(client: codeexec.Client) -> None:
    result = await client.run("def f():\n    1 / 0\nf()")
    assert result.error
    assert (result.error.name, result.error.message) == ("ZeroDivisionError", "division by zero")
    assert "in f" in result.error.traceback
    with pytest.raises(codeexec.CodeTimeout):
        (await client.run("while True: pass", timeout=1)).raise_for_error()


async def test_files_of_a_session(client: codeexec.Client) -> None:
    async with client.session(stateful=False) as session:
        files = session.files
        await files.write_many({"a.txt": "a", "b/c.txt": b"c"})
        assert [one.path for one in await files.list()] == ["a.txt", "b/c.txt"]
        assert await files.read_many(["b/c.txt", "a.txt"]) == {"b/c.txt": b"c", "a.txt": b"a"}
        assert (await files.stat("a.txt")).size_bytes == 1
        await files.remove("a.txt")
        assert not await files.exists("a.txt")
        assert [one.path for one in await files.list()] == ["b/c.txt"]
        with pytest.raises(codeexec.FileMissing, match=r"a\.txt"):
            await files.remove("a.txt")


async def test_output_comes_as_it_is_written(client: codeexec.Client) -> None:
    seen: list[codeexec.OutputChunk] = []
    result = await client.run("print('ü'); import sys; sys.stderr.write('no')", on_output=seen.append)
    assert "".join(one.text for one in seen if one.stream == "stdout") == result.stdout == "ü\n"
    assert "".join(one.text for one in seen if one.stream == "stderr") == result.stderr == "no"

    def refuse(_: codeexec.OutputChunk) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        await client.run(FOR_EVER, on_output=refuse)


async def started(client: codeexec.Client, **options: Any) -> "asyncio.Task[codeexec.Result]":
    began = threading.Event()
    task = asyncio.create_task(client.run(FOR_EVER, on_output=lambda _: began.set(), **options))
    await asyncio.to_thread(began.wait)
    return task


async def test_a_call_waits_for_its_turn_only_as_long_as_it_may(client: codeexec.Client) -> None:
    running = await started(client)
    with pytest.raises(codeexec.Timeout, match="turn of this call did not come within"):
        await client.run("print(1)", start_timeout=0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await client.run("print(1)", start_timeout=60)).text == "1"  # what has begun is not held to it


async def test_a_session_that_is_over(client: codeexec.Client) -> None:
    session = client.session(stateful=False)
    with pytest.raises(codeexec.SessionEnded, match="never started"):
        await session.run("print(1)")
    await session.start()
    await session.files.write("a", "")
    await session.end()
    await session.end()
    with pytest.raises(codeexec.SessionEnded):
        await session.files.list()


def test_a_callback_may_end_its_session_and_make_another_call(sandbox: Sandbox) -> None:
    """A callback does not hold up the thread of the sandbox."""
    said: list[str | None] = []
    with sync.Client(agent="a", backend=sandbox) as client:
        session = client.session(stateful=False)
        session.start()
        root = sandbox._workspaces[session.name].workspace.root

        def call(_: codeexec.OutputChunk) -> None:
            session.end()
            said.append(client.run("print(2)").text)

        result = session.run(FOR_EVER, on_output=call)
        assert result.error == codeexec.CodeError("CancelRequested", "cancelled; the code was killed")
        assert set(said) == {"2"}
        assert not root.exists()


async def test_a_task_that_a_callback_has_made_may_make_a_call_later(client: codeexec.Client) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    made: list[asyncio.Task[codeexec.Result]] = []

    async def call() -> codeexec.Result:
        await over.wait()
        return await client.run("print(2)")

    async def make() -> None:
        made.append(asyncio.create_task(call()))

    await client.run("print(1, end='')", on_output=lambda _: asyncio.run_coroutine_threadsafe(make(), loop).result(60))
    over.set()
    assert (await made[0]).text == "2"


async def test_a_callback_that_waits_for_a_call_takes_no_thread_that_the_call_needs(client: codeexec.Client) -> None:
    loop, said = asyncio.get_running_loop(), list[str | None]()
    loop.set_default_executor(ThreadPoolExecutor(1))

    def call(_: codeexec.OutputChunk) -> None:
        said.append(asyncio.run_coroutine_threadsafe(client.run("print(2)"), loop).result(60).text)

    async with asyncio.timeout(60):
        await client.run("print(1, end='')", on_output=call)  # one piece: print writes the end of a line by itself
    assert said == ["2"]


async def test_a_callback_that_raises_stop_iteration_ends_its_call(client: codeexec.Client) -> None:
    """A future that gets StopIteration never ends."""
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        async with asyncio.timeout(60):
            await client.run(FOR_EVER, on_output=lambda _: next(iter(())))
    assert (await client.run("print(2)")).text == "2"


async def test_a_session_starts_once(client: codeexec.Client) -> None:
    async with client.session(stateful=False) as session:
        await session.files.write("a.txt", "a")
        with pytest.raises(codeexec.Error, match="was started already"):
            await session.start()
        assert await session.files.read_text("a.txt") == "a"
    with pytest.raises(codeexec.Error, match="was started already"):
        await session.start()


async def test_an_end_that_is_broken_off_deletes_the_workspace(
    client: codeexec.Client, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_handle, "_ABANDON_SECONDS", 0.05)
    running = await started(client)
    session = client.session(stateful=False)
    await session.start()
    root = sandbox._workspaces[session.name].workspace.root
    await session._handle.abandon()  # as where the block of the session raises
    assert root.exists()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await client.run("print(1)")  # what was to be done before has been done
    assert not root.exists()


async def test_an_end_that_is_cancelled_as_it_begins_ends_the_session(
    client: codeexec.Client, sandbox: Sandbox
) -> None:
    session = client.session(stateful=False)
    await session.start()
    root = sandbox._workspaces[session.name].workspace.root
    began = threading.Event()
    running = asyncio.create_task(session.run(FOR_EVER, on_output=lambda _: began.set()))
    await asyncio.to_thread(began.wait)
    ending = asyncio.create_task(session.end())
    asyncio.get_running_loop().call_soon(ending.cancel)  # after its first step
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert (await running).error == codeexec.CodeError("CancelRequested", "cancelled; the code was killed")
    await client.run("print(1)")  # what was to be done before has been done
    assert not root.exists()


async def test_the_end_of_a_session_ends_only_what_runs_in_it(client: codeexec.Client, sandbox: Sandbox) -> None:
    async with client.session(stateful=False) as session:
        began = threading.Event()
        running = asyncio.create_task(session.run(FOR_EVER, on_output=lambda _: began.set()))
        other = asyncio.create_task(client.run("print(2)"))
        await asyncio.to_thread(began.wait)
    assert (await running).error == codeexec.CodeError("CancelRequested", "cancelled; the code was killed")
    assert (await other).text == "2"
    await sandbox.close()


@pytest.mark.usefixtures("sandbox")
async def test_a_call_that_waits_in_a_session_that_ends_was_not_run(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    backend = Sandbox(audit_log=audit)
    session = codeexec.Client(agent="analyst", backend=backend).session(stateful=False)
    await session.start()
    began = threading.Event()
    running = asyncio.create_task(session.run(FOR_EVER, on_output=lambda _: began.set()))
    await asyncio.to_thread(began.wait)
    waiting = asyncio.create_task(session.run("print(1)"))
    await until(lambda: len(backend._sandbox._stops) == 2)
    await session.end()
    assert (await running).error == codeexec.CodeError("CancelRequested", "cancelled; the code was killed")
    with pytest.raises(codeexec.SessionEnded, match=f"session '{session.name}' is over: .* Nothing was run"):
        await waiting
    told = [json.loads(line)["audit"] for line in audit.read_text().splitlines()]
    reasons = [one["record"]["reason"] for one in told if one["event"] == "StatusWrite"]
    assert reasons == ["CodeStarted", "CancelRequested", "SessionEnded"]


async def test_many_calls_that_wait_hold_no_descriptors_and_no_workspaces(
    client: codeexec.Client, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running = await started(client)
    held = len(os.listdir("/proc/self/fd"))
    waiting = [asyncio.create_task(client.run("print(1)")) for _ in range(40)]
    await until(lambda: len(sandbox._sandbox._stops) == 41)
    assert len(os.listdir("/proc/self/fd")) < held + len(waiting) / 2  # others come and go
    assert len(list(tmp_path.iterdir())) == 1
    for call in (running, *waiting):
        call.cancel()
    await asyncio.wait([running, *waiting])
    await until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda client: client.run("1", egress=["10.0.0.1/32:443"]), "egress"),
        (lambda client: client.run("1", mounts=["pvc:data:/mnt/data"]), "mounts"),
    ],
)
async def test_what_needs_a_cluster_is_refused_by_name(
    client: codeexec.Client, call: Callable[[codeexec.Client], Any], named: str
) -> None:
    with pytest.raises(codeexec.NotSupported, match=f"^{named} is .*the local sandbox has none"):
        await call(client)


def test_so_are_records_images_and_sessions_that_stay(client: codeexec.Client, sandbox: Sandbox) -> None:
    for name in ("executions", "sessions", "approvals"):
        with pytest.raises(
            codeexec.NotSupported, match=f"backend is a Sandbox, which has no {name}: leave backend out"
        ):
            getattr(client, name)
    with pytest.raises(codeexec.NotSupported, match="outlives_client"):
        client.session(stateful=False, outlives_client=True)
    with pytest.raises(
        codeexec.NotSupported, match="sleep_after is 60, but a session of the local sandbox holds no pod"
    ):
        client.session(stateful=False, sleep_after=60)
    other = codeexec.Client(agent="a", backend=sandbox, image=f"x@sha256:{'0' * 64}", runtime_class="kata")
    with pytest.raises(codeexec.NotSupported, match=r"^image is 'x@sha"):
        other.session(stateful=False)


def test_autogen_is_not_loaded(sandbox: Sandbox) -> None:
    import subprocess

    code = "import sys, codeexec.local; print([one for one in ('autogen_core', 'kubernetes') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
