"""The operator's doorway to the API server, played: it has one execution, and takes down what it is asked to do.

`cluster_answers.py` holds it and the real doorway to the same answers: here by `unit`, there by `api`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from factories import IMAGE, NOW
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeExecutionStatus, Reason
from codeexec_operator.core.observed_pod import Fault

REFUSED = Fault(Reason.EGRESS_NOT_ENFORCED, "the API server refused the NetworkPolicy")
"""What becomes of a NetworkPolicy that admission refuses: this reason, and a message that begins so."""
POD_REFUSED = Fault(Reason.POD_REFUSED, "the API server refused the pod: ", admission=True)
"""The same of a pod that one of the chart's admission policies refuses."""
OURS = IMAGE.partition("@")[0]
"""The only repository that images may come from."""


@dataclass
class PlayedCluster:
    """Answers as the API server does as long as nothing is wrong; a test that wants something wrong overrides it."""

    execution: CodeExecution
    gone: bool = False
    heard: list[str] = field(default_factory=list)
    pods: set[str] = field(default_factory=set)

    def store(self, seen: CodeExecution, **changes: Any) -> CodeExecution:
        """The next version of the record."""
        version = str(int(self.execution.metadata.resource_version) + 1)
        metadata = seen.metadata.model_copy(update={"resource_version": version})
        self.execution = seen.model_copy(update={"metadata": metadata, **changes})
        return self.execution

    async def write_status(self, seen: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        if self.gone:
            raise ApiException(status=404)
        if seen.metadata.resource_version != self.execution.metadata.resource_version:
            raise ApiException(status=409)
        return self.store(seen, status=status)

    async def get_execution(self, namespace: str, name: str) -> CodeExecution | None:
        return None if self.gone else self.execution

    async def get_policy(self, namespace: str) -> Mapping[str, Any] | None:
        return None

    async def create_network_policy(self, policy: Any) -> Fault | None:
        self.heard.append(f"create policy {policy['metadata']['name']}")
        return None

    async def delete_network_policy(self, namespace: str, name: str) -> None:
        self.heard.append(f"delete policy {name}")

    async def create_pod(self, pod: Any) -> Fault | None:
        self.heard.append(f"create pod {pod['metadata']['name']}")
        if any(not one["image"].startswith(OURS) for one in pod["spec"]["containers"]):
            return POD_REFUSED
        self.pods.add(pod["metadata"]["name"])
        return None

    @property
    def date(self) -> datetime:
        return NOW

    async def list_pods(self, namespace: str, labels: str = "") -> list[Mapping[str, Any]]:
        return []

    async def find_pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return None

    async def delete_pod(self, namespace: str, name: str) -> bool:
        self.heard.append(f"delete pod {name}")
        there = name in self.pods
        self.pods.discard(name)
        return there

    async def delete_payload(self, namespace: str, name: str, uid: str) -> None:
        pass
