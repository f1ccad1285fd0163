"""What the operator looks at, and when: nodes seldom, and at once for a pod whose node it doesn't know."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from factories import a_pod
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api.scheduling import PLAIN, Scheduling
from codeexec_operator.adapters import egress_prober
from codeexec_operator.core.cluster_view import NodeView, RuntimeClass
from codeexec_operator.core.egress import FRESH, Target

SERVICE = ("codeexec-system", "codeexec-canary")


class Played:
    """An API server with these nodes."""

    def __init__(self) -> None:
        self.names = ["node-1"]
        self.classes: dict[str, RuntimeClass] = {}
        self.kubelets: dict[str, tuple[str, int]] = {}
        self.answers = 200
        """To a list of nodes."""

    async def get_service_targets(self, namespace: str, name: str) -> list[tuple[str, int]]:
        return [("127.0.0.1", 1)] if (namespace, name) == SERVICE else []

    async def list_nodes(self, schedulings: Collection[Scheduling]) -> list[NodeView]:
        if self.answers != 200:
            raise ApiException(status=self.answers)
        at = {name: self.kubelets.get(name, ("", 0)) for name in self.names}
        return [NodeView(name, *at[name], frozenset(schedulings), frozenset()) for name in self.names]

    async def list_api_servers(self) -> frozenset[str]:
        return frozenset()

    async def list_runtime_classes(self) -> dict[str, RuntimeClass]:
        return dict(self.classes)


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Makes probers whose canary is not open yet, in a cluster without a name server and an API server."""
    monkeypatch.setattr(egress_prober, "_name_servers", lambda _: [])
    for limit in ("TARGETS_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(egress_prober, limit, 60)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    made = []

    async def make(service: tuple[str, str] = SERVICE) -> tuple[Any, Played]:
        cluster: Any = Played()
        made.append(egress_prober.EgressProber(cluster, canary_service=service, canary_port=0, never_permit=()))
        await made[-1].open()
        return made[-1], cluster

    yield make
    for one in made:
        await one.close()


async def test_a_node_that_has_joined_is_looked_at_when_a_pod_is_there(make: Any) -> None:
    ours, cluster = await make()
    await ours.know()
    cluster.names.append("node-2")

    async def known() -> set[str]:
        await ours.look()
        return {node.name for node in ours.view.nodes}

    ours.view_from(None, a_pod(node_name=""), a_pod(node_name="node-1"))
    assert await known() == {"node-1"}
    ours.view_from(a_pod(node_name="node-2"))
    assert await known() == {"node-1", "node-2"}


async def test_a_runtime_class_that_changes_has_its_own_nodes_from_the_next_look_on(make: Any) -> None:
    ours, cluster = await make()
    for scheduling in (Scheduling((("pool", "a"),)), Scheduling((("pool", "b"),))):
        cluster.classes = {"boxes": RuntimeClass("runc", scheduling), "gvisor": RuntimeClass("runsc")}
        ours._looks_until_nodes = 0
        await ours.look()
        assert ours.view.runtime_classes == cluster.classes
        assert ours.view.nodes[0].meant_for == {PLAIN, scheduling}


async def test_the_canary_is_tried_at_the_address_of_its_service(make: Any) -> None:
    ours, _ = await make()
    await ours.know()
    assert ours.view.required == (Target("canary", "127.0.0.1", 1),)


async def test_without_an_address_of_the_canary_nothing_begins(make: Any) -> None:
    ours, _ = await make(("codeexec-system", "other"))
    with pytest.raises(LookupError, match="Service 'other' in namespace 'codeexec-system' has no clusterIP"):
        await ours.know()


async def test_nothing_begins_until_nodes_are_known_or_may_not_be_listed(make: Any) -> None:
    """Without nodes, an execution with permits is denied for good: a moment's fault must not do that."""
    ours, cluster = await make()
    cluster.answers = 503
    with pytest.raises(ApiException):
        await ours.know()
    cluster.answers = 403
    await ours.know()
    cluster.answers = 200
    await ours.look()
    assert [node.name for node in ours.view.nodes] == ["node-1"]
    cluster.answers, ours._looks_until_nodes = 503, 0
    await ours.look()
    assert [node.name for node in ours.view.nodes] == ["node-1"], "what was seen last counts"


@pytest.fixture
async def listener() -> AsyncIterator[asyncio.Server]:
    """Answers whoever connects to it."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield server


def kubelet_at(listener: asyncio.Server) -> Target:
    return Target("kubelet", *listener.sockets[0].getsockname()[:2])


async def test_what_a_pod_was_told_to_try_is_looked_at_whatever_others_are_told(make: Any, listener: Any) -> None:
    """Finding B3: a node that joins changes which kubelets are chosen, and pods in flight name the others."""
    ours, cluster = await make()
    named = kubelet_at(listener)
    cluster.names = ["node-1", "node-2", "node-3"]
    cluster.kubelets = {
        "node-1": ("127.0.0.1", 1),
        "node-2": ("127.0.0.1", 2),
        "node-3": (named.address, named.port),
    }
    await ours.know()
    assert named not in ours.view.reached_at, "two others are chosen"
    ours.view_from(a_pod(egress_targets=frozenset({named})))
    await ours.look()
    assert named in ours.view.reached_at
    ours._named = {named: time.monotonic() - FRESH.total_seconds() - 1}
    await ours.look()
    assert named not in ours.view.reached_at, "no pod names it any more"


async def test_nothing_is_tried_because_a_pod_says_so(make: Any, listener: Any) -> None:
    """Whoever may create pods could else have the operator connect to anything, and read the answer in a record."""
    ours, _ = await make()
    await ours.know()
    named = kubelet_at(listener)
    ours.view_from(a_pod(egress_targets=frozenset({named})))
    await ours.look()
    assert named not in ours.view.reached_at


@pytest.mark.parametrize("address", [("127.0.0.1", 99_999_999), ("x" * 70, 443)], ids=["port", "name"])
async def test_a_target_that_can_not_be_tried_spoils_no_other(make: Any, listener: Any, address: Any) -> None:
    ours, cluster = await make()
    good = kubelet_at(listener)
    cluster.names = ["node-1", "node-2"]
    cluster.kubelets = {"node-1": address, "node-2": (good.address, good.port)}
    await ours.know()
    assert good in ours.view.reached_at
    assert Target("kubelet", *address) not in ours.view.reached_at
