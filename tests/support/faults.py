"""What can go wrong with a call to the API server, which calls it happens to, and how often it has happened."""

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Literal

from aiohttp import web
from api_calls import Call, Match

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Answer:
    """The call is answered so, and the API server never hears of it."""

    status: int
    retry_after: int | None = None
    """Seconds, for the header `Retry-After`."""
    message: str = "a fault on purpose"
    reason: str | None = None
    """Of the Status; by default the one that goes with the code."""


@dataclass(frozen=True)
class Delay:
    """The call reaches the API server so much later."""

    seconds: float


@dataclass(frozen=True)
class Hold:
    """The call reaches the API server once the test lets it go, and so do all that come later."""

    released: Future[None] = field(default_factory=Future, repr=False)

    def release(self) -> None:
        """Let go of those that are held. May be called more than once."""
        if not self.released.done():
            self.released.set_result(None)


@dataclass(frozen=True)
class Stall:
    """The connection stays open, and nothing comes any more: the other side is gone and nobody has said so.

    Without `after` the call isn't passed on at all. With it so many pieces of the answer come before: events of a
    watch, lines of a log, messages of the runner.
    """

    after: int | None = None


@dataclass(frozen=True)
class Cut:
    """The connection is reset. Without `after` before the call is passed on; `after` is as in `Stall`."""

    after: int | None = None


@dataclass(frozen=True)
class Lose:
    """The API server does what it was asked to, and the answer is lost."""

    how: Literal["cut", "504", "stall"] = "cut"


@dataclass(frozen=True)
class WatchError:
    """The watch opens and says ERROR at once, with this code."""

    code: int


@dataclass(frozen=True)
class Empty:
    """It is answered with 200 and nothing, as by a proxy that can't stream."""


Fault = Answer | Delay | Hold | Stall | Cut | Lose | WatchError | Empty


class Rule:
    """A fault for some calls, and how often it was met."""

    def __init__(self, match: Match, fault: Fault, times: int | None) -> None:
        self.match, self.fault = match, fault
        self.calls: list[Call] = []
        """Those that it has met."""
        self._left = times
        self._met = threading.Condition()

    @property
    def met(self) -> int:
        """How many calls it has met."""
        return len(self.calls)

    def wait(self, times: int = 1, seconds: float = 100) -> None:
        """Until it has met so many calls; fails and says so if they don't come."""
        with self._met:
            if not self._met.wait_for(lambda: self.met >= times, seconds):
                raise AssertionError(
                    f"waited {seconds} s in vain for {times} calls of {self.match}: {self.met} came ({self.fault})"
                )

    async def hit(self, times: int = 1, seconds: float = 100) -> None:
        """`wait`, in a thread."""
        await asyncio.to_thread(self.wait, times, seconds)

    def end(self) -> None:
        """From now on calls pass."""
        with self._met:
            self._left = 0

    def takes(self, call: Call) -> bool:
        """True if the fault is for this call, which is counted then."""
        with self._met:
            if self._left == 0 or not self.match(call):
                return False
            self._left = None if self._left is None else self._left - 1
            self.calls.append(call)
            self._met.notify_all()
            return True


def answered(answer: Answer) -> web.Response:
    """The answer as Kubernetes gives it."""
    headers = {} if answer.retry_after is None else {"Retry-After": str(answer.retry_after)}
    status = a_status(answer.status, answer.message, answer.reason)
    return web.json_response(status, status=answer.status, headers=headers)


def a_status(code: int, message: str, reason: str | None = None) -> dict[str, object]:
    """The Status that Kubernetes sends with an error."""
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**kind, "message": message, "reason": reason or _REASONS.get(code, ""), "code": code}
