"""Two operators at once, and operators whose clock is wrong: no code runs twice, and each record ends."""

import asyncio

import pytest
from component_stage import in_thread

from executor_client import CodeExecError, PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)


@pytest.fixture
def another(stage, request):
    """Starts one more operator, and ends it after the test."""
    made = []

    def start(**options):
        made.append(stage.operator(**options))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.end()


async def outcome(call) -> str:
    try:
        return (await call).output
    except CodeExecError as error:
        return type(error).__name__


async def test_two_operators_run_no_code_twice(operator, another, stage, client, asking, agent):
    """Nothing but the chart keeps them apart today (findings, high availability): some executions may be lost by it."""
    await in_thread(another)
    outcomes = await asyncio.gather(*(outcome(client.execute(HELLO, asking())) for _ in range(20)))
    records = stage.records(agent=agent)
    print(outcomes.count("hello\n"), "of 20 succeeded with two operators")
    assert len(records) == 20
    for record in records:
        assert stage.script.jobs[record["metadata"]["uid"]] <= 1
        assert (record["status"]["phase"] == "Succeeded") <= stage.script.jobs[record["metadata"]["uid"]]
        assert record["status"]["reason"]
    assert stage.script.pods_used_twice == 0


async def test_after_the_other_operator_has_gone_all_succeed(operator, another, stage, client, asking, agent):
    other = await in_thread(another)
    await in_thread(other.kill)
    assert [await outcome(client.execute(HELLO, asking())) for _ in range(3)] == ["hello\n"] * 3


@pytest.mark.parametrize("offset", ["+90s", "-4s"])
async def test_an_operator_whose_clock_is_wrong_runs_code(operator, another, stage, client, asking, agent, offset):
    await in_thread(operator.stop)
    await in_thread(lambda: another(clock=offset))
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    stage.ran_once(stage.record(agent))
