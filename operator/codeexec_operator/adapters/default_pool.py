"""Makes the pool that a sandbox namespace has from the beginning. What becomes of it then is its owner's affair."""

import asyncio
from collections.abc import Sequence

from codeexec_api import SandboxPoolSpec
from codeexec_api.names import DEFAULT_POOL
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.retries import REQUEST_ERRORS, Retries


async def make_default_pools(
    cluster: Cluster, namespaces: Sequence[str], spec: SandboxPoolSpec | None, metrics: Metrics
) -> None:
    """Make it in each namespace that has no pool of this name, and try again until that has succeeded."""
    retries = {namespace: Retries(namespace, metrics) for namespace in namespaces if spec}
    while spec and retries:
        pauses = []
        for namespace, tries in list(retries.items()):
            try:
                await cluster.ensure_pool(namespace, DEFAULT_POOL, spec)
                del retries[namespace]
            except REQUEST_ERRORS as error:
                pauses.append(tries.failed(error, "the default pool could not be made"))
        await asyncio.sleep(max(pauses, default=0))
