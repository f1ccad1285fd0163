"""An event costs the same however much else there is: nothing looks at all pools, executions, sessions or nodes for it.

What is compared is how many lines of the operator are executed for an event, with few others and with many.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from factories import IMAGE, NOW, OPEN, a_policy, a_sandbox, a_session, an_execution, seconds
from plans import proof_of
from played_context import a_context
from work_done import WorkDone

from codeexec_api import CodeSession, Limits, Phase, SandboxPool, SessionPhase, Verdict
from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL, TEMPLATE_LABEL
from codeexec_operator.adapters import pools, sweeper
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.egress_prober import EgressProber
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.placement import Placement
from codeexec_operator.adapters.pool_pods import ClaimedPod
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.cluster_view import ClusterView, NodeView
from codeexec_operator.core.observed import Room
from codeexec_operator.core.observed_pod import PodView
from codeexec_operator.core.observed_pool import Tenant
from codeexec_operator.core.placement import Claim
from codeexec_operator.core.pod_reset import Reset
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.reuse import tenant_of
from codeexec_operator.core.timing import Timing

FEW, MANY = 4, 64
HERE = "namespace-0"
SLACK = 1.1
"""Whether something expires meanwhile makes a few lines more or less; what walks does ten times as much."""


def a_raw_pool(number: int, namespace: str) -> dict[str, Any]:
    meta = {"name": "default", "namespace": namespace, "uid": f"pool-{number}", "resourceVersion": "7"}
    pool = SandboxPool.model_validate({"metadata": meta, "spec": {"replicas": 100, "image": IMAGE}})
    return pool.model_dump(mode="json", by_alias=True)


def a_raw_execution(number: int, namespace: str) -> dict[str, Any]:
    raw = an_execution(phase=Phase.RUNNING).model_dump(mode="json", by_alias=True)
    raw["metadata"] |= {"name": f"execution-{number}", "namespace": namespace, "uid": f"execution-{number}"}
    return raw


@dataclass
class Stage:
    """An operator whose API server takes every pod, and tells nothing of it."""

    pods: list[Mapping[str, Any]] = field(default_factory=list)
    policy: Any = None

    def __post_init__(self) -> None:
        metrics = Metrics("1")
        self.context = a_context(
            self,
            policy=self.policy,
            timing=Timing(pool_status=3600),  # nothing is due by the clock
            telemetry=SimpleNamespace(metrics=metrics),
            audit=AuditLog("1", metrics, lambda _: None),
        )
        self.controller = Controller(self.context)

    async def pods_in_use(self, namespace: str) -> frozenset[str]:
        return frozenset()

    @property
    def date(self) -> datetime:
        return NOW

    async def list_pods(self, namespace: str, labels: str = "") -> list[Mapping[str, Any]]:
        return []

    async def delete_pod(self, namespace: str, name: str) -> bool:
        return True

    async def create_pod(self, pod: Mapping[str, Any]) -> None:
        self.pods.append(pod)

    async def list_network_policies(self, namespace: str) -> list[Mapping[str, Any]]:
        """Each execution has one."""
        owners = [worker.meta for worker in self.controller._of(namespace)]
        return [
            {
                "metadata": {"name": "p", "uid": "p", "labels": {EXECUTION_LABEL: one.name}}
                | {"ownerReferences": [{"uid": one.uid, "controller": True}]}
            }
            for one in owners
        ]

    def a_pod_of(self, namespace: str) -> Mapping[str, Any]:
        """As the API server tells of one that was made here."""
        made = next(one for one in self.pods if one["metadata"]["namespace"] == namespace)
        labels = made["metadata"]["labels"]
        owner = {"uid": made["metadata"]["ownerReferences"][0]["uid"], "controller": True}
        meta = {"name": made["metadata"]["name"], "namespace": namespace, "uid": "pod", "ownerReferences": [owner]}
        meta |= {
            "creationTimestamp": NOW.isoformat(),
            "labels": {one: labels[one] for one in (POOL_LABEL, TEMPLATE_LABEL)},
        }
        return {"metadata": meta, "spec": {}, "status": {}}


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def same_work(measure: Callable[[int], Awaitable[int]]) -> None:
    few, many = await measure(FEW), await measure(MANY)
    assert few > 0, "control: the operator does something"
    assert many <= few * SLACK, f"{FEW} others: {few} lines; {MANY} others: {many} lines"


@pytest.mark.parametrize("congested", [False, True])
async def test_a_pod_of_one_pool_costs_the_same_however_many_pools_there_are(
    congested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_LONGEST_REST_SECONDS", 0)
    monkeypatch.setattr("codeexec_operator.core.starts.SHARED_SECONDS", 1000)  # by the clock, not for an event
    monkeypatch.setattr("codeexec_operator.core.pool.STARTS_PER_NODE", 4 if congested else 1_000_000)

    async def measure(others: int) -> int:
        stage = Stage()
        for number in range(others + 1):
            stage.controller.on_pool(a_raw_pool(number, f"namespace-{number}"), deleted=False)
            await settle()
        lost = stage.a_pod_of(HERE)
        with WorkDone() as work:
            await stage.controller.on_pod(lost, deleted=True)
            await settle()
        await stage.controller.stop()
        return work.lines

    await same_work(measure)


EVENTS: dict[str, Callable[[Controller], object]] = {
    "its policy has changed": lambda controller: controller.policy_changed(HERE),
    "what is known is asked for": lambda controller: controller.known(HERE),
    "something was missed": lambda controller: controller.missed(HERE, {"an object"}, {"a pod"}),
    "awaited payloads are asked for": lambda controller: controller.awaited_payloads(HERE),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=list(EVENTS))
async def test_an_event_of_a_namespace_costs_the_same_however_much_there_is_elsewhere(
    event: Callable[[Controller], object],
) -> None:
    async def measure(others: int) -> int:
        stage = Stage()
        for number in range(others + 1):
            stage.controller.on_execution(a_raw_execution(number, f"namespace-{number}"), deleted=False)
        with WorkDone() as work:  # before anybody has begun to work
            event(stage.controller)
        await stage.controller.stop()
        return work.lines

    await same_work(measure)


async def test_each_network_policy_is_swept_at_the_same_cost_however_many_there_are() -> None:
    async def measure(others: int) -> int:
        stage = Stage()
        for number in range(others):
            stage.controller.on_execution(a_raw_execution(number, HERE), deleted=False)
        with WorkDone() as work:  # before anybody has begun to work
            await sweeper._sweep_network_policies(stage, HERE, stage.controller)  # type: ignore[arg-type]
        await stage.controller.stop()
        return work.lines // others

    await same_work(measure)


async def test_that_a_pool_has_opened_is_told_to_executions_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Placement, "pool_opened", lambda place: told.append(place._worker.meta.namespace))
    stage = Stage()
    for number in range(FEW):
        stage.controller.on_execution(a_raw_execution(number, f"namespace-{number}"), deleted=False)
    stage.controller.on_pool(a_raw_pool(0, HERE), deleted=False)
    await settle()
    await stage.controller.stop()
    assert told == [HERE]


class PodClaimant:
    """An execution that waits."""

    woken = 0

    def __init__(self, number: int, tenant: Tenant | None = None) -> None:
        asked = Verdict(IMAGE, None)
        self.claim = Claim(str(number), NOW + seconds(number), False, asked, Limits(), tenant=tenant)
        self.pods: list[str] = []

    def wake(self) -> None:
        self.woken += 1

    def receive(self, pod: ClaimedPod) -> None:
        self.pods.append(pod.pod_name)

    def observe_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        raise AssertionError("it has none")


def a_ready_session() -> CodeSession:
    return a_session(phase=SessionPhase.READY, status={"started_at": now(), "last_used_at": now()})


async def test_a_session_goes_on_at_the_same_cost_however_many_wait_in_it() -> None:
    async def measure(others: int) -> int:
        stage = Stage()
        session = SessionWorker(
            stage.context, a_ready_session(), lambda _: None, Rooms(lambda _: Room(), lambda _: None), lambda *_: None
        )
        claimants = [PodClaimant(number) for number in range(others + 2)]
        for claimant in claimants:
            session.join(claimant)
        await settle()
        before = [claimant.woken for claimant in claimants]
        with WorkDone() as work:
            session.leave(claimants[0], ran=True)
            await settle()
            session.view_for(claimants[-1], now())
        assert claimants[1].woken > before[1], "control: whose turn it is hears of it"
        assert [claimant.woken for claimant in claimants[2:]] == before[2:]
        session.task.cancel()
        await asyncio.gather(session.task, return_exceptions=True)
        return work.lines

    await same_work(measure)


async def test_all_who_wait_hear_that_a_session_is_over() -> None:
    stage = Stage()
    session = SessionWorker(
        stage.context, a_ready_session(), lambda _: None, Rooms(lambda _: Room(), lambda _: None), lambda *_: None
    )
    claimants = [PodClaimant(number) for number in range(3)]
    for claimant in claimants:
        session.join(claimant)
    await settle()
    before = [claimant.woken for claimant in claimants]
    session.observe_deletion()
    await asyncio.wait([session.task], timeout=100)
    assert all(claimant.woken > known for claimant, known in zip(claimants, before, strict=True))


async def test_a_place_in_the_line_of_a_pool_is_found_at_the_same_cost_however_many_wait() -> None:
    async def measure(others: int) -> int:
        stage = Stage()
        stage.controller.on_pool(a_raw_pool(0, HERE), deleted=False)
        pool: Any = next(iter(stage.controller._of(HERE)))
        for number in range(others):
            pool.join(PodClaimant(-number))
        last = PodClaimant(-others)  # the earliest of all
        with WorkDone() as work:
            pool.join(last)
            assert pool.view_for(last, NOW).position == 0
            pool.leave(last, None)
        await stage.controller.stop()
        return work.lines

    await same_work(measure)


def a_tenant(name: str) -> Tenant:
    found = tenant_of(an_execution(requestedBy=name), Verdict(IMAGE, None))
    assert found
    return found


async def a_pool_that_keeps_a_pod(tenant: Tenant) -> tuple[Stage, Any, Any]:
    """With the pool, and the connection to that pod; its runner has not told yet that the pod is clean."""
    stage = Stage(policy=a_policy(podReuse={"maxExecutions": 5}))
    stage.controller.on_pool(a_raw_pool(0, HERE), deleted=False)
    pool: Any = next(iter(stage.controller._of(HERE)))
    await settle()
    sandbox, template = a_sandbox(), template_of(pool._seen)
    assert isinstance(template, Template)
    connection: Any = SimpleNamespace(view=sandbox.runner, changed=None, close=lambda: None)
    used = ClaimedPod("used", sandbox, connection, proof_of(sandbox), template, now())
    pool.claims.taken["used"] = PodClaimant(0)
    assert pool.claims.keep(used, tenant, "last")
    return stage, pool, connection


async def test_who_joins_costs_the_same_however_many_wait_while_a_pod_of_somebody_else_is_kept() -> None:
    async def measure(others: int) -> int:
        stage, pool, connection = await a_pool_that_keeps_a_pod(a_tenant("alice"))
        connection.view = replace(connection.view, reset=Reset("last", True, (), "", 1))
        for number in range(others):
            pool.join(PodClaimant(number, a_tenant("bob")))
        with WorkDone() as work:
            pool.join(PodClaimant(others, a_tenant("bob")))
        hers = PodClaimant(others + 1, a_tenant("alice"))
        pool.join(hers)
        assert hers.pods == ["used"], "control: it can be had"
        await stage.controller.stop()
        return work.lines

    await same_work(measure)


async def test_who_has_waited_longest_gets_the_pod_of_its_tenant_though_another_joins_when_it_is_clean() -> None:
    stage, pool, connection = await a_pool_that_keeps_a_pod(a_tenant("alice"))
    first, gone, last = (PodClaimant(number, a_tenant("alice")) for number in (1, 0, 2))
    pool.join(first)
    pool.join(gone)
    pool.leave(gone, None)
    assert first.pods == [], "control: it is not clean yet"
    connection.view = replace(connection.view, reset=Reset("last", True, (), "", 1))
    pool.join(last)
    assert [first.pods, gone.pods, last.pods] == [["used"], [], []]
    await stage.controller.stop()


async def test_what_is_known_of_a_node_is_found_at_the_same_cost_however_many_nodes_there_are() -> None:
    async def measure(others: int) -> int:
        nodes = tuple(NodeView(f"node-{number}", "", 0, OPEN, frozenset({""})) for number in range(others + 1))
        service: Any = ("codeexec", "canary")
        prober = EgressProber(SimpleNamespace(), canary_service=service, canary_port=1, never_permit=())  # type: ignore[arg-type]
        prober.view = ClusterView(nodes=nodes)
        pod = PodView(running=True, node_name="node-0")

        def look() -> None:
            around = prober.view_from(pod)
            assert around.user_namespace(None)
            assert around.boot_id("node-0") == ""

        look()  # once for what was seen
        with WorkDone() as work:
            look()
        return work.lines

    await same_work(measure)
