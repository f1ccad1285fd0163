"""How a session gets a ready pod of a pool, and makes it its own. `core/session.py` decides; here it is carried out."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from codeexec_api import CodeSession, PodLimits, Verdict
from codeexec_api.names import pod_name
from codeexec_operator.adapters.connection import NETWORK_ERRORS
from codeexec_operator.adapters.pool_pods import ClaimedPod
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.worker import PodWorker, now
from codeexec_operator.core.observed import ClaimedView, Sandbox
from codeexec_operator.core.payload import build_report_request
from codeexec_operator.core.placement import Claim

_CHORES_SECONDS: Final = 0.3
"""How long the adoption waits, so that it takes no time from the first call."""

FindPool: TypeAlias = Callable[[str, Verdict, PodLimits], PoolWorker | None]
"""By namespace, and what is asked for."""


class SessionPool:
    """Stands for the session in the queue of a pool, where it is a `Guest`, but never waits there.

    `worker` has the pod of the session; `session` is what is known of it now.
    """

    def __init__(self, worker: PodWorker, session: Callable[[], CodeSession], find_pool: FindPool) -> None:
        self.asked = self.adopting = self._from_pool = False
        self._worker, self._session, self._find_pool = worker, session, find_pool
        self.wake, self.observe_pod = worker.wake, worker.observe_pod
        self._verdict: Verdict | None = None
        self._pool: PoolWorker | None = None
        self._claimed: ClaimedPod | None = None

    # --- Guest ---

    @property
    def claim(self) -> Claim:
        """What its place depends on."""
        meta = self._worker.meta
        return Claim(meta.uid, meta.creation_timestamp or now(), False, self._verdict, self._session().spec.limits)

    def receive(self, pod: ClaimedPod) -> None:
        """A pod of the pool is the session's now."""
        worker, self._claimed, self._from_pool = self._worker, pod, True
        worker.pod_name, worker.sandbox, worker.connection = pod.pod_name, pod.sandbox, pod.connection
        pod.connection.changed = self.wake
        pod.connection.reusable = True
        self.wake()

    # --- what the session sees ---

    @property
    def view(self) -> ClaimedView | None:
        """The pod that was taken from a pool by this process."""
        pool, pod = self._pool, self._claimed
        return ClaimedView(pool.meta.name, pod.pod_name, pod.proven) if pool and pod else None

    # --- what is done ---

    def ask(self, verdict: Verdict) -> None:
        """Who waits for a pod goes first. If none is left, the session gets a pod of its own."""
        self.asked, self._verdict = True, verdict
        self._pool = self._find_pool(self._worker.meta.namespace, verdict, self._session().spec.limits)
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

    def adopt(self, patch: Mapping[str, Any]) -> None:
        """Make the pod the session's own; nothing waits for it."""
        self.adopting = True
        self._worker.aside(self._adopt(patch))
        self.wake()

    async def _adopt(self, patch: Mapping[str, Any]) -> None:
        await asyncio.sleep(_CHORES_SECONDS)
        worker, pod = self._worker, self._worker.pod_name
        patch_pod = worker.context.cluster.patch_pod
        self.adopting = await worker.insist("the pod was not adopted", patch_pod, worker.meta.namespace, pod, patch)
        if not self.adopting:
            worker.wake()
        elif self._pool:
            self._pool.claims.adopted(pod)

    def give_back(self) -> None:
        """It was not used, and nobody else may have it."""
        worker, pool, pod = self._worker, self._pool, self._claimed
        if pool and pod:
            pod.connection.close()
            pool.claims.discard(pod.pod_name)
            self.leave()
        self.asked = self._from_pool = False
        worker.pod_name = pod_name(worker.meta.name, worker.meta.uid)
        worker.sandbox, worker.connection = Sandbox(), None
        self.wake()

    async def end(self) -> None:
        """The session is over, or gone. Nobody else deletes a pod that is not its own yet."""
        worker, pod = self._worker, self._worker.sandbox.pod
        from_pool = self._from_pool or self._session().status.pool_name
        if worker.deleted and from_pool and not (pod and pod.owner == worker.meta.uid):
            delete = worker.context.cluster.delete_pod
            await worker.insist("its pod was not deleted", delete, worker.meta.namespace, worker.pod_name)
        self.leave()

    def leave(self) -> None:
        """Want no pod of a pool any more, or have no more use for the one that it got."""
        if self._pool:
            self._pool.leave(self, self._claimed)
        self._pool = self._claimed = None
