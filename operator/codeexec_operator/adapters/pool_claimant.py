"""Whoever gets a ready pod of a pool and makes it its own. `core/` decides; here it is carried out."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from codeexec_api import CodeSession, PodLimits, Verdict
from codeexec_api.names import pod_name
from codeexec_operator.adapters.api_server import NETWORK_ERRORS
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.pod_worker import PodWorker
from codeexec_operator.adapters.pool_pods import ClaimedPod
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.observed import ClaimedView
from codeexec_operator.core.observed_pod import Sandbox
from codeexec_operator.core.payload import build_report_request
from codeexec_operator.core.placement import Claim

_CHORES_SECONDS: Final = 0.3
"""How long the adoption waits, so that it takes no time from the first call."""


class FindPool(Protocol):
    """By namespace, and what is asked for."""

    def __call__(
        self, namespace: str, verdict: Verdict, limits: PodLimits, *, stateful: bool = False
    ) -> PoolWorker | None:
        """One that serves this, if there is one."""


class PoolClaimant:
    """Stands for an execution or a session in the queue of a pool. `worker` has the pod, whoever has made it."""

    def __init__(self, worker: PodWorker, find_pool: FindPool) -> None:
        self.wake, self.observe_pod = worker.wake, worker.observe_pod
        self._worker, self._find_pool = worker, find_pool
        self._pool: PoolWorker | None = None
        self._claimed: ClaimedPod | None = None

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """What its place depends on."""

    def receive(self, pod: ClaimedPod) -> None:
        """A pod of the pool is its own now. It may have asked for one before, or the leader before has."""
        before = self._worker.pods()
        self._claimed = pod
        self._has(pod.pod_name, pod.sandbox, pod.connection)
        self._worker.has_besides(*before)
        pod.connection.changed = self.wake
        self.wake()

    async def adopt(self, patch: Mapping[str, Any]) -> bool:
        """Make the pod its own for all to see. Until then the pod goes with its pool, or with the worker."""
        pool, worker, pod = self._pool, self._worker, self._worker.pod_name
        patch_pod = worker.context.cluster.patch_pod
        adopted = await worker.insist("the pod was not adopted", patch_pod, worker.meta.namespace, pod, patch)
        if adopted and pool:
            pool.claims.adopted(pod)
        return adopted

    def give_back(self) -> None:
        """Have the pod no more: it was not used, and nobody else may have it."""
        pool, pod = self._pool, self._claimed
        self._has_none()
        if pool and pod:
            pod.connection.close()
            pool.claims.discard(pod.pod_name)
            pool.leave(self, pod)

    def is_in(self, pod: str) -> None:
        """The record says where it is: that counts, whatever it has got since. What was written may come late."""
        if pod != self._worker.pod_name:
            self.give_back()
            self._has(pod, Sandbox(), None)
        if self._pool and not self._claimed:
            self._pool.leave(self, None)
            self._pool = None

    def _has_none(self) -> None:
        """Its pod, if it gets another one, is its own."""
        self._claimed = None
        self._has(pod_name(self._worker.meta.name, self._worker.meta.uid), Sandbox(), None)

    def _has(self, pod: str, sandbox: Sandbox, connection: Connection | None) -> None:
        self._worker.pod_name, self._worker.sandbox, self._worker.connection = pod, sandbox, connection


class SessionClaimant(PoolClaimant):
    """Stands for a session, and never waits. `session` is what is known of it now."""

    def __init__(self, worker: PodWorker, session: Callable[[], CodeSession], find_pool: FindPool) -> None:
        super().__init__(worker, find_pool)
        self.asked = self.adopting = self._from_pool = False
        self._session = session
        self._verdict: Verdict | None = None

    @property
    def claim(self) -> Claim:
        """What its place depends on."""
        meta = self._worker.meta
        spec = self._session().spec
        return Claim(meta.uid, meta.creation_timestamp or now(), False, self._verdict, spec.limits, spec.stateful)

    def receive(self, pod: ClaimedPod) -> None:
        """A pod of the pool is the session's now, for one execution after the other."""
        self._from_pool = pod.connection.reusable = True
        super().receive(pod)

    @property
    def view(self) -> ClaimedView | None:
        """The pod that was taken from a pool by this process."""
        pool, pod = self._pool, self._claimed
        return ClaimedView(pool.meta.name, pod.pod_name, pod.proven) if pool and pod else None

    def ask(self, verdict: Verdict) -> None:
        """Who waits for a pod goes first. If none is left, the session gets a pod of its own."""
        self.asked, self._verdict = True, verdict
        spec = self._session().spec
        self._pool = self._find_pool(self._worker.meta.namespace, verdict, spec.limits, stateful=spec.stateful)
        if self._pool:
            self._pool.join(self)
            if self._claimed is None:
                self.leave()
        self.wake()

    async def greet(self) -> None:
        """Have the kernel started, if the session has one. What its first execution brings is behind that."""
        if self._claimed and self._session().spec.stateful:
            with suppress(*NETWORK_ERRORS):  # the next connection begins with it
                await self._claimed.connection.greet(build_report_request(self._session()))

    async def adopt(self, patch: Mapping[str, Any]) -> bool:
        """Make the pod the session's own, a moment later."""
        await asyncio.sleep(_CHORES_SECONDS)
        self.adopting = await super().adopt(patch)
        if not self.adopting:
            self.wake()
        return self.adopting

    def give_back(self) -> None:
        """The session may ask again."""
        super().give_back()
        self.begin_anew()
        self.wake()

    def begin_anew(self) -> None:
        """The session has no pod any more, and gets another one later."""
        self.leave()
        self.asked = self.adopting = self._from_pool = False

    async def end(self) -> None:
        """The session is over, or gone. Nobody else deletes a pod that is not its own yet."""
        worker, pod = self._worker, self._worker.sandbox.pod
        from_pool = self._from_pool or self._session().status.pool_name
        if worker.deleted and from_pool and not (pod and pod.owner == worker.meta.uid):
            await worker.discard_pod(worker.pod_name)
        self.leave()

    def leave(self) -> None:
        """Want no pod of a pool any more, or have no more use for the one that it got."""
        if self._pool:
            self._pool.leave(self, self._claimed)
        self._pool = self._claimed = None
