"""Looks after one pool: its pods, the connections to their runners, and the line of executions that wait for one."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from codeexec_api import CodeExecution, PodLimits, SandboxPool, SandboxPoolStatus, Verdict
from codeexec_api.names import POOL_SUFFIX_LENGTH
from codeexec_operator.adapters.pool_claims import Claims, PodClaimant
from codeexec_operator.adapters.pool_pods import ClaimedPod, PoolPods
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.worker import Context, Worker, all_of, now
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.delay import counted
from codeexec_operator.core.measures import PoolCount
from codeexec_operator.core.observed import PoolView
from codeexec_operator.core.observed_pod import is_usable
from codeexec_operator.core.observed_pool import ObservedPool, Tenant
from codeexec_operator.core.outcome import Proven
from codeexec_operator.core.pacing import rest_after_look
from codeexec_operator.core.placement import assign, assign_kept, is_broken, serves
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.pool import decide_pool, demand_of
from codeexec_operator.core.pool_status import Unhurried, trouble_of
from codeexec_operator.core.reuse import may_follow, most_uses
from codeexec_operator.core.starts import Starts

logger = logging.getLogger(__name__)

_NAMES: Final = 64
"""Pods that are asked for in one go."""
_LONGEST_REST_SECONDS: Final = 0.5


def _names(pool: str) -> tuple[str, ...]:
    """Of pods that don't exist yet."""
    return tuple(f"{pool}-{secrets.token_hex(POOL_SUFFIX_LENGTH // 2)}" for _ in range(_NAMES))


class PoolWorker(Worker):
    """One pool. Executions `join`, are given a pod in that order, and `leave` when they are over."""

    def __init__(
        self,
        context: Context,
        pool: SandboxPool,
        *,
        starts: Starts,
        rooms: Rooms,
        forget: Callable[["PoolWorker"], None],
        opened: Callable[[str], None],
    ) -> None:
        """`opened` is called with its namespace when executions may ask for pods."""
        self._seen = ObservedPool(pool)
        self._pods = PoolPods(context, pool.metadata, starts, self.wake)
        self.claims = Claims(self.wake)
        self._unhurried = Unhurried()
        self._looked_at, self._listed, self._trouble = 0.0, False, ""
        self._starts, self._rooms, self._forget, self._opened = starts, rooms, forget, opened
        super().__init__(context, pool.metadata)

    def observe(self, record: SandboxPool) -> None:
        """Take a newer version of the object; one that is older than what was written here is ignored."""
        before = self._seen.pool
        if int(record.metadata.resource_version) > int(before.metadata.resource_version):
            self._seen = replace(self._seen, pool=record)
            if record.metadata.generation != before.metadata.generation:
                self._seen = self._seen.without_problem()
                self.claims.wake()
            self.wake()

    @property
    def version(self) -> int:
        """Resource version of what is known here."""
        return int(self._seen.pool.metadata.resource_version)

    def policy_changed(self) -> None:
        """The policy of the namespace is another one."""
        self._seen = self._seen.without_problem()
        self._know_policy()
        self.claims.wake()
        self.wake()

    def _know_policy(self) -> None:
        known, source = self.context.policies.known, self.context.policies.source
        self._seen = replace(self._seen, policy=known(self.meta.namespace), policy_source=source(self.meta.namespace))

    def observe_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A pod of the pool was seen, changed or deleted."""
        if raw["metadata"]["name"] in self._pods.members:
            self._pods.observe(raw, deleted=deleted)
            self.wake()
        else:
            self.claims.observe_pod(raw, deleted=deleted)

    def pods(self) -> dict[str, int]:
        """Names of the pods that were seen, are nobody else's, and are not known to be gone, each with its version."""
        seen = ((name, one.sandbox.pod) for name, one in self._pods.members.items() if not one.sandbox.gone)
        return {name: pod.version for name, pod in seen if pod} | self.claims.pods()

    def lose_pods(self, names: Collection[str]) -> None:
        """These pods are gone without a word."""
        for name in names:
            self._pods.lose(name)
            self.claims.lose(name)
        self.wake()

    def serves(self, verdict: Verdict, limits: PodLimits, *, stateful: bool = False) -> bool:
        """True if executions, or stateful sessions, with this verdict and these limits get their pods here."""
        return not self.deleted and serves(self._seen, verdict, limits, stateful=stateful)

    @property
    def order(self) -> tuple[int, str]:
        """Which pool is asked first. Stateful sessions prefer a pool with kernels, unless none of its pods is ready."""
        stateful = self._seen.pool.spec.stateful
        return (0 if self._pods.admitted else 2) if stateful else 1, self.meta.name

    def join(self, claimant: PodClaimant) -> None:
        """Get in line, behind those that were created earlier. May `receive` a pod at once."""
        if self.claims.join(claimant):
            self._hand_out()
            self.wake()

    def leave(self, claimant: PodClaimant, pod: ClaimedPod | None) -> None:
        """An execution is over, or doesn't wait any more."""
        if self.claims.leave(claimant, pod):
            self._seen = self._seen.after_room(now())
        self.wake()

    def take_back(self, pod: ClaimedPod, execution: CodeExecution, tenant: Tenant) -> bool:
        """An execution has ended in order: its pod is made clean, and kept for more of this tenant. False if not."""
        gone = self.deleted or self.claims.kept.closed
        pod.connection.forget_reset()
        follows = not gone and may_follow(self._seen, pod.uses, execution) and is_usable(pod.sandbox)
        if not follows or not self.claims.keep(pod, tenant, execution.metadata.uid):
            return False
        self.run_in_background(pod.connection.release(execution.metadata.uid))
        return True

    @property
    def keeps_pods(self) -> bool:
        """True if pods may be used more than once."""
        return most_uses(self._seen) > 1

    def view_for(self, claimant: PodClaimant, since: datetime) -> PoolView:
        """What an execution sees of the pool that has waited since then."""
        queue = self.claims.queue
        return PoolView(self.meta.name, since, queue.place(claimant), len(queue), self._trouble)

    def _hand_out(self) -> None:
        """Give pods to those who wait. Nothing here awaits anything."""
        template = template_of(self._seen)
        if not self.claims.queue or not isinstance(template, Template):
            return
        moment, admitted, queue = now(), self._pods.in_order(), self.claims.queue
        kept, heirs = self.claims.kept, self.claims.next_of_tenants()
        for claimant, name in assign_kept(heirs, kept.view, template, self._seen, moment, self.context.timing):
            self._seen = replace(self._seen, last_claim_at=moment)
            self.claims.take(claimant, kept.take(name))
        for claimant, name in assign(queue, admitted, template, self._seen, moment, self.context.timing):
            self._seen = replace(self._seen, last_claim_at=moment)
            self.claims.take(claimant, self._pods.take(name, template))

    @property
    def count(self) -> PoolCount:
        """How it is at this moment."""
        return PoolCount(
            self.meta.namespace,
            wanted=self._seen.pool.spec.replicas,
            ready=len(self._pods.admitted),
            starting=self._pods.starting,
            claimed=self.claims.in_use,
            queued=len(self.claims.queue),
            last_refill_ms=self._seen.last_refill_ms,
        )

    # --- Worker ---

    def _look(self) -> None:
        self._looked_at = time.perf_counter()
        self._pods.look()
        self._hand_out()

    def _decide(self) -> Plan:
        cluster_view = self.context.prober.view_from(*(one.sandbox.pod for one in self._pods.members.values()))
        moment, timing, namespace, starting = now(), self.context.timing, self.meta.namespace, self._pods.starting
        others = len(self._pods.members) + len(self.claims.kept) - starting
        seen = replace(
            self._seen,
            cluster_view=cluster_view,
            members=self._pods.members if self._listed else None,
            full_at=self._pods.full_at,
            held_until=self._rooms.held_until(namespace, moment, timing),
            unserved=self._rooms.unserved(namespace, moment, timing),
            names=_names(self.meta.name),
            **self.claims.facts,
        )
        demand, limit = demand_of(seen, starting, others, moment, timing)
        self._seen = replace(seen, allowance=self._starts.allowance(demand, limit, time.monotonic()))
        self._trouble = trouble_of(self._seen)
        plan = decide_pool(self._seen, moment, timing)
        self._rooms.given(namespace, plan, moment, timing)
        return self._unhurried.plan(plan, moment, timing)

    async def _apply(self, plan: Plan) -> None:
        took = time.perf_counter() - self._looked_at
        await self._carry_out(plan)
        # A pool of a thousand pods takes long to look through, and pods are handed out meanwhile, too.
        await asyncio.sleep(rest_after_look(took, _LONGEST_REST_SECONDS))

    async def _carry_out(self, plan: Plan) -> None:
        problems = [one.problem for one in plan.actions if isinstance(one, actions.DropMember) and one.problem]
        if problems:
            self._seen = self._seen.after_problem(problems[0], now())
            logger.warning("%s: gave up %s: %s", self.name, counted(len(problems), "pod"), problems[0].message)
            if is_broken(self._seen):
                self.claims.wake()
        jobs = [self._act(action) for action in plan.actions]
        jobs += [self._delete(name) for name in self.claims.discarded]
        if isinstance(plan.status, SandboxPoolStatus):
            jobs.append(self._write_status(plan.status))
        await all_of(jobs)

    async def _delete(self, name: str) -> None:
        await self.context.cluster.delete_pod(self.meta.namespace, name)
        self.claims.discarded.discard(name)

    async def _write_status(self, status: SandboxPoolStatus) -> None:
        self.observe(await self.context.recorder.write_pool(self._seen.pool, status))

    async def _act(self, action: actions.Action) -> None:
        match action:
            case actions.ReadPool():
                await self._read()
            case actions.CreateMember(name, manifest):
                await self._pods.create(name, manifest)
            case actions.AttachMember(name):
                self._pods.attach(name, self._seen.pool.spec)
            case actions.AdmitMember(name, proven):
                self._admit(name, proven)
            case actions.PingMember(name):
                await self._pods.ping(name)
            case actions.DropMember(name):
                await self._drop(name)
            case _:
                raise TypeError(f"{type(action).__name__} is no action of a pool")

    async def _read(self) -> None:
        await self.context.policies.of(self.meta.namespace)
        if not self._listed:
            for name in await self._pods.take_over(self.meta.name):
                self.claims.leave_alone(name)
            self._listed = True
        self._know_policy()
        self._opened(self.meta.namespace)
        self.claims.wake()
        self.wake()

    def _admit(self, name: str, proven: Proven) -> None:
        if name not in self._pods.members:
            return
        took = self._pods.admit(name, proven)
        self._seen = replace(self._seen.without_problem(), last_refill_ms=round(took.total_seconds() * 1000))
        self._hand_out()
        self.wake()

    async def _drop(self, name: str) -> None:
        member = self._pods.drop(name)
        if member is None:
            if self.claims.kept.drop(name):
                self.claims.discard(name)
                await self._delete(name)
            return  # else somebody has just got it
        if not member.sandbox.gone:
            self.claims.discard(name)
        self.wake()
        await self._delete(name)

    async def _get(self) -> SandboxPool | None:
        return await self.context.cluster.find_pool(self.meta.namespace, self.meta.name)

    async def _end(self) -> None:
        self._pods.close()
        self.claims.kept.close()
        self._forget(self)
        self.claims.wake()
