"""Makes the pool that a sandbox namespace has from the beginning. What becomes of it then is its owner's affair."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import SandboxPoolSpec
from codeexec_api.names import DEFAULT_POOL
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.connection import NETWORK_ERRORS

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 10


async def make_default_pools(cluster: Cluster, namespaces: Sequence[str], spec: SandboxPoolSpec | None) -> None:
    """Make it in each namespace that has no pool of this name, and try again until that has succeeded."""
    missing = list(namespaces) if spec else []
    while spec and missing:
        namespace = missing.pop(0)
        try:
            await cluster.ensure_pool(namespace, DEFAULT_POOL, spec)
        except (ApiException, *NETWORK_ERRORS) as error:
            logger.warning("%s: the default pool could not be made (%s); trying again", namespace, error)
            missing.append(namespace)
            await asyncio.sleep(_RETRY_SECONDS)
