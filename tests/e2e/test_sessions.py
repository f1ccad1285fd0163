"""Sessions: one workspace for several calls, in one pod that goes when the session ends, however it ends."""

import asyncio
import gc
import os
import signal
import subprocess
import sys

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name, a_session

from codeexec_api import Limits
from executor_client import KubernetesCodeExecutor

pytestmark = pytest.mark.e2e

SMALL = Limits(cpu="100m", memory="96Mi")


@pytest.fixture
def make(make_executor):
    """Executors with a session each, which is what an executor has by default."""
    return lambda **options: make_executor(**{"session": "per-executor", "limits": SMALL, "timeout": 20, **options})


async def run(executor, code, language="python"):
    return await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())


def the_session(admin, execution):
    """That an execution has run in."""
    return admin.get("codesession", admin.execution(execution)["spec"]["sessionRef"]["name"])


def again(admin, session):
    return admin.get("codesession", session["metadata"]["name"])


def pod_is_gone(admin, session):
    admin.wait_until_gone("pod", session["status"]["podName"])


async def test_files_last_and_processes_do_not(make, admin):
    executor = make()
    first = await run(executor, "open('note', 'w').write('kept')\nimport os; os.environ['X'] = '1'; x = 1")
    await run(executor, "sleep 1000 & echo started", "sh")
    again = await run(
        executor,
        "import os\nprint(open('note').read(), os.environ.get('X'), 'x' in globals())\n"
        "print([p for p in os.listdir('/proc') if p.isdigit() and 'sleep' in open(f'/proc/{p}/comm').read()])",
    )
    assert (first.exit_code, again.output) == (0, "kept None False\n[]\n")
    records = [admin.execution(one.execution) for one in (first, again)]
    session = the_session(admin, first.execution)
    assert {one["spec"]["sessionRef"]["name"] for one in records} == {session["metadata"]["name"]}
    assert {one["status"]["podName"] for one in records} == {session["status"]["podName"]}
    assert {one["status"]["egressProof"]["verdict"] for one in records} == {"Closed"}
    assert "Seccomp" in records[1]["status"]["layers"]


async def test_restart_gives_a_fresh_workspace(make, admin):
    executor = make()
    first = await run(executor, "open('note', 'w')")
    old = the_session(admin, first.execution)
    await executor.restart()
    assert (await run(executor, "import os; print(os.path.exists('note'))")).output == "False\n"
    await asyncio.to_thread(pod_is_gone, admin, old)


async def test_stop_ends_the_session_and_the_executor_can_be_used_again(make, admin):
    executor = make()
    await executor.stop()  # before anything: nothing to do
    first = await run(executor, "print(1)")
    old = the_session(admin, first.execution)
    await executor.stop()
    await executor.stop()
    await asyncio.to_thread(pod_is_gone, admin, old)
    ended = again(admin, old)["status"]
    assert (ended["phase"], ended["reason"], ended["executions"]) == ("Ended", "EndRequested", 1)
    assert (await run(executor, "print(2)")).output == "2\n"


async def test_garbage_collection_ends_the_session(agent_kubeconfig, admin):
    executor = KubernetesCodeExecutor(kubeconfig=agent_kubeconfig, namespace=SANDBOX, limits=SMALL)
    first = await run(executor, "print(1)")
    session = the_session(admin, first.execution)
    assert session["status"]["phase"] == "Ready"
    del executor
    gc.collect()
    await asyncio.to_thread(pod_is_gone, admin, session)


SCRIPT = """
import asyncio, os, sys
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from codeexec_api import Limits
from executor_client import KubernetesCodeExecutor

small = Limits(cpu="100m", memory="96Mi")
executor = KubernetesCodeExecutor(agent=sys.argv[1], namespace=sys.argv[3], idle_timeout=int(sys.argv[4]), limits=small)

async def main():
    result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
    print(result.execution, flush=True)
    if sys.argv[2] == "hang":
        await executor.execute_code_blocks([CodeBlock("sleep 15", "sh")], CancellationToken())

asyncio.run(main())
"""


def start_process(agent_kubeconfig, agent, what, idle_timeout):
    """The process, and the name of the execution that it has run already."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, agent, what, SANDBOX, str(idle_timeout)],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": agent_kubeconfig},
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def test_end_of_the_process_ends_the_session(agent_kubeconfig, admin):
    process, execution = start_process(agent_kubeconfig, a_name("exit"), "exit", 600)
    with process:
        assert process.wait(100) == 0
    session = the_session(admin, execution)
    pod_is_gone(admin, session)
    assert again(admin, session)["status"]["reason"] == "EndRequested"


@pytest.mark.suspect
def test_killed_process_leaves_nothing_for_ever(agent_kubeconfig, admin):
    agent = a_name("killed")
    process, execution = start_process(agent_kubeconfig, agent, "hang", 15)
    with process:
        hanging = admin.running_execution(agent)
        process.send_signal(signal.SIGKILL)
    session = the_session(admin, execution)
    pod_is_gone(admin, session)
    assert again(admin, session)["status"]["reason"] == "IdleTimeout"
    assert admin.phase(execution) == "Succeeded"
    assert admin.wait_for_phase(hanging, "Succeeded"), "it was let finish"


LIMITS = {"cpu": "100m", "memory": "96Mi"}


def test_deleting_the_session_deletes_its_pod_and_stops_what_runs(admin):
    session, name = a_name("deleted"), a_name("inside")
    admin.apply(a_session(session, limits=LIMITS))
    admin.submit_to(name, "import time; time.sleep(300)", session, limits=LIMITS)
    pod = admin.wait_for_phase(name, "Running")["status"]["podName"]
    admin.delete("codesession", session, wait=True)
    admin.wait_until_gone("pod", pod)
    assert admin.wait_for_phase(name, "Lost", "Cancelled")
