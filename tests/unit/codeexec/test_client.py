"""The client: time limits, cancellation, waiting, and what is sent."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from polling import clock_jumps_once, time_limit_passes_once, until

import codeexec
from codeexec import sync
from codeexec.testing import FakeBlock, FakeCluster, FakeOutcome
from codeexec_api import ExecutionPolicySpec, Limits
from executor_client import ClusterRef, CodeExecutionClient, KubernetesCodeExecutor, LocalSandboxExecutor
from executor_client.testing import FAKE_IMAGE


@pytest.fixture
def fake() -> FakeCluster:
    def run(block: FakeBlock) -> FakeOutcome:
        return FakeOutcome(stdout=block.code, never_ends=block.code == "hang")

    return FakeCluster(run=run)


@pytest.fixture
def client(fake: FakeCluster) -> codeexec.Client:
    return codeexec.Client(agent="analyst", backend=fake.client(), timeout=7)


async def test_what_a_call_asks_for_stands_on_record(fake: FakeCluster, client: codeexec.Client) -> None:
    await client.run("ls", language="shell")
    await client.run("ls", language="sh", timeout=9, limits=Limits(memory="300Mi"), files={"a": "ü", "b": b""})
    async with client.session(timeout=8) as session:
        await session.run("1")
        await session.run("2", timeout=9)
    specs = [one.spec for one in fake.executions]
    assert [one.timeout_seconds for one in specs] == [7, 9, 8, 9]
    assert [one.limits.memory for one in specs] == ["256Mi", "300Mi", "256Mi", "256Mi"]
    assert [(one.path, one.size_bytes) for one in specs[1].files or ()] == [("a", 2), ("b", 0)]
    assert {(one.source.agent, one.source.executor) for one in specs} == {("analyst", "codeexec")}
    [session_record] = fake.sessions
    assert (session_record.spec.stateful, session_record.spec.source.executor) == (True, "codeexec")


async def test_fetched_files_come_with_the_result() -> None:
    def run(block: FakeBlock) -> FakeOutcome:
        block.files["a/out.csv"] = b"1"
        block.files["b.bin"] = b"2"
        return FakeOutcome()

    client = codeexec.Client(agent="a", backend=FakeCluster(run=run).client())
    assert dict((await client.run("x", fetch=["*.csv"])).files) == {"a/out.csv": b"1"}
    async with client.session(stateful=False) as session:
        result = await session.run("x", fetch=["b.bin"])
    assert dict(result.files) == {"b.bin": b"2"}
    assert [one.path for one in result.artifacts] == ["a/out.csv", "b.bin"]


async def test_the_path_that_code_prints_is_the_same_file() -> None:
    def run(block: FakeBlock) -> FakeOutcome:
        block.files["copy.txt"] = block.files["a.txt"]
        return FakeOutcome()

    given, asked = {"/workspace/a.txt": "a"}, ["/workspace/copy.txt", "/workspace/a.*"]
    async with codeexec.Client(agent="a", backend=FakeCluster(run=run).client()) as client:
        alone = await client.run("x", files=given, fetch=asked)
        async with client.session(stateful=False) as session:
            in_session = await session.run("x", files=given, fetch=asked)
        assert dict(alone.files) == dict(in_session.files) == {"a.txt": b"a", "copy.txt": b"a"}
        assert await client.executions.file(alone.execution, "/workspace/copy.txt") == b"a"


async def test_a_call_that_is_cancelled_stops_its_code(fake: FakeCluster, client: codeexec.Client) -> None:
    call = asyncio.create_task(client.run("hang"))
    await until(lambda: fake.executions)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [(one.status.phase, one.spec.cancelled) for one in fake.executions] == [(codeexec.Phase.CANCELLED, True)]


async def test_a_time_limit_of_the_caller_s_own_does_so_too(fake: FakeCluster, client: codeexec.Client) -> None:
    async with client.session() as session:
        with pytest.raises(TimeoutError):
            async with time_limit_passes_once(lambda: fake.executions):
                await session.run("hang")
        assert (await session.run("next")).text == "next"
    assert fake.executions[0].status.phase is codeexec.Phase.CANCELLED


async def test_code_that_does_not_start_in_time_is_cancelled(fake: FakeCluster, client: codeexec.Client) -> None:
    async with client.session() as session:
        running = asyncio.create_task(session.run("hang", start_timeout=60))  # it starts at once, so it may go on
        await until(lambda: [one.status.phase for one in fake.executions] == [codeexec.Phase.RUNNING])
        clock_jumps_once(lambda: len(fake.executions) == 2, 31)
        with pytest.raises(codeexec.Timeout, match="did not start within 30 s") as raised:
            await session.run("next", start_timeout=30)
        assert not running.done()
        [first, second] = fake.executions
        assert (first.status.phase, second.status.phase) == (codeexec.Phase.RUNNING, codeexec.Phase.CANCELLED)
        assert isinstance(raised.value, TimeoutError)
        await client.executions.cancel(first.metadata.name)
        assert (await running).error


async def test_a_kubeconfig_may_be_a_path(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    for client in (
        codeexec.Client(agent="a", kubeconfig=path),
        codeexec.Client(agent="a", backend=CodeExecutionClient(ClusterRef(kubeconfig=path))),  # type: ignore[arg-type]
    ):
        with pytest.raises(codeexec.ClusterUnreachable, match=f"found no kubeconfig: {path} does not exist"):
            await client.run("1")
    assert ClusterRef(kubeconfig=path) == ClusterRef(kubeconfig=str(path))  # type: ignore[arg-type]


async def test_a_call_can_take_a_limit_back() -> None:
    backend = FakeCluster(run=lambda _: FakeOutcome()).client()
    asked: list[float | None] = []
    execute = backend.execute

    async def noting(blocks: Any, request: Any, **options: Any) -> Any:
        asked.append(request.start_seconds)
        return await execute(blocks, request, **options)

    backend.execute = noting  # type: ignore[method-assign]
    client = codeexec.Client(agent="a", backend=backend, start_timeout=7)
    for given in ({}, {"start_timeout": codeexec.USE_DEFAULT}, {"start_timeout": 8}, {"start_timeout": None}):
        await client.run("x", **given)
        async with client.session(stateful=False, **given) as session:
            await session.run("x")
            await session.run("x", start_timeout=None)
    assert asked == [7, 7, None, 7, 7, None, 8, 8, None, None, None, None]
    assert repr(codeexec.USE_DEFAULT) == "USE_DEFAULT"


async def test_so_is_what_nobody_approves_in_time() -> None:
    policy = {"images": [FAKE_IMAGE], "maxTimeoutSeconds": 10, "withApproval": {"maxTimeoutSeconds": 60}}
    fake = FakeCluster(policy=ExecutionPolicySpec.model_validate(policy))
    client = codeexec.Client(agent="a", backend=fake.client(), start_timeout=30)
    clock_jumps_once(lambda: fake.executions, 31)
    with pytest.raises(codeexec.Timeout):
        await client.run("print(1)", timeout=60)
    assert fake.executions[0].status.phase is codeexec.Phase.CANCELLED


async def test_a_backend_is_closed_by_whoever_made_it(fake: FakeCluster) -> None:
    backend = fake.client()
    async with codeexec.Client(agent="a", backend=backend) as client:
        await client.run("1")
        [transport] = backend._transports.values()
    assert await transport.whoami() == "fake-agent"


async def test_a_session_ends_with_the_block_also_after_an_error(fake: FakeCluster, client: codeexec.Client) -> None:
    with pytest.raises(LookupError):
        async with client.session():
            raise LookupError
    assert [one.status.reason for one in fake.sessions] == ["EndRequested"]


async def test_a_session_that_is_over(client: codeexec.Client) -> None:
    session = client.session()
    await session.start()
    await session.end()
    await session.end()
    with pytest.raises(codeexec.SessionEnded):
        await session.run("print(1)")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"code": "x", "language": "cobol"}, "cobol"),
        ({"code": "x", "files": {"../a": b""}}, r"^'\.\./a' has the part '\.\.'"),
        ({"code": "x", "files": {"a": "", "/workspace/a": ""}}, "'/workspace/a' is in files twice"),
        ({"code": "x", "files": ["a"]}, r"files is \['a'\], but must have the content by path"),
        ({"code": "x", "files": {"a": 1}}, "the content of 'a' is of type int, but must be bytes or a string"),
        ({"code": "x", "fetch": ["a", "../b"]}, r"^'\.\./b' has the part '\.\.'"),
        (
            {"code": "x", "fetch": ["/etc/*"]},
            r"^'/etc/\*' is outside the workspace: give a relative path, or a path that",
        ),
        ({"code": "x", "fetch": [b"a"]}, "the path b'a' is of type bytes"),
        ({"code": "x" * 1_000_001}, "1000001 bytes of code"),
        ({"code": "x", "timeout": 0}, "timeout is 0, but must be whole seconds, 1 to 86400"),
        ({"code": "x", "timeout": 0.5}, r"timeout is 0\.5, but must be whole seconds"),
        ({"code": "x", "start_timeout": 0}, "start_timeout is 0, but must be a number greater than 0, or None"),
    ],
)
async def test_what_can_not_be_run_is_a_value_error(
    client: codeexec.Client, options: dict[str, str], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        await client.run(**options)


@pytest.mark.parametrize("name", ["namespace", "kubeconfig", "context"])
def test_a_cluster_is_not_named_beside_a_backend(fake: FakeCluster, name: str) -> None:
    options: dict[str, Any] = {name: "x"}
    with pytest.raises(ValueError, match=f"^{name} is 'x', but backend says where code runs: give either backend, or"):
        codeexec.Client(agent="a", backend=fake.client(), **options)


MAKE = pytest.mark.parametrize("make", [codeexec.Client, sync.Client, KubernetesCodeExecutor, LocalSandboxExecutor])


@MAKE
@pytest.mark.parametrize(
    ("agent", "found"), [("a\tSucceeded", "U+0009"), ("a\u202eb", "U+202E"), ("a  b", "two blanks")]
)
def test_the_name_of_an_agent_does_not_look_like_other_columns(make: Any, agent: str, found: str) -> None:
    with pytest.raises(ValueError, match=f"^agent is .*, which contains {re.escape(found)}"):
        make(agent=agent)


@MAKE
@pytest.mark.parametrize("agent", ["", "a" * 129, None])
def test_an_agent_has_a_name(make: Any, agent: Any) -> None:
    with pytest.raises(ValueError, match=f"^agent is {agent!r}, but must be a name of 1 to 128 characters"):
        make(agent=agent)


async def test_output_comes_as_it_is_written(client: codeexec.Client) -> None:
    seen: list[str] = []
    await client.run("text", on_output=lambda chunk: seen.append(chunk.text))
    assert "".join(seen) == "text"


def test_importing_it_loads_nothing_that_talks_to_a_cluster() -> None:
    """And making a client does not either; the first call does."""
    unwanted = ["autogen_core", "kubernetes", "aiohttp", "rich", "click", "sandlock", "opentelemetry"]
    code = f"""
import sys, codeexec
first = [name for name in (*{unwanted}, "pydantic") if name in sys.modules]
import codeexec.sync
client = codeexec.Client(agent="a"), codeexec.sync.Client(agent="a").session
print(first, [name for name in {unwanted} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


def test_without_its_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['kubernetes'] = None; import codeexec; codeexec.Client(agent='a').executions"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: codeexec.Client needs the package 'kubernetes', which is not installed: "
        "install codeexec, in a checkout with `pip install .` (docs/install.md)"
    )


def test_it_is_typed() -> None:
    assert (Path(codeexec.__file__).parent / "py.typed").exists()
