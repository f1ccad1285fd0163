"""Pods of a pool that were used and are kept for more of the same tenant. `core/reuse.py` decides about them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from codeexec_operator.adapters.pool_pods import ClaimedPod
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.observed_pod import Sandbox, seen_again
from codeexec_operator.core.observed_pool import KeptPod, Member, Tenant

logger = logging.getLogger(__name__)


class KeptPods:
    """A pod is here or with an execution, never both."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._pods: dict[str, tuple[ClaimedPod, Tenant, str, datetime]] = {}
        self._changed = changed
        self.closed = False
        """True once nobody looks after pods any more."""

    def __contains__(self, name: object) -> bool:
        return name in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: ClaimedPod, tenant: Tenant, job: str) -> None:
        """Its execution is over. The runner has yet to make it clean."""
        pod.connection.changed = self._changed
        self._pods[pod.pod_name] = (pod, tenant, job, now())
        self._changed()

    @property
    def view(self) -> dict[str, KeptPod]:
        """As they are at this moment; who has waited longest comes first."""
        return {name: _view(*one) for name, one in self._pods.items()}

    @property
    def tenants(self) -> list[Tenant]:
        """Whose they are."""
        return [tenant for _, tenant, *_ in self._pods.values()]

    def take(self, name: str) -> ClaimedPod:
        """Its tenant has it again."""
        pod = self._pods.pop(name)[0]
        runner = pod.connection.view
        return replace(pod, sandbox=replace(pod.sandbox, runner=runner), uses=pod.uses + 1, reset=runner.reset)

    def drop(self, name: str) -> bool:
        """It is given up. False if it isn't here."""
        if name not in self._pods:
            return False
        pod, *_ = self._pods.pop(name)
        pod.connection.close()
        reset = pod.connection.view.reset
        if reset and not reset.clean:
            logger.warning("%s: given up, because it was not clean after use %d: %s", name, pod.uses, reset.found)
        return True

    def observe(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A pod was seen, changed or deleted."""
        name = raw["metadata"]["name"]
        self._know(name, seen_again(self._pods[name][0].sandbox, raw, now(), deleted=deleted))

    def lose(self, name: str) -> None:
        """A pod is gone without a word."""
        if name in self._pods:
            self._know(name, replace(self._pods[name][0].sandbox, gone=True))

    def _know(self, name: str, sandbox: Sandbox) -> None:
        pod, *rest = self._pods[name]
        self._pods[name] = (replace(pod, sandbox=sandbox), *rest)  # type: ignore[assignment]
        self._changed()

    def pods(self) -> dict[str, int]:
        """Names of those that are not known to be gone, each with its version as it was seen."""
        boxes = ((name, pod.sandbox) for name, (pod, *_) in self._pods.items())
        return {name: box.pod.version for name, box in boxes if box.pod and not box.gone}

    def close(self) -> None:
        """Disconnect from all."""
        self.closed = True
        for pod, *_ in self._pods.values():
            pod.connection.close()


def _view(pod: ClaimedPod, tenant: Tenant, job: str, since: datetime) -> KeptPod:
    sandbox = replace(pod.sandbox, runner=pod.connection.view)
    member = Member(pod.created_at, pod.template.digest, sandbox, pod.proven)
    return KeptPod(tenant, pod.uses, job, since, member)
