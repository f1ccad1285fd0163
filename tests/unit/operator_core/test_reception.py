"""Requests beyond what an operator holds of a namespace: they wait as a name, and are read when it is their turn."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from factories import NOW, a_policy, an_execution
from kubernetes.aio.client.exceptions import ApiException
from played_cluster import PlayedCluster
from played_context import a_context
from polling import settled, until

from codeexec_api import CodeExecution, CodeExecutionStatus, Phase
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.core.intake import Bounds, Intake
from codeexec_operator.core.payload import HeldPayload, Payload

HELD, MORE = 20, 10
BOX = "codeexec-sandbox"


@dataclass
class Requests(PlayedCluster):
    """An API server with many executions, which the operator hears of. None is written until `goes_on` is set."""

    records: dict[str, CodeExecution] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    errors: list[Exception] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def create(self, number: int, **spec: Any) -> dict[str, Any]:
        name = f"run-{number:04}"
        made = an_execution(name=name, cancelled=True, **spec)  # what is cancelled ends by one write
        meta = {"uid": name, "creation_timestamp": NOW + timedelta(seconds=number)}
        self.records[name] = made.model_copy(update={"metadata": made.metadata.model_copy(update=meta)})
        raw = self.records[name].model_dump(mode="json", by_alias=True)
        raw["spec"]["cancelled"] = False  # as it was when it was heard of
        return raw

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        self.reads.append(name)
        if self.errors:
            raise self.errors.pop()
        return self.records.get(name)

    async def write_status(self, seen: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        await self.goes_on.wait()
        name, version = seen.metadata.name, str(int(seen.metadata.resource_version) + 1)
        meta = seen.metadata.model_copy(update={"resource_version": version})
        self.records[name] = seen.model_copy(update={"metadata": meta, "status": status})
        self.lines.append(name)
        return self.records[name]


@pytest.fixture
async def flooded() -> Any:
    """An operator that has heard of more requests of one namespace than are held."""
    cluster = Requests(an_execution())
    controller = Controller(a_context(cluster))
    controller._reception._intake = Intake(Bounds(pending=HELD))
    for number in range(HELD + MORE):
        controller.on_execution(cluster.create(number), deleted=False)
    yield cluster, controller
    await controller.stop()


def held(controller: Controller) -> int:
    return len(list(controller._executions))


async def test_no_more_are_held_than_the_bound_says_and_all_are_counted(flooded: Any) -> None:
    _, controller = flooded
    assert held(controller) == HELD
    assert controller.census().executions[BOX, Phase.PENDING] == HELD + MORE


async def test_another_namespace_is_served_at_once(flooded: Any) -> None:
    cluster, controller = flooded
    raw = cluster.create(9999)
    raw["metadata"]["namespace"] = "quiet"
    controller.on_execution(raw, deleted=False)
    assert len(controller._executions.of("quiet")) == 1


async def test_those_that_wait_are_read_in_order_of_their_creation_and_end(flooded: Any) -> None:
    cluster, controller = flooded
    assert not cluster.reads, "control: none is read before its turn"
    cluster.goes_on.set()
    await until(lambda: not held(controller) and len(cluster.reads) == MORE)
    await until(lambda: not controller.census().executions)
    assert cluster.reads == [f"run-{number:04}" for number in range(HELD, HELD + MORE)]
    assert sorted(cluster.lines) == sorted(cluster.records), "each was written once"


async def test_one_that_is_deleted_while_it_waits_is_forgotten(flooded: Any) -> None:
    cluster, controller = flooded
    for name in [name for name in cluster.records if name >= f"run-{HELD:04}"]:
        raw = cluster.records.pop(name).model_dump(mode="json", by_alias=True)
        controller.on_execution(raw, deleted=True)
    assert controller.census().executions[BOX, Phase.PENDING] == HELD
    cluster.goes_on.set()
    await until(lambda: not held(controller))
    assert cluster.reads == []


async def test_one_whose_deletion_was_missed_is_forgotten_when_it_is_read(flooded: Any) -> None:
    cluster, controller = flooded
    for number in range(HELD, HELD + MORE):
        del cluster.records[f"run-{number:04}"]
    cluster.goes_on.set()
    await until(lambda: len(cluster.reads) == MORE)
    await until(lambda: not controller.census().executions)


async def test_one_that_is_cancelled_while_it_waits_comes_before_those_that_are_held(flooded: Any) -> None:
    cluster, controller = flooded
    last = cluster.records[f"run-{HELD + MORE - 1:04}"]
    controller.on_execution(last.model_dump(mode="json", by_alias=True), deleted=False)
    await until(lambda: cluster.reads == [last.metadata.name])
    await until(lambda: held(controller) == HELD + 1)
    worker = controller._executions.named(BOX, last.metadata.name)
    assert worker
    assert worker._begun, "so it is first in the line of the pacer"


async def test_a_read_that_fails_is_made_again(flooded: Any) -> None:
    cluster, controller = flooded
    cluster.errors = [ApiException(status=503), TimeoutError()]
    cluster.goes_on.set()
    await until(lambda: not controller.census().executions)
    assert len(cluster.reads) == MORE + 2
    assert len(cluster.lines) == HELD + MORE


async def test_what_is_heard_while_one_is_read_is_not_lost(flooded: Any) -> None:
    """The answer to the read may be older."""
    cluster, controller = flooded
    name, answer = f"run-{HELD:04}", asyncio.Event()
    newer = cluster.records[name].model_dump(mode="json", by_alias=True)
    newer["metadata"]["resourceVersion"] = "8"
    read = cluster.get_execution

    async def get_execution(namespace: str, asked: str) -> CodeExecution | None:
        found = await read(namespace, asked)
        await answer.wait()
        return found

    cluster.get_execution = get_execution
    for number in range(3):
        raw = cluster.records[f"run-{number:04}"].model_dump(mode="json", by_alias=True)
        controller._reception.leave(BOX, raw["metadata"]["uid"])
    await until(lambda: name in cluster.reads)
    controller.on_execution(newer, deleted=False)
    worker = controller._executions.named(BOX, name)
    assert worker
    answer.set()
    await until(lambda: held(controller) == HELD + 3)
    assert controller._executions.named(BOX, name) is worker
    assert worker.version == 8


async def test_what_runs_is_looked_after_at_once(flooded: Any) -> None:
    """After a restart what runs may be listed behind a flood."""
    cluster, controller = flooded
    raw = cluster.create(9999)
    raw["status"] = an_execution(phase=Phase.RUNNING).model_dump(mode="json", by_alias=True)["status"]
    controller.on_execution(raw, deleted=False)
    assert held(controller) == HELD + 1


async def test_nothing_that_waits_loses_its_payload_or_its_key(flooded: Any) -> None:
    cluster, controller = flooded
    ref = cluster.create(9998, payloadRef={"name": "code-of-it"})
    key = cluster.create(9999, payloadRef=None, sealedPayload={"keyName": "old-key", "data": "AAAA"})
    for raw in (ref, key):
        assert controller._executions.get(raw["metadata"]["uid"]) is None
        controller.on_execution(raw, deleted=False)
    assert "code-of-it" in controller.awaited_payloads(BOX)
    assert "old-key" in controller.awaited_keys()


async def test_a_namespace_that_is_not_served_any_more_has_none_that_wait(flooded: Any) -> None:
    cluster, controller = flooded
    await controller.release(BOX)
    assert not controller.census().executions
    assert cluster.reads == []


async def test_sealed_code_is_let_go_of_once_it_was_verified_and_read_again_when_it_starts() -> None:
    code = "AAAA" * 2048
    sealed = {"keyName": "key-1", "data": code}
    execution = an_execution(phase=Phase.AWAITING_APPROVAL, payloadRef=None, sealedPayload=sealed)
    cluster = PlayedCluster(execution)
    controller = Controller(a_context(cluster, policy=a_policy()))
    controller.on_execution(execution.model_dump(mode="json", by_alias=True), deleted=False)
    [worker] = controller._executions
    worker.task.cancel()
    assert isinstance(worker, ExecutionWorker)
    assert worker._seen.execution.spec.sealed_payload
    assert worker._seen.execution.spec.sealed_payload.data == code, "control: until then it is there"
    for payload in (Payload((b"code",)), HeldPayload(())):
        worker._know(payload=payload)
        worker.observe(execution)
        known = worker._seen.execution.spec.sealed_payload
        assert (known.key_name, known.data) == ("key-1", "")
        assert (await worker._request._whole(known)).data == code
    cluster.gone = True
    with pytest.raises(ApiException):
        await worker._request._whole(known)
    await controller.stop()


async def test_little_sealed_code_stays_since_another_read_would_delay_it() -> None:
    execution = an_execution(payloadRef=None, sealedPayload={"keyName": "key-1", "data": "AAAA" * 1024})
    controller = Controller(a_context(PlayedCluster(execution), policy=a_policy()))
    controller.on_execution(execution.model_dump(mode="json", by_alias=True), deleted=False)
    [worker] = controller._executions
    worker.task.cancel()
    assert isinstance(worker, ExecutionWorker)
    worker._know(payload=HeldPayload(()))
    worker.observe(execution)
    assert worker._seen.execution.spec.sealed_payload == execution.spec.sealed_payload
    await controller.stop()


async def test_an_operator_that_stops_takes_in_nothing_more(flooded: Any) -> None:
    cluster, controller = flooded
    await controller.stop()
    await asyncio.sleep(0)
    assert (held(controller), cluster.reads) == (0, [])
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("read ")]


async def test_a_read_that_is_given_up_before_it_begins_gives_its_turn_back(flooded: Any) -> None:
    _, controller = flooded
    reception = controller._reception
    for name in ("run-0000", "run-0001"):
        reception.leave(BOX, name)  # two more may be read, and nothing has run since
    tasks = list(reception._reads)
    assert tasks
    await reception.release(BOX)
    assert reception._intake.waiting(BOX) == []
    assert not reception._reads


async def test_a_request_whose_handler_is_cancelled_is_not_held_for_ever() -> None:
    async def never(_: str) -> None:
        await asyncio.Event().wait()

    async def turn_is_cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await controller.turn(raw)

    cluster = Requests(an_execution())
    controller = Controller(a_context(cluster, turns=SimpleNamespace(turn=never)))
    raw, uid = cluster.create(1), "run-0001"
    assert not controller.waits(CodeExecution, raw)
    assert controller._reception._intake.holds(uid), "control: it was let in"
    await turn_is_cancelled()
    assert not controller._reception._intake.holds(uid)
    controller.on_execution(raw, deleted=False)
    await turn_is_cancelled()
    assert controller._reception._intake.holds(uid), "somebody looks after it"
    raw = cluster.create(2)
    controller.on_execution(raw, deleted=False)
    await controller.release(BOX)
    assert held(controller) == 0, "also of what was begun at this moment"
    assert not controller._reception._intake._shares


async def test_a_request_that_was_begun_when_its_namespace_was_let_go_of_is_taken_up_again() -> None:
    cluster = Requests(an_execution())
    controller = Controller(a_context(cluster))
    runs, new = cluster.create(1), cluster.create(2)
    runs["status"] = {"phase": "Running", "podName": "p", "startedAt": NOW.isoformat()}
    controller.on_execution(runs, deleted=False)
    await settled()
    release = asyncio.create_task(controller.release(BOX))
    controller.on_execution(new, deleted=False)  # a read has ended in the same turn of the event loop
    await settled()
    assert not release.done(), "control: it waits for code that runs"
    assert held(controller) == 1, "so nobody looks after the new one"
    release.cancel()
    await asyncio.wait([release])
    controller.on_execution(new, deleted=False)
    cluster.goes_on.set()
    await until(lambda: "run-0002" in cluster.lines)
    await controller.stop()


async def test_a_request_that_left_and_came_back_while_its_read_failed_waits_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch ended while its handler waited for a turn, and the next list told of it again."""
    monkeypatch.setattr("codeexec_operator.core.backoff.FIRST_SECONDS", 0)
    cluster = Requests(an_execution())
    controller = Controller(a_context(cluster))
    controller._reception._intake = Intake(Bounds(pending=1))
    first, again, third = (cluster.create(number) for number in (1, 2, 3))
    for raw in (first, again, third):
        assert controller.waits(CodeExecution, raw) is (raw is not first)
    answers = asyncio.Event()

    async def fails(namespace: str, name: str) -> None:
        cluster.reads.append(name)
        await answers.wait()
        raise ApiException(status=503)

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "get_execution", fails)
        controller.on_execution(first, deleted=True)
        await until(lambda: cluster.reads == ["run-0002"])
        assert not controller.waits(CodeExecution, again), "control: it is held while it is read"
        controller._reception.leave(BOX, again["metadata"]["uid"])
        assert controller.waits(CodeExecution, again)
    answers.set()
    await settled()
    assert {again["metadata"]["uid"], third["metadata"]["uid"]} <= set(controller.known(BOX).objects)
    await controller.stop()
