"""Posts Events, so that `kubectl describe` tells what happened. Nobody waits for it, and nothing depends on it."""

import asyncio
import logging
import platform
import time
from datetime import UTC, datetime
from typing import Any, Final

from codeexec_api import CodeExecution, CodeSession
from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.metrics import EVENTS_DROPPED, EVENTS_FAILED, EVENTS_POSTED, Metrics
from codeexec_operator.core.fair_queue import FairQueue
from codeexec_operator.core.kube_events import Allowance, build_event, event_of, event_of_wait

logger = logging.getLogger(__name__)

_MOST_WAITING: Final = 250
"""Events that wait to be posted. What comes on top is dropped, from the namespace that has the most."""
_BURST: Final = 50
_PER_SECOND: Final = 5.0
"""Events in the long run at most: whoever may submit executions can make them happen."""
_LOG_EVERY_SECONDS: Final = 60


class EventRecorder:
    """Takes what was written, and posts what is worth it, at a bounded rate. Namespaces take turns."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._instance = platform.node()
        self._waiting: FairQueue[dict[str, Any]] = FairQueue(_MOST_WAITING)
        self._came = asyncio.Event()
        self._allowance = Allowance(_BURST, _PER_SECOND, time.monotonic())
        self._silent_until = 0.0

    def written(self, before: CodeExecution | CodeSession, record: CodeExecution | CodeSession) -> None:
        """A status was written; `before` is the record as it was. Waits for nothing, and never raises."""
        try:
            what = event_of(before.status.phase, record) or event_of_wait(before.status.conditions, record)
            if what:
                event = build_event(record, what, datetime.now(UTC), self._instance)
                if not self._waiting.put(record.metadata.namespace, event):
                    self._metrics.events(EVENTS_DROPPED)
                self._came.set()
        except Exception:
            logger.exception("%s: not announced", record.metadata.name)

    async def run(self) -> None:
        """Post what comes, until cancelled."""
        while True:
            await self._came.wait()
            self._came.clear()
            while (event := self._waiting.take()) is not None:
                await self._post(event)

    async def _post(self, event: dict[str, Any]) -> None:
        await asyncio.sleep(self._allowance.take(time.monotonic()))
        try:
            await self._cluster.create_event(event)
            self._metrics.events(EVENTS_POSTED)
        except REQUEST_ERRORS as error:
            self._metrics.events(EVENTS_FAILED)
            if time.monotonic() >= self._silent_until:
                self._silent_until = time.monotonic() + _LOG_EVERY_SECONDS
                cause = getattr(error, "status", None) or type(error).__name__
                logger.warning("could not post an Event: %s (logged at most once a minute)", cause)
