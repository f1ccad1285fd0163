"""What a caller hears while the code hasn't started: why, and what to do."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from codeexec_api import CodeExecution, ConditionType, Phase, Reason, find_condition

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WaitNotice:
    """Why an execution has not started yet."""

    execution: str
    """Name of the CodeExecution."""
    namespace: str
    reason: str
    """`WaitingForOperator`, `WaitingForPool`, `WaitingForSession`, `Unschedulable` or `PodStarting`; see
    docs/troubleshooting.md.
    """
    message: str
    """For people: the place in the queue, or why the pod doesn't start, and what to do."""


OnWait = Callable[[WaitNotice], None]


class Waiting:
    """Tells a caller why an execution waits, each time that its record says something else.

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

    async def see(self, current: CodeExecution) -> None:
        """Take a version of the record. `tell` runs in a worker thread; what it raises is raised here."""
        if notice := notice_of(current):
            await self._say(notice)

    async def no_operator(self, name: str, namespace: str, seconds: float) -> None:
        """No operator has taken the execution up so far, and the call waits so many seconds for one; as `see`."""
        message = f"no operator has taken it up yet; one may be starting. The call waits {seconds:g} s for an operator"
        await self._say(WaitNotice(name, namespace, "WaitingForOperator", message))

    async def _say(self, notice: WaitNotice) -> None:
        if notice == self._last:
            return
        self._last = notice
        if self._tell:
            await asyncio.to_thread(self._tell, notice)
        elif notice.reason not in self._logged:
            self._logged.add(notice.reason)
            level = logging.INFO if notice.reason == Reason.POD_STARTING.value else logging.WARNING
            logger.log(level, "execution %s waits (%s): %s", notice.execution, notice.reason, notice.message)


def notice_of(execution: CodeExecution) -> WaitNotice | None:
    """What the record says about the wait; None if the execution doesn't wait, or only for its approval."""
    status = execution.status
    if status.phase is not Phase.STARTING:
        return None
    for kind in (ConditionType.DELAYED, ConditionType.QUEUED):
        found = find_condition(status.conditions, kind)
        if found and found.status == "True":
            meta = execution.metadata
            return WaitNotice(meta.name, meta.namespace, found.reason, found.message)
    return None
