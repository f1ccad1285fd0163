"""Which line of the audit log came last before this process, as far as records tell that are over."""

import asyncio
import heapq
from typing import Final

from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster

_PAUSE_SECONDS: Final = 0.02
"""After each page: there may be thousands, and at the start the API server has other work for this operator."""
_NEWEST: Final = 100
"""Records that are looked at, at most: the first few may be this process's own."""


async def hear_of_finished(cluster: Cluster, namespace: str, audit: AuditLog) -> None:
    """Tell the audit log of the newest line of an earlier chain in a namespace."""
    for plural, get in ((EXECUTION_PLURAL, cluster.get_execution), (SESSION_PLURAL, cluster.get_session)):
        newest: list[tuple[str, str]] = []
        async for page in cluster.list_columns(plural, namespace, finished=False):
            rows = [(str(row["Audited"]), str(row["Name"])) for row in page.rows if row["Audited"]]
            newest = heapq.nlargest(_NEWEST, newest + rows)
            await asyncio.sleep(_PAUSE_SECONDS)
        for _, name in newest:
            record = await get(namespace, name)
            if record and audit.heard(namespace, record.status.audit):
                break
