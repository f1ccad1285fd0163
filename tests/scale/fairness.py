"""Measures what a namespace notices when another one floods the operator: `make bench-fairness`.

The cluster is that of the component tier: a real API server, etcd and scheduler, simulated nodes, and the operator as a
process. A neighbour with ready pods makes CALLS (100) calls without a flood, CALLS beside a flood in a namespace that
the operator doesn't serve, and CALLS beside the same flood in a namespace that it serves. There are ROUNDS (3) rounds.

The flood that is not served is the control. Its namespace has all that the chart installs: quota, admission policies
and priority levels. But the operator is the first of two shards, and that namespace belongs to the second, which does
not run. So the two floods differ in the operator's work only.

The flood is FLOOD (10000) executions whose code can't be opened, a session after each ten of them, LOUD (50) executions
with 0.8 MB of output and HOSTILE (20) with code that takes long to read. It comes with an agent's rights, 20 creations
at a time. With RATE, so many creations begin in each second, however long those before them take. The flood and the
neighbour are processes of their own. VALUES are values of the chart, as JSON. SEATS (600, the API server's default) is
how many requests the API server takes at a time.

Prints p50 and p95 of each row and their ratios to the row before. `not served / alone` is what the machine takes, and
`served / not served` is what the operator takes. Beside them are the executions and sessions that the flood created in
a second, and how much of a core each process took. Then come the executions of the served flood that were over in each
second, and the lowest, median and highest limit of the pace (`codeexec_pace_limit`). For the WORST (5) calls of a row,
it prints when they were created (in whole seconds), started, finished and told to the client, in seconds since the
flood began. At the end are the median ratios of the rounds.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from api_server import Unreachable
from cluster_tools import DEFAULT_SANDBOX, wait_for
from component_stage import LIMITS, Stage
from operator_process import OperatorProcess

from codeexec_api.names import EXECUTION_PLURAL, GROUP, SESSION_PLURAL, VERSION
from codeexec_operator.core.shard import Shard
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

CALLS: Final = int(os.environ.get("CALLS", "100"))
FLOOD: Final = int(os.environ.get("FLOOD", "10000"))
LOUD: Final = int(os.environ.get("LOUD", "50"))
HOSTILE: Final = int(os.environ.get("HOSTILE", "20"))
RATE: Final = float(os.environ.get("RATE", "0"))
ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
SEATS: Final = int(os.environ.get("SEATS", "600"))
WORST: Final = int(os.environ.get("WORST", "5"))
VALUES: Final = json.loads(os.environ.get("VALUES", "{}"))
NOISY, QUIET, UNSERVED = f"{DEFAULT_SANDBOX}-noisy", f"{DEFAULT_SANDBOX}-quiet", f"{DEFAULT_SANDBOX}-unserved"
SHARD: Final = Shard(0, 2)
"""Serves all of these but the last."""
FLOODS: Final = {"not served": UNSERVED, "served": NOISY}
COMPARED: Final = {"not served": "not served / alone (the machine)", "served": "served / not served (the operator)"}
PLACES: Final = [
    f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}"
    for namespace in FLOODS.values()
    for plural in (SESSION_PLURAL, EXECUTION_PLURAL)
]
READY: Final = CALLS + 5
ASKED: Final = Request(agent="fair", timeout_seconds=300, limits=Limits(**LIMITS))
FLOODING: Final = Path(__file__).parents[1] / "support" / "flooding.py"
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Call(NamedTuple):
    """One call of the neighbour: its record, and when the client had the result, in seconds since 1970."""

    milliseconds: float
    name: str
    told: float


async def measure(kubeconfig: str) -> None:
    """The neighbour: for each line on stdin as many calls, one after the other, and a line with them."""
    async with CodeExecutionClient(ClusterRef(QUIET, kubeconfig=kubeconfig)) as client:
        for line in iter(sys.stdin.readline, ""):
            calls = []
            for _ in range(int(line)):
                begun = time.perf_counter()
                result = await client.execute([PreparedBlock("python", b'print("hello")')], ASKED)
                assert result.output == "hello\n", result
                calls.append(Call((time.perf_counter() - begun) * 1000, result.name, time.time()))
            print(json.dumps(calls), flush=True)


def moments(call: Call, record: Mapping[str, Any], begun: float) -> str:
    """When what happened to a call, in seconds since then."""
    status = record["status"]
    written = record["metadata"]["creationTimestamp"], status["startedAt"], status["finishedAt"]
    at = *(datetime.fromisoformat(one).timestamp() for one in written), call.told
    named = zip(("created", "started", "finished", "told"), at, strict=True)
    return f"{call.milliseconds:.0f} ms: " + ", ".join(f"{name} {one - begun:.2f} s" for name, one in named)


class Cpu(NamedTuple):
    """Seconds that a process has taken so far, and those of its children that have ended."""

    own: float
    children: float

    @classmethod
    def parse(cls, stat: str, ticks: int = TICKS) -> Self:
        """What /proc/PID/stat says."""
        user, system, *children = map(int, stat.rpartition(") ")[2].split()[11:15])
        return cls((user + system) / ticks, sum(children) / ticks)

    def share(self, before: Self, seconds: float) -> str:
        """What was taken since then, of a core."""
        own, children = (100 * (now - then) / seconds for now, then in zip(self, before, strict=True))
        return f"{own:.0f} %" + (f" (ended children {children:.0f} %)" if children >= 0.5 else "")


def cpu_of(processes: Mapping[str, int]) -> dict[str, Cpu]:
    return {name: Cpu.parse(Path(f"/proc/{pid}/stat").read_text()) for name, pid in processes.items()}


def created(stage: Stage) -> int:
    """Executions and sessions that there are of a flood."""
    pages = [stage.admin.connection.json("GET", path, limit=1) for path in PLACES]
    return sum(len(page["items"]) + page["metadata"].get("remainingItemCount", 0) for page in pages)


def told_by(operator: OperatorProcess) -> tuple[float, float]:
    """The limit of its pace, and how many executions of the flood that it serves are over."""
    values = [line.rpartition(" ") for line in operator.metrics().splitlines()]
    ours = f'sandbox_namespace="{NOISY}"'
    over = [float(one) for name, _, one in values if name.startswith("codeexec_executions_total{") and ours in name]
    [limit] = [float(one) for name, _, one in values if name == "codeexec_pace_limit"]
    return limit, sum(over)


class Bench:
    """One control plane with its operator, and the neighbour."""

    def __init__(self, stage: Stage, operator: OperatorProcess, neighbour: Process) -> None:
        self._stage, self._operator, self._neighbour = stage, operator, neighbour
        self._processes = {name: one.pid for name, one in stage.plane.programs.items()}
        self._processes |= {"operator": operator.pid, "nodes": os.getpid(), "neighbour": neighbour.pid}

    async def row(
        self, name: str, before: tuple[float, ...] = (), flood: Process | None = None
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """p50 and p95 of the neighbour's calls, beside a flood that has just begun, and their ratios to `before`."""
        processes = self._processes | ({"flood": flood.pid} if flood else {})
        begun, made, taken = time.time(), created(self._stage), cpu_of(processes)
        told = [told_by(self._operator)]
        calling = asyncio.create_task(self._call())
        while not calling.done():
            await asyncio.wait([calling], timeout=1)
            told.append(await asyncio.to_thread(told_by, self._operator))
        seconds = time.time() - begun
        shares = ", ".join(f"{name} {one.share(taken[name], seconds)}" for name, one in cpu_of(processes).items())
        rate, over = (created(self._stage) - made) / seconds, (told[-1][1] - told[0][1]) / seconds
        limits = sorted(limit for limit, _ in told)
        pace = ", ".join(f"{one:.2f}" for one in (limits[0], statistics.median(limits), limits[-1]))
        calls = sorted(calling.result(), reverse=True)
        twentieths = statistics.quantiles([one.milliseconds for one in calls], n=20)
        found = twentieths[9], twentieths[18]
        ratios = tuple(one / of for one, of in zip(found, before, strict=bool(before)))
        print(f"{name:12}{found[0]:7.0f} ms{found[1]:7.0f} ms{shown(ratios):14}{rate:8.1f}/s   ", end="")
        print(f"{shares}; {over:.1f}/s of the served flood over, limit {pace}")
        for call in calls[:WORST]:
            print("    " + moments(call, self._stage.admin.get("cex", call.name, QUIET), begun), flush=True)
        return found, ratios

    async def _call(self) -> list[Call]:
        assert self._neighbour.stdin
        assert self._neighbour.stdout
        self._neighbour.stdin.write(f"{CALLS}\n".encode())
        return [Call(*one) for one in json.loads(await self._neighbour.stdout.readline())]


def shown(ratios: tuple[float, ...]) -> str:
    return "".join(f"{one:7.2f}" for one in ratios)


async def play(stage: Stage, operator: OperatorProcess) -> None:
    """All measurements, in turns."""
    rules = [{"imports": ["os"], "action": "Note"}]
    stage.admin.apply(*(stage.a_policy(namespace, codeRules=rules) for namespace in FLOODS.values()))
    command = (sys.executable, __file__, stage.agent_kubeconfig(QUIET))
    neighbour = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, limit=2**24, start_new_session=True
    )
    bench = Bench(stage, operator, neighbour)
    rounds: dict[str, list[tuple[float, ...]]] = {name: [] for name in FLOODS}
    fill_pool(stage)
    await bench.row("to warm up")
    for number in range(1, ROUNDS + 1):
        print(f"round {number:<6}{'p50':>10}{'p95':>10}{'to row before':>14}{'created':>10}   CPU, of a core")
        fill_pool(stage)
        before, _ = await bench.row("alone")
        for name, namespace in FLOODS.items():
            fill_pool(stage)
            async with _flood(stage, namespace) as flood:
                before, ratios = await bench.row(name, before, flood)
            rounds[name].append(ratios)
    for name, compared in COMPARED.items():
        medians = tuple(statistics.median(one) for one in zip(*rounds[name], strict=True))
        print(f"{compared}: median ratios{shown(medians)}")
    assert neighbour.stdin
    neighbour.stdin.close()
    await neighbour.wait()


def fill_pool(stage: Stage) -> None:
    """Ready pods for all calls, so that only the operator and the API server are measured."""
    metadata = {"name": "quiet", "namespace": QUIET}
    pool = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool", "metadata": metadata}
    stage.admin.apply({**pool, "spec": {"replicas": READY, "limits": LIMITS}})
    status = lambda: stage.admin.get("sandboxpool", "quiet", QUIET).get("status", {})  # noqa: E731
    wait_for(f"{READY} pods to be ready", lambda: status().get("readyReplicas") == READY, 180)


@asynccontextmanager
async def _flood(stage: Stage, namespace: str) -> AsyncIterator[Process]:
    """A flood that has begun, and that is gone at the end."""
    numbers = map(str, (FLOOD, FLOOD // 10, LOUD, HOSTILE, RATE))
    command = (sys.executable, str(FLOODING), stage.agent_kubeconfig(namespace), namespace, *numbers)
    flood = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    try:
        wait_for("the flood to begin", lambda: created(stage), 180)
        yield flood
    finally:
        if flood.returncode is not None:
            print("the flood was over before the calls: choose a larger FLOOD")
        else:
            flood.terminate()
        await flood.wait()
        wait_for("the objects of the flood to be gone", lambda: _is_empty(stage), 600)
        wait_for("the pods of the flood to be gone", lambda: not stage.pods(namespace), 300)


def _is_empty(stage: Stage) -> bool:
    """Deletes what is left. The API server gives each request for all of them a minute."""
    for path in PLACES:
        with suppress(Unreachable):
            stage.admin.connection.request("DELETE", path, seconds=70)
    return not created(stage)


def main() -> None:
    """On a cluster of its own."""
    quotas = {"pods": 20_000, "cpu": "20000", "memory": "20000Gi", "ephemeralStorage": "20000Gi", "secrets": 100_000}
    values = {"resourceQuota": {**quotas, "configMaps": 100_000}, **VALUES}
    reading = SEATS * 2 // 3  # as in the API server's defaults
    seats = (f"--max-requests-inflight={reading}", f"--max-mutating-requests-inflight={SEATS - reading}")
    with (
        tempfile.TemporaryDirectory() as folder,
        Stage(Path(folder), namespaces=(NOISY, QUIET, UNSERVED), values=values, api_server_arguments=seats) as stage,
        stage.operator(direct=True, shard=(SHARD.index, SHARD.count)) as operator,
    ):
        asyncio.run(play(stage, operator))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(measure(sys.argv[1]))
    else:
        main()
