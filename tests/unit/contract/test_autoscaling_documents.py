"""The documented ways to scale a pool automatically agree with each other."""

from typing import Any

import yaml
from cluster_tools import ROOT
from external_metrics import METRIC


def load(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docs" / "autoscaling" / name).read_text()))


def test_keda_and_the_adapter_use_the_same_figures_and_bounds() -> None:
    hpa, keda, [rule] = load("hpa.yaml"), load("keda.yaml"), load("prometheus-adapter.yaml")["rules"]["external"]
    assert rule["name"]["as"] == METRIC
    [trigger] = keda["spec"]["triggers"]
    for name in ("codeexec_pool_claimed_pods", "codeexec_pool_queued_executions"):
        assert name in rule["metricsQuery"]
        assert name in trigger["metadata"]["query"]
    target = hpa["spec"]["metrics"][0]["external"]["target"]
    assert (target["type"], target["averageValue"]) == (trigger["metricType"], trigger["metadata"]["threshold"])
    assert hpa["spec"]["minReplicas"] == keda["spec"]["minReplicaCount"]
    assert hpa["spec"]["maxReplicas"] == keda["spec"]["maxReplicaCount"]
    assert hpa["spec"]["scaleTargetRef"] == keda["spec"]["scaleTargetRef"]
