"""What a leader finds that it did not begin itself is treated as the leader before would have treated it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from factories import (
    IMAGE,
    SESSION_REF,
    a_pod,
    a_policy,
    a_raw_pod,
    a_sandbox,
    a_secret,
    a_session,
    a_transcript,
    an_execution,
    output,
    seconds,
)
from played_cluster import PlayedCluster
from played_context import a_context, a_register
from polling import until

from codeexec_api import CodeExecution, CodeSession, Phase, Reason, SessionPhase
from codeexec_api.names import pod_name
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.observed import Room
from codeexec_operator.core.observed_pod import Fault
from codeexec_operator.core.output_place import CONFIG_MAPS

POLICY = {
    "metadata": {"name": "default", "namespace": "box", "resourceVersion": "7"},
    "spec": {"images": [IMAGE], "podTTLSeconds": 600},
}


def raw_of(record: CodeExecution | CodeSession) -> dict[str, Any]:
    return record.model_dump(mode="json", by_alias=True)


async def test_the_policy_is_known_before_anything_of_its_namespace_is_heard_of() -> None:
    """It is read before the watch begins. What a request reads does not count: that of code that runs is not read."""

    async def get_policy(_: str) -> Any:
        return POLICY

    cluster: Any = SimpleNamespace(get_policy=get_policy)
    policies = Policies(cluster, a_policy(), "")
    assert policies.known("box") is None, "control"
    assert await policies.read_again("box")
    known: Any = policies.known("box")
    assert known.pod_ttl_seconds == 600


@asynccontextmanager
async def found(phase: Phase, status: dict[str, Any] | None = None, **context: Any) -> AsyncIterator[ExecutionWorker]:
    """An execution that another leader began, in a namespace with a policy of its own."""
    own = a_policy(podTTLSeconds=600, outputTTLSeconds=60)
    policies = SimpleNamespace(default=a_policy(), known=lambda _: own, source=lambda _: "its own")
    execution = an_execution(phase=phase, status=status)
    parts = a_context(PlayedCluster(execution), policies=policies, **context)
    worker = ExecutionWorker(parts, execution, a_register(), lambda _: None)
    worker.task.cancel()
    yield worker
    await asyncio.gather(worker.task, return_exceptions=True)


async def test_output_of_code_that_runs_stays_as_long_as_the_policy_of_its_namespace_says() -> None:
    stored: list[datetime] = []

    async def create_output(_: Any, __: Any, expires_at: datetime) -> None:
        stored.append(expires_at)

    outputs = SimpleNamespace(place=CONFIG_MAPS, create_output=create_output)
    async with found(Phase.RUNNING, outputs=outputs) as worker:
        worker._decide()
        worker._code.transcript = a_transcript(output("x" * 100_000))
        assert await worker._code.shorten()
    [expires_at] = stored
    assert expires_at - now() < seconds(61)


async def test_a_finished_pod_stays_as_long_as_the_policy_of_its_namespace_says() -> None:
    finished_at = now()
    async with found(Phase.SUCCEEDED, {"finishedAt": finished_at}) as worker:
        worker.sandbox = a_sandbox(pod=a_pod(running=False, terminated="Completed"))
        assert worker._decide().wake_at == finished_at + seconds(600)


async def test_code_that_runs_is_in_line_before_any_that_is_heard_of_later() -> None:
    """The runner may have ended it, and forgets it when the next one begins."""
    execution = an_execution(phase=Phase.RUNNING, **SESSION_REF)
    controller = Controller(a_context(PlayedCluster(execution)))
    controller.on_session(raw_of(a_session(phase=SessionPhase.READY)), deleted=False)
    controller.on_execution(raw_of(execution), deleted=False)
    [session] = controller._sessions
    [runs] = controller._executions
    assert session._queue.first is runs.place
    await controller.stop()


async def test_a_pod_that_went_unnoticed_is_over_from_when_that_is_found_out() -> None:
    """What its runner has said before has a moment to arrive, and no more: nobody tells of the end of this pod."""
    async with found(Phase.RUNNING) as worker:
        worker.sandbox = a_sandbox()
        worker._code.begin()
        worker.lose_pods({worker.pod_name})
        wake_at = worker._decide().wake_at
        assert wake_at
        assert wake_at <= now() + seconds(worker.context.timing.grace)


class Refusing(PlayedCluster):
    """Makes no pod. Quota and admission look at a request before its name, so that tells nothing of an older pod."""

    reason = Reason.QUOTA_EXCEEDED
    owner, made = "", True
    asked = 0

    async def create_pod(self, pod: Any) -> Fault | None:
        self.asked += 1
        if self.asked == 1 and self.execution.status.phase.value == "Pending":
            raise TimeoutError  # it was carried out, and the answer was lost
        return Fault(self.reason, "refused")

    async def find_pod(self, namespace: str, name: str) -> Any:
        assert name == pod_name(self.execution.metadata.name, self.execution.metadata.uid)
        return a_raw_pod(self.execution, owner=self.owner) if self.made else None

    @asynccontextmanager
    async def attach(self, *_: str) -> AsyncIterator[Any]:
        self.heard.append("attach")
        raise ConnectionError
        yield

    async def get_session(self, *_: str) -> Any:
        return self.execution

    async def get_payload(self, *_: Any) -> Any:
        return (a_secret(),)


@asynccontextmanager
async def refused(kind: str, phase: str, **changes: Any) -> AsyncIterator[Refusing]:
    """An execution or a session whose pod may have been made, and is refused now."""
    record: Any = an_execution(phase=Phase(phase)) if kind == "execution" else a_session(phase=SessionPhase(phase))
    cluster = Refusing(record)
    for name, value in changes.items():
        setattr(cluster, name, value)
    context = a_context(cluster, payloads=SimpleNamespace(seen=lambda *_: True, take=lambda *_: a_secret()))
    worker: Any
    if kind == "execution":
        worker = ExecutionWorker(context, record, a_register(), lambda _: None)
    else:
        rooms = Rooms(lambda _: Room(), lambda _: None)
        worker = SessionWorker(context, record, lambda _: None, rooms, lambda *_, **__: None)
    try:
        yield cluster
    finally:
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)


@pytest.mark.parametrize("reason", [Reason.QUOTA_EXCEEDED, Reason.POD_REFUSED])
@pytest.mark.parametrize("phase", ["Pending", "Starting"])
@pytest.mark.parametrize("kind", ["execution", "session"])
async def test_a_pod_that_was_made_already_is_used_though_it_is_refused_now(
    kind: str, phase: str, reason: Reason
) -> None:
    async with refused(kind, phase, reason=reason) as cluster:
        await until(lambda: "attach" in cluster.heard or cluster.execution.status.phase.terminal, seconds=10)
        assert cluster.execution.status.phase.value == "Starting"
        assert cluster.heard == ["attach"], "it is not deleted"


@pytest.mark.parametrize("changes", [{"made": False}, {"owner": "another"}], ids=["no pod", "pod of another"])
@pytest.mark.parametrize("kind", ["execution", "session"])
async def test_what_is_refused_and_was_never_made_ends(kind: str, changes: dict[str, Any]) -> None:
    async with refused(kind, "Starting", **changes) as cluster:
        await until(lambda: cluster.execution.status.phase.terminal, seconds=10)
        assert cluster.execution.status.reason == Reason.QUOTA_EXCEEDED.value
