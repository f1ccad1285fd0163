"""The wall-clock and memory limits hold, whatever the code does: by the runner, the operator and the kubelet."""

import asyncio
import time

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name, image, wait_for

from codeexec_api import CodeExecution
from codeexec_operator.manifests.pod import build_pod

pytestmark = pytest.mark.e2e

STUBBORN = {
    "sleeps": ("sh", "printf partial; sleep 300"),
    "ignores signals": (
        "python",
        "import signal, time\n"
        "for n in range(1, 32):\n"
        "    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\n"
        "print('partial', end=''); time.sleep(300)",
    ),
    "forks into sessions of its own": (
        "python",
        "import os, time\n"
        "print('partial', end='', flush=True)\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(300)\n"
        "time.sleep(300)",
    ),
    "closes its streams": ("sh", "printf partial; exec >&- 2>&-; sleep 300"),
    "floods its output": ("sh", "printf partial; while :; do echo flood; done"),
}


@pytest.mark.parametrize(("language", "code"), STUBBORN.values(), ids=STUBBORN)
async def test_runner_ends_what_runs_too_long(make_executor, admin, language, code):
    executor = make_executor(timeout=2)
    result = await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())
    assert result.exit_code == 124
    assert result.output.startswith("partial")
    assert "Timeout" in result.output
    status = admin.execution(result.execution)["status"]
    assert (status["phase"], status["reason"]) == ("TimedOut", "DeadlineExceeded")
    assert 2000 <= status["blocks"][0]["durationMs"] < 4000


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
    if "/opt/codeexec/runner.py" in command:
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
    admin.apply(pod)
    try:
        status = wait_for("the kubelet to end the pod", lambda: _failed(admin, pod["metadata"]["name"]), 30)
        assert status["reason"] == "DeadlineExceeded"
    finally:
        admin.kubectl("-n", SANDBOX, "delete", "pod", pod["metadata"]["name"], "--now")


async def test_memory_limit_is_named(executor, admin):
    code = "print('before'); x = b'x' * (2 << 30); print(len(x))"
    result = await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    assert result.exit_code == 137
    assert result.reason == "OutOfMemory"
    assert result.output.startswith("before\n")
    assert "spec.limits.memory" in result.output
    assert admin.phase(result.execution) == "OutOfMemory"


async def test_files_count_towards_a_limit_that_holds_at_once(executor):
    code = "dd if=/dev/zero of=/workspace/big bs=1M count=1000 2>&1; ls -s --block-size=1M /workspace/big"
    result = await executor.execute_code_blocks([CodeBlock(code, "sh")], CancellationToken())
    assert "No space left on device" in result.output
    assert result.output.split()[-2] == "128"


def _failed(admin, pod):
    status = admin.pod(SANDBOX, pod)["status"]
    return status if status["phase"] == "Failed" else None
