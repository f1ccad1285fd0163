"""Finds what a watch has not told: a list that has to begin anew says nothing of what went since the one before it."""

import asyncio

from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.controller import Controller, Known
from codeexec_operator.adapters.policies import Policies


async def resync(cluster: Cluster, namespace: str, controller: Controller, policies: Policies) -> None:
    """Compare once what is known of a namespace with what is there."""
    known = controller.known(namespace)  # before the lists: what comes later can't be missing from them
    objects, pods = await asyncio.gather(cluster.list_unfinished(namespace), cluster.list_pod_names(namespace))
    listed = {one["metadata"]["uid"] for one in objects}
    controller.missed(namespace, Known(known.objects - listed, known.pods - pods))
    if await policies.read_again(namespace):
        controller.policy_changed(namespace)
