"""The operator makes a trace of each execution and counts what ran. How it reaches a collector is in the e2e tier."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, a_name, wait_for
from component_stage import LIMITS, in_thread
from operator_process import OperatorProcess
from otlp_receiver import Receiver
from prometheus_client.parser import text_string_to_metric_families
from waits import TERMINAL

from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
SMALL = {"limits": LIMITS, "timeoutSeconds": 600}
Spans = list[dict[str, Any]]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Traced:
    """Operators that send their spans to a collector, one after the other."""

    make: Callable[[], OperatorProcess]
    collector: Receiver
    operator: OperatorProcess

    def next(self) -> None:
        """This operator goes, and another process comes."""
        self.operator.end()
        self.operator = self.make()
        self.operator.start()

    def spans_of(self, execution: str) -> Spans:
        """Those of one execution, once they have come. They are sent together, the whole last."""

        def arrived() -> Spans:
            spans = list({one["id"]: one for one in self.collector.spans}.values())  # some may be sent again
            roots = [one for one in spans if one["attributes"].get("codeexec.execution.name") == execution]
            assert len(roots) <= 1, json.dumps(roots, indent=1)
            return [one for one in spans if one["trace"] in {root["trace"] for root in roots}]

        return wait_for(f"spans of {execution}", arrived)


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def traced(nobody_leads, stage, collector) -> AsyncIterator[Traced]:
    def make() -> OperatorProcess:
        one = stage.operator()
        one.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        one.environment |= {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
        return one

    traced = Traced(make, collector, make())
    await in_thread(traced.operator.start)
    yield traced
    await in_thread(traced.operator.end)


def the_one(spans: Spans, name: str) -> dict[str, Any]:
    [span] = [one for one in spans if one["name"] == name]
    return span


# --- traces ---------------------------------------------------------------------------------------------------------


async def test_an_execution_that_outlasts_its_operator_has_its_trace(traced, stage, client, asking, agent):
    """The operator that began it is gone; the next one makes the spans, of what the record knows."""
    block = (PreparedBlock("python", f'wait("{agent}")\nprint("done")'.encode()),)
    running = asyncio.create_task(client.execute(block, asking()))
    await stage.script.reached(agent, running)
    await in_thread(traced.next)
    name = stage.record(agent)["metadata"]["name"]
    assert name not in json.dumps(traced.collector.spans), "control: the first one has sent nothing"
    stage.script.open(agent)
    assert (await running).output == "done\n"
    spans = await in_thread(traced.spans_of, name)
    assert {one["name"] for one in spans} == {"handle_execution", "accept", "start_sandbox", "run_blocks", "run_block"}
    assert "error.type" not in the_one(spans, "run_blocks")["attributes"]
    assert not any(one["error"] for one in spans)
    assert [one["name"] for one in spans if not one["parent"]] == ["handle_execution"], "nobody brought a context"


async def test_in_a_session_it_waits_for_the_session(traced, client, asking, stage, agent):
    async with await client.open_session(asking()) as session:
        for _ in range(2):
            assert (await session.execute(HELLO)).output == "hello\n"
    names = [one["metadata"]["name"] for one in stage.records(agent=agent)]
    traces = [await in_thread(traced.spans_of, name) for name in names]
    parts = {"handle_execution", "accept", "wait_for_session", "run_blocks", "run_block"}
    for spans in traces:
        assert {one["name"] for one in spans} == parts
        assert not any(one["error"] for one in spans)
    first, second = (the_one(spans, "handle_execution") for spans in traces)
    assert first["trace"] != second["trace"]
    assert {one["attributes"]["codeexec.session.name"] for one in (first, second)} == {session.name}


def test_flags_of_newer_sdks_are_understood_and_not_to_be_sampled_is_respected(traced, admin):
    silent, heard = a_name("unsampled"), a_name("flags-03")
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    for name, flags in ((silent, "02"), (heard, "03")):
        context = f"00-{trace}-{parent}-{flags}"
        admin.submit(name, 'print("never")', timeoutSeconds=86_400, traceparent=context)
        admin.wait_for_phase(name, "Denied")
    spans = traced.spans_of(heard)  # the other was over before
    assert {one["name"] for one in spans} == {"handle_execution", "accept"}
    root = the_one(spans, "handle_execution")
    assert (root["trace"], root["parent"], root["message"]) == (trace, parent, "PolicyViolation")
    assert silent not in json.dumps(traced.collector.spans)


async def test_a_collector_that_is_gone_is_counted_and_logged_and_hurts_no_execution(traced, stage, client, asking):
    traced.collector.answer = 503
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    lost = lambda: total(samples(traced.operator), "codeexec_spans_total", result="failed") >= 5  # noqa: E731
    await in_thread(wait_for, "the loss to be counted", lost)
    said = lambda: "the collector did not take" in traced.operator.log.read_text()  # noqa: E731
    await in_thread(wait_for, "it to be logged", said)


# --- metrics --------------------------------------------------------------------------------------------------------


def samples(operator: OperatorProcess) -> Samples:
    """What /metrics says."""
    families = text_string_to_metric_families(operator.metrics())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def total(found: Samples, name: str, **labels: str) -> float:
    """Of all series that have these labels."""
    return sum(value for (other, pairs), value in found.items() if other == name and labels.items() <= pairs)


HERE = {"sandbox_namespace": SANDBOX}


@pytest.fixture
def alone(operator: OperatorProcess, admin: Admin) -> OperatorProcess:
    """The operator, once all that other tests have left behind is over and counted."""
    for record in admin.list("cex"):
        if record.get("status", {}).get("phase") not in TERMINAL:
            admin.patch("cex", record["metadata"]["name"], {"spec": {"cancelled": True}})
    wait_for("nothing to be under way", lambda: not total(samples(operator), "codeexec_current_executions"))
    return operator


@pytest.mark.suspect
def test_the_counters_move_by_what_ran_and_by_nothing_else(alone, stage, admin):
    before = samples(alone)
    good, bad, long, denied = (a_name(what) for what in ("good", "bad", "long", "denied"))
    admin.submit(good, 'print("1")', **SMALL)
    admin.submit(bad, "exit(3)", **SMALL)
    admin.submit(denied, 'print("1")', timeoutSeconds=86_400)
    for name, phase in ((good, "Succeeded"), (bad, "Failed"), (denied, "Denied")):
        admin.wait_for_phase(name, phase)
    admin.submit(long, f'wait("{long}")', **SMALL)
    stage.script.wait_at(long)
    assert total(samples(alone), "codeexec_current_executions", **HERE, phase="Running") == 1
    admin.patch("cex", long, {"spec": {"cancelled": True}})
    admin.wait_for_phase(long, "Cancelled")

    def moved() -> dict[tuple[str, str], float]:
        key, after = "codeexec_executions_total", samples(alone)
        ends = {pairs for name, pairs in after if name == key}
        more = {pairs: after[key, pairs] - before.get((key, pairs), 0) for pairs in ends}
        return {(dict(pairs)["phase"], dict(pairs)["reason"]): by for pairs, by in more.items() if by}

    wait_for("the count of four executions", lambda: sum(moved().values()) >= 4)
    assert moved() == {
        ("Succeeded", "Completed"): 1,
        ("Failed", "NonZeroExit"): 1,
        ("Denied", "PolicyViolation"): 1,
        ("Cancelled", "CancelRequested"): 1,
    }
    after = samples(alone)

    def more(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert more("codeexec_execution_accept_seconds_count") == 3
    assert more("codeexec_execution_start_seconds_count", origin="new") == 3
    assert more("codeexec_execution_run_seconds_count") == 3
    assert more("codeexec_execution_complete_seconds_count") == 4
    assert more("codeexec_unexpected_errors_total") == 0
    assert more("codeexec_current_executions", **HERE) == 0


@pytest.mark.suspect
async def test_the_gauges_of_pools_follow_the_pool(operator, make_pool):
    def counted() -> tuple[float, float]:
        found = samples(operator)
        return total(found, "codeexec_pool_wanted_pods", **HERE), total(found, "codeexec_pool_ready_pods", **HERE)

    await in_thread(wait_for, "the pools of other tests to be forgotten", lambda: counted() == (0, 0))
    pool = await make_pool(1)
    await in_thread(wait_for, "the pool to be counted", lambda: counted() == (1, 1))
    assert total(samples(operator), "codeexec_pool_last_refill_seconds", **HERE) > 0
    await in_thread(pool.scale, 2)
    await in_thread(wait_for, "its other size to be counted", lambda: counted() == (2, 2))
