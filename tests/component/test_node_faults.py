"""What nodes, and those who look after nodes, do to pods: the record says what happened, and pools replace their pods.

The scheduler, the taint manager, the Eviction API and `kubectl drain` are real. What a kubelet would say is said by the
simulated one, in the words of the real one.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import in_thread
from faults import Answer, Lose

from codeexec_api.names import EXECUTION_PLURAL
from executor_client import CodeExecError, ExecutionLost, ExecutionNotStarted, PreparedBlock

PROMISED_SECONDS = 15
"""From when Kubernetes says that the pod ends until the record does: docs/reliability.md."""
ATTACH = Match("connect", "pods", subresource="attach")
LOST, FAILED = ("Lost", "PodLost"), ("Failed", "RunnerFailed")
LOW = "The node was low on resource: {}. Threshold quantity: 100Mi, available: 51Mi. "
OWN_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 256Mi. "
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
PREEMPTED = "Preempted in order to admit critical pod"
DEADLINE = "Pod was active on the node longer than the specified deadline"


@dataclass(frozen=True)
class Ended:
    """How a kubelet ends a pod, and what the record says then."""

    what: str
    reason: str
    message: str
    by_node: bool = True
    """True: for a reason that is not the pod's own. The kubelet sets the condition `DisruptionTarget` then."""
    running: tuple[str, str] = LOST
    starting: tuple[str, str] = LOST
    words: str = "its node ended it ({})"

    def __str__(self) -> str:
        return self.what

    @property
    def told(self) -> str:
        return self.words.format(self.message.strip().removesuffix("."))

    @property
    def status(self) -> dict[str, Any]:
        target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        conditions = [{**target, "message": self.message}] if self.by_node else []
        return {"reason": self.reason, "message": self.message, "conditions": conditions}


BY_KUBELET = (
    Ended("no memory on the node", "Evicted", LOW.format("memory")),
    Ended("no disk on the node", "Evicted", LOW.format("ephemeral-storage")),
    Ended("the node is shut down", "Terminated", SHUTDOWN),
    Ended("a critical pod comes", "Preempting", PREEMPTED),
    Ended("the pod's own disk", "Evicted", OWN_DISK, False, FAILED, FAILED, "({})"),
)
DEADLINE_OVER = Ended("deadline", "DeadlineExceeded", DEADLINE, False, ("TimedOut", "DeadlineExceeded"), words="")


@dataclass
class Hands:
    """What people and controllers do to a pod."""

    stage: Any
    cordoned: list[str] = field(default_factory=list)
    tainted: list[str] = field(default_factory=list)

    def node_of(self, pod: str) -> str:
        return str(self.stage.admin.pod(SANDBOX, pod)["spec"]["nodeName"])

    def delete(self, pod: str) -> None:
        self.stage.admin.delete("pod", pod)

    def drain(self, pod: str) -> None:
        self.cordoned.append(self.node_of(pod))

        self.stage.admin.kubectl("drain", self.cordoned[-1], "--force", "--delete-emptydir-data")

    def taint(self, pod: str) -> None:
        self.tainted.append(self.node_of(pod))
        self.stage.admin.kubectl("taint", "node", self.tainted[-1], "test.codeexec.dev/lost:NoExecute")

    def take_away(self, how: str, pod: str) -> datetime:
        """One of the above. Returns when Kubernetes had said that the pod goes: the taint manager takes its time."""
        getattr(self, how)(pod)

        def goes() -> bool:
            there = self.stage.admin.find("pod", pod)
            return there is None or "deletionTimestamp" in there["metadata"]

        wait_for("the pod to be deleted", goes)
        return datetime.now(UTC)

    def undo(self) -> None:
        for node in self.cordoned:
            self.stage.admin.kubectl("uncordon", node)
        for node in self.tainted:
            self.stage.admin.kubectl("taint", "node", node, "test.codeexec.dev/lost:NoExecute-")


@pytest.fixture
async def hands(stage):
    hands = Hands(stage)
    yield hands
    await in_thread(hands.undo)


BY_HAND = {
    "delete": "the pod was deleted {}",
    "drain": "the pod was deleted {}: it was evicted, as by `kubectl drain`",
    "taint": "the pod was deleted {}: its node got a taint with effect NoExecute, as a node that is lost does",
}


def waiting_at(gate: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'print("so far")\nwait("{gate}")'.encode()),)


def outcome(record: dict[str, Any]) -> tuple[str, str]:
    return record["status"]["phase"], record["status"]["reason"]


async def running(stage, client, asking, agent, **options) -> tuple[asyncio.Task, str]:
    """An execution whose code runs, and its pod."""
    task = asyncio.create_task(client.execute(waiting_at(agent), asking(**options)))
    await stage.script.reached(agent, task)
    return task, stage.record(agent)["status"]["podName"]


# --- while code runs ---


@pytest.mark.parametrize("ended", [*BY_KUBELET, DEADLINE_OVER], ids=str)
async def test_code_whose_pod_the_kubelet_ends(operator, stage, client, asking, agent, ended):
    task, pod = await running(stage, client, asking, agent)
    await in_thread(lambda: stage.nodes.end(pod, **ended.status))
    told_at = datetime.now(UTC)
    record = await in_thread(stage.ended, agent)
    stage.recorded_within(PROMISED_SECONDS, told_at, record)
    assert outcome(record) == ended.running
    assert ended.told in record["status"]["message"]
    assert record["status"]["stdout"]["text"] == "so far\n"
    stage.ran_once(record)
    await _over(task, ended.running)
    await in_thread(stage.admin.wait_until_gone, "pod", pod)


@pytest.mark.parametrize("how", BY_HAND)
async def test_code_whose_pod_is_taken_away(operator, stage, client, asking, agent, hands, how):
    task, pod = await running(stage, client, asking, agent)
    told_at = await in_thread(hands.take_away, how, pod)
    with pytest.raises(ExecutionLost, match="the pod was deleted while the code ran"):
        await task
    record = stage.record(agent)
    stage.recorded_within(PROMISED_SECONDS, told_at, record)
    assert (outcome(record), record["status"]["message"]) == (LOST, BY_HAND[how].format("while the code ran"))
    assert record["status"]["stdout"]["text"] == "so far\n"
    stage.ran_once(record)


async def test_a_session_whose_pod_the_node_ends_is_lost_and_tells_why(operator, stage, client, asking, agent):
    session = await client.open_session(asking(), wait=True)
    task = asyncio.create_task(session.execute(waiting_at(agent)))
    await stage.script.reached(agent, task)
    pod = stage.record(agent)["status"]["podName"]
    await in_thread(lambda: stage.nodes.end(pod, **BY_KUBELET[0].status))
    told_at = datetime.now(UTC)
    with pytest.raises(ExecutionLost, match="its node ended it"):
        await task
    record = await in_thread(
        stage.admin.wait_until, "its end", "codesession", session.name, lambda one: "endedAt" in one["status"]
    )
    for one in (record, stage.record(agent)):
        assert outcome(one) == LOST
        stage.recorded_within(PROMISED_SECONDS, told_at, one)
    assert record["status"]["message"] == f"the pod was stopped: {BY_KUBELET[0].told}"
    stage.ran_once(stage.record(agent))


@pytest.mark.parametrize(
    "deleted", [pytest.param(False, id="not ready"), pytest.param(True, id="deleted", marks=pytest.mark.suspect)]
)
async def test_code_whose_node_is_lost(hurried, stage, client, asking, agent, admin, hands, deleted):
    """The node controller deletes such pods after five minutes. The operator gives up before."""
    task, pod = await running(stage, client, asking, agent, timeout_seconds=600)
    node = await in_thread(hands.node_of, pod)
    with stage.nodes.lost(node):
        if deleted:
            await in_thread(admin.delete, "node", node, wait=True)
        record = await in_thread(stage.ended, agent)
        assert outcome(record) == LOST
        told = "no connection to the pod could be made for 60 s; its node may be lost. Check the code's effects, then "
        assert record["status"]["message"] == f"{told}submit it again"
        stage.ran_once(record)
        await _over(task, LOST)
        await in_thread(stage.admin.wait_until_gone, "pod", pod)


async def _over(task: asyncio.Task, expected: tuple[str, str]) -> None:
    if expected[0] == "TimedOut":
        assert (await task).exit_code == 124
        return
    with pytest.raises(ExecutionLost):
        await task


# --- while a pod starts ---


@pytest.mark.parametrize("ended", BY_KUBELET, ids=str)
async def test_a_pod_that_the_kubelet_ends_before_the_code_starts(operator, stage, client, asking, agent, ended):
    with stage.nodes.waiting("ContainerCreating"):
        task, pod = await starting(stage, client, asking, agent)
        await in_thread(lambda: stage.nodes.end(pod, **ended.status))
        told_at = datetime.now(UTC)
        record = await in_thread(stage.ended, agent)
    stage.recorded_within(PROMISED_SECONDS, told_at, record)
    assert outcome(record) == ended.starting
    assert "before the code started" in record["status"]["message"]
    assert ended.message.strip().removesuffix(".") in record["status"]["message"]
    stage.never_ran(record)
    with pytest.raises(CodeExecError):
        await task


@pytest.mark.parametrize("how", BY_HAND)
async def test_a_pod_that_is_taken_away_before_the_code_starts(operator, stage, client, asking, agent, hands, how):
    with stage.nodes.waiting("ContainerCreating"):
        task, pod = await starting(stage, client, asking, agent)
        told_at = await in_thread(hands.take_away, how, pod)
        with pytest.raises(ExecutionLost, match="the pod was deleted before the code started"):
            await task
    record = stage.record(agent)
    stage.recorded_within(PROMISED_SECONDS, told_at, record)
    assert (outcome(record), record["status"]["message"]) == (LOST, BY_HAND[how].format("before the code started"))
    stage.never_ran(record)


NO_SPACE = "failed to extract layer: write /var/lib/containerd/tmp: no space left on device"
PULL = "check that the image exists and that the node may pull it; "


@pytest.mark.parametrize(
    ("reason", "words", "expected"),
    [
        ("ErrImagePull", f"{PULL}manifest unknown", "ImagePullFailed"),
        ("ImagePullBackOff", f"{PULL}manifest unknown", "ImagePullFailed"),
        ("ErrImagePull", PULL + NO_SPACE, "ImagePullFailed"),
        ("CreateContainerError", NO_SPACE, "PodRefused"),
    ],
    ids=["no image", "no image, again", "no disk for the image", "no disk for the container"],
)
async def test_a_container_that_the_node_cant_make(operator, stage, client, asking, agent, reason, words, expected):
    with (
        stage.nodes.waiting(reason, words.removeprefix(PULL)),
        pytest.raises(ExecutionNotStarted, match=f"{reason}: {words}"),
    ):
        await client.execute(waiting_at(agent), asking())
    record = stage.record(agent)
    assert outcome(record) == ("Failed", expected)
    assert record["status"]["message"] == f"{reason}: {words}"
    stage.never_ran(record)
    await in_thread(stage.admin.wait_until_gone, "pod", record["status"]["podName"])


@pytest.mark.parametrize("fault", [Answer(500), Lose("504")], ids=str)
async def test_the_record_says_so_also_if_it_has_to_be_written_again(operator, stage, client, asking, agent, fault):
    """The operator deletes the pod itself, and that is no reason."""
    ended = Match("patch", EXECUTION_PLURAL, subresource="status", where=lambda call: call.phase == "Failed")
    with (
        stage.nodes.waiting("ErrImagePull", "manifest unknown"),
        stage.proxy.fault(ended, fault, times=1) as rule,
        pytest.raises(ExecutionNotStarted, match="ErrImagePull"),
    ):
        await client.execute(waiting_at(agent), asking())
    assert rule.met == 1
    record = stage.record(agent)
    assert outcome(record) == ("Failed", "ImagePullFailed")
    stage.never_ran(record)
    await in_thread(stage.admin.wait_until_gone, "pod", record["status"]["podName"])


async def test_an_image_whose_pull_hangs(impatient, stage, client, asking, agent):
    with (
        stage.nodes.waiting("ContainerCreating"),
        pytest.raises(ExecutionNotStarted, match=r"did not start within \d+ s"),
    ):
        await client.execute(waiting_at(agent), asking())
    record = stage.record(agent)
    assert outcome(record) == ("Failed", "StartTimeout")
    assert "its container is waiting (ContainerCreating); the pod's events may say why" in record["status"]["message"]
    stage.never_ran(record)
    await in_thread(stage.admin.wait_until_gone, "pod", record["status"]["podName"])


async def starting(stage, client, asking, agent) -> tuple[asyncio.Task, str]:
    """An execution whose pod has a node, and its pod."""
    task = asyncio.create_task(client.execute(waiting_at(agent), asking()))

    name = (await in_thread(stage.made, agent))["metadata"]["name"]
    asked_for = lambda record: record.get("status", {}).get("podName")  # noqa: E731
    pod = (await in_thread(stage.admin.wait_until, "its pod", "cex", name, asked_for))["status"]["podName"]

    def waits(found: dict) -> bool:
        return "waiting" in found.get("status", {}).get("containerStatuses", [{}])[0].get("state", {})

    await in_thread(stage.admin.wait_until, "its container to wait", "pod", pod, waits)
    return task, pod


# --- while a pod waits in a pool ---


@pytest.mark.parametrize("how", [*BY_KUBELET, *BY_HAND], ids=str)
async def test_a_pool_replaces_a_pod_that_is_taken_away(operator, stage, make_pool, hands, how):
    pool = await make_pool(1)
    [pod] = pool.pods()
    if isinstance(how, Ended):
        await in_thread(lambda: stage.nodes.end(pod, **how.status))
    else:
        await in_thread(getattr(hands, how), pod)
    await in_thread(wait_for, "another pod", lambda: pool.pods() and pod not in pool.pods())
    await in_thread(pool.ready, 1)


async def test_a_pool_replaces_a_pod_whose_node_is_lost(hurried, stage, make_pool, hands, admin):
    pool = await make_pool(1)
    nodes = {one["metadata"]["name"]: one["spec"].get("nodeName") for one in await in_thread(admin.list, "pod")}
    [(pod, node)] = [(name, node) for name, node in nodes.items() if name.startswith(f"{pool.name}-")]
    await in_thread(admin.kubectl, "cordon", node)
    hands.cordoned.append(node)
    with stage.nodes.lost(node):
        await in_thread(wait_for, "another pod", lambda: pool.pods() and pod not in pool.pods())
        await in_thread(pool.ready, 1)


async def test_a_pool_whose_image_cant_be_pulled_says_so_and_nobody_waits_for_it(
    operator, stage, client, asking, agent, make_pool
):
    with stage.nodes.waiting("ErrImagePull", "manifest unknown"):
        pool = await make_pool(1, ready=False)

        def said() -> str:
            conditions = pool.status().get("conditions", ())
            return next((one["message"] for one in conditions if one["reason"] == "ImagePullFailed"), "")

        assert "manifest unknown" in await in_thread(wait_for, "the pool to say so", said)
        with pytest.raises(ExecutionNotStarted, match="manifest unknown"):
            await client.execute(waiting_at(agent), asking())
    await in_thread(pool.ready, 1)
    stage.never_ran(stage.record(agent))


def test_a_simulated_node_that_was_doubted_is_ready_again(stage, admin):
    """As any other node. Else the later tests of this process find no room, once the machine was busy for a minute."""
    [name, *_] = [one["metadata"]["name"] for one in admin.list("node", None)]
    doubted = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "a test says so"}
    admin.patch("node", name, {"status": {"conditions": [doubted]}}, subresource="status", type="strategic")

    def takes_pods(node):
        [found] = [one for one in node["status"]["conditions"] if one["type"] == "Ready"]
        return found["status"] == "True" and not any(
            "node.kubernetes.io" in one["key"] for one in node["spec"]["taints"]
        )

    admin.wait_until("the node to take pods", "node", name, takes_pods)
