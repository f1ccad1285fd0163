"""Keeps jobs going: what fails is logged and tried again, ever later, and no other job notices."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.api_server import NETWORK_ERRORS, REQUEST_ERRORS
from codeexec_operator.core.backoff import pause

logger = logging.getLogger(__name__)

_SPREAD: Final = 1.2
_WELL_SECONDS: Final = 60
"""A job that has lasted so long before it failed had begun well: it is tried again soon."""

Job = Callable[[], Awaitable[None]]
Tell = Callable[[str | None], None]


def _nobody(_: str | None) -> None:
    """Nobody is told."""


class JobFailure(Exception):
    """A job has failed in a way that was foreseen. The text says all that there is to know."""


async def supervise(
    name: str,
    job: Job,
    *,
    every: float | None = None,
    tell: Tell = _nobody,
    unexpected: Callable[[], None] = lambda: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run a job until it has succeeded, or again and again, until cancelled.

    Args:
        name: what it does, for the log.
        job: makes one attempt.
        every: seconds from the end of an attempt that succeeded until the next one; None: there is none.
        tell: told what each attempt has failed with, or None when it has succeeded.
        unexpected: called when an attempt has failed in a way that nobody has foreseen.
        sleep: waits.
    """
    failures, last = 0, None
    while True:
        begun = time.monotonic()
        try:
            await job()
        except Exception as error:
            failures = 1 if time.monotonic() - begun >= _WELL_SECONDS else failures + 1
            problem, foreseen = explain(error), isinstance(error, (*REQUEST_ERRORS, JobFailure))
            if not foreseen:
                unexpected()
            if problem != last:  # what goes on failing in the same way is said once
                logger.log(
                    logging.WARNING if foreseen else logging.ERROR,
                    "%s: %s; trying again",
                    name,
                    problem,
                    exc_info=not foreseen,
                )
            last = problem
            tell(problem)
            await sleep(pause(failures, random.random()))  # noqa: S311 - no secret
        else:
            failures, last = 0, None
            tell(None)
            if every is None:
                return
            await sleep(every)


def explain(error: BaseException) -> str:
    """What went wrong, without what was sent or answered, which may hold code or keys."""
    if isinstance(error, ApiException):
        return f"the API server answered {error.status}"
    if isinstance(error, NETWORK_ERRORS):
        return f"no answer from the API server ({type(error).__name__})"
    return str(error) if isinstance(error, JobFailure) else f"unexpected {type(error).__name__}"


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended, however that was."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Supervisor:
    """Supervised jobs that end together.

    Args:
        unexpected: called when one has failed in a way that nobody has foreseen.
        prefix: of their names.
    """

    def __init__(self, unexpected: Callable[[], None], prefix: str = "") -> None:
        self._unexpected, self._prefix = unexpected, prefix
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, job: Job, *, every: float | None = None, after: float = 0, tell: Tell = _nobody) -> None:
        """Begin a job after so many seconds or a little more, so that not all namespaces do the same at the same time.

        It takes the place of a job of this name. See `supervise` for the rest.
        """

        async def begin() -> None:
            await asyncio.sleep(after * random.uniform(1, _SPREAD))  # noqa: S311 - no secret
            await supervise(name, job, every=every, tell=tell, unexpected=self._unexpected)

        name = f"{self._prefix}{name}"
        self._tasks = [task for task in self._tasks if not task.done()]
        for task in self._tasks:
            if task.get_name() == name:
                task.cancel()
        self._tasks.append(asyncio.create_task(begin(), name=name))

    async def stop(self) -> None:
        """End all of them."""
        await end(*self._tasks)
        self._tasks.clear()
