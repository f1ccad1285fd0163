"""A pod of which nothing is heard while it starts is looked for: the watch that would tell may have gone silent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    NOW,
    PAYLOAD,
    a_pod,
    a_policy,
    a_raw_pod,
    a_runner,
    a_session,
    an_execution,
    seconds,
)
from plans import outcome
from played_cluster import PlayedCluster
from played_context import a_context, a_register
from polling import settled, until

from codeexec_api import Phase, SessionPhase
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.core.actions import Attach, Plan, ReadPod
from codeexec_operator.core.observed import Observed, ObservedSession
from codeexec_operator.core.observed_pod import PodLink, PodView, RunnerView, Sandbox
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing

TIMING = Timing()
MADE = Sandbox(requested=True, heard_at=NOW)
LOOK = (ReadPod(),)

Starting = Callable[[Sandbox], Any]


@pytest.fixture(params=["execution", "session"])
def starting(request: pytest.FixtureRequest) -> Starting:
    def make(sandbox: Sandbox) -> Observed | ObservedSession:
        facts: dict[str, Any] = {"cluster_view": CLUSTER_VIEW, "sandbox": sandbox, "since": NOW, "policy": a_policy()}
        if request.param == "session":
            return ObservedSession(session=a_session(phase=SessionPhase.STARTING), policy_read=True, **facts)
        return Observed(execution=an_execution(phase=Phase.STARTING), payload=PAYLOAD, **facts)

    return make


def plan(observed: Any, after: float) -> Plan:
    moment = NOW + seconds(after)
    return (
        decide(observed, moment, TIMING) if isinstance(observed, Observed) else decide_session(observed, moment, TIMING)
    )


def actions_of(observed: Any, after: float) -> list[type]:
    return [type(action) for action in plan(observed, after).actions]


@pytest.mark.parametrize("pod", [None, a_pod(running=False)], ids=["not seen", "seen, and not running"])
def test_it_is_looked_for_after_some_seconds_of_silence_and_again(starting: Starting, pod: PodView | None) -> None:
    silent = starting(replace(MADE, pod=pod))
    assert actions_of(silent, TIMING.look_again - 0.1) == []
    assert actions_of(silent, TIMING.look_again) == [ReadPod]
    looked = starting(replace(MADE, pod=pod, heard_at=NOW + seconds(TIMING.look_again)))
    assert actions_of(looked, TIMING.look_again) == []
    assert actions_of(looked, 2 * TIMING.look_again) == [ReadPod]


def test_each_decision_comes_no_later_than_the_next_look(starting: Starting) -> None:
    told = plan(starting(MADE), TIMING.start_notice)
    assert told.wake_at == NOW + seconds(TIMING.look_again)


def test_a_pod_that_runs_is_not_looked_for(starting: Starting) -> None:
    runs = starting(replace(MADE, pod=a_pod(), runs_since=NOW, runner=RunnerView(PodLink.OPEN)))
    assert actions_of(runs, TIMING.start_timeout - 0.1) == []


def test_it_is_looked_for_once_more_before_it_counts_as_late(starting: Starting) -> None:
    heard = NOW + seconds(TIMING.start_timeout - 1)
    assert plan(starting(replace(MADE, heard_at=heard)), TIMING.start_timeout) == Plan(actions=(ReadPod(),))
    looked = starting(replace(MADE, heard_at=NOW + seconds(TIMING.start_timeout)))
    assert outcome(plan(looked, TIMING.start_timeout))[1] == "StartTimeout"


def test_what_is_found_to_run_at_the_last_moment_gets_some_seconds_to_answer(starting: Starting) -> None:
    last = NOW + seconds(TIMING.start_timeout)
    found = replace(MADE, pod=a_pod(), heard_at=last, runs_since=last)
    assert actions_of(starting(found), TIMING.start_timeout) == [Attach]
    answers = starting(replace(found, runner=a_runner()))
    assert outcome(plan(answers, TIMING.start_timeout + TIMING.late_start / 2))[0].value in ("Running", "Ready")
    silent = starting(replace(found, runner=RunnerView(PodLink.OPEN), heard_at=last + seconds(TIMING.late_start)))
    assert outcome(plan(silent, TIMING.start_timeout + TIMING.late_start))[1] == "StartTimeout"


@pytest.mark.parametrize("seen", [True, False])
async def test_a_pod_that_a_look_does_not_find_is_gone_only_if_it_was_seen(*, seen: bool) -> None:
    """A pod of somebody else may have its name: then there was never one."""
    worker = ExecutionWorker(a_context(PlayedCluster(an_execution())), an_execution(), a_register(), lambda _: None)
    worker.task.cancel()
    worker.sandbox = replace(MADE, pod=a_pod(running=False) if seen else None)
    await worker.act_on_pod(ReadPod(), {}, reusable=False)
    assert (worker.sandbox.gone, worker.sandbox.heard_at == NOW) == (seen, seen)


async def test_a_look_that_is_answered_late_does_not_bring_back_a_pod_that_is_gone() -> None:
    class Slow(PlayedCluster):
        async def find_pod(self, *_: str) -> Any:
            await deleted.wait()
            return a_raw_pod(self.execution, version=5)

    deleted = asyncio.Event()
    worker = ExecutionWorker(a_context(Slow(an_execution())), an_execution(), a_register(), lambda _: None)
    worker.task.cancel()
    worker.observe_pod(a_raw_pod(an_execution(), version=4), deleted=False)
    looking = asyncio.create_task(worker.act_on_pod(ReadPod(), {}, reusable=False))
    await settled()
    worker.observe_pod(a_raw_pod(an_execution(), version=6), deleted=True)
    heard_at = worker.sandbox.heard_at
    deleted.set()
    await looking
    assert worker.sandbox.pod
    assert (worker.sandbox.gone, worker.sandbox.pod.version) == (True, 6)
    assert worker.sandbox.over_at
    assert worker.sandbox.heard_at
    assert heard_at
    assert worker.sandbox.heard_at > heard_at, "else it would be looked for again at once"


async def test_a_runner_that_is_connected_and_says_nothing_is_given_up_though_nothing_else_happens() -> None:
    """Somebody looks when its time is over."""

    class Silent(PlayedCluster):
        @asynccontextmanager
        async def attach(self, *_: str) -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

    cluster = Silent(an_execution(phase=Phase.RUNNING))
    context = a_context(cluster, timing=Timing(start_timeout=0.2))
    worker = ExecutionWorker(context, cluster.execution, a_register(), lambda _: None)
    worker.observe_pod(a_raw_pod(cluster.execution), deleted=False)
    await until(lambda: cluster.execution.status.phase is Phase.LOST, seconds=10)
    assert cluster.execution.status.reason == "OperatorRestarted"
    assert "did not answer" in cluster.execution.status.message
    worker.task.cancel()
    await asyncio.gather(worker.task, return_exceptions=True)
