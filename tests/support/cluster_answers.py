"""What the operator may rely on when it talks to the API server: cases for the real doorway, and for the played one.

The operator's decisions are tested against `played_cluster.py`. It passes the same cases as `adapters.cluster.Cluster`
passes before a real API server, so the two can't differ in what these cases show.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from factories import IMAGE
from kubernetes.aio.client.exceptions import ApiException
from played_cluster import POD_REFUSED

from codeexec_api import CodeExecution, CodeExecutionStatus, Phase
from codeexec_api.v1alpha1.execution_status import OpenedEgress
from codeexec_operator.manifests.network_policy import build_network_policy
from codeexec_operator.manifests.pod import build_pod

PERMIT = {"cidr": "10.1.2.3/32", "port": 443}
SPEC: dict[str, Any] = {"egress": [PERMIT], "limits": {"cpu": "50m", "memory": "64Mi", "ephemeralStorage": "16Mi"}}
"""Of the execution that is on the stage, beside what every one has."""
STARTING = CodeExecutionStatus.model_validate({"phase": Phase.STARTING, "podName": "run-1"})
CANCELLED = CodeExecutionStatus.model_validate({"phase": Phase.CANCELLED, "reason": "CancelRequested"})


@dataclass
class Stage:
    """A doorway, an execution that is stored there with SPEC, and a way to delete it."""

    cluster: Any
    execution: CodeExecution
    forget: Callable[[], Awaitable[None]]

    async def stored(self) -> CodeExecution | None:
        meta = self.execution.metadata
        found: CodeExecution | None = await self.cluster.get_execution(meta.namespace, meta.name)
        return found

    async def refusal_of(self, seen: CodeExecution, status: CodeExecutionStatus) -> int | None:
        """The status of the answer to a write that is refused."""
        with pytest.raises(ApiException) as refused:
            await self.cluster.write_status(seen, status)
        return refused.value.status


async def a_status_is_written_and_has_a_later_version(stage: Stage) -> None:
    written = await stage.cluster.write_status(stage.execution, STARTING)
    assert written.status == STARTING
    assert written.spec == stage.execution.spec
    assert int(written.metadata.resource_version) > int(stage.execution.metadata.resource_version)
    assert await stage.stored() == written


async def what_is_no_longer_so_is_taken_back(stage: Stage) -> None:
    written = await stage.cluster.write_status(stage.execution, STARTING)
    again = await stage.cluster.write_status(written, CANCELLED)
    assert again.status == CANCELLED
    assert await stage.stored() == again


async def what_has_changed_since_it_was_seen_is_not_written(stage: Stage) -> None:
    written = await stage.cluster.write_status(stage.execution, STARTING)
    assert await stage.refusal_of(stage.execution, CANCELLED) == 409
    assert await stage.stored() == written


async def what_is_gone_is_not_written(stage: Stage) -> None:
    await stage.forget()
    assert await stage.refusal_of(stage.execution, STARTING) == 404
    assert await stage.stored() is None


async def a_pod_is_made_and_deleted_as_often_as_one_likes(stage: Stage) -> None:
    pod = build_pod(stage.execution, image=IMAGE, deadline_seconds=60)
    for _ in range(2):
        assert await stage.cluster.create_pod(pod) is None
    where = pod["metadata"]["namespace"], pod["metadata"]["name"]
    assert [await stage.cluster.delete_pod(*where) for _ in range(2)] == [True, False]


async def a_pod_that_our_admission_policy_refuses_is_a_fault_that_says_so(stage: Stage) -> None:
    foreign = f"registry.example/of-others@{IMAGE.partition('@')[2]}"
    fault = await stage.cluster.create_pod(build_pod(stage.execution, image=foreign, deadline_seconds=60))
    assert (fault.reason, fault.admission) == (POD_REFUSED.reason, POD_REFUSED.admission)
    assert fault.message.startswith(POD_REFUSED.message)


async def a_network_policy_is_made_and_deleted_as_often_as_one_likes(stage: Stage) -> None:
    [permit] = stage.execution.spec.egress
    policy = build_network_policy(stage.execution, [OpenedEgress.model_validate({"permit": str(permit)})])
    meta = policy["metadata"]
    for _ in range(2):
        assert await stage.cluster.create_network_policy(policy) is None
    for _ in range(2):
        assert await stage.cluster.delete_network_policy(meta["namespace"], meta["name"]) is None


async def a_payload_that_is_gone_is_deleted(stage: Stage) -> None:
    meta = stage.execution.metadata
    assert await stage.cluster.delete_payload(meta.namespace, "gone", meta.uid) is None


async def a_namespace_without_a_policy_has_none(stage: Stage) -> None:
    assert await stage.cluster.get_policy(stage.execution.metadata.namespace) is None


CASES: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    a_status_is_written_and_has_a_later_version,
    what_is_no_longer_so_is_taken_back,
    what_has_changed_since_it_was_seen_is_not_written,
    what_is_gone_is_not_written,
    a_pod_is_made_and_deleted_as_often_as_one_likes,
    a_pod_that_our_admission_policy_refuses_is_a_fault_that_says_so,
    a_network_policy_is_made_and_deleted_as_often_as_one_likes,
    a_payload_that_is_gone_is_deleted,
    a_namespace_without_a_policy_has_none,
)
