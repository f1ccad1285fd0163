"""Behind the runner's own limit of time stand the operator and the kubelet; the runner's is in conformance."""

import asyncio

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name, image

from codeexec_api import CodeExecution, Limits
from codeexec_operator.manifests.pod import build_pod


@pytest.mark.suspect
async def test_operator_ends_what_the_runner_does_not(make_executor, admin, node_shell):
    """The runner is stopped from outside, as if it had been corrupted; the operator deletes the pod in time."""
    agent = a_name("stalled")
    executor = make_executor(timeout=30, agent=agent, limits=Limits(cpu="100m", memory="96Mi"))
    block = CodeBlock("echo partial; sleep 300", "sh")
    running = asyncio.create_task(executor.execute_code_blocks([block], CancellationToken()))
    name = await asyncio.to_thread(admin.running_execution, agent)
    await asyncio.to_thread(admin.wait_for_output, name, "partial")
    uid = admin.pod(SANDBOX, admin.execution(name)["status"]["podName"])["metadata"]["uid"]
    stopped = node_shell(f"""
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{{pid}}/cmdline").read()
        group = open(f"/proc/{{pid}}/cgroup").read().replace("_", "-")
    except OSError:
        continue
    if "/opt/codeexec/runner" in command and {uid!r} in group:
        os.kill(int(pid), signal.SIGSTOP)
        print("stopped")
""")
    assert stopped == "stopped\n", "control: the runner of this pod"
    result = await running
    assert (result.exit_code, result.reason) == (124, "DeadlineExceeded")
    assert result.output.startswith("partial")
    status = admin.execution(name)["status"]
    assert "the pod was deleted" in status["message"]
    admin.wait_until_gone("pod", status["podName"])


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
    admin.create(pod)
    try:
        ended = ("the kubelet to end the pod", "pod", pod["metadata"]["name"], _failed)
        status = admin.wait_until(*ended)["status"]
        assert status["reason"] == "DeadlineExceeded"
    finally:
        admin.delete("pod", pod["metadata"]["name"])


def _failed(pod):
    return pod["status"]["phase"] == "Failed"
