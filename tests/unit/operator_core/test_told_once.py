"""Telemetry is told of each end once: by the worker that has written it, or that has lost the answer to that.

The API server is played: what is held here is when the operator speaks, not what an API server does. That is held to a
real one by test_played_cluster.py.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from factories import a_session, an_execution
from played_cluster import PlayedCluster
from played_context import a_context, a_register
from polling import until

from codeexec_api import CodeExecution, CodeExecutionStatus, CodeSession, CodeSessionStatus, Phase, SessionPhase
from codeexec_api.names import EXECUTION_LABEL
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.core.observed import Room


def stored(execution: CodeExecution, version: int, **changes: Any) -> CodeExecution:
    metadata = execution.metadata.model_copy(update={"resource_version": str(version)})
    return execution.model_copy(update={"metadata": metadata, **changes})


@dataclass
class Played(PlayedCluster):
    """An API server with one execution, which may lose its answers, and a telemetry that takes notes."""

    loses_answers: bool = False
    worker: ExecutionWorker | None = None
    told: list[str] = field(default_factory=list)
    retries: list[int | None] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the API server answers who asks for the execution."""

    async def write_status(self, seen: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        written = await super().write_status(seen, status)
        if self.loses_answers:
            raise TimeoutError
        if self.worker and written.status.phase.terminal:  # as it happens, the watch is quicker
            self.worker.observe_leaving(int(written.metadata.resource_version))
        return written

    def execution_over(self, execution: CodeExecution, seen_at: datetime) -> None:
        self.told.append(execution.status.phase.value)

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        found = await super().get_execution(namespace, name)
        await self.answers.wait()
        return found

    def context(self) -> Any:
        metrics = SimpleNamespace(retried=self.retries.append, unexpected=lambda: self.told.append("unexpected"))
        return a_context(
            self,
            telemetry=SimpleNamespace(execution_over=self.execution_over, metrics=metrics),
            audit=AuditLog("1", Metrics("1"), self.lines.append),
        )

    def begin(self, ended: asyncio.Event) -> ExecutionWorker:
        self.worker = ExecutionWorker(self.context(), self.execution, a_register(), lambda _: ended.set())
        return self.worker


async def test_once_when_it_was_written_though_the_watch_tells_of_it_too() -> None:
    """Nor is the API server asked for what was just written: it would not answer."""
    ended, played = asyncio.Event(), Played(an_execution(cancelled=True))
    played.begin(ended)
    await asyncio.wait_for(ended.wait(), 60)
    assert (played.execution.status.phase, played.told) == (Phase.CANCELLED, ["Cancelled"])


async def test_once_when_the_answer_to_the_last_write_was_lost() -> None:
    ended, played = asyncio.Event(), Played(an_execution(cancelled=True), loses_answers=True)
    worker = played.begin(ended)
    await until(lambda: played.retries)
    played.answers.set()
    worker.observe_leaving(int(played.execution.metadata.resource_version))
    await asyncio.wait_for(ended.wait(), 60)
    assert (played.told, played.retries) == (["Cancelled"], [None])


async def test_once_when_only_a_read_finds_out_that_the_last_write_came_through() -> None:
    """The watch is silent: the record is read before another try, and is over."""
    ended, played = asyncio.Event(), Played(an_execution(cancelled=True), loses_answers=True)
    played.answers.set()
    played.begin(ended)
    await asyncio.wait_for(ended.wait(), 60)
    assert (played.told, played.retries) == (["Cancelled"], [None])


async def test_once_when_somebody_changes_the_record_after_its_end() -> None:
    ended, played = asyncio.Event(), Played(an_execution(phase=Phase.RUNNING))
    worker, over = played.begin(ended), an_execution(phase=Phase.SUCCEEDED)
    for version in (8, 9):
        worker.observe(stored(over, version))
    await asyncio.wait_for(ended.wait(), 60)
    assert played.told == ["Succeeded"]


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.DENIED])
async def test_never_of_what_was_over_before_this_process_came(phase: Phase) -> None:
    ended, played = asyncio.Event(), Played(an_execution(phase=phase))
    worker = played.begin(ended)
    worker.observe(stored(played.execution, 8))
    await asyncio.wait_for(ended.wait(), 60)
    assert played.told == []


async def quiet(played: Played, controller: Controller) -> None:
    await until(lambda: played.told and not controller.census().executions, every=0.01)


async def test_once_when_it_is_heard_of_late() -> None:
    """Kopf holds events for a moment: this one is older than the end, and nobody looks after it any more."""
    played = Played(an_execution(phase=Phase.RUNNING))
    played.answers.set()
    controller = Controller(played.context())
    raw = played.execution.model_dump(mode="json", by_alias=True)
    for _ in range(2):
        controller.on_execution(raw, deleted=False)
        await quiet(played, controller)
    assert (played.execution.status.phase, played.told) == (Phase.LOST, ["Lost"])


async def test_once_when_its_pod_is_seen_while_its_end_is_written() -> None:
    """After a restart of the operator: the record was asked for on account of the pod, and is older than its end."""
    played = Played(an_execution(phase=Phase.RUNNING))
    controller = Controller(played.context())
    meta = played.execution.metadata
    owner = {"kind": "CodeExecution", "name": meta.name, "uid": meta.uid, "controller": True}
    labels = {EXECUTION_LABEL: meta.name}
    pod = {"metadata": {"name": "pod", "namespace": meta.namespace, "ownerReferences": [owner], "labels": labels}}
    seen = asyncio.create_task(controller.on_pod(pod, deleted=False))
    await asyncio.sleep(0)
    raw = played.execution.model_dump(mode="json", by_alias=True)
    controller.on_execution(raw, deleted=False)
    await quiet(played, controller)
    played.answers.set()
    await seen
    await quiet(played, controller)
    assert (played.execution.status.phase, played.told) == (Phase.LOST, ["Lost"])
    assert len([line for line in played.lines if "StatusWrite" in line]) == 1


async def test_what_the_api_server_has_gone_back_to_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store was taken from a copy while the operator ran."""
    monkeypatch.setattr("codeexec_operator.adapters.tombstones._TRY_AGAIN_SECONDS", 0)
    played = Played(an_execution(phase=Phase.RUNNING))
    played.answers.set()
    controller = Controller(played.context())
    meta = played.execution.metadata
    controller._tombstones.let_go(meta.uid, int(meta.resource_version) + 100)
    owner = {"kind": "CodeExecution", "name": meta.name, "uid": meta.uid, "controller": True}
    labels = {EXECUTION_LABEL: meta.name}
    pod = {"metadata": {"name": "pod", "namespace": meta.namespace, "ownerReferences": [owner], "labels": labels}}
    await asyncio.wait_for(controller.on_pod(pod, deleted=False), 60)
    await controller.on_pod(pod, deleted=True)
    await quiet(played, controller)
    assert played.told == ["Lost"]


class Sessions:
    """An API server with one session, which may lose the answer to the first write, and a telemetry."""

    def __init__(self, session: CodeSession, *, loses_answer: bool) -> None:
        self.session, self.loses_answer = session, loses_answer
        self.told: list[str] = []

    async def write_status(self, seen: CodeSession, status: CodeSessionStatus) -> CodeSession:
        version = str(int(self.session.metadata.resource_version) + 1)
        metadata = seen.metadata.model_copy(update={"resource_version": version})
        self.session = seen.model_copy(update={"metadata": metadata, "status": status})
        if self.loses_answer:
            self.loses_answer = False
            raise TimeoutError
        return self.session

    async def get_session(self, *_: str) -> CodeSession:
        return self.session

    async def delete_pod(self, *_: str) -> bool:
        return False

    def begin(self, ended: asyncio.Event) -> SessionWorker:
        metrics = SimpleNamespace(retried=lambda _: None, unexpected=lambda: self.told.append("unexpected"))
        telemetry = SimpleNamespace(session_over=lambda one: self.told.append(one.status.phase.value), metrics=metrics)
        rooms = Rooms(lambda _: Room(), lambda _: None)
        context = a_context(self, telemetry=telemetry)
        return SessionWorker(context, self.session, lambda _: ended.set(), rooms, lambda *_, **__: None)


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "lost"])
async def test_once_of_the_end_of_a_session(lost: bool) -> None:
    ended = asyncio.Event()
    session = a_session(phase=SessionPhase.READY, status={"started_at": datetime.now(UTC)}, ended=True)
    sessions = Sessions(session, loses_answer=lost)
    worker = sessions.begin(ended)
    await asyncio.wait_for(ended.wait(), 60)
    worker.observe(sessions.session)
    assert sessions.told == ["Ended"]
