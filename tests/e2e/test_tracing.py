"""Client and operator make one trace of each execution, which reaches a collector. Neither tells code or output.

The collector is our own, in the cluster; the operator is told of it by `helm upgrade` (`release_fixtures.py`). What
else is traced, and what is counted, is in component/test_tracing.py.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_fixtures import REACH_PROBE, ControlPod
from cluster_tools import SANDBOX, a_name, image, is_ready, operator_pod
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from release_fixtures import operator_log, the_one

from executor_client import Limits
from executor_client.runtime import telemetry

pytestmark = [
    pytest.mark.release,
    pytest.mark.usefixtures("observed"),
]

MARKER = "e2e-tracing-marker"
SERVER, INTERNAL = 2, 1


@pytest.fixture
def client_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans of the client, as the SDK of an application gets them. Other tests have the global provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    return exporter


def as_json(attributes: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(attributes)))


# --- traces --------------------------------------------------------------------------


async def test_client_and_operator_make_one_trace(admin, make_executor, client_spans, spans_of, samples) -> None:
    executor = make_executor(timeout=20, limits=Limits(cpu="100m", memory="96Mi"))
    codes = [f"print('{MARKER}')", f"import sys; print('{MARKER}', file=sys.stderr); sys.exit(3)"]
    blocks = [CodeBlock(code, "python") for code in codes]
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    assert result.output.count(MARKER) == 2, "control: it was in what ran, and came out"

    client: ReadableSpan
    [client] = [one for one in client_spans.get_finished_spans() if one.name == "execute_code"]
    spans = spans_of(result.execution)
    root = the_one(spans, "handle_execution")
    assert root["trace"] == f"{client.context.trace_id:032x}"
    assert (root["parent"], root["kind"]) == (f"{client.context.span_id:016x}", SERVER)
    parts = [one for one in spans if one["parent"] == root["id"]]
    assert [one["name"] for one in sorted(parts, key=lambda one: (one["start"], one["end"]))] == [
        "accept",
        "start_sandbox",
        "run_blocks",
    ]
    run = the_one(parts, "run_blocks")
    ran = [one for one in spans if one["parent"] == run["id"]]
    assert [one["name"] for one in ran] == ["run_block"] * 2
    assert len(spans) == 1 + len(parts) + len(ran), "nothing else is in the trace"
    assert {one["kind"] for one in (*parts, *ran)} == {INTERNAL}

    # Times: whatever is below is within; node, operator and this process are on one machine, with one clock.
    assert client.start_time <= root["start"] <= root["end"] <= client.end_time
    for part in parts:
        assert root["start"] <= part["start"] <= part["end"] <= root["end"]
    for block in ran:
        assert run["start"] <= block["start"] <= block["end"] <= run["end"]

    # Attributes: the operator says what the client says, and what only it knows.
    assert as_json(client.attributes).items() <= root["attributes"].items()
    status = admin.execution(result.execution)["status"]
    expected = {
        "k8s.namespace.name": SANDBOX,
        "k8s.pod.name": status["podName"],
        "k8s.node.name": status["nodeName"],
        "codeexec.code.digest": status["codeDigest"],
        "codeexec.phase": "Failed",
        "process.exit.code": 3,
        "error.type": "NonZeroExit",
    }
    assert expected.items() <= root["attributes"].items()
    assert [one["attributes"]["process.exit.code"] for one in sorted(ran, key=lambda one: one["start"])] == [0, 3]
    assert {one["name"] for one in spans if one["error"]} == {"handle_execution", "run_blocks", "run_block"}
    assert root["resource"]["service.name"] == "codeexec-operator"

    # The marker is nowhere.
    log = operator_log(admin)
    events = json.dumps(admin.list("event", None))
    assert result.execution in log, "control: this is where it would be"
    exposed = {str(key) for key in samples()}
    assert any("codeexec_executions_total" in one for one in exposed), "control: what is counted is served"
    for text in (json.dumps(spans), client.to_json(), log, events, *exposed):
        assert MARKER not in text


# --- metrics -------------------------------------------------------------------------


@pytest.fixture
def outsider(admin) -> Iterator[ControlPod]:
    """Runs Python in a namespace that nobody has named."""
    namespace = a_name("codeexec-outsider")
    admin.create_namespace(namespace)
    container = {"name": "main", "image": image(), "command": ["sleep", "infinity"]}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    metadata = {"name": "outsider", "namespace": namespace}
    admin.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    admin.wait_until("the pod of an outsider to be ready", "pod", "outsider", is_ready, namespace=namespace)
    yield ControlPod(admin, namespace, "outsider")
    admin.delete("namespace", namespace)


def test_only_namespaces_that_are_named_read_metrics(admin, outsider, reader) -> None:
    operator = operator_pod(admin)["status"]["podIP"]
    assert reader(f"{REACH_PROBE}print(reaches({operator!r}, 8082))") == "True\n", "control: something listens there"
    assert outsider(f"{REACH_PROBE}print(reaches({operator!r}, 8081))") == "True\n", "control: it reaches the canary"
    assert outsider(f"{REACH_PROBE}print(reaches({operator!r}, 8082))") == "False\n"
