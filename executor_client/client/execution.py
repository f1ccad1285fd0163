"""A handle on one execution: waiting for its end on a watch, and its output as it comes."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final, TypeAlias

from codeexec_api import CodeExecution, ConditionType, Phase, true_condition
from codeexec_api.v1alpha1.bounds import MAX_SESSION_SECONDS, MAX_STORED_PARTS
from executor_client.client.approvals import ApprovalWait, Patience, Question
from executor_client.client.live_output import LiveOutput
from executor_client.client.waiting import OnWait, Waiting
from executor_client.exceptions import CodeExecError, ExecutionLost, NotFound, NotInstalled, OutputUnavailable, Timeout
from executor_client.model.results import (
    Contents,
    ExecutionResult,
    OutputChunk,
    failure,
    interleaved,
    not_approved_in_time,
    result_of,
)
from executor_client.model.words import caller
from executor_client.runtime import asyncio_tasks
from executor_client.transport.outage import spread
from executor_client.transport.protocol import ClusterTransport

logger = logging.getLogger(__name__)

OPERATOR_SECONDS: Final = 60
"""How long the operator may take to notice an execution before it counts as absent. After a crash, another replica
leads within 20 s (docs/reliability.md), and then has all that came meanwhile to look at.
"""
_START_SECONDS: Final = 75
_GRACE_SECONDS: Final = 60
"""For what comes behind the last block: output and files are brought to the record."""
_LOG_AGAIN_SECONDS: Final = 1.0
_LOG_PAUSE_SECONDS: Final = 8.0
"""Before a log is asked for again that gives nothing, at most; the record has it all in the end."""
_LAST_LOOK_SECONDS: Final = 10
"""How long the record may take to be read when the caller's limit for the start is over."""
_LATER_SECONDS: Final = 60
"""How much later than the client asks the kubelet may be asked for the last seconds of a log."""
_READS_AT_ONCE: Final = 4

_WAIT: Final = ApprovalWait()

Connect: TypeAlias = Callable[[], Awaitable[ClusterTransport]]


class Execution:
    """A handle on one execution. The code runs on whatever becomes of the handle; `cancel` stops it."""

    def __init__(
        self,
        connect: Connect,
        name: str,
        latest: CodeExecution | None = None,
        *,
        approval: ApprovalWait = _WAIT,
        on_wait: OnWait | None = None,
        start_seconds: float | None = None,
        asked_at: float | None = None,
        submitted_at: tuple[float, float] | None = None,
    ) -> None:
        """`asked_at`: when `start_seconds` begin, by the loop's clock; None: at each wait. `submitted_at`: `clocks`."""
        self._connect = connect
        self._start_seconds, self._asked_at, self._submitted_at = start_seconds, asked_at, submitted_at
        self._approval, self._given_up = approval, False
        self._ask = Question(approval.notify)
        self._waiting = Waiting(on_wait)
        self._latest = latest
        self._contents: Contents | None = None
        self.name: Final = name

    @property
    def ended(self) -> bool:
        """True when the end has been seen."""
        return self._latest is not None and over(self._latest)

    @property
    def outcome(self) -> CodeExecution | None:
        """The record, if the end has been seen, or a question to a human that the caller doesn't wait for."""
        latest = self._latest
        asks = latest and latest.status.phase is Phase.AWAITING_APPROVAL and self._approval.mode == "return"
        return latest if self.ended or asks else None

    async def cancel(self) -> None:
        """Stop the code. Nothing happens if it has ended.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self._connect()).cancel(self.name)

    async def finished(self) -> CodeExecution:
        """Wait for the end, and return the record. If a call is not to wait for approval, it may not have begun yet.

        Raises:
            NotFound: there is no such execution.
            NotInstalled: no operator takes it up.
            ExecutionLost: it was deleted, its end doesn't come, or whether it has started in time can't be found out.
            Timeout: the code has not started in the time that the caller gives it.
            CodeExecError: see `executor_client.exceptions`.
        """
        return await self._wait(lambda _: None)

    async def result(self) -> ExecutionResult:
        """Wait for the end, and return what came out. If it isn't to wait for approval, the result says so instead.

        Raises:
            CodeExecError: as `finished`, and if something other than the code failed; see `executor_client.exceptions`.
        """
        finished = await self.finished()
        result = result_of(finished, await self._read_contents(finished), caller())
        if self._given_up and finished.status.phase is Phase.CANCELLED and finished.status.started_at is None:
            return not_approved_in_time(result, finished, self._approval.seconds)
        return result

    async def output(self) -> AsyncGenerator[OutputChunk, None]:
        """Output from its beginning, as it comes, until the end.

        Each piece comes once, and the pieces of a stream in order. How the streams are interleaved is exact only in
        the result. Live output is read from the pod's log; what is missing there comes at the end, from the record.

        Raises:
            CodeExecError: as `result`.
        """
        arrived: asyncio.Queue[OutputChunk | None] = asyncio.Queue()
        live: list[LiveOutput] = []
        watching = asyncio.create_task(self._watch(live, arrived))
        try:
            while (chunk := await arrived.get()) is not None:
                yield chunk
            finished = await watching
        finally:
            await asyncio_tasks.stop(watching)
        recorded = interleaved(finished.status, await self._read_contents(finished))
        for chunk in live[0].missing(recorded) if live else recorded:
            yield chunk
        if error := failure(finished, caller()):
            raise error

    async def _wait(self, seen: Callable[[CodeExecution], None]) -> CodeExecution:
        """Wait for the end, but for the start only as long as the caller wants; `seen` as in `_wait_for_end`."""

        def watch_the_start(current: CodeExecution) -> None:
            if current.status.started_at:
                starting.reschedule(None)
            seen(current)

        while True:
            try:
                async with asyncio.timeout_at(self._starts_by()) as starting:
                    return await self._wait_for_end(watch_the_start)
            except TimeoutError:
                if not starting.expired():
                    raise
            if not await self._has_started():
                late = f"execution {self.name} did not start within {self._start_seconds} s{self._waiting.why}"
                raise Timeout(late)

    async def _has_started(self) -> bool:
        """True if the record says that the code has started, or that all is over. A watch may not have told of it yet.

        Raises:
            ExecutionLost: the record can't be read.
        """
        try:
            async with asyncio.timeout(_LAST_LOOK_SECONDS):
                self._latest = await self._record(await self._connect())
        except (CodeExecError, TimeoutError) as error:
            why = str(error) or f"no answer within {_LAST_LOOK_SECONDS} s"
            raise ExecutionLost(
                f"execution {self.name} was not seen to start within {self._start_seconds} s, and may have started all "
                f"the same: its record can't be read: {why}"
            ) from error
        return self.ended or self._latest.status.started_at is not None

    def _starts_by(self) -> float | None:
        """When the code has to have started, by the clock of the loop; None: the caller sets no limit, or it has."""
        if self._start_seconds is None or (self._latest and (self.ended or self._latest.status.started_at)):
            return None
        asked_at = asyncio.get_running_loop().time() if self._asked_at is None else self._asked_at
        return asked_at + self._start_seconds

    async def _wait_for_end(self, seen: Callable[[CodeExecution], None]) -> CodeExecution:
        """Wait for the end; `seen` is called with each version of the record on the way."""
        transport = await self._connect()
        self._latest = self._latest or await self._record(transport)
        while True:
            too_late = await self._watch_until(transport, self._latest, seen)
            if too_late is None:
                return self._latest
            # What a limit is held against is the record, not what a watch has told of it.
            try:
                now = await self._record(transport)
            except NotFound:
                raise _deleted(self.name) from None
            if now.metadata.resource_version == self._latest.metadata.resource_version:
                raise too_late
            self._latest = now

    async def _record(self, transport: ClusterTransport) -> CodeExecution:
        return await transport.patiently(lambda: transport.get(self.name))

    async def _watch_until(
        self, transport: ClusterTransport, latest: CodeExecution, seen: Callable[[CodeExecution], None]
    ) -> CodeExecError | None:
        """Follow versions to the end, or until the caller doesn't wait any more: then None. Else which limit is over.

        Raises:
            ExecutionLost: it was deleted.
            CodeExecError: see `executor_client.exceptions`.
        """
        spec = latest.spec
        run_seconds = len(spec.blocks) * spec.timeout_seconds + _GRACE_SECONDS
        # In a session it may wait for others, as long as the session lives; the operator ends both.
        start_seconds = MAX_SESSION_SECONDS if spec.session_ref else _START_SECONDS
        started = False
        clock = asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(None if _is_queued(latest) else start_seconds + run_seconds) as overall,
                asyncio.timeout(None if latest.status.observed_generation else OPERATOR_SECONDS) as unnoticed,
                aclosing(self._waiting.versions(transport, latest, OPERATOR_SECONDS)) as versions,
                Patience(self._approval, self._ask, lambda: self._give_up(overall)) as patience,
            ):
                async for current in versions:
                    self._latest = current
                    if current.status.observed_generation:
                        unnoticed.reschedule(None)
                    if over(current):
                        return None
                    if current.status.started_at and not started:
                        started = True
                        overall.reschedule(clock() + run_seconds)
                    elif not started and not patience.timed_out:
                        # In the queue of a pool it may stay as long as it takes.
                        overall.reschedule(None if _is_queued(current) else clock() + start_seconds + run_seconds)
                    if await patience.ends_wait(current):
                        return None
                    seen(current)
                    await self._waiting.see(current)
            raise _deleted(self.name)
        except TimeoutError:
            if unnoticed.expired():
                return no_operator(f"execution {self.name}", transport.namespace)
            if not overall.expired():  # what the caller's own function raised
                raise
            limit = run_seconds if started else start_seconds + run_seconds
            unapproved = "" if started else patience.late(OPERATOR_SECONDS)
            return _too_late(latest, unapproved or f"did not end within {limit} s")

    async def _give_up(self, overall: asyncio.Timeout) -> None:
        """Cancel what nobody has approved in time, and don't wait for ever for that either."""
        self._given_up = True
        overall.reschedule(asyncio.get_running_loop().time() + OPERATOR_SECONDS)
        try:
            transport = await self._connect()
            await transport.patiently(lambda: transport.cancel(self.name))
        except CodeExecError as error:
            logger.warning("could not cancel execution %s, which still waits for approval: %s", self.name, error)

    async def _watch(self, live: list[LiveOutput], arrived: "asyncio.Queue[OutputChunk | None]") -> CodeExecution:
        """Wait for the end while the log is followed; the end is put into the queue, too, whatever it is."""
        following: list[asyncio.Task[None]] = []

        def seen(current: CodeExecution) -> None:
            if current.status.started_at and not following:
                live.append(LiveOutput(current.metadata.uid, current.spec.limits.output_bytes))
                following.append(asyncio.create_task(self._follow(current, live[0], arrived)))

        try:
            return await self._wait(seen)
        finally:
            for task in following:
                await asyncio_tasks.stop(task)
            arrived.put_nowait(None)

    async def _follow(
        self, execution: CodeExecution, live: LiveOutput, arrived: "asyncio.Queue[OutputChunk | None]"
    ) -> None:
        """Put what the log gives into the queue. A log that breaks off is read again, until this is cancelled."""
        transport = await self._connect()
        pause = _LOG_AGAIN_SECONDS
        while True:
            last_seconds = _seconds_of_log(execution, self._submitted_at)
            async with aclosing(transport.follow_log(execution.status.pod_name, last_seconds)) as lines:
                async for line in lines:
                    if chunk := live.feed(line):
                        arrived.put_nowait(chunk)
                        pause = _LOG_AGAIN_SECONDS
            await asyncio.sleep(spread(pause))
            pause = min(2 * pause, _LOG_PAUSE_SECONDS)

    async def _read_contents(self, finished: CodeExecution) -> Contents:
        if self._contents is None:
            self._contents = await read_contents(await self._connect(), finished)
        return self._contents


def clocks() -> tuple[float, float]:
    """The time by a clock that nobody puts back, and by one that goes on while the machine sleeps, in seconds."""
    return time.monotonic(), time.time()  # noqa: TID251 - only differences count


def _seconds_of_log(execution: CodeExecution, submitted_at: tuple[float, float] | None) -> float | None:
    """Before so many seconds the code has said nothing; None: the log has nothing of others, or nobody knows."""
    others_before = execution.spec.session_ref or execution.status.pod_reset
    if submitted_at is None or not others_before:
        return None
    return max(now - then for now, then in zip(clocks(), submitted_at, strict=True)) + _LATER_SECONDS


def no_operator(what: str, namespace: str) -> NotInstalled:
    """The error of an execution or session that no operator takes up."""
    return NotInstalled(
        f"no operator took up {what} in namespace {namespace!r} within {OPERATOR_SECONDS} s. Pass a sandbox namespace "
        "of the chart (sandbox.namespaces), or ask the platform owner to look at the operator: `kubectl get pods -n "
        "codeexec-system`"
    )


def _deleted(name: str) -> ExecutionLost:
    return ExecutionLost(
        f"execution {name} was deleted before it ended, and its code may have run in part. Check its effects, then "
        "submit it again"
    )


def _too_late(execution: CodeExecution, late: str) -> ExecutionLost:
    """The error of an execution whose end doesn't come; `late` goes on after its name."""
    meta = execution.metadata
    see = f"`kubectl -n {meta.namespace} get codeexecution {meta.name} -o yaml`"
    return ExecutionLost(f"execution {meta.name} {late}; see {see}")


def over(execution: CodeExecution) -> bool:
    """True if it has ended, also in a phase that only a newer operator knows."""
    return execution.status.phase.terminal or execution.status.finished_at is not None


def _is_queued(execution: CodeExecution) -> bool:
    """True if it may stay as it is for as long as it takes."""
    if execution.status.phase is Phase.AWAITING_APPROVAL:
        return True
    return true_condition(execution.status.conditions, ConditionType.QUEUED) is not None


async def read_contents(transport: ClusterTransport, execution: CodeExecution) -> Contents:
    """What a record refers to, put together.

    Raises:
        OutputUnavailable: it is gone, or isn't what the operator writes.
        CodeExecError: see `executor_client.exceptions`.
    """
    at_once = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(part: int) -> Mapping[str, bytes]:
        async with at_once:
            return await transport.patiently(lambda: transport.read_output(execution, part))

    stored = execution.status.output_store
    if stored and len(stored.parts) > MAX_STORED_PARTS:
        raise OutputUnavailable(
            f"execution {execution.metadata.name}: status.outputStore.parts has {len(stored.parts)} entries; at most "
            f"{MAX_STORED_PARTS} are possible"
        )
    parts = range(len(stored.parts if stored else execution.status.output_refs))
    reading = [asyncio.create_task(read(part)) for part in parts]
    try:
        return Contents.join(await asyncio.gather(*reading), stored=stored is not None)
    except BaseException:
        await asyncio_tasks.stop(*reading)
        raise
