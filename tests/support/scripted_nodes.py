"""Simulated nodes in this process, whose runners do what a test says; see `simulated_kubelets.py` for what is real.

They live in a thread of their own, with the rights of the administrator.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from aiohttp import web
from cluster_tools import SANDBOX
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from scripted_runner import Script
from simulated_kubelets import Kubelets, Pod, hang_up, node, ready, serve, tls

from codeexec_api.names import SANDBOX_CONTAINER
from executor_client.transport.connections import Connections

T = TypeVar("T")


class ScriptedKubelets(Kubelets):
    """They can be lost and restored, end pods, and leave containers waiting."""

    def __init__(self, api: client.ApiClient, script: Script, *, address: str, port: int) -> None:
        super().__init__(api, namespace=None, address=address, port=port, script=script)
        self.lost: set[str] = set()
        """Names of nodes whose kubelet neither hears nor says anything."""
        self._node_of: dict[str, str] = {}
        self._missed: dict[str, Mapping[str, Any]] = {}
        """Pods, as they changed last while their node was lost."""
        self.waiting: Mapping[str, str] = {}
        """What containers wait for, reason and message, instead of being started."""

    async def end(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """End a pod, as a kubelet does that says this of it."""
        pod = self._by_name[namespace, name]
        pod.ended = True
        pod.runner.stop()
        killed = {"exitCode": 137, "reason": "Error", "startedAt": pod.started_at, "finishedAt": pod.started_at}
        container = {"name": SANDBOX_CONTAINER, "image": pod.image, "imageID": pod.image, "restartCount": 0}
        states = [{**container, "ready": False, "state": {"terminated": killed}}]
        await self._report(pod, {"phase": "Failed", "containerStatuses": states, **status})

    async def lose(self, node: str) -> None:
        """A node is switched off: whoever is connected to one of its pods is cut off, and nobody connects again."""
        self.lost.add(node)
        for pod in self._by_name.values():
            if self._node_of.get(pod.uid) == node:
                for socket in list(pod.sockets):
                    self._background(hang_up(socket))

    async def restore(self, name: str) -> None:
        """The node is switched on again, and registered if it was deleted."""
        self.lost.discard(name)
        with contextlib.suppress(ApiException):
            await self._core.create_node(node(name, self._address, self._port))  # type: ignore[arg-type]
        for uid in [uid for uid in self._missed if self._node_of[uid] == name]:
            self._observe(self._missed.pop(uid), deleted=False)

    async def _renew_once(self, name: str) -> Any:
        """Say that the node is ready, too, as a kubelet does if that was doubted.

        A lease that comes again doesn't make a node ready again, which was not heard of for too long on a busy machine.
        """
        with contextlib.suppress(ApiException):  # a test has deleted the node
            known = (await self._core.read_node(name)).status.conditions
            if name not in self.lost and any(one.type == "Ready" and one.status != "True" for one in known):
                await self._core.patch_node_status(name, {"status": {"conditions": [ready()]}})
        return await super()._renew_once(name)

    def _observe(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        uid = raw["metadata"]["uid"]
        self._node_of[uid] = raw["spec"].get("nodeName", "")
        self._missed.pop(uid, None)
        if self._node_of[uid] in self.lost and not deleted:
            self._missed[uid] = raw
        else:
            super()._observe(raw, deleted=deleted)

    async def attach(self, request: web.Request) -> web.StreamResponse:
        """As the API server answers for a node that it can't reach."""
        pod = self._by_name.get((request.match_info["namespace"], request.match_info["pod"]))
        if pod and self._node_of.get(pod.uid) in self.lost:
            raise web.HTTPBadGateway(text="the node does not answer")
        return await super().attach(request)

    async def _report(self, pod: Pod, status: Mapping[str, Any]) -> None:
        if self.waiting and status["phase"] == "Running":
            container = {"name": SANDBOX_CONTAINER, "image": pod.image, "imageID": "", "restartCount": 0}
            status = {"containerStatuses": [{**container, "ready": False, "state": {"waiting": dict(self.waiting)}}]}
        await super()._report(pod, status)


class ScriptedNodes:
    """Nodes of a control plane, from the time they are entered to the time they are left.

    Args:
        kubeconfig: the administrator's.
        authority: file with the certificate that the API server's own is signed with.
        address: where kubelets answer.
        folder: for their certificate.
        count: how many nodes.
    """

    def __init__(self, kubeconfig: str, authority: Path, address: str, folder: Path, *, count: int = 3) -> None:
        self.script = Script()
        self._kubeconfig, self._authority, self._address = kubeconfig, authority, address
        self._folder, self._count = folder, count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="simulated nodes", daemon=True)
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def end(self, pod: str, **status: Any) -> None:
        """See `ScriptedKubelets.end`."""
        self._do(self.kubelets.end(SANDBOX, pod, status))

    @contextlib.contextmanager
    def lost(self, node: str) -> Iterator[None]:
        """A node is switched off meanwhile."""
        self._do(self.kubelets.lose(node))
        try:
            yield
        finally:
            self._do(self.kubelets.restore(node))

    @contextlib.contextmanager
    def one_more(self, name: str, **room: str) -> Iterator[None]:
        """A node that no pod has ever been on, with so much of each resource."""
        self._do(self.kubelets.add(name, room))
        try:
            yield
        finally:
            self._do(self.kubelets.remove(name))

    @contextlib.contextmanager
    def clocks_ahead(self, seconds: float) -> Iterator[None]:
        """The clocks of all nodes are ahead by so many seconds meanwhile; behind if it is a negative number."""
        self.script.clock_ahead = seconds
        try:
            yield
        finally:
            self.script.clock_ahead = 0

    @contextlib.contextmanager
    def waiting(self, reason: str, message: str = "") -> Iterator[None]:
        """Containers of pods that come meanwhile are not started, and nodes say this of them."""
        self.kubelets.waiting = {"reason": reason, "message": message}
        try:
            yield
        finally:
            self.kubelets.waiting = {}

    async def _open(self) -> None:
        configuration = client.Configuration(connection_pool_maxsize=50)
        configuration.client_session_kwargs = {"trust_env": False}  # proxies of a test's environment are not for them
        await config.load_kube_config(self._kubeconfig, client_configuration=configuration)
        api = await self._stack.enter_async_context(client.ApiClient(configuration))
        api.rest_client = Connections(configuration)
        port = _free_port(self._address)
        self.kubelets = ScriptedKubelets(api, self.script, address=self._address, port=port)
        context = tls(self._folder, self._address, str(self._authority))
        server = await serve(self.kubelets, self._address, port, context)
        self._stack.push_async_callback(server.cleanup)
        await self.kubelets.register(self._count)
        watching = asyncio.create_task(self.kubelets.watch())
        self._stack.push_async_callback(self._stop, watching)

    async def _stop(self, watching: asyncio.Task[None]) -> None:
        every = [watching, *self.kubelets._tasks]
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
