"""Behind the runner's own limit of time stand the operator and the kubelet; the runner's is in tests/conformance."""

import asyncio
import json
import time

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name, image, wait_for

from codeexec_api import CodeExecution
from codeexec_operator.manifests.pod import build_pod

pytestmark = pytest.mark.e2e


async def test_limit_is_for_each_block(make_executor):
    executor = make_executor(timeout=3)
    block = CodeBlock("sleep 2; echo done", "sh")
    result = await executor.execute_code_blocks([block, block], CancellationToken())
    assert (result.exit_code, result.output) == (0, "done\ndone\n")


async def test_operator_ends_what_the_runner_does_not(make_executor, admin, node_shell):
    """The runner is stopped from outside, as if it had been corrupted; the operator deletes the pod in time."""
    agent = a_name("stalled")
    executor = make_executor(timeout=6, agent=agent)
    block = CodeBlock("echo partial; sleep 300", "sh")
    running = asyncio.create_task(executor.execute_code_blocks([block], CancellationToken()))
    name = await asyncio.to_thread(admin.running_execution, agent)
    stopped = node_shell("""
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline").read()
    except OSError:
        continue
    if "/opt/codeexec/runner" in command:
        os.kill(int(pid), signal.SIGSTOP)
        print("stopped")
""")
    assert "stopped" in stopped
    started = time.monotonic()
    result = await running
    assert time.monotonic() - started < 20
    assert (result.exit_code, result.reason) == (124, "DeadlineExceeded")
    assert result.output.startswith("partial")
    status = admin.execution(name)["status"]
    assert "the pod was deleted" in status["message"]
    wait_for("the pod to be gone", lambda: not admin.exists("pod", status["podName"], SANDBOX))


async def test_kubelet_ends_the_pod_when_nobody_else_does(admin):
    """A pod as the operator builds it, which nobody attaches to: its activeDeadlineSeconds is what is left."""
    name = a_name("deadline")
    execution = CodeExecution.parse(
        {
            "metadata": {"name": name, "namespace": SANDBOX, "uid": "0badcafe-0000"},
            "spec": {
                "source": {"agent": "e2e"},
                "payloadRef": {"name": name},
                "blocks": [{"language": "sh", "sha256": "0" * 64, "sizeBytes": 0}],
            },
        }
    )
    pod = build_pod(execution, image=image(), deadline_seconds=3)
    del pod["metadata"]["ownerReferences"]  # there is no such CodeExecution: the garbage collector would be faster
    del pod["metadata"]["labels"]
    admin.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    try:
        status = wait_for("the kubelet to end the pod", lambda: _failed(admin, pod["metadata"]["name"]), 30)
        assert status["reason"] == "DeadlineExceeded"
    finally:
        admin.kubectl("-n", SANDBOX, "delete", "pod", pod["metadata"]["name"], "--now")


def _failed(admin, pod):
    status = admin.pod(SANDBOX, pod)["status"]
    return status if status["phase"] == "Failed" else None
