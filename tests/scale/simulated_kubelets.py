"""A SIMULATOR of nodes: as many kubelets as are asked for, in one process, as far as the API server can tell.

It is no kubelet and runs nothing: there is no container, no network, no kernel, no image, no disk. What is real is all
that stands on the other side: API server, etcd, scheduler, controllers, the operator and its connections.

- Nodes: registered as a kubelet does it, with a lease each that is renewed as often as a kubelet does. The taint
  `codeexec.dev/simulated:NoSchedule` keeps all other pods away: here they would seem to run and do nothing. A weaker
  one doesn't hold: when the real node is full, the scheduler takes these. A RuntimeClass brings the pods of the test.
- Pods of one namespace that are bound to them: `Running` at once, in one patch (a kubelet takes two or three, and
  a second); `Succeeded` when the runner has ended. Deadlines are not kept. One watch follows all pods; kubelets have
  one each.
- `pods/attach`: TLS with a client certificate of the cluster, websocket, `v4.channel.k8s.io`, as the API server passes
  it on. Behind it is `tests/support/scripted_runner.py`, and `pods/log` gives what that has said. All nodes have the
  same address and port: the path names the pod.

    python tests/scale/simulated_kubelets.py --nodes 3 --address 172.18.0.1 --namespace codeexec-load

Works with the cluster of KUBECONFIG until its stdin ends or it is told to stop, and takes its nodes away then. Each
line on stdin is answered by a line of JSON, what has been counted.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import logging
import os
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientError, WSMsgType, web
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.manifests.pod import egress_targets_of

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from scripted_runner import RunnerLog, Script, ScriptedRunner

SIMULATED: Final = "codeexec.dev/simulated"
"""Label and taint of the nodes, label of their leases."""
PORT: Final = 10350
"""Not the kubelets' own, which operators may connect to: a target of egress proofs must not go away with the test."""
PODS_PER_NODE: Final = 110
_POOL: Final = "codeexec.dev/pool"
_LEASES: Final = "kube-node-lease"
_LEASE_SECONDS: Final = 40
_RENEW_SECONDS: Final = 10
"""As kubelets do."""
_WATCH_SECONDS: Final = 280
_ANSWER_SECONDS: Final = 30
_CONNECTIONS: Final = 50
_STDIN, _STDOUT, _ERROR = b"\x00", b"\x01", b"\x03"
_SUCCESS: Final = b'{"metadata":{},"status":"Success"}'
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_MERGE: Final = "application/merge-patch+json"
_FAILURES: Final = (ApiException, ClientError, OSError, TimeoutError)

logger = logging.getLogger("simulated kubelets")


@dataclass
class Counts:
    """What has happened since the start."""

    pods: int = 0
    """That were bound to one of the nodes."""
    waiting: int = 0
    """That run or start, and still carry the label of a pool."""
    most_waiting: int = 0
    attached: int = 0
    """Connections to runners, now."""
    most_attached: int = 0
    jobs: int = 0
    pods_used_twice: int = 0
    failures: int = 0
    """Requests to the API server that were given up."""


@dataclass
class Pod:
    """A pod that is bound to one of the nodes."""

    namespace: str
    name: str
    uid: str
    image: str
    runner: ScriptedRunner
    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    started_at: str = ""
    ended: bool = False


class Kubelets:
    """All nodes, and the pods that are bound to them.

    Args:
        api: with an administrator's rights.
        namespace: no pod of another one is ever answered for; None: those of all are.
        address: where `attach` is answered, for all nodes.
        script: what all runners share.
    """

    def __init__(
        self, api: client.ApiClient, *, namespace: str | None, address: str, port: int, script: Script
    ) -> None:
        self._counts = Counts()
        self._core, self._leases = client.CoreV1Api(api), client.CoordinationV1Api(api)
        self._namespace = namespace
        self._address, self._port, self._script = address, port, script
        self._nodes: set[str] = set()
        self._pods: dict[str, Pod] = {}
        self._by_name: dict[tuple[str, str], Pod] = {}
        self._waiting: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def counts(self) -> Counts:
        """What has happened up to now."""
        return replace(self._counts, jobs=self._script.jobs.total(), pods_used_twice=self._script.pods_used_twice)

    # --- nodes ---

    async def register(self, count: int) -> None:
        """Create the nodes and their leases, and keep these alive.

        Raises:
            ApiException: one was refused, as when it is there already.
        """
        for number in range(count):
            await self.add(f"simulated-{number:03}", delay=_RENEW_SECONDS * number / count)

    async def add(self, name: str, room: Mapping[str, str] | None = None, *, delay: float = 0) -> None:
        """Create one node with its lease, and keep the lease alive.

        Args:
            name: of the node.
            room: how much of each resource pods can have, where that differs from other nodes.
            delay: seconds until the lease is renewed for the first time.
        """
        await self._core.create_node(node(name, self._address, self._port, room))  # type: ignore[arg-type]
        self._nodes.add(name)
        await self._leases.create_namespaced_lease(_LEASES, lease(name))  # type: ignore[arg-type]
        self._background(self._renew(name, delay))

    async def remove(self, name: str) -> None:
        """Delete a node. Deletions of pods that are still on it are confirmed as before."""
        await self._core.delete_node(name)

    async def unregister(self) -> None:
        """Delete all simulated nodes and their leases, also those that another process has left behind."""
        for task in list(self._tasks):
            task.cancel()
        await self._core.delete_collection_node(label_selector=SIMULATED)
        await self._leases.delete_collection_namespaced_lease(_LEASES, label_selector=SIMULATED)

    async def _renew(self, name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            await self._tried(lambda: self._renew_once(name))
            await asyncio.sleep(_RENEW_SECONDS)

    async def _renew_once(self, name: str) -> Any:
        patch = {"spec": {"renewTime": _now(timespec="microseconds")}}
        call = self._leases.patch_namespaced_lease_without_preload_content
        return await call(name, _LEASES, patch, _content_type=_MERGE)

    # --- pods ---

    async def watch(self) -> None:
        """Follow the pods that are bound to the nodes, until cancelled."""
        while True:
            try:
                async for kind, raw in self._changes():
                    self._observe(raw, deleted=kind == "DELETED")
            except _FAILURES as error:
                logger.warning("pods are not watched at the moment (%s)", type(error).__name__)
                await asyncio.sleep(1)

    async def _changes(self) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        """All bound pods as they are, then each change, until the server ends the watch."""
        every = self._core.list_pod_for_all_namespaces_without_preload_content
        of_one = self._core.list_namespaced_pod_without_preload_content
        call = functools.partial(of_one, self._namespace) if self._namespace else every
        bound = "spec.nodeName!="
        listed = await (await call(field_selector=bound)).json()
        for raw in listed["items"]:
            yield "ADDED", raw
        present = {raw["metadata"]["uid"] for raw in listed["items"]}
        for gone in [pod for uid, pod in self._pods.items() if uid not in present]:
            self._forget(gone)
        response: Any = await call(
            watch=True,
            field_selector=bound,
            resource_version=listed["metadata"]["resourceVersion"],
            timeout_seconds=_WATCH_SECONDS,
            _request_timeout=_WATCH_SECONDS + _ANSWER_SECONDS,
        )
        try:
            while line := await response.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]
        finally:
            response.close()

    def _observe(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        if raw["spec"].get("nodeName") not in self._nodes:
            return
        uid = raw["metadata"]["uid"]
        pod = self._pods.get(uid)
        if deleted:
            if pod:
                self._forget(pod)
        elif pod is None and raw["status"].get("phase") == "Pending":
            pod = self._adopt(raw)
        if pod and not deleted and _POOL in raw["metadata"].get("labels", {}) and not pod.ended:
            self._waiting.add(uid)
        else:
            self._waiting.discard(uid)
        self._counts.waiting = len(self._waiting)
        self._counts.most_waiting = max(self._counts.most_waiting, self._counts.waiting)
        if not deleted and "deletionTimestamp" in raw["metadata"]:
            self._background(self._remove(raw["metadata"]))

    def _adopt(self, raw: Mapping[str, Any]) -> Pod:
        meta = raw["metadata"]
        self._counts.pods += 1
        runner = ScriptedRunner(json.loads(egress_targets_of(raw["spec"])), self._script)
        image = raw["spec"]["containers"][0]["image"]
        pod = Pod(meta["namespace"], meta["name"], meta["uid"], image, runner, started_at=self._now())
        self._pods[pod.uid] = self._by_name[pod.namespace, pod.name] = pod
        self._background(self._report(pod, running_status(pod, self._address, ip_of(self._counts.pods))))
        return pod

    def _forget(self, pod: Pod) -> None:
        pod.ended = True
        self._waiting.discard(pod.uid)
        self._pods.pop(pod.uid, None)
        if self._by_name.get((pod.namespace, pod.name)) is pod:
            del self._by_name[pod.namespace, pod.name]
        for socket in list(pod.sockets):
            self._background(hang_up(socket))
        pod.runner.stop()

    async def _end(self, pod: Pod) -> None:
        if not pod.ended:
            pod.ended = True
            await self._report(pod, ended_status(pod, self._now()))

    async def _remove(self, meta: Mapping[str, Any]) -> None:
        """Confirm a deletion that waits for the node: its containers have ended, if the node ever knew the pod."""
        options: Any = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        delete = self._core.delete_namespaced_pod_without_preload_content
        await self._tried(lambda: delete(meta["name"], meta["namespace"], body=options))

    async def _report(self, pod: Pod, status: Mapping[str, Any]) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        call = self._core.patch_namespaced_pod_status_without_preload_content
        await self._tried(lambda: call(pod.name, pod.namespace, patch, _content_type=_STRATEGIC))

    async def _tried(self, call: Callable[[], Any]) -> None:
        """A kubelet doesn't give up, either, but it has more patience than this."""
        for pause in (0.2, 1, 5, 0):
            try:
                response = await call()
                await response.read()
                if response.status < 500 and response.status != 429:
                    return  # what it is about may be gone, or another one by now
            except _FAILURES:
                pass
            await asyncio.sleep(pause)
        self._counts.failures += 1

    # --- attach and log ---

    async def attach(self, request: web.Request) -> web.StreamResponse:
        """`/attach/{namespace}/{pod}/{container}`: what the API server makes of `pods/attach`."""
        pod = self._by_name.get((request.match_info["namespace"], request.match_info["pod"]))
        if pod is None or pod.ended:
            raise web.HTTPNotFound(text="there is no such container on the simulated nodes")
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), compress=False)
        await socket.prepare(request)
        pod.sockets.add(socket)
        self._counts.attached += 1
        self._counts.most_attached = max(self._counts.most_attached, self._counts.attached)
        try:
            await socket.send_bytes(_STDOUT)  # empty: that the connection is made
            await self._converse(socket, pod)
        except (ConnectionError, ValueError) as error:
            logger.warning("%s: %s", pod.name, error)
        finally:
            pod.sockets.discard(socket)
            self._counts.attached -= 1
        return socket

    async def _converse(self, socket: web.WebSocketResponse, pod: Pod) -> None:
        """The runner takes one message while it works on another."""
        telling = asyncio.create_task(self._tell(socket, pod.runner.log))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[:1] == _STDIN:
                    pod.runner.take(message.data[1:])
        finally:
            telling.cancel()
        if pod.runner.exited:
            self._background(self._end(pod))

    async def _tell(self, socket: web.WebSocketResponse, log: RunnerLog) -> None:
        """Send what the runner says from now on."""
        with contextlib.suppress(ConnectionError):
            async for line in log.follow(len(log.lines)):
                await socket.send_bytes(_STDOUT + line)
            await socket.send_bytes(_ERROR + _SUCCESS)
            await socket.close()

    async def log(self, request: web.Request) -> web.StreamResponse:
        """`/containerLogs/{namespace}/{pod}/{container}`: what the API server makes of `pods/log`."""
        pod = self._by_name.get((request.match_info["namespace"], request.match_info["pod"]))
        if pod is None:
            raise web.HTTPNotFound(text="there is no such container on the simulated nodes")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        seconds = request.query.get("sinceSeconds")
        first = self._script.time() - int(seconds) if seconds else 0
        async for line in pod.runner.log.follow(since=first):
            await response.write(line)
        return response

    def _now(self) -> str:
        """The time by the clocks of the nodes. Their leases have the true time: they may not become older."""
        return _in_words(datetime.fromtimestamp(self._script.time(), UTC))

    def _background(self, job: Any) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def hang_up(socket: web.WebSocketResponse) -> None:
    """End a connection, if it has not ended yet."""
    with contextlib.suppress(ConnectionError):
        await socket.close()


# --- what kubelets tell the API server ---


def ip_of(number: int) -> str:
    """An address of its own for each pod, of those that are reserved for benchmarks (RFC 2544)."""
    return f"198.{18 + number // 65536 % 2}.{number // 256 % 256}.{number % 256}"


def node(name: str, address: str, port: int, less: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A node as a kubelet registers it: large but for what is named, ready, and of the same sort as the real one."""
    large = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "512Gi", "pods": str(PODS_PER_NODE)}
    room = {**large, **(less or {})}
    system = {"operatingSystem": "linux", "architecture": "amd64", "kubeletVersion": "v1.34.4-simulated"}
    unknown = ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion")
    return {
        "metadata": {
            "name": name,
            "labels": {SIMULATED: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": SIMULATED, "value": "true", "effect": "NoSchedule"}]},
        "status": {
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {**system, **dict.fromkeys(unknown, "simulated"), "kubeProxyVersion": ""},
            "runtimeHandlers": [{"name": one, "features": {"userNamespaces": True}} for one in ("", "runc")],
            "conditions": [ready()],
        },
    }


def ready() -> dict[str, str]:
    """The condition of a node that takes pods."""
    said = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "a simulator says so"}
    return said | {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}


def lease(name: str) -> dict[str, Any]:
    """The lease by which the node controller knows that a node lives."""
    spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": _now(timespec="microseconds")}
    return {"metadata": {"name": name, "labels": {SIMULATED: "true"}}, "spec": spec}


def running_status(pod: Pod, address: str, ip: str) -> dict[str, Any]:
    """Of a pod whose container has just started."""
    return {
        "phase": "Running",
        "hostIP": address,
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": pod.started_at,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": pod.started_at}
            for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [_container(pod, {"running": {"startedAt": pod.started_at}}, ready=True)],
    }


def ended_status(pod: Pod, now: str) -> dict[str, Any]:
    """Of a pod whose runner has exited after its job."""
    times = {"startedAt": pod.started_at, "finishedAt": now}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", **times}}
    return {
        "phase": "Succeeded",
        "conditions": [
            {"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
            for kind in ("PodReadyToStartContainers", "ContainersReady", "Ready")
        ],
        "containerStatuses": [_container(pod, ended, ready=False)],
    }


def _container(pod: Pod, state: Mapping[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "name": "sandbox",
        "image": pod.image,
        "imageID": pod.image,
        "containerID": f"simulated://{pod.uid}",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }


def _in_words(moment: datetime, timespec: str = "seconds") -> str:
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def _now(timespec: str = "seconds") -> str:
    return _in_words(datetime.now(UTC), timespec)


# --- the process ---


def tls(folder: Path, address: str, cluster_ca: str) -> ssl.SSLContext:
    """A certificate that nobody verifies (a kubeadm cluster's API server doesn't), for clients that the cluster knows.

    Raises:
        subprocess.CalledProcessError: openssl could not make one.
    """
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=simulated-kubelets", "-addext", f"subjectAltName=IP:{address}"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=cluster_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    return context


async def _obey(kubelets: Kubelets, stop: asyncio.Event) -> None:
    """Answer each line on stdin; its end is the end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        print(json.dumps(asdict(kubelets.counts)), flush=True)
    stop.set()


async def serve(kubelets: Kubelets, address: str, port: int, context: ssl.SSLContext) -> web.AppRunner:
    """Answer what the API server passes on to kubelets, until the caller cleans up what this returns."""
    app = web.Application()
    app.router.add_get("/attach/{namespace}/{pod}/{container}", kubelets.attach)
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", kubelets.log)
    server = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await server.setup()
    await web.TCPSite(server, address, port, ssl_context=context, backlog=1024).start()
    return server


async def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated nodes; see the module's docstring.")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--address", required=True, help="of this machine, as the API server can reach it")
    parser.add_argument("--namespace", required=True, help="whose pods are to seem to run")
    parser.add_argument("--port", type=int, default=PORT)
    arguments = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    configuration = client.Configuration(connection_pool_maxsize=_CONNECTIONS)
    await config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)
    stop = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        api = await stack.enter_async_context(client.ApiClient(configuration))
        kubelets = Kubelets(
            api,
            namespace=arguments.namespace,
            address=arguments.address,
            port=arguments.port,
            script=Script(),
        )
        context = tls(folder, arguments.address, configuration.ssl_ca_cert or "")
        server = await serve(kubelets, arguments.address, arguments.port, context)
        stack.push_async_callback(server.cleanup)
        stack.push_async_callback(kubelets.unregister)
        await kubelets.register(arguments.nodes)
        watching = asyncio.create_task(kubelets.watch())
        stack.callback(watching.cancel)
        obeying = asyncio.create_task(_obey(kubelets, stop))
        stack.callback(obeying.cancel)
        print(json.dumps({"nodes": arguments.nodes}), flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
