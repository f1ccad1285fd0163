"""How the operator makes requests: each has a bound, and watches take nothing away from them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, SYSTEM, wait_for
from factories import an_execution
from fault_proxy import FaultProxy
from faults import Answer, Cut, Lose, Stall, WatchError
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, Phase, SandboxPoolSpec
from codeexec_api.names import EXECUTION_PLURAL
from codeexec_api.v1alpha1.policy import ExecutionPolicyStatus
from codeexec_operator.adapters import api_server
from codeexec_operator.adapters.api_server import NETWORK_ERRORS, ApiServer, Resource
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.core.leadership import LeaseRecord
from codeexec_operator.handlers import watching

OBJECT = {"metadata": {"name": "run-1", "namespace": SANDBOX}}
CREATE_POD = Match("create", "pods")
FLOOD = 200
WATCHES = 120
"""More than requests have connections."""


async def attached(cluster: Cluster) -> None:
    async with cluster.attach(SANDBOX, "run-1"):
        pass


REQUESTS: dict[str, Callable[[Cluster], Awaitable[Any]]] = {
    "ready": lambda cluster: cluster.ready(SANDBOX),
    "get_execution": lambda cluster: cluster.get_execution(SANDBOX, "run-1"),
    "get_session": lambda cluster: cluster.get_session(SANDBOX, "one"),
    "read_back": lambda cluster: cluster.read_back(CodeExecution, SANDBOX, "run-1"),
    "find_record": lambda cluster: cluster.find_record(EXECUTION_PLURAL, SANDBOX, "run-1"),
    "get_policy": lambda cluster: cluster.get_policy(SANDBOX),
    "list_columns": lambda cluster: anext(cluster.list_columns(EXECUTION_PLURAL, SANDBOX)),
    "delete_record": lambda cluster: cluster.delete_record(an_execution()),
    "get_export_cursor": lambda cluster: cluster.get_export_cursor(SANDBOX),
    "ensure_pool": lambda cluster: cluster.ensure_pool(SANDBOX, "default", SandboxPoolSpec(replicas=1)),
    "find_pool": lambda cluster: cluster.find_pool(SANDBOX, "default"),
    "list_approvals": lambda cluster: cluster.list_approvals(SANDBOX, "run-1"),
    "write_status": lambda cluster: cluster.write_status(an_execution(), an_execution().status),
    "write_policy_status": lambda cluster: cluster.write_policy_status(
        an_execution().metadata, ExecutionPolicyStatus()
    ),
    "get_payload": lambda cluster: cluster.get_payload(SANDBOX, "run-1", 1),
    "watch_payloads": lambda cluster: anext(cluster.watch_payloads(SANDBOX)),
    "delete_payload": lambda cluster: cluster.delete_payload(SANDBOX, "run-1", "uid"),
    "list_payloads": lambda cluster: cluster.list_payloads(SANDBOX),
    "get_keys": lambda cluster: cluster.get_keys(SYSTEM, "keys"),
    "write_keys": lambda cluster: cluster.write_keys(SYSTEM, "keys", "{}", "1"),
    "publish_key": lambda cluster: cluster.publish_key(SANDBOX, {}),
    "list_outputs": lambda cluster: cluster.list_outputs(SANDBOX),
    "delete_output": lambda cluster: cluster.delete_output(SANDBOX, "run-1", "uid"),
    "create_pod": lambda cluster: cluster.create_pod(OBJECT),
    "find_pod": lambda cluster: cluster.find_pod(SANDBOX, "run-1"),
    "list_pods": lambda cluster: cluster.list_pods(SANDBOX, "a=b"),
    "patch_pod": lambda cluster: cluster.patch_pod(SANDBOX, "run-1", {}),
    "delete_pod": lambda cluster: cluster.delete_pod(SANDBOX, "run-1"),
    "attach": attached,
    "create_network_policy": lambda cluster: cluster.create_network_policy(OBJECT),
    "delete_network_policy": lambda cluster: cluster.delete_network_policy(SANDBOX, "run-1"),
    "get_lease": lambda cluster: cluster.get_lease(SANDBOX, "one"),
    "list_leases": lambda cluster: anext(cluster.list_leases(SANDBOX)),
    "delete_lease": lambda cluster: cluster.delete_lease(SANDBOX, "one", "uid"),
    "list_nodes": lambda cluster: cluster.list_nodes(()),
    "list_runtime_classes": lambda cluster: cluster.list_runtime_classes(),
    "list_api_servers": lambda cluster: cluster.list_api_servers(),
    "create_event": lambda cluster: cluster.create_event(OBJECT),
    "get_configuration": lambda cluster: cluster.get_configuration(SYSTEM, "codeexec-operator"),
    "get_leadership": lambda cluster: cluster.get_leadership(SYSTEM, "codeexec-operator"),
    "write_leadership": lambda cluster: cluster.write_leadership(SYSTEM, "one", LeaseRecord("me", 1, 15, "", "")),
    "get_service_targets": lambda cluster: cluster.get_service_targets(SYSTEM, "codeexec-canary"),
    "list_unfinished": lambda cluster: cluster.list_unfinished(SANDBOX),
    "in_phase": lambda cluster: anext(cluster.in_phase(EXECUTION_PLURAL, SANDBOX, Phase.RUNNING)),
    "pods_in_use": lambda cluster: cluster.pods_in_use(SANDBOX),
    "keys_of_unfinished": lambda cluster: cluster.keys_of_unfinished(SANDBOX),
    "list_pod_metadata": lambda cluster: cluster.list_pod_metadata(SANDBOX),
    "list_network_policies": lambda cluster: cluster.list_network_policies(SANDBOX),
}
BY_PHASE = {"in_phase": None, "pods_in_use": None, "list_unfinished": 100, "keys_of_unfinished": 100}
"""Lists of the few records of a phase among many that are over, and the least that a page of them may hold."""
ALIKE = {
    "publish_code": "create_pod",
    "withdraw_code": "delete_payload",
    "create_output": "create_pod",
}
"""What is made by the same function as another request."""


@pytest.fixture(scope="module")
def proxy(kubeconfig_of) -> Iterator[FaultProxy]:
    with FaultProxy(kubeconfig_of(SYSTEM, "codeexec-operator")) as proxy:
        yield proxy


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of this cluster take the time that a busy machine needs for many of them."""
    monkeypatch.setattr(api_server, "ANSWER_SECONDS", 100)
    monkeypatch.setattr(api_server, "CONNECT_SECONDS", 100)


@pytest.fixture
async def cluster(proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Cluster]:
    configuration = client.Configuration()
    path = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    await config.load_kube_config(str(path), client_configuration=configuration)
    cluster = Cluster(ApiServer(configuration))
    yield cluster
    await cluster.close()


def test_all_requests_are_tried_here() -> None:
    ask_nothing = {"connect", "close", "ask_first", "measure_writes", "place", "files", "date"}
    public = {name for name in dir(Cluster) if not name.startswith("_")} - ask_nothing
    assert public == REQUESTS.keys() | ALIKE.keys()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "ANSWER_SECONDS", 0.2)


@pytest.mark.parametrize("name", REQUESTS)
async def test_no_request_waits_for_ever(impatient, proxy: FaultProxy, cluster: Cluster, name: str) -> None:
    with proxy.fault(Match(), Stall()), pytest.raises(TimeoutError):
        await REQUESTS[name](cluster)


@pytest.mark.parametrize("fault", [Stall(), Answer(429)], ids=["no answer", "429"])
async def test_how_long_writes_take_is_told_also_of_those_that_fail(
    impatient, proxy: FaultProxy, cluster: Cluster, fault: Stall | Answer
) -> None:
    """They tell most of all how busy the API server is."""
    seconds: list[float] = []
    cluster.measure_writes(seconds.append)
    with proxy.fault(Match(), fault), pytest.raises((TimeoutError, ApiException)):
        await cluster.patch_pod(SANDBOX, "run-1", {})
    assert len(seconds) == 1
    with proxy.fault(Match(), fault), pytest.raises((TimeoutError, ApiException)):
        await cluster.list_nodes(())
    assert len(seconds) == 1, "control: a list is no write"


async def test_a_body_that_does_not_end_is_a_timeout(impatient, proxy: FaultProxy, cluster: Cluster) -> None:
    with proxy.fault(Match("list", "nodes"), Lose("stall")), pytest.raises(TimeoutError):
        await cluster.list_nodes(())


async def test_a_cut_connection_is_a_network_error(proxy: FaultProxy, cluster: Cluster) -> None:
    with proxy.fault(Match(), Cut()), pytest.raises(NETWORK_ERRORS):
        await cluster.list_nodes(())


async def test_a_refusal_says_what_the_api_server_said(proxy: FaultProxy, cluster: Cluster) -> None:
    with proxy.fault(Match(), Answer(429, retry_after=7, message="too much")), pytest.raises(ApiException) as refused:
        await cluster.list_nodes(())
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "7")
    assert api_server.message_of(refused.value) == "too much"


ELSEWHERE = {"metadata": {"name": "run-1", "namespace": "default"}}
"""Where the operator has no rights."""
HASTY = {**OBJECT, "spec": {"serviceAccountName": "not-there-yet"}}
"""As in a namespace that is so new that it has no service account."""


async def test_a_watch_that_says_error_fails_with_what_the_server_said(proxy: FaultProxy, cluster: Cluster) -> None:
    with proxy.fault(Match("watch", "secrets"), WatchError(410)), pytest.raises(ApiException) as refused:
        await anext(cluster.watch_payloads(SANDBOX))
    assert refused.value.status == 410


@pytest.mark.parametrize(
    ("pod", "lacks"), [(ELSEWHERE, "cannot create resource"), (HASTY, "error looking up service account")]
)
async def test_what_comes_a_moment_later_is_waited_for(
    monkeypatch, proxy: FaultProxy, cluster: Cluster, pod: dict[str, Any], lacks: str
) -> None:
    """An API server that has just started refuses what it will allow when it knows the Roles."""
    with monkeypatch.context() as now:
        now.setattr(api_server, "_STARTING_SECONDS", 0)
        refused = await cluster.create_pod(pod)
    assert refused is not None
    words = refused.message.removeprefix("the API server refused the pod: ")
    assert lacks in words
    with proxy.fault(CREATE_POD, Answer(403, message=words), times=2) as rule:
        answered = await cluster.create_pod(OBJECT)
    assert rule.met == 2
    assert answered is not None  # by the API server itself, to a pod without containers
    assert words not in answered.message


async def test_a_refusal_by_admission_is_one_for_good(proxy: FaultProxy, cluster: Cluster) -> None:
    with proxy.fault(CREATE_POD, Answer(403, message="not today")) as rule:
        refused = await cluster.create_pod(OBJECT)
    assert refused is not None
    assert "not today" in refused.message
    assert rule.met == 1


async def test_nothing_is_deleted_without_a_name(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="would delete all"):
        await cluster.delete_pod(SANDBOX, "")


def test_a_name_can_lead_to_no_other_path() -> None:
    path = Resource("api/v1", "pods").path(SANDBOX, "../secrets?watch=1", "attach")
    assert path == f"/api/v1/namespaces/{SANDBOX}/pods/..%2Fsecrets%3Fwatch%3D1/attach"


async def test_any_number_of_watches_leaves_requests_their_connections(
    unhurried: None, proxy: FaultProxy, cluster: Cluster
) -> None:
    watches = [asyncio.create_task(anext(cluster.watch_payloads(SANDBOX))) for _ in range(WATCHES)]
    opened = lambda: proxy.open_streams(Match("watch", "secrets")) == WATCHES  # noqa: E731
    await asyncio.to_thread(wait_for, "the watches to be open", opened)
    assert await cluster.get_execution(SANDBOX, "none") is None
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)


async def test_a_namespace_whose_requests_are_not_answered_holds_up_no_other(
    unhurried: None, proxy: FaultProxy, cluster: Cluster
) -> None:
    of_flood = Match("get", EXECUTION_PLURAL, where=lambda call: call.name.startswith("flood-"))
    with proxy.fault(of_flood, Stall()):
        flood = [asyncio.create_task(cluster.get_execution(SANDBOX, f"flood-{one}")) for one in range(FLOOD)]
        under_way = lambda: len(proxy.seen(of_flood)) == api_server._REQUESTS_OF_ONE  # noqa: E731
        await asyncio.to_thread(wait_for, "as many to be under way as one namespace may have", under_way)
        assert await cluster.get_configuration(SYSTEM, "codeexec-operator")
        assert not any(one.done() for one in flood)
        assert under_way()
        for one in flood:
            one.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_the_lease_waits_for_no_request_of_any_namespace(
    unhurried: None, proxy: FaultProxy, cluster: Cluster
) -> None:
    """A leader that can't renew its Lease in time ends itself, and the next leader would, too."""
    each = api_server._REQUESTS_OF_ONE
    boxes = [SANDBOX, *(f"box-{number}" for number in range(1, api_server._REQUESTS // each))]
    slow = Match("get", EXECUTION_PLURAL, where=lambda call: call.name.startswith("slow-"))
    with proxy.fault(slow, Stall()):
        flood = [asyncio.create_task(cluster.get_execution(box, f"slow-{one}")) for box in boxes for one in range(each)]
        under_way = lambda: len(proxy.seen(slow)) == api_server._REQUESTS  # noqa: E731
        await asyncio.to_thread(wait_for, "as many to be under way as there may be", under_way)
        other = asyncio.create_task(cluster.get_configuration(SYSTEM, "codeexec-operator"))
        await asyncio.wait_for(cluster.get_leadership(SYSTEM, "codeexec-operator"), 60)
        assert not any(one.done() for one in (*flood, other)), "control: other requests wait for a turn"
        for one in (*flood, other):
            one.cancel()
        await asyncio.gather(*flood, other, return_exceptions=True)


@pytest.mark.parametrize("name", BY_PHASE)
async def test_lists_by_phase_are_not_cut_into_small_pages(proxy: FaultProxy, cluster: Cluster, name: str) -> None:
    """Kubernetes 1.32 and 1.33 look for the second page among all records in etcd: with many, longer than 15 s."""
    by_phase = Match("list", where=lambda call: "status.phase" in call.query.get("fieldSelector", ""))
    before = len(proxy.seen(by_phase))
    request = REQUESTS[name](cluster)
    with suppress(StopAsyncIteration):
        await request
    seen = [one.call for one in proxy.seen(by_phase)[before:]]
    assert seen, "control: it selects by phase"
    least = BY_PHASE[name]
    for call in seen:
        limit = call.query.get("limit")
        assert limit is None if least is None else int(limit) >= least


def test_kopf_lists_as_many_at_a_time() -> None:
    assert watching.settings().watching.chunk_size == BY_PHASE["keys_of_unfinished"]


def test_the_kernel_notices_a_peer_that_is_gone_without_a_word() -> None:
    with api_server.keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ())) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
