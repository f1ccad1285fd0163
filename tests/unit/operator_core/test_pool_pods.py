"""Which pods a pool takes over, and what it knows of those that it has asked for."""

from types import SimpleNamespace
from typing import Any

import pytest
from factories import NOW, a_raw_pod, a_sandbox, an_execution, seconds
from kubernetes.aio.client.exceptions import ApiException
from plans import proof_of
from played_cluster import PlayedCluster
from played_context import a_context
from polling import settled, until

from codeexec_api import SandboxPool
from codeexec_api.names import POOL_LABEL, TEMPLATE_LABEL
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.adapters.pool_pods import PoolPods
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.observed import Room
from codeexec_operator.core.starts import Starts


async def test_a_pool_that_is_made_anew_takes_no_pod_of_the_one_before() -> None:
    def a_pod_of(uid: str) -> dict[str, Any]:
        labels = {POOL_LABEL: "default", TEMPLATE_LABEL: "x"}
        owners = [{"uid": uid, "controller": True}]
        metadata = {"name": f"of-{uid}", "creationTimestamp": NOW.isoformat(), "labels": labels}
        return {"metadata": {**metadata, "ownerReferences": owners}, "spec": {}, "status": {"phase": "Running"}}

    async def list_pods(*_: str) -> list[dict[str, Any]]:
        return [a_pod_of("old"), a_pod_of("new")]

    async def pods_in_use(_: str) -> set[str]:
        return set()

    context: Any = SimpleNamespace(cluster=SimpleNamespace(list_pods=list_pods, pods_in_use=pods_in_use, date=NOW))
    meta = ObjectMeta(name="default", namespace="box", uid="new")
    pods = PoolPods(context, meta, Starts(lambda _: None), lambda: None)
    await pods.take_over("default")
    assert pods.members.keys() == {"of-new"}


@pytest.mark.parametrize("skew", [-300, 0, 300], ids="{:+d}s".format)
async def test_a_pod_that_is_taken_over_is_as_old_as_the_api_server_says_whatever_the_clock_here_is(skew: int) -> None:
    """How long it took to be ready stands in the status of the pool, where no negative number may."""
    here, age = now(), seconds(100)
    date = here + seconds(skew)
    labels = {POOL_LABEL: "default", TEMPLATE_LABEL: "x"}
    metadata = {"name": "found", "creationTimestamp": (date - age).isoformat(), "labels": labels}
    metadata |= {"ownerReferences": [{"uid": "1", "controller": True}]}
    started = {"phase": "Running", "startTime": (date + seconds(skew)).isoformat()}
    raw = {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": started}

    async def list_pods(*_: str) -> list[dict[str, Any]]:
        return [raw]

    async def pods_in_use(_: str) -> set[str]:
        return set()

    context: Any = SimpleNamespace(cluster=SimpleNamespace(list_pods=list_pods, pods_in_use=pods_in_use, date=date))
    pods = PoolPods(context, ObjectMeta(name="default", namespace="box", uid="1"), Starts(lambda _: None), lambda: None)
    await pods.take_over("default")
    found = pods.members["found"]
    assert here - age <= found.created_at <= now() - age
    assert found.since
    assert here <= found.since <= now()
    assert found.sandbox.placed_at
    assert here <= found.sandbox.placed_at <= now()
    assert age <= pods.admit("found", proof_of(a_sandbox())) <= now() - here + age


@pytest.mark.parametrize("error", [ApiException(status=503), ApiException(status=429), TimeoutError()], ids=repr)
async def test_a_pod_without_an_answer_counts_and_is_asked_for_again(error: Exception) -> None:
    failures = [error]

    async def create_pod(_: Any) -> None:
        if failures:
            raise failures.pop()

    context: Any = SimpleNamespace(cluster=SimpleNamespace(create_pod=create_pod))
    meta = ObjectMeta(name="default", namespace="box", uid="1")
    pods = PoolPods(context, meta, Starts(lambda _: None), lambda: None)
    manifest = {"metadata": {"labels": {TEMPLATE_LABEL: "x"}}}
    with pytest.raises(type(error)):
        await pods.create("default-1", manifest)
    begun = pods.members["default-1"]
    assert (begun.sandbox.requested, pods.starting) == (False, 1)
    await pods.create("default-1", manifest)
    asked = pods.members["default-1"]
    assert (asked.sandbox.requested, asked.created_at, pods.starting) == (True, begun.created_at, 1)


async def test_a_pod_that_may_have_been_made_is_not_forgotten_when_the_quota_refuses_it() -> None:
    """The second request meets the quota before its name, so it says nothing of the first."""
    failures = [ApiException(status=409), TimeoutError()]

    async def create_pod(_: Any) -> None:
        if failures:
            raise failures.pop()

    context: Any = SimpleNamespace(cluster=SimpleNamespace(create_pod=create_pod))
    pods = PoolPods(context, ObjectMeta(name="default", namespace="box", uid="1"), Starts(lambda _: None), lambda: None)
    manifest = {"metadata": {"labels": {TEMPLATE_LABEL: "x"}}}
    with pytest.raises(TimeoutError):
        await pods.create("default-1", manifest)
    await pods.create("default-1", manifest)
    assert not pods.members["default-1"].sandbox.requested
    failures.append(ApiException(status=409))
    await pods.create("default-2", manifest)
    assert pods.members.keys() == {"default-1"}, "control: who is refused at first was not made"


async def test_a_look_that_is_answered_late_does_not_bring_back_a_pod_that_is_gone() -> None:
    async def create_pod(_: Any) -> None:
        return None

    context: Any = SimpleNamespace(cluster=SimpleNamespace(create_pod=create_pod))
    pods = PoolPods(context, ObjectMeta(name="default", namespace="box", uid="1"), Starts(lambda _: None), lambda: None)
    await pods.create("default-1", {"metadata": {"labels": {TEMPLATE_LABEL: "x"}}})
    for version, deleted in ((5, False), (6, True), (5, False)):
        metadata = {"name": "default-1", "resourceVersion": str(version)}
        pods.observe({"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}, deleted=deleted)
    sandbox = pods.members["default-1"].sandbox
    assert sandbox.pod
    assert (sandbox.gone, sandbox.pod.version) == (True, 6)


@pytest.mark.parametrize("missed", [False, True], ids=["at once", "after a look that missed it"])
async def test_a_pod_that_is_made_after_it_was_given_up_and_not_found_is_deleted(missed: bool) -> None:
    """Its request got no answer, and was carried out late."""

    class Late(PlayedCluster):
        async def create_pod(self, pod: Any) -> Any:
            self.heard.append(pod["metadata"]["name"])
            raise TimeoutError

        async def pods_in_use(self, _: str) -> set[str]:
            return set()

        async def write_status(self, seen: Any, status: Any) -> Any:
            return seen.model_copy(update={"status": status})

    def pool(replicas: int) -> SandboxPool:
        meta = {"name": "default", "namespace": "box", "uid": "1"}
        meta |= {"resourceVersion": str(8 - replicas), "generation": 2 - replicas}
        return SandboxPool.model_validate({"metadata": meta, "spec": {"replicas": replicas}})

    cluster: Any = Late(an_execution())
    rooms, starts = Rooms(lambda _: Room(), lambda _: None), Starts(lambda _: None)
    worker = PoolWorker(
        a_context(cluster), pool(1), starts=starts, rooms=rooms, forget=lambda _: None, opened=lambda _: None
    )
    await until(lambda: cluster.heard, seconds=10)
    [name] = cluster.heard
    worker.observe(pool(0))
    await until(lambda: f"delete pod {name}" in cluster.heard, seconds=10)
    cluster.heard.clear()
    if missed:
        await settled()
        worker.lose_pods(worker.pods().keys())
    made: Any = pool(0)
    worker.observe_pod(a_raw_pod(made, name=name), deleted=False)
    await until(lambda: f"delete pod {name}" in cluster.heard, seconds=10)
    worker.observe_pod(a_raw_pod(made, name=name, version=6, deletionTimestamp=NOW.isoformat()), deleted=False)
    worker.observe_pod(a_raw_pod(made, name=name, version=7), deleted=True)
    await settled()
    assert (cluster.heard, worker.pods()) == ([f"delete pod {name}"], {})
    await worker.end()
