"""`session.files`, and the block that deletes a file."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from polling import clock_jumps_once, settled, until

import codeexec
from codeexec._files import Files
from codeexec.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome
from codeexec_api import ExecutionPolicySpec, Phase
from executor_client.client.request import Request
from executor_client.client.session_handle import SessionHandle
from executor_client.model.blocks import removal, removed_by
from executor_client.model.results import ExecutionResult


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    async with codeexec.Client(agent="a", backend=FakeCluster().client()).session() as session:
        yield session.files


async def test_what_is_written_can_be_read(files: Files) -> None:
    await files.write("a.txt", "ü")
    await files.write("b/c.bin", b"\x00")
    assert await files.read("a.txt") == "ü".encode()
    assert await files.read_text("a.txt") == "ü"
    assert await files.read_many(["b/c.bin", "a.txt"]) == {"b/c.bin": b"\x00", "a.txt": "ü".encode()}
    assert [(one.path, one.size_bytes) for one in await files.list()] == [("a.txt", 2), ("b/c.bin", 1)]
    assert (await files.stat("b/c.bin")).size_bytes == 1
    assert await files.exists("a.txt")


async def test_the_path_that_code_prints_is_the_same_file(files: Files) -> None:
    await files.write("/workspace/a.txt", "a")
    assert await files.read_many(["/workspace/a.txt", "a.txt"]) == {"/workspace/a.txt": b"a", "a.txt": b"a"}
    assert await files.exists("a.txt")


async def test_a_question_moves_no_content() -> None:
    fake = FakeCluster()
    async with codeexec.Client(agent="a", backend=fake.client()).session() as session:
        files = session.files
        await files.write_many({"a": bytes(10_000_000), "b": ""})
        assert (await files.stat("a")).sha256 == (await files.stat("/workspace/a")).sha256 is not None
        assert (await files.exists("b"), await files.exists("c")) == (True, False)
        assert [one.spec.artifacts.fetch for one in fake.executions] == [()] * 5
        for start in range(0, 300, 50):
            await files.write_many({f"d/{n:03}": "" for n in range(start, start + 50)})
        before = len(fake.executions)
        assert (await files.stat("d/299")).size_bytes == 0, "not among the 256 that a list has"
        assert not await files.exists("d/300")
        assert [one.spec.artifacts.fetch for one in fake.executions[before:]] == [(), ("d/299",), (), ("d/300",)]
        await files.write_many({f"c{n}": bytes(15_000_000) for n in range(6)})
        assert (await files.stat("c5")).sha256, "not among the 64 MiB that a list has the digests of"


async def test_a_name_that_looks_like_a_pattern_is_that_of_one_file(files: Files) -> None:
    await files.write_many({"data[1].csv": "mine", "data1.csv": "other"})
    assert await files.read("data[1].csv") == b"mine"
    await files.write("data1.csv", bytes(15_000_000))
    await files.write_many({"x": bytes(2_000_000), "data[1].csv": "mine"})
    assert await files.read_many(["data[1].csv", "x"]) == {"data[1].csv": b"mine", "x": bytes(2_000_000)}


async def test_a_file_is_removed(files: Files) -> None:
    await files.write_many({"a b's.txt": "", "c": ""})
    await files.remove("a b's.txt")
    assert [one.path for one in await files.list()] == ["c"]


async def test_a_file_that_is_not_there(files: Files) -> None:
    assert not await files.exists("gone")
    for call in (files.read("gone"), files.stat("gone"), files.remove("gone")):
        with pytest.raises(codeexec.FileMissing, match=r"not in the workspace of session session-.*: gone") as raised:
            await call
        assert isinstance(raised.value, FileNotFoundError)


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "", "/workspace/../a"])
async def test_a_path_outside_is_refused(files: Files, path: str) -> None:
    for call in (files.read(path), files.write(path, ""), files.exists(path), files.remove(path)):
        with pytest.raises(codeexec.FileTransferError):
            await call


async def test_limits_are_named(files: Files) -> None:
    with pytest.raises(codeexec.FileTransferError, match="'a' has 16000001 bytes; at most 16000000 can be written"):
        await files.write("a", bytes(16_000_001))
    await files.write_many({"a": bytes(9_000_000), "b": bytes(9_000_000)})  # in two operations
    with pytest.raises(codeexec.FileTransferError, match=r"at most 16777216 bytes at a time, .*: b \(9000000 bytes\)"):
        await files.read_many(["a", "b"])


class Refusing(SessionHandle):
    """A session whose shell can't delete what it can see."""

    def __init__(self, result: ExecutionResult) -> None:
        super().__init__("session-1", Request(agent="a"), self)
        self._result = result

    async def create(self) -> None: ...

    async def end(self) -> None: ...

    async def execute(self, blocks: Any, *_: Any, **__: Any) -> ExecutionResult:
        return self._result if blocks else replace(self._result, phase=Phase.SUCCEEDED)


async def test_a_removal_needs_no_approval_for_the_time_that_code_may_take() -> None:
    policy = {"images": [FAKE_IMAGE], "maxTimeoutSeconds": 10, "withApproval": {"maxTimeoutSeconds": 60}}
    fake = FakeCluster(policy=ExecutionPolicySpec.model_validate(policy))
    never = codeexec.ApprovalWait(mode="return")
    client = codeexec.Client(agent="a", backend=fake.client(), timeout=60, approval=never)
    async with client.session() as session:
        assert (await session.run("1")).phase is Phase.AWAITING_APPROVAL, "control"
        await session.files.write("a", "")
        await session.files.remove("a")
        assert not await session.files.exists("a")


async def test_a_file_that_can_not_be_removed_says_why() -> None:
    fake = FakeCluster(run=lambda block: FakeOutcome(stderr="rm: cannot remove 'a': Permission denied\n", exit_code=1))
    async with codeexec.Client(agent="a", backend=fake.client()).session() as session:
        result = await session.run("x", files={"a": ""}, fetch=["a"])
    with pytest.raises(codeexec.FileTransferError, match="'a' can't be deleted: rm: cannot remove 'a': Permission"):
        await Files(Refusing(result)).remove("a")


@pytest.mark.parametrize("name", ["a", "a b", "-rf", "it's", "$(touch x)", "ü;rm"])
def test_the_block_deletes_this_file_and_itself(tmp_path: Path, name: str) -> None:
    block = removal(name)
    (tmp_path / name).touch()
    (tmp_path / "other").touch()
    (tmp_path / block.file).write_bytes(block.content)
    subprocess.run(["sh", block.file], cwd=tmp_path, check=True)
    assert [one.name for one in tmp_path.iterdir()] == ["other"]
    assert removed_by("sh", block.content.decode()) == name
    assert subprocess.run(["sh", "-c", block.content], cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize(
    "code",
    ["rm -- a", "rm -- a b; code=$?; rm -f -- tmp_code_remove.sh; exit $code", "echo 'tmp_code_remove.sh", "", "ls"],
)
def test_another_block_is_none(code: str) -> None:
    assert removed_by("sh", code) is None
    assert removed_by("python", removal("a").content.decode()) is None


async def test_a_question_that_was_cancelled_is_not_answered_with_no() -> None:
    fake = FakeCluster(run=lambda block: FakeOutcome(never_ends=block.code == "hang"))
    async with codeexec.Client(agent="a", backend=fake.client()) as client, client.session() as session:
        await session.files.write("a", "1")
        running = asyncio.create_task(session.run("hang"))
        await until(lambda: any(one.status.phase is Phase.RUNNING for one in fake.executions))
        asking = asyncio.create_task(session.files.exists("a"))
        await until(lambda: len(fake.executions) == 3)
        await client.executions.cancel(fake.executions[-1].metadata.name)
        with pytest.raises(codeexec.FileTransferError, match="cancelled"):
            await asking
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await session.files.exists("a")


def signs(block: FakeBlock) -> FakeOutcome:
    """Leave a display and a file with the code as content."""
    block.files["output-1-0.txt"] = block.files["out.txt"] = block.code.encode()
    return FakeOutcome(stdout=block.code, takes=0.05)


async def test_a_display_of_a_later_call_is_not_taken_for_that_of_an_earlier_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = FakeCluster(run=signs).client()
    async with codeexec.Client(agent="a", backend=backend) as client, client.session() as session:
        results = await asyncio.gather(session.run("first"), session.run("second"))
    for code, result in zip(("first", "second"), results, strict=True):
        assert [one.data for one in result.displays] in ([code.encode()], [])
    assert results[1].displays
    assert "output-1-0.txt: another execution has changed or deleted them" in caplog.text


async def test_a_display_comes_however_long_another_call_of_the_session_takes() -> None:
    """The limit of the start is one for code: the code of this call has run."""
    fake = FakeCluster(run=lambda block: FakeOutcome(never_ends=True) if block.code == "hang" else signs(block))
    client = codeexec.Client(agent="a", backend=fake.client(), start_timeout=30)
    async with client, client.session() as session:
        first, other = asyncio.create_task(session.run("first")), asyncio.create_task(session.run("hang"))
        clock_jumps_once(lambda: len(fake.executions) == 3, 31)
        await until(lambda: len(fake.executions) == 3)
        await settled()
        await client.executions.cancel(fake.executions[1].metadata.name)
        assert [one.data for one in (await first).displays] == [b"first"]
        await other
