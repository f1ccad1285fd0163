"""Sessions as AutoGen's executor uses them, on the cluster in memory."""

import asyncio
import gc
import itertools
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from patient import lasts_out_outages
from polling import settled, time_limit_passes_once, until

from codeexec_api import CodeSession, ExecutionPolicySpec, Limits, Phase, Reason
from executor_client import (
    ClusterRef,
    ClusterUnreachable,
    ExecutionLost,
    ExecutionNotStarted,
    FileMissing,
    FileTransferError,
    KubernetesCodeExecutor,
    KubernetesCodeResult,
    NotPermitted,
    OutputChunk,
    Request,
    SourceBlock,
    WaitNotice,
)
from executor_client.client import waiting
from executor_client.runtime.asyncio_tasks import completed
from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome
from executor_client.testing.transport import FakeTransport
from executor_client.workspace import session_finalizer, shared_session
from executor_client.workspace.batches import fetch_after
from executor_client.workspace.shared_session import SharedSession


def behave(block: FakeBlock) -> FakeOutcome:
    """`write NAME TEXT`, `list`, `hang` and `boom`, in place of Python."""
    words = block.code.split()
    if words[0] == "write":
        block.files[words[1]] = words[2].encode()
    elif words[0] == "list":
        return FakeOutcome(stdout=" ".join(block.files) + "\n")
    elif words[0] == "hang":
        return FakeOutcome(stdout="so far\n", never_ends=True)
    elif words[0] == "boom":
        return FakeOutcome(loses_pod=True)
    return FakeOutcome(stdout=f"{block.code}\n")


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster(run=behave)


Make = Callable[..., KubernetesCodeExecutor]


@pytest.fixture
def make(fake: FakeCluster) -> Make:
    return lambda **settings: KubernetesCodeExecutor(client=fake.client(), **settings)


async def call(
    executor: KubernetesCodeExecutor, *codes: str, token: CancellationToken | None = None
) -> KubernetesCodeResult:
    blocks = [CodeBlock(code, "python") for code in codes]
    return await executor.execute_code_blocks(blocks, token or CancellationToken())


async def test_calls_share_one_workspace(fake: FakeCluster, make: Make) -> None:
    executor = make()
    await asyncio.gather(*(call(executor, f"write f{number} x") for number in range(5)))
    result = await call(executor, "list")
    assert result.output.split() == [f"f{number}" for number in range(5)] or "f4" in result.output
    assert len(fake.sessions) == 1
    assert fake.sessions[0].spec.source.executor == "KubernetesCodeExecutor"
    assert {one.spec.session_ref.name for one in fake.executions if one.spec.session_ref} == {
        fake.sessions[0].metadata.name
    }


async def test_settings_reach_the_session(fake: FakeCluster, make: Make) -> None:
    await call(make(idle_timeout=7, max_lifetime=70, stateful=True, image=FAKE_IMAGE), "x")
    spec = fake.sessions[0].spec
    assert (spec.idle_timeout_seconds, spec.max_lifetime_seconds, spec.stateful) == (7, 70, True)
    assert spec.image == FAKE_IMAGE
    assert fake.executions[0].spec.image is None


async def test_a_session_may_be_asked_to_sleep_and_the_fake_has_no_store_for_it(fake: FakeCluster, make: Make) -> None:
    result = await call(make(sleep_after=60), "x")
    assert fake.sessions[0].spec.sleep_after_seconds == 60
    assert "sleep_after=60 is not allowed by the policy (allowed: none; sleeping needs an output store" in result.output


async def test_per_call_makes_no_session(fake: FakeCluster, make: Make) -> None:
    executor = make(session="per-call")
    await call(executor, "write a x")
    assert "a" not in (await call(executor, "list")).output.split()
    assert fake.sessions == []
    for method in (executor.upload_files, executor.download_files):
        with pytest.raises(ValueError, match="needs session='per-executor'"):
            await method(["a"], CancellationToken())
    with pytest.raises(ValueError, match="get_file_list needs session='per-executor'"):
        await executor.get_file_list(CancellationToken())


def test_threads_and_loops_share_the_session(fake: FakeCluster, make: Make) -> None:
    executor = make()
    outcomes: list[int] = []

    def work() -> None:
        outcomes.append(asyncio.run(call(executor, "x")).exit_code)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [0] * 4
    assert len(fake.sessions) == 1


async def test_after_an_idle_time_the_next_call_says_that_its_workspace_is_new(fake: FakeCluster, make: Make) -> None:
    executor = make(idle_timeout=60)
    await call(executor, "write a x")
    fake.advance(61)
    name = fake.sessions[0].metadata.name
    note = (
        f"[codeexec: session {name} ended (IdleTimeout); "
        "this call ran in a new workspace, without the files of earlier calls]\n"
    )
    result = await call(executor, "list")
    assert result.output.startswith(note)
    assert "a" not in result.stdout.split()
    assert not (await call(executor, "list")).output.startswith("[codeexec")
    assert len(fake.sessions) == 2


async def test_a_call_that_loses_its_pod_is_lost_and_not_run_again(fake: FakeCluster, make: Make) -> None:
    executor = make()
    with pytest.raises(ExecutionLost):
        await call(executor, "boom")
    assert len(fake.executions) == 1
    assert (await call(executor, "list")).output.startswith("[codeexec: session ")


async def test_restart_and_stop_end_the_session_and_may_be_repeated(fake: FakeCluster, make: Make) -> None:
    executor = make()
    await executor.stop()
    await executor.restart()
    assert fake.sessions == []
    await call(executor, "write a x")
    await executor.restart()
    assert fake.sessions[0].spec.ended
    result = await call(executor, "list")
    assert "a" not in result.output.split()
    assert not result.output.startswith("[codeexec")
    await executor.stop()
    await executor.stop()
    assert [one.spec.ended for one in fake.sessions] == [True, True]
    assert (await call(executor, "x")).exit_code == 0


async def test_stop_without_a_cluster_is_no_error(
    fake: FakeCluster, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    executor = make()
    await call(executor, "x")
    fake.fail(ClusterUnreachable)
    await executor.stop()
    assert "could not end the session, which ends at its idle timeout: " in caplog.text


async def test_what_the_policy_does_not_allow_is_a_result() -> None:
    policy = ExecutionPolicySpec(images=(FAKE_IMAGE,), max_session_idle_seconds=10)
    fake = FakeCluster(run=behave, policy=policy)
    result = await call(KubernetesCodeExecutor(client=fake.client(), idle_timeout=60), "x")
    assert (result.exit_code, result.reason) == (1, "PolicyViolation")
    assert result.output.startswith("Denied: session ")
    assert "idle_timeout=60 is not allowed by the policy" in result.output
    assert len(fake.sessions) == 1


async def test_a_lack_of_memory_or_time_is_said_as_the_caller_has_given_it() -> None:
    fake = FakeCluster(
        run=lambda block: FakeOutcome(out_of_memory=True) if block.code == "memory" else FakeOutcome(takes=9)
    )
    executor = KubernetesCodeExecutor(client=fake.client(), timeout=8, limits=Limits(memory="96Mi"))
    assert 'than Limits(memory="96Mi"); files in /workspace' in (await call(executor, "memory")).output
    assert (await call(executor, "time")).output == "Timeout: the block ran longer than timeout=8 and was killed"


async def test_a_session_that_can_not_start_is_an_error_and_not_tried_for_ever(fake: FakeCluster, make: Make) -> None:
    executor = make()
    fake.fail_to_start(Reason.IMAGE_PULL_FAILED, "no such image")
    with pytest.raises(ExecutionNotStarted, match="no such image"):
        await call(executor, "x")
    assert len(fake.sessions) == 1
    fake.recover()
    assert (await call(executor, "x")).output == "x\n"


async def test_when_the_session_can_not_be_created_the_next_call_tries_again(fake: FakeCluster, make: Make) -> None:
    executor = make()
    fake.fail(ClusterUnreachable)
    outcomes = await asyncio.gather(*(call(executor, "x") for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [ClusterUnreachable] * 3
    fake.recover()
    assert (await call(executor, "x")).exit_code == 0


async def test_a_cancelled_token_is_a_result_and_the_session_goes_on(fake: FakeCluster, make: Make) -> None:
    executor, token = make(), CancellationToken()
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()
    executor._calls.on_output = lambda chunk: loop.call_soon_threadsafe(seen.set)
    running = asyncio.create_task(call(executor, "hang", token=token))
    waiting_token = CancellationToken()
    await seen.wait()
    waiting = asyncio.create_task(call(executor, "x", token=waiting_token))
    await until(lambda: len(fake.executions) == 2)
    waiting_token.cancel()
    result = await waiting
    assert (result.exit_code, result.output) == (1, "Code execution was cancelled.")
    token.cancel()
    result = await running
    assert (result.exit_code, result.output) == (1, "so far\nCode execution was cancelled.")
    assert (await call(executor, "y")).output == "y\n"
    assert len(fake.sessions) == 1


async def test_a_task_cancelled_along_with_its_token_still_has_a_result(fake: FakeCluster, make: Make) -> None:
    """As AutoGen's workbenches do it: they link the call that they wait for to the token."""
    executor, token = make(), CancellationToken()
    running = asyncio.create_task(call(executor, "hang", token=token))
    token.link_future(running)
    await until(lambda: fake.executions)
    token.cancel()
    running.cancel()
    result = await running
    assert result.exit_code == 1
    assert result.output.endswith("Code execution was cancelled.")
    assert fake.executions[-1].status.phase is Phase.CANCELLED


async def test_a_task_that_is_cancelled_stops_the_code(fake: FakeCluster, make: Make) -> None:
    executor = make()
    with pytest.raises(TimeoutError):
        async with time_limit_passes_once(lambda: fake.executions):
            await call(executor, "hang")
    assert fake.executions[-1].spec.cancelled
    assert fake.executions[-1].status.phase is Phase.CANCELLED
    assert (await call(executor, "x")).exit_code == 0


async def test_output_comes_in_order_and_once(make: Make) -> None:
    chunks: list[OutputChunk] = []
    threads: set[int] = set()

    def take(chunk: OutputChunk) -> None:
        chunks.append(chunk)
        threads.add(threading.get_ident())

    result = await call(make(on_output=take), "one", "two")
    assert "".join(chunk.text for chunk in chunks) == result.stdout == "one\ntwo\n"
    assert threading.get_ident() not in threads


async def test_what_the_callback_raises_stops_the_code_and_is_raised(fake: FakeCluster, make: Make) -> None:
    def refuse(chunk: OutputChunk) -> None:
        raise KeyError(chunk.text)

    with pytest.raises(KeyError, match="so far"):
        await call(make(on_output=refuse), "hang")
    assert fake.executions[-1].status.phase is Phase.CANCELLED


# --- files ---


async def test_files_go_there_and_back(make: Make, tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(range(256)))
    executor, token = make(), CancellationToken()
    await executor.upload_files([tmp_path / "in.bin"], token)
    await call(executor, "write made 1")
    assert await executor.get_file_list(token) == ["in.bin", "made"], "and not the source of that block"
    [path] = await executor.download_files(["in.bin"], token)
    assert Path(path).read_bytes() == bytes(range(256))
    folder = Path(path).parent
    del executor
    gc.collect()
    assert not folder.exists()


async def test_what_the_caller_puts_into_work_dir_goes_with_the_next_call(
    fake: FakeCluster, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("data", "sub/more", ".env", "tmp_code_" + "0" * 64 + ".py"):
        (tmp_path / name).write_text("1")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    executor = make(work_dir=tmp_path)

    async def sent_with(code: str) -> list[str]:
        before = len(fake.executions)
        await call(executor, code)
        return [file.path for one in fake.executions[before:] for file in one.spec.files or ()]

    assert await sent_with("write made 1") == ["data", "sub/more"]
    assert await sent_with("list") == []  # nor what has come from the workspace
    (tmp_path / "data").write_text("changed")
    (tmp_path / "made").write_text("by the caller, now")
    assert await sent_with("list") == ["data", "made"]
    assert await sent_with("write data code") == []
    assert (tmp_path / "data").read_text() == "code"
    assert await sent_with("list") == []
    await executor.restart()
    assert await sent_with("list") == ["data", "made", "sub/more"]  # as they are now
    executor = make(work_dir=tmp_path, upload_work_dir=False)
    assert await sent_with("list") == []


async def test_what_was_not_run_is_sent_again(fake: FakeCluster, make: Make, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1")
    executor, token = make(work_dir=tmp_path), CancellationToken()
    hanging = CancellationToken()
    running = asyncio.create_task(call(executor, "hang", token=hanging))
    await until(lambda: fake.executions)
    (tmp_path / "late").write_text("1")
    waiting = asyncio.create_task(call(executor, "x", token=token))
    await asyncio.sleep(0)
    token.cancel()
    assert (await waiting).exit_code == 1
    hanging.cancel()
    await running
    assert "late" in (await call(executor, "list")).output.split()


async def test_what_code_did_before_it_was_cancelled_comes_back_and_is_not_undone(
    fake: FakeCluster, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("mine")
    executor, token = make(work_dir=tmp_path), CancellationToken()
    running = asyncio.create_task(call(executor, "write data changed", "hang", token=token))
    await until(lambda: fake.executions and fake.executions[0].status.phase is Phase.RUNNING)
    token.cancel()
    await running
    assert (tmp_path / "data").read_text() == "changed"
    assert not any(one.spec.cancelled for one in fake.executions if one.spec.artifacts and one.spec.artifacts.fetch)
    await call(executor, "list")
    assert not fake.executions[-1].spec.files


async def test_all_files_of_an_upload_are_there_if_the_session_ends_meanwhile(
    fake: FakeCluster, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, create = make(), FakeTransport.create
    await call(executor, "list")

    async def create_after_the_pod_is_lost(self: FakeTransport, *arguments: Any, **named: Any) -> Any:
        if len(fake.executions) == 2 and len(fake.sessions) == 1:
            fake.lose_pod(fake.sessions[0].metadata.name)
        return await create(self, *arguments, **named)

    monkeypatch.setattr(FakeTransport, "create", create_after_the_pod_is_lost)
    names = [f"f{number:02}" for number in range(65)]
    for name in names:
        (tmp_path / name).write_text("x")
    await executor.upload_files([tmp_path / name for name in names], CancellationToken())
    assert await executor.get_file_list(CancellationToken()) == names


async def test_calls_at_the_same_time_do_not_undo_what_code_changed(
    fake: FakeCluster, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("mine")
    executor = make(work_dir=tmp_path)
    await asyncio.gather(call(executor, "write data changed"), *(call(executor, "list") for _ in range(3)))
    assert [file.path for one in fake.executions for file in one.spec.files or ()] == ["data"]
    assert (tmp_path / "data").read_text() == "changed"


async def test_functions_are_not_replaced_by_a_file_of_their_name(
    fake: FakeCluster, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "functions.py").write_text("stale")

    def double(number: int) -> int:
        return number * 2

    executor = make(work_dir=tmp_path, functions=[double])
    await call(executor, "list")
    [sent] = [file for one in fake.executions for file in one.spec.files or ()]
    assert (sent.path, len(fake.executions)) == ("functions.py", 2)
    assert fake.executions[1].spec.files is None


async def test_one_file_that_can_not_come_back_does_not_hold_up_the_others(make: Make, tmp_path: Path) -> None:
    result = await call(make(work_dir=tmp_path), "write .x many", "write good 1", "write HEAD x")
    assert {one.path: one.fetched for one in result.artifacts} == {".x": False, "good": True, "HEAD": False}
    assert (tmp_path / "good").read_text() == "1"


@pytest.mark.parametrize("name", ["data[1].csv", "data[[]1].csv", "data?.csv", "*.csv", "data[!2-9].csv"])
async def test_a_name_that_looks_like_a_pattern_is_that_of_one_file(
    make: Make, fake: FakeCluster, tmp_path: Path, name: str
) -> None:
    executor = make(work_dir=tmp_path)
    await call(executor, "write data1.csv other", "write data[1.csv other")
    result = await call(executor, f"write {name} mine")
    assert [(one.path, one.fetched) for one in result.artifacts] == [(name, True)]
    assert (tmp_path / name).read_text() == "mine"
    [downloaded] = await executor.download_files([name], CancellationToken())
    assert Path(downloaded).read_text() == "mine"
    for transfer in [one for one in fake.executions if one.spec.artifacts.fetch][1:]:
        assert [one.path for one in transfer.status.artifacts] == [name]


async def test_a_second_cancellation_of_the_task_ends_the_wait(fake: FakeCluster, make: Make) -> None:
    executor, token = make(), CancellationToken()
    fake.stop_operator()
    running = asyncio.create_task(call(executor, "x", token=token))
    await until(lambda: fake.executions)
    token.cancel()
    running.cancel()
    await settled()
    assert not running.done(), "control: the first one has it wait for the end of the code"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_large_work_dir_is_sent_in_pieces(
    fake: FakeCluster, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_client.autogen.calls.MAX_FILES", 2)
    for name in "abcde":
        (tmp_path / name).write_text(name)
    result = await call(make(work_dir=tmp_path), "list")
    assert result.output.split()[:5] == list("abcde")
    assert [(len(one.spec.files or ()), len(one.spec.blocks)) for one in fake.executions] == [(2, 0), (2, 0), (1, 1)]


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (
            lambda root: [(root / str(n)).touch() for n in range(257)],
            r"257 files of work_dir .* \(at most 256\): use a",
        ),
        (lambda root: os.truncate(_touched(root / "big"), 16_000_001), r"16000001 bytes in the file 'big' of work_dir"),
        (lambda root: [os.truncate(_touched(root / n), 15_000_000) for n in "abcde"], r"75000000 bytes of work_dir"),
        (lambda root: (root / "a\nb").touch(), r"'a\\nb' in work_dir can't go into the workspace: .*U\+000A"),
    ],
)
async def test_a_work_dir_that_can_not_be_sent_is_an_error(
    prepare: Callable[[Path], object], text: str, fake: FakeCluster, make: Make, tmp_path: Path
) -> None:
    prepare(tmp_path)
    with pytest.raises(ValueError, match=text):
        await call(make(work_dir=tmp_path), "list")
    assert fake.executions == []
    assert (await call(make(work_dir=tmp_path, upload_work_dir=False), "x")).exit_code == 0


def _touched(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize("session", ["per-executor", "per-call"])
async def test_code_makes_no_hidden_file_in_work_dir(
    fake: FakeCluster, session: str, make: Make, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("mine")
    executor = make(work_dir=tmp_path, session=session)
    result = await call(executor, "write .git/config theirs", "write sub/.env x", "write seen 1")
    assert {one.path: one.fetched for one in result.artifacts} == {
        ".git/config": False,
        "sub/.env": False,
        "seen": True,
    }
    named = await call(executor, "# filename: .git/hooks/post-checkout")
    assert named.code_file == "/workspace/.git/hooks/post-checkout"
    assert [path.name for path in (tmp_path / ".git").iterdir()] == ["config"]
    assert (tmp_path / ".git" / "config").read_text() == "mine"
    assert not (tmp_path / "sub").exists()
    if session == "per-executor":  # unless they are asked for
        [path] = await executor.download_files(["sub/.env"], CancellationToken(), allow_names=["sub/.env"])
        assert Path(path).read_text() == "x"


async def test_with_a_work_dir_files_are_looked_for_and_put_there(make: Make, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("1")
    executor, token = make(work_dir=tmp_path), CancellationToken()
    await executor.upload_files(["here"], token)
    await call(executor, "write sub/there 2")
    assert (tmp_path / "sub/there").read_text() == "2"
    (tmp_path / "sub/there").unlink()
    assert await executor.download_files(["sub/there"], token) == [str(tmp_path / "sub/there")]
    assert (tmp_path / "sub/there").read_text() == "2"


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        (["missing"], FileMissing, "missing does not exist; looked at .*missing"),
        (["folder"], FileTransferError, "folder is not a regular file; upload the files in a folder one by one"),
        (["a", "folder/a"], FileTransferError, "would replace another file 'a' of the same upload"),
        (["large"], FileTransferError, "large has 16000001 bytes; at most 16000000 can be uploaded"),
    ],
)
async def test_what_can_not_be_uploaded(
    names: list[str], error: type[Exception], text: str, fake: FakeCluster, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a", "folder/a"):
        (tmp_path / name).touch()
    with (tmp_path / "large").open("wb") as large:
        large.truncate(16_000_001)
    with pytest.raises(error, match=text) as caught:
        await make(work_dir=tmp_path).upload_files(list(names), CancellationToken())
    assert isinstance(caught.value, ValueError)
    assert fake.executions == []


async def test_a_large_upload_takes_several_executions(fake: FakeCluster, make: Make, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * 6_000_000)
    await make().upload_files([tmp_path / name for name in ("a", "b", "c")], CancellationToken())
    assert [len(one.spec.files or ()) for one in fake.executions] == [2, 1]
    assert [one.spec.payload_ref.parts for one in fake.executions if one.spec.payload_ref] == [16, 8]


async def test_a_file_that_is_not_there_is_named_with_those_that_are(make: Make) -> None:
    executor = make()
    await call(executor, "write there x")
    with pytest.raises(FileNotFoundError, match=r"not in the workspace: gone; there are: there$"):
        await executor.download_files(["there", "gone"], CancellationToken())


async def test_the_path_that_code_prints_is_the_same_file(make: Make, tmp_path: Path) -> None:
    executor = make(work_dir=tmp_path)
    await call(executor, "write sub/.env 1")
    paths = ["/workspace/sub/.env", Path("/workspace/sub/.env"), "sub/.env"]
    saved = await executor.download_files(paths, CancellationToken(), allow_names=["/workspace/sub/.env"])
    assert saved == [str(tmp_path / "sub/.env")] * 3
    for outside in ("/etc/passwd", "../a", "/workspace/../a", "/workspace"):
        words = f"^'{outside}' is outside the workspace|^'({outside}|{outside[11:]})' has the part"
        with pytest.raises(FileTransferError, match=words):
            await executor.download_files([outside], CancellationToken())


async def test_a_cancelled_transfer_is_an_error(fake: FakeCluster, make: Make) -> None:
    executor, token = make(), CancellationToken()
    hanging = CancellationToken()
    running = asyncio.create_task(call(executor, "hang", token=hanging))
    await until(lambda: fake.executions)
    token.cancel()
    with pytest.raises(FileTransferError, match="was cancelled"):
        await executor.get_file_list(token)
    hanging.cancel()
    await running


async def test_what_does_not_fit_is_named_and_not_copied(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_client.autogen.files.MAX_FETCH_BYTES", 10)
    monkeypatch.setattr("executor_client.workspace.transfers.MAX_FETCH_BYTES", 10)
    result = await call(make(work_dir=tmp_path), "write small 123", "write large 12345678901")
    assert {one.path: one.fetched for one in result.artifacts} == {"small": True, "large": False}
    assert not (tmp_path / "large").exists()
    assert (
        "(at most 10 bytes a call, and no names that programs act on unasked, such as hidden ones): large (11"
        in caplog.text
    )


@pytest.mark.parametrize("session", ["per-executor", "per-call"])
async def test_files_leave_work_dir_by_no_link(
    session: Any, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (work / "link").symlink_to(outside)
    (work / "link/control").write_text("through")
    assert (outside / "control").exists()
    (work / "victim").symlink_to(outside / "control")
    result = await call(make(work_dir=work, session=session), "write link/x 1", "write victim 2")
    assert {one.path: one.fetched for one in result.artifacts} == {"link/x": False, "victim": True}
    assert [one.name for one in outside.iterdir()] == ["control"]
    assert (outside / "control").read_text() == "through"
    assert (work / "victim").read_text() == "2"
    assert "'link/x' leads out of" in caplog.text


# --- functions ---


def helper() -> int:
    """Help."""
    return 1


async def test_functions_are_checked_once_a_session(fake: FakeCluster, make: Make) -> None:
    fake._run = lambda block: FakeOutcome(stdout=",".join(block.files))
    executor = make(functions=[helper], functions_module="tools", idle_timeout=10)
    for _ in range(2):
        assert "tools.py" in (await call(executor, "x")).output
    assert [bool(one.spec.files) for one in fake.executions] == [True, False, False]
    fake.advance(11)
    assert "tools.py" in (await call(executor, "x")).output
    assert [bool(one.spec.files) for one in fake.executions if one.status.reason != "SessionEnded"][3:] == [True, False]


@pytest.mark.parametrize("session", ["per-executor", "per-call"])
async def test_functions_that_do_not_load_are_an_error(session: Any, fake: FakeCluster, make: Make) -> None:
    fake._run = lambda block: FakeOutcome(stderr="no such thing\n", exit_code=1)
    with pytest.raises(ValueError, match="Functions failed to load: no such thing"):
        await call(make(functions=[helper], session=session), "x")


# --- the end of an executor ---


@pytest.fixture
def farewells(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(session_finalizer, "_end", lambda name, cluster: said.append(f"{cluster.namespace}/{name}"))
    return said


async def test_an_executor_that_is_collected_ends_its_session(fake: FakeCluster, farewells: list[str]) -> None:
    client = fake.client()
    client.cluster = ClusterRef("here")  # type: ignore[misc]
    executor = KubernetesCodeExecutor(client=client)
    await call(executor, "x")
    del executor
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "codeexec-session-finalizer":
            thread.join()
    assert farewells == [f"here/{fake.sessions[0].metadata.name}"]


@pytest.mark.parametrize("gives_up", ["call", "stop"])
async def test_a_session_that_comes_after_the_others_have_given_it_up_is_ended(
    fake: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch, gives_up: str
) -> None:
    monkeypatch.setattr(shared_session, "_CREATION_SECONDS", 0.01)
    create, asked, goes_on = FakeTransport.create_session, asyncio.Event(), asyncio.Event()

    async def late(self: FakeTransport, *arguments: Any) -> CodeSession:
        if not asked.is_set():
            asked.set()
            await goes_on.wait()
        return await create(self, *arguments)

    monkeypatch.setattr(FakeTransport, "create_session", late)
    executor = make()
    first = asyncio.create_task(call(executor, "write a x"))
    await asked.wait()
    await (call(executor, "write b x") if gives_up == "call" else executor.stop())
    goes_on.set()
    assert (await first).exit_code == 0
    await executor.stop()
    assert [one.spec.ended for one in fake.sessions] == [True] * (2 if gives_up == "call" else 1)


async def test_a_session_that_was_given_up_is_ended_though_its_creator_is_cancelled_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_session, "_CREATION_SECONDS", 0.01)
    said, goes_on, made = list[str](), asyncio.Event(), itertools.count(1)

    class Played:
        def __init__(self) -> None:
            self.name = f"session-{next(made)}"

        async def create(self) -> None:
            said.append(f"create {self.name}")
            if self.name == "session-1":
                await completed(goes_on.wait())

        async def abandon(self) -> None:
            said.append(f"end {self.name}")

    async def ask(opened: Any) -> str:
        return str(opened.session.name)

    shared = SharedSession(Played)  # type: ignore[arg-type]
    first = asyncio.create_task(shared.run(ask))
    await until(lambda: said)
    assert await shared.run(ask) == "session-2", "control: the first was given up"
    for _ in range(2):
        first.cancel()
        await settled()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert said == ["create session-1", "create session-2", "end session-1"]


async def test_an_executor_without_a_session_goes_silently(fake: FakeCluster, farewells: list[str]) -> None:
    client = fake.client()
    client.cluster = ClusterRef("here")  # type: ignore[misc]
    executor = KubernetesCodeExecutor(client=client)
    await call(executor, "x")
    await executor.stop()
    del executor
    gc.collect()
    assert farewells == []


def test_a_farewell_that_fails_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        session_finalizer._end("session-1", ClusterRef(kubeconfig="/no/such/file"))
    assert "could not end session session-1, which ends at its idle timeout" in caplog.text


async def test_a_file_that_a_later_call_has_changed_is_not_fetched_for_an_earlier_one(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    session = await fake.client().open_session(Request(agent="a"))
    first = await session.execute([SourceBlock("python", "write out.txt first")])
    assert await fetch_after(session, first.name, first.artifacts) == {"out.txt": b"first"}, "control"
    second = await session.execute([SourceBlock("python", "write out.txt second")])
    assert await fetch_after(session, first.name, first.artifacts) == {}
    told = f"files of execution {first.name} were not fetched: out.txt: another execution has changed or deleted them"
    assert told in caplog.text
    assert await fetch_after(session, second.name, second.artifacts) == {"out.txt": b"second"}


async def test_files_whose_digest_the_record_lacks_come_into_the_folder(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_client.testing.output._MAX_HASHED_BYTES", 0)
    result = await call(make(work_dir=tmp_path), "write result.csv 1,2")
    assert [(one.path, one.sha256, one.fetched) for one in result.artifacts] == [("result.csv", None, True)]
    assert (tmp_path / "result.csv").read_text() == "1,2"
    assert "not" not in caplog.text


async def test_a_file_without_a_digest_is_not_fetched_if_a_later_call_has_changed_its_size(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_client.testing.output._MAX_HASHED_BYTES", 0)
    session = await fake.client().open_session(Request(agent="a"))
    first = await session.execute([SourceBlock("python", "write out.txt first")])
    assert await fetch_after(session, first.name, first.artifacts) == {"out.txt": b"first"}, "control"
    await session.execute([SourceBlock("python", "write out.txt second")])
    assert await fetch_after(session, first.name, first.artifacts) == {}


@pytest.mark.parametrize("session", ["per-executor", "per-call"])
async def test_files_that_the_record_does_not_name_are_told_of(
    session: Any, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_client.testing.output.MAX_ARTIFACTS", 4)
    result = await call(make(work_dir=tmp_path, session=session), *(f"write {number} x" for number in range(5)))
    assert (tmp_path / "0").exists()
    assert f"files of execution {result.execution} were not copied into work_dir" in caplog.text
    assert "its record names at most 256 files" in caplog.text


async def test_a_cancellation_that_is_refused_is_not_repeated(
    fake: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    async def refuse(_: FakeTransport, name: str) -> None:
        asked.append(name)
        raise NotPermitted("could not cancel: 403")

    monkeypatch.setattr(FakeTransport, "cancel", refuse)
    running = asyncio.create_task(call(make(session="per-call"), "hang"))
    await until(lambda: any(one.status.phase is Phase.RUNNING for one in fake.executions))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(asked) == 1
    assert "which runs until its timeout: could not cancel: 403" in caplog.text


async def test_a_session_whose_creation_is_cancelled_is_ended(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, asked, answered = FakeTransport.create_session, asyncio.Event(), asyncio.Event()

    async def create_slowly(self: FakeTransport, *arguments: Any) -> Any:
        created = await create(self, *arguments)
        asked.set()
        await completed(answered.wait())  # a cancellation does not count any more
        return created

    monkeypatch.setattr(FakeTransport, "create_session", create_slowly)
    client = fake.client()
    opening = asyncio.create_task(client.open_session(Request(agent="a"), outlives_client=True))
    await asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [one.spec.ended for one in fake.sessions] == [False], "control: it is not answered yet"
    closing = asyncio.create_task(client.close())
    answered.set()
    await closing
    assert [one.spec.ended for one in fake.sessions] == [True]


async def test_a_session_that_is_not_ready_in_time_is_ended(fake: FakeCluster) -> None:
    fake.stop_operator()
    with pytest.raises(TimeoutError):
        async with time_limit_passes_once(lambda: fake.sessions):
            await fake.client().open_session(Request(agent="a"), outlives_client=True, wait=True)
    assert [one.spec.ended for one in fake.sessions] == [True]


async def test_who_waits_for_a_session_to_be_ready_hears_that_there_is_no_operator(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WORD_SECONDS", 0.05)
    fake.stop_operator()
    heard: list[WaitNotice] = []
    request = Request(agent="a", on_wait=heard.append)
    opening = asyncio.create_task(fake.client().open_session(request, outlives_client=True, wait=True))
    await until(lambda: heard)
    [session] = fake.sessions
    assert [(one.reason, one.session, one.execution) for one in heard] == [
        ("WaitingForOperator", session.metadata.name, "")
    ]
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_a_callback_that_times_out_is_an_error_of_the_callback(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`requests.post(…, timeout=3)` raises a TimeoutError, for example."""

    def tell(_: object) -> None:
        raise TimeoutError("the chat did not answer")

    monkeypatch.setattr(waiting, "WORD_SECONDS", 0.05)
    fake.stop_operator()
    with pytest.raises(TimeoutError, match="the chat did not answer"):
        await fake.client().open_session(Request(agent="a", on_wait=tell), outlives_client=True, wait=True)


async def test_one_failed_read_of_the_record_costs_no_call_that_moves_to_a_new_session(
    fake: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasts_out_outages(monkeypatch)
    executor = make()
    await call(executor, "x")
    await fake.client().end_session(fake.sessions[0].metadata.name)
    get_session, failures = FakeTransport.get_session, iter([ClusterUnreachable("503")])

    async def fail_once(self: FakeTransport, name: str) -> Any:
        for failure in failures:
            raise failure
        return await get_session(self, name)

    monkeypatch.setattr(FakeTransport, "get_session", fail_once)
    assert "this call ran in a new workspace" in (await call(executor, "x")).output
    assert next(failures, None) is None, "control: the record was asked for, in vain"


async def test_a_session_that_comes_later_than_the_operator_waits_is_used(
    fake: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alive: whoever made another one would leave it behind, and its Lease would keep its pod."""
    create = FakeTransport.create_session

    async def create_late(self: FakeTransport, *arguments: Any) -> Any:
        await until(lambda: fake.executions and fake.executions[0].status.phase.terminal)
        return await create(self, *arguments)

    monkeypatch.setattr(FakeTransport, "create_session", create_late)
    executor = make()
    assert (await call(executor, "x")).output == "x\n"
    assert fake.executions[0].status.reason == Reason.SESSION_NOT_FOUND.value, "control"
    await executor.stop()
    assert [one.spec.ended for one in fake.sessions] == [True]
