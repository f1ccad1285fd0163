"""Times one call of `print(1)` through our executor beside its peers, all in one run, interleaved.

Run by `make bench`. Prints a table with ratios and writes `.codeexec/bench.json`. Where the cluster has gVisor, our
executor is timed with it, too. The peers: a bare pod with the same hardening and resources from its creation to its
end; `docker run --rm` with the same hardening; AutoGen's Docker executor, whose container is already running, per
call. Peers that need Docker are left out where none answers, and the table says so.
"""

import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from kubernetes.aio import client, config, watch

from codeexec_api import CodeExecution
from codeexec_operator.manifests import hardening
from codeexec_operator.manifests.pod import build_pod
from executor_client import KubernetesCodeExecutor

sys.path.insert(0, str(Path(__file__).parent.parent))
from cluster_tools import ROOT, image

RUNS = int(os.environ.get("RUNS", "15"))
WARM_UP = 2
CODE = "print(1)"
OURS = "codeexec: executor, cold path"
GVISOR = "gvisor"
NAMESPACE = "codeexec-bench"  # a sandbox namespace takes no pod without our runner
Contender = Callable[[], Awaitable[None]]


def codeexec(executor: KubernetesCodeExecutor) -> Contender:
    async def call() -> None:
        result = await executor.execute_code_blocks([CodeBlock(CODE, "python")], CancellationToken())
        assert (result.exit_code, result.output) == (0, "1\n"), result

    return call


def bare_pod(core: client.CoreV1Api) -> Contender:
    """The same pod, with the code on its command line instead of our runner; no record, no payload, no operator."""
    request = {
        "metadata": {"name": "bench", "namespace": NAMESPACE, "uid": str(uuid.uuid4())},
        "spec": {
            "source": {"agent": "bench"},
            "payloadRef": {"name": "bench"},
            "blocks": [{"language": "python", "sha256": "0" * 64, "sizeBytes": 0}],
        },
    }
    execution = CodeExecution.parse(request)
    template = build_pod(execution, image=image(), deadline_seconds=120, user_namespace=True)

    async def call() -> None:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        pod = json.loads(json.dumps(template)) | {"metadata": {"name": name}}
        [container] = pod["spec"]["containers"]
        container |= {"command": ["python3", "-c", CODE], "stdin": False}
        created = await core.create_namespaced_pod(NAMESPACE, pod)
        async with watch.Watch().stream(
            core.list_namespaced_pod,
            NAMESPACE,
            field_selector=f"metadata.name={name}",
            resource_version=created.metadata.resource_version,
            timeout_seconds=60,
        ) as events:
            async for event in events:
                if event["raw_object"]["status"]["phase"] in ("Succeeded", "Failed"):
                    break
        assert (await core.read_namespaced_pod_log(name, NAMESPACE)).strip() == "1"
        await core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)

    return call


def docker_run() -> Contender:
    """One container with the same hardening, by the command line."""
    command = [
        *("docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--user", f"{hardening.SANDBOX_UID}:{hardening.SANDBOX_GID}"),
        *("--memory", "256m", "--cpus", "0.5", "--pids-limit", "128", "--tmpfs", "/workspace", "--tmpfs", "/tmp"),
        *("--entrypoint", "python3", image(), "-c", CODE),
    ]

    async def call() -> None:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        assert (process.returncode, out) == (0, b"1\n")

    return call


def autogen_docker(executor: DockerCommandLineCodeExecutor) -> Contender:
    async def call() -> None:
        result = await executor.execute_code_blocks([CodeBlock(CODE, "python")], CancellationToken())
        assert (result.exit_code, result.output) == (0, "1\n"), result

    return call


async def timed(call: Contender) -> float:
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


async def measure(contenders: dict[str, Contender]) -> dict[str, list[float]]:
    """Each contender in turn, so that all see the same drift of the machine's speed."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_UP + RUNS):
        for name, call in contenders.items():
            seconds = await timed(call)
            if number >= WARM_UP:
                times[name].append(seconds)
        print(f"  round {number + 1} of {WARM_UP + RUNS}", file=sys.stderr)
    return times


def report(times: dict[str, list[float]]) -> dict[str, object]:
    ours = statistics.median(times[OURS])
    rows = []
    for name, values in times.items():
        p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
        median = statistics.median(values)
        rows.append({"what": name, "p50_s": median, "p95_s": p95, "ours_to_this": ours / median, "all_s": values})
    print(f"\n{'what':<44}{'p50':>10}{'p95':>10}{'ours / this':>14}")
    for row in rows:
        print(
            f"{row['what']:<44}{row['p50_s'] * 1000:>7.0f} ms{row['p95_s'] * 1000:>7.0f} ms{row['ours_to_this']:>14.2f}"
        )
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    print(f"\n{RUNS} runs each, interleaved, after {WARM_UP} not counted; {machine}")
    return {"code": CODE, "runs": RUNS, "machine": machine, "results": rows}


def docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "version"], capture_output=True).returncode == 0


@asynccontextmanager
async def a_namespace(core: client.CoreV1Api) -> AsyncIterator[None]:
    await core.create_namespace({"metadata": {"name": NAMESPACE}})
    try:
        yield
    finally:
        await core.delete_namespace(NAMESPACE)


async def main() -> None:
    await config.load_kube_config(os.environ["KUBECONFIG"])
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(client.ApiClient())
        core = client.CoreV1Api(api)
        await stack.enter_async_context(a_namespace(core))
        executor = await stack.enter_async_context(KubernetesCodeExecutor(agent="bench"))
        contenders = {OURS: codeexec(executor)}
        if any(one.metadata.name == GVISOR for one in (await client.NodeV1Api(api).list_runtime_class()).items):
            in_gvisor = KubernetesCodeExecutor(agent="bench", runtime_class_name=GVISOR)
            contenders["the same in gVisor"] = codeexec(await stack.enter_async_context(in_gvisor))
        contenders["bare pod, same hardening, create to done"] = bare_pod(core)
        if not docker_answers():
            print("no Docker daemon answers: its two peers are left out", file=sys.stderr)
            times = await measure(contenders)
        else:
            contenders["docker run --rm, same hardening"] = docker_run()
            with tempfile.TemporaryDirectory() as folder:
                Path(folder).chmod(0o755)  # the image's user is not root, as whom AutoGen writes there
                async with DockerCommandLineCodeExecutor(image=image(), timeout=60, work_dir=folder) as docker:
                    contenders["AutoGen's Docker executor, per call"] = autogen_docker(docker)
                    times = await measure(contenders)
    path = ROOT / ".codeexec" / "bench.json"
    path.write_text(json.dumps(report(times), indent=2) + "\n")
    print(f"all figures: {path.relative_to(ROOT)}")


asyncio.run(main())
