"""Measures one operator with many namespaces, nodes and ready pods: `make bench-wide`.

The cluster is that of the component tier: a real API server, etcd and scheduler, simulated nodes, and the operator as a
process. NAMESPACES (1000) have a pool of READY (5) pods each, on NODES (1000) nodes. Prints how long it takes until all
namespaces are served and all pods are ready, what the operator takes meanwhile and at rest, and how long its event loop
keeps others waiting: the time that its health endpoint takes to answer, asked ten times a second. That time includes
the request itself, so it is an upper bound.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, Stage, in_thread
from operator_process import OperatorProcess

from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

NAMESPACES: Final = int(os.environ.get("NAMESPACES", "1000"))
READY: Final = int(os.environ.get("READY", "5"))
NODES: Final = int(os.environ.get("NODES", "1000"))
CALLERS: Final = min(20, NAMESPACES)
CALLS: Final = 200
REST_SECONDS: Final = 60
ASKED: Final = Request(agent="wide", timeout_seconds=60, limits=Limits(**LIMITS))
TICKS: Final = os.sysconf("SC_CLK_TCK")
VALUES: Final = {"defaultPool": {"enabled": True, "replicas": READY, "limits": LIMITS, "maxAgeSeconds": 86_400}}


class Probe:
    """Asks the operator how it is, and notes how long that takes."""

    def __init__(self, operator: OperatorProcess) -> None:
        self._operator = operator
        self._cpu, self._begun = self._cpu_seconds(), time.monotonic()
        self.waited: list[float] = []

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._operator.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    async def run(self) -> None:
        url = f"http://127.0.0.1:{self._operator.health_port}/livez"
        async with aiohttp.ClientSession() as session:
            while True:
                begun = time.perf_counter()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as answer:
                        await answer.read()
                self.waited.append((time.perf_counter() - begun) * 1000)
                await asyncio.sleep(0.1)

    def row(self, what: str) -> str:
        """One line of the table."""
        seconds = time.monotonic() - self._begun
        share = 100 * (self._cpu_seconds() - self._cpu) / seconds
        hundredths = statistics.quantiles(self.waited, n=100, method="inclusive")
        return (
            f"{what:30}{seconds:8.0f} s{share:7.0f} %{self._operator.memory_mib():8} MiB"
            f"{hundredths[49]:9.1f} ms{hundredths[98]:9.1f} ms{max(self.waited):9.0f} ms"
        )


@contextlib.asynccontextmanager
async def measured(operator: OperatorProcess, what: str) -> AsyncIterator[None]:
    """Prints a line on what is done meanwhile."""
    probe = Probe(operator)
    asking = asyncio.create_task(probe.run())
    try:
        yield
    finally:
        asking.cancel()
        print(probe.row(what), flush=True)


def served(operator: OperatorProcess) -> int:
    """How many namespaces the operator says it serves."""
    lines = operator.metrics().splitlines()
    return sum(one.startswith("codeexec_namespace_served{") and one.endswith(" 1.0") for one in lines)


def ready(stage: Stage) -> int:
    """Ready pods, as the pools tell."""
    pools = stage.admin.list("sandboxpool", None)
    return sum(one.get("status", {}).get("readyReplicas", 0) for one in pools)


async def play(stage: Stage) -> None:
    """Start, fill, rest, calls."""
    operator = stage.operator(direct=True)
    await in_thread(lambda: operator.start(leads=False))
    print(f"{'':30}{'time':>10}{'CPU':>9}{'memory':>12}{'lag p50':>12}{'lag p99':>12}{'longest':>12}")
    try:
        async with measured(operator, "until all are served"):
            await in_thread(wait_for, "all to be served", lambda: served(operator) == NAMESPACES, 600)
        async with measured(operator, "until all pods are ready"):
            await in_thread(wait_for, "all pods", lambda: ready(stage) >= NAMESPACES * READY, 3600)
        async with measured(operator, "at rest"):
            await asyncio.sleep(REST_SECONDS)
        names = stage.namespaces[:CALLERS]
        clients = [CodeExecutionClient(ClusterRef(one, kubeconfig=stage.agent_kubeconfig(one))) for one in names]
        async with measured(operator, f"{CALLS} calls, {CALLERS} at a time"):
            await asyncio.gather(*map(call, clients))
        for client in clients:
            await client.close()
        print(f"peak memory: {operator.peak_mib()} MiB")
    finally:
        await in_thread(operator.end)


async def call(client: CodeExecutionClient) -> None:
    """One caller, one call after the other."""
    for _ in range(CALLS // CALLERS):
        result = await client.execute([PreparedBlock("python", b'print("hello")')], ASKED)
        assert result.output == "hello\n", result


def main() -> int:
    """Set the cluster up, and measure."""
    names = tuple(f"{SANDBOX}-{number}" for number in range(NAMESPACES))
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        with Stage(Path(folder), namespaces=names, values=VALUES, nodes=NODES) as stage:
            print(f"{NAMESPACES} namespaces, {NODES} nodes: made in {time.monotonic() - begun:.0f} s", flush=True)
            asyncio.run(play(stage))
    return 0


if __name__ == "__main__":
    sys.exit(main())
