"""Client and operator make one trace of each execution, and the operator counts what ran. Neither tells code or output.

The collector is our own, in the cluster. The operator is told of it by `helm upgrade`, and gets its old values back.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import otlp_receiver
import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import ROOT, SANDBOX, SYSTEM, Admin, a_name, helm, image, restart_operator, wait_for
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from executor_client import Limits, telemetry

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]  # the first one waits for pods and for Helm, too

MARKER = "e2e-tracing-marker"
SMALL = {"limits": {"cpu": "200m", "memory": "96Mi"}}
SERVER, INTERNAL = 2, 1
COLLECTOR_PORT = 4318
METRICS = f"http://codeexec-operator-metrics.{SYSTEM}:8082/metrics"
FETCH = """
import urllib.request
print(urllib.request.urlopen({url!r}, timeout=5).read().decode())
"""
REACHES = """
import socket
try:
    socket.create_connection(({host!r}, {port}), 3).close()
    print(True)
except OSError:
    print(False)
"""

Spans = list[dict[str, Any]]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def collector(make_control_pod):
    """A pod that takes spans. The operator's image has what is needed to read them."""
    source = Path(otlp_receiver.__file__).read_text()
    container = {"image": image("OPERATOR_IMAGE"), "command": ["python3", "-c", source, str(COLLECTOR_PORT)]}
    pod = make_control_pod("collector", container)
    wait_for("the collector", lambda: pod(REACHES.format(host="127.0.0.1", port=COLLECTOR_PORT)) == "True\n")
    return pod


@pytest.fixture(scope="module")
def reader(make_control_pod):
    """A pod in the namespace that may read metrics."""
    return make_control_pod("reader", {"command": ["sleep", "infinity"]})


@pytest.fixture(scope="module", autouse=True)
def observed(admin: Admin, kubeconfig: str, collector, reader) -> Iterator[None]:
    """An operator that is watched, for the tests of this file."""
    assert collector.namespace == reader.namespace
    values = {
        "metrics.enabled": "true",
        "metrics.scrapeNamespaces": f"{{{reader.namespace}}}",
        "telemetry.otlp.endpoint": f"http://{collector.ip}:{COLLECTOR_PORT}",
        "telemetry.otlp.namespaces": f"{{{collector.namespace}}}",
    }
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "500", "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    for key, value in environment.items():
        settings += ["--set-string", f"telemetry.otlp.environment.{key}={value}"]
    chart = str(ROOT / "charts" / "codeexec")
    helm(kubeconfig, "upgrade", "codeexec", chart, "--reuse-values", "--wait", "--timeout", "2m", *settings)
    yield
    helm(kubeconfig, "rollback", "codeexec", "--wait", "--timeout", "2m")


@pytest.fixture
def spans_of(collector) -> Callable[[str], Spans]:
    """The operator's spans of an execution, once they have arrived: they are sent together, the whole last."""

    def find(execution: str) -> Spans:
        spans: Spans = json.loads(collector(FETCH.format(url=f"http://127.0.0.1:{COLLECTOR_PORT}/spans")))
        spans = list({one["id"]: one for one in spans}.values())  # who gets no answer in time sends them once more
        named = [one for one in spans if one["attributes"].get("codeexec.execution.name") == execution]
        if not named:
            return []
        assert len(named) == 1, json.dumps(named, indent=1)
        [root] = named
        return [one for one in spans if one["trace"] == root["trace"]]

    return lambda execution: wait_for(f"spans of {execution}", lambda: find(execution), 30)


@pytest.fixture
def client_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans of the client, as the SDK of an application gets them. Other tests have the global provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    return exporter


@pytest.fixture
def samples(reader) -> Callable[[], Samples]:
    """What /metrics says."""

    def read() -> Samples:
        families = text_string_to_metric_families(reader(FETCH.format(url=METRICS)))
        return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}

    return read


def total(found: Samples, name: str, **labels: str) -> float:
    """Of all series that have these labels."""
    return sum(value for (other, pairs), value in found.items() if other == name and labels.items() <= pairs)


def the_one(spans: Spans, name: str) -> dict[str, Any]:
    [span] = [one for one in spans if one["name"] == name]
    return span


def as_json(attributes: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(attributes)))


# --- traces --------------------------------------------------------------------------


async def test_client_and_operator_make_one_trace(admin, make_executor, client_spans, spans_of, samples) -> None:
    executor = make_executor(timeout=20, limits=Limits(cpu="200m", memory="96Mi"))
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
    log = admin.kubectl("-n", SYSTEM, "logs", "deployment/codeexec-operator")
    events = admin.kubectl("get", "events", "--all-namespaces", "-o", "json")
    assert result.execution in log, "control: this is where it would be"
    exposed = {str(key) for key in samples()}
    for text in (json.dumps(spans), client.to_json(), log, events, *exposed):
        assert MARKER not in text


async def test_in_a_session_it_waits_for_the_session(make_executor, client_spans, spans_of) -> None:
    executor = make_executor(timeout=20, session="per-executor", limits=Limits(cpu="200m", memory="96Mi"))
    block, token = [CodeBlock("print(1)", "python")], CancellationToken()
    names = [(await executor.execute_code_blocks(block, token)).execution for _ in range(2)]
    traces = [spans_of(name) for name in names]
    for spans in traces:
        assert {one["name"] for one in spans} == {
            "handle_execution",
            "accept",
            "wait_for_session",
            "run_blocks",
            "run_block",
        }
        assert not any(one["error"] for one in spans)
    assert traces[0][0]["trace"] != traces[1][0]["trace"]
    roots = [the_one(spans, "handle_execution") for spans in traces]
    sessions = {one["attributes"]["codeexec.session.name"] for one in roots}
    assert len(sessions) == 1


def test_who_brings_no_context_gets_a_trace_all_the_same(admin, spans_of) -> None:
    name = a_name("no-context")
    admin.submit(name, "print(1)", **SMALL)
    admin.wait_for_phase(name, "Succeeded")
    spans = spans_of(name)
    assert [one["name"] for one in spans if not one["parent"]] == ["handle_execution"]


def test_flags_of_newer_sdks_are_understood_and_not_to_be_sampled_is_respected(admin, spans_of, collector) -> None:
    silent, traced = a_name("unsampled"), a_name("flags-03")
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    for name, flags in ((silent, "02"), (traced, "03")):
        admin.submit(name, "print(1)", timeoutSeconds=86_400, traceparent=f"00-{trace}-{parent}-{flags}")
        admin.wait_for_phase(name, "Denied")
    spans = spans_of(traced)  # the other was over before
    assert {one["name"] for one in spans} == {"handle_execution", "accept"}
    root = the_one(spans, "handle_execution")
    assert (root["trace"], root["parent"], root["message"]) == (trace, parent, "PolicyViolation")
    assert silent not in collector(FETCH.format(url=f"http://127.0.0.1:{COLLECTOR_PORT}/spans"))


def test_an_execution_that_a_restart_cut_off_has_its_trace(admin, spans_of) -> None:
    """The operator that began it is gone; the next one makes the spans, of what the record knows."""
    name = a_name("cut-off")
    admin.submit(name, "import time; time.sleep(60)", timeoutSeconds=100, **SMALL)
    admin.wait_for_phase(name, "Running")
    restart_operator(admin)
    assert admin.wait_for_phase(name, "Lost")["status"]["reason"] == "OperatorRestarted"
    spans = spans_of(name)
    assert {one["name"] for one in spans} == {"handle_execution", "accept", "start_sandbox", "run_blocks"}
    assert the_one(spans, "run_blocks")["attributes"] == {"error.type": "OperatorRestarted"}


# --- metrics -------------------------------------------------------------------------


def test_the_counters_move_by_what_ran_and_by_nothing_else(admin, samples) -> None:
    before = samples()
    good, bad, long, denied = (a_name(what) for what in ("good", "bad", "long", "denied"))
    admin.submit(good, "print(1)", **SMALL)
    admin.submit(bad, "import sys; sys.exit(3)", **SMALL)
    admin.submit(denied, "print(1)", timeoutSeconds=86_400)
    for name, phase in ((good, "Succeeded"), (bad, "Failed"), (denied, "Denied")):
        admin.wait_for_phase(name, phase)
    admin.submit(long, "import time; time.sleep(30)", timeoutSeconds=60, **SMALL)
    admin.wait_for_phase(long, "Running")
    here = {"sandbox_namespace": SANDBOX}
    assert total(samples(), "codeexec_current_executions", **here, phase="Running") == 1
    admin.kubectl("-n", SANDBOX, "patch", "codeexecution", long, "--type=merge", "-p", '{"spec": {"cancelled": true}}')
    admin.wait_for_phase(long, "Cancelled")

    def moved() -> dict[tuple[str, str], float]:
        after = samples()
        ends = {pairs for name, pairs in after if name == "codeexec_executions_total"}
        key = "codeexec_executions_total"
        more = {pairs: after[key, pairs] - before.get((key, pairs), 0) for pairs in ends}
        return {(dict(pairs)["phase"], dict(pairs)["reason"]): by for pairs, by in more.items() if by}

    expected = {
        ("Succeeded", "Completed"): 1,
        ("Failed", "NonZeroExit"): 1,
        ("Denied", "PolicyViolation"): 1,
        ("Cancelled", "CancelRequested"): 1,
    }
    wait_for("the count of four executions", lambda: sum(moved().values()) >= 4, 10)
    assert moved() == expected
    after = samples()

    def more(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert more("codeexec_execution_accept_seconds_count") == 3
    assert more("codeexec_execution_start_seconds_count", origin="new") == 3
    assert more("codeexec_execution_run_seconds_count") == 3
    assert more("codeexec_execution_complete_seconds_count") == 4
    assert more("codeexec_unexpected_errors_total") == 0
    assert more("codeexec_current_executions", **here) == 0


def test_the_gauges_of_pools_follow_the_pool(make_pool, samples) -> None:
    pool = make_pool(1)
    pool.ready(1)
    here = {"sandbox_namespace": SANDBOX}
    found = samples()
    assert total(found, "codeexec_pool_wanted_pods", **here) == total(found, "codeexec_pool_ready_pods", **here) == 1
    assert total(found, "codeexec_pool_last_refill_seconds", **here) > 0


@pytest.fixture
def outsider(admin) -> Iterator[Callable[[str], str]]:
    """Runs Python in a namespace that nobody has named."""
    namespace = a_name("codeexec-outsider")
    admin.kubectl("create", "namespace", namespace)
    wait_for("its service account", lambda: admin.exists("serviceaccount", "default", namespace))
    container = {"name": "main", "image": image(), "command": ["sleep", "infinity"]}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    metadata = {"name": "outsider", "namespace": namespace}
    admin.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    admin.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/outsider", "--timeout=60s")
    yield lambda code: admin.kubectl("-n", namespace, "exec", "-i", "outsider", "--", "python3", "-I", "-", stdin=code)
    admin.kubectl("delete", "namespace", namespace, "--wait=false")


def test_only_namespaces_that_are_named_read_metrics(admin, outsider, reader) -> None:
    selector = "app.kubernetes.io/component=operator"
    [pod] = [
        one
        for one in json.loads(admin.kubectl("-n", SYSTEM, "get", "pods", "-l", selector, "-o", "json"))["items"]
        if "deletionTimestamp" not in one["metadata"]
    ]
    operator = pod["status"]["podIP"]
    assert reader(REACHES.format(host=operator, port=8082)) == "True\n", "control: something listens there"
    assert outsider(REACHES.format(host=operator, port=8081)) == "True\n", "control: it reaches the canary"
    assert outsider(REACHES.format(host=operator, port=8082)) == "False\n"


# --- last: it takes the collector away ------------------------------------------------


def test_a_collector_that_is_gone_is_counted_and_logged_and_hurts_no_execution(admin, collector, samples) -> None:
    admin.kubectl("-n", collector.namespace, "delete", "pod", "collector")
    before = total(samples(), "codeexec_spans_total", result="failed")
    name = a_name("unheard")
    admin.submit(name, "print(1)", **SMALL)
    admin.wait_for_phase(name, "Succeeded")
    wait_for(
        "the loss to be counted", lambda: total(samples(), "codeexec_spans_total", result="failed") >= before + 5, 30
    )
    log = admin.kubectl("-n", SYSTEM, "logs", "deployment/codeexec-operator")
    assert "the collector did not take" in log
