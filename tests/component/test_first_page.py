"""`codeexec` against a real API server: it waits, gives up, cancels and lists as it says."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from cluster_tools import SANDBOX
from component_stage import LIMITS

import codeexec
from codeexec import sync


@pytest.fixture
async def client(stage, agent) -> AsyncIterator[codeexec.Client]:
    options = {"namespace": SANDBOX, "kubeconfig": stage.agent_kubeconfig(SANDBOX)}
    async with codeexec.Client(agent=agent, limits=codeexec.Limits(**LIMITS), timeout=20, **options) as client:
        yield client


async def test_a_session_runs_and_ends(operator, stage, client, agent):
    assert (await client.run('print("hello")')).text == "hello"
    async with client.session() as session:
        assert (await session.run('print("again")')).raise_for_error().text == "again"
        assert (await session.run("exit(3)")).error == codeexec.CodeError(
            "NonZeroExit", "the last block ended with exit code 3"
        )
        assert (await client.sessions.get(session.name)).spec.stateful
    records = {one.metadata.name: one async for one in client.executions.list() if one.spec.source.agent == agent}
    assert len(records) == 3
    assert {one.spec.source.executor for one in records.values()} == {"codeexec"}
    assert (await client.sessions.get(session.name)).spec.ended


async def test_who_waits_too_long_for_a_turn_hears_why_and_is_cancelled(operator, stage, client, agent):
    heard: list[codeexec.WaitNotice] = []
    listening = codeexec.Client(agent=agent, backend=client._backend, timeout=20, on_wait=heard.append)
    async with client.session(stateful=False) as session:
        first = asyncio.create_task(session.run(f'wait("{agent}")', timeout=600))
        await stage.script.reached(agent, first)
        async with await listening.sessions.attach(session.name) as same:
            with pytest.raises(
                codeexec.Timeout, match=r"did not start within 30 s \(WaitingForSession\): position 2 of 2"
            ):
                await same.run('print("never")', start_timeout=30)
        stage.script.open(agent)
        assert (await first).exit_code == 0
    reasons = [one.reason for one in heard]
    assert [one for one in reasons if one != "WaitingForOperator"] == ["WaitingForSession"]
    given_up = await client.executions.result(heard[0].execution)
    assert given_up.error
    assert (given_up.error.name, given_up.phase) == ("CancelRequested", codeexec.Phase.CANCELLED)
    assert not stage.script.jobs[(await client.executions.get(given_up.execution)).metadata.uid]


async def test_a_call_that_is_cancelled_stops_its_code(operator, stage, client, agent):
    call = asyncio.create_task(client.run(f'wait("{agent}")'))
    await stage.script.reached(agent, call)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    [record] = [one async for one in client.executions.list() if one.spec.source.agent == agent]
    assert record.spec.cancelled
    assert (await client.executions.result(record.metadata.name)).phase is codeexec.Phase.CANCELLED


def test_without_async_from_two_threads(operator, stage, agent):
    options = {"namespace": SANDBOX, "kubeconfig": stage.agent_kubeconfig(SANDBOX), "timeout": 20}
    found: list[str] = []
    with sync.Client(agent=agent, limits=codeexec.Limits(**LIMITS), **options) as client:
        with client.session() as session:
            threads = [
                threading.Thread(target=lambda word=word: found.append(session.run(f'print("{word}")').text))
                for word in ("one", "two")
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(found) == ["one", "two"]
        assert len([one for one in client.executions.list() if one.spec.source.agent == agent]) == 2
