"""What a client has under way in one event loop: calls that wait, and creations that nobody waits for any more."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from executor_client.exceptions import ClusterUnreachable

T = TypeVar("T")

logger = logging.getLogger(__name__)

_END_SECONDS: Final = 10
"""How long a client that is closed waits until its calls have stopped their code."""


class Calls:
    """Those of one event loop."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Timeout, asyncio.Future[None]] = {}
        self._undoing: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around a call. `end` cancels what is in here, and the caller gets an error of ours.

        Raises:
            ClusterUnreachable: the client was closed.
        """
        limit, over = asyncio.timeout(None), asyncio.get_running_loop().create_future()
        self._running[limit] = over
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise ClusterUnreachable(
                "the client was closed while the call ran, so its code was stopped. Close the client after its last "
                "call has returned"
            ) from None
        finally:
            del self._running[limit]
            over.set_result(None)

    async def created(self, creation: Coroutine[Any, Any, T], undo: Callable[[], Awaitable[object]]) -> T:
        """What a creation returns. A caller that is cancelled does not wait for it: it is undone in the background.

        Args:
            creation: obeys a cancellation as long as it has created nothing, and leaves nothing behind if it fails.
            undo: takes back what was created.
        """
        creating = asyncio.create_task(creation)

        async def undo_creation() -> None:
            creating.cancel()
            await asyncio.wait([creating])
            if not creating.cancelled() and not creating.exception():
                await undo()

        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            undoing = self._undo(undo_creation)
            if creating.done():  # then it takes one request, as where a call that waits is cancelled
                await _heard(undoing)
            else:
                undoing.add_done_callback(_unheard)
            raise

    async def undone(self, undo: Callable[[], Awaitable[object]]) -> None:
        """Stop or end something. It goes on in the background if the caller is cancelled meanwhile, and `end` waits.

        Raises:
            CodeExecError: whatever `undo` raises.
        """
        await _heard(self._undo(undo))

    def _undo(self, undo: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
        undoing = asyncio.create_task(_insist(undo))
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)
        return undoing

    async def end(self) -> None:
        """End all calls, and wait, but not for long, until their code was told to stop, and sessions to end."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                while under_way := [*self._running.values(), *self._undoing]:
                    for limit in self._running:
                        with suppress(RuntimeError):  # it is ending already
                            limit.reschedule(0)
                    await asyncio.wait(under_way)
        except TimeoutError:
            logger.warning(
                "not all calls ended within %s s: their code may run until its timeout, and sessions may stay until "
                "their idle timeout",
                _END_SECONDS,
            )

    async def closed(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close what the calls use. That goes on if the caller is cancelled; whoever comes meanwhile waits for it."""
        while self._closing:
            await asyncio.wait([self._closing])
        self._closing = asyncio.create_task(close())
        self._closing.add_done_callback(self._is_closed)
        await asyncio.shield(self._closing)

    def _is_closed(self, _: object) -> None:
        self._closing = None  # a task holds its loop


async def _insist(undo: Callable[[], Awaitable[object]]) -> None:
    """Undo something also in an event loop that ends: that one cancels all tasks, once, and waits for them."""
    try:
        await undo()
    except asyncio.CancelledError:
        await undo()


async def _heard(undoing: asyncio.Task[None]) -> None:
    """Wait for the end of it. If the caller is cancelled, it goes on, and its error is a line in the log."""
    try:
        await asyncio.wait([undoing])
    except asyncio.CancelledError:
        undoing.add_done_callback(_unheard)
        raise
    undoing.result()


def _unheard(undoing: asyncio.Task[None]) -> None:
    if not undoing.cancelled() and (error := undoing.exception()):
        logger.warning("could not undo what nobody waits for any more: %s", error)
