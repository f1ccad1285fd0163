"""Times our executor beside its peers, all in one run, interleaved.

Run by `make bench`. Prints tables with ratios and writes `.codeexec/bench.json`, from which `page.py` makes the page.
What is timed: one call of `print(1)`, in a session, with a pod from a pool and with one of its own (where the cluster
has gVisor, also there); the phases of each; as many calls at once as the pool has pods, and twice as many; calls
without end; a call with 10 MB of output; and how long a printed line is under way to the caller. The peers: a hardened
pod that already runs, into which a Python is started by its attached stdin, and by `exec`; a bare pod with the same
hardening and resources from its creation to its end; `docker run --rm` with the same hardening; AutoGen's Docker
executor, whose container is already running, per call; AutoGen's Local executor. Peers that need Docker are left out
where none answers, and that is said.
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
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autogen_core.code_executor import CodeExecutor
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from kubernetes.aio import client, config

from codeexec_operator.core.starts import STARTS_PER_NODE
from executor_client import KubernetesCodeExecutor, Limits, Request, SourceBlock, prepare

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT, image
from contenders import CODE, bare_attach_and_exec, bare_pod, calls, closed_network, concurrent_calls, docker_run
from load import Burst, Sustained, bursts, sustained
from measuring import WARM_UP, measure
from output import delays_here, delays_of_docker, prints_much
from phases import DatedClient, Way, phases
from stage import Pool, a_namespace, pods_used_again, without_the_default_pool
from tables import Table, table

RUNS = int(os.environ.get("RUNS", "15"))
OUTPUT_RUNS = max(3, RUNS // 3)
BURST = int(os.environ.get("BURST", "4"))
"""Pods of the pool that calls are sent to at once."""
BURST_ROUNDS = max(2, RUNS // 3)
LOAD_SECONDS = float(os.environ.get("LOAD_SECONDS", "30"))
LOAD_ROUNDS = 2
CALLERS = STARTS_PER_NODE
"""As many as the operator starts pods for at the same time, on the one node that this machine is."""

SMALL = Limits(cpu="250m", memory="96Mi")
"""Of sessions and of pods in a pool: the node has room for a pod of the default size besides."""
UNDER_LOAD = Limits(cpu="200m", memory="96Mi")
"""The node has room for five of these; with less CPU a pod spends most of its start being throttled."""

SESSION = "codeexec: later call of a session"
POOL = "codeexec: a pod from a pool for each call"
REUSED = "codeexec: a pod from a pool, used again (podReuse)"
COLD = "codeexec: a new pod for each call"
LIVE = "codeexec: on_output"
GVISOR = "gvisor"
ATTACH = "bare pod that runs, by its attached stdin"
EXEC = "bare pod that runs, by exec"
BARE = "bare pod, same hardening, create to done"
DOCKER = "AutoGen's Docker executor"
LOCAL = "AutoGen's Local executor"
DOCKER_RUN = "docker run --rm, same hardening"


@dataclass
class Stage:
    """What every measurement uses."""

    api: client.ApiClient
    docker: dict[str, CodeExecutor] = field(default_factory=dict)
    """AutoGen's; empty if no Docker daemon answers."""
    local: dict[str, CodeExecutor] = field(default_factory=dict)


def ours(**options: Any) -> KubernetesCodeExecutor:
    return KubernetesCodeExecutor(agent="bench", **options)


async def has_gvisor(api: client.ApiClient) -> bool:
    classes: list[Any] = (await client.NodeV1Api(api).list_runtime_class()).items
    return any(one.metadata.name == GVISOR for one in classes)


async def one_call(stage: Stage) -> Table:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(Pool(stage.api, 1, SMALL))
        by_attach, by_exec = await stack.enter_async_context(bare_attach_and_exec(stage.api, SMALL))
        here: dict[str, KubernetesCodeExecutor] = {
            SESSION: ours(limits=SMALL),
            POOL: ours(session="per-call", limits=SMALL),
            COLD: ours(session="per-call"),
        }
        if await has_gvisor(stage.api):
            here["codeexec: the same in gVisor"] = ours(session="per-call", runtime_class_name=GVISOR)
        for executor in here.values():
            await stack.enter_async_context(executor)
        contenders = {name: calls(executor) for name, executor in (here | stage.docker | stage.local).items()}
        contenders |= {ATTACH: by_attach, EXEC: by_exec, BARE: bare_pod(client.CoreV1Api(stage.api), Limits())}
        contenders |= {DOCKER_RUN: docker_run(Limits())} if stage.docker else {}
        times = await measure(contenders, RUNS, {POOL: pool.full})
    return table(
        "calls",
        f"one call of {CODE}",
        times,
        {"session / this": SESSION, "pool / this": POOL, "new pod / this": COLD},
    )


async def where_the_time_goes(stage: Stage) -> list[Table]:
    blocks = prepare([SourceBlock("python", CODE)]).blocks
    small, default = Request(agent="bench", limits=SMALL), Request(agent="bench")
    async with Pool(stage.api, 1, SMALL) as pool, DatedClient() as dated:
        session = await dated.open_session(small, wait=True)
        ways = {
            "in a session": Way(lambda: session.execute(blocks)),
            "from a pool": Way(lambda: dated.execute(blocks, small), pool.full),
            "in a new pod": Way(lambda: dated.execute(blocks, default)),
        }
        times = await phases(dated, ways, RUNS)
        await session.end()
    return [table("phases", f"phases, {name}", one) for name, one in times.items()]


async def under_load(stage: Stage) -> list[Table]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(Pool(stage.api, BURST, UNDER_LOAD))
        pooled = concurrent_calls(await stack.enter_async_context(ours(session="per-call", limits=UNDER_LOAD)))
        peers = {name: concurrent_calls(one) for name, one in stage.docker.items()}
        if stage.docker:
            network = await stack.enter_async_context(closed_network())
            peers[DOCKER_RUN] = docker_run(UNDER_LOAD, network)
        waves = {f"codeexec: {count} at once, {BURST} pods ready": Burst(pooled, count) for count in (BURST, 2 * BURST)}
        waves |= {f"{name}, {BURST} at once": Burst(call, BURST) for name, call in peers.items()}
        await bursts(waves, BURST_ROUNDS, pool.full)
        loops = {name: Sustained(call) for name, call in {POOL: pooled, **peers}.items()}
        load = {"callers": CALLERS, "seconds": LOAD_SECONDS, "head_start": BURST, "rounds": LOAD_ROUNDS}
        await sustained(loops, before=pool.full, **load)
        async with pods_used_again(stage.api):
            await sustained(again := {REUSED: Sustained(pooled)}, before=pool.full, **load)
        loops |= again
    walls = {name: {"wall_s": statistics.median(one.walls)} for name, one in waves.items()}
    rates = {name: {"per_second": one.per_second} for name, one in loops.items()}
    return [
        table(
            "burst",
            "each of many calls at once",
            {name: one.seconds for name, one in waves.items()},
            {"first / this": next(iter(waves))},
            walls,
        ),
        table(
            "sustained",
            f"each call of {CALLERS} callers, for {LOAD_SECONDS:.0f} s",
            {name: one.seconds for name, one in loops.items()},
            {"ours / this": POOL},
            rates,
        ),
    ]


async def much_output(stage: Stage) -> Table:
    async with ours(limits=SMALL) as session:
        executors: Mapping[str, CodeExecutor] = {SESSION: session, **stage.docker, **stage.local}
        printers = {name: prints_much(executor) for name, executor in executors.items()}
        times = await measure(printers, OUTPUT_RUNS)
    return table("output", "10 MB of output, on two streams", times, {"ours / this": SESSION})


async def lines(stage: Stage) -> Table:
    heard: list[float] = []
    async with ours(
        limits=SMALL, on_output=lambda chunk: heard.extend([time.time()] * chunk.text.count("\n"))
    ) as listening:
        delays = {LIVE: await delays_here(heard, listening)}
    if stage.docker:
        delays["docker run, by its pipe"] = await delays_of_docker()
    return table("lines", "a printed line on its way to the caller", delays, {"ours / this": LIVE})


@asynccontextmanager
async def a_stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        stage = Stage(await stack.enter_async_context(client.ApiClient()))
        await stack.enter_async_context(a_namespace(client.CoreV1Api(stage.api)))
        await stack.enter_async_context(without_the_default_pool(stage.api))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # the image's user is not root, as whom AutoGen writes there
        stage.local[LOCAL] = LocalCommandLineCodeExecutor(timeout=60, work_dir=folder)
        if docker_version():
            executor = DockerCommandLineCodeExecutor(image=image(), timeout=60, work_dir=folder)
            stage.docker[DOCKER] = await stack.enter_async_context(executor)
        else:
            print("no Docker daemon answers: its peers are left out", file=sys.stderr)
        yield stage


def docker_version() -> str:
    """Of the Docker daemon; empty if none answers."""
    if shutil.which("docker") is None:
        return ""
    done = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


async def machine(api: client.ApiClient) -> str:
    """What all of it ran on."""
    cpu = Path("/proc/cpuinfo")
    models = [line.split(": ")[1] for line in cpu.read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    nodes: list[Any] = (await client.CoreV1Api(api).list_node()).items
    info = nodes[0].status.node_info
    return ", ".join(
        [
            f"{os.cpu_count()} cores" + (f" ({models[0]})" if models else ""),
            f"{memory:.0f} GiB",
            f"{platform.system()} {platform.release()}",
            f"Python {platform.python_version()}",
            f"Kubernetes {info.kubelet_version} with {info.container_runtime_version.replace('://', ' ')}",
            f"Docker {docker_version() or 'none'}",
        ]
    )


async def main() -> None:
    await config.load_kube_config(os.environ["KUBECONFIG"])
    async with a_stage() as stage:
        tables = [await one_call(stage)]
        tables += await where_the_time_goes(stage)
        tables += await under_load(stage)
        tables += [await much_output(stage), await lines(stage)]
        facts = {
            "machine": await machine(stage.api),
            "date": datetime.now(UTC).date().isoformat(),
            "runs": RUNS,
            "burst_rounds": BURST_ROUNDS,
            "output_runs": OUTPUT_RUNS,
            "not_counted": WARM_UP,
        }
    print(*("", *(f"{one.text()}\n" for one in tables)), sep="\n")
    print(f"{RUNS} runs of a call and {OUTPUT_RUNS} of much output, interleaved, after {WARM_UP} not counted")
    print(facts["machine"])
    path = ROOT / ".codeexec" / "bench.json"
    path.write_text(json.dumps({**facts, "tables": [one.dump() for one in tables]}, indent=2) + "\n")
    print(f"all figures: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    asyncio.run(main())
