"""Keeps an eye on the cluster around the sandboxes: nodes and runtimes, and which egress targets answer from here.

The targets are what the runner of each pod must not reach. By reaching them itself, the operator shows that they are
there; see `core.egress`. It tries what it has found itself, and nothing else because a pod says so.
"""

import asyncio
import logging
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api.image_signatures import ImageKey
from codeexec_api.permits import Network
from codeexec_api.scheduling import PLAIN
from codeexec_operator.adapters.api_server import FOR_GOOD, REQUEST_ERRORS
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.supervision import explain
from codeexec_operator.core.cluster_view import ClusterView, kubelet_targets
from codeexec_operator.core.egress import FRESH, Target
from codeexec_operator.core.observed_pod import PodView

logger = logging.getLogger(__name__)

TARGETS_SECONDS: Final = 10
"""Between two looks, and for each of them."""
_NODES_EVERY: Final = 30
"""How many looks there are to one at the nodes and runtime classes, which are many and change slowly."""
_ANSWER_SECONDS: Final = 2
_NAMED: Final = 32
"""Kubelets that are tried because pods that start were told to try them, besides those that are chosen now."""
_LONGEST_ANSWER: Final = 512
_DNS_QUESTION: Final = (
    struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0)
    + b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00"
    + struct.pack(">2H", 1, 1)
)
"""Address of kubernetes.default.svc.cluster.local: any answer counts, also that there is no such name."""


class EgressProber:
    """`view` is what was seen last."""

    def __init__(
        self, cluster: Cluster, *, canary_service: tuple[str, str], canary_port: int, never_permit: Sequence[Network]
    ) -> None:
        self._cluster = cluster
        self._fixed = (*_api_server(), *_name_servers(Path("/etc/resolv.conf")))
        self.view = ClusterView(required=self._fixed, never_permit=tuple(never_permit))
        self._canary_service, self._canary_port = canary_service, canary_port
        self._canary: asyncio.Server | None = None
        self._unreached: frozenset[Target] = frozenset()
        self._named: dict[Target, float] = {}
        """Kubelets that pods were told to try, and when one of these pods was last looked at here."""
        self._looks_until_nodes = 0

    def trust(self, image_keys: Sequence[ImageKey]) -> None:
        """From now on one of these keys has to have signed an image; none: images need no signature."""
        self.view = replace(self.view, image_keys=tuple(image_keys))

    def view_from(self, *pods: PodView | None) -> ClusterView:
        """What was seen last. If it says nothing of a node of these pods, the next look is at the nodes, too."""
        now = time.monotonic()
        for targets in {pod.egress_targets for pod in pods if pod}:
            self._named |= dict.fromkeys(targets & self.view.kubelets, now)
        if any(pod and pod.node_name and pod.node_name not in self.view.node for pod in pods):
            self._looks_until_nodes = 0
        return self.view

    async def open(self) -> None:
        """Serve the canary.

        Raises:
            OSError: the canary's port is in use.
        """
        self._canary = await asyncio.start_server(lambda _, writer: writer.close(), port=self._canary_port)

    async def know(self) -> None:
        """Look, so that pods can be made: each has to try the canary, and no permit may open a node's address.

        Raises:
            ApiException: the API server fails, so that another try may heal it.
            OSError: the same, without an answer; or aiohttp.ClientError.
            LookupError: the canary's Service has no address.
        """
        # A Service keeps its address for as long as it is there, whichever replicas are behind it.
        found = await self._cluster.get_service_targets(*self._canary_service)
        if not found:
            namespace, name = self._canary_service
            raise LookupError(f"Service {name!r} in namespace {namespace!r} has no clusterIP; the chart makes it")
        canary = tuple(Target("canary", address, port) for address, port in found)
        self.view = replace(self.view, required=(*self._fixed, *canary))
        await self.look(first=True)

    async def close(self) -> None:
        """End the canary."""
        if self._canary:
            self._canary.close()
            await self._canary.wait_closed()

    async def look(self, *, first: bool = False) -> None:
        """Look once. Without it no execution would ever be shown to be closed again.

        Raises:
            Exception: see `know`; at the first look only, because what was seen last counts afterwards.
        """
        nodes = "nodes and runtime classes"
        if self._looks_until_nodes == 0 and await self._try(self._look_at_nodes, nodes, needed=first):
            self._looks_until_nodes = _NODES_EVERY
        # They are few, and may change at any time.
        await self._try(self._look_at_api_servers, "the API server's EndpointSlices", needed=first)
        await self._look_at_targets()
        self._looks_until_nodes = max(0, self._looks_until_nodes - 1)

    async def _look_at_nodes(self) -> None:
        classes = await self._cluster.list_runtime_classes()
        nodes = await self._cluster.list_nodes({PLAIN, *(one.scheduling for one in classes.values())})
        self.view = replace(self.view, nodes=tuple(nodes), runtime_classes=classes)

    async def _look_at_api_servers(self) -> None:
        api_servers = await self._cluster.list_api_servers()
        self.view = replace(self.view, api_servers=api_servers)

    async def _try(self, look: Callable[[], Awaitable[None]], what: str, *, needed: bool) -> bool:
        """Targets have to be looked at, whatever becomes of it. What is needed is refused for good, or raises."""
        try:
            async with asyncio.timeout(TARGETS_SECONDS):
                await look()
        except REQUEST_ERRORS as error:
            if needed and not (isinstance(error, ApiException) and error.status in FOR_GOOD):
                raise
            logger.warning("%s could not be listed: %s", what, explain(error))
            return False
        return True

    async def _look_at_targets(self) -> None:
        # A pod that starts keeps the kubelets that it was given, also when others are given by now.
        oldest = time.monotonic() - FRESH.total_seconds()
        self._named = {target: when for target, when in self._named.items() if when >= oldest}
        named = islice(self._named, _NAMED)
        targets = list({*self.view.required, *kubelet_targets(self.view.nodes), *named})
        # An address that can't be tried at all is one that does not answer, and spoils no other.
        answers = await asyncio.gather(*(_answers(target) for target in targets), return_exceptions=True)
        now = datetime.now(UTC)
        reached = {target: now for target, answered in zip(targets, answers, strict=True) if answered is True}
        known = {target: when for target, when in self.view.reached_at.items() if target in targets}
        self.view = replace(self.view, reached_at=known | reached)
        unreached = frozenset(targets) - reached.keys()
        for target in sorted(unreached - self._unreached):
            logger.warning("%s does not answer the operator", target)
        self._unreached = unreached


def _api_server() -> list[Target]:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    return [Target("api-server", host, int(port))] if host and port else []


def _name_servers(resolv_conf: Path) -> list[Target]:
    words = [line.split() for line in resolv_conf.read_text().splitlines()] if resolv_conf.exists() else []
    servers = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    return [target for server in servers for target in (Target("dns", server, 53), Target("dns", server, 53, "UDP"))]


async def _answers(target: Target) -> bool:
    """True if the target can be reached from here."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            if target.protocol == "UDP":
                return await _name_server_answers(target)
            _, writer = await asyncio.open_connection(target.address, target.port)
            writer.close()
            return True
    return False


async def _name_server_answers(target: Target) -> bool:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        await loop.sock_connect(asking, (target.address, target.port))
        await loop.sock_sendall(asking, _DNS_QUESTION)
        return len(await loop.sock_recv(asking, _LONGEST_ANSWER)) >= len(_DNS_QUESTION)
