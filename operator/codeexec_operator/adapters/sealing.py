"""Keeps the keys that small payloads are sealed with in the operator's own Secret, and tells the public one."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import sealing
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.connection import NETWORK_ERRORS
from codeexec_operator.core.keyring import Keyring

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 600


class SealingKeys:
    """The keys there are; see `core.keyring` for when there are others.

    Args:
        cluster: where they are.
        namespace: of the operator.
        secret: name of the Secret that holds them.
        sandboxes: the namespaces to publish them in.
    """

    def __init__(self, cluster: Cluster, namespace: str, secret: str, sandboxes: Sequence[str]) -> None:
        self.ring = Keyring()
        self._cluster = cluster
        self._namespace, self._secret, self._sandboxes = namespace, secret, sandboxes

    async def open(self) -> None:
        """Read them, and make and publish one if there is none.

        Raises:
            ApiException: the Secret isn't there or may not be changed.
            ValueError: the Secret holds something else.
        """
        await self._renew(None)

    async def run(self, needed: Callable[[], frozenset[str]]) -> None:
        """Make new ones and throw old ones away, until cancelled.

        Args:
            needed: names of the keys that can't be thrown away yet.
        """
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._renew(needed())
            except (ApiException, *NETWORK_ERRORS, ValueError) as error:
                logger.warning("could not renew the sealing keys (%s); trying again", _what(error))

    async def _renew(self, needed: frozenset[str] | None) -> None:
        """Before the executions are known, when `needed` is None, any key may be needed."""
        text, version = await self._cluster.get_keys(self._namespace, self._secret)
        stored = Keyring.load(text)
        kept = {one.name for one in stored.keys} if needed is None else needed
        ring = stored.renewed(datetime.now(UTC), kept, sealing.make_private_key)
        if ring != stored:
            await self._cluster.write_keys(self._namespace, self._secret, ring.dump(), version)
        self.ring = ring
        if newest := ring.newest:
            data = sealing.publish(newest.name, newest.private)
            for sandbox in self._sandboxes:
                await self._publish(sandbox, data)

    async def _publish(self, sandbox: str, data: Mapping[str, str]) -> None:
        """Where that doesn't succeed, clients find no key or an older one; what the others find is none of it."""
        try:
            await self._cluster.publish_key(sandbox, data)
        except (ApiException, *NETWORK_ERRORS) as error:
            logger.warning("%s: could not publish the sealing key (%s); trying again", sandbox, _what(error))


def _what(error: BaseException) -> str:
    """Which error it is, without its text, which may hold what was sent."""
    return f"{type(error).__name__} {error.status}" if isinstance(error, ApiException) else type(error).__name__
