"""A worker whose object has one pod: what is seen of the pod, and the connection to its runner."""

from abc import abstractmethod
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeSession, SessionPhase
from codeexec_api.names import pod_name
from codeexec_operator.adapters.audit import AuditFailure
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.worker import Context, Worker, now
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.observed_pod import Sandbox, parse_pod, seen_again

T = TypeVar("T")


class PodWorker(Worker):
    """Looks after an object that has one pod."""

    def __init__(self, context: Context, record: CodeExecution | CodeSession) -> None:
        self.sandbox = Sandbox()
        self.connection: Connection | None = None
        meta = record.metadata
        self.pod_name = record.status.pod_name or pod_name(meta.name, meta.uid)  # it may have come from a pool
        self._others: set[str] = set()
        """Pods of the object besides, which go once its record says which one is its own."""
        self._left_at = 0
        super().__init__(context, meta)

    @property
    @abstractmethod
    def record(self) -> CodeExecution | CodeSession:
        """What is known of the object."""

    def observe_leaving(self, version: int) -> None:
        """At this version the object was no longer among those that aren't over: it has ended, or is gone.

        The answer to what was written here may still be on its way. If that is what was heard of, nothing is asked.
        """
        self._left_at = version
        self.wake()

    def recheck_unless_refused(self, error: Exception) -> bool:
        """True if what could not be written may be on record all the same: before anything is done, that is read."""
        refused = isinstance(error, ApiException) and error.status in range(400, 500)
        if refused or isinstance(error, AuditFailure):
            return False
        self.recheck()
        return True

    async def rechecked(self, write: Awaitable[T]) -> T:
        """What a write of the status gives; see `recheck_unless_refused`."""
        try:
            return await write
        except Exception as error:
            self.recheck_unless_refused(error)
            raise

    async def _step(self) -> Plan:
        self._stale = self._stale or self._left_at > self.version
        return await super()._step()

    def observe_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """The pod was seen, changed or deleted.

        The object may have another pod besides: one that the leader before made without a record of it, or that a
        session had before it slept. That pod says nothing about this one.
        """
        if (name := raw["metadata"]["name"]) != self.pod_name:
            if not deleted and "deletionTimestamp" not in raw["metadata"]:
                self.has_besides(name)
            return
        box = seen_again(self.sandbox, raw, now(), deleted=deleted)
        over = box.gone or bool(box.pod and box.pod.terminated)
        over_at = (box.over_at or now()) if over else None
        runs = (box.runs_since or now()) if box.pod and box.pod.running else None
        self.sandbox = replace(box, over_at=over_at, heard_at=now(), runs_since=runs)
        self.wake()

    def pods(self) -> dict[str, int]:
        """Its pod, if there was one and it is not known to be gone."""
        pod, there = self.sandbox.pod, self.sandbox.requested and not self.sandbox.fault
        return {self.pod_name: pod.version if pod else 0} if (pod or there) and not self.sandbox.gone else {}

    def lose_pods(self, names: Collection[str]) -> None:
        """These pods are gone without a word."""
        if self.pod_name in names:
            self._gone()

    def _gone(self) -> None:
        self.sandbox = replace(self.sandbox, gone=True, over_at=self.sandbox.over_at or now())
        self.wake()

    async def discard_pod(self, name: str) -> None:
        """Delete a pod that nobody looks after any more."""
        await self.insist("its pod was not deleted", self.context.cluster.delete_pod, self.meta.namespace, name)

    def discard(self, name: str) -> None:
        """The same, without a wait for the answer."""
        self.run_in_background(self.discard_pod(name))

    def has_besides(self, *names: str) -> None:
        """These pods are the object's, too. What was written may come late, so its record may yet name one of them."""
        self._others.update(names)
        self.discard_others()

    def discard_others(self) -> None:
        """Delete other pods of the object, once its record names this one or needs none."""
        status = self.record.status
        if status.pod_name == self.pod_name or status.phase.terminal or status.phase is SessionPhase.ASLEEP:
            others, self._others = self._others - {self.pod_name}, set()
            for name in others:
                self.discard(name)

    def _look(self) -> None:
        if self.connection:
            self.sandbox = replace(self.sandbox, runner=self.connection.view)

    async def _end(self) -> None:
        if self.connection:
            self.connection.close()

    async def act_on_pod(self, action: actions.Action, greeting: Mapping[str, Any], *, reusable: bool) -> None:
        """Carry out one of the actions that concern the pod."""
        match action:
            case actions.CreatePod():
                await self._create_pod(action)
            case actions.ReadPod():
                await self._read_pod()
            case actions.Attach():
                self.connection = Connection(
                    self.context.cluster,
                    self.meta.namespace,
                    self.pod_name,
                    epoch=self.context.epoch,
                    greeting=greeting,
                    reusable=reusable,
                    before=self.connection,
                    changed=self.wake,
                )
                self.connection.open()
            case actions.DeletePod():
                there = await self.context.cluster.delete_pod(self.meta.namespace, self.pod_name)
                self.sandbox = replace(self.sandbox, deleted_at=now())
                if not there:  # and nobody may tell: its namespace isn't watched any more, or the watch is silent
                    self._gone()
            case actions.Forget():
                pass  # `_run` ends
            case _:
                raise TypeError(f"{type(action).__name__} is no action of {type(self).__name__}")

    async def _create_pod(self, action: actions.CreatePod) -> None:
        cluster, fault = self.context.cluster, None
        if self.sandbox.gone:  # one of this name was there before
            self.sandbox = Sandbox()
        if action.network_policy:
            fault = await cluster.create_network_policy(action.network_policy)
        if fault is None and (fault := await cluster.create_pod(action.manifest)) and await self._was_made():
            fault = None
        if fault and fault.admission and self.context.policies.just_changed:
            raise ApiException(status=403, reason="admission does not know the changed configuration yet")
        self.sandbox = replace(self.sandbox, requested=True, fault=fault, heard_at=now())
        self.wake()

    async def _was_made(self) -> bool:
        """True if the pod is there that is refused: by the leader before, or by a request whose answer was lost.

        Admission and quota look at a request before its name does, so a refusal says nothing about an older pod.
        """
        found = await self.context.cluster.find_pod(self.meta.namespace, self.pod_name)
        if found and parse_pod(found).owner == self.meta.uid:
            self.observe_pod(found, deleted=False)
        return self.sandbox.pod is not None

    async def _read_pod(self) -> None:
        """Read the pod. Events of a pod in a pool may not reach this worker."""
        if found := await self.context.cluster.find_pod(self.meta.namespace, self.pod_name):
            self.observe_pod(found, deleted=False)
        elif self.sandbox.pod or not self.sandbox.requested:
            self._gone()
        else:  # a pod of somebody else may have its name
            self.sandbox = replace(self.sandbox, heard_at=now())
            self.wake()
