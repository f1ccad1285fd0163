"""From request to record: what is there when, what is cleaned up, what is kept."""

import asyncio
import json

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, SYSTEM, TERMINAL, a_name, wait_for

from codeexec_api import Limits

pytestmark = pytest.mark.e2e


def test_payload_is_gone_while_the_code_runs(admin):
    name = a_name("payload")
    admin.submit(name, "import time; time.sleep(300)", ttlSecondsAfterFinished=0)
    admin.wait_for_phase(name, "Running")
    assert not admin.exists("secret", name, SANDBOX)
    _cancel(admin, name)


def test_pod_goes_by_its_time_and_the_record_stays(admin):
    quick, slow = a_name("quick"), a_name("slow")
    admin.submit(quick, "print(1)", ttlSecondsAfterFinished=0)
    admin.submit(slow, "print(1)", ttlSecondsAfterFinished=300)
    pods = [admin.wait_for_phase(name, "Succeeded")["status"]["podName"] for name in (quick, slow)]
    wait_for("the pod to be deleted", lambda: not admin.exists("pod", pods[0], SANDBOX))
    assert admin.exists("pod", pods[1], SANDBOX)
    assert admin.phase(quick) == admin.phase(slow) == "Succeeded"
    admin.kubectl("-n", SANDBOX, "delete", "codeexecution", slow)
    wait_for("the pod to go with its record", lambda: not admin.exists("pod", pods[1], SANDBOX))


def test_record_can_be_deleted_while_the_code_runs(admin):
    name = a_name("deleted")
    admin.submit(name, "import time; time.sleep(300)")
    pod = admin.wait_for_phase(name, "Running")["status"]["podName"]
    admin.kubectl("-n", SANDBOX, "delete", "codeexecution", name)
    wait_for("the pod to go with its record", lambda: not admin.exists("pod", pod, SANDBOX))


def test_cancelled_before_it_starts(admin):
    name = a_name("early")
    admin.submit(name, "print(1)", cancelled=True)
    status = admin.wait_for_phase(name, "Cancelled")["status"]
    assert "podName" not in status
    assert not admin.exists("secret", name, SANDBOX)


def test_cancelled_while_it_starts_leaves_no_pod(admin):
    """Whatever step the operator is at: the pod that it asked for goes, and no other."""
    bystander = a_name("bystander")
    admin.submit(bystander, "import time; time.sleep(15)", timeoutSeconds=60)
    admin.wait_for_phase(bystander, "Running")
    names = [a_name("race") for _ in range(8)]
    for name in names:
        admin.submit(name, "import time; time.sleep(300)", limits={"cpu": "50m", "memory": "32Mi"})
        admin.kubectl("-n", SANDBOX, "patch", "cex", name, "--type=merge", "-p", '{"spec": {"cancelled": true}}')
    for name in names:
        admin.wait_for_phase(name, "Cancelled")
    for name in names:
        wait_for(f"the pod of {name} to be gone", lambda name=name: not _pods_of(admin, name))
    assert admin.wait_for_phase(bystander, *TERMINAL)["status"]["phase"] == "Succeeded"


async def test_caller_that_goes_away_while_it_submits(make_executor, admin):
    agent = a_name("hasty")
    executor = make_executor(timeout=60, agent=agent)
    await executor.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await executor.execute_code_blocks([CodeBlock("sleep 300", "sh")], CancellationToken())
    found = json.loads(admin.kubectl("-n", SANDBOX, "get", "codeexecutions", "-o", "json"))["items"]
    for one in (one for one in found if one["spec"]["source"]["agent"] == agent):
        await asyncio.to_thread(admin.wait_for_phase, one["metadata"]["name"], "Cancelled")


async def test_cancelled_by_autogen_s_token(make_executor, admin):
    agent = a_name("cancel")
    executor, token = make_executor(timeout=60, agent=agent), CancellationToken()
    blocks = [CodeBlock("print('first')", "python"), CodeBlock("echo partial; sleep 300", "sh")]
    running = asyncio.create_task(executor.execute_code_blocks(blocks, token))
    name = await asyncio.to_thread(admin.running_execution, agent)
    pod = admin.execution(name)["status"]["podName"]
    await asyncio.to_thread(
        wait_for, "output of the second block", lambda: "partial" in admin.kubectl("-n", SANDBOX, "logs", pod)
    )
    token.cancel()
    result = await asyncio.wait_for(running, 10)
    assert (result.exit_code, result.output) == (1, "first\npartial\nCode execution was cancelled.")
    status = admin.execution(name)["status"]
    assert (status["phase"], status["reason"]) == ("Cancelled", "CancelRequested")
    assert status["message"] == "cancelled; the code was killed"


async def test_cancelled_task_stops_the_code(make_executor, admin):
    agent = a_name("task")
    executor = make_executor(timeout=60, agent=agent)
    running = asyncio.create_task(executor.execute_code_blocks([CodeBlock("sleep 300", "sh")], CancellationToken()))
    name = await asyncio.to_thread(admin.running_execution, agent)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(admin.wait_for_phase, name, "Cancelled")


async def test_concurrent_calls_do_not_mix(make_executor):
    executor = make_executor(limits=Limits(cpu="100m", memory="64Mi"))
    calls = [
        executor.execute_code_blocks([CodeBlock(f"print({number})", "python")], CancellationToken())
        for number in range(6)
    ]
    results = await asyncio.gather(*calls)
    assert [result.output for result in results] == [f"{number}\n" for number in range(6)]
    assert len({result.execution for result in results}) == 6


def test_operator_restart_loses_no_execution_and_runs_none_twice(admin):
    """Running code becomes Lost and its pod goes; what had not started yet is taken up; finished stays finished."""
    done, running = a_name("done"), a_name("running")
    admin.submit(done, "print(1)", ttlSecondsAfterFinished=300)
    admin.wait_for_phase(done, "Succeeded")
    admin.submit(running, "import time; time.sleep(300)")
    pod = admin.wait_for_phase(running, "Running")["status"]["podName"]
    admin.kubectl("-n", SYSTEM, "scale", "deployment/codeexec-operator", "--replicas=0")
    wait_for("the operator to be gone", lambda: not _operators(admin))
    waiting = a_name("waiting")
    admin.submit(waiting, "print(2)")
    admin.kubectl("-n", SYSTEM, "scale", "deployment/codeexec-operator", "--replicas=1")
    lost = admin.wait_for_phase(running, "Lost")["status"]
    assert lost["reason"] == "OperatorRestarted"
    wait_for("the pod to be deleted", lambda: not admin.exists("pod", pod, SANDBOX))
    # Nobody could come for it within the grace of the payload, but the payload was there.
    assert admin.wait_for_phase(waiting, "Succeeded", "Denied")["status"]["phase"] == "Succeeded"
    assert admin.execution(done)["status"]["phase"] == "Succeeded"
    admin.kubectl("-n", SYSTEM, "rollout", "status", "deployment/codeexec-operator", "--timeout=60s")


def _pods_of(admin, name):
    return admin.kubectl("-n", SANDBOX, "get", "pods", "-l", f"codeexec.dev/execution={name}", "-o", "name")


def _operators(admin):
    pods = json.loads(admin.kubectl("-n", SYSTEM, "get", "pods", "-o", "json"))["items"]
    return [one for one in pods if one["metadata"]["name"].startswith("codeexec-operator")]


def _cancel(admin, name):
    patch = json.dumps({"spec": {"cancelled": True}})
    admin.kubectl("-n", SANDBOX, "patch", "codeexecution", name, "--type=merge", "-p", patch)
    admin.wait_for_phase(name, "Cancelled")
