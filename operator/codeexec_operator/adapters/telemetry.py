"""Who is told what becomes of executions: metrics, and traces if the owner has named a collector for them."""

import asyncio
import logging
from datetime import datetime

from aiohttp import web
from prometheus_client.aiohttp import make_aiohttp_handler

from codeexec_api import CodeExecution, CodeSession
from codeexec_operator.adapters.health import serve
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.core.measures import measure
from codeexec_operator.core.stages import known_reason, stages_of
from codeexec_operator.settings import Settings

logger = logging.getLogger(__name__)


class Telemetry:
    """Told once of each end. Nothing here waits for anything or raises: it must not hurt an execution."""

    def __init__(self, settings: Settings, version: str) -> None:
        self.metrics = Metrics(version)
        self._port = settings.metrics_port
        self._server: web.AppRunner | None = None
        self._traces = None
        if settings.otlp_endpoint:
            # Else neither the exporter nor what it needs takes any memory.
            from codeexec_operator.adapters.traces import Traces

            self._traces = Traces(version, self.metrics)

    async def open(self) -> None:
        """Serve /metrics, if that was asked for.

        Raises:
            OSError: the port is in use.
        """
        if self._port:
            self.metrics.counts_tasks_of(asyncio.get_running_loop())
            self._server = await serve(self._port, web.get("/metrics", make_aiohttp_handler(self.metrics.registry)))

    async def close(self) -> None:
        """End the server, and send what waits."""
        if self._server:
            await self._server.cleanup()
        if self._traces:
            await self._traces.close()

    def execution_over(self, execution: CodeExecution, seen_at: datetime) -> None:
        """The final record was written; `seen_at` is when this process first heard of the execution."""
        try:
            self.metrics.execution_over(measure(execution, seen_at))
            if self._traces:
                self._traces.emit(stages_of(execution, seen_at), execution.spec.traceparent)
        except Exception:
            logger.exception("%s: could not be counted and traced", execution.metadata.name)

    def session_over(self, session: CodeSession) -> None:
        """The final record was written."""
        status = session.status
        self.metrics.session_over(session.metadata.namespace, status.phase, known_reason(status.reason))
