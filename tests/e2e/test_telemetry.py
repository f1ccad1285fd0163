"""One span for each call, with what an auditor needs and nothing of the code."""

import hashlib

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

MARKER = "e2e-telemetry-marker"


@pytest.fixture(scope="module")
def exporter():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


async def test_span_and_record_are_one_trace(executor, admin, exporter):
    exporter.clear()
    codes = [f"print('{MARKER}')", f"import sys; print('{MARKER}'); sys.exit(3)"]
    with trace.get_tracer("test").start_as_current_span("application") as parent:
        result = await executor.execute_code_blocks([CodeBlock(code, "python") for code in codes], CancellationToken())
    [span] = [one for one in exporter.get_finished_spans() if one.name == "execute_code"]
    assert span.parent.span_id == parent.get_span_context().span_id
    record = admin.execution(result.execution)
    _, trace_id, span_id, _ = record["spec"]["traceparent"].split("-")
    assert (trace_id, span_id) == (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")

    lines = "".join(f"python {hashlib.sha256(code.encode()).hexdigest()}\n" for code in codes)
    digest = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    attributes = dict(span.attributes)
    assert attributes["codeexec.code.digest"] == record["status"]["codeDigest"] == digest
    assert attributes["codeexec.block.sizes_bytes"] == tuple(map(len, codes))
    assert attributes["codeexec.block.languages"] == ("python", "python")
    assert attributes["codeexec.timeout_seconds"] == 20
    assert attributes["codeexec.limits.memory"] == "128Mi"
    assert attributes["process.exit.code"] == 3
    assert attributes["codeexec.phase"] == "Failed"
    assert MARKER not in span.to_json()
