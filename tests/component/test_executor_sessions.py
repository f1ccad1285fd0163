"""The session of AutoGen's executor ends when the executor does, in whatever way that is, and its pod goes."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, Admin
from component_stage import LIMITS, Stage, in_thread

from executor_client import KubernetesCodeExecutor, Limits
from executor_client.workspace import session_finalizer

IDLE = 20
"""Seconds. A session that has just been made is idle for a moment, longer on a busy machine."""


@pytest.fixture
def executor(operator, stage, agent) -> KubernetesCodeExecutor:
    """One with a session, which is what an executor has by default."""
    return an_executor(stage, agent)


def an_executor(stage: Stage, agent: str) -> KubernetesCodeExecutor:
    limits = Limits(**LIMITS)
    return KubernetesCodeExecutor(
        namespace=SANDBOX, kubeconfig=stage.agent_kubeconfig(), limits=limits, agent=agent, timeout=600
    )


async def run(executor: KubernetesCodeExecutor, code: str) -> Any:
    return await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())


def session_of(admin: Admin, execution: str) -> dict[str, Any]:
    """That an execution has run in."""
    return admin.get("codesession", admin.execution(execution)["spec"]["sessionRef"]["name"])


def ends(admin: Admin, session: dict[str, Any]) -> dict[str, Any]:
    """What its record says, once it has ended and its pod is gone."""
    over = lambda one: "endedAt" in one.get("status", {})  # noqa: E731
    ended = admin.wait_until("its end", "codesession", session["metadata"]["name"], over)
    admin.wait_until_gone("pod", session["status"]["podName"])
    return dict(ended["status"])


async def test_a_restart_gives_a_fresh_workspace_and_the_old_pod_goes(executor, admin):
    first = await run(executor, 'write("note")')
    assert (await run(executor, 'show("note")')).output == "note 640\n", "control"
    old = session_of(admin, first.execution)
    await executor.restart()
    assert (await run(executor, 'show("note")')).output == "nothing 0\n"
    assert (await in_thread(ends, admin, old))["reason"] == "EndRequested"
    await executor.stop()


async def test_a_stop_ends_the_session_and_the_executor_can_be_used_again(executor, admin):
    await executor.stop()  # before anything: nothing to do
    first = await run(executor, 'print("1")')
    old = session_of(admin, first.execution)
    assert old["status"]["phase"] == "Ready", "control"
    await executor.stop()
    await executor.stop()
    ended = await in_thread(ends, admin, old)
    assert (ended["phase"], ended["reason"], ended["executions"]) == ("Ended", "EndRequested", 1)
    assert (await run(executor, 'print("2")')).output == "2\n"
    await executor.stop()


async def test_an_executor_that_is_collected_ends_its_session(operator, stage, agent, admin, monkeypatch):
    monkeypatch.setattr(session_finalizer, "_READ_SECONDS", 60)  # a busy machine takes longer than a farewell may
    monkeypatch.setattr(session_finalizer, "_CONNECT_AND_READ_SECONDS", (60, 60))
    executor = an_executor(stage, agent)  # a fixture would hold it
    first = await run(executor, 'print("1")')
    session = session_of(admin, first.execution)
    assert session["status"]["phase"] == "Ready", "control"
    del executor
    gc.collect()
    assert (await in_thread(ends, admin, session))["reason"] == "EndRequested"


SCRIPT = """
import asyncio, sys
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from executor_client import KubernetesCodeExecutor, Limits
from executor_client.workspace import session_finalizer

session_finalizer._READ_SECONDS, session_finalizer._CONNECT_AND_READ_SECONDS = 60, (60, 60)
kubeconfig, namespace, agent, cpu, memory, idle, code = sys.argv[1:]
executor = KubernetesCodeExecutor(
    kubeconfig=kubeconfig, namespace=namespace, agent=agent, limits=Limits(cpu=cpu, memory=memory),
    idle_timeout=int(idle), timeout=600
)

async def main():
    result = await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    print(result.execution, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def process(operator, stage, agent) -> Callable[..., Any]:
    """Another process, whose executor runs this code; it never stops its executor."""

    @contextmanager
    def begin(code: str, idle: int) -> Iterator[subprocess.Popen[str]]:
        arguments = [stage.agent_kubeconfig(), SANDBOX, agent, LIMITS["cpu"], LIMITS["memory"], str(idle), code]
        with subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, text=True) as one:
            yield one
            one.kill()

    return begin


def test_the_end_of_the_process_ends_the_session(process, admin):
    with process('print("1")', 600) as ending:
        execution, _ = ending.communicate(timeout=100)
        assert ending.returncode == 0
    assert ends(admin, session_of(admin, execution.strip()))["reason"] == "EndRequested"


async def test_a_process_that_is_killed_leaves_nothing_for_ever_and_its_code_is_let_finish(
    process, stage, admin, agent
):
    with process(f'wait("{agent}")\nprint("done")', IDLE) as killed:
        await stage.script.reached(agent)
        killed.kill()
        assert await asyncio.to_thread(killed.wait, 100) < 0
    record = stage.record(agent)
    session = session_of(admin, record["metadata"]["name"])
    assert (record["status"]["phase"], session["status"]["phase"]) == ("Running", "Ready"), "control"
    stage.script.open(agent)
    assert (await in_thread(stage.ended, agent))["status"]["stdout"]["text"] == "done\n"
    assert (await in_thread(ends, admin, session))["reason"] == "IdleTimeout"
