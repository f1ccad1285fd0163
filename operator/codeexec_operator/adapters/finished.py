"""Which line of the audit log came last before this process, as far as records tell that are over.

They are not watched, because they are many and some are large. Of all of them the API server sends columns only.
"""

import asyncio
from collections.abc import Sequence

from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.retries import REQUEST_ERRORS, Retries


async def hear_of_finished(cluster: Cluster, namespaces: Sequence[str], audit: AuditLog, metrics: Metrics) -> None:
    """Tell the audit log of the newest line of an earlier chain in each namespace, once."""
    for namespace in namespaces:
        retries = Retries(namespace, metrics)
        while True:
            try:
                await _hear(cluster, namespace, audit)
                break
            except REQUEST_ERRORS as error:
                await asyncio.sleep(retries.failed(error, "could not look for the last audit line"))


async def _hear(cluster: Cluster, namespace: str, audit: AuditLog) -> None:
    for names, get in (
        (cluster.audited_executions, cluster.get_execution),
        (cluster.audited_sessions, cluster.get_session),
    ):
        for name in await names(namespace):  # the first few may be this process's own
            record = await get(namespace, name)
            if record and audit.heard(namespace, record.status.audit):
                break
