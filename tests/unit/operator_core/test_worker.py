"""A worker ends when it is told to, whatever it hears at that moment: else the operator would not stop."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from factories import a_session, an_execution
from kubernetes.aio.client.exceptions import ApiException
from played_cluster import PlayedCluster
from played_context import a_context, a_register
from polling import settled, until

from codeexec_api import Phase, SessionPhase
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.pacer import Pacer
from codeexec_operator.adapters.placement import Placement
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.worker import Worker
from codeexec_operator.adapters.worker_index import WorkerIndex
from codeexec_operator.core.actions import Forget, Plan
from codeexec_operator.core.observed import Room

CONTEXT: Any = SimpleNamespace(telemetry=SimpleNamespace(metrics=Metrics("0")), turns=FairSemaphore(1), pacer=Pacer())


class Idle(Worker):
    """Has nothing to do."""

    decided = 0
    ended = False
    version = 0

    def _decide(self) -> Plan:
        self.decided += 1
        return Plan(wake_at=datetime.now(UTC) + timedelta(hours=1))

    async def _apply(self, plan: Plan) -> None:
        pass

    async def _get(self) -> Any:
        return None

    def observe(self, record: Any) -> None:
        pass

    def _look(self) -> None:
        pass

    async def _end(self) -> None:
        self.ended = True

    def pods(self) -> dict[str, int]:
        return {}

    def lose_pods(self, names: Collection[str]) -> None:
        pass


class Broken(Exception):
    """An error that nobody has foreseen."""


def broken(*_: Any) -> None:
    raise Broken


@pytest.mark.parametrize("what", ["abandon_session", "leave"])
async def test_an_execution_whose_end_fails_is_forgotten_and_nobody_waits_for_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a session waits for it for ever, and a second execution of its UID is none."""
    done: list[str] = []
    execution = an_execution(phase=Phase.RUNNING, sessionRef={"name": "work-1"})
    cluster = PlayedCluster(execution, gone=True)
    worker = ExecutionWorker(a_context(cluster), execution, a_register(), lambda _: done.append("forgotten"))
    monkeypatch.setattr(Placement, "leave", lambda _: done.append("left"))
    monkeypatch.setattr(Placement, what, broken)
    worker.connection = SimpleNamespace(close=lambda: done.append("disconnected"))  # type: ignore[assignment]
    worker.deleted = True
    worker.wake()
    with pytest.raises(Broken):
        await worker.task
    assert done == ["left", "forgotten", "disconnected"][what == "leave" :]


async def test_a_session_whose_end_fails_is_forgotten() -> None:
    done: list[str] = []
    rooms = Rooms(lambda _: Room(), lambda _: None)
    session = SessionWorker(
        a_context(SimpleNamespace()),
        a_session(phase=SessionPhase.READY),
        lambda _: done.append("forgotten"),
        rooms,
        lambda *_: None,
    )
    session._pool.end = broken  # type: ignore[method-assign, assignment]
    session.connection = SimpleNamespace(close=lambda: done.append("disconnected"))  # type: ignore[assignment]
    session.deleted = True
    with pytest.raises(Broken):
        await session.task
    assert done == ["forgotten", "disconnected"]


async def test_a_worker_that_is_woken_and_stopped_at_once_ends() -> None:
    worker = Idle(CONTEXT, an_execution().metadata)
    await until(lambda: worker.decided == 1)
    worker.wake()
    await until(lambda: worker.decided == 2)  # control: it decides whenever it is woken
    worker.wake()
    worker.task.cancel()
    await asyncio.wait([worker.task], timeout=60)
    assert (worker.task.done(), worker.decided, worker.ended) == (True, 2, True)


@pytest.mark.parametrize(("fails", "succeeds"), [(6, True), (7, False)])
async def test_a_call_that_nothing_depends_on_raises_nothing(
    fails: int, succeeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codeexec_operator.core.backoff.FIRST_SECONDS", 0)
    worker, answers = Idle(CONTEXT, an_execution().metadata), iter([ApiException(status=500)] * fails)

    async def call() -> None:
        for error in answers:
            raise error

    assert await worker.insist("the pod was not deleted", call) is succeeds
    worker.task.cancel()


class Refused(Idle):
    """The API server asks it to come back in an hour, which counts as a minute."""

    def _decide(self) -> Plan:
        super()._decide()
        error = ApiException(status=429)
        error.headers = {"Retry-After": "3600"}
        raise error


async def test_an_event_does_not_cut_a_pause_short_and_a_deletion_does() -> None:
    worker = Refused(CONTEXT, an_execution().metadata)
    await until(lambda: worker.decided)
    for _ in range(3):
        worker.wake()
        await settled()
    assert worker.decided == 1
    worker.observe_deletion()
    await asyncio.wait([worker.task], timeout=60)
    assert (worker.task.done(), worker.decided, worker.ended) == (True, 1, True)


class Conflicting(Idle):
    """What it wants to write is refused, the first few times."""

    conflicts = 1
    looked = 0

    async def _refresh(self) -> None:
        self.looked += 1

    async def _apply(self, plan: Plan) -> None:
        if self.decided <= self.conflicts:
            raise ApiException(status=409)


async def decided_twice(worker: Conflicting) -> None:
    await until(lambda: worker.decided >= 2)
    await settled()


async def test_a_first_conflict_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codeexec_operator.core.backoff.FIRST_SECONDS", 1000)
    monkeypatch.setattr("codeexec_operator.core.backoff.LONGEST_SECONDS", 1000)
    worker = Conflicting(CONTEXT, an_execution().metadata)
    await decided_twice(worker)
    assert (worker.decided, worker.looked) == (2, 1)
    worker.task.cancel()
    await asyncio.wait([worker.task], timeout=60)


async def test_a_second_conflict_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conflicting, "conflicts", 2)
    monkeypatch.setattr("codeexec_operator.core.backoff.FIRST_SECONDS", 1000)
    monkeypatch.setattr("codeexec_operator.core.backoff.LONGEST_SECONDS", 1000)
    worker = Conflicting(CONTEXT, an_execution().metadata)
    await decided_twice(worker)
    assert (worker.decided, worker.looked) == (2, 1)
    worker.task.cancel()
    await asyncio.wait([worker.task], timeout=60)


async def test_a_worker_that_is_stopped_does_not_wait_for_what_it_does_aside() -> None:
    worker = Idle(CONTEXT, an_execution().metadata)
    worker.run_in_background(asyncio.sleep(3600))
    await settled()
    assert worker.decided == 1, "control: it waits for what comes next"
    worker.task.cancel()
    await asyncio.wait([worker.task], timeout=60)
    assert (worker.task.done(), worker.ended) == (True, True)


async def test_a_worker_that_is_stopped_while_it_ends_says_so_to_others() -> None:
    class Over(Idle):
        def _decide(self) -> Plan:
            return Plan(actions=(Forget(),))

    worker = Over(CONTEXT, an_execution().metadata)
    worker.run_in_background(asyncio.sleep(3600))
    await settled()  # it waits for what it does aside
    assert (worker.task.done(), worker.ended) == (False, False)
    worker.task.cancel()
    await asyncio.wait([worker.task], timeout=60)
    assert (worker.task.done(), worker.ended) == (True, True)


async def test_a_worker_whose_name_has_another_one_by_now_leaves_like_any_other() -> None:
    index = WorkerIndex[Idle]()
    older, newer = (Idle(CONTEXT, an_execution().metadata.model_copy(update={"uid": uid})) for uid in ("a", "b"))
    for worker in (older, newer):
        index.add(worker)
    for worker in (newer, older):
        index.remove(worker)
        worker.task.cancel()
    assert list(index) == index.of(older.meta.namespace) == []


async def test_a_namespace_with_much_to_decide_holds_up_no_other() -> None:
    order: list[str] = []

    class Told(Idle):
        def _look(self) -> None:
            order.append(self.meta.namespace)

    def worker(namespace: str) -> Told:
        return Told(CONTEXT, an_execution().metadata.model_copy(update={"namespace": namespace}))

    workers = [worker("flood") for _ in range(200)] + [worker("quiet")]
    await until(lambda: len(order) == len(workers))
    assert order.index("quiet") <= 2
    for one in workers:
        one.task.cancel()
    await asyncio.wait([one.task for one in workers])
