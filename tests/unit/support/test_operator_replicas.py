"""Tests that restart or scale the operator go on when its new pods are there alone: one that goes may still lead."""

from typing import Any

import pytest
from cluster_tools import are_all_of

NOW = {"restarted-at": "now"}


def a_deployment(replicas: int, annotations: dict[str, str] = NOW) -> dict[str, Any]:
    metadata = {"annotations": annotations} if annotations else {}
    return {"spec": {"replicas": replicas, "template": {"metadata": metadata}}}


def a_pod(ready: str = "True", annotations: dict[str, str] = NOW, **metadata: str) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"annotations": {"of-the-network": "x", **annotations}, **metadata}, "status": status}


NEW, STARTING, OLD = a_pod(), a_pod(ready="False"), a_pod(annotations={"restarted-at": "before"})
GOING = a_pod(deletionTimestamp="2026-11-23T19:40:00Z")


@pytest.mark.parametrize(
    ("replicas", "pods", "there"),
    [
        (1, [NEW], True),
        (2, [NEW, NEW], True),
        (0, [], True),
        (1, [], False),
        (2, [NEW], False),
        (1, [NEW, NEW], False),
        (1, [STARTING], False),
        (1, [{"metadata": {}}], False),
        (1, [OLD], False),
        (2, [NEW, OLD], False),
        (1, [GOING], False),
        (1, [NEW, GOING], False),
        (0, [GOING], False),
    ],
)
def test_the_replicas_are_there_when_no_other_is(replicas: int, pods: list[dict[str, Any]], there: bool) -> None:
    assert are_all_of(a_deployment(replicas), pods) is there


def test_a_template_without_annotations_is_that_of_every_pod() -> None:
    assert are_all_of(a_deployment(1, {}), [NEW])
