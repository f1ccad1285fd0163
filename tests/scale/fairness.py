"""Measures what a namespace notices when another one floods the operator: `make bench-fairness`.

The cluster is that of the component tier: a real API server, etcd and scheduler, simulated nodes, and the operator as a
process. A neighbour with ready pods makes CALLS (100) calls without a flood, CALLS beside a flood in a namespace that
the operator doesn't serve, and CALLS beside the same flood in a namespace that it serves. There are ROUNDS (3) rounds.
The flood that is not served is the control: it shows what creating the objects costs the API server, whatever the
operator does.

The flood is FLOOD (10000) executions whose code can't be opened, a tenth as many sessions, LOUD (50) executions with
0.8 MB of output and HOSTILE (20) with code that takes long to read. It comes with an agent's rights. The flood and the
neighbour are processes of their own. VALUES are values of the chart, as JSON. SEATS (600, the API server's default) is
how many requests the API server takes at a time.

Prints p50 and p95 of each, their ratios to the calls without a flood, the median ratios of the rounds, and how much of
a core each process took. Beside a flood, it also prints how many of its executions were over in each second, and the
lowest, median and highest limit of the pace (`codeexec_pace_limit`).
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from api_server import Unreachable
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, Stage
from operator_process import OperatorProcess

from codeexec_api.names import EXECUTION_PLURAL, GROUP, SESSION_PLURAL, VERSION
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

CALLS: Final = int(os.environ.get("CALLS", "100"))
FLOOD: Final = int(os.environ.get("FLOOD", "10000"))
LOUD: Final = int(os.environ.get("LOUD", "50"))
HOSTILE: Final = int(os.environ.get("HOSTILE", "20"))
ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
SEATS: Final = int(os.environ.get("SEATS", "600"))
VALUES: Final = json.loads(os.environ.get("VALUES", "{}"))
NOISY, QUIET, UNSERVED = f"{SANDBOX}-noisy", f"{SANDBOX}-quiet", f"{SANDBOX}-unserved"
AGENT: Final = "codeexec-agent"
FLOODS: Final = {"flood, not served": UNSERVED, "flood": NOISY}
READY: Final = CALLS + 5
ASKED: Final = Request(agent="fair", timeout_seconds=300, limits=Limits(**LIMITS))
FLOODING: Final = Path(__file__).parents[1] / "support" / "flooding.py"
TICKS: Final = os.sysconf("SC_CLK_TCK")


async def measure(kubeconfig: str) -> None:
    """The neighbour: for each line on stdin as many calls, one after the other, and a line with their milliseconds."""
    async with CodeExecutionClient(ClusterRef(QUIET, kubeconfig=kubeconfig)) as client:
        for line in iter(sys.stdin.readline, ""):
            times = []
            for _ in range(int(line)):
                begun = time.perf_counter()
                result = await client.execute([PreparedBlock("python", b'print("hello")')], ASKED)
                assert result.output == "hello\n", result
                times.append((time.perf_counter() - begun) * 1000)
            print(json.dumps(times), flush=True)


async def calls(neighbour: Process) -> list[float]:
    """Milliseconds of its calls."""
    assert neighbour.stdin
    assert neighbour.stdout
    neighbour.stdin.write(f"{CALLS}\n".encode())
    return list(json.loads(await neighbour.stdout.readline()))


def fill_pool(stage: Stage) -> None:
    """Ready pods for all calls, so that only the operator and the API server are measured."""
    metadata = {"name": "quiet", "namespace": QUIET}
    pool = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool", "metadata": metadata}
    stage.admin.apply({**pool, "spec": {"replicas": READY, "limits": LIMITS}})
    status = lambda: stage.admin.get("sandboxpool", "quiet", QUIET).get("status", {})  # noqa: E731
    wait_for(f"{READY} pods to be ready", lambda: status().get("readyReplicas") == READY, 180)


def add_unserved(stage: Stage) -> None:
    """A namespace that the operator doesn't know, with an agent of the same rights."""
    stage.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": UNSERVED}})
    subject = {"kind": "ServiceAccount", "name": AGENT, "namespace": UNSERVED}
    for kind, changes in (("serviceaccount", {}), ("role", {}), ("rolebinding", {"subjects": [subject]})):
        served = stage.admin.get(kind, AGENT, NOISY)
        stage.admin.apply({**served, "metadata": {"name": AGENT, "namespace": UNSERVED}, **changes})


def has_begun(stage: Stage, namespace: str) -> bool:
    """True if there is an execution of the flood."""
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{EXECUTION_PLURAL}"
    return bool(stage.admin.connection.json("GET", path, limit=1)["items"])


def clean_up(stage: Stage, namespace: str) -> None:
    """What is left of the flood."""
    for plural in (SESSION_PLURAL, EXECUTION_PLURAL):
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}"
        wait_for(f"the {plural} of the flood to be gone", lambda path=path: _is_empty(stage, path), 300)
    wait_for("the pods of the flood to be gone", lambda: not stage.pods(namespace), 300)


def _is_empty(stage: Stage, path: str) -> bool:
    """Deletes what is left. The API server gives each request for all of them a minute."""
    with suppress(Unreachable):
        stage.admin.connection.request("DELETE", path, seconds=70)
    return not stage.admin.connection.json("GET", path, limit=1)["items"]


class Meter:
    """Counts the CPU time of processes, with that of children that have ended."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes, self._begun = processes, time.monotonic()
        self._before = {name: _cpu_seconds(pid) for name, pid in processes.items()}

    def shares(self) -> str:
        """What each took since then, as a share of a core."""
        seconds = time.monotonic() - self._begun
        spent = {name: _cpu_seconds(pid) - self._before[name] for name, pid in self._processes.items()}
        return ", ".join(f"{name} {100 * one / seconds:.0f} %" for name, one in spent.items())


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


async def play(stage: Stage, operator: OperatorProcess) -> None:
    """All measurements, in turns."""
    rules = [{"imports": ["os"], "action": "Note"}]
    stage.admin.apply(stage.a_policy(NOISY, codeRules=rules))
    kubeconfigs = {name: stage.agent_kubeconfig(name) for name in (NOISY, QUIET, UNSERVED)}
    command = (sys.executable, __file__, kubeconfigs[QUIET])
    neighbour = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
    processes = {name: one.pid for name, one in stage.plane.programs.items()}
    processes |= {"operator": operator.pid, "nodes": os.getpid(), "neighbour": neighbour.pid}
    ratios: dict[str, list[tuple[float, ...]]] = {name: [] for name in FLOODS}
    for number in range(ROUNDS + 1):  # the first to warm up
        fill_pool(stage)
        meter = Meter(processes)
        alone = _percentiles(await calls(neighbour))
        if not number:
            continue
        print(f"round {number:<14}{'p50':>10}{'p95':>10}{'ratios':>14}   CPU, of a core")
        _print_row("alone", alone, "", meter.shares())
        for name, namespace in FLOODS.items():
            fill_pool(stage)
            async with _flood(stage, kubeconfigs[namespace], namespace) as flood:
                meter = Meter(processes | {"flood": flood.pid})
                async with _watched(operator) as pace:
                    beside = _percentiles(await calls(neighbour))
                shares = f"{meter.shares()}; {pace.text}"
            times_alone = tuple(one / of for one, of in zip(beside, alone, strict=True))
            ratios[name].append(times_alone)
            _print_row(name, beside, _both(times_alone), shares)
    for name, rounds in ratios.items():
        print(f"{name}: median ratios{_both([statistics.median(one) for one in zip(*rounds, strict=True)])}")
    assert neighbour.stdin
    neighbour.stdin.close()
    await neighbour.wait()


@asynccontextmanager
async def _flood(stage: Stage, kubeconfig: str, namespace: str) -> AsyncIterator[Process]:
    """A flood that has begun, and that is gone at the end."""
    numbers = map(str, (FLOOD, FLOOD // 10, LOUD, HOSTILE))
    command = (sys.executable, str(FLOODING), kubeconfig, namespace, *numbers)
    flood = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    try:
        wait_for("the flood to begin", lambda: has_begun(stage, namespace), 180)
        yield flood
    finally:
        if flood.returncode is not None:
            print("the flood was over before the calls: choose a larger FLOOD")
        else:
            flood.terminate()
        await flood.wait()
        clean_up(stage, namespace)


class Pace:
    """What the operator says of the flood, looked at each second."""

    def __init__(self) -> None:
        self.text = ""
        self._limits: list[float] = []
        self._over: list[tuple[float, float]] = []
        """When, and how many of the executions of the flood were over by then."""

    def look(self, metrics: str) -> None:
        """Take in what the operator tells of itself."""
        lines = [line.rpartition(" ") for line in metrics.splitlines() if not line.startswith("#")]
        self._limits += [float(value) for name, _, value in lines if name == "codeexec_pace_limit"]
        ours = f'sandbox_namespace="{NOISY}"'
        over = [
            float(value) for name, _, value in lines if name.startswith("codeexec_executions_total{") and ours in name
        ]
        self._over.append((time.monotonic(), sum(over)))

    def end(self) -> None:
        """Put it into words."""
        (since, before), (until, after) = self._over[0], self._over[-1]
        limits = f"{min(self._limits):.2f}, {statistics.median(self._limits):.2f}, {max(self._limits):.2f}"
        self.text = f"{(after - before) / (until - since):.1f}/s of the flood over, limit {limits}"


@asynccontextmanager
async def _watched(operator: OperatorProcess) -> AsyncIterator[Pace]:
    pace = Pace()

    async def look() -> None:
        while True:
            pace.look(await asyncio.to_thread(operator.metrics))
            await asyncio.sleep(1)

    pace.look(operator.metrics())
    looking = asyncio.create_task(look())
    try:
        yield pace
    finally:
        looking.cancel()
    pace.look(operator.metrics())
    pace.end()


def _percentiles(times: Sequence[float]) -> tuple[float, float]:
    twentieths = statistics.quantiles(times, n=20)
    return twentieths[9], twentieths[18]


def _both(ratios: Sequence[float]) -> str:
    return f"{ratios[0]:7.2f}{ratios[1]:7.2f}"


def _print_row(name: str, percentiles: tuple[float, float], ratios: str, shares: str) -> None:
    p50, p95 = percentiles
    print(f"{name:20}{p50:7.0f} ms{p95:7.0f} ms{ratios:14}   {shares}", flush=True)


def main() -> None:
    """On a cluster of its own."""
    quotas = {"pods": 20_000, "cpu": "20000", "memory": "20000Gi", "ephemeralStorage": "20000Gi", "secrets": 100_000}
    reading = SEATS * 2 // 3  # as in the API server's defaults
    seats = (f"--max-requests-inflight={reading}", f"--max-mutating-requests-inflight={SEATS - reading}")
    with tempfile.TemporaryDirectory() as folder:
        values = {"resourceQuota": {**quotas, "configMaps": 100_000}, **VALUES}
        with Stage(Path(folder), namespaces=(NOISY, QUIET), values=values, api_server_arguments=seats) as stage:
            add_unserved(stage)
            operator = stage.operator(direct=True)
            operator.start()
            try:
                asyncio.run(play(stage, operator))
            finally:
                operator.end()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(measure(sys.argv[1]))
    else:
        main()
