"""Deletes what nobody uses any more: payloads without an execution, expired output, Leases that nobody renews."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.connection import NETWORK_ERRORS
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.retention import abandoned_leases, expired_outputs, orphaned_payloads

logger = logging.getLogger(__name__)

_SECONDS: Final = 60


async def sweep(cluster: Cluster, namespaces: Sequence[str], awaited_payloads: Callable[[str], set[str]]) -> None:
    """Look again and again, until cancelled.

    Args:
        cluster: where to look.
        namespaces: sandbox namespaces.
        awaited_payloads: names of the payloads that executions of a namespace still need.
    """
    while True:
        await asyncio.sleep(_SECONDS)  # first of all: what executions await is known once they were listed
        for namespace in namespaces:
            await _quietly(namespace, _sweep_payloads(cluster, namespace, awaited_payloads))
            await _quietly(namespace, _sweep_outputs(cluster, namespace))
            await _quietly(namespace, _sweep_leases(cluster, namespace))


async def _quietly(namespace: str, work: Awaitable[None]) -> None:
    try:
        await work
    except (ApiException, *NETWORK_ERRORS) as error:
        logger.warning(
            "%s: could not look for unused payloads, expired output and Leases (%s)", namespace, type(error).__name__
        )
    except Exception:  # a bug must not end the sweeping for good
        logger.exception("%s: unexpected; looking again", namespace)


async def _sweep_payloads(cluster: Cluster, namespace: str, awaited: Callable[[str], set[str]]) -> None:
    found = await cluster.list_payloads(namespace)
    for name, uid, owner in orphaned_payloads(found, awaited(namespace), now()):
        execution = await cluster.get_execution(namespace, owner) if owner else None
        if execution and not execution.status.phase.terminal and not execution.status.started_at:
            continue  # it waits, and was not heard of here yet
        await cluster.delete_payload(namespace, name, uid)
        logger.info("%s/%s: deleted a payload that no execution uses", namespace, name)


async def _sweep_outputs(cluster: Cluster, namespace: str) -> None:
    for name, uid in expired_outputs(await cluster.list_outputs(namespace), now()):
        await cluster.delete_output(namespace, name, uid)
        logger.info("%s/%s: deleted expired output", namespace, name)


async def _sweep_leases(cluster: Cluster, namespace: str) -> None:
    for name, uid in abandoned_leases(await cluster.list_leases(namespace), now()):
        await cluster.delete_lease(namespace, name, uid)
        logger.info("%s/%s: deleted the Lease of a client that is gone", namespace, name)
