"""Keeps the keys that small payloads are sealed with in the operator's own Secret, and tells the public one."""

from datetime import UTC, datetime

from codeexec_api import sealing
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.supervision import JobFailure
from codeexec_operator.core.keyring import Keyring


class SealingKeys:
    """The keys there are; see `core.keyring` for when there are others.

    Args:
        cluster: where they are.
        namespace: of the operator.
        secret: name of the Secret that holds them.
    """

    def __init__(self, cluster: Cluster, namespace: str, secret: str) -> None:
        self.ring = Keyring()
        self._cluster = cluster
        self._namespace, self._secret = namespace, secret

    async def renew(self, needed: frozenset[str] | None) -> bool:
        """Read them, make a new one if it is time to, and throw old ones away. True if clients are to use another one.

        Args:
            needed: names of the keys that can't be thrown away yet; None: it may be any of them.

        Raises:
            ApiException: the Secret isn't there or may not be changed.
            JobFailure: the Secret holds something else.
        """
        text, version = await self._cluster.get_keys(self._namespace, self._secret)
        try:
            stored = Keyring.load(text)
        except ValueError as error:
            raise JobFailure(f"the Secret {self._secret} in namespace {self._namespace} has {error}") from error
        kept = {key.name for key in stored.keys} if needed is None else needed
        ring = stored.renewed(datetime.now(UTC), kept, sealing.make_private_key)
        if ring != stored:
            await self._cluster.write_keys(self._namespace, self._secret, ring.dump(), version)
        before, self.ring = self.ring.newest, ring
        return ring.newest != before

    async def publish(self, namespace: str) -> str:
        """Tell clients in this namespace which key to use. Until that has succeeded they have none or an older one.

        Returns:
            The UID of the ConfigMap that says so; empty if there is no key yet.
        """
        if (newest := self.ring.newest) is None:
            return ""
        return await self._cluster.publish_key(namespace, sealing.publish(newest.name, newest.private))
