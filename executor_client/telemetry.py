"""The audit span of an execution. Carries digests, sizes, limits and outcomes; never code, never output.

Attribute names: `k8s.*`, `process.exit.code` and `error.type` are OpenTelemetry semantic conventions; for the rest
there is none yet, so they start with `codeexec.`. Telemetry goes where the application's SDK sends it; without an SDK,
nowhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from codeexec_api import CodeExecution, CodeExecutionSpec, Phase

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
    if namespace is not None:
        span.set_attribute("k8s.namespace.name", namespace)
    span.set_attributes(
        {
            "codeexec.execution.name": name,
            "codeexec.code.digest": spec.code_digest,
            "codeexec.code.size_bytes": sum(block.size_bytes for block in spec.blocks),
            "codeexec.block.sizes_bytes": [block.size_bytes for block in spec.blocks],
            "codeexec.block.languages": [block.language for block in spec.blocks],
            "codeexec.source.agent": spec.source.agent,
            "codeexec.source.executor": spec.source.executor,
            "codeexec.timeout_seconds": spec.timeout_seconds,
            "codeexec.limits.cpu": spec.limits.cpu,
            "codeexec.limits.memory": spec.limits.memory,
            "codeexec.limits.ephemeral_storage": spec.limits.ephemeral_storage,
            "codeexec.limits.pids": spec.limits.pids,
            "codeexec.limits.output_bytes": spec.limits.output_bytes,
            "codeexec.files.count": len(spec.files or ()),
            "codeexec.files.size_bytes": sum(file.size_bytes for file in spec.files or ()),
        }
    )
    if spec.session_ref:
        span.set_attribute("codeexec.session.name", spec.session_ref.name)


def describe_outcome(span: trace.Span, execution: CodeExecution) -> None:
    """Put what became of it on the span."""
    status = execution.status
    span.set_attributes(
        {
            "codeexec.execution.uid": execution.metadata.uid,
            "codeexec.phase": status.phase.value,
            "codeexec.reason": status.reason,
            "k8s.pod.name": status.pod_name,
            "codeexec.runtime_class": status.runtime_class_name,
            "codeexec.layers": list(status.layers),
            "codeexec.egress.verdict": status.egress_proof.verdict.value if status.egress_proof else "",
            "codeexec.stdout.size_bytes": status.stdout.total_bytes if status.stdout else 0,
            "codeexec.stderr.size_bytes": status.stderr.total_bytes if status.stderr else 0,
            "codeexec.artifacts.count": len(status.artifacts),
        }
    )
    if status.exit_code is not None:
        span.set_attribute("process.exit.code", status.exit_code)
    if status.phase is not Phase.SUCCEEDED:
        span.set_attribute("error.type", status.reason)
        span.set_status(trace.StatusCode.ERROR, status.reason)
