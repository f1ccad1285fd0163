"""The answer to a write is lost, and the record says what was written: the worker goes on as after an answer.

Or nothing was written, and the worker decides anew: as before, because it has done nothing that changes the decision.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from factories import (
    SESSION_UID,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    a_secret,
    a_session,
    a_view,
    an_execution,
    block_end,
    numbered,
    output,
    the_end,
)
from kubernetes.aio.client.exceptions import ApiException
from played_cluster import PlayedCluster
from played_context import a_context, a_register
from polling import until

from codeexec_api import CodeExecution, CodeExecutionStatus, ExecutionApproval, Phase, SessionPhase
from codeexec_operator.adapters import chores
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.placement import Register
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.core.observed import Room
from codeexec_operator.core.observed_pod import PodLink, RunnerView
from codeexec_operator.core.payload import HeldPayload
from codeexec_operator.core.timing import Timing

ASKS_A_HUMAN: dict[str, Any] = {
    "policy": a_policy(maxTimeoutSeconds=60, withApproval={"maxTimeoutSeconds": 600}),
    "payloads": SimpleNamespace(seen=lambda *_: True, take=lambda *_: a_secret()),
}
"""Parts of a context in which code that may run for longer waits for approval."""
Worker = TypeVar("Worker", ExecutionWorker, SessionWorker)
answered_or_lost = pytest.mark.parametrize("lost", [False, True], ids=["answered", "lost"])


class Cluster(PlayedCluster):
    """Loses the answer to the write of one phase, once."""

    def __init__(self, execution: CodeExecution, loses: Phase | None) -> None:
        super().__init__(execution)
        self.loses = loses
        self.written: list[str] = []
        self.session_there = True
        self.approvals: list[Any] = []

    async def write_status(self, seen: Any, status: Any) -> Any:
        written = await super().write_status(seen, status)
        if isinstance(status, CodeExecutionStatus):
            self.written.append(status.reason)
            if status.phase is self.loses:
                self.loses = None
                raise TimeoutError
        return written

    async def list_approvals(self, *_: str) -> list[Any]:
        return self.approvals

    async def get_session(self, *_: str) -> Any:
        return a_session(SessionPhase.READY) if self.session_there else None

    async def get_payload(self, *_: Any) -> Any:
        return (a_secret(),)


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    try:
        yield worker
    finally:
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)


@answered_or_lost
async def test_after_the_end_all_is_let_go_of(lost: bool) -> None:
    execution = an_execution(phase=Phase.RUNNING)
    cluster = Cluster(execution, Phase.SUCCEEDED if lost else None)
    context = a_context(cluster)
    acknowledged = []

    async def acknowledge(uid: str) -> None:
        acknowledged.append(uid)

    async with at_work(ExecutionWorker(context, execution, a_register(), lambda _: None)) as worker:
        worker.sandbox = a_sandbox()
        connection: Any = SimpleNamespace(view=worker.sandbox.runner, close=lambda: None, acknowledge=acknowledge)
        worker.connection = connection
        code, text = worker._code, "x" * 100_000
        code.begin()
        for frame in numbered(output(text), block_end(stdoutBytes=len(text)), the_end(text)):
            code.transcript.take({**frame, "id": code.uid}, code.uid)
        await code.share.need(0)
        assert context.output.taken_bytes > 0, "control"
        worker.wake()
        await until(lambda: bool(acknowledged))
        assert worker.phase is Phase.SUCCEEDED
        assert (context.output.taken_bytes, code.held_bytes) == (0, 0)
    assert cluster.written == ["Completed"]


def granted(execution: CodeExecution) -> dict[str, Any]:
    assert execution.status.approval
    meta, now = execution.metadata, datetime.now(UTC)
    return {
        "metadata": {"name": "ok", "namespace": meta.namespace, "uid": "ok", "resourceVersion": "9"}
        | {"creationTimestamp": now.isoformat()},
        "spec": {
            "executionRef": {"name": meta.name, "uid": meta.uid, "requestedBy": execution.spec.requested_by},
            "decision": "Approve",
            "approver": "anna",
            "grants": [one.dump() for one in execution.status.approval.grants],
            "expiresAt": (now + timedelta(hours=1)).isoformat(),
        },
    }


@answered_or_lost
async def test_code_is_let_go_of_while_somebody_decides(lost: bool) -> None:
    execution = an_execution(timeoutSeconds=400)
    cluster = Cluster(execution, Phase.AWAITING_APPROVAL if lost else None)
    context = a_context(cluster, **ASKS_A_HUMAN)
    async with at_work(ExecutionWorker(context, execution, a_register(), lambda _: None)) as worker:
        await until(lambda: worker.phase is Phase.AWAITING_APPROVAL)
        assert isinstance(worker._seen.payload, HeldPayload)


@answered_or_lost
async def test_what_is_approved_after_its_session_has_ended_does_not_start(lost: bool) -> None:
    execution = an_execution(sessionRef={"name": "work"}, timeoutSeconds=400, requestedBy="agent")
    cluster = Cluster(execution, Phase.APPROVED if lost else None)
    session: Any = SimpleNamespace(
        connection=None, view=a_view(), join=lambda _: None, leave=lambda *_, **__: None, view_for=lambda *_: a_view()
    )
    there = [session]
    register = Register(
        lambda *_: there[0], lambda _: None, lambda *_, **__: None, Rooms(lambda _: Room(), lambda _: None)
    )
    worker = ExecutionWorker(a_context(cluster, **ASKS_A_HUMAN), execution, register, lambda _: None)
    async with at_work(worker):
        await until(lambda: worker.phase is Phase.AWAITING_APPROVAL)
        there[0], cluster.session_there = None, False
        raw = granted(worker._seen.execution)
        cluster.approvals = [raw]
        worker.approvals.observe(ExecutionApproval.parse(raw), deleted=False)
        await until(lambda: worker.phase.terminal)
    assert cluster.written == ["ApprovalRequired", "Approved", "SessionNotFound"]


class Lost(TimeoutError):
    """The API server has stored what was written, and its answer does not come."""


class Refusing(PlayedCluster):
    """Does not take the first write of an end, or loses the answer to it.

    The operator hears at once of a pod that is deleted.
    """

    def __init__(self, execution: CodeExecution, error: Exception | None) -> None:
        super().__init__(execution)
        self._error = error
        self.worker: ExecutionWorker | None = None

    async def write_status(self, seen: Any, status: Any) -> Any:
        if status.phase.terminal and (error := self._error):
            self._error = None
            for _ in range(50):  # whatever is done at the same time is done first
                await asyncio.sleep(0)
            if isinstance(error, Lost):
                await super().write_status(seen, status)
            raise error
        return await super().write_status(seen, status)

    async def delete_pod(self, namespace: str, name: str) -> bool:
        await super().delete_pod(namespace, name)
        if self.worker:
            self.worker.lose_pods([name])
        return True

    async def delete_payload(self, namespace: str, name: str, uid: str) -> None:
        self.heard.append("delete payload")


REFUSALS = pytest.mark.parametrize(
    "error",
    [None, ApiException(status=500), ApiException(status=429), ApiException(status=409), TimeoutError(), Lost()],
    ids=["answered", "500", "429", "409", "not stored", "lost"],
)
NEVER = Timing(exit_grace=3600, grace=0)
"""No pod is deleted because it runs on after its end. Code has no grace, as if a write had failed for that long."""


@REFUSALS
async def test_a_pod_that_the_operator_deletes_is_no_reason_for_the_end(error: Exception | None) -> None:
    execution = an_execution(phase=Phase.STARTING, status={"pod_name": "run-1-0f8fad5b"})
    cluster = Refusing(execution, error)
    context = a_context(cluster, timing=NEVER)
    async with at_work(ExecutionWorker(context, execution, a_register(), lambda _: None)) as worker:
        cluster.worker = worker
        worker.sandbox = a_sandbox(pod=a_pod(running=False, waiting_reason="ErrImagePull"), runner=RunnerView())
        await until(lambda: worker.phase.terminal)
        await until(lambda: "delete pod run-1-0f8fad5b" in cluster.heard, seconds=10)
    assert cluster.execution.status.reason == "ImagePullFailed"


@REFUSALS
async def test_nor_is_it_for_that_of_code_that_does_not_heed_its_cancellation(error: Exception | None) -> None:
    execution = an_execution(phase=Phase.RUNNING, cancelled=True)
    cluster = Refusing(execution, error)
    context = a_context(cluster, timing=NEVER)
    async with at_work(ExecutionWorker(context, execution, a_register(), lambda _: None)) as worker:
        cluster.worker = worker
        worker.sandbox = a_sandbox()
        worker._code.begin()
        worker._code._cancel_sent_at = datetime.now(UTC) - timedelta(seconds=60)
        await until(lambda: worker.phase.terminal)
        await until(lambda: "delete pod run-1-0f8fad5b" in cluster.heard, seconds=10)
    assert (cluster.execution.status.phase, cluster.execution.status.reason) == (Phase.CANCELLED, "CancelRequested")


@REFUSALS
async def test_a_payload_that_the_operator_deletes_is_no_reason_either(error: Exception | None) -> None:
    """The policy has come to refuse what waits in a session. Its code is read when its turn comes, and let go of."""
    execution = an_execution(phase=Phase.STARTING, sessionRef={"name": "work"})
    cluster = Refusing(execution, error)
    there = lambda *_: "delete payload" not in cluster.heard  # noqa: E731
    payloads = SimpleNamespace(seen=there, take=lambda *args: a_secret() if there() else None)
    cluster.get_payload = lambda *_: asyncio.sleep(0, (a_secret() if there() else None,))  # type: ignore[attr-defined]
    session: Any = SimpleNamespace(
        connection=None, view=a_view(), join=lambda _: None, leave=lambda *_, **__: None, view_for=lambda *_: a_view()
    )
    context = a_context(cluster, policy=a_policy(languages=["bash"]), payloads=payloads)
    worker = ExecutionWorker(context, execution, a_register(session=session), lambda _: None)
    async with at_work(worker):
        await until(lambda: worker.phase.terminal)
        await until(lambda: not there(), seconds=10)
    assert (cluster.execution.status.phase, cluster.execution.status.reason) == (Phase.DENIED, "PolicyViolation")


class Ending(Refusing):
    """Has the session of its execution, too."""

    session: Any = None

    async def write_status(self, seen: Any, status: Any) -> Any:
        if isinstance(status, CodeExecutionStatus):
            return await super().write_status(seen, status)
        self.session = seen.model_copy(update={"status": status})
        return self.session

    async def get_session(self, *_: str) -> Any:
        return self.session


@REFUSALS
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "too long"])
async def test_a_session_that_the_operator_gives_up_is_no_reason_either(
    error: Exception | None, cancelled: bool
) -> None:
    """The code does not end when it should, so nothing may run in its session any more."""
    execution = an_execution(phase=Phase.RUNNING, sessionRef={"name": "work-1"}, cancelled=cancelled)
    cluster, began = Ending(execution, error), datetime.now(UTC) - timedelta(minutes=10)
    cluster.session = a_session(phase=SessionPhase.READY, status={"started_at": datetime.now(UTC)})
    context = a_context(cluster, timing=NEVER)
    rooms = Rooms(lambda _: Room(), lambda _: None)
    session = SessionWorker(context, cluster.session, lambda _: None, rooms, lambda *_, **__: None)
    session.sandbox = a_sandbox(pod=a_pod(owner=SESSION_UID))
    runner: Any = SimpleNamespace(view=a_runner(), close=lambda: None)
    session.connection = runner
    worker = ExecutionWorker(context, execution, a_register(session=session), lambda _: None)
    async with at_work(session), at_work(worker):
        worker._code.begin()
        if cancelled:
            worker._code._cancel_sent_at = began
        else:
            worker._code._begun_at = worker._code._frames_since = began
        await until(lambda: worker.phase.terminal and session.phase.terminal, seconds=20)
    status = cluster.execution.status
    assert (status.phase, status.reason) == (
        (Phase.CANCELLED, "CancelRequested") if cancelled else (Phase.TIMED_OUT, "DeadlineExceeded")
    )
    assert cluster.session.status.message == "its runner did not stop an execution when asked to"


@pytest.mark.parametrize("how", ["no connection", "it breaks while the code is sent", "silent"])
async def test_the_payload_stays_until_the_runner_has_the_code(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(chores, "_CHORES_SECONDS", 0)
    execution = an_execution(phase=Phase.STARTING, sessionRef={"name": "work"})
    cluster, connected, handed = Refusing(execution, TimeoutError()), True, []
    asked, ended = asyncio.Event(), asyncio.Event()

    async def start(job: Any, messages: Any) -> None:
        nonlocal connected
        if not handed and how != "silent":
            connected = False
            job.cut_off()
        handed.append(messages)
        if how == "it breaks while the code is sent" and not connected:
            raise ConnectionResetError

    async def answers(uid: str) -> bool:
        assert uid == execution.metadata.uid
        if len(handed) > 1:
            return True
        asked.set()
        await ended.wait()
        return False

    lost = a_view(sandbox=a_sandbox(runner=RunnerView(PodLink.CLOSED)))
    session: Any = SimpleNamespace(
        connection=SimpleNamespace(start=start, answers=answers),
        view=a_view(),
        join=lambda _: None,
        let_in=lambda _: None,
        leave=lambda *_, **__: None,
        view_for=lambda *_: a_view() if connected else lost,
    )
    payloads = SimpleNamespace(seen=lambda *_: True, take=lambda *_: a_secret())
    context = a_context(cluster, payloads=payloads)
    worker = ExecutionWorker(context, execution, a_register(session=session), lambda _: None)
    async with at_work(worker):
        await until(lambda: handed)
        if how == "silent":
            async with asyncio.timeout(60):
                await asked.wait()
            assert worker.awaited.payload, "the sweeper leaves it, too"
            connected = False
            ended.set()
            worker._code.cut_off()
        await until(lambda: not worker._background)
        assert worker.phase is Phase.RUNNING
        assert "delete payload" not in cluster.heard
        connected = True
        worker._code.resumed("NeverBegun")
        await until(lambda: "delete payload" in cluster.heard)
        assert not worker.awaited.payload
    assert handed == [handed[0]] * 2


async def test_the_payload_of_code_that_ends_unheard_goes_with_its_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner does not answer any more. What is over is not handed over again."""
    monkeypatch.setattr(chores, "_CHORES_SECONDS", 0)
    execution = an_execution(phase=Phase.STARTING, sessionRef={"name": "work"})
    cluster, asked = Refusing(execution, None), asyncio.Event()

    async def start(job: Any, messages: Any) -> None:
        pass

    async def answers(uid: str) -> bool:
        asked.set()
        return await asyncio.Event().wait()

    session: Any = SimpleNamespace(
        connection=SimpleNamespace(start=start, answers=answers, acknowledge=lambda _: asyncio.sleep(0)),
        view=a_view(),
        join=lambda _: None,
        let_in=lambda _: None,
        give_up=lambda _: None,
        leave=lambda *_, **__: None,
        view_for=lambda *_: a_view(),
    )
    context = a_context(cluster, payloads=SimpleNamespace(seen=lambda *_: True, take=lambda *_: a_secret()))
    worker = ExecutionWorker(context, execution, a_register(session=session), lambda _: None)
    async with at_work(worker):
        async with asyncio.timeout(60):
            await asked.wait()
        assert "delete payload" not in cluster.heard
        worker._code._begun_at = worker._code._frames_since = datetime.now(UTC) - timedelta(hours=1)
        worker.wake()
        await until(lambda: "delete payload" in cluster.heard)
    assert cluster.execution.status.phase is Phase.TIMED_OUT


@pytest.mark.parametrize("kind", ["execution", "session"])
async def test_what_is_read_late_does_not_replace_what_a_watch_has_told_meanwhile(kind: str) -> None:
    """Nobody would tell of the cancellation a second time."""
    asked, told = asyncio.Event(), asyncio.Event()

    async def late(*_: str) -> Any:
        asked.set()
        await told.wait()
        return record

    cluster: Any = PlayedCluster(an_execution())
    cluster.get_execution = cluster.get_session = late
    context, rooms = a_context(cluster, timing=NEVER), Rooms(lambda _: Room(), lambda _: None)
    record: Any
    worker: Any
    if kind == "execution":
        record, wish = an_execution(phase=Phase.RUNNING), {"cancelled": True}
        worker = ExecutionWorker(context, record, a_register(), lambda _: None)
    else:
        record, wish = a_session(phase=SessionPhase.READY), {"ended": True}
        worker = SessionWorker(context, record, lambda _: None, rooms, lambda *_, **__: None)
    newer = record.model_copy(
        update={
            "metadata": record.metadata.model_copy(update={"resource_version": str(worker.version + 1)}),
            "spec": record.spec.model_copy(update=wish),
        }
    )
    worker.task.cancel()
    refreshing = asyncio.create_task(worker._refresh())
    await asked.wait()
    worker.observe(newer)
    told.set()
    await refreshing
    assert worker.version == int(newer.metadata.resource_version)


async def test_a_change_that_is_heard_of_while_the_record_is_read_is_read_too() -> None:
    """The worker may have been told that the record has changed without a word."""
    asked, told = asyncio.Event(), asyncio.Event()
    reads: list[int] = []

    class Late(PlayedCluster):
        async def get_execution(self, *_: str) -> Any:
            reads.append(1)
            asked.set()
            await told.wait()
            return self.execution

    cluster = Late(an_execution(phase=Phase.RUNNING))
    worker = ExecutionWorker(a_context(cluster, timing=NEVER), cluster.execution, a_register(), lambda _: None)
    async with at_work(worker):
        worker.recheck()
        await asked.wait()
        worker.recheck()
        told.set()
        await until(lambda: len(reads) == 2)
