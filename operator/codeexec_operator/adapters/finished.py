"""Which line of the audit log came last before this process, as far as records tell that are over.

They are not watched, because they are many and some are large. Of all of them the API server sends columns only.
"""

from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster


async def hear_of_finished(cluster: Cluster, namespace: str, audit: AuditLog) -> None:
    """Tell the audit log of the newest line of an earlier chain in a namespace."""
    for names, get in (
        (cluster.audited_executions, cluster.get_execution),
        (cluster.audited_sessions, cluster.get_session),
    ):
        for name in await names(namespace):  # the first few may be this process's own
            record = await get(namespace, name)
            if record and audit.heard(namespace, record.status.audit):
                break
