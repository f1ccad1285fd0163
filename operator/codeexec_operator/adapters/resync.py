"""Finds what a watch has not told.

A list that has to begin anew says nothing of what went since the list before. An event that failed is not repeated.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from codeexec_api.names import EXECUTION_LABEL, POOL_LABEL, SESSION_LABEL
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.controller import Controller, Known
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.retries import REQUEST_ERRORS

logger = logging.getLogger(__name__)


def _is_owned(pod: Mapping[str, Any]) -> bool:
    """True if a pod with this metadata belongs to an execution or a session."""
    labels = pod.get("labels") or {}
    return POOL_LABEL not in labels and (EXECUTION_LABEL in labels or SESSION_LABEL in labels)


async def resync(cluster: Cluster, namespace: str, controller: Controller, policies: Policies) -> None:
    """Compare once what is known of a namespace with what is there."""
    known = controller.known(namespace)  # before the lists: what comes later can't be missing from them
    objects, pods = await asyncio.gather(cluster.list_unfinished(namespace), cluster.list_pod_metadata(namespace))
    listed = {one["metadata"]["uid"] for one in objects}
    controller.missed(namespace, Known(known.objects - listed, known.pods - {pod["name"] for pod in pods}))
    if await policies.read_again(namespace):
        controller.policy_changed(namespace)
    for name in sorted({pod["name"] for pod in pods if _is_owned(pod)} - controller.known(namespace).pods):
        try:
            if found := await cluster.find_pod(namespace, name):
                await controller.on_pod(found, deleted=False)
        except (ValidationError, *REQUEST_ERRORS) as error:
            logger.warning("pod %s/%s: its record could not be read (%s)", namespace, name, type(error).__name__)
