"""What a caller hears while code hasn't started, or a session isn't ready: why, and what to do."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from codeexec_api import CodeExecution, CodeSession, ConditionType, Phase, Reason, SessionPhase, true_condition
from executor_client.exceptions import CodeExecError
from executor_client.runtime.asyncio_tasks import in_worker, reminded
from executor_client.transport.protocol import ClusterTransport

T = TypeVar("T", CodeExecution, CodeSession)

logger = logging.getLogger(__name__)

WORD_SECONDS: Final = 2
"""Nobody waits longer than this without being told for what."""


@dataclass(frozen=True)
class WaitNotice:
    """Why an execution has not started yet, or why a session is not ready."""

    execution: str
    """Name of the CodeExecution; empty if a session is waited for."""
    namespace: str
    reason: str
    """`WaitingForOperator`, `WaitingForPool`, `WaitingForSession`, `Unschedulable` or `PodStarting`; see
    docs/troubleshooting.md.
    """
    message: str
    """For people: the place in the queue, or why the pod doesn't start, and what to do."""
    session: str = ""
    """Name of the CodeSession that is waited for; empty if an execution is."""


OnWait = Callable[[WaitNotice], None]


class Waiting:
    """Tells a caller why an execution or a session waits, each time that its record says something else.

    Without `tell`, each reason is logged once: as a warning, or for a pod that only takes its time, as information.
    """

    def __init__(self, tell: OnWait | None) -> None:
        self._tell = tell
        self._last: WaitNotice | None = None
        self._logged: set[str] = set()

    @property
    def why(self) -> str:
        """What the record has said last, as the end of a sentence; empty if it has said nothing."""
        return f" ({self._last.reason}): {self._last.message}" if self._last else ""

    async def see(self, current: CodeExecution | CodeSession) -> None:
        """Take a version of the record. `tell` runs in a worker thread; what it raises is raised here."""
        if notice := notice_of(current):
            await self._say(notice)

    async def versions(
        self, transport: ClusterTransport, latest: T, operator_seconds: float
    ) -> AsyncGenerator[T, None]:
        """Each version of the record from this one on, until it is deleted.

        If no operator takes the record up soon, the caller hears of that, and for how many seconds the call waits for
        an operator; see `see`. The watch stays open meanwhile: it outlasts an API server that is away.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        while True:
            yield latest
            watch: Any = _asks(transport, latest)[0](latest)
            async with aclosing(watch), aclosing(reminded(watch, WORD_SECONDS)) as news:
                async for current in news:
                    if current:
                        latest = current
                        yield latest
                    elif not latest.status.observed_generation and (
                        found := await self._look(transport, latest, operator_seconds)
                    ):
                        latest = found
                        break
                else:
                    return

    async def _look(self, transport: ClusterTransport, latest: T, operator_seconds: float) -> T | None:
        """The record, if it was taken up and the watch is silent. Else the caller hears that no operator has come."""
        with suppress(CodeExecError):
            found: T = await _asks(transport, latest)[1](latest.metadata.name)
            if found.status.observed_generation:
                return found
        message = (
            "no operator has taken up the request yet; one may be starting, or have others to look at. The call waits "
            f"{operator_seconds:g} s for an operator"
        )
        await self._say(_notice(latest, "WaitingForOperator", message))
        return None

    async def _say(self, notice: WaitNotice) -> None:
        if notice == self._last:
            return
        self._last = notice
        if self._tell:
            await in_worker(self._tell, notice)
        elif notice.reason not in self._logged:
            self._logged.add(notice.reason)
            level = logging.INFO if notice.reason == Reason.POD_STARTING.value else logging.WARNING
            what = f"session {notice.session}" if notice.session else f"execution {notice.execution}"
            logger.log(level, "%s waits (%s): %s", what, notice.reason, notice.message)


def notice_of(record: CodeExecution | CodeSession) -> WaitNotice | None:
    """What the record says about the wait; None if nothing waits, or only an execution for its approval."""
    status = record.status
    if status.phase not in (Phase.STARTING, SessionPhase.STARTING):
        return None
    for kind in (ConditionType.DELAYED, ConditionType.QUEUED):
        if found := true_condition(status.conditions, kind):
            return _notice(record, found.reason, found.message)
    return None


def _notice(record: CodeExecution | CodeSession, reason: str, message: str) -> WaitNotice:
    meta = record.metadata
    if isinstance(record, CodeSession):
        return WaitNotice("", meta.namespace, reason, message, session=meta.name)
    return WaitNotice(meta.name, meta.namespace, reason, message)


def _asks(transport: ClusterTransport, record: CodeExecution | CodeSession) -> tuple[Any, Any]:
    """What watches a record of this kind, and what reads it."""
    if isinstance(record, CodeSession):
        return transport.session_changes, transport.get_session
    return transport.changes, transport.get
