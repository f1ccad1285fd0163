"""The audit span of an execution. Carries digests, sizes, limits and outcomes; never code, never output.

Telemetry goes where the application's SDK sends it; without an SDK, nowhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from codeexec_api import CodeExecution, CodeExecutionSpec
from codeexec_api.attributes import error_of, outcome_attributes, request_attributes

SPAN_NAME: Final = "execute_code"
SUBMIT_SPAN_NAME: Final = "submit_code"
_TRACER: Final = trace.get_tracer("codeexec")


@contextmanager
def execution_span(name: str = SPAN_NAME) -> Iterator[trace.Span]:
    """A span around one call; an exception that leaves it is recorded by its type."""
    with _TRACER.start_as_current_span(
        name, kind=trace.SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise


def traceparent() -> str | None:
    """W3C trace context of the current span, or None if nothing is being traced."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def describe_request(span: trace.Span, *, namespace: str | None, name: str, spec: CodeExecutionSpec) -> None:
    """Put what is asked for on the span; namespace is None where no cluster is asked."""
    span.set_attributes(request_attributes(namespace, name, spec))


def describe_outcome(span: trace.Span, execution: CodeExecution) -> None:
    """Put what became of it on the span."""
    span.set_attributes(outcome_attributes(execution))
    if error := error_of(execution):
        span.set_status(trace.StatusCode.ERROR, error)
