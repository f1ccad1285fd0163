"""Writes into the status of each ExecutionPolicy whether the policy is in force.

Nothing depends on that, so nothing waits for it: each namespace has a job of its own, and what the API server refuses
is left alone for a while.
"""

import logging
import time
from asyncio import Event
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import ExecutionPolicySpec, ExecutionPolicyStatus
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.adapters.api_server import FOR_GOOD, message_of
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.policy_status import status_due

logger = logging.getLogger(__name__)

_CHANGED: Final = 409
_REFUSED: Final = (*FOR_GOOD, 404)
"""404: the policy is gone, or its CRD is too old for a status."""
_REFUSED_SECONDS: Final = 600
"""How long the same version of a policy is left alone after that."""


@dataclass(frozen=True)
class _Due:
    """A status that is to be written."""

    meta: ObjectMeta
    status: ExecutionPolicyStatus


class PolicyStatuses:
    """The statuses that are due, at most one for each namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._due: dict[str, _Due] = {}
        self._news: defaultdict[str, Event] = defaultdict(Event)
        """By namespace: set while a status is due."""
        self._refused: dict[str, tuple[str, float]] = {}
        """By namespace: the resource version of a policy whose status was refused, and when."""

    def observe(
        self, namespace: str, raw: Mapping[str, Any] | None, policy: ExecutionPolicySpec | PolicyProblem | None
    ) -> None:
        """A policy was read, for the first time or again; None: the namespace has none."""
        status = status_due(raw, policy, now()) if raw and policy else None
        if raw is None or status is None:
            self._due.pop(namespace, None)
            self._news[namespace].clear()
            return
        meta = ObjectMeta.model_validate(raw["metadata"])
        version, at = self._refused.get(namespace, ("", 0.0))
        if version != meta.resource_version or time.monotonic() >= at + _REFUSED_SECONDS:
            self._due[namespace] = _Due(meta, status)
            self._news[namespace].set()

    async def write(self, namespace: str) -> None:
        """Wait until a status is due, and write it once.

        Raises:
            ApiException: it was not written, and is still due.
            OSError: there was no answer; or another of NETWORK_ERRORS.
        """
        await self._news[namespace].wait()
        due = self._due[namespace]
        try:
            await self._cluster.write_policy_status(due.meta, due.status)
        except ApiException as error:
            if error.status in _REFUSED:
                self._leave(namespace, due, error)
            elif error.status != _CHANGED:  # of what has changed, another version will be read
                raise
        if self._due.get(namespace) is due:
            del self._due[namespace]
            self._news[namespace].clear()

    def _leave(self, namespace: str, due: _Due, error: ApiException) -> None:
        if namespace not in self._refused:
            logger.warning(
                "%s: whether its ExecutionPolicy is in force is not in the policy's status, because the API server "
                "answered %s (%s). The policy counts all the same. See whether the chart's CRDs and Roles are those of "
                "this operator",
                namespace,
                error.status,
                message_of(error),
            )
        self._refused[namespace] = due.meta.resource_version, time.monotonic()
