"""Which of several operators serves a namespace. Pure."""

import hashlib
from dataclasses import dataclass
from typing import Final

MOST: Final = 16
"""Shards that a release may have."""


@dataclass(frozen=True)
class Shard:
    """One operator among those that share the namespaces of a release. By default there is one for all."""

    index: int = 0
    count: int = 1

    def serves(self, namespace: str) -> bool:
        """True if this namespace is this shard's. With the same count, exactly one shard says so."""
        digest = hashlib.sha256(namespace.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index

    def lease(self, name: str) -> str:
        """Name of the Lease that this shard's replicas lead by; `name` is that of a release without shards."""
        return f"{name}-{self.index}" if self.index else name

    def others(self, name: str) -> list[str]:
        """Names of all Leases that another shard may be led by, also with another count."""
        return [Shard(index).lease(name) for index in range(MOST) if index != self.index]
