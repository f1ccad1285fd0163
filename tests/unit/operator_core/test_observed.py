"""Pods of the API server, as far as decisions depend on them."""

import json
from typing import Any

import pytest
from factories import NOW, a_pod, a_sandbox, seconds

from codeexec_operator.core.observed_pod import PodView, parse_pod, placed_since

REJECTED = "Pod was rejected: Node didn't have enough resource: cpu, requested: 500, used: 1900, capacity: 2000"
UNSCHEDULABLE = "0/1 nodes are available: 1 Insufficient memory."


def at(after: float) -> str:
    return (NOW + seconds(after)).isoformat()


def a_raw_pod(state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = {} if state is None else {"containerStatuses": [{"name": "sandbox", "state": state, "imageID": "id"}]}
    return {"metadata": {"name": "pod"}, "spec": {"nodeName": "node-1"}, "status": {**containers, **status}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"metadata": {"name": "pod"}}, {}),
        (
            a_raw_pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}]),
            {"node_name": "node-1"},
        ),
        (
            a_raw_pod(
                phase="Pending",
                conditions=[{"type": "PodScheduled", "status": "False", "message": UNSCHEDULABLE}],
            ),
            {"node_name": "node-1", "unschedulable": UNSCHEDULABLE, "refused": UNSCHEDULABLE},
        ),
        (
            a_raw_pod({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, phase="Pending"),
            {
                "node_name": "node-1",
                "image_id": "id",
                "waiting_reason": "ImagePullBackOff",
                "waiting_message": "no such image",
            },
        ),
        (
            a_raw_pod({"running": {"startedAt": "2026-11-21T12:00:01Z"}}, phase="Running", startTime=at(0)),
            {"node_name": "node-1", "image_id": "id", "running": True, "started_at": NOW},
        ),
        (
            a_raw_pod({"running": {}}, phase="Running", message="of a pod that runs"),
            {"node_name": "node-1", "image_id": "id", "running": True},
        ),
        (
            a_raw_pod({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, phase="Failed"),
            {"node_name": "node-1", "image_id": "id", "terminated": "OOMKilled", "exit_code": 137},
        ),
        (
            a_raw_pod({"terminated": {"reason": "Completed", "exitCode": 0}}, phase="Succeeded"),
            {"node_name": "node-1", "image_id": "id", "terminated": "Completed", "exit_code": 0},
        ),
        (
            a_raw_pod({"terminated": {"reason": "Error", "exitCode": 137}}, phase="Failed", reason="DeadlineExceeded"),
            {"node_name": "node-1", "image_id": "id", "terminated": "DeadlineExceeded", "exit_code": 137},
        ),
        (a_raw_pod(phase="Failed", reason="Evicted"), {"node_name": "node-1", "terminated": "Evicted"}),
        (
            a_raw_pod(phase="Failed", reason="OutOfcpu", message=REJECTED),
            {"node_name": "node-1", "terminated": "OutOfcpu", "end_message": REJECTED},
        ),
        (
            a_raw_pod({"running": {}}, phase="Failed", reason="NodeLost"),
            {
                "node_name": "node-1",
                "image_id": "id",
                "terminated": "NodeLost",
                "disruption": "its node ended it (NodeLost)",
                "unwell": True,
            },
        ),
        (
            a_raw_pod({"terminated": {"exitCode": 1, "message": "runner: no\n"}}, phase="Running"),
            {
                "node_name": "node-1",
                "image_id": "id",
                "terminated": "Unknown",
                "exit_code": 1,
                "last_words": "runner: no",
            },
        ),
        (
            a_raw_pod({"terminated": {"reason": "Error", "message": "a" + "b" * 500}}),
            {"node_name": "node-1", "image_id": "id", "terminated": "Error", "last_words": "b" * 500},
        ),
    ],
    ids=[
        "bare",
        "creating",
        "unschedulable",
        "image pull",
        "running",
        "running, with words",
        "out of memory",
        "completed",
        "kubelet's deadline",
        "evicted",
        "no room after all",
        "node lost",
        "ended without a reason",
        "ended with many words",
    ],
)
def test_parse_pod(raw: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_pod(raw) == PodView(**expected)


def condition(status: str, **more: Any) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": status, **more}


def test_what_the_scheduler_said_is_known_once_it_has_found_a_node() -> None:
    """What the condition says then is no reason to wait."""
    unseen = parse_pod(a_raw_pod(phase="Pending"))
    tried = condition("False", message=UNSCHEDULABLE, lastTransitionTime=at(1))
    blocked = parse_pod(a_raw_pod(conditions=[tried]), unseen)
    assert (blocked.unschedulable, blocked.refused) == (UNSCHEDULABLE, UNSCHEDULABLE)
    placed = parse_pod(a_raw_pod(conditions=[condition("True", lastTransitionTime=at(9), message="found")]), blocked)
    assert (placed.unschedulable, placed.refused) == ("", UNSCHEDULABLE)
    other = UNSCHEDULABLE.replace("memory", "cpu")
    assert parse_pod(a_raw_pod(conditions=[condition("False", message=other)]), blocked).refused == other


def test_other_containers_do_not_count() -> None:
    raw = a_raw_pod()
    raw["status"]["containerStatuses"] = [{"name": "sidecar", "state": {"running": {}}}]
    assert not parse_pod(raw).running


RUNS = {"running": {"startedAt": at(0)}}


def readiness(containers: str, pod: str, **of_pod: Any) -> list[dict[str, Any]]:
    return [{"type": "ContainersReady", "status": containers}, {"type": "Ready", "status": pod, **of_pod}]


@pytest.mark.parametrize("meta", [{}, {"deletionTimestamp": at(9)}])
def test_a_pod_that_is_being_deleted_says_so(meta: dict[str, Any]) -> None:
    assert parse_pod(a_raw_pod(RUNS) | {"metadata": {"name": "pod", **meta}}).deleting is bool(meta)


@pytest.mark.parametrize(
    ("raw", "unwell"),
    [
        (a_raw_pod(RUNS, conditions=[]), False),
        (a_raw_pod(RUNS) | {"metadata": {"name": "pod", "deletionTimestamp": at(9)}}, True),
        (a_raw_pod(RUNS, conditions=[{"type": "DisruptionTarget", "status": "True"}]), True),
        (a_raw_pod(RUNS, conditions=[{"type": "DisruptionTarget", "status": "False"}]), False),
        (a_raw_pod(RUNS, conditions=readiness("True", "True", lastTransitionTime=at(60))), False),
        (a_raw_pod(RUNS, conditions=readiness("False", "False")), False),
        (a_raw_pod(RUNS, conditions=readiness("True", "False", lastTransitionTime=at(60))), True),
        (a_raw_pod(RUNS, conditions=readiness("True", "False", lastTransitionTime=at(-300))), True),
        (a_raw_pod(RUNS, conditions=[{"type": "Ready", "status": "False"}]), False),
        (a_raw_pod({}, conditions=readiness("True", "False")), False),
    ],
    ids=[
        "nothing is known",
        "deleted",
        "to be evicted",
        "not to be evicted any more",
        "ready",
        "not ready yet",
        "not ready any more",
        "not ready any more, by the clock of the node before it ran",
        "not ready, and nothing is known of its container",
        "not running",
    ],
)
def test_a_pod_that_goes_or_whose_node_is_lost_is_unwell(raw: dict[str, Any], unwell: bool) -> None:
    assert parse_pod(raw).unwell is unwell


SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
OWN_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 256Mi. "


def a_target(reason: str = "", message: str = "", status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (a_target("EvictionByEvictionAPI", "Eviction API: evicting"), "it was evicted, as by `kubectl drain`"),
        (
            a_target("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
            "its node got a taint with effect NoExecute, as a node that is lost does",
        ),
        (a_target("DeletionByPodGC", "PodGC: node no longer exists"), "its node no longer exists"),
        (a_target("PreemptionByScheduler", "preempting"), "a pod of higher priority needed its place"),
        (
            {"phase": "Failed", "reason": "Evicted"} | a_target("TerminationByKubelet", "low on resource: memory. "),
            "its node ended it (low on resource: memory)",
        ),
        (a_target("SomethingNew"), "its node ended it (SomethingNew)"),
        ({"phase": "Failed", "reason": "Terminated", "message": SHUTDOWN}, f"its node ended it ({SHUTDOWN[:-1]})"),
        ({"phase": "Failed", "reason": "Evicted", "message": OWN_DISK}, ""),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "message": "was active on the node longer"}, ""),
        (a_target("EvictionByEvictionAPI", status="False"), ""),
    ],
    ids=[
        "drained",
        "tainted",
        "collected",
        "preempted",
        "node under pressure",
        "unknown",
        "node shut down",
        "its own disk",
        "its deadline",
        "not any more",
    ],
)
def test_a_pod_that_is_taken_away_tells_why(status: dict[str, Any], why: str) -> None:
    assert parse_pod(a_raw_pod(**status)).disruption == why


def with_targets(value: str) -> dict[str, Any]:
    raw = a_raw_pod()
    raw["spec"] = {"containers": [{"env": [{"name": "CODEEXEC_EGRESS_TARGETS", "value": value}]}]}
    return raw


KUBELET = {"name": "kubelet", "address": "10.0.0.1", "port": 10250, "protocol": "TCP"}


@pytest.mark.parametrize(
    "value",
    [
        "no JSON",
        "{}x",
        "7",
        "[7]",
        "[" * 5000,
        json.dumps([{"name": "kubelet"}]),
        json.dumps([KUBELET | {"port": 99_999_999}]),
        json.dumps([KUBELET | {"address": "10.0.0.1/../x"}]),
        json.dumps([KUBELET | {"port": port} for port in range(1, 1000)]),
    ],
)
def test_targets_that_the_operator_has_not_written_are_none(value: str) -> None:
    """Whoever may create pods can write anything there."""
    assert parse_pod(with_targets(value)).egress_targets == frozenset()


def test_targets_that_the_operator_has_written() -> None:
    [target] = parse_pod(with_targets(json.dumps([KUBELET]))).egress_targets
    assert target.dump() == KUBELET


def test_a_pod_is_placed_once_it_has_a_node() -> None:
    waiting, placed = a_pod(node_name=""), a_pod()
    assert placed_since(a_sandbox(pod=None), waiting, NOW) is None
    assert placed_since(a_sandbox(pod=waiting), placed, NOW) == NOW
    assert placed_since(a_sandbox(pod=placed, placed_at=NOW), placed, NOW + seconds(5)) == NOW
