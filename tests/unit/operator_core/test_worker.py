"""A worker ends when it is told to, whatever it hears at that moment: else the operator would not stop."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from factories import an_execution

from codeexec_operator.adapters.worker import Worker
from codeexec_operator.core.actions import Plan


class Idle(Worker):
    """Has nothing to do."""

    decided = 0
    ended = False

    def _decide(self) -> Plan:
        self.decided += 1
        return Plan(wake_at=datetime.now(UTC) + timedelta(hours=1))

    async def _apply(self, plan: Plan) -> None:
        pass

    async def _refresh(self) -> None:
        pass

    def _look(self) -> None:
        pass

    async def _end(self) -> None:
        self.ended = True

    def pods(self) -> set[str]:
        return set()

    def lose_pods(self, names: Collection[str]) -> None:
        pass


async def test_a_worker_that_is_woken_and_stopped_at_once_ends() -> None:
    context: Any = SimpleNamespace()
    worker = Idle(context, an_execution().metadata)
    await asyncio.sleep(0.01)
    worker.wake()
    await asyncio.sleep(0.01)
    assert worker.decided == 2, "control: it decides whenever it is woken"
    worker.wake()
    worker.task.cancel()
    await asyncio.wait([worker.task], timeout=1)
    assert (worker.task.done(), worker.decided, worker.ended) == (True, 2, True)
