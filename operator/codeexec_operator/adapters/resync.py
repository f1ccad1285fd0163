"""Finds what a watch has not told.

A list that has to begin anew says nothing of what went since the list before. An event that failed is not repeated. A
connection that went silent tells nothing at all, until kopf gives it up: by then the patience of a client is over.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from codeexec_api.names import EXECUTION_LABEL, EXECUTION_PLURAL, POOL_LABEL, POOL_PLURAL, SESSION_LABEL, SESSION_PLURAL
from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.controller import Controller, Known
from codeexec_operator.adapters.policies import Policies

logger = logging.getLogger(__name__)

MOST: Final = 100
"""Objects, and pods, that are read in one look: in a flood many are still on their way through a watch that is well."""

_PASS_ON: Final[Mapping[str, Callable[..., None]]] = {
    EXECUTION_PLURAL: Controller.on_execution,
    SESSION_PLURAL: Controller.on_session,
    POOL_PLURAL: Controller.on_pool,
}


async def resync(cluster: Cluster, namespace: str, controller: Controller, policies: Policies) -> None:
    """Compare once what is known of a namespace with what is there."""
    known = controller.known(namespace)  # before the lists: what comes later can't be missing from them
    objects, pods = await asyncio.gather(cluster.list_unfinished(namespace), cluster.list_pod_metadata(namespace))
    listed = {one["metadata"]["uid"] for one in objects}
    controller.missed(namespace, known.objects.keys() - listed, known.pods.keys() - {pod["name"] for pod in pods})
    if await policies.read_again(namespace):
        controller.policy_changed(namespace)
    known = controller.known(namespace)  # and after them: what has come meanwhile was told
    untold = [one for one in objects if _version(one["metadata"]) > known.objects.get(one["metadata"]["uid"], -1)]
    for one in _oldest(untold, lambda one: one["metadata"]):
        await _tell("object", one["metadata"], partial(_look_at, cluster, controller, one["plural"]))
    known = controller.known(namespace)
    for pod in _oldest((pod for pod in pods if _is_untold(pod, known)), lambda pod: pod):
        await _tell("pod", pod, partial(_look_at_pod, cluster, controller))


def _version(meta: Mapping[str, Any]) -> int:
    return int(meta["resourceVersion"])


def _oldest(found: Iterable[Mapping[str, Any]], meta: Callable[[Any], Any]) -> list[Mapping[str, Any]]:
    return sorted(found, key=lambda one: (meta(one).get("creationTimestamp", ""), meta(one)["name"]))[:MOST]


def _is_untold(pod: Mapping[str, Any], known: Known) -> bool:
    """True if a pod with this metadata belongs to an execution, a session or a pool, and is newer than is known."""
    labels = pod.get("labels") or {}
    if _version(pod) <= known.pods.get(pod["name"], -1):
        return False
    if POOL_LABEL in labels:  # its worker lists what was there before
        return any(owner["uid"] in known.objects for owner in pod.get("ownerReferences") or ())
    return EXECUTION_LABEL in labels or SESSION_LABEL in labels


async def _tell(what: str, meta: Mapping[str, Any], look: Callable[[str, str], Awaitable[None]]) -> None:
    """One that can't be read keeps nothing else from being looked at."""
    try:
        await look(meta["namespace"], meta["name"])
    except (ValidationError, *REQUEST_ERRORS) as error:
        place = f"{meta['namespace']}/{meta['name']}"
        logger.warning("%s %s: its record could not be read (%s)", what, place, type(error).__name__)


async def _look_at(cluster: Cluster, controller: Controller, plural: str, namespace: str, name: str) -> None:
    if found := await cluster.find_record(plural, namespace, name):
        await controller.turn(found)
        _PASS_ON[plural](controller, found, deleted=False)


async def _look_at_pod(cluster: Cluster, controller: Controller, namespace: str, name: str) -> None:
    if found := await cluster.find_pod(namespace, name):
        await controller.on_pod(found, deleted=False)
