"""The policies of the sandbox namespaces, as they were seen last, so that no execution waits for them to be read."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import ExecutionPolicySpec
from codeexec_api.policy import inheriting, namespace_policy
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.connection import NETWORK_ERRORS
from codeexec_operator.core.observed import PolicyProblem, parse_policy

logger = logging.getLogger(__name__)

_READ_AGAIN_SECONDS: Final = 60


@dataclass(frozen=True)
class _Known:
    version: int
    policy: ExecutionPolicySpec | PolicyProblem | None
    """None: the namespace has none of its own."""


class Policies:
    """Reads the policy of a namespace once, and is told of every change after that.

    Like everything that is watched, it may be some milliseconds behind.
    """

    def __init__(self, cluster: Cluster, default: ExecutionPolicySpec, default_source: str) -> None:
        """`default` is the policy of namespaces that have none of their own, `default_source` where it is kept."""
        self._cluster = cluster
        self.default = default
        self._default_source = default_source
        self._known: dict[str, _Known] = {}

    async def of(self, namespace: str) -> ExecutionPolicySpec | PolicyProblem:
        """What governs this namespace now."""
        if namespace not in self._known:
            raw = await self._cluster.get_policy(namespace)
            self._learn(namespace, raw, _version(raw))
        return self.known(namespace) or self.default

    def known(self, namespace: str) -> ExecutionPolicySpec | PolicyProblem | None:
        """The same, if it is known already."""
        return (self._known[namespace].policy or self.default) if namespace in self._known else None

    def source(self, namespace: str) -> str:
        """Where the policy is kept that governs this namespace, as far as is known."""
        known = self._known.get(namespace)
        return namespace_policy(namespace) if known and known.policy else self._default_source

    def observe(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A policy was listed, created, changed or deleted."""
        self._learn(raw["metadata"]["namespace"], None if deleted else raw, _version(raw))

    async def run(self, changed: Callable[[str], None]) -> None:
        """Read what is known once a minute: a watch that had to begin anew doesn't tell what went meanwhile.

        Args:
            changed: called with the namespace whose policy turned out to be another one.
        """
        while True:
            await asyncio.sleep(_READ_AGAIN_SECONDS)
            for namespace, before in list(self._known.items()):
                try:
                    raw = await self._cluster.get_policy(namespace)
                except (ApiException, *NETWORK_ERRORS) as error:
                    logger.warning("%s: could not read the policy again (%s)", namespace, type(error).__name__)
                    continue
                if self._known[namespace] is before and self._parse(raw) != before.policy:
                    self._known[namespace] = _Known(_version(raw) or before.version, self._parse(raw))
                    changed(namespace)

    def _learn(self, namespace: str, raw: Mapping[str, Any] | None, version: int) -> None:
        known = self._known.get(namespace)
        if known is None or version >= known.version:
            self._known[namespace] = _Known(version, self._parse(raw))

    def _parse(self, raw: Mapping[str, Any] | None) -> ExecutionPolicySpec | PolicyProblem | None:
        policy = parse_policy(raw)
        return inheriting(policy, self.default) if isinstance(policy, ExecutionPolicySpec) else policy


def _version(raw: Mapping[str, Any] | None) -> int:
    """Resource versions of one kind can be compared (Kubernetes API concepts, "Resource versions")."""
    return int(raw["metadata"]["resourceVersion"]) if raw else 0
