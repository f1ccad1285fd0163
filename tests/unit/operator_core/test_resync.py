"""What is found by comparing lists, where an event was missed or could not be used."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from factories import UID, a_session, an_execution
from kubernetes.aio.client.exceptions import ApiException
from played_cluster import PlayedCluster
from played_context import a_context

from codeexec_api import CodeExecution, Phase, SandboxPool
from codeexec_api.names import (
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    POOL_LABEL,
    POOL_PLURAL,
    SESSION_PLURAL,
    pod_name,
)
from codeexec_operator.adapters import resync as resyncing
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.resync import resync
from codeexec_operator.adapters.worker import Worker

POD = pod_name("run-1", UID)


@dataclass
class Played(PlayedCluster):
    """An API server with the pod of one execution."""

    labels: dict[str, str] = field(default_factory=lambda: {EXECUTION_LABEL: "run-1"})
    version: str = "8"
    """Of the pod."""
    unfinished: list[Mapping[str, Any]] = field(default_factory=list)
    """Raw objects, as `list_unfinished` tells them."""
    fails: bool = False
    failure: Exception = field(default_factory=lambda: ApiException(status=500))

    @property
    def pod(self) -> Mapping[str, Any]:
        meta = self.execution.metadata
        owner = {"kind": "CodeExecution", "name": meta.name, "uid": meta.uid, "controller": True}
        metadata = {"name": POD, "namespace": meta.namespace, "labels": self.labels, "ownerReferences": [owner]}
        metadata["resourceVersion"] = self.version
        return {"metadata": metadata, "spec": {}, "status": {"phase": "Succeeded"}}

    @property
    def is_there(self) -> bool:
        return not any(one.startswith("delete pod") for one in self.heard)

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        if self.fails:
            raise self.failure
        return await super().get_execution(namespace, name)

    async def list_unfinished(self, namespace: str) -> list[Mapping[str, Any]]:
        return self.unfinished

    async def find_record(self, plural: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        self.heard.append(f"read {plural} {name}")
        if self.fails:
            raise self.failure
        return next((one for one in self.unfinished if one["metadata"]["name"] == name), None)

    async def list_pod_metadata(self, namespace: str) -> list[Mapping[str, Any]]:
        return [self.pod["metadata"]] if self.is_there else []

    async def find_pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        assert name == POD, "only what nobody knows is read whole"
        self.heard.append("read the pod")
        return self.pod

    async def compare(self, controller: Controller) -> None:
        policies: Any = SimpleNamespace(read_again=self.unchanged)
        await resync(self, self.execution.metadata.namespace, controller, policies)  # type: ignore[arg-type]
        for _ in range(50):
            await asyncio.sleep(0)

    async def unchanged(self, namespace: str) -> bool:
        return False


async def test_a_finished_pod_goes_though_the_look_at_its_record_failed_when_it_was_heard_of() -> None:
    """Kopf logs an event that fails, and does not repeat it."""
    played = Played(an_execution(phase=Phase.SUCCEEDED), fails=True)
    controller = Controller(a_context(played))
    with pytest.raises(ApiException):
        await controller.on_pod(played.pod, deleted=False)
    played.fails = False
    await played.compare(controller)
    assert played.heard == ["read the pod", f"delete pod {POD}"]


@pytest.mark.parametrize("error", [ApiException(status=500), TimeoutError()], ids=["500", "timeout"])
async def test_a_record_that_can_not_be_read_keeps_nothing_else_from_being_looked_at(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    played = Played(an_execution(phase=Phase.SUCCEEDED), fails=True, failure=error)
    await played.compare(Controller(a_context(played)))
    assert played.heard == ["read the pod"]
    assert f"pod {played.execution.metadata.namespace}/{POD}: its record could not be read" in caplog.text


@pytest.mark.parametrize("labels", [{}, {POOL_LABEL: "small"}], ids=["of somebody else", "of a pool"])
async def test_others_are_left_alone(labels: dict[str, str]) -> None:
    played = Played(an_execution(phase=Phase.SUCCEEDED), labels=labels)
    await played.compare(Controller(a_context(played)))
    assert played.heard == []


def as_listed(record: Any, plural: str) -> Mapping[str, Any]:
    return {**record.model_dump(mode="json", by_alias=True), "plural": plural}


def newer(record: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    return {**record, "metadata": {**record["metadata"], "resourceVersion": version}}


POOL = SandboxPool.model_validate(
    {
        "metadata": {"name": "small", "namespace": "codeexec-sandbox", "uid": "pool", "resourceVersion": "7"},
        "spec": {"replicas": 0},
    }
)


@pytest.mark.parametrize(
    ("record", "plural"),
    [(an_execution(), EXECUTION_PLURAL), (a_session(), SESSION_PLURAL), (POOL, POOL_PLURAL)],
    ids=[EXECUTION_PLURAL, SESSION_PLURAL, POOL_PLURAL],
)
async def test_what_a_silent_watch_has_not_told_is_read_once(
    record: Any, plural: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client gives up after a minute, before kopf gives up a watch that says nothing any more."""
    monkeypatch.setattr(Worker, "_run", lambda _: asyncio.Event().wait())
    there = as_listed(record, plural)
    played = Played(an_execution(), labels={}, unfinished=[there])
    controller = Controller(a_context(played))
    for _ in range(2):
        await played.compare(controller)
        read = [one for one in played.heard if one.startswith("read")]
        assert read == [f"read {plural} {record.metadata.name}"]
    assert record.metadata.uid in controller.known(record.metadata.namespace).objects
    played.unfinished = [newer(there, "99999")]
    await played.compare(controller)
    read = [one for one in played.heard if one.startswith("read")]
    assert read == 2 * [f"read {plural} {record.metadata.name}"], "nor was its change told"
    assert controller.known(record.metadata.namespace).objects[record.metadata.uid] == 99999
    await controller.stop()


async def test_a_change_of_a_pod_that_was_not_told_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "_run", lambda _: asyncio.Event().wait())
    played = Played(an_execution(phase=Phase.STARTING))
    controller = Controller(a_context(played))
    await controller.on_pod({**played.pod, "status": {}}, deleted=False)
    await played.compare(controller)
    assert played.heard == [], "control: it is known"
    played.version = "9"
    for _ in range(2):
        await played.compare(controller)
        assert played.heard == ["read the pod"]
    await controller.stop()


async def test_no_look_reads_more_than_so_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a flood most are on their way through a watch that is well. Those who have waited longest come first."""
    monkeypatch.setattr(resyncing, "MOST", 3)
    flood = [as_listed(an_execution(name=f"run-{number}"), EXECUTION_PLURAL) for number in range(9)]
    for number, one in enumerate(flood):
        one["metadata"]["uid"] = f"uid-{number}"
    played = Played(an_execution(), labels={}, unfinished=flood[::-1])
    controller = Controller(a_context(played))
    await played.compare(controller)
    read = [one for one in played.heard if one.startswith("read")]
    assert read == [f"read {EXECUTION_PLURAL} run-{number}" for number in range(3)]
    await controller.stop()
