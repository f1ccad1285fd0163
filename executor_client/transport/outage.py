"""An API server that is away for a while: which failures pass, how long the client waits, and when it asks again."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from kubernetes.aio.client.exceptions import ApiException

from executor_client.exceptions import ClusterUnreachable, CodeExecError
from executor_client.transport import connections

T = TypeVar("T")

PASSING: Final = (429, 500, 502, 503, 504)
"""What is answered while the API server, a load balancer before it, or a CRD that is being replaced is not ready."""
OUTAGE_SECONDS: Final = 30
"""How long the API server may be away while an execution is waited for, or created."""
_REFUSAL_SECONDS: Final = 5
"""How long it may refuse watches in a row: one that has just started doesn't know all rights yet."""
_RECONNECT_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 8
"""Before a watch is opened again if those before it gave nothing at all."""


def lasting(error: Exception) -> bool:
    """True if this failure stays when the API server is asked again: it has refused, or what is asked for is gone."""
    cause = error.__cause__ or error  # what fails in our words has the answer as its cause
    if isinstance(cause, ApiException):
        return cause.status not in PASSING
    return not isinstance(error, ClusterUnreachable)


class Retries:
    """Requests of one connection that are made again while the API server is away. For one event loop."""

    def __init__(self) -> None:
        self.answered = False
        """True when the API server has answered anything: one that never has is the wrong address, and not away."""
        self._closed = asyncio.Event()

    def close(self) -> None:
        """From now on nothing is asked again, and no pause lasts."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until `close`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    async def patiently(self, ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """What `ask` returns. `ask` is called again while the API server is away, after longer and longer pauses.

        Args:
            ask: makes a request that may be made more than once.
            seconds: how long the API server may be away; None for OUTAGE_SECONDS.

        Raises:
            CodeExecError: the last failure. A refusal is raised at once, and so is any failure after `close`.
        """
        clock = asyncio.get_running_loop().time
        give_up, before_each = clock() + (OUTAGE_SECONDS if seconds is None else seconds), pauses()
        while True:
            try:
                return await ask()
            except CodeExecError as error:
                left = give_up - clock()
                if lasting(error) or self.closed or not self.answered or left <= 0:
                    raise
            await self.pause(min(next(before_each), left))


def pauses() -> Iterator[float]:
    """Seconds before each further try of what the API server does not answer: longer and longer ones, spread."""
    pause = _RECONNECT_SECONDS
    while True:
        yield spread(pause)
        pause = _longer(pause)


def spread(seconds: float) -> float:
    """At least half of these seconds, and the rest by chance: clients that failed together don't come back together."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311 it is no secret


def _longer(pause: float) -> float:
    return min(2 * pause, _LONGEST_PAUSE_SECONDS)


class Outage:
    """How long watches have been failing, and whether there is hope.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._opened_at = clock()
        self._failing_since: float | None = None
        self._refused_since: float | None = None
        self._pause = _RECONNECT_SECONDS
        self._of_no_use = False
        self.answered = self.said = False
        """True if the API server has accepted the watch; True if the watch has said something."""

    def opens(self) -> None:
        """A watch is about to be opened."""
        self._opened_at, self.answered, self.said, self._of_no_use = self._clock(), False, False, False

    def ended(self) -> bool:
        """The watch has ended in order, so that no outage lasts. True if it was of no use at all."""
        self._failing_since = self._refused_since = None
        self._of_no_use = self._short and not self.said
        return self._of_no_use

    def passes(self, error: Exception) -> bool:
        """True if the watch is to be opened again after this error."""
        now = self._clock()
        if self.said or (self.answered and not self._short):  # it was of use, so this is another outage
            self._failing_since = self._refused_since = None
        if self._failing_since is None:
            self._failing_since = now if self.answered else self._opened_at
        if not lasting(error):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        refused_for = 0 if self._refused_since is None else now - self._refused_since
        return now - self._failing_since <= OUTAGE_SECONDS and refused_for <= _REFUSAL_SECONDS

    def pause(self) -> float:
        """Seconds until the next watch is opened: more and more while watches are of no use, and spread."""
        self._pause = _longer(self._pause) if self._of_no_use else _RECONNECT_SECONDS
        return spread(self._pause) if self._short else 0

    @property
    def _short(self) -> bool:
        return self._clock() - self._opened_at < connections.REQUEST_SECONDS
