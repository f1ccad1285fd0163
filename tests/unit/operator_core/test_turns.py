"""Whose turn it is in a session: whoever was let in goes on, whoever comes meanwhile."""

import asyncio
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from factories import NOW, PAYLOAD, SESSION_REF, a_runner, a_sandbox, a_session, an_execution, seconds
from played_cluster import PlayedCluster
from played_context import a_context, a_register

from codeexec_api import Limits, Phase, SessionPhase
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.core.observed import Room
from codeexec_operator.core.observed_pod import PodLink, RunnerView
from codeexec_operator.core.placement import Claim


@dataclass(eq=False)
class Execution:
    """Stands in line."""

    claim: Claim
    woken: int = 0

    def wake(self) -> None:
        self.woken += 1

    def starts(self) -> None:
        self.claim = replace(self.claim, started=True)


def created(after: float, *, started: bool = False) -> Execution:
    return Execution(Claim(f"created after {after}", NOW + seconds(after), started, None, Limits()))


@pytest.fixture
async def session() -> SessionWorker:
    """One that is ready, and whose runner is connected. It decides nothing by itself."""
    rooms = Rooms(lambda _: Room(), lambda _: None)
    context = a_context(SimpleNamespace())
    worker = SessionWorker(context, a_session(phase=SessionPhase.READY), lambda _: None, rooms, lambda *_, **__: None)
    worker.task.cancel()
    await asyncio.gather(worker.task, return_exceptions=True)
    worker.sandbox = a_sandbox()
    knows(worker, a_runner())
    return worker


def knows(session: SessionWorker, runner: RunnerView) -> None:
    """What the connection of a session tells of its runner."""
    played: Any = SimpleNamespace(view=runner)
    session.connection = played


def turn(session: SessionWorker, execution: Execution) -> tuple[bool, int]:
    """Whether it is its turn, and how many are before it."""
    view = session.view_for(execution, NOW)
    return view.turn, view.position


@pytest.mark.parametrize("recorded", [False, True], ids=["its start is being written", "it runs"])
async def test_whoever_was_created_earlier_and_comes_back_waits_for_the_one_that_was_let_in(
    session: SessionWorker, recorded: bool
) -> None:
    """As one that was approved meanwhile does. The runner has not told of the job: its report is from before."""
    earlier, later = created(0), created(1)
    session.join(earlier)
    assert turn(session, earlier) == (True, 0), "control"
    session.leave(earlier, ran=False)
    session.join(later)
    assert turn(session, later) == (True, 0)
    session.let_in(later)
    if recorded:
        later.starts()
    session.join(earlier)
    assert turn(session, earlier) == (False, 1)
    assert turn(session, later) == (True, 0)
    session.leave(later, ran=True)
    assert turn(session, earlier) == (True, 0)


async def test_code_is_let_in_before_its_start_is_written(session: SessionWorker) -> None:
    told: list[tuple[bool, int]] = []
    earlier, started = created(-1000), asyncio.Event()
    register = a_register(session=session)
    execution = an_execution(phase=Phase.STARTING, **SESSION_REF)
    worker = ExecutionWorker(a_context(PlayedCluster(execution)), execution, register, lambda _: None)

    async def written(_: Any) -> None:
        session.join(earlier)
        told.append(turn(session, earlier))

    async def start(*_: Any) -> None:
        started.set()

    worker._write_status = written  # type: ignore[method-assign]
    played: Any = SimpleNamespace(view=a_runner(), start=start)
    session.connection = played
    worker._know(payload=PAYLOAD)
    await asyncio.wait_for(started.wait(), 60)
    assert told == [(False, 1)]
    worker.task.cancel()
    await asyncio.gather(worker.task, return_exceptions=True)


async def test_who_only_waits_for_its_code_lets_those_go_first_whose_code_may_be_in_the_runner(
    session: SessionWorker,
) -> None:
    """An operator that has just started hears of executions in any order."""
    waits, started = created(0), created(1, started=True)
    session.join(waits)
    assert turn(session, waits) == (True, 0)
    session.join(started)
    assert (turn(session, waits), turn(session, started)) == ((False, 1), (True, 0))


async def test_what_runs_hears_that_its_connection_has_broken_though_others_wait(session: SessionWorker) -> None:
    earlier, runs = created(0), created(1)
    session.join(runs)
    session.let_in(runs)
    runs.starts()
    session.join(earlier)
    knows(session, RunnerView(link=PodLink.CLOSED, closed_at=NOW))
    before = earlier.woken, runs.woken
    session._wake_claimants(all_of_them=False)
    assert (earlier.woken, runs.woken) == (before[0] + 1, before[1] + 1)
