"""Times our executor beside its peers, all in one run, interleaved.

Run by `make bench`. Prints tables with ratios and writes `.codeexec/bench.json`, from which `page.py` makes the page.
What is timed: one call of `print(1)`, in a session, with a pod from a pool and with one of its own (where the cluster
has gVisor, also there); the phases of each; as many calls at once as the pool has pods, and twice as many; calls
without end; a call with 10 MB of output; how long a printed line is under way to the caller; the first call of an
executor that is constructed and started for it; the first command of a new sandbox (ComputeSDK's method, one after the
other); and what idle sessions take. The peers: a hardened
pod that already runs, into which a Python is started by its attached stdin, and by `exec`; a bare pod with the same
hardening and resources from its creation to its end; `docker run --rm` with the same hardening; AutoGen's Docker
executor, whose container is already running, per call; AutoGen's Local executor. Peers that need Docker are left out
where none answers, and that is said.
"""

import asyncio
import json
import os
import statistics
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
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from kubernetes.aio import client, config

from executor_client import CodeExecutionClient, KubernetesCodeExecutor, Limits, Request, SourceBlock, prepare

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT
from contenders import (
    CODE,
    autogen_in_docker,
    bare_attach_and_exec,
    bare_pod,
    calls,
    closed_network,
    concurrent_calls,
    docker_run,
    executors_of_callers,
)
from density import density, text
from facts import commit, docker_version, machine, versions
from first import first_call, first_command, first_command_of_docker
from history import entry, said, wins_and_losses
from load import Burst, Sustained, bursts, sustained
from measuring import WARM_UP, each_its_own, in_turn, measure, one_after_the_other
from output import delays_here, delays_of_docker, prints_much
from page import kept
from phases import DatedClient, Way, phases
from resets import resets
from stage import Pool, a_namespace, pods_used_again, without_the_default_pool
from tables import Table, table

RUNS = int(os.environ.get("RUNS", "15"))
OUTPUT_RUNS = max(3, RUNS // 3)
BURST = int(os.environ.get("BURST", "4"))
"""Pods of the pool that calls are sent to at once."""
BURST_ROUNDS = max(2, RUNS // 3)
FIRST_RUNS = int(os.environ.get("FIRST_RUNS", str(max(5, RUNS // 2))))
TTI_RUNS = int(os.environ.get("TTI_RUNS", "20"))
"""ComputeSDK makes 100."""
LOAD_SECONDS = float(os.environ.get("LOAD_SECONDS", "30"))
LOAD_ROUNDS = 2
CALLERS = 4
"""The same in each run, so that runs can be compared."""

SMALL = Limits(cpu="250m", memory="96Mi")
"""Limits of sessions and of pods in a pool, apart from those of the default size: no pool serves both."""
DEFAULT = Limits()
"""What users get who choose nothing."""
ONE_CPU = Limits(cpu="1")
"""As much as the chart's policy lets anybody have."""
NO_POOL = Limits(cpu="499m")
"""The same, as far as anybody notices, but no pool has such pods."""
KERNEL = Limits(cpu="498m")
"""The same, for a pool of its own."""
UNDER_LOAD = Limits(cpu="200m", memory="96Mi")
"""Limits of many pods at once: all of four busy ones together leave most of two cores to the control plane. With less
CPU a pod spends most of its start being throttled."""

SESSION = "codeexec: later call of a session"
SESSION_DEFAULT = "codeexec: the same, with the default limits"
SESSION_ONE_CPU = "codeexec: the same, with 1 CPU"
POOL_DEFAULT = "codeexec: a pod from a pool, with the default limits"
FIRST = "codeexec: KubernetesCodeExecutor()"
FIRST_STATEFUL = "codeexec: KubernetesCodeExecutor(stateful=True)"
FIRST_KERNEL = "codeexec: KubernetesCodeExecutor(stateful=True), stateful pool"
FIRST_NEW_POD = "codeexec: the same as the first, no pod ready"
TTI = "codeexec: a session, as installed by default"
TTI_NEW_POD = "codeexec: a session, no pod ready"
TTI_DOCKER = "docker run, then docker exec"
POOL = "codeexec: a pod from a pool for each call"
REUSED = "codeexec: a pod from a pool, used again (podReuse)"
TWICE = f"codeexec: {2 * BURST} at once, {BURST} pods ready"
REUSED_TWICE = f"codeexec: {2 * BURST} at once, {BURST} pods ready, used again (podReuse)"
RESET = "codeexec: until the pod is shown to be clean"
COLD = "codeexec: a new pod for each call"
LIVE = "codeexec: on_output"
GVISOR = "gvisor"
ATTACH = "bare pod that runs, by its attached stdin"
EXEC = "bare pod that runs, by exec"
BARE = "bare pod, same hardening, create to done"
DOCKER = "AutoGen's Docker executor"
DOCKERS = "AutoGen's Docker executors, one for each caller"
LOCAL = "AutoGen's Local executor"
DOCKER_RUN = "docker run --rm, same hardening"


@dataclass
class Stage:
    """What every measurement uses."""

    api: client.ApiClient
    folder: Path
    """Of AutoGen's executors."""
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
        default_pool = await stack.enter_async_context(Pool(stage.api, 1, DEFAULT))
        by_attach, by_exec = await stack.enter_async_context(bare_attach_and_exec(stage.api, SMALL))
        here: dict[str, KubernetesCodeExecutor] = {
            SESSION: ours(limits=SMALL),
            SESSION_DEFAULT: ours(),
            POOL: ours(session="per-call", limits=SMALL),
            POOL_DEFAULT: ours(session="per-call"),
            COLD: ours(session="per-call", limits=NO_POOL),
        }
        if await has_gvisor(stage.api):
            here["codeexec: the same in gVisor"] = ours(session="per-call", limits=NO_POOL, runtime_class_name=GVISOR)
        for executor in here.values():
            await stack.enter_async_context(executor)
        contenders = {name: calls(executor) for name, executor in (here | stage.docker | stage.local).items()}
        contenders |= {ATTACH: by_attach, EXEC: by_exec, BARE: bare_pod(client.CoreV1Api(stage.api), Limits())}
        contenders |= {DOCKER_RUN: docker_run(Limits())} if stage.docker else {}
        times = await measure(contenders, RUNS, {POOL: pool.full, POOL_DEFAULT: default_pool.full})
    return table(
        "calls",
        f"one call of {CODE}",
        times,
        {
            "session / this": SESSION,
            "pool / this": POOL,
            "new pod / this": COLD,
            "session, default limits / this": SESSION_DEFAULT,
            "pool, default limits / this": POOL_DEFAULT,
        },
    )


async def first_calls(stage: Stage) -> list[Table]:
    """Each run starts from nothing. The pool is the one that the chart makes: one pod of the default limits."""

    def theirs() -> CodeExecutor:
        return autogen_in_docker(stage.folder)

    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(Pool(stage.api, 1, DEFAULT))
        kernels = await stack.enter_async_context(Pool(stage.api, 1, KERNEL, stateful=True))
        caller = await stack.enter_async_context(CodeExecutionClient())
        executors = {
            FIRST: first_call(KubernetesCodeExecutor, pool.full),
            FIRST_STATEFUL: first_call(lambda: KubernetesCodeExecutor(stateful=True), pool.full),
            FIRST_KERNEL: first_call(lambda: KubernetesCodeExecutor(stateful=True, limits=KERNEL), kernels.full),
            FIRST_NEW_POD: first_call(lambda: KubernetesCodeExecutor(limits=NO_POOL)),
        }
        executors |= {DOCKER: first_call(theirs)} if stage.docker else {}
        calls_first = await in_turn(executors, FIRST_RUNS)
        await pool.full()
        sandboxes = {
            TTI: first_command(caller, Request(agent="bench")),
            TTI_NEW_POD: first_command(caller, Request(agent="bench", limits=NO_POOL)),
        }
        sandboxes |= {TTI_DOCKER: first_command_of_docker()} if stage.docker else {}
        commands = await one_after_the_other(sandboxes, TTI_RUNS)
    return [
        table(
            "first",
            "construct, start, first call",
            calls_first,
            {
                "default / this": FIRST,
                "stateful / this": FIRST_STATEFUL,
                "stateful pool / this": FIRST_KERNEL,
                "new pod / this": FIRST_NEW_POD,
            },
        ),
        table(
            "tti",
            "create, first command, one after the other",
            commands,
            {"default / this": TTI, "new pod / this": TTI_NEW_POD},
        ),
    ]


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
        default_pool = await stack.enter_async_context(Pool(stage.api, BURST, DEFAULT))
        pooled_default = concurrent_calls(await stack.enter_async_context(ours(session="per-call")))

        async def both_full() -> None:
            await asyncio.gather(pool.full(), default_pool.full())

        peers = {}
        if stage.docker:
            own = await stack.enter_async_context(executors_of_callers(stage.folder, 2 * BURST))
            peers[DOCKERS] = each_its_own([concurrent_calls(one) for one in own])
            peers[DOCKER] = concurrent_calls(stage.docker[DOCKER])
            network = await stack.enter_async_context(closed_network())
            peers[DOCKER_RUN] = docker_run(UNDER_LOAD, network)
        # What Kubernetes by itself reaches on this machine, with a pod for each call.
        peers[BARE] = bare_pod(client.CoreV1Api(stage.api), UNDER_LOAD)
        waves = {
            f"codeexec: {BURST} at once, {BURST} pods ready": Burst(pooled, BURST),
            TWICE: Burst(pooled, 2 * BURST),
        }
        waves[f"codeexec: {BURST} at once, {BURST} ready, default limits"] = Burst(pooled_default, BURST)
        waves |= {f"{name}, {BURST} at once": Burst(call, BURST) for name, call in peers.items()}
        waves |= {f"{name}, {2 * BURST} at once": Burst(call, 2 * BURST) for name, call in peers.items()}
        await bursts(waves, BURST_ROUNDS, both_full)
        ours_too = {POOL: pooled, POOL_DEFAULT: pooled_default}
        loops = {name: Sustained(call) for name, call in {**ours_too, **peers}.items()}
        load: dict[str, Any] = {"callers": CALLERS, "seconds": LOAD_SECONDS, "head_start": BURST, "rounds": LOAD_ROUNDS}
        await sustained(loops, before=both_full, **load)
        begun = datetime.now(UTC)
        async with pods_used_again(stage.api):
            await bursts(again := {REUSED_TWICE: Burst(pooled, 2 * BURST)}, BURST_ROUNDS, both_full)
            await sustained(loops_again := {REUSED: Sustained(pooled)}, before=both_full, **load)
        cleaned = await resets(stage.api, "bench", begun)
        waves |= again
        loops |= loops_again
    walls = {name: {"wall_s": statistics.median(one.walls)} for name, one in waves.items()}
    rates = {name: {"per_second": one.per_second} for name, one in loops.items()}
    return [
        table(
            "burst",
            "each of many calls at once",
            {name: one.seconds for name, one in waves.items()},
            {"first / this": next(iter(waves)), "twice as many / this": TWICE, "used again / this": REUSED_TWICE},
            walls,
        ),
        table(
            "sustained",
            f"each call of {CALLERS} callers, for {LOAD_SECONDS:.0f} s",
            {name: one.seconds for name, one in loops.items()},
            {"ours / this": POOL, "default limits / this": POOL_DEFAULT, "used again / this": REUSED},
            rates,
        ),
        *([table("resets", "cleaning a pod between two executions", {RESET: cleaned})] if len(cleaned) > 1 else []),
    ]


async def much_output(stage: Stage) -> Table:
    """How long that takes depends on the pod's CPU. AutoGen's containers have no limit."""
    async with ours(limits=SMALL) as session, ours() as default, ours(limits=ONE_CPU) as one_cpu:
        here: dict[str, CodeExecutor] = {SESSION: session, SESSION_DEFAULT: default, SESSION_ONE_CPU: one_cpu}
        printers = {name: prints_much(executor) for name, executor in (here | stage.docker | stage.local).items()}
        times = await measure(printers, OUTPUT_RUNS)
    ratios = {"ours / this": SESSION, "default limits / this": SESSION_DEFAULT, "1 CPU / this": SESSION_ONE_CPU}
    return table("output", "10 MB of output, on two streams", times, ratios)


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
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # the image's user is not root, as whom AutoGen writes there
        stage = Stage(await stack.enter_async_context(client.ApiClient()), folder)
        await stack.enter_async_context(a_namespace(client.CoreV1Api(stage.api)))
        await stack.enter_async_context(without_the_default_pool(stage.api))
        stage.local[LOCAL] = LocalCommandLineCodeExecutor(timeout=60, work_dir=folder)
        if docker_version():
            stage.docker[DOCKER] = await stack.enter_async_context(autogen_in_docker(folder))
        else:
            print("no Docker daemon answers: its peers are left out", file=sys.stderr)
        yield stage


def print_all(tables: list[Table], facts: Mapping[str, Any]) -> None:
    print(*("", *(f"{one.text()}\n" for one in tables)), sep="\n")
    wins, losses = wins_and_losses(tables)
    for word, found in (("slower than a peer", losses), ("faster than a peer", wins)):
        print(f"codeexec is {word}:", *(f"  {one.ratio:7.2f}  {one.key}" for one in found), "", sep="\n")
    print(*text(facts["density"]), sep="\n")
    print(f"{RUNS} runs of a call and {OUTPUT_RUNS} of much output, interleaved, after {WARM_UP} not counted")
    print(facts["machine"])


async def main() -> None:
    await config.load_kube_config(os.environ["KUBECONFIG"])
    begun = datetime.now(UTC)
    async with a_stage() as stage:
        tables = [await one_call(stage)]
        tables += await where_the_time_goes(stage)
        tables += await first_calls(stage)
        tables += await under_load(stage)
        tables += [await much_output(stage), await lines(stage)]
        crowd, idle = await density(stage.api, RUNS)
        tables.append(crowd)
        facts = {
            "machine": await machine(stage.api),
            "at": begun.isoformat(timespec="minutes"),
            "date": begun.date().isoformat(),
            "commit": commit(),
            "versions": versions(),
            "load_average": os.getloadavg()[0],
            "runs": RUNS,
            "first_runs": FIRST_RUNS,
            "tti_runs": TTI_RUNS,
            "burst_rounds": BURST_ROUNDS,
            "output_runs": OUTPUT_RUNS,
            "not_counted": WARM_UP,
            "density": idle,
        }
    print_all(tables, facts)
    found = {**facts, "tables": [one.dump() for one in tables]}
    print(*said([*kept(ROOT / "docs" / "bench"), entry(found)]), sep="\n")
    path = ROOT / ".codeexec" / "bench.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"all figures: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    asyncio.run(main())
