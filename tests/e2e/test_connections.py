"""A connection to a runner that is dead is noticed: kubelet and container runtime answer the operator's pings."""

import asyncio

from aiohttp import WSMsgType
from cluster_tools import SANDBOX, SYSTEM
from kubernetes.aio import client, config

from codeexec_api.names import SANDBOX_CONTAINER
from codeexec_operator.adapters.api_server import ApiServer

QUERY = {"container": SANDBOX_CONTAINER, "stdin": "true", "stdout": "true"}


async def test_the_container_runtime_answers_pings(admin, make_pool, kubeconfig_of):
    pool = make_pool(1)
    await asyncio.to_thread(pool.ready, 1)
    [name] = pool.pods()
    configuration = client.Configuration()
    path = await asyncio.to_thread(kubeconfig_of, SYSTEM, "codeexec-operator")
    await config.load_kube_config(str(path), client_configuration=configuration)
    api = ApiServer(configuration)
    async with api.attach(f"/api/v1/namespaces/{SANDBOX}/pods/{name}/attach", QUERY) as websocket:
        await websocket.ping(b"there?")
        async with asyncio.timeout(60):
            while (answer := await websocket.receive()).type is WSMsgType.BINARY:
                pass
        assert (answer.type, bytes(answer.data)) == (WSMsgType.PONG, b"there?")
    await api.close()
