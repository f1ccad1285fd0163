"""Times our executor beside its peers, all in one run, interleaved.

Run by `make bench`. Prints tables with ratios and writes `.codeexec/bench.json`. What is timed: one call of `print(1)`,
in a session and with a pod of its own (where the cluster has gVisor, also there); a call with 10 MB of output; and how
long a printed line is under way to the caller. The peers: a bare pod with the same hardening and resources from its
creation to its end; `docker run --rm` with the same hardening; AutoGen's Docker executor, whose container is already
running, per call; AutoGen's Local executor. Peers that need Docker are left out where none answers, and that is said.
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
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from kubernetes.aio import client, config, watch

from codeexec_api import CodeExecution
from codeexec_operator.manifests import hardening
from codeexec_operator.manifests.pod import build_pod
from executor_client import KubernetesCodeExecutor, Limits

sys.path.insert(0, str(Path(__file__).parent.parent))
from cluster_tools import ROOT, image

RUNS = int(os.environ.get("RUNS", "15"))
OUTPUT_RUNS = max(3, RUNS // 3)
WARM_UP = 2
CODE = "print(1)"
SESSION = "codeexec: later call of a session"
COLD = "codeexec: a pod for each call"
LIVE = "codeexec: on_output"
DOCKER = "AutoGen's Docker executor, per call"
LOCAL = "AutoGen's Local executor, per call"
GVISOR = "gvisor"
NAMESPACE = "codeexec-bench"  # a sandbox namespace takes no pod without our runner
Contender = Callable[[], Awaitable[None]]
OUTPUT = "import sys\nline = 'x' * 99\nfor _ in range(50_000): print(line); print(line, file=sys.stderr)"
OUTPUT_BYTES = 10_000_000
LINES = 20
DATED = f"import time\nfor _ in range({LINES}): print(time.time(), flush=True); time.sleep(0.1)"
"""The sandbox's clock is the machine's."""


def calls(executor: CodeExecutor) -> Contender:
    async def call() -> None:
        result = await executor.execute_code_blocks([CodeBlock(CODE, "python")], CancellationToken())
        assert (result.exit_code, result.output) == (0, "1\n"), result

    return call


def prints_much(executor: CodeExecutor) -> Contender:
    async def call() -> None:
        result = await executor.execute_code_blocks([CodeBlock(OUTPUT, "python")], CancellationToken())
        assert (result.exit_code, len(result.output)) == (0, OUTPUT_BYTES)

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


async def timed(call: Contender) -> float:
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


async def measure(contenders: dict[str, Contender], runs: int) -> dict[str, list[float]]:
    """Each contender in turn, so that all see the same drift of the machine's speed."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_UP + runs):
        for name, call in contenders.items():
            seconds = await timed(call)
            if number >= WARM_UP:
                times[name].append(seconds)
        print(f"  round {number + 1} of {WARM_UP + runs}", file=sys.stderr)
    return times


async def delays_here(heard: list[float], executor: KubernetesCodeExecutor) -> list[float]:
    """Seconds from the printing of each line to the caller's having it, by the executor's callback."""
    heard.clear()
    result = await executor.execute_code_blocks([CodeBlock(DATED, "python")], CancellationToken())
    printed = [float(line) for line in result.output.split()]
    return [at - when for at, when in zip(heard, printed, strict=True)]


async def delays_of_docker() -> list[float]:
    """The same of `docker run`, read through its pipe."""
    process = await asyncio.create_subprocess_exec(
        *("docker", "run", "--rm", "--entrypoint", "python3", image(), "-c", DATED), stdout=subprocess.PIPE
    )
    assert process.stdout
    delays = [time.time() - float(line) async for line in process.stdout]
    await process.wait()
    return delays


def report(title: str, times: dict[str, list[float]], ratios: dict[str, str]) -> dict[str, object]:
    """Print a table and return it. `ratios`: the heading of a column, and whose time is divided by each row's in it."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    print(f"\n{title:<52}{'p50':>10}{'p95':>10}" + "".join(f"{heading:>18}" for heading in ratios))
    for name, values in times.items():
        p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
        mine = {heading: medians[one] / medians[name] for heading, one in ratios.items()}
        rows.append({"what": name, "p50_s": medians[name], "p95_s": p95, "ratios": mine, "all_s": values})
        figures = f"{medians[name] * 1000:>7.0f} ms{p95 * 1000:>7.0f} ms"
        print(f"{name:<52}{figures}" + "".join(f"{ratio:>18.2f}" for ratio in mine.values()))
    return {"title": title, "results": rows}


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
    docker_is_there = docker_answers()
    if not docker_is_there:
        print("no Docker daemon answers: its peers are left out", file=sys.stderr)
    heard: list[float] = []
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(client.ApiClient())
        core = client.CoreV1Api(api)
        await stack.enter_async_context(a_namespace(core))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # the image's user is not root, as whom AutoGen writes there

        async def ours(**options: Any) -> KubernetesCodeExecutor:
            return await stack.enter_async_context(KubernetesCodeExecutor(agent="bench", **options))

        session = await ours(limits=Limits(cpu="400m"))
        cold = {COLD: await ours(session="per-call")}
        if any(one.metadata.name == GVISOR for one in (await client.NodeV1Api(api).list_runtime_class()).items):
            cold["the same in gVisor"] = await ours(session="per-call", runtime_class_name=GVISOR)
        local: dict[str, CodeExecutor] = {LOCAL: LocalCommandLineCodeExecutor(timeout=60, work_dir=folder)}
        docker: dict[str, CodeExecutor] = {}
        if docker_is_there:
            docker[DOCKER] = await stack.enter_async_context(
                DockerCommandLineCodeExecutor(image=image(), timeout=60, work_dir=folder)
            )
        executors = {SESSION: session, **cold, **docker, **local}
        contenders = {name: calls(executor) for name, executor in executors.items()}
        contenders |= {"bare pod, same hardening, create to done": bare_pod(core)}
        contenders |= {"docker run --rm, same hardening": docker_run()} if docker_is_there else {}
        tables = [
            report(
                f"one call of {CODE}", await measure(contenders, RUNS), {"session / this": SESSION, "pod / this": COLD}
            )
        ]

        printers = {name: prints_much(executor) for name, executor in ({SESSION: session} | docker | local).items()}
        tables.append(
            report("10 MB of output, on two streams", await measure(printers, OUTPUT_RUNS), {"ours / this": SESSION})
        )

        listening = await ours(
            limits=Limits(cpu="400m"), on_output=lambda chunk: heard.extend([time.time()] * chunk.text.count("\n"))
        )
        await session.stop()  # the node has room for two
        delays = {LIVE: await delays_here(heard, listening)}
        if docker_is_there:
            delays["docker run, by its pipe"] = await delays_of_docker()
        tables.append(report("a printed line on its way to the caller", delays, {"ours / this": LIVE}))
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    print(
        f"\n{RUNS} runs of a call and {OUTPUT_RUNS} of much output, interleaved, after {WARM_UP} not counted; {machine}"
    )
    path = ROOT / ".codeexec" / "bench.json"
    path.write_text(json.dumps({"machine": machine, "tables": tables}, indent=2) + "\n")
    print(f"all figures: {path.relative_to(ROOT)}")


asyncio.run(main())
