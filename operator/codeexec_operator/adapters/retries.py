"""Pauses between the tries of what fails. A run of failures is logged when it begins and when it ends."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.utils.retry import retry_after_seconds  # type: ignore[attr-defined]

from codeexec_operator.adapters.api_server import FOR_GOOD, REQUEST_ERRORS, message_of
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.outputs import StoreFailure
from codeexec_operator.core import backoff

logger = logging.getLogger(__name__)

T = TypeVar("T")


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, StoreFailure) else type(error).__name__


class Retries:
    """The failures in a row of one thing that is tried again and again.

    Args:
        name: what log lines begin with.
        metrics: counts the tries that failed.
    """

    def __init__(self, name: str, metrics: Metrics) -> None:
        self._name, self._metrics = name, metrics
        self._failures = 0
        self._since = 0.0
        self._told = ""

    def failed(self, error: Exception, what: str = "") -> float:
        """A try has failed. Returns how many seconds to wait before the next. The log says `what` could not be done."""
        self._failures += 1
        if self._failures == 1:
            self._since = time.monotonic()
        status = error.status if isinstance(error, ApiException) else None
        if isinstance(error, REQUEST_ERRORS):
            self._metrics.retried(status)
        pause = backoff.pause(self._failures, random.random(), status, retry_after_seconds(error))  # noqa: S311 - jitter
        told = f"the API server answered {status}" if status else _words(error)
        if pause and told != self._told:
            self._told = told
            logger.warning("%s: %s%s; trying again with growing pauses", self._name, what and f"{what}: ", told)
        return pause

    def succeeded(self) -> None:
        """A try has succeeded, so the next failure is the first of its run."""
        if self._told:
            seconds = time.monotonic() - self._since
            logger.info("%s: succeeded after %d failed tries in %.1f s", self._name, self._failures, seconds)
        self._failures, self._told = 0, ""

    async def attempt(
        self, what: str, tries: int, call: Callable[..., Awaitable[T]], *arguments: Any, seconds: float = 0.0
    ) -> T:
        """What a call gives, which is tried so often, and for so many seconds. The log says `what` could not be done.

        What the API server refuses for good is tried so often only: `seconds` are for an outage.

        Raises:
            Exception: the failure of the last try, one of REQUEST_ERRORS; or what no other try heals.
        """
        begun, tried = time.monotonic(), 0
        while True:
            tried += 1
            try:
                given = await call(*arguments)
            except REQUEST_ERRORS as error:
                pause = self.failed(error, what)
                refused = isinstance(error, ApiException) and error.status in FOR_GOOD
                if tried >= tries and (refused or time.monotonic() - begun >= seconds):
                    words = message_of(error) if isinstance(error, ApiException) else _words(error)
                    logger.warning("%s: %s, also not by %d tries: %s", self._name, what, tried, words)
                    raise
                await asyncio.sleep(pause)
            else:
                self.succeeded()
                return given
