"""What leaves the operator: /metrics as Prometheus reads them, spans as a collector gets them. Over real sockets."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from factories import NOW, SESSION_REF, an_execution, seconds
from opentelemetry.sdk.trace import TracerProvider
from otlp_receiver import Receiver
from ports import free_ports
from prometheus_client.parser import text_string_to_metric_families

from codeexec_api import CodeExecution, ConditionType, Phase, SessionPhase, condition
from codeexec_api.v1alpha1.approval import ApprovalStatus
from codeexec_operator.adapters import traces
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.core.measures import Census, PoolCount
from codeexec_operator.settings import Settings

PLANTED = "PLANTED_IN_CODE_AND_OUTPUT"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
SERVER, INTERNAL = 2, 1
NOTHING = Census({}, {}, ())
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("CODEEXEC_CONFIG_MAP", "codeexec-system/codeexec-operator")
    monkeypatch.setenv("CODEEXEC_SEALING_SECRET", "codeexec-system/codeexec-sealing")
    monkeypatch.setenv("CODEEXEC_CANARY_SERVICE", "codeexec-system/codeexec-canary")
    monkeypatch.setenv("CODEEXEC_LEADER_LEASE", "codeexec-system/codeexec-operator")
    monkeypatch.setenv("CODEEXEC_METRICS_PORT", str(free_ports(1)[0]))
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    return monkeypatch


@pytest.fixture
async def make(environment: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Telemetry as the operator begins and ends it."""
    made: list[Telemetry] = []

    async def make(census: Census = NOTHING, *, leads: bool = True) -> Telemetry:
        made.append(Telemetry(Settings(), "1.2.3"))
        await made[-1].open()
        if leads:
            made[-1].metrics.leads(lambda: census, lambda: {"codeexec-sandbox": True, "other": False})
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def scrape(accept: str = "*/*") -> tuple[str, str]:
    port = Settings().metrics_port
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept}) as answer,
    ):
        assert answer.status == 200
        return await answer.text(), answer.headers["Content-Type"]


async def samples() -> Samples:
    text, _ = await scrape()
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def get(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def over(phase: Phase = Phase.SUCCEEDED, **changes: Any) -> CodeExecution:
    """Created at 0, accepted at 0.2, code from 0.3 to 4.3, unless told otherwise."""
    spec = changes.pop("spec", {})
    accepted = condition(
        ConditionType.ACCEPTED, holds=True, reason="Any", message=PLANTED, now=NOW + seconds(0.2), generation=1
    )
    times = {"conditions": (accepted,), "started_at": NOW + seconds(0.3), "finished_at": NOW + seconds(4.3)}
    outcome = {"reason": "Completed", "message": PLANTED, "exit_code": 0}
    return an_execution(phase=phase, status=times | outcome | changes, **spec)


# --- metrics -------------------------------------------------------------------------


async def test_executions_are_counted_and_timed(make: Callable[..., Any]) -> None:
    telemetry = await make()
    telemetry.execution_over(over(pool_name="default"), NOW)
    telemetry.execution_over(over(spec=SESSION_REF), NOW)
    denied = over(Phase.DENIED, conditions=(), started_at=None, reason="PolicyViolation", exit_code=None)
    telemetry.execution_over(denied, NOW)
    found = await samples()
    where = {"sandbox_namespace": "codeexec-sandbox", "languages": "python"}
    assert get(found, "codeexec_executions_total", **where, phase="Succeeded", reason="Completed") == 2
    assert get(found, "codeexec_executions_total", **where, phase="Denied", reason="PolicyViolation") == 1
    assert get(found, "codeexec_execution_accept_seconds_sum") == pytest.approx(0.4)
    assert get(found, "codeexec_execution_start_seconds_count", origin="pool") == 1
    assert get(found, "codeexec_execution_start_seconds_bucket", origin="session", le="0.25") == 0
    assert get(found, "codeexec_execution_start_seconds_bucket", origin="session", le="0.5") == 1
    assert get(found, "codeexec_execution_start_seconds_count", origin="new") is None, "its code never started"
    assert get(found, "codeexec_execution_run_seconds_sum") == pytest.approx(8)
    assert get(found, "codeexec_execution_complete_seconds_count", origin="new") == 1


async def test_what_a_human_took_to_decide_is_measured_apart_from_what_the_operator_took(
    make: Callable[..., Any],
) -> None:
    telemetry = await make()
    asked = ApprovalStatus(requested_at=NOW + seconds(0.1))
    telemetry.execution_over(over(approval=asked), NOW)
    telemetry.execution_over(over(Phase.DENIED, approval=asked, conditions=(), started_at=None), NOW)
    telemetry.execution_over(over(), NOW)  # nobody was asked
    found = await samples()
    assert get(found, "codeexec_execution_accept_seconds_sum") == pytest.approx(0.1 + 0.1 + 0.2)
    assert get(found, "codeexec_execution_approval_seconds_count") == 2
    assert get(found, "codeexec_execution_approval_seconds_sum") == pytest.approx(0.1 + 4.2)


async def test_what_there_is_is_counted_when_it_is_asked_for(make: Callable[..., Any]) -> None:
    pools = [
        PoolCount("codeexec-sandbox", wanted=3, ready=2, starting=1, claimed=4, queued=5, last_refill_ms=2500),
        PoolCount("codeexec-sandbox", wanted=1, ready=1, starting=0, claimed=0, queued=0, last_refill_ms=900),
    ]
    await make(Census({("codeexec-sandbox", Phase.RUNNING): 7}, {("codeexec-sandbox", SessionPhase.READY): 2}, pools))
    found = await samples()
    here, there = {"sandbox_namespace": "codeexec-sandbox"}, {"sandbox_namespace": "other"}
    assert get(found, "codeexec_current_executions", **here, phase="Running") == 7
    assert get(found, "codeexec_current_executions", **there, phase="Running") == 0
    assert (get(found, "codeexec_namespace_served", **here), get(found, "codeexec_namespace_served", **there)) == (1, 0)
    phases = {dict(labels)["phase"] for name, labels in found if name == "codeexec_current_executions"}
    assert phases == {phase.value for phase in Phase if not phase.terminal}
    assert get(found, "codeexec_current_sessions", **here, phase="Ready") == 2
    for name, value in {"wanted": 4, "ready": 3, "starting": 1, "claimed": 4}.items():
        assert get(found, f"codeexec_pool_{name}_pods", **here) == value
    assert get(found, "codeexec_pool_queued_executions", **here) == 5
    assert get(found, "codeexec_pool_last_refill_seconds", **here) == 2.5
    assert get(found, "codeexec_pool_last_refill_seconds", **there) is None


async def test_the_operator_counts_its_own_troubles(make: Callable[..., Any]) -> None:
    telemetry = await make()
    telemetry.metrics.retried(409)
    telemetry.metrics.retried(None)
    telemetry.metrics.unexpected()
    telemetry.metrics.session_over("other", SessionPhase.ENDED, "IdleTimeout")
    found = await samples()
    assert get(found, "codeexec_api_retries_total", status="409") == 1
    assert get(found, "codeexec_api_retries_total", status="none") == 1
    assert get(found, "codeexec_unexpected_errors_total") == 1
    assert get(found, "codeexec_sessions_total", sandbox_namespace="other", phase="Ended", reason="IdleTimeout") == 1
    assert get(found, "codeexec_operator_info", version="1.2.3") == 1
    assert get(found, "codeexec_spans_total", result="failed") == 0


async def test_a_replica_that_stands_by_says_so_and_counts_nothing(make: Callable[..., Any]) -> None:
    telemetry = await make(leads=False)
    found = await samples()
    assert get(found, "codeexec_leader") == 0
    assert not [name for name, _ in found if name.startswith(("codeexec_current_", "codeexec_pool_"))]
    telemetry.metrics.leads(lambda: NOTHING, lambda: {"codeexec-sandbox": True})
    found = await samples()
    assert get(found, "codeexec_leader") == 1
    assert [name for name, _ in found if name.startswith("codeexec_current_")]


async def test_a_task_that_is_left_behind_is_counted(make: Callable[..., Any]) -> None:
    await make()
    before = get(await samples(), "codeexec_tasks")
    assert before is not None
    left = [asyncio.create_task(asyncio.Event().wait()) for _ in range(100)]
    during = get(await samples(), "codeexec_tasks")
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    assert during is not None
    assert 90 <= during - before <= 110, "besides, a connection or two of this test come and go"


async def test_no_label_is_made_of_what_anybody_writes(make: Callable[..., Any]) -> None:
    """Names, agents and UIDs differ with each execution, and a reason may be one of a newer operator."""
    telemetry = await make()
    for name in ("one", "two", "three"):
        execution = over(Phase.FAILED, reason=PLANTED, pod_name=name, pool_name=name, spec={"source": {"agent": name}})
        telemetry.execution_over(execution.model_copy(update={"metadata": execution.metadata}), NOW)
    text, _ = await scrape()
    assert PLANTED not in text
    assert not any(word in text for word in ("one", "two", "three", execution.metadata.uid) if f'"{word}"' in text)
    [[_, labels]] = [key for key in await samples() if key[0] == "codeexec_executions_total"]
    assert dict(labels)["reason"] == "_OTHER"


async def test_openmetrics_is_spoken_to_who_asks_for_it(make: Callable[..., Any]) -> None:
    await make()
    _, kind = await scrape("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")


async def test_nothing_is_served_unless_a_port_is_named(
    make: Callable[..., Any], environment: pytest.MonkeyPatch
) -> None:
    port = Settings().metrics_port
    environment.delenv("CODEEXEC_METRICS_PORT")
    await make()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


# --- traces --------------------------------------------------------------------------


@pytest.fixture
def receiver(environment: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as receiver:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


async def eventually(probe: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await probe():
                return
            await asyncio.sleep(0.02)


async def arrived(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    async def probe() -> bool:
        return len(receiver.spans) >= count

    await eventually(probe)
    return receiver.spans


async def failed(count: int) -> None:
    """Waits until so many spans were given up."""

    async def probe() -> bool:
        return get(await samples(), "codeexec_spans_total", result="failed") == count

    await eventually(probe)


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
async def test_spans_are_below_the_callers(make: Callable[..., Any], receiver: Receiver, flags: str) -> None:
    telemetry = await make()
    telemetry.execution_over(over(spec={"traceparent": f"{CALLER}-{flags}"}), NOW)
    root, *parts = sorted(await arrived(receiver, 4), key=lambda span: span["name"] != "handle_execution")
    _, trace_id, parent, *_ = CALLER.split("-")
    assert (root["trace"], root["parent"], root["kind"]) == (trace_id, parent, SERVER)
    assert {(one["trace"], one["parent"], one["kind"]) for one in parts} == {(trace_id, root["id"], INTERNAL)}
    assert {one["name"] for one in parts} == {"accept", "start_sandbox", "run_blocks"}
    run = next(one for one in parts if one["name"] == "run_blocks")
    assert (run["start"], run["end"]) == (_ns(0.3), _ns(4.3))
    assert run["attributes"] == {"process.exit.code": 0}
    assert root["attributes"]["codeexec.block.languages"] == ["python"]
    assert (root["resource"]["service.name"], root["resource"]["service.version"]) == ("codeexec-operator", "1.2.3")
    assert PLANTED not in str(receiver.spans)


def _ns(count: float) -> int:
    return round((NOW + seconds(count)).timestamp() * 1000) * 1_000_000


async def test_a_failure_is_an_error(make: Callable[..., Any], receiver: Receiver) -> None:
    telemetry = await make()
    telemetry.execution_over(over(Phase.TIMED_OUT, reason="DeadlineExceeded", exit_code=124), NOW)
    by_name = {span["name"]: span for span in await arrived(receiver, 4)}
    assert {name for name, span in by_name.items() if span["error"]} == {"handle_execution", "run_blocks"}
    root = by_name["handle_execution"]
    assert root["message"] == root["attributes"]["error.type"] == "DeadlineExceeded"


@pytest.mark.parametrize("traceparent", [None, "00-" + "0" * 32 + "-b7ad6b7169203331-01", f"ff{CALLER[2:]}-01"])
async def test_without_a_context_that_is_valid_it_is_a_trace_of_its_own(
    make: Callable[..., Any], receiver: Receiver, traceparent: str | None
) -> None:
    telemetry = await make()
    telemetry.execution_over(over(spec={"traceparent": traceparent}), NOW)
    spans = await arrived(receiver, 4)
    [root] = [one for one in spans if not one["parent"]]
    assert root["name"] == "handle_execution"
    assert {one["trace"] for one in spans} == {root["trace"]} != {CALLER.split("-")[1]}


async def test_the_caller_decides_whether_it_is_traced(make: Callable[..., Any], receiver: Receiver) -> None:
    telemetry = await make()
    for flags in ("00", "02"):
        telemetry.execution_over(over(spec={"traceparent": f"{CALLER}-{flags}"}), NOW)
    telemetry.execution_over(over(), NOW)  # control
    assert CALLER.split("-")[1] not in {one["trace"] for one in await arrived(receiver, 4)}
    assert len(receiver.spans) == 4


async def test_the_variables_of_opentelemetry_count(
    make: Callable[..., Any], receiver: Receiver, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token")
    environment.setenv("OTEL_SERVICE_NAME", "sandboxes")
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    telemetry = await make()
    telemetry.execution_over(over(), NOW)
    [resource, *_] = [one["resource"] for one in await arrived(receiver, 4)]
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("sandboxes", "test")
    assert receiver.headers[0]["authorization"] == "Bearer token"


async def test_what_waits_is_sent_when_the_operator_ends(
    make: Callable[..., Any], receiver: Receiver, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    environment.setattr(traces, "_CLOSE_SECONDS", 60)
    telemetry = await make()
    telemetry.execution_over(over(), NOW)
    assert receiver.spans == [], "who ends an execution doesn't wait for the collector"
    await telemetry._traces.close()
    assert len(receiver.spans) == 4


async def test_a_dead_collector_is_counted_and_logged_once(
    make: Callable[..., Any], environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_ports(1)[0]}")
    environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    telemetry = await make()
    telemetry.execution_over(over(), NOW)
    await failed(4)
    telemetry.execution_over(over(), NOW)
    await failed(8)
    assert get(await samples(), "codeexec_spans_total", result="exported") == 0
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert re.match("the collector did not take [1-4] spans: Failed to export spans batch", lines[0])
    assert PLANTED not in caplog.text


async def test_a_collector_that_refuses_and_then_takes_them_again(
    make: Callable[..., Any], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    receiver.answer = 401
    telemetry = await make()
    telemetry.execution_over(over(), NOW)
    await failed(4)
    assert re.search(r"did not take [1-4] spans: Failed to export spans batch code: 401", caplog.text)
    receiver.answer = 200
    telemetry.execution_over(over(), NOW)
    await arrived(receiver, 4)

    async def told() -> bool:
        return "spans are sent again" in caplog.text

    await eventually(told)


async def test_spans_that_nobody_takes_do_not_pile_up(
    make: Callable[..., Any], receiver: Receiver, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr(traces, "_MOST_WAITING", 520)
    environment.setattr(traces, "_CLOSE_SECONDS", 0)
    environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    receiver.answer = 503  # worth other tries, which take a minute for each batch
    telemetry = await make()
    for _ in range(300):
        telemetry.execution_over(over(), NOW)
    dropped = get(await samples(), "codeexec_spans_total", result="dropped")
    assert dropped is not None
    assert 1200 - 520 - 512 <= dropped <= 1200 - 520, "besides those that wait, a batch of 512 may be under way"
    tries = len(receiver.headers)
    async with asyncio.timeout(60):
        await telemetry._traces.close()
    assert len(receiver.headers) <= tries + 2, "what was under way; nobody waits for the other tries"


async def test_a_collector_that_says_nothing_does_not_hold_up_the_end(
    make: Callable[..., Any], receiver: Receiver, environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setattr(traces, "_CLOSE_SECONDS", 0)
    environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "20")
    receiver.may_answer.clear()
    receiver.answer = 503
    telemetry = await make()
    telemetry.execution_over(over(), NOW)

    async def asked() -> bool:
        return len(receiver.headers) == 1

    await eventually(asked)
    await telemetry._traces.close()
    assert get(await samples(), "codeexec_spans_total", result="failed") == 0, "control: it still waits for an answer"
    receiver.may_answer.set()
    await failed(4)
    assert {record.name for record in caplog.records if record.levelno >= logging.WARNING} == {traces.__name__}


async def test_without_an_endpoint_there_is_no_exporter(
    make: Callable[..., Any], environment: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("made a provider")

    environment.setattr(TracerProvider, "__init__", refuse)
    telemetry = await make()
    telemetry.execution_over(over(), NOW)
    where = {"sandbox_namespace": "codeexec-sandbox", "languages": "python", "reason": "Completed"}
    assert get(await samples(), "codeexec_executions_total", **where, phase="Succeeded") == 1


async def test_whatever_goes_wrong_an_execution_does_not_notice(
    make: Callable[..., Any], environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = await make()
    environment.setattr(telemetry.metrics, "execution_over", lambda _: 1 / 0)
    telemetry.execution_over(over(), NOW)
    assert "run-1: could not be counted and traced" in caplog.text
