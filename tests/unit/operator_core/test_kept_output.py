"""An end goes on record when all of its output is kept, and is decided on as what it is: in parts, or not."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from factories import UID, an_execution, block_end, numbered, output, the_end
from played_context import a_context, a_register
from polling import until

from codeexec_api import CodeExecution, CodeExecutionStatus, Phase
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.core.output_place import CONFIG_MAPS


class Ended:
    """An execution whose code has printed this much and has ended. `steps` is what is written, and what of it is."""

    def __init__(self, characters: int) -> None:
        self.steps: list[str] = []
        self.may_store = asyncio.Event()
        outputs = SimpleNamespace(place=CONFIG_MAPS, create_output=self._create_output)
        context = a_context(SimpleNamespace(write_status=self._write_status), outputs=outputs)
        self.worker = ExecutionWorker(context, an_execution(phase=Phase.RUNNING), a_register(), lambda _: None)
        self.worker.task.cancel()  # it is told what to do
        self.code = self.worker._code
        text = "x" * characters
        for frame in numbered(output(text), block_end(), the_end(text)):
            self.code.transcript.take(frame, UID)

    async def _create_output(self, *_: object) -> None:
        self.steps.append("part")
        await self.may_store.wait()
        self.steps.append("stored")

    async def _write_status(self, before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        self.steps.append("status")
        return before.model_copy(update={"status": status})


@pytest.mark.parametrize(("characters", "in_parts"), [(300_000, True), (200_000, False)])
async def test_the_first_decision_about_an_end_knows_where_its_output_is(characters: int, in_parts: bool) -> None:
    """To look at large output as if it could stand in the record takes the operator's time, for nothing."""
    plan: Any = Ended(characters).worker._decide()
    assert plan.status.phase is Phase.SUCCEEDED
    assert (plan.status.stdout.referenced, len(plan.status.output_refs)) == (in_parts, int(in_parts))


async def test_the_end_is_recorded_after_the_part() -> None:
    ended = Ended(300_000)
    ended.may_store.set()
    await ended.worker._apply(ended.worker._decide())
    assert ended.steps == ["part", "stored", "status"]


async def test_the_end_waits_for_a_part_that_somebody_else_stores() -> None:
    ended = Ended(300_000)
    plan = ended.worker._decide()
    storing = asyncio.create_task(ended.code.store_parts())
    await until(lambda: ended.steps)
    recording = asyncio.create_task(ended.worker._apply(plan))
    for _ in range(20):
        await asyncio.sleep(0)
    assert ended.steps == ["part"]
    ended.may_store.set()
    await asyncio.gather(storing, recording)
    assert ended.steps == ["part", "stored", "status"]


async def test_the_end_of_little_output_is_recorded_at_once() -> None:
    ended = Ended(1000)
    plan = ended.worker._decide()
    assert ended.code.kept
    await ended.worker._apply(plan)
    assert ended.steps == ["status"]
