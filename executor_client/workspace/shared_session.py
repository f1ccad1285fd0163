"""One session for all calls of an executor, from whatever event loop or thread: made when it is needed, and anew."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from codeexec_api import SessionPhase
from executor_client.client.session import Session
from executor_client.exceptions import CodeExecError, ExecutionNotStarted, NotFound, SessionEnded
from executor_client.model.results import session_failure
from executor_client.model.words import caller
from executor_client.runtime import asyncio_tasks, forks
from executor_client.workspace.work_dir import Stamp

T = TypeVar("T")

_CREATION_SECONDS: Final = 30
"""How long a call waits for another one that is creating the session, possibly in a loop that is gone."""
_SESSIONS_A_CALL: Final = 4
"""How many sessions may end under one call before it gives up."""
_BROKEN: Final = (SessionPhase.DENIED, SessionPhase.FAILED)


@dataclass(eq=False)
class OpenSession:
    """A session, and what has become of it so far."""

    session: Session
    created: "Future[bool]" = field(default_factory=Future)
    """False if it could not be created, or if others have given it up before."""
    orphaned: bool = False
    """True if it was created although others have given it up: nobody but its creator uses it, and ends it."""
    used: bool = False
    """True when something has run in it."""
    prepared: bool = False
    """True when the functions are there and load."""
    sent: dict[str, Stamp] = field(default_factory=dict)
    """Files of work_dir that are in its workspace, as they were when they were sent."""
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Held while a call finds out what it has to send."""
    uploading: "Future[None] | None" = None
    """Done when the last call that has sent such files is over; the others wait for it."""

    def decide(self, *, created: bool) -> bool:
        """Whether it counts as created for everybody: what was said first holds."""
        with suppress(InvalidStateError):
            self.created.set_result(created)
        return self.created.result()


class SharedSession:
    """Hands out the session that is open, or opens one.

    Args:
        new: makes the handle of a new session, without I/O.
    """

    def __init__(self, new: Callable[[], Session]) -> None:
        self._new = new
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Have no session; see `executor_client.runtime.forks`."""
        self._lock = threading.Lock()
        self._current: OpenSession | None = None
        self._note = ""
        self._ends = 0
        self._calls: set[asyncio.Future[None]] = set()

    async def run(self, call: Callable[[OpenSession], Awaitable[T]]) -> T:
        """Run a call in the session. If it has ended before, the call is run in a new one.

        A new session is created at the same time as what the call creates in it.

        Raises:
            SessionEnded: `end` was called before anything was run, or sessions don't live long enough for that.
            CodeExecError: whatever the call raises, or why there can be no session.
        """
        over = asyncio.get_running_loop().create_future()
        self._calls.add(over)
        try:
            return await self._run(call)
        finally:
            self._calls.discard(over)
            over.set_result(None)

    async def _run(self, call: Callable[[OpenSession], Awaitable[T]]) -> T:
        attempts, ends = 0, self._ends
        while True:
            attempts += 1
            opened, mine = self._claim(ends)
            if not mine and not await _is_created(opened):
                self.drop(opened)
                if attempts >= _SESSIONS_A_CALL:
                    raise SessionEnded(
                        f"no session could be created in {attempts} attempts by concurrent calls. Nothing was run. "
                        "Their exceptions have the cause; correct it, and call again"
                    )
                continue
            try:
                result = await (self._create_and_call(opened, call) if mine else call(opened))
            except ExecutionNotStarted:
                await self._drop_if_over(opened)
                raise
            except SessionEnded:
                await self._drop_ended(opened)
                if attempts >= _SESSIONS_A_CALL:
                    raise
            except BaseException:
                opened.used = True  # whatever happened, something may have run
                raise
            else:
                opened.used = True
                return result

    def drop(self, opened: OpenSession | None = None) -> OpenSession | None:
        """Forget the open session, or this one if it is still the open one, and return it."""
        with self._lock:
            if opened is not None and opened is not self._current:
                return None
            dropped, self._current = self._current, None
            return dropped

    def opened(self, name: str) -> OpenSession | None:
        """The open session, if this is its name."""
        current = self._current
        return current if current and current.session.name == name else None

    async def end(self, *, calls_seconds: float = 0) -> None:
        """End the session, if there is one; the next call gets a new one. Calls that wait for their turn don't run.

        Args:
            calls_seconds: how long to wait until the calls of this event loop have heard of it.

        Raises:
            CodeExecError: it could not be ended; it is forgotten all the same, and ends by its limits.
        """
        with self._lock:
            self._note = ""
            self._ends += 1
        opened = self.drop()
        if opened and await _is_created(opened):
            await opened.session.end()
        loop = asyncio.get_running_loop()
        if calls_seconds and (calls := [one for one in tuple(self._calls) if one.get_loop() is loop]):
            await asyncio.wait(calls, timeout=calls_seconds)

    def take_note(self) -> str:
        """What the next output has to begin with; empty if no workspace was lost since the last one."""
        with self._lock:
            note, self._note = self._note, ""
            return note

    def _claim(self, ends: int) -> tuple[OpenSession, bool]:
        """The open session, and whether the caller is the one who has to create it.

        Raises:
            SessionEnded: `end` was called more often than when the call came.
        """
        with self._lock:
            if self._ends != ends:
                raise SessionEnded("stop() or restart() was called before this call ran; nothing was run")
            if self._current:
                return self._current, False
            self._current = OpenSession(self._new())
            return self._current, True

    async def _create_and_call(self, opened: OpenSession, call: Callable[[OpenSession], Awaitable[T]]) -> T:
        creating = asyncio.create_task(self._create(opened))
        calling = asyncio.ensure_future(call(opened))
        try:
            await asyncio.wait({creating, calling}, return_when=asyncio.FIRST_EXCEPTION)
            if creating.done() and (error := creating.exception()):
                raise error
            return await calling
        finally:
            calling.cancel()
            await asyncio_tasks.completed(self._part_with(opened, creating, calling))

    async def _part_with(self, opened: OpenSession, *work: asyncio.Task[Any]) -> None:
        """Wait for the end of this work. A session that others have given up meanwhile is ended."""
        await asyncio_tasks.settle(*work)
        if opened.orphaned:
            await opened.session.abandon()

    async def _create(self, opened: OpenSession) -> None:
        try:
            await opened.session.create()
        except BaseException:
            self.drop(opened)
            opened.decide(created=False)
            raise
        opened.orphaned = not opened.decide(created=True)

    async def _drop_if_over(self, opened: OpenSession) -> None:
        """Forget a session that could not start: the next call gets a new one."""
        with suppress(CodeExecError):
            if (await opened.session.record()).status.phase.terminal:
                self.drop(opened)

    async def _drop_ended(self, opened: OpenSession) -> None:
        """Forget a session that is over, and remember to say so where that means that files are gone.

        One that has only come later than the operator waits for it is kept.

        Raises:
            CodeExecError: it never worked, and a new one would not either.
        """
        reason, error = "Deleted", None
        with suppress(NotFound):
            record = await opened.session.record()
            status = record.status
            if not (record.spec.ended or status.phase.terminal or status.ended_at):
                return
            reason = status.reason or "EndRequested"
            if status.phase in _BROKEN and status.started_at is None:
                error = session_failure(record, caller())
        mine = self.drop(opened)
        if error:
            raise error
        if mine and opened.used:
            with self._lock:
                self._note = (
                    f"[codeexec: session {opened.session.name} ended ({reason}); "
                    "this call ran in a new workspace, without the files of earlier calls]\n"
                )


async def _is_created(opened: OpenSession) -> bool:
    """Wait for whoever is creating the session; False if that failed, or takes too long: the one may be gone."""
    waiting = asyncio.wrap_future(opened.created)
    try:
        async with asyncio.timeout(_CREATION_SECONDS):
            return await asyncio.shield(waiting)
    except TimeoutError:
        return opened.decide(created=False)
