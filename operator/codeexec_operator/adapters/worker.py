"""The loop around a decision: observe, decide, act, wait for what comes next. One task for each object.

Handlers feed it with events; it feeds the pure decisions of `core` with what is known, and carries out their plans. It
holds no policy of its own.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.audit import AuditFailure, AuditLog, Record
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.code_reader import CodeReader
from codeexec_operator.adapters.egress_prober import EgressProber
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.output_room import OutputRoom
from codeexec_operator.adapters.outputs import Outputs
from codeexec_operator.adapters.pacer import Pacer
from codeexec_operator.adapters.payloads import Payloads
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.recorder import Recorder
from codeexec_operator.adapters.retries import Retries
from codeexec_operator.adapters.sealing import SealingKeys
from codeexec_operator.adapters.supervision import end
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.timing import Timing

logger = logging.getLogger(__name__)

T = TypeVar("T")

OUTAGE_SECONDS: Final = 60
"""Calls that nobody repeats later are tried for at least this long. No leader outlives such an outage."""
_TRIES: Final = 7


def now() -> datetime:
    """The time."""
    return datetime.now(UTC)


def newer(one: Record, other: Record) -> Record:
    """The later of two versions of a record."""
    return max(one, other, key=lambda record: int(record.metadata.resource_version))


async def all_of(jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run jobs at the same time and wait for all of them, then raise what the first of them raised."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def end_all(workers: Sequence["Worker"]) -> None:
    """Stop these workers."""
    await asyncio.gather(*(worker.end() for worker in workers))


@dataclass(frozen=True)
class Context:
    """What all workers share."""

    cluster: Cluster
    prober: EgressProber
    output: OutputRoom
    outputs: Outputs
    policies: Policies
    payloads: Payloads
    sealing: SealingKeys
    reader: CodeReader
    turns: FairSemaphore
    """Of the one thread: what takes its time waits here, so that a namespace with much to decide holds up no other."""
    transfers: FairSemaphore
    """Of the files of sessions, between pods and the store."""
    pacer: Pacer
    """Of what is new, so that a namespace with much of it doesn't take all of the API server's time."""
    timing: Timing
    epoch: int
    """Of this leader; see `core.leadership`. A runner refuses what a leader before it says."""
    telemetry: Telemetry
    audit: AuditLog
    recorder: Recorder


def parse_or_log(parse: Callable[[Mapping[str, Any]], T], raw: Mapping[str, Any]) -> T | None:
    """An object of the API server; None if it isn't understood, which is logged."""
    try:
        return parse(raw)
    except ValidationError as error:  # the schema of the CRD is the same model, so it is newer than this operator
        name = f"{raw.get('kind', '')} {raw['metadata']['namespace']}/{raw['metadata']['name']}"
        logger.error(
            "%s: ignored, because this operator can't read it: %s", name.strip(), error.errors(include_input=False)
        )
        return None


class Worker(ABC):
    """Everything that this process knows and does about one object."""

    def __init__(self, context: Context, meta: ObjectMeta) -> None:
        self.context = context
        self.meta = meta
        """Name, namespace and UID, which never change."""
        self.deleted = False
        self.released = False
        """True: its namespace isn't served any more, so a request that is forbidden is not made again."""
        self._wake = asyncio.Event()
        self._background: set[asyncio.Task[object]] = set()
        self._stale = self._begun = self._left = False
        self._retries = Retries(self.name, context.telemetry.metrics)
        self.task = asyncio.create_task(self._run(), name=f"{type(self).__name__} {meta.name}")

    @property
    @abstractmethod
    def version(self) -> int:
        """Resource version of what is known here."""

    @abstractmethod
    def _decide(self) -> Plan:
        """What to do, given what is known now."""

    @abstractmethod
    async def _apply(self, plan: Plan) -> None:
        """Carry out a plan."""

    @abstractmethod
    async def _get(self) -> Any:
        """The object of this name as it is now; None if there is none."""

    @abstractmethod
    def observe(self, record: Any) -> None:
        """Take a newer version of the object."""

    @abstractmethod
    def _look(self) -> None:
        """Take in what is known elsewhere in this process, before it is decided."""

    @abstractmethod
    async def _end(self) -> None:
        """Nothing more will be done."""

    @property
    def is_new(self) -> bool:
        """True if nothing was begun for the object, so that it can wait while its namespace has too much of that."""
        return False

    def wake(self) -> None:
        """Something new is known; decide again."""
        self._wake.set()

    def recheck(self) -> None:
        """The object may have changed, or be gone, without a word: look at it before anything else is done."""
        self._stale = True
        self.wake()

    @abstractmethod
    def pods(self) -> Mapping[str, int]:
        """Names of pods that there were and that are not known to be gone, each with its version as it was seen."""

    @abstractmethod
    def lose_pods(self, names: Collection[str]) -> None:
        """These pods are gone without a word."""

    def observe_deletion(self) -> None:
        """The object is gone, and the garbage collector takes its pod: nothing can be recorded any more."""
        self.deleted = True
        self.wake()

    async def _refresh(self) -> None:
        """See the object as it is now, after it turned out to be another than the one that was decided on.

        A watch may tell of a later version while the answer is on its way. That version stays.
        """
        current = await self._get()
        if current is None or current.metadata.uid != self.meta.uid:
            self.observe_deletion()
        elif int(current.metadata.resource_version) >= self.version:
            self.observe(current)

    def run_in_background(self, job: Coroutine[Any, Any, object]) -> None:
        """Do something that nobody waits for; it is finished before this worker ends."""
        task = asyncio.create_task(job)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def attempt(
        self, failure: str, call: Callable[..., Awaitable[T]], *arguments: Any, seconds: float = 0.0
    ) -> T:
        """What a call gives, which is tried some times, and for so long. If that is in vain, the log says `failure`.

        Raises:
            Exception: see `Retries.attempt`.
        """
        retries = Retries(self.name, self.context.telemetry.metrics)
        return await retries.attempt(failure, _TRIES, call, *arguments, seconds=seconds)

    async def insist(
        self, failure: str, call: Callable[..., Awaitable[object]], *arguments: Any, seconds: float = 0.0
    ) -> bool:
        """`attempt`, for a call that nothing depends on: False if all tries have failed."""
        try:
            await self.attempt(failure, call, *arguments, seconds=seconds)
        except REQUEST_ERRORS:
            return False
        return True

    async def _run(self) -> None:
        try:
            while not self.deleted:
                self._wake.clear()
                plan = await self._step()
                if any(isinstance(action, actions.Forget) for action in plan.actions):
                    return
                if plan.status is None:
                    await self._sleep(plan.wake_at)
        except asyncio.CancelledError:
            await end(*self._background)  # the next operator finds what is left
            raise
        finally:
            try:
                await asyncio.gather(*self._background, return_exceptions=True)
            finally:  # also if it is cancelled while it waits
                self._left = True
                await self._end()

    async def end(self) -> None:
        """Stop it, and let go of it also if it had no step yet."""
        try:
            await end(self.task)
        finally:  # the task has ended, also if this is cancelled
            if not self._left:
                self._left = True
                await self._end()

    def _paced(self) -> AbstractAsyncContextManager[None]:
        if not self.is_new:
            return nullcontext()
        return self.context.pacer.work(self.meta.namespace, begun=self._begun)

    async def _step(self) -> Plan:
        """Decide once and carry it out; what a retry may heal is tried again."""
        try:
            if self._stale:
                self._stale = False  # before the read: a change that is heard of meanwhile asks for another one
                try:
                    await self._refresh()
                except BaseException:
                    self._stale = True
                    raise
                if self.deleted:
                    return Plan()
            async with self._paced():
                self._begun = True
                if self.deleted:
                    return Plan()
                await self.context.turns.turn(self.meta.namespace)
                self._look()
                plan = self._decide()
                await self._apply(plan)
        except REQUEST_ERRORS as error:
            status = getattr(error, "status", None)
            if self.released and status == 403:
                logger.warning("%s: given up, because its namespace is not served any more", self.name)
                return Plan(actions=(actions.Forget(),))
            self._stale = self._stale or status in (404, 409)
            return await self._rest(error)
        except AuditFailure as error:
            return await self._rest(error, f"{error}; until it can be, nothing is recorded or started")
        except Exception as error:  # a bug must not leave an object without anybody who looks after it
            self.context.telemetry.metrics.unexpected()
            logger.exception("%s: unexpected; trying again", self.name)
            return await self._rest(error)
        if plan.status or plan.actions:  # that nothing was to be done is no sign that it would succeed
            self._retries.succeeded()
        return plan

    async def _rest(self, error: Exception, what: str = "") -> Plan:
        """Back off, then decide anew. What happens meanwhile is looked at then; only a deletion ends the pause."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._retries.failed(error, what)):
                while not self.deleted:
                    self._wake.clear()
                    await self._wake.wait()
        return Plan(wake_at=now())

    async def _sleep(self, wake_at: datetime | None) -> None:
        seconds = None if wake_at is None else max(0.0, (wake_at - now()).total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # `wait_for` forgets a cancellation that comes with what it waits for
                await self._wake.wait()

    @property
    def name(self) -> str:
        """For log lines."""
        return f"{self.meta.namespace}/{self.meta.name}"
