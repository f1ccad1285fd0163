"""A process that looks once for what isn't over, as the operator does. Prints how many there are, and MiB it has taken.

Arguments: a kubeconfig, and a namespace.
"""

import asyncio
import sys
from pathlib import Path

from kubernetes.aio import client, config

from codeexec_operator.adapters.api_server import ApiServer
from codeexec_operator.adapters.cluster import Cluster


def _most_mib() -> int:
    """Of this process alone: what `getrusage` says begins with the most that its parent has held."""
    status = Path("/proc/self/status").read_text().splitlines()
    [line] = [one for one in status if one.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


async def _look(kubeconfig: str, namespace: str) -> None:
    configuration = client.Configuration()
    await config.load_kube_config(kubeconfig, client_configuration=configuration)
    cluster = Cluster(ApiServer(configuration))
    await cluster.list_unfinished("default")
    before = _most_mib()
    found = await cluster.list_unfinished(namespace)
    print(len(found), _most_mib() - before)
    await cluster.close()


if __name__ == "__main__":
    asyncio.run(_look(*sys.argv[1:]))
