"""The order in which a worker opens, starts and closes: what the API server hears, which is played here.

test_played_cluster.py holds it to the answers of a real one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from factories import (
    AGENT,
    CLUSTER_VIEW,
    OPEN,
    TARGET,
    a_pod,
    a_policy,
    a_raw_block,
    a_secret,
    an_approval,
    an_execution,
    seconds,
)
from kubernetes.aio.client.exceptions import ApiException
from played_cluster import POD_REFUSED, REFUSED, PlayedCluster
from played_context import a_context, a_register
from polling import settled, until

from codeexec_api import CodeExecution, CodeExecutionStatus, ExecutionApproval, ExecutionPolicySpec, Phase
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.core import backoff
from codeexec_operator.core.cluster_view import NodeView
from codeexec_operator.core.observed_pod import Fault
from codeexec_operator.core.payload import Payload
from codeexec_operator.core.timing import Timing

PERMIT = {"cidr": "10.1.2.3/32", "port": 443}
NODE = NodeView("node-1", "172.18.0.2", 10250, OPEN, frozenset(), frozenset({"172.18.0.2"}))
SEEN = replace(CLUSTER_VIEW, required=(TARGET,), nodes=(NODE,), api_servers=frozenset({"172.18.0.2"}))


@dataclass
class Played(PlayedCluster):
    """An API server with one execution, on which something may go wrong."""

    fault: Fault | None = None
    secret: Any = field(default_factory=a_secret)
    stale_admission: int = 0
    """How many pods an admission policy refuses that is older than the operator's configuration."""
    just_changed: bool = True
    """False: that configuration has been in force for long."""
    failures: int = 0
    """How many times a policy can't be deleted, before it can."""
    conflicts: int = 0
    """How many statuses are refused, because the execution was cancelled at that moment."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    timing: Timing = field(default_factory=Timing)

    def cancel(self, seen: CodeExecution) -> CodeExecution:
        return self.store(seen, spec=seen.spec.model_copy(update={"cancelled": True}))

    async def write_status(self, seen: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        if self.conflicts:
            self.conflicts -= 1
            self.cancel(seen)
            await self.until("create pod run-1-0f8fad5b")
        return await super().write_status(seen, status)

    async def create_network_policy(self, policy: Any) -> Fault | None:
        await asyncio.sleep(0.01)
        return await super().create_network_policy(policy) or self.fault

    async def create_pod(self, pod: Any) -> Fault | None:
        fault = await super().create_pod(pod)
        self.stale_admission -= 1
        return POD_REFUSED if self.stale_admission >= 0 else fault

    async def delete_network_policy(self, namespace: str, name: str) -> None:
        await super().delete_network_policy(namespace, name)
        if self.failures:
            self.failures -= 1
            raise TimeoutError

    def begin(self, policy: ExecutionPolicySpec | None = None) -> ExecutionWorker:
        metrics = SimpleNamespace(retried=lambda _: None, unexpected=lambda: self.heard.append("unexpected"))
        context = a_context(
            self,
            policy=policy or a_policy(egress=[PERMIT]),
            view=SEEN,
            telemetry=SimpleNamespace(execution_over=lambda *_: None, metrics=metrics),
            payloads=SimpleNamespace(seen=lambda *_: True, take=lambda *_: self.secret),
            timing=self.timing,
        )
        context.policies.just_changed = self.just_changed
        return ExecutionWorker(context, self.execution, a_register(), lambda _: self.ended.set())

    async def until(self, words: str) -> None:
        await until(lambda: words in self.heard, every=0.01)


class Approved(Played):
    """An API server that takes its time with Secrets."""

    outage = 0
    """How many requests for a Secret it doesn't answer."""
    fault_of_approval: Exception | None = None
    """What becomes of the first write of `Approved`. A TimeoutError: the answer is lost."""
    meanwhile: Callable[[], None] = staticmethod(lambda: None)
    """What happens while that write fails."""

    async def publish_code(self, execution: CodeExecution, payload: Payload) -> None:
        await asyncio.sleep(0.01)
        if self.outage:
            self.outage -= 1
            raise ConnectionRefusedError
        self.heard.append("publish code")

    async def withdraw_code(self, execution: CodeExecution) -> None:
        self.heard.append("withdraw code")

    async def write_status(self, seen: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        fault, self.fault_of_approval = self.fault_of_approval, None
        if status.phase is Phase.APPROVED and fault:
            for _ in range(50):  # whatever is done at the same time is done first
                await asyncio.sleep(0)
            if isinstance(fault, TimeoutError):
                await super().write_status(seen, status)
            self.meanwhile()
            raise fault
        self.fault_of_approval = fault
        self.heard.append(status.phase.value)
        return await super().write_status(seen, status)

    async def list_approvals(self, namespace: str, execution: str) -> list[Any]:
        return []


async def stopped(played: Played, worker: ExecutionWorker) -> None:
    worker.observe(played.cancel(played.execution))
    await played.until("delete policy run-1-0f8fad5b")
    worker.observe_pod({"metadata": {"name": "run-1-0f8fad5b"}}, deleted=True)
    await asyncio.wait_for(played.ended.wait(), 60)


async def test_the_policy_is_there_before_the_pod_and_is_gone_after_it() -> None:
    played = Played(an_execution(egress=[PERMIT]))
    worker = played.begin()
    await played.until("create pod run-1-0f8fad5b")
    assert played.heard == ["create policy run-1-0f8fad5b", "create pod run-1-0f8fad5b"]
    await stopped(played, worker)
    assert "delete policy run-1-0f8fad5b" in played.heard[2:]


async def test_an_execution_ends_though_nobody_tells_that_its_pod_is_gone() -> None:
    """As where its namespace is not served any more: the second request to delete the pod finds none."""
    played = Played(an_execution(), timing=Timing(grace=0.01, exit_grace=0.01, list_grace=0.01))
    worker = played.begin()
    await played.until("create pod run-1-0f8fad5b")
    worker.sandbox = replace(worker.sandbox, pod=a_pod())
    worker.observe(played.cancel(played.execution))
    await asyncio.wait_for(played.ended.wait(), 60)
    assert played.heard.count("delete pod run-1-0f8fad5b") == 2


async def test_the_policy_goes_though_nothing_is_on_record_of_it() -> None:
    played = Played(an_execution(egress=[PERMIT]), conflicts=1)
    worker = played.begin()
    await played.until("delete policy run-1-0f8fad5b")
    worker.observe_pod({"metadata": {"name": "run-1-0f8fad5b"}}, deleted=True)
    await asyncio.wait_for(played.ended.wait(), 60)
    assert (played.execution.status.phase, played.execution.status.egress) == ("Cancelled", ())


async def test_without_a_policy_there_is_no_pod() -> None:
    played = Played(an_execution(egress=[PERMIT]), fault=REFUSED)
    played.begin()
    await asyncio.wait_for(played.ended.wait(), 60)
    assert "create pod run-1-0f8fad5b" not in played.heard
    assert played.execution.status.reason == "EgressNotEnforced"
    assert played.execution.status.started_at is None


async def test_a_pod_that_admission_refuses_right_after_a_change_is_asked_for_again() -> None:
    played = Played(an_execution(), stale_admission=1)
    worker = played.begin()
    await until(lambda: played.heard == ["create pod run-1-0f8fad5b"] * 2, every=0.01)
    assert played.execution.status.phase is Phase.STARTING
    worker.observe_deletion()
    await asyncio.wait_for(played.ended.wait(), 60)


async def test_a_pod_that_admission_refuses_otherwise_is_an_end_with_a_reason() -> None:
    played = Played(an_execution(), stale_admission=1, just_changed=False)
    played.begin()
    await asyncio.wait_for(played.ended.wait(), 60)
    assert (played.execution.status.phase, played.execution.status.reason) == (Phase.FAILED, "PodRefused")


async def test_a_policy_that_can_not_be_deleted_is_tried_again() -> None:
    played = Played(an_execution(egress=[PERMIT]), failures=2)
    worker = played.begin()
    await played.until("create pod run-1-0f8fad5b")
    await stopped(played, worker)
    assert played.heard.count("delete policy run-1-0f8fad5b") == 3


async def test_an_execution_without_permits_makes_and_deletes_none() -> None:
    played = Played(an_execution())
    worker = played.begin()
    await played.until("create pod run-1-0f8fad5b")
    worker.observe_deletion()
    await asyncio.wait_for(played.ended.wait(), 60)
    assert not [one for one in played.heard if "policy" in one]


CODE_RULES = [{"action": "Deny", "imports": ["os"]}, {"action": "Note", "imports": ["json"]}]


@pytest.mark.parametrize(
    ("code", "phase"), [(b"import os", Phase.DENIED), (b"!ls", Phase.DENIED), (b"import json", None)]
)
@pytest.mark.usefixtures("reading_takes_its_time")
async def test_code_is_read_before_there_is_a_pod(code: bytes, phase: Phase | None) -> None:
    played = Played(an_execution(blocks=[a_raw_block(code)]), secret=a_secret([code]))
    worker = played.begin(a_policy(codeRules=CODE_RULES))
    if phase is None:
        await played.until("create pod run-1-0f8fad5b")
        worker.observe_deletion()
    await asyncio.wait_for(played.ended.wait(), 60)
    assert played.heard == (["create pod run-1-0f8fad5b"] if phase is None else [])
    [found] = played.execution.status.code_findings
    assert found.action == ("Note" if phase is None else "Deny")
    assert played.execution.status.phase is (phase or Phase.STARTING)


@pytest.mark.parametrize("outage", [0, 20])
async def test_code_can_be_read_when_the_record_says_that_it_is_to_be_approved(monkeypatch, outage: int) -> None:
    """Who watches the record reads the code at once. In an outage that the leader survives many tries fail at once."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.001)
    sealed = {"payloadRef": None, "sealedPayload": {"keyName": "key-1", "data": "AAAA"}}
    played = Approved(an_execution(limits={"memory": "3Gi"}, **sealed))
    monkeypatch.setattr("codeexec_operator.adapters.request_reader.open_payload", lambda *_: Payload((b"print(1)",)))
    played.outage = outage
    played.begin(a_policy(withApproval={"maxLimits": {"memory": "4Gi"}}))
    await played.until("AwaitingApproval")
    assert played.heard == ["publish code", "AwaitingApproval"]


def a_decision(version: int, **spec: Any) -> ExecutionApproval:
    now = datetime.now(UTC)
    decision = an_approval(created=now, expiresAt=now + seconds(3600), **spec)
    metadata = decision.metadata.model_copy(update={"resource_version": str(version)})
    return decision.model_copy(update={"metadata": metadata})


@pytest.mark.parametrize(
    ("fault", "then"),
    [
        (None, ["Approved", "withdraw code"]),
        (TimeoutError(), ["withdraw code"]),
        (ApiException(status=503), ["AwaitingApproval"]),
    ],
    ids=["written", "written, but the answer is lost", "refused"],
)
async def test_code_can_be_read_until_the_decision_is_on_record(
    monkeypatch, fault: Exception | None, then: list[str]
) -> None:
    """If the approval is revoked before another try, the next person decides about code that is still there."""
    sealed = {"payloadRef": None, "sealedPayload": {"keyName": "key-1", "data": "AAAA"}}
    played = Approved(an_execution(limits={"memory": "2Gi"}, requestedBy=AGENT, **sealed))
    monkeypatch.setattr("codeexec_operator.adapters.request_reader.open_payload", lambda *_: Payload((b"print(1)",)))
    worker = played.begin(a_policy(withApproval={"maxLimits": {"memory": "4Gi"}}))
    await until(lambda: worker.phase is Phase.AWAITING_APPROVAL and worker.approvals.known is not None)
    await settled()
    revoked = a_decision(11, revoked=True, revokedBy="anna")
    played.fault_of_approval = fault
    if not isinstance(fault, TimeoutError):
        played.meanwhile = lambda: worker.approvals.observe(revoked, deleted=False)
    played.heard.clear()
    worker.approvals.observe(a_decision(10), deleted=False)
    await until(lambda: set(then) & set(played.heard))
    await settled()
    assert played.heard[: len(then)] == then
    assert ("withdraw code" in played.heard) is (played.execution.status.phase is not Phase.AWAITING_APPROVAL)
    worker.observe_deletion()
    await asyncio.wait_for(played.ended.wait(), 60)


async def test_code_that_a_runner_tells_of_is_not_held_here() -> None:
    """An operator that was restarted has read it, because it may never have got to the runner."""
    worker = Played(an_execution(phase=Phase.RUNNING)).begin()
    worker.task.cancel()
    worker._seen = replace(worker._seen, payload=Payload((b"print()",)))
    held = []
    for missing in ("NeverBegun", ""):
        worker._code.resumed(missing)
        worker._decide()
        held.append(worker._seen.payload is not None)
    assert held == [True, False]
