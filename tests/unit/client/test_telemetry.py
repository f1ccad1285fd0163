"""The audit span: digests and sizes, never code."""

import pytest
from factories import NOW, a_raw_block, a_raw_file, a_spec, an_execution
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from codeexec_api import EgressProof, EgressVerdict, Phase, StreamStatus
from codeexec_api.v1alpha1.bounds import TRACEPARENT_PATTERN
from executor_client import ExecutionLost, Request, SourceBlock
from executor_client.client.request import OnOutput
from executor_client.runtime import telemetry
from executor_client.testing import FakeCluster, FakeOutcome

PLANTED = "PLANTED-IN-CODE-AND-OUTPUT"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    return exporter


def the_span(exporter: InMemorySpanExporter) -> ReadableSpan:
    [span] = exporter.get_finished_spans()
    return span


def test_a_span_carries_the_facts_and_no_code(exporter: InMemorySpanExporter) -> None:
    code = f"print('{PLANTED}')".encode()
    blocks, files = [a_raw_block(code)], [a_raw_file("data", PLANTED.encode())]
    stream = StreamStatus(text=PLANTED, sha256="0" * 64, total_bytes=len(PLANTED), truncated=False)
    proof = EgressProof(verdict=EgressVerdict.CLOSED, checked_at=NOW)
    status = {"layers": ("Seccomp",), "egress_proof": proof, "runtime_class_name": "gvisor"}
    status |= {"exit_code": 3, "reason": "NonZeroExit", "stdout": stream, "message": PLANTED}
    execution = an_execution(phase=Phase.FAILED, status=status, blocks=blocks, files=files)
    with telemetry.execution_span() as span:
        telemetry.describe_request(span, namespace="here", name="run-1", spec=execution.spec)
        telemetry.describe_outcome(span, execution)
    finished = the_span(exporter)
    assert PLANTED not in finished.to_json()
    assert finished.attributes
    expected = {
        "codeexec.code.digest": execution.spec.code_digest,
        "codeexec.code.size_bytes": len(code),
        "codeexec.block.languages": ("python",),
        "gen_ai.agent.name": "tester",
        "codeexec.source.agent": "tester",
        "codeexec.timeout_seconds": 60,
        "codeexec.limits.memory": "256Mi",
        "codeexec.phase": "Failed",
        "codeexec.limits.pids": 256,
        "codeexec.runtime_class": "gvisor",
        "codeexec.layers": ("Seccomp",),
        "codeexec.egress.verdict": "Closed",
        "process.exit.code": 3,
        "error.type": "NonZeroExit",
        "codeexec.stdout.size_bytes": len(PLANTED),
        "k8s.namespace.name": "here",
    }
    assert {key: finished.attributes.get(key) for key in expected} == expected
    assert not finished.status.is_ok


def test_a_success_is_no_error(exporter: InMemorySpanExporter) -> None:
    with telemetry.execution_span() as span:
        telemetry.describe_outcome(span, an_execution(phase=Phase.SUCCEEDED, status={"exit_code": 0}))
    finished = the_span(exporter)
    assert finished.attributes
    assert "error.type" not in finished.attributes
    assert finished.status.is_ok or finished.status.is_unset


def test_an_exception_is_recorded_by_its_type_only(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(RuntimeError), telemetry.execution_span():
        raise RuntimeError(PLANTED)
    finished = the_span(exporter)
    assert finished.attributes
    assert finished.attributes["error.type"] == "RuntimeError"
    assert PLANTED not in finished.to_json()


@pytest.mark.usefixtures("exporter")
def test_the_trace_context_is_one_that_the_contract_takes() -> None:
    with telemetry.execution_span():
        traceparent = telemetry.traceparent()
    assert traceparent
    assert a_spec(traceparent=traceparent).traceparent == traceparent
    assert TRACEPARENT_PATTERN.startswith("^")


def test_without_tracing_there_is_no_context() -> None:
    assert telemetry.traceparent() is None


@pytest.mark.parametrize("on_output", [None, lambda _: None], ids=["at the end", "as it comes"])
async def test_the_span_of_a_call_that_was_lost_says_what_became_of_it(
    exporter: InMemorySpanExporter, on_output: OnOutput | None
) -> None:
    client = FakeCluster(run=lambda _: FakeOutcome(loses_pod=True)).client()
    with pytest.raises(ExecutionLost):
        await client.execute([SourceBlock("python", "1")], Request(agent="tester"), on_output=on_output)
    attributes = the_span(exporter).attributes
    assert attributes
    assert (attributes["codeexec.phase"], attributes["error.type"]) == ("Lost", "ExecutionLost")
