"""Client and operator make one trace of each execution, and the operator counts what ran. Neither tells code or output.

The collector is our own, in the cluster; the operator is told of it by `helm upgrade` (`release_fixtures.py`).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_fixtures import REACH_PROBE
from cluster_tools import SANDBOX, TERMINAL, Admin, a_name, image, operator_pod, wait_for
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from release_fixtures import (
    COLLECTOR_PORT,
    FETCH,
    Samples,
    operator_log,
    the_one,
)

from executor_client import Limits
from executor_client.runtime import telemetry

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    pytest.mark.usefixtures("observed"),
]

MARKER = "e2e-tracing-marker"
SMALL = {"limits": {"cpu": "100m", "memory": "96Mi"}}
SERVER, INTERNAL = 2, 1


@pytest.fixture
def client_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans of the client, as the SDK of an application gets them. Other tests have the global provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    return exporter


def total(found: Samples, name: str, **labels: str) -> float:
    """Of all series that have these labels."""
    return sum(value for (other, pairs), value in found.items() if other == name and labels.items() <= pairs)


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
    for text in (json.dumps(spans), client.to_json(), log, events, *exposed):
        assert MARKER not in text


async def test_in_a_session_it_waits_for_the_session(make_executor, client_spans, spans_of) -> None:
    executor = make_executor(timeout=20, session="per-executor", limits=Limits(cpu="100m", memory="96Mi"))
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


# --- metrics -------------------------------------------------------------------------


@pytest.fixture
def nothing_else(admin: Admin, samples: Callable[[], Samples]) -> None:
    """What other tests have left behind is over, and counted: the counters are those of the whole operator."""
    for record in admin.list("codeexecution", None):
        if record.get("status", {}).get("phase") not in TERMINAL:
            meta = record["metadata"]
            admin.patch("codeexecution", meta["name"], {"spec": {"cancelled": True}}, meta["namespace"])
    wait_for("all that is left of other tests to be over", lambda: not total(samples(), "codeexec_current_executions"))


@pytest.mark.suspect
def test_the_counters_move_by_what_ran_and_by_nothing_else(admin, nothing_else, samples) -> None:
    before = samples()
    good, bad, long, denied = (a_name(what) for what in ("good", "bad", "long", "denied"))
    admin.submit(good, "print(1)", **SMALL)
    admin.submit(bad, "import sys; sys.exit(3)", **SMALL)
    admin.submit(denied, "print(1)", timeoutSeconds=86_400)
    for name, phase in ((good, "Succeeded"), (bad, "Failed"), (denied, "Denied")):
        admin.wait_for_phase(name, phase)
    admin.submit(long, "import time; time.sleep(600)", timeoutSeconds=600, **SMALL)
    admin.wait_for_phase(long, "Running")
    here = {"sandbox_namespace": SANDBOX}
    assert total(samples(), "codeexec_current_executions", **here, phase="Running") == 1
    admin.patch("codeexecution", long, {"spec": {"cancelled": True}})
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
    wait_for("the count of four executions", lambda: sum(moved().values()) >= 4)
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


@pytest.mark.suspect
def test_the_gauges_of_pools_follow_the_pool(make_pool, samples) -> None:
    pool = make_pool(1)
    pool.ready(1)
    here = {"sandbox_namespace": SANDBOX}

    def counted() -> tuple[float, float]:
        found = samples()
        return total(found, "codeexec_pool_wanted_pods", **here), total(found, "codeexec_pool_ready_pods", **here)

    wait_for("this pool to be all that there is", lambda: counted() == (1, 1))
    assert total(samples(), "codeexec_pool_last_refill_seconds", **here) > 0


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
    admin.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/outsider", "--timeout=300s")
    yield lambda code: admin.kubectl("-n", namespace, "exec", "-i", "outsider", "--", "python3", "-I", "-", stdin=code)
    admin.kubectl("delete", "namespace", namespace, "--wait=false")


def test_only_namespaces_that_are_named_read_metrics(admin, outsider, reader) -> None:
    operator = operator_pod(admin)["status"]["podIP"]
    assert reader(f"{REACH_PROBE}print(reaches({operator!r}, 8082))") == "True\n", "control: something listens there"
    assert outsider(f"{REACH_PROBE}print(reaches({operator!r}, 8081))") == "True\n", "control: it reaches the canary"
    assert outsider(f"{REACH_PROBE}print(reaches({operator!r}, 8082))") == "False\n"


# --- last, and after test_restart.py: it takes the collector away ----------------------


def test_a_collector_that_is_gone_is_counted_and_logged_and_hurts_no_execution(admin, collector, samples) -> None:
    admin.delete("pod", "collector", collector.namespace, wait=True)
    before = total(samples(), "codeexec_spans_total", result="failed")
    name = a_name("unheard")
    admin.submit(name, "print(1)", **SMALL)
    admin.wait_for_phase(name, "Succeeded")

    def lost() -> bool:
        return total(samples(), "codeexec_spans_total", result="failed") >= before + 5

    wait_for("the loss to be counted", lost)
    wait_for("it to be logged", lambda: "the collector did not take" in operator_log(admin))
