"""Pods of the API server, as far as decisions depend on them."""

from typing import Any

import pytest

from codeexec_operator.core.observed import PodView, parse_pod

UNSCHEDULABLE = "0/1 nodes are available: 1 Insufficient memory."


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
            {"node_name": "node-1", "unschedulable": UNSCHEDULABLE},
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
            a_raw_pod({"running": {"startedAt": "2026-11-21T12:00:00Z"}}, phase="Running"),
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
            a_raw_pod({"running": {}}, phase="Failed", reason="NodeLost"),
            {"node_name": "node-1", "image_id": "id", "terminated": "NodeLost"},
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
    ],
    ids=[
        "bare",
        "creating",
        "unschedulable",
        "image pull",
        "running",
        "out of memory",
        "completed",
        "kubelet's deadline",
        "evicted",
        "node lost",
        "ended without a reason",
    ],
)
def test_parse_pod(raw: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_pod(raw) == PodView(**expected)


def test_other_containers_do_not_count() -> None:
    raw = a_raw_pod()
    raw["status"]["containerStatuses"] = [{"name": "sidecar", "state": {"running": {}}}]
    assert not parse_pod(raw).running
