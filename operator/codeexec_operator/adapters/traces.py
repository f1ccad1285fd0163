"""Sends spans of executions to an OpenTelemetry collector. A thread of the SDK does it; nobody waits for that thread.

Where to, how often, and with which headers is said by the environment, in the variables of OpenTelemetry (`OTEL_*`).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from codeexec_operator.adapters.metrics import SPANS_DROPPED, SPANS_EXPORTED, SPANS_FAILED, Metrics
from codeexec_operator.core.stages import Stage

logger = logging.getLogger(__name__)

SERVICE: Final = "codeexec-operator"
_MOST_WAITING: Final = 2048
"""Spans that wait to be sent; what comes on top is dropped, so that a dead collector costs no more memory."""
_LOG_EVERY_SECONDS: Final = 60
_CLOSE_SECONDS: Final = 2
"""How long the operator waits for the last spans when it ends: the next one starts only after that."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Traces:
    """Makes spans of stages whose times are known, and has them sent.

    Args:
        version: of the operator.
        metrics: counts what became of them.
    """

    def __init__(self, version: str, metrics: Metrics) -> None:
        ours = Resource({"service.name": SERVICE, "service.version": version})
        # Without a sampler: what OTEL_TRACES_SAMPLER says, else the decision of the caller's span.
        self._provider = TracerProvider(
            resource=Resource.create().merge(ours).merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._exporter = _Counted(OTLPSpanExporter(), metrics)
        self._provider.add_span_processor(_Bounded(self._exporter, metrics))
        self._tracer = self._provider.get_tracer(SERVICE, version)
        self._propagator = TraceContextTextMapPropagator()

    def emit(self, stage: Stage, traceparent: str | None) -> None:
        """Make the spans of a stage and of its parts, below the caller's span, or as a trace of their own."""
        carrier = {"traceparent": traceparent} if traceparent else {}
        self._emit(stage, self._propagator.extract(carrier, Context()), trace.SpanKind.SERVER)

    def _emit(self, stage: Stage, context: Context, kind: trace.SpanKind) -> None:
        span = self._tracer.start_span(
            stage.name, context, kind, stage.attributes, start_time=_nanoseconds(stage.began)
        )
        if not span.is_recording():
            return  # nor would its parts be
        below = trace.set_span_in_context(span, context)
        for part in stage.parts:
            self._emit(part, below, trace.SpanKind.INTERNAL)
        if stage.error:
            span.set_status(trace.StatusCode.ERROR, stage.error)
        span.end(_nanoseconds(stage.ended))

    async def close(self) -> None:
        """Send what waits, if that takes no longer than a moment. Nobody waits for a request that is under way then."""
        sent, loop = asyncio.Event(), asyncio.get_running_loop()

        def send() -> None:
            self._provider.shutdown()
            self._exporter.speak()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=send, name="codeexec-last-spans", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(sent.wait(), _CLOSE_SECONDS)
        self._exporter.shutdown()  # ends its attempts


class _Counted(SpanExporter):
    """Counts what is sent and what is not, and says so in the log, once a minute at most."""

    def __init__(self, exporter: SpanExporter, metrics: Metrics) -> None:
        self._exporter, self._metrics = exporter, metrics
        self.taken = 0
        self._lost = 0
        self._silent_until = 0.0
        self._closed = False
        self._cause, self._told_by = _FirstWords(), logging.getLogger(OTLPSpanExporter.__module__)
        self._told_by.addFilter(self._cause)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them. Never raises."""
        self.taken += len(spans)
        self._cause.text = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # whatever it is, the spans are lost, and nothing else
            result, self._cause.text = SpanExportResult.FAILURE, type(error).__name__
        if result is SpanExportResult.SUCCESS:
            self._metrics.spans(SPANS_EXPORTED, len(spans))
            if self._lost:
                logger.info("spans are sent again")
            self._lost, self._silent_until = 0, 0.0
            return result
        self._metrics.spans(SPANS_FAILED, len(spans))
        self._lost += len(spans)
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _LOG_EVERY_SECONDS
            logger.warning("the collector did not take %s spans: %s", self._lost, self._cause.text)
        return result

    def shutdown(self) -> None:
        """End what is being tried, and try nothing more."""
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()

    def speak(self) -> None:
        """Let into the log what the exporter says itself: nothing is being tried any more."""
        self._told_by.removeFilter(self._cause)


class _FirstWords(logging.Filter):
    """Keeps what the exporter has to say first, and lets nothing of it into the log: it is a line for each attempt."""

    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.text = self.text or record.getMessage()
        return False


class _Bounded(BatchSpanProcessor):
    """Drops what is too much, and counts it; the SDK only logs that, and drops what is older."""

    def __init__(self, exporter: _Counted, metrics: Metrics) -> None:
        self._exporter, self._metrics = exporter, metrics
        self._given = 0
        super().__init__(exporter, max_queue_size=_MOST_WAITING)

    def on_end(self, span: ReadableSpan) -> None:
        if self._given - self._exporter.taken >= _MOST_WAITING:
            self._metrics.spans(SPANS_DROPPED, 1)
            return
        self._given += 1
        super().on_end(span)


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
