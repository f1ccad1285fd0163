"""`client.executions`, `client.sessions` and `client.approvals`."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from polling import until

import codeexec
from codeexec.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome
from codeexec_api import ExecutionPolicySpec
from executor_client import ClusterRef, CodeExecutionClient

POLICY = ExecutionPolicySpec.model_validate(
    {"images": [FAKE_IMAGE], "maxTimeoutSeconds": 60, "withApproval": {"maxTimeoutSeconds": 90}}
)


@pytest.fixture
def fake() -> FakeCluster:
    def run(block: FakeBlock) -> FakeOutcome:
        if block.code == "show":
            block.files["output-1-1.png"] = b"png"
        return FakeOutcome(stdout="done\n", exit_code=int(block.code == "fail"), never_ends=block.code == "hang")

    return FakeCluster(run=run, policy=POLICY)


@pytest.fixture
def client(fake: FakeCluster) -> codeexec.Client:
    return codeexec.Client(agent="a", backend=fake.client())


@pytest.mark.parametrize("phase", ["Failed", codeexec.Phase.FAILED])
async def test_a_phase_may_be_its_word_on_a_cluster_too(tmp_path: Path, phase: str) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.query.get("fieldSelector"))
        return web.json_response({"items": [], "metadata": {}})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        cluster = {"name": "one", "cluster": {"server": str(server.make_url("")).rstrip("/")}}
        context = {"name": "one", "context": {"cluster": "one", "user": "one"}}
        config = {"current-context": "one", "clusters": [cluster], "contexts": [context]}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config | {"users": [{"name": "one", "user": {}}]}))
        async with codeexec.Client(agent="a", kubeconfig=str(tmp_path / "kubeconfig")) as client:
            assert [one async for one in client.executions.list(phase=phase)] == []
        async with CodeExecutionClient(ClusterRef(kubeconfig=str(tmp_path / "kubeconfig"))) as low:
            assert await low.list_executions(phase=phase) == []
    assert asked == ["status.phase=Failed"] * 2


async def test_a_word_that_is_no_phase_is_refused(fake: FakeCluster, client: codeexec.Client) -> None:
    told = "phase is 'succeeded', but must be one of Pending, AwaitingApproval, .*, Succeeded, "
    with pytest.raises(ValueError, match=told):
        [one async for one in client.executions.list(phase="succeeded")]
    with pytest.raises(ValueError, match=told):
        await fake.client().list_executions(phase="succeeded")


async def test_executions(client: codeexec.Client) -> None:
    good, bad = await client.run("show"), await client.run("fail")
    names = [one.metadata.name async for one in client.executions.list()]
    assert set(names) == {good.execution, bad.execution}
    failed = [one.metadata.name async for one in client.executions.list(phase=codeexec.Phase.FAILED)]
    assert failed == [bad.execution]
    assert failed == [one.metadata.name async for one in client.executions.list(phase="Failed")]
    record = await client.executions.get(good.execution)
    assert (record.status.phase, record.spec.source.agent) == (codeexec.Phase.SUCCEEDED, "a")
    assert await client.executions.result(good.execution) == good
    assert (await client.executions.result(good.execution)).displays[0].png == b"png"
    assert await client.executions.file(good.execution, "output-1-1.png") == b"png"
    with pytest.raises(codeexec.FileTransferError, match=r"it has fetched: output-1-1\.png"):
        await client.executions.file(good.execution, "b")


async def test_the_result_of_a_call_that_was_approved_in_a_session_names_its_displays(
    fake: FakeCluster, client: codeexec.Client
) -> None:
    human = codeexec.Client(agent="ann", backend=fake.client("ann"))
    later = codeexec.Client(agent="a", backend=fake.client(), approval=codeexec.ApprovalWait(mode="return"))
    async with later.session() as session:
        left = await session.run("show", timeout=90)
        await human.approvals.approve(await human.approvals.get(left.execution))
        records = len(fake.executions)
        result = await client.executions.result(left.execution)
        assert ([one.path for one in result.artifacts], result.displays) == (["output-1-1.png"], ())
        assert len(fake.executions) == records, "nothing was run for it"
        assert await session.files.read("output-1-1.png") == b"png"


async def test_one_that_is_not_there(client: codeexec.Client) -> None:
    for call in (
        client.executions.get("gone"),
        client.executions.cancel("gone"),
        client.sessions.get("gone"),
        client.sessions.attach("gone"),
        client.sessions.end("gone"),
    ):
        with pytest.raises(codeexec.NotFound):
            await call


async def test_output_as_it_comes_and_the_end_that_somebody_else_makes(
    fake: FakeCluster, client: codeexec.Client
) -> None:
    call = asyncio.create_task(client.run("hang"))
    await until(lambda: fake.executions)
    name = fake.executions[0].metadata.name
    async with aclosing(client.executions.output(name)) as chunks:
        assert (await anext(chunks)).text == "done\n"
        await client.executions.cancel(name)
        assert [chunk async for chunk in chunks] == []
    error = (await call).error
    assert error
    assert error.name == "CancelRequested"


async def test_sessions(client: codeexec.Client) -> None:
    async with client.session(limits=codeexec.Limits(memory="300Mi")) as session:
        assert [one.metadata.name async for one in client.sessions.list()] == [session.name]
        async with await client.sessions.attach(session.name) as same:
            await same.files.write("a", "1")
            assert (await same.run("x")).session == session.name
        assert await session.files.read("a") == b"1"
        assert (await client.sessions.get(session.name)).spec.limits.memory == "300Mi"
        await client.sessions.end(session.name)
        with pytest.raises(codeexec.SessionEnded):
            await session.run("x")


async def test_approvals(fake: FakeCluster, client: codeexec.Client) -> None:
    human = codeexec.Client(agent="ann", backend=fake.client("ann"))
    calls = [asyncio.create_task(client.run(code, timeout=90)) for code in ("one", "two")]
    waiting: list[codeexec.CodeExecution] = []
    async with asyncio.timeout(60):
        while len(waiting) < 2:
            await asyncio.sleep(0)
            waiting = [one async for one in human.approvals.list()]
    code = {(await human.approvals.code(one)).blocks[0]: one for one in waiting}
    same = await human.approvals.get(code[b"one"].metadata.name)
    with pytest.raises(codeexec.InvalidExecution, match="nobody approves their own request"):
        await client.approvals.approve(same)
    await human.approvals.approve(same, reason="fine")
    await human.approvals.deny(code[b"two"], reason="no")
    assert (await calls[0]).text == "done"
    with pytest.raises(codeexec.CodeDenied, match="denied by ann: no"):
        (await calls[1]).raise_for_error()
    with pytest.raises(codeexec.NothingToDecide):
        await human.approvals.revoke(await human.approvals.get(same.metadata.name))
