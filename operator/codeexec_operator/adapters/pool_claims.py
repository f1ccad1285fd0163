"""Who waits for a pod of a pool, and who has got one."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Protocol

from codeexec_operator.adapters.kept_pods import KeptPods
from codeexec_operator.adapters.pool_pods import ClaimedPod
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.line import Line
from codeexec_operator.core.observed_pool import Tenant
from codeexec_operator.core.placement import Claimant, rank


class PodClaimant(Claimant, Protocol):
    """An execution or a session that wants a pod."""

    def receive(self, pod: ClaimedPod) -> None:
        """It is its turn."""

    def observe_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """The pod that it was given was seen, changed or deleted."""


_MADE_LATE: Final = timedelta(minutes=5)
"""A pod that was not there when it was deleted may be made so much later: a request may wait in the API server."""


class Claims:
    """The queue of a pool, and the pods that were taken or given up."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when something new is known of a pod that is kept, or is of no use to anybody."""
        self._changed = changed
        self.queue: Line[PodClaimant] = Line(rank)
        self._tenants: dict[PodClaimant, Tenant] = {}
        self._lines: dict[Tenant, Line[PodClaimant]] = {}
        """Those in the queue who may get a pod that was used, by whose it has to be."""
        self.queued_since: datetime | None = None
        """Since when there was always somebody in the queue."""
        self.taken: dict[str, PodClaimant] = {}
        self.discarded: set[str] = set()
        """Pods that have yet to be deleted."""
        self._done: dict[str, PodClaimant | None] = {}
        """Pods that were given up, or whose execution is over, and which still carry the label of the pool; whose."""
        self._useless: OrderedDict[str, datetime] = OrderedDict()
        """Pods that nobody may use, with when each was given up, the oldest first."""
        self._adopted: set[str] = set()
        """Those that were taken and are the user's own by now."""
        self.kept = KeptPods(changed)
        """Pods that were used, and are kept for the one who has used them."""

    def join(self, claimant: PodClaimant) -> bool:
        """Get in line; False if it waits already."""
        if not self.queue.join(claimant):
            return False
        self.queued_since = self.queued_since or now()
        if tenant := claimant.claim.tenant:
            self._tenants[claimant] = tenant
            self._lines.setdefault(tenant, Line(rank)).join(claimant)
        return True

    def _wait_no_more(self, claimant: PodClaimant) -> None:
        """Leave the queue, and the line of the tenant."""
        self.queue.leave(claimant)
        if tenant := self._tenants.pop(claimant, None):
            self._lines[tenant].leave(claimant)
            if not self._lines[tenant]:
                del self._lines[tenant]
        if not self.queue:
            self.queued_since = None

    def next_of_tenants(self) -> Iterator[PodClaimant]:
        """Of each tenant the first in line, as many as pods are kept for it. Nobody else is looked at."""
        for tenant, pods in Counter(self.kept.tenants).items():
            yield from islice(self._lines.get(tenant, ()), pods)

    def take(self, claimant: PodClaimant, pod: ClaimedPod) -> None:
        """It is its turn."""
        self._wait_no_more(claimant)
        self.taken[pod.pod_name] = claimant
        claimant.receive(pod)

    def leave(self, claimant: PodClaimant, pod: ClaimedPod | None) -> bool:
        """An execution is over, or doesn't wait any more. True if it gives up a pod."""
        self._wait_no_more(claimant)
        if pod is None or self.taken.pop(pod.pod_name, None) is None:
            return False
        if pod.pod_name not in self._adopted:
            self._done.setdefault(pod.pod_name, claimant)
        self._adopted.discard(pod.pod_name)
        return True

    @property
    def in_use(self) -> int:
        """How many pods are nobody else's."""
        return len(self.taken) + len(self.kept)

    @property
    def facts(self) -> dict[str, Any]:
        """What is observed of them, as fields of `ObservedPool`."""
        facts = {"queued": len(self.queue), "queued_since": self.queued_since}
        return facts | {"claimed": self.in_use, "kept": self.kept.view}

    def keep(self, pod: ClaimedPod, tenant: Tenant, job: str) -> bool:
        """An execution is over, and its pod is kept. False if the pod is the execution's own by now."""
        if pod.pod_name in self._adopted or self.taken.pop(pod.pod_name, None) is None:
            return False
        self.kept.add(pod, tenant, job)
        return True

    def adopted(self, pod: str) -> None:
        """A pod that was taken is the user's own now, for all to see."""
        if pod in self.taken:
            self._adopted.add(pod)
        self._done.pop(pod, None)

    def leave_alone(self, pod: str) -> None:
        """An execution or session has it that this process has yet to hear of."""
        self._done[pod] = None

    def discard(self, pod: str) -> None:
        """A pod is of no use to anybody; it is deleted, whatever it takes."""
        self._done[pod] = None
        self.discarded.add(pod)
        self._useless[pod] = at = now()
        self._useless.move_to_end(pod)
        while at - next(iter(self._useless.values())) > _MADE_LATE:
            self._useless.popitem(last=False)

    def pods(self) -> dict[str, int]:
        """Names of pods that still carry the label of the pool, and that nobody is about to delete, with versions."""
        return dict.fromkeys(self._done.keys() - self.discarded, 0) | self.kept.pods()

    def lose(self, pod: str) -> None:
        """A pod is gone without a word."""
        self._done.pop(pod, None)
        self.kept.lose(pod)

    def observe_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """Pass on to whose it is that a pod was seen, changed or deleted."""
        name = raw["metadata"]["name"]
        if name in self.kept:
            self.kept.observe(raw, deleted=deleted)
            return
        if claimant := self.taken.get(name) or self._done.get(name):
            claimant.observe_pod(raw, deleted=deleted)
        if deleted and name not in self.taken:
            self._done.pop(name, None)
            self._useless.pop(name, None)
        elif name in self._useless and "deletionTimestamp" not in raw["metadata"]:
            self.discarded.add(name)
            self._changed()

    def wake(self) -> None:
        """Those who wait have to see whether it is still worth it."""
        for claimant in self.queue:
            claimant.wake()
