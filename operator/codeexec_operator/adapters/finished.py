"""Which line of the audit log came last before this process, as far as records tell that are over.

They are not watched, because they are many and some are large. Of all of them the API server sends columns only.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.connection import NETWORK_ERRORS

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1


async def hear_of_finished(cluster: Cluster, namespaces: Sequence[str], audit: AuditLog) -> None:
    """Tell the audit log of the newest line of an earlier chain in each namespace, once."""
    for namespace in namespaces:
        while True:
            try:
                await _hear(cluster, namespace, audit)
                break
            except (ApiException, *NETWORK_ERRORS) as error:
                logger.warning(
                    "%s: could not look for the last audit line (%s); trying again", namespace, type(error).__name__
                )
                await asyncio.sleep(_RETRY_SECONDS)


async def _hear(cluster: Cluster, namespace: str, audit: AuditLog) -> None:
    for names, get in (
        (cluster.audited_executions, cluster.get_execution),
        (cluster.audited_sessions, cluster.get_session),
    ):
        for name in await names(namespace):  # the first few may be this process's own
            record = await get(namespace, name)
            if record and audit.heard(namespace, record.status.audit):
                break
