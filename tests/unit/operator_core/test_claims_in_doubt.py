"""A pod of a pool was claimed, and no answer says whether that is on record: the record says which pod it is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    a_policy,
    a_raw_pod,
    a_sandbox,
    a_secret,
    a_session,
    a_status,
    an_execution,
)
from kubernetes.aio.client.exceptions import ApiException
from plans import proof_of
from played_context import a_context, a_register
from polling import settled, until

from codeexec_api import CodeExecution, Phase, SandboxPool, SessionPhase, Verdict
from codeexec_api.names import pod_name
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.pool_pods import ClaimedPod
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.core.observed import PoolView, Room
from codeexec_operator.core.observed_pod import PodLink, RunnerView
from codeexec_operator.core.observed_pool import ObservedPool
from codeexec_operator.core.output_place import CONFIG_MAPS
from codeexec_operator.core.pod_template import Template, template_of

Worker = ExecutionWorker | SessionWorker
BEGUN = (Phase.RUNNING, SessionPhase.READY)


class Api:
    """Has one record, and no answer comes to the write that its code runs, or that the session is ready."""

    def __init__(self, record: Any, *, late: bool, answers: bool = False) -> None:
        self.record, self.late, self.unanswered = record, late, 0
        self.answers = answers
        self.pool = Pool()
        self.deleted: list[str] = []
        self._on_its_way: Any = None

    async def write_status(self, seen: Any, status: Any) -> Any:
        if status.phase in BEGUN and not self.unanswered and not self.answers:
            self.unanswered += 1
            self.pool.cut()
            self._on_its_way = status
            if not self.late:
                self.arrive()
            raise TimeoutError
        self.arrive()
        if seen.metadata.resource_version != self.record.metadata.resource_version:
            raise ApiException(status=409)
        return self._store(status)

    def arrive(self) -> None:
        """What was on its way is stored."""
        if self._on_its_way:
            self._store(self._on_its_way)
            self._on_its_way = None

    def _store(self, status: Any) -> Any:
        version = str(int(self.record.metadata.resource_version) + 1)
        meta = self.record.metadata.model_copy(update={"resource_version": version})
        self.record = self.record.model_copy(update={"metadata": meta, "status": status})
        return self.record

    async def get_execution(self, *_: str) -> Any:
        return self.record

    async def get_session(self, *_: str) -> Any:
        return self.record

    async def get_payload(self, *_: Any) -> Any:
        return (a_secret(),)

    async def find_pod(self, *_: str) -> None:
        return None

    async def patch_pod(self, *_: Any) -> None:
        pass

    async def delete_pod(self, _: str, name: str) -> bool:
        self.deleted.append(name)
        return True

    @asynccontextmanager
    async def attach(self, *_: str) -> AsyncIterator[Any]:
        raise ConnectionError
        yield


class Pool:
    """Gives one pod after the other to the one who asks."""

    def __init__(self) -> None:
        self.meta: Any = SimpleNamespace(name="default")
        self.keeps_pods, self.given, self.empty = False, 0, False
        self.queue: list[Any] = []
        self.discarded: list[str] = []
        self.greetings: list[Any] = []
        self.claims: Any = SimpleNamespace(discard=self.discarded.append, adopted=lambda _: None)
        spec = {"replicas": 2}
        meta = {"name": "default", "namespace": "box", "uid": "pool", "resourceVersion": "7", "generation": 1}
        pool = SandboxPool.model_validate({"metadata": meta, "spec": spec})
        made = template_of(ObservedPool(pool, policy=a_policy(), cluster_view=CLUSTER_VIEW, members={}))
        assert isinstance(made, Template)
        self._template = made

    def join(self, claimant: Any) -> None:
        if self.empty:
            self.queue.append(claimant)
            return
        self.given += 1
        sandbox = a_sandbox()
        self.connection: Any = SimpleNamespace(view=sandbox.runner, close=lambda: None, greet=self._greet)
        name = f"pod-{self.given}"
        claimant.receive(ClaimedPod(name, sandbox, self.connection, proof_of(sandbox), self._template, NOW))

    async def _greet(self, greeting: Any) -> None:
        self.greetings.append(greeting)

    def leave(self, claimant: Any, _: Any) -> None:
        self.queue = [one for one in self.queue if one is not claimant]

    def serves(self, *_: Any, **__: Any) -> bool:
        return True

    def view_for(self, *_: Any) -> PoolView:
        return PoolView("default", NOW)

    def cut(self) -> None:
        """The connection to the pod that was given last has broken."""
        self.connection.view = RunnerView(link=PodLink.CLOSED, closed_at=datetime.now(UTC))


@asynccontextmanager
async def asked(
    kind: str, *, late: bool = False, answers: bool = False, record: Any = None
) -> AsyncIterator[tuple[Api, Worker]]:
    record = record or (an_execution() if kind == "execution" else a_session(stateful=True))
    api = Api(record, late=late, answers=answers)
    payloads = SimpleNamespace(seen=lambda *_: True, take=lambda *_: a_secret())
    context = a_context(api, payloads=payloads, outputs=SimpleNamespace(place=CONFIG_MAPS, files=None))
    worker: Worker
    if kind == "execution":
        worker = ExecutionWorker(context, record, a_register(pool=api.pool), lambda _: None)  # type: ignore[arg-type]
    else:
        rooms = Rooms(lambda _: Room(), lambda _: None)
        find: Any = lambda *_, **__: api.pool  # noqa: E731
        worker = SessionWorker(context, record, lambda _: None, rooms, find)  # type: ignore[arg-type]
    try:
        yield api, worker
    finally:
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)


@pytest.mark.parametrize("kind", ["execution", "session"])
async def test_a_pod_that_is_on_record_is_not_given_back_though_its_connection_has_broken(kind: str) -> None:
    async with asked(kind, late=False) as (api, worker):
        await until(lambda: api.unanswered and worker.phase in BEGUN)
        assert (worker.pod_name, api.pool.discarded, api.pool.given) == ("pod-1", [], 1)


@pytest.mark.parametrize("kind", ["execution", "session"])
async def test_what_comes_late_counts_and_another_pod_that_was_claimed_since_is_given_back(kind: str) -> None:
    async with asked(kind, late=True) as (api, worker):
        await until(lambda: worker.phase in BEGUN)
        assert api.record.status.pod_name == "pod-1", "control"
        assert (worker.pod_name, api.pool.discarded, api.pool.given) == ("pod-1", ["pod-1", "pod-2"], 2)


@pytest.mark.parametrize("answers", [True, False], ids=["answered", "lost"])
async def test_the_kernel_of_a_session_is_started_once_the_record_says_that_it_is_ready(answers: bool) -> None:
    async with asked("session", late=False, answers=answers) as (api, worker):
        await until(lambda: worker.phase in BEGUN)
        await until(lambda: api.pool.greetings, seconds=10)
        await settled()
        assert [one["kernel"] for one in api.pool.greetings] == [True]


def own_pod(record: Any) -> str:
    return pod_name(record.metadata.name, record.metadata.uid)


@pytest.mark.parametrize("told", ["before", "after"])
@pytest.mark.parametrize("kind", ["execution", "session"])
async def test_a_pod_that_the_leader_before_has_made_goes_if_the_record_gets_another_one(kind: str, told: str) -> None:
    """That leader made it, and did not get to the record. What becomes of such a pod says nothing about the record."""
    async with asked(kind, answers=True) as (api, worker):
        if told == "before":
            worker.observe_pod(a_raw_pod(api.record), deleted=False)
        await until(lambda: worker.phase in BEGUN)
        sandbox = worker.sandbox
        if told == "after":
            worker.observe_pod(a_raw_pod(api.record), deleted=False)
        await until(lambda: api.deleted, seconds=10)
        worker.observe_pod(a_raw_pod(api.record, version=6, deletionTimestamp=NOW.isoformat()), deleted=False)
        worker.observe_pod(a_raw_pod(api.record, version=7), deleted=True)
        await settled()
        assert api.deleted == [own_pod(api.record)]
        assert (worker.pod_name, worker.sandbox.pod, worker.sandbox.gone) == ("pod-1", sandbox.pod, False)
        assert worker.phase in BEGUN


@pytest.mark.parametrize("kind", ["execution", "session"])
async def test_a_pod_of_the_leader_before_stays_until_the_record_names_another_one(kind: str) -> None:
    """Its write that the pod is there may come late. Before, the pod was deleted, and the record ended as Lost."""
    async with asked(kind, answers=True) as (api, worker):
        write_status = api.write_status
        own = own_pod(api.record)
        late = a_status(Phase.STARTING)
        if kind == "session":
            late = a_session(phase=SessionPhase.STARTING, status={"pod_name": own}).status

        async def after_the_late_one(seen: Any, status: Any) -> Any:
            if api.record.status.phase in (Phase.PENDING, SessionPhase.PENDING):
                api._store(late)
            return await write_status(seen, status)

        api.write_status = after_the_late_one  # type: ignore[method-assign]
        worker.observe_pod(a_raw_pod(api.record), deleted=False)
        await until(lambda: worker.phase in (Phase.STARTING, SessionPhase.STARTING), seconds=10)
        await settled()
        assert (api.pool.given, api.pool.discarded) == (1, ["pod-1"]), "control: a pool gave another one meanwhile"
        assert (worker.pod_name, api.deleted) == (own, [])


@pytest.mark.parametrize(
    "record",
    [
        an_execution(phase=Phase.SUCCEEDED, status={"pod_name": "pod-1", "pool_name": "default"}),
        a_session(phase=SessionPhase.ENDED, status={"pod_name": "pod-1"}),
    ],
    ids=["execution", "session"],
)
async def test_a_pod_that_a_record_has_besides_goes_after_the_end_of_the_record_too(record: Any) -> None:
    async with asked("execution" if isinstance(record, CodeExecution) else "session", record=record) as (api, worker):
        worker.observe_pod(a_raw_pod(record), deleted=False)
        await until(worker.task.done, seconds=10)
        assert api.deleted == [own_pod(record)]


@pytest.mark.parametrize("empty", [False, True], ids=["given a pod", "in line"])
async def test_an_execution_stays_in_the_pod_that_its_record_names_whatever_it_has_asked_for_since(empty: bool) -> None:
    """The write that it gets a pod of its own came late."""
    async with asked("execution", record=an_execution(phase=Phase.STARTING, status={"pod_name": ""})) as (api, worker):
        assert isinstance(worker, ExecutionWorker)
        worker.task.cancel()
        api.pool.empty = empty
        worker.place.ask(Verdict(IMAGE, None))
        assert (worker.pod_name == own_pod(api.record)) is empty, "control"
        worker.observe(api._store(a_status(Phase.STARTING)))
        assert (worker.pod_name, worker.sandbox.pod) == (own_pod(api.record), None)
        assert (api.pool.queue, api.pool.discarded) == ([], [] if empty else ["pod-1"])
