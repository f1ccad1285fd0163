"""Looks after one pool: its pods, the connections to their runners, and the line of executions that wait for one."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import PodLimits, Reason, SandboxPool, SandboxPoolStatus, Verdict
from codeexec_api.names import POOL_LABEL, POOL_SUFFIX_LENGTH
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.worker import Context, Worker, all_of, now
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.findings import Proven
from codeexec_operator.core.line import Line
from codeexec_operator.core.measures import PoolCount
from codeexec_operator.core.observed import PoolView, Sandbox, parse_pod
from codeexec_operator.core.payload import build_warm_up
from codeexec_operator.core.pool import (
    Member,
    ObservedPool,
    Template,
    can_start,
    decide_pool,
    is_broken,
    is_for_use,
    pods,
    serves,
    template_label,
    template_of,
    trouble_of,
)
from codeexec_operator.core.starts import STARTS_PER_NODE, Demand, Starts

logger = logging.getLogger(__name__)

_NAMES: Final = 64
"""Pods that are asked for in one go."""
_REST: Final = 9
"""How long a pool does nothing after it was decided about, as a multiple of how long that took."""
_LONGEST_REST: Final = 0.5
_RACE_SECONDS: Final = 0.2


@dataclass(frozen=True)
class ClaimedPod:
    """A pod that was taken from a pool: whoever has it looks after it from now on."""

    pod_name: str
    sandbox: Sandbox
    connection: Connection
    proven: Proven
    template: Template
    """What it was made of."""


class Guest(Protocol):
    """An execution that wants a pod."""

    @property
    def created(self) -> datetime:
        """When it was created."""

    def takes(self, template: Template) -> bool:
        """True if a pod that was made so is what it needs."""

    def receive(self, pod: ClaimedPod) -> None:
        """It is its turn."""

    def wake(self) -> None:
        """Its place has changed."""

    def observe_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """The pod that it was given was seen, changed or deleted."""


class PoolWorker(Worker):
    """One pool. Executions `join`, are given a pod in that order, and `leave` when they are over."""

    def __init__(
        self,
        context: Context,
        pool: SandboxPool,
        *,
        starts: Starts,
        forget: Callable[["PoolWorker"], None],
        opened: Callable[[str], None],
    ) -> None:
        """`opened` is called with its namespace when executions may ask for pods."""
        self._seen = ObservedPool(pool)
        self._members: dict[str, Member] = {}
        self._proven: dict[str, None] = {}
        """Names of those that were admitted, in that order."""
        self._connections: dict[str, Connection] = {}
        self._queue: Line[Guest] = Line(lambda guest: guest.created)
        self._queued_at: dict[Guest, datetime] = {}
        self._claimed: dict[str, Guest] = {}
        self._done: dict[str, Guest | None] = {}
        """Pods that were given up, or whose execution is over, and which still carry the label of the pool; whose."""
        self._adopted: set[str] = set()
        """Those that were taken and are the execution's own by now."""
        self._discarded: set[str] = set()
        self._looked_at = 0.0
        self._listed = False
        self._changed_at: datetime | None = None
        self._trouble = ""
        self._starts, self._forget, self._opened = starts, forget, opened
        super().__init__(context, pool.metadata)

    # --- what is observed ---

    def observe_pool(self, pool: SandboxPool) -> None:
        """Take a newer version of the object; one that is older than what was written here is ignored."""
        before = self._seen.pool
        if int(pool.metadata.resource_version) > int(before.metadata.resource_version):
            self._seen = replace(self._seen, pool=pool)
            if pool.metadata.generation != before.metadata.generation:
                self._forgive()
                self._wake_all()
            self.wake()

    def policy_changed(self) -> None:
        """The policy of the namespace is another one."""
        self._forgive()
        self._know_policy()
        self._wake_all()
        self.wake()

    def _know_policy(self) -> None:
        policies, namespace = self.context.policies, self.meta.namespace
        policy, source = policies.known(namespace), policies.source(namespace)
        self._seen = replace(self._seen, policy=policy, policy_source=source)

    def observe_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A pod of the pool was seen, changed or deleted."""
        name = raw["metadata"]["name"]
        if name in self._claimed:
            self._claimed[name].observe_pod(raw, deleted=deleted)
        elif name in self._done:
            if guest := self._done[name]:
                guest.observe_pod(raw, deleted=deleted)
            if deleted:
                del self._done[name]
        elif name in self._members:
            self._take_in(raw, deleted=deleted)
            self.wake()

    def _take_in(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        name = raw["metadata"]["name"]
        created = datetime.fromisoformat(raw["metadata"]["creationTimestamp"])
        member = self._members.get(name) or Member(created, template_label(raw))
        pod = parse_pod(raw, member.sandbox.pod)
        sandbox = replace(member.sandbox, pod=pod, gone=deleted, requested=True)
        self._members[name] = replace(member, sandbox=sandbox)

    def pods(self) -> set[str]:
        """Names of the pods that were seen, are nobody else's, and are not known to be gone."""
        members = {name for name, one in self._members.items() if one.sandbox.pod and not one.sandbox.gone}
        return members | (self._done.keys() - self._discarded)

    def lose_pods(self, names: Collection[str]) -> None:
        """These pods are gone without a word."""
        for name in names:
            if member := self._members.get(name):
                self._members[name] = replace(member, sandbox=replace(member.sandbox, gone=True))
            self._done.pop(name, None)
        self.wake()

    def _wake_all(self) -> None:
        """Those who wait have to see whether it is still worth it."""
        for guest in self._queue:
            guest.wake()

    def _forgive(self) -> None:
        self._seen = replace(self._seen, problem=None, problem_at=None, problems=0)

    # --- executions ---

    def serves(self, verdict: Verdict, limits: PodLimits) -> bool:
        """True if executions with this verdict and these limits get their pods here."""
        return not self.deleted and serves(self._seen, verdict, limits)

    def join(self, guest: Guest) -> None:
        """Get in line, behind those that were created earlier. May `receive` a pod at once."""
        if not self._queue.join(guest):
            return
        self._queued_at[guest] = now()
        self._hand_out()
        self.wake()

    def leave(self, guest: Guest, pod: ClaimedPod | None) -> None:
        """An execution is over, or doesn't wait any more."""
        self._leave_line(guest)
        if pod and self._claimed.pop(pod.pod_name, None):
            if pod.pod_name in self._adopted:
                self._adopted.discard(pod.pod_name)
            else:
                self._done[pod.pod_name] = guest
            if self._seen.problem and self._seen.problem.reason is Reason.QUOTA_EXCEEDED:
                self._seen = replace(self._seen, problem_at=now(), problems=1)  # soon there is room again
        self.wake()

    def _leave_line(self, guest: Guest) -> None:
        self._queue.leave(guest)
        self._queued_at.pop(guest, None)

    def adopted(self, pod: str) -> None:
        """A pod that was taken is the execution's own now, for all to see."""
        if pod in self._claimed:
            self._adopted.add(pod)
        self._done.pop(pod, None)

    def discard(self, pod: str) -> None:
        """A pod is of no use to anybody; it is deleted, whatever it takes."""
        self._done[pod] = None
        self._discarded.add(pod)
        self.wake()

    def view_for(self, guest: Guest) -> PoolView:
        """What an execution that has no pod yet sees of the pool."""
        since = self._queued_at.get(guest) or now()
        return PoolView(self.meta.name, since, self._queue.place(guest), len(self._queue), self._trouble)

    def _hand_out(self) -> None:
        """Give pods to those who wait: the first that was ready to the first. Nothing here awaits anything."""
        template = template_of(self._seen)
        while self._queue and isinstance(template, Template):
            name = self._first_ready(template)
            guest = next((one for one in self._queue if one.takes(template)), None)
            if name is None or guest is None:
                return
            self._leave_line(guest)
            member = self._member(name)
            del self._members[name], self._proven[name]
            connection = self._connections.pop(name)
            self._claimed[name] = guest
            self._seen = replace(self._seen, last_claim_at=now())
            if member.proven:
                guest.receive(ClaimedPod(name, member.sandbox, connection, member.proven, template))

    def _first_ready(self, template: Template) -> str | None:
        moment, timing = now(), self.context.timing
        ready = (one for one in self._proven if is_for_use(self._member(one), self._seen, template, moment, timing))
        return next(ready, None)

    def _member(self, name: str) -> Member:
        """As it is at this moment."""
        member, connection = self._members[name], self._connections.get(name)
        if connection is None or connection.view is member.sandbox.runner:
            return member
        return replace(member, sandbox=replace(member.sandbox, runner=connection.view))

    @property
    def count(self) -> PoolCount:
        """How it is at this moment."""
        seen = self._seen
        return PoolCount(
            self.meta.namespace,
            wanted=seen.pool.spec.replicas,
            ready=len(self._proven),
            starting=self.starting,
            claimed=len(self._claimed),
            queued=len(self._queue),
            last_refill_ms=seen.last_refill_ms,
        )

    @property
    def starting(self) -> int:
        """How many pods are being started."""
        return sum(one.starting for one in self._members.values())

    @property
    def wanted(self) -> int:
        """How many pods would be starting, if only this pool were there."""
        if not can_start(self._seen, now(), self.context.timing):
            return self.starting
        spare = len(self._members) - self.starting
        return max(self.starting, self._seen.pool.spec.replicas + len(self._queue) - spare)

    # --- Worker ---

    def _look(self) -> None:
        self._looked_at = time.perf_counter()
        self._members = {name: self._member(name) for name in self._members}
        self._hand_out()

    def _decide(self) -> Plan:
        surroundings = self.context.lookout.view_from(*(one.sandbox.pod for one in self._members.values()))
        demand = Demand(self.meta.uid, self.meta.namespace, self.wanted, self.starting)
        limit = STARTS_PER_NODE * max(1, surroundings.open_nodes)
        self._seen = replace(
            self._seen,
            surroundings=surroundings,
            members=self._members if self._listed else None,
            claimed=len(self._claimed),
            queued=len(self._queue),
            allowance=self._starts.allowance(demand, limit, time.monotonic()),
            names=tuple(f"{self.meta.name}-{secrets.token_hex(POOL_SUFFIX_LENGTH // 2)}" for _ in range(_NAMES)),
        )
        self._trouble = trouble_of(self._seen)
        return self._not_at_once(decide_pool(self._seen, now(), self.context.timing))

    def _not_at_once(self, plan: Plan) -> Plan:
        """A status is written a while after it has changed: it is not worth to slow down what has changed it."""
        if plan.status is None:
            self._changed_at = None
            return plan
        self._changed_at = self._changed_at or now()
        write_at = self._changed_at + timedelta(seconds=self.context.timing.pool_status)
        if now() >= write_at:
            self._changed_at = None
            return plan
        return replace(plan, status=None, wake_at=min(plan.wake_at or write_at, write_at))

    async def _apply(self, plan: Plan) -> None:
        took = time.perf_counter() - self._looked_at
        await self._carry_out(plan)
        # A pool of a thousand pods takes long to look through, and pods are handed out meanwhile, too.
        await asyncio.sleep(min(_REST * took, _LONGEST_REST))

    async def _carry_out(self, plan: Plan) -> None:
        problems = [one.problem for one in plan.actions if isinstance(one, actions.DropMember) and one.problem]
        if problems:
            self._seen = replace(self._seen, problem=problems[0], problem_at=now(), problems=self._seen.problems + 1)
            logger.warning("%s: gave up %s: %s", self.name, pods(len(problems)), problems[0].message)
            if is_broken(self._seen):
                self._wake_all()
        jobs = [self._act(action) for action in plan.actions]
        jobs += [self._delete(name) for name in self._discarded]
        if isinstance(plan.status, SandboxPoolStatus):
            jobs.append(self._write_status(plan.status))
        await all_of(jobs)

    async def _delete(self, name: str) -> None:
        await self.context.cluster.delete_pod(self.meta.namespace, name)
        self._discarded.discard(name)

    async def _write_status(self, status: SandboxPoolStatus) -> None:
        status = status.model_copy(update={"operator_version": self.context.version})
        self.observe_pool(await self.context.cluster.write_pool(self._seen.pool, status))

    async def _act(self, action: actions.Action) -> None:
        match action:
            case actions.ReadPool():
                await self._read()
            case actions.CreateMember(name, manifest):
                await self._create(name, manifest)
            case actions.AttachMember(name):
                self._attach(name)
            case actions.AdmitMember(name, proven):
                self._admit(name, proven)
            case actions.PingMember(name):
                if name in self._connections:
                    await self._connections[name].ping()
                self.wake()
            case actions.DropMember(name):
                if name in self._members:  # else somebody has just got it
                    self._let_go(name)
                    await self._delete(name)

    async def _read(self) -> None:
        await self.context.policies.of(self.meta.namespace)
        if not self._listed:
            await self._take_over()
            self._listed = True
        self._know_policy()
        self._opened(self.meta.namespace)
        self._wake_all()
        self.wake()

    async def _take_over(self) -> None:
        """Pods that an operator before this one has made are proven anew. Those in which code runs have an owner."""
        cluster, namespace = self.context.cluster, self.meta.namespace
        in_use = await cluster.pods_of_running_executions(namespace)
        for raw in await cluster.list_pods(namespace, f"{POOL_LABEL}={self.meta.name}"):
            name = raw["metadata"]["name"]
            if name in in_use:
                self._done[name] = None
            elif name not in self._members:
                self._take_in(raw, deleted=False)
                self._members[name] = replace(self._members[name], since=now())

    async def _create(self, name: str, manifest: Mapping[str, Any]) -> None:
        self._members[name] = Member(now(), template_label(manifest), Sandbox(requested=True))
        self._starts.began(self.meta.uid)
        try:
            fault = await self.context.cluster.create_pod(manifest)
        except ApiException as error:
            if error.status and error.status < 500:
                self._members.pop(name, None)
            if error.status == 409:  # somebody else was counted at the same moment
                asyncio.get_running_loop().call_later(_RACE_SECONDS, self.wake)
                return
            # Else nobody knows whether it was made: it counts until it is seen, or until it is late.
            raise
        if fault and name in self._members:
            self._members[name] = replace(self._members[name], sandbox=Sandbox(requested=True, fault=fault))
        self.wake()

    def _attach(self, name: str) -> None:
        if name not in self._members:
            return
        before = self._connections.get(name)
        self._connections[name] = Connection(
            self.context.cluster,
            self.meta.namespace,
            name,
            epoch=self.context.epoch,
            greeting=build_warm_up(self._seen.pool.spec.limits),
            reusable=False,
            refused_since=before.view.refused_since if before else None,
            changed=self.wake,
        )
        self._connections[name].open()

    def _admit(self, name: str, proven: Proven) -> None:
        if name not in self._members:
            return
        took = now() - self._members[name].created_at
        self._members[name] = replace(self._members[name], proven=proven)
        self._proven[name] = None
        self._forgive()
        self._seen = replace(self._seen, last_refill_ms=round(took.total_seconds() * 1000))
        self._hand_out()
        self._starts.ended(self.meta.uid)
        self.wake()

    def _let_go(self, name: str) -> None:
        member = self._members.pop(name, None)
        self._proven.pop(name, None)
        if member and not member.sandbox.gone and not member.sandbox.fault:
            self._done[name] = None
            self._discarded.add(name)
        if connection := self._connections.pop(name, None):
            connection.close()
        if member and member.starting:
            self._starts.ended(self.meta.uid)
        self.wake()

    async def _refresh(self) -> None:
        """It is gone, or has changed: the watch tells of both, but for what went while there was none."""
        current = await self.context.cluster.find_pool(self.meta.namespace, self.meta.name)
        if current is None or current.metadata.uid != self.meta.uid:
            self.observe_deletion()
        else:
            self.observe_pool(current)

    async def _end(self) -> None:
        for name in list(self._connections):
            self._let_go(name)
        self._forget(self)
        self._wake_all()
