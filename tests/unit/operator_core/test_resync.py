"""What is found by comparing lists, where an event was missed or could not be used."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from factories import UID, an_execution
from kubernetes.aio.client.exceptions import ApiException
from played_cluster import PlayedCluster
from played_context import a_context

from codeexec_api import CodeExecution, Phase
from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL, pod_name
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.resync import resync

POD = pod_name("run-1", UID)


@dataclass
class Played(PlayedCluster):
    """An API server with the pod of one execution."""

    labels: dict[str, str] = field(default_factory=lambda: {EXECUTION_LABEL: "run-1"})
    fails: bool = False
    failure: Exception = field(default_factory=lambda: ApiException(status=500))

    @property
    def pod(self) -> Mapping[str, Any]:
        meta = self.execution.metadata
        owner = {"kind": "CodeExecution", "name": meta.name, "uid": meta.uid, "controller": True}
        metadata = {"name": POD, "namespace": meta.namespace, "labels": self.labels, "ownerReferences": [owner]}
        return {"metadata": metadata, "spec": {}, "status": {"phase": "Succeeded"}}

    @property
    def is_there(self) -> bool:
        return not any(one.startswith("delete pod") for one in self.heard)

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        if self.fails:
            raise self.failure
        return await super().get_execution(namespace, name)

    async def list_unfinished(self, namespace: str) -> list[Mapping[str, Any]]:
        return []

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
