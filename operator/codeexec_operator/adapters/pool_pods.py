"""The pods of a pool that nobody has taken, and the connections to their runners."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import SandboxPoolSpec
from codeexec_api.names import POOL_LABEL
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.worker import Context, now
from codeexec_operator.core.observed_pod import Sandbox, is_blocked, parse_pod, seen_again
from codeexec_operator.core.observed_pool import Member
from codeexec_operator.core.outcome import Proven
from codeexec_operator.core.payload import build_warm_up
from codeexec_operator.core.pod_reset import Reset
from codeexec_operator.core.pod_template import Template, template_label
from codeexec_operator.core.starts import Starts

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
    created_at: datetime
    uses: int = 1
    """How many executions it has had, with the one that has it."""
    reset: Reset | None = None
    """What was shown of it after the one before."""


class PoolPods:
    """What is known of each pod.

    Args:
        context: what all workers share.
        pool: whose pods they are.
        starts: hears of pods that start.
        changed: called when something new is known.
    """

    def __init__(self, context: Context, pool: ObjectMeta, starts: Starts, changed: Callable[[], None]) -> None:
        self.members: dict[str, Member] = {}
        self.admitted: dict[str, None] = {}
        """Names of those that were admitted, in that order."""
        self.full_at: datetime | None = None
        """When it was last seen that no node has room for one of them."""
        self._connections: dict[str, Connection] = {}
        self._context, self._uid, self._namespace, self._changed = context, pool.uid, pool.namespace, changed
        self._starts = starts

    @property
    def starting(self) -> int:
        """How many take the time of a node."""
        return sum(one.starting for one in self.members.values())

    def look(self) -> None:
        """Take in what the connections know."""
        self.members = {name: self._newest(name) for name in self.members}
        if any(is_blocked(one.sandbox) for one in self.members.values()):
            self.full_at = now()

    def in_order(self) -> Iterator[tuple[str, Member]]:
        """Those that were admitted, as they are at this moment."""
        return ((name, self._newest(name)) for name in self.admitted)

    def _newest(self, name: str) -> Member:
        member, connection = self.members[name], self._connections.get(name)
        if connection is None or connection.view is member.sandbox.runner:
            return member
        return replace(member, sandbox=replace(member.sandbox, runner=connection.view))

    async def take_over(self, pool: str) -> set[str]:
        """Pods that an operator before this one has made are proven anew. Returns names of those that are in use."""
        cluster, namespace = self._context.cluster, self._namespace
        in_use = await cluster.pods_in_use(namespace)
        pods = {raw["metadata"]["name"]: raw for raw in await cluster.list_pods(namespace, f"{POOL_LABEL}={pool}")}
        found_at, by_api_server = now(), cluster.date
        for name in pods.keys() - in_use - self.members.keys():
            raw = pods[name]
            if parse_pod(raw).owner != self._uid:
                continue  # a pool of this name is gone, and so will this pod be
            age = by_api_server - datetime.fromisoformat(raw["metadata"]["creationTimestamp"])  # both by its clock
            self.members[name] = Member(found_at - max(age, timedelta()), template_label(raw), since=found_at)
            self.observe(raw, deleted=False)
        return pods.keys() & in_use

    def observe(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """One of the pods was seen, changed or deleted."""
        member = self.members[raw["metadata"]["name"]]
        sandbox = replace(seen_again(member.sandbox, raw, now(), deleted=deleted), requested=True)
        self.members[raw["metadata"]["name"]] = replace(member, sandbox=sandbox)

    def lose(self, name: str) -> None:
        """A pod is gone without a word."""
        if member := self.members.get(name):
            self.members[name] = replace(member, sandbox=replace(member.sandbox, gone=True))

    async def create(self, name: str, manifest: Mapping[str, Any]) -> None:
        """Ask for a pod. From now on it counts. Without an answer it may have been made, and is asked for again.

        Raises:
            ApiException: the API server could not say whether it was made.
        """
        asked_again = name in self.members
        if not asked_again:
            self._starts.began(self._uid)
            self.members[name] = Member(now(), template_label(manifest))
        try:
            fault = await self._context.cluster.create_pod(manifest)
        except ApiException as error:
            if error.status != 409:
                raise
            if not asked_again:  # somebody else was counted at the same moment
                self.members.pop(name, None)
            asyncio.get_running_loop().call_later(_RACE_SECONDS, self._changed)
            return
        if member := self.members.get(name):
            self.members[name] = replace(member, sandbox=replace(member.sandbox, requested=True, fault=fault))
        self._changed()

    def attach(self, name: str, pool: SandboxPoolSpec) -> None:
        """Connect to its runner."""
        if name not in self.members:
            return
        self._connections[name] = Connection(
            self._context.cluster,
            self._namespace,
            name,
            epoch=self._context.epoch,
            greeting=build_warm_up(pool),
            reusable=False,
            before=self._connections.get(name),
            changed=self._changed,
        )
        self._connections[name].open()

    async def ping(self, name: str) -> None:
        """Ask its runner whether it is still there."""
        if name in self._connections:
            await self._connections[name].ping()
        self._changed()

    def admit(self, name: str, proven: Proven) -> timedelta:
        """From now on it can be taken. Returns how long that has taken."""
        self.members[name] = replace(self.members[name], proven=proven)
        self.admitted[name] = None
        self._starts.ended(self._uid)
        return now() - self.members[name].created_at

    def take(self, name: str, template: Template) -> ClaimedPod:
        """Somebody has it from now on."""
        member = self._newest(name)
        assert member.proven  # noqa: S101 - it was admitted
        del self.members[name], self.admitted[name]
        return ClaimedPod(name, member.sandbox, self._connections.pop(name), member.proven, template, member.created_at)

    def drop(self, name: str) -> Member | None:
        """It is given up."""
        self.admitted.pop(name, None)
        if connection := self._connections.pop(name, None):
            connection.close()
        member = self.members.pop(name, None)
        if member and member.starting:
            self._starts.ended(self._uid)
        return member

    def close(self) -> None:
        """Disconnect from all, which start no more."""
        for _ in range(self.starting):
            self._starts.ended(self._uid)
        for connection in self._connections.values():
            connection.close()
