"""The documented HorizontalPodAutoscaler, by Kubernetes' own controller, lets a pool follow the demand."""

import asyncio
from pathlib import Path
from typing import Any

import yaml
from cluster_tools import ROOT, SANDBOX, wait_for
from component_stage import in_thread
from external_metrics import METRIC, ExternalMetrics

from executor_client import PreparedBlock

DOCUMENTED = ROOT / "docs" / "autoscaling"


def load(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(Path(DOCUMENTED / name).read_text()))


def autoscaler(pool: str) -> dict[str, Any]:
    """The documented one, for this pool, and without the pause before it scales down."""
    found = load("hpa.yaml")
    found["metadata"] = {"name": pool, "namespace": SANDBOX}
    found["spec"]["scaleTargetRef"]["name"] = pool
    [metric] = found["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == METRIC
    metric["external"]["metric"]["selector"] = {"matchLabels": {"sandbox_namespace": SANDBOX}}
    found["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    return found


async def test_a_pool_grows_with_the_demand_and_shrinks_after_it(
    operator, stage, admin, client, asking, agent, make_pool, stack
):
    pool = await make_pool(1)
    code = (PreparedBlock("python", f'wait("{agent}")'.encode()),)
    served = await in_thread(stack.enter_context, ExternalMetrics(stage.plane, admin, operator.metrics))
    await in_thread(admin.apply, autoscaler(pool.name))
    try:
        calls = [asyncio.create_task(client.execute(code, asking(timeout_seconds=200))) for _ in range(3)]
        # The controller looks every 30 s for kinds that were not there when it started.
        await in_thread(wait_for, "three ready pods beside three in use", lambda: _is(pool, ready=3, in_use=3), 100)
        stage.script.open(agent)
        assert [one.exit_code for one in await asyncio.gather(*calls)] == [0, 0, 0]
        await in_thread(wait_for, "one ready pod", lambda: _is(pool, ready=1, in_use=0))
        await in_thread(admin.wait_until, "it to say that it can", "horizontalpodautoscaler", pool.name, _is_able)
        await in_thread(wait_for, "what the operator said to be asked for", lambda: {0, 3} <= set(served.asked))
    finally:
        stage.script.open(agent)
        await in_thread(admin.delete, "horizontalpodautoscaler", pool.name)


def _is_able(found: dict[str, Any]) -> bool:
    able = {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", ())}
    return (able.get("AbleToScale"), able.get("ScalingActive")) == ("True", "True")


def _is(pool: Any, *, ready: int, in_use: int) -> bool:
    spec = pool.stage.admin.get("sandboxpool", pool.name)["spec"]
    status = pool.status()
    return (spec["replicas"], status.get("readyReplicas"), status.get("claimedReplicas")) == (ready, ready, in_use)
