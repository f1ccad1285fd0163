"""Measures what a namespace notices when another one floods the operator: `make bench-fairness`.

The cluster is that of the component tier: a real API server, etcd and scheduler, simulated nodes, and the operator as a
process. A neighbour with ready pods makes CALLS (30) calls without the flood and CALLS beside it. The flood is FLOOD
(10000) executions whose code can't be opened, a tenth as many sessions, LOUD (50) executions with 0.8 MB of output and
HOSTILE (20) with code that takes long to read. It comes with an agent's rights, most of it from a process of its own.
Prints p50 and p95 of both, side by side.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, Stage

from codeexec_api.names import GROUP, VERSION
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

CALLS: Final = int(os.environ.get("CALLS", "30"))
FLOOD: Final = int(os.environ.get("FLOOD", "10000"))
LOUD: Final = int(os.environ.get("LOUD", "50"))
HOSTILE: Final = int(os.environ.get("HOSTILE", "20"))
NOISY, QUIET = f"{SANDBOX}-noisy", f"{SANDBOX}-quiet"
READY: Final = CALLS + 5
ASKED: Final = Request(agent="fair", timeout_seconds=300, limits=Limits(**LIMITS))
FLOODING: Final = Path(__file__).parents[1] / "support" / "flooding.py"


async def measure(client: CodeExecutionClient) -> list[float]:
    """Milliseconds of calls, one after the other."""
    times = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        result = await client.execute([PreparedBlock("python", b'print("hello")')], ASKED)
        assert result.output == "hello\n", result
        times.append((time.perf_counter() - begun) * 1000)
    return times


def fill_pool(stage: Stage) -> None:
    """Ready pods for all calls, so that only the operator and the API server are measured."""
    metadata = {"name": "quiet", "namespace": QUIET}
    pool = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool", "metadata": metadata}
    stage.admin.apply({**pool, "spec": {"replicas": READY, "limits": LIMITS}})
    status = lambda: stage.admin.get("sandboxpool", "quiet", QUIET).get("status", {})  # noqa: E731
    wait_for(f"{READY} pods to be ready", lambda: status().get("readyReplicas") == READY, 180)


async def play(stage: Stage) -> None:
    """Both measurements."""
    rules = [{"imports": ["os"], "action": "Note"}]
    stage.admin.apply(stage.a_policy(NOISY, codeRules=rules))
    kubeconfigs = {name: stage.agent_kubeconfig(name) for name in (NOISY, QUIET)}
    quiet, noisy = (CodeExecutionClient(ClusterRef(name, kubeconfig=kubeconfigs[name])) for name in (QUIET, NOISY))
    fill_pool(stage)
    await measure(quiet)
    fill_pool(stage)
    alone = await measure(quiet)
    fill_pool(stage)
    command = (sys.executable, str(FLOODING), kubeconfigs[NOISY], NOISY, str(FLOOD), str(FLOOD // 10))
    flood = await asyncio.create_subprocess_exec(*command)
    codes = [b"fill(800_000)"] * LOUD + [b"a\n" * 400_000] * HOSTILE
    noise = [asyncio.create_task(noisy.execute([PreparedBlock("python", code)], ASKED)) for code in codes]
    beside = await measure(quiet)
    over = flood.returncode is not None
    if not over:
        flood.terminate()
    await flood.wait()
    for one in noise:
        one.cancel()
    await asyncio.gather(*noise, return_exceptions=True)
    for client in (quiet, noisy):
        await client.close()
    rows = [_row("alone", alone), _row("beside the flood", beside)]
    print(f"{'':18}{'p50':>10}{'p95':>10}")
    for name, p50, p95 in rows:
        print(f"{name:18}{p50:7.0f} ms{p95:7.0f} ms")
    print(f"{'ratio':18}{rows[1][1] / rows[0][1]:10.2f}{rows[1][2] / rows[0][2]:10.2f}")
    if over:
        print("the flood was over before the calls: choose a larger FLOOD")


def _row(name: str, times: list[float]) -> tuple[str, float, float]:
    twentieths = statistics.quantiles(times, n=20)
    return name, twentieths[9], twentieths[18]


def main() -> None:
    """On a cluster of its own."""
    quotas = {"pods": 20_000, "cpu": "20000", "memory": "20000Gi", "ephemeralStorage": "20000Gi", "secrets": 100_000}
    with tempfile.TemporaryDirectory() as folder:
        values = {"resourceQuota": {**quotas, "configMaps": 100_000}}
        with Stage(Path(folder), namespaces=(NOISY, QUIET), values=values) as stage:
            operator = stage.operator(direct=True)
            operator.start()
            try:
                asyncio.run(play(stage))
            finally:
                operator.end()


if __name__ == "__main__":
    main()
