"""Sessions: one workspace for several calls, in one pod that goes when the session ends, however it ends."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, SYSTEM, a_name, a_session, an_execution, wait_for

from codeexec_api import Limits
from executor_client import KubernetesCodeExecutor

pytestmark = pytest.mark.e2e

SMALL = Limits(cpu="200m", memory="96Mi")


@pytest.fixture
def make(make_executor):
    """Executors with a session each, which is what an executor has by default."""
    return lambda **options: make_executor(**{"session": "per-executor", "limits": SMALL, "timeout": 20, **options})


async def run(executor, code, language="python"):
    return await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())


def sessions_of(admin, agent):
    found = json.loads(admin.kubectl("-n", SANDBOX, "get", "codesessions", "-o", "json"))["items"]
    return [one for one in found if one["spec"]["source"]["agent"] == agent]


def the_session(admin, agent):
    [found] = sessions_of(admin, agent)
    return found


def pod_is_gone(admin, session):
    name = session["status"]["podName"]
    wait_for(f"pod {name} to be gone", lambda: not admin.exists("pod", name, SANDBOX))


async def test_files_last_and_processes_do_not(make, admin):
    agent = a_name("files")
    executor = make(agent=agent)
    first = await run(executor, "open('note', 'w').write('kept')\nimport os; os.environ['X'] = '1'; x = 1")
    await run(executor, "sleep 1000 & echo started", "sh")
    again = await run(
        executor,
        "import os\nprint(open('note').read(), os.environ.get('X'), 'x' in globals())\n"
        "print([p for p in os.listdir('/proc') if p.isdigit() and 'sleep' in open(f'/proc/{p}/comm').read()])",
    )
    assert (first.exit_code, again.output) == (0, "kept None False\n[]\n")
    records = [admin.execution(one.execution) for one in (first, again)]
    session = the_session(admin, agent)
    assert {one["spec"]["sessionRef"]["name"] for one in records} == {session["metadata"]["name"]}
    assert {one["status"]["podName"] for one in records} == {session["status"]["podName"]}
    assert {one["status"]["egressProof"]["verdict"] for one in records} == {"Closed"}
    assert "Seccomp" in records[1]["status"]["layers"]


async def test_no_file_gets_into_another_session(make):
    one, other = make(), make()
    secret = "open('/workspace/secret', 'w').write('x'); open('/tmp/secret', 'w').write('x'); print('written')"
    look = "import os; print(sorted(os.listdir('/workspace') + os.listdir('/tmp')))"
    results = await asyncio.gather(run(one, secret), run(other, "print('other')"))
    assert [result.exit_code for result in results] == [0, 0]
    assert "secret" in (await run(one, look)).output  # the control: where it is, it is seen
    assert "secret" not in (await run(other, look)).output


async def test_calls_at_the_same_time_run_one_after_the_other(make):
    executor = make()
    code = "import time, os\nopen('busy', 'x')\ntime.sleep(.2)\nos.remove('busy')\nprint({})"
    results = await asyncio.gather(*(run(executor, code.format(number)) for number in range(5)))
    assert [(one.exit_code, one.output) for one in results] == [(0, f"{number}\n") for number in range(5)]


async def test_restart_gives_a_fresh_workspace(make, admin):
    agent = a_name("restart")
    executor = make(agent=agent)
    await run(executor, "open('note', 'w')")
    old = the_session(admin, agent)
    await executor.restart()
    assert (await run(executor, "import os; print(os.path.exists('note'))")).output == "False\n"
    await asyncio.to_thread(pod_is_gone, admin, old)


async def test_stop_ends_the_session_and_the_executor_can_be_used_again(make, admin):
    agent = a_name("stop")
    executor = make(agent=agent)
    await executor.stop()  # before anything: nothing to do
    await run(executor, "print(1)")
    old = the_session(admin, agent)
    await executor.stop()
    await executor.stop()
    await asyncio.to_thread(pod_is_gone, admin, old)
    ended = admin.get("codesession", old["metadata"]["name"])["status"]
    assert (ended["phase"], ended["reason"], ended["executions"]) == ("Ended", "EndRequested", 1)
    assert (await run(executor, "print(2)")).output == "2\n"


async def test_idle_session_ends_and_the_next_call_says_so(make, admin):
    agent = a_name("idle")
    executor = make(agent=agent, idle_timeout=2)
    await run(executor, "open('note', 'w')")
    old = the_session(admin, agent)
    await asyncio.to_thread(pod_is_gone, admin, old)
    assert admin.get("codesession", old["metadata"]["name"])["status"]["reason"] == "IdleTimeout"
    result = await run(executor, "import os; print(os.path.exists('note'))")
    note, output = result.output.split("\n", 1)
    assert output == "False\n"
    assert old["metadata"]["name"] in note
    assert "new workspace, without what code had made" in note


async def test_lifetime_ends_what_runs(admin):
    session, name = a_name("short"), a_name("long")
    admin.apply(a_small_session(session, maxLifetimeSeconds=4))
    admin.submit_to(name, "print('so far', flush=True); import time; time.sleep(300)", session)
    status = admin.wait_for_phase(name, "TimedOut")["status"]
    assert "maxLifetimeSeconds" in status["message"]
    assert status["stdout"]["text"] == "so far\n"
    assert admin.get("codesession", session)["status"]["reason"] == "LifetimeExceeded"


async def test_garbage_collection_ends_the_session(agent_kubeconfig, admin):
    agent = a_name("collected")
    executor = KubernetesCodeExecutor(kubeconfig=agent_kubeconfig, agent=agent, limits=SMALL)
    await run(executor, "print(1)")
    session = the_session(admin, agent)
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

executor = KubernetesCodeExecutor(agent=sys.argv[1], idle_timeout=5, limits=Limits(cpu="200m", memory="96Mi"))

async def main():
    result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
    print(result.output, flush=True)
    if sys.argv[2] == "hang":
        await executor.execute_code_blocks([CodeBlock("sleep 15", "sh")], CancellationToken())

asyncio.run(main())
"""


def start_process(agent_kubeconfig, agent, what):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, agent, what],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": agent_kubeconfig},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "1\n"
    return process


def test_end_of_the_process_ends_the_session(agent_kubeconfig, admin):
    agent = a_name("exit")
    process = start_process(agent_kubeconfig, agent, "exit")
    with process:
        assert process.wait(30) == 0
    pod_is_gone(admin, the_session(admin, agent))
    assert the_session(admin, agent)["status"]["reason"] == "EndRequested"


def test_killed_process_leaves_nothing_for_ever(agent_kubeconfig, admin):
    agent = a_name("killed")
    with start_process(agent_kubeconfig, agent, "hang") as process:
        admin.running_execution(agent)
        process.send_signal(signal.SIGKILL)
    session = the_session(admin, agent)
    pod_is_gone(admin, session)
    assert the_session(admin, agent)["status"]["reason"] == "IdleTimeout"
    found = json.loads(admin.kubectl("-n", SANDBOX, "get", "codeexecutions", "-o", "json"))["items"]
    assert {one["status"]["phase"] for one in found if one["spec"]["source"]["agent"] == agent} == {"Succeeded"}


async def test_lost_pod_is_told_and_the_next_call_works(make, admin):
    agent = a_name("lost")
    executor = make(agent=agent)
    await run(executor, "open('note', 'w')")
    session = the_session(admin, agent)
    admin.kubectl("-n", SANDBOX, "delete", "pod", session["status"]["podName"], "--wait=false")
    name = session["metadata"]["name"]
    await asyncio.to_thread(
        wait_for, "the loss to be seen", lambda: admin.get("codesession", name)["status"]["phase"] == "Lost"
    )
    result = await run(executor, "print(2)")
    assert result.output.endswith("\n2\n")
    assert f"session {name} ended" in result.output


async def test_operator_restart_keeps_the_files_and_stops_what_ran(make, admin):
    agent = a_name("survivor")
    executor = make(agent=agent, timeout=300)
    await run(executor, "open('note', 'w').write('kept')")
    name = the_session(admin, agent)["metadata"]["name"]
    running = a_name("running")
    code = "import time\nwhile True: open('alive', 'w').write(str(time.time())); time.sleep(.05)"
    admin.submit_to(running, code, name)
    admin.wait_for_phase(running, "Running")
    admin.kubectl("-n", SYSTEM, "rollout", "restart", "deployment/codeexec-operator")
    admin.kubectl("-n", SYSTEM, "rollout", "status", "deployment/codeexec-operator", "--timeout=90s")
    lost = admin.wait_for_phase(running, "Lost")["status"]
    assert lost["reason"] == "OperatorRestarted"
    result = await run(
        executor,
        "import time; a = open('alive').read(); time.sleep(.5); print(open('note').read(), a == open('alive').read())",
    )
    assert result.output == "kept True\n"


def a_small_session(name, **spec):
    return a_session(name, **{"limits": {"cpu": "200m", "memory": "96Mi"}, **spec})


@pytest.mark.parametrize(
    ("session", "reason", "words"),
    [
        ({"limits": {"cpu": "4"}}, "PolicyViolation", "spec.limits.cpu: 4 is not allowed"),
        ({"idleTimeoutSeconds": 100_000}, "PolicyViolation", "spec.idleTimeoutSeconds"),
        ({"maxLifetimeSeconds": 600_000}, "PolicyViolation", "spec.maxLifetimeSeconds"),
        ({"image": "localhost:5001/other@sha256:" + "0" * 64}, "PolicyViolation", "spec.image"),
    ],
)
def test_policy_holds_for_sessions(admin, session, reason, words):
    name = a_name("denied")
    admin.apply(a_small_session(name, **session))
    status = wait_for("the verdict", lambda: admin.get("codesession", name).get("status"))
    assert (status["phase"], status["reason"]) == ("Denied", reason)
    assert words in status["message"]
    execution = a_name("in-denied")
    admin.submit_to(execution, "print(1)", name)
    assert admin.wait_for_phase(execution, "Denied")["status"]["reason"] == "SessionEnded"


def test_execution_without_its_session_is_denied(admin):
    name = a_name("orphan")
    admin.submit_to(name, "print(1)", "no-such-session")
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "SessionNotFound"
    assert "no-such-session" in status["message"]


def test_execution_can_t_ask_for_more_than_its_session_has(admin):
    session, name = a_name("small"), a_name("large")
    admin.apply(a_small_session(session))
    admin.submit_to(name, "print(1)", session, limits={"cpu": "200m", "memory": "512Mi"})
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert (status["reason"], "spec.limits.memory: 512Mi" in status["message"]) == ("SessionMismatch", True)
    refused = admin.try_kubectl(
        "create",
        "-f",
        "-",
        stdin=json.dumps(an_execution(a_name("image"), [], sessionRef={"name": session}, runtimeClassName="gvisor")),
    )
    assert "with a sessionRef, image and runtimeClassName are those of the session" in refused.stderr
    _end(admin, session)


def test_deleting_the_session_deletes_its_pod_and_stops_what_runs(admin):
    session, name = a_name("deleted"), a_name("inside")
    admin.apply(a_small_session(session))
    admin.submit_to(name, "import time; time.sleep(300)", session)
    pod = admin.wait_for_phase(name, "Running")["status"]["podName"]
    admin.kubectl("-n", SANDBOX, "delete", "codesession", session)
    wait_for("the pod to go with its session", lambda: not admin.exists("pod", pod, SANDBOX))
    assert admin.wait_for_phase(name, "Lost", "Cancelled")


def _end(admin, session):
    admin.kubectl("-n", SANDBOX, "patch", "codesession", session, "--type=merge", "-p", '{"spec": {"ended": true}}')


def test_all_executions_of_a_session_share_one_pod(admin):
    session = a_name("one-pod")
    admin.apply(a_small_session(session))
    names = [a_name("one-pod") for _ in range(4)]
    for name in names:
        admin.submit_to(name, "print(1)", session)
    [pod] = {admin.wait_for_phase(name, "Succeeded")["status"]["podName"] for name in names}
    _end(admin, session)
    wait_for("the pod to be gone", lambda: not admin.exists("pod", pod, SANDBOX))
