"""Deletes what nobody uses any more: payloads, expired output, Leases, and NetworkPolicies of executions."""

import logging

from codeexec_api import CodeExecution
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.worker import all_of, now
from codeexec_operator.core.retention import abandoned_leases, expired_outputs, orphaned_payloads, owners

logger = logging.getLogger(__name__)


async def sweep(cluster: Cluster, namespace: str, controller: Controller) -> None:
    """Look once through a namespace. One kind that can't be looked at holds up no other.

    `controller` knows the executions that are not over, once they were listed.
    """
    await all_of(
        [
            _sweep_payloads(cluster, namespace, controller),
            _sweep_outputs(cluster, namespace),
            _sweep_network_policies(cluster, namespace, controller),
        ]
    )


async def _sweep_payloads(cluster: Cluster, namespace: str, controller: Controller) -> None:
    found = await cluster.list_payloads(namespace)
    awaited, known = controller.awaited_payloads(namespace), controller.known(namespace).objects
    records: dict[str, CodeExecution | None] = {"": None}
    for orphan in orphaned_payloads(found, awaited, now()):
        if orphan.execution not in records:  # a payload may have many parts
            records[orphan.execution] = await cluster.read_back(CodeExecution, namespace, orphan.execution)
        if orphan.may_go(records[orphan.execution], known):
            await cluster.delete_payload(namespace, orphan.name, orphan.uid)
            logger.info("%s/%s: deleted a payload that no execution uses", namespace, orphan.name)


async def _sweep_outputs(cluster: Cluster, namespace: str) -> None:
    for name, uid in expired_outputs(await cluster.list_outputs(namespace), now()):
        await cluster.delete_output(namespace, name, uid)
        logger.info("%s/%s: deleted expired output", namespace, name)


async def _sweep_network_policies(cluster: Cluster, namespace: str, controller: Controller) -> None:
    """The worker deletes it when its execution is over; this is for when that did not succeed."""
    found = owners(await cluster.list_network_policies(namespace))
    known = controller.known(namespace).objects
    for name, uid, execution, owner in found:
        if owner in known:
            continue
        record = await cluster.read_back(CodeExecution, namespace, execution)
        if record is None or record.metadata.uid != owner or record.status.phase.terminal:
            await cluster.delete_network_policy(namespace, name, uid)
            logger.info("%s/%s: deleted the NetworkPolicy of an execution that is over", namespace, name)


class LeaseSweeper:
    """Deletes the Leases of clients that are gone: those that nobody has written between two looks.

    Agents create Leases, so no more than a page of their metadata is held.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._seen = 0
        """Resource version of the list at the last look that has succeeded."""

    async def look(self) -> None:
        """Look once. Two looks have to be `LEASE_LOOK` apart."""
        version = deleted = 0
        async for page in self._cluster.list_leases(self._namespace):
            version = version or int(page["metadata"]["resourceVersion"])
            seen = self._seen if self._seen <= version else 0  # it is older after etcd was restored from a backup
            for name, uid in abandoned_leases(page["items"] or (), seen):
                await self._cluster.delete_lease(self._namespace, name, uid)
                deleted += 1
        self._seen = version
        if deleted:
            logger.info("%s: deleted %d Leases of clients that are gone", self._namespace, deleted)
