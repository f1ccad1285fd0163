"""The policies of the sandbox namespaces, as they were seen last, so that no execution waits for them to be read."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from codeexec_api import ExecutionPolicySpec
from codeexec_api.policy import capped, inheriting, namespace_policy, without_store
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.core.observed import PolicyProblem, parse_policy
from codeexec_operator.core.output_place import CONFIG_MAPS, OutputPlace

_ADMISSION_SECONDS: Final = 30
"""How long the API server may take until it applies changed admission policies; usually about one."""


Tell = Callable[[str, Mapping[str, Any] | None, ExecutionPolicySpec | PolicyProblem | None], object]
"""Takes a namespace, its policy as the API server has it, and what was read of that."""


@dataclass(frozen=True)
class _Known:
    version: int
    policy: ExecutionPolicySpec | PolicyProblem | None
    """As it is written; None: the namespace has none of its own."""


class Policies:
    """Reads the policy of a namespace once, and is told of every change after that.

    Like everything that is watched, it may be some milliseconds behind.
    """

    def __init__(
        self,
        cluster: Cluster,
        default: ExecutionPolicySpec,
        default_source: str,
        place: OutputPlace = CONFIG_MAPS,
        tell: Tell = lambda *_: None,
    ) -> None:
        """`default` is the policy of namespaces that have none of their own. `default_source` says where it is kept.

        No policy allows more output than there is place for, nor sessions that sleep where there is no store. `tell` is
        told of each version of a policy that was read.
        """
        self._cluster, self._place, self._tell = cluster, place, tell
        self.change(default)
        self._default_source = default_source
        self._known: dict[str, _Known] = {}

    def change(self, default: ExecutionPolicySpec) -> None:
        """From now on this is the default."""
        self.default, self._changed_at = self._limited(default), time.monotonic()

    @property
    def just_changed(self) -> bool:
        """True if admission may not know the default yet, which changes together with the admission policies."""
        return time.monotonic() < self._changed_at + _ADMISSION_SECONDS

    async def of(self, namespace: str) -> ExecutionPolicySpec | PolicyProblem:
        """What governs this namespace now."""
        if namespace not in self._known:
            raw = await self._cluster.get_policy(namespace)
            if namespace not in self._known:  # what was heard of meanwhile was told to all whom it concerns
                self._learn(namespace, raw, _version(raw))
        return self.known(namespace) or self.default

    def known(self, namespace: str) -> ExecutionPolicySpec | PolicyProblem | None:
        """The same, if it is known already."""
        if namespace not in self._known:
            return None
        own = self._known[namespace].policy
        if not isinstance(own, ExecutionPolicySpec):
            return own or self.default
        return self._limited(inheriting(own, self.default))

    def _limited(self, policy: ExecutionPolicySpec) -> ExecutionPolicySpec:
        policy = capped(policy, self._place.output_bytes)
        return policy if self._place.url else without_store(policy)

    def source(self, namespace: str) -> str:
        """Where the policy is kept that governs this namespace, as far as is known."""
        known = self._known.get(namespace)
        return namespace_policy(namespace) if known and known.policy else self._default_source

    def observe(self, raw: Mapping[str, Any], *, deleted: bool) -> bool:
        """A policy was listed, created, changed or deleted. True if another policy governs the namespace now."""
        namespace = raw["metadata"]["namespace"]
        before = self._known.get(namespace)
        self._learn(namespace, None if deleted else raw, _version(raw))
        return before is None or self._known[namespace].policy != before.policy

    async def read_again(self, namespace: str) -> bool:
        """Read it before a namespace is watched, and again: a watch that starts again does not report deletions.

        Returns:
            True if it is another one than was known.
        """
        before = self._known.get(namespace)
        raw = await self._cluster.get_policy(namespace)
        if self._known.get(namespace) is not before:
            return False
        policy = parse_policy(raw)
        self._tell(namespace, raw, policy)
        if before and policy == before.policy:
            return False
        self._known[namespace] = _Known(_version(raw) or (before.version if before else 0), policy)
        return True

    def _learn(self, namespace: str, raw: Mapping[str, Any] | None, version: int) -> None:
        known = self._known.get(namespace)
        if known is None or version >= known.version:
            self._known[namespace] = _Known(version, policy := parse_policy(raw))
            self._tell(namespace, raw, policy)


def _version(raw: Mapping[str, Any] | None) -> int:
    """Resource versions of one kind can be compared (Kubernetes API concepts, "Resource versions")."""
    return int(raw["metadata"]["resourceVersion"]) if raw else 0
