"""Which pods a pool takes over."""

from types import SimpleNamespace
from typing import Any

from factories import NOW

from codeexec_api.names import POOL_LABEL, TEMPLATE_LABEL
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.adapters.pool_pods import PoolPods
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

    context: Any = SimpleNamespace(cluster=SimpleNamespace(list_pods=list_pods, pods_in_use=pods_in_use))
    meta = ObjectMeta(name="default", namespace="box", uid="new")
    pods = PoolPods(context, meta, Starts(lambda _: None), lambda: None)
    await pods.take_over("default")
    assert pods.members.keys() == {"of-new"}
