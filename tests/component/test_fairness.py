"""A namespace that floods the operator, and a neighbour with ready pods, whose code starts nevertheless.

`make bench-fairness` measures how much slower the neighbour's calls become.
"""

import asyncio

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, RUNNING, Stage, in_thread
from faults import Delay
from flooding import flooding

from codeexec_api.names import EXECUTION_PLURAL, GROUP, VERSION
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

NOISY, QUIET = f"{SANDBOX}-noisy", f"{SANDBOX}-quiet"
EXECUTIONS, SESSIONS, LOUD, HOSTILE = 400, 20, 10, 4
CALLS = 5
SLOW = Delay(12)
"""Of each write for the namespace that floods, so that its requests pile up in the operator."""
UNDER_WAY = 25
"""Requests for one namespace that the operator has under way at most."""
HELLO = [PreparedBlock("python", b'print("hello")')]
RULES = [{"imports": ["os"], "action": "Note"}]


@pytest.fixture
async def two(tmp_path):
    """A stage of its own with two namespaces: an operator that has not been started, and a client in each."""
    stage = await in_thread(Stage(tmp_path, namespaces=(NOISY, QUIET)).__enter__)
    operator = stage.operator()
    proxies = {NOISY: None, QUIET: stage.client_proxy}
    clients = {
        name: CodeExecutionClient(ClusterRef(name, kubeconfig=stage.agent_kubeconfig(name, through=proxy)))
        for name, proxy in proxies.items()
    }
    yield stage, operator, clients
    for client in clients.values():
        await client.close()
    await in_thread(operator.end)
    await in_thread(stage.__exit__)


def prepare(stage: Stage) -> None:
    """Rules for the code of the one, and ready pods for all calls of the other."""
    kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool"}
    pool = {
        **kind,
        "metadata": {"name": "quiet", "namespace": QUIET},
        "spec": {"replicas": CALLS + 2, "limits": LIMITS},
    }
    stage.admin.apply(stage.a_policy(NOISY, codeRules=RULES), pool)
    status = lambda: stage.admin.get("sandboxpool", "quiet", QUIET).get("status", {})  # noqa: E731
    wait_for("the pods to be ready", lambda: status().get("readyReplicas") == CALLS + 2)


def waited_behind(stage: Stage) -> list[int]:
    """For each call of the neighbour: the other's requests from its creation to the start of its code."""
    created = [
        (one.call.sent["metadata"]["name"], one.at)
        for one in stage.client_proxy.seen(Match("create", EXECUTION_PLURAL))
    ]
    started = {one.call.name: one.at for one in stage.proxy.seen(RUNNING) if one.call.namespace == QUIET}
    noise = [one.at for one in stage.proxy.seen(Match("get,list,create,patch,delete", namespace=NOISY))]
    return [sum(since < at < started[name] for at in noise) for name, since in created]


async def test_a_namespace_that_floods_holds_up_no_other(two):
    stage, operator, clients = two
    await in_thread(operator.start)
    await in_thread(prepare, stage)
    asked = Request(agent="fair", timeout_seconds=120, limits=Limits(**LIMITS))
    codes = [b"fill(800_000)"] * LOUD + [b"a\n" * 400_000] * HOSTILE
    written = Match("patch", EXECUTION_PLURAL, subresource="status", namespace=NOISY)
    with stage.proxy.fault(Match("create,patch", namespace=NOISY), SLOW):
        noise = [asyncio.create_task(clients[NOISY].execute([PreparedBlock("python", one)], asked)) for one in codes]
        async with flooding(stage.agent_kubeconfig(NOISY), NOISY) as make:
            assert await make(EXECUTIONS, SESSIONS) == EXECUTIONS + SESSIONS
        await in_thread(wait_for, "its writes to be under way", lambda: len(stage.proxy.seen(written)) >= UNDER_WAY)
        for _ in range(CALLS):
            assert (await clients[QUIET].execute(HELLO, asked)).output == "hello\n"
        assert len(stage.proxy.seen(written)) < EXECUTIONS, "control: the flood was not over before"
    for one in noise:
        one.cancel()
    await asyncio.gather(*noise, return_exceptions=True)
    behind = await in_thread(waited_behind, stage)
    assert len(behind) == CALLS
    assert max(behind) <= 2 * UNDER_WAY, behind
