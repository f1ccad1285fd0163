"""The public fake of the cluster side. That it does as a cluster does is shown by tests/e2e/test_fake_is_honest.py."""

import asyncio
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from fake_cases import CASES, REQUEST, Case, FakeStage, blocks
from polling import until

from codeexec_api import ExecutionPolicySpec, Limits, Phase, PolicyLimits, Reason
from codeexec_api.v1alpha1.bounds import MAX_STORED_BYTES
from executor_client import (
    ClusterUnreachable,
    ExecutionLost,
    ExecutionNotStarted,
    KubernetesCodeExecutor,
    NotInstalled,
    NotPermitted,
)
from executor_client.client import execution, waiting
from executor_client.client.waiting import WaitNotice
from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome


@pytest.mark.usefixtures("reading_takes_its_time")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_case(case: Case):
    await case.play(FakeStage(case.script, case.policy))


def always(**outcome) -> FakeCluster:
    return FakeCluster(run=lambda _: FakeOutcome(**outcome))


async def test_it_serves_the_executor_of_autogen():
    fake = FakeCluster()
    fake.answers({"print(1)": FakeOutcome(stdout="1\n"), "exit 3": FakeOutcome(exit_code=3)})
    async with KubernetesCodeExecutor(client=fake.client(), agent="tester") as executor:
        one = await executor.execute_code_blocks([CodeBlock("print(1)", "Python")], CancellationToken())
        two = await executor.execute_code_blocks([CodeBlock("exit 3", "sh")], CancellationToken())
    assert (one.exit_code, one.output, two.exit_code) == (0, "1\n", 3)
    assert [record.spec.source.agent for record in fake.executions] == ["tester", "tester"]
    assert fake.code(one.execution) == [b"print(1)"]
    ends = [next(end for end in run.status.conditions if end.type == "Succeeded") for run in fake.executions]
    assert [(end.status, end.reason) for end in ends] == [("True", "Completed"), ("False", "NonZeroExit")]
    assert [session.status.reason for session in fake.sessions] == ["EndRequested"]


async def test_no_code_runs(tmp_path):
    trace = tmp_path / "trace"
    fake = always(stdout="done\n")
    result = await fake.client().execute(
        blocks(("python", f"open({str(trace)!r}, 'w')"), ("sh", f"touch {trace}")), REQUEST
    )
    assert result.output == "done\ndone\n"
    assert not trace.exists()


async def test_code_that_nothing_was_said_about_fails():
    result = await FakeCluster().client().execute(blocks(("sh", "ls -l\nls")), REQUEST)
    assert result.exit_code == 1
    assert "FakeCluster has no outcome for this sh block" in result.stderr
    assert "ls -l\n" in result.stderr


async def test_what_the_script_raises_is_raised_where_the_code_was_submitted():
    def run(block: FakeBlock) -> FakeOutcome:
        raise LookupError(block.code)

    fake = FakeCluster(run=run)
    client = fake.client()
    async with await client.open_session(REQUEST) as session:
        with pytest.raises(LookupError, match="one"):
            await session.execute(blocks(("sh", "one")))
        with pytest.raises(LookupError, match="two"):  # the session is free again
            await session.execute(blocks(("sh", "two")))
    assert {record.status.reason for record in fake.executions} == {"RunnerFailed"}


async def test_a_script_sees_the_block_and_its_workspace():
    seen: list[FakeBlock] = []

    def run(block: FakeBlock) -> FakeOutcome:
        seen.append(block)
        assert block.files[block.filename] == block.code.encode()
        del block.files["old"]
        return FakeOutcome()

    client = FakeCluster(run=run).client()
    async with await client.open_session(REQUEST) as session:
        await session.upload({"old": b""})
        await session.execute(blocks(("py", "# filename: a/b.py")))
        assert [one.path for one in await session.list_files()] == ["a/b.py"]
    assert [(one.language, one.filename, one.session) for one in seen] == [("python", "a/b.py", session.name)]


async def test_time_passes_by_outcomes_and_by_hand_only():
    fake = always(takes=1.5)
    before = fake.now
    result = await fake.client().execute(blocks(("sh", "one"), ("sh", "two")), REQUEST)
    assert (fake.now - before).total_seconds() == 3
    assert [block.duration_ms for block in result.blocks] == [1500, 1500]
    fake.advance(60)
    assert (fake.now - before).total_seconds() == 63


async def test_limits_that_pass_take_effect_in_their_order():
    """The code runs into its limit first; only then does the session begin to be idle."""
    fake = always(never_ends=True)
    session = await fake.client().open_session(REQUEST, idle_timeout_seconds=100)
    running = await fake.client().submit(blocks(("sh", "one")), REQUEST, session=session.name)
    before = fake.now
    fake.advance(1000)
    assert (await running.result()).phase is Phase.TIMED_OUT
    [record] = fake.sessions
    assert record.status.reason == "IdleTimeout"
    assert (record.status.ended_at - before).total_seconds() == REQUEST.timeout_seconds + 100


def test_an_outcome_ends_in_one_way():
    with pytest.raises(ValueError, match="one way"):
        FakeOutcome(never_ends=True, out_of_memory=True)


async def test_the_example_of_the_documentation():
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    example: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], example)
    await example["test_the_agent_reads_the_answer"]()


# --- faults ---


async def test_a_cluster_that_fails_and_recovers():
    fake = always(stdout="1\n")
    fake.fail()
    with pytest.raises(ClusterUnreachable, match="was told to fail"):
        await fake.client().check()
    fake.fail(NotPermitted)
    with pytest.raises(NotPermitted):
        await fake.client().execute(blocks(("sh", "one")), REQUEST)
    fake.recover()
    assert (await fake.client().execute(blocks(("sh", "one")), REQUEST)).stdout == "1\n"


async def test_an_open_watch_fails_too():
    fake = always(never_ends=True)
    running = await fake.client().submit(blocks(("sh", "one")), REQUEST)
    waiting = asyncio.create_task(running.result())
    await asyncio.sleep(0)
    fake.fail()
    with pytest.raises(ClusterUnreachable):
        await waiting


async def test_without_an_operator_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr(waiting, "WORD_SECONDS", 0.05)
    monkeypatch.setattr(execution, "OPERATOR_SECONDS", 0.05)
    fake = always()
    fake.stop_operator()
    with pytest.raises(NotInstalled, match="no operator took up"):
        await fake.client().execute(blocks(("sh", "one")), REQUEST)
    [record] = fake.executions
    assert (record.status.phase, record.status.observed_generation) == (Phase.PENDING, 0)


async def test_pods_that_do_not_start():
    fake = always()
    fake.fail_to_start(Reason.IMAGE_PULL_FAILED, "ErrImagePull: no such image")
    with pytest.raises(ExecutionNotStarted, match="ImagePullFailed: ErrImagePull"):
        await fake.client().execute(blocks(("sh", "one")), REQUEST)
    with pytest.raises(ExecutionNotStarted, match="ErrImagePull"):
        await fake.client().open_session(REQUEST, wait=True)


async def test_an_open_network_is_refused_or_recorded():
    strict = always()
    strict.open_network()
    with pytest.raises(ExecutionNotStarted, match="EgressNotEnforced"):
        await strict.client().execute(blocks(("sh", "one")), REQUEST)
    with pytest.raises(ExecutionNotStarted, match="EgressNotEnforced"):
        await strict.client().open_session(REQUEST, wait=True)
    lax = FakeCluster(
        policy=ExecutionPolicySpec(images=(FAKE_IMAGE,), egress_proof="Warn"), run=lambda _: FakeOutcome()
    )
    lax.open_network()
    result = await lax.client().execute(blocks(("sh", "one")), REQUEST)
    assert "warning: the network of the sandbox was not shown to be closed" in result.message
    [record] = lax.executions
    assert (record.status.egress_proof.verdict, "NetworkPolicy" in record.status.layers) == ("Open", False)


async def test_the_fake_has_no_output_store_and_says_so_whatever_its_policy_allows():
    limits = PolicyLimits(output_bytes=MAX_STORED_BYTES)
    fake = FakeCluster(policy=ExecutionPolicySpec(images=(FAKE_IMAGE,), max_limits=limits), run=lambda _: FakeOutcome())
    request = replace(REQUEST, limits=Limits(output_bytes=MAX_STORED_BYTES))
    result = await fake.client().execute(blocks(("sh", "one")), request)
    assert result.phase is Phase.DENIED
    assert "needs an output store" in result.message


async def test_a_block_can_lose_its_pod():
    with pytest.raises(ExecutionLost, match="PodLost"):
        await always(stdout="so far", loses_pod=True).client().execute(blocks(("sh", "one")), REQUEST)


# --- several callers ---


async def test_more_executions_can_wait_in_line_than_python_takes_calls_within_each_other():
    """Each took four calls or more. A script that raises holds up nobody behind it."""
    many = sys.getrecursionlimit() * 2 // 5

    def run(block: FakeBlock) -> FakeOutcome:
        if block.code == "raise":
            raise LookupError
        return FakeOutcome(never_ends=block.code == "first")

    fake = FakeCluster(run=run)
    client = fake.client()
    session = await client.open_session(REQUEST)
    first = await client.submit(blocks(("sh", "first")), REQUEST, session=session.name)
    for code in ("raise", *["next"] * many):
        await client.submit(blocks(("sh", code)), REQUEST, session=session.name)
    with pytest.raises(LookupError):
        await first.cancel()
    assert Counter(one.status.phase for one in fake.executions) == {"Cancelled": 1, "Failed": 1, "Succeeded": many}


@pytest.mark.parametrize("code", [-9, 256, 300, 1.5, True, "1"])
def test_an_exit_code_is_one_that_a_process_can_have(code):
    with pytest.raises(ValueError, match=f"exit_code is {code!r}: pass a whole number from 0 to 255"):
        FakeOutcome(exit_code=code)


async def test_what_is_cancelled_before_its_session_is_there_was_not_refused():
    fake = FakeCluster()
    handle = await fake.client().submit(blocks(("sh", "true")), REQUEST, session="not-there")
    await handle.cancel()
    conditions = {one.type: one.status for one in fake.executions[0].status.conditions}
    assert conditions == {"Finished": "True", "Started": "False", "Succeeded": "False"}


async def test_what_waits_for_its_turn_in_a_session_says_at_which_place():
    heard = list[WaitNotice]()
    fake = FakeCluster(run=lambda block: FakeOutcome(never_ends=block.code == "first"))
    client = fake.client()
    session = await client.open_session(REQUEST)
    first, second, third = [
        await client.submit(
            blocks(("sh", code)), replace(REQUEST, on_wait=heard.append, start_seconds=60), session=session.name
        )
        for code in ("first", "second", "third")
    ]
    waits = asyncio.create_task(third.result())
    await until(lambda: heard)
    await second.cancel()
    await first.cancel()
    assert (await waits).phase == "Succeeded"
    place = f"position 3 of 3 in the queue of session {session.name!r}, which runs one execution at a time"
    assert [(one.execution, one.reason, one.message) for one in heard] == [(third.name, "WaitingForSession", place)]
    queued = [
        [(one.status, one.reason) for one in record.status.conditions if one.type == "Queued"]
        for record in fake.executions
    ]
    assert queued == [[], [("False", "CancelRequested")], [("False", "SandboxReady")]]


def test_threads_with_event_loops_of_their_own():
    fake = FakeCluster(run=lambda block: FakeOutcome(stdout=block.code))
    client = fake.client()
    outputs: dict[int, list[str]] = {}

    def work(number: int) -> None:
        async def calls() -> list[str]:
            async with asyncio.TaskGroup() as group:
                codes = [f"echo {number} {turn}" for turn in range(5)]
                tasks = [group.create_task(client.execute(blocks(("sh", code)), REQUEST)) for code in codes]
            return [task.result().stdout for task in tasks]

        outputs[number] = asyncio.run(calls())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {number: [f"echo {number} {turn}" for turn in range(5)] for number in range(4)}
    assert len(fake.executions) == 20


def test_what_waits_in_one_thread_is_let_in_by_another():
    fake = FakeCluster(run=lambda block: FakeOutcome(never_ends=block.code == "endless"))
    client = fake.client()
    queued = threading.Event()

    async def first() -> str:
        session = await client.open_session(REQUEST)
        await client.submit(blocks(("sh", "endless")), REQUEST, session=session.name)
        return session.name

    async def second() -> Phase:
        waiting = await client.submit(blocks(("sh", "true")), REQUEST, session=session)
        queued.set()
        return (await waiting.result()).phase

    session = asyncio.run(first())
    phases: list[Phase] = []
    thread = threading.Thread(target=lambda: phases.append(asyncio.run(second())))
    thread.start()
    assert queued.wait(60)
    asyncio.run(client.cancel(fake.executions[0].metadata.name))
    thread.join(60)
    assert phases == [Phase.SUCCEEDED]
