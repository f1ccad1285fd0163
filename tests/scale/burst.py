"""A burst of sandboxes, as ComputeSDK's benchmark makes it: SANDBOXES (100) are created at once on simulated nodes.

Run by `make bench-burst`. The cluster is that of the component tier: a real API server, etcd and scheduler, simulated
nodes, and the operator as a process. Each of the burst is a session, timed from its creation to the result of its first
command. Once READY (as many) pods of a pool are ready before, and once none is. Nothing runs in the simulated pods, so
the figures show what the control plane takes, and not what containers take. Prints a table, and writes
`.codeexec/burst.json`.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cluster_tools import ROOT, SANDBOX, wait_for
from component_stage import LIMITS, Stage, in_thread

from codeexec_api.names import GROUP, VERSION
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from tables import Table, table

BURST: Final = int(os.environ.get("SANDBOXES", "100"))
READY: Final = int(os.environ.get("READY", str(BURST)))
NODES: Final = int(os.environ.get("NODES", "10"))
ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
PATIENCE_SECONDS: Final = 120
POOL: Final = "burst"
BLOCKS: Final = [PreparedBlock("python", b'print("hello")')]
WITH, WITHOUT = f"codeexec: {BURST} at once, {READY} pods ready", f"codeexec: {BURST} at once, no pod ready"


async def sandbox(client: CodeExecutionClient, request: Request) -> float | None:
    """Seconds from creation to the first result; None if it failed."""
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with await client.open_session(request) as session:
                result = await session.execute(BLOCKS)
                return time.perf_counter() - begun if result.output == "hello\n" else None
    except Exception as error:
        print(f"failed: {type(error).__name__}: {error}", file=sys.stderr)
        return None


async def burst(client: CodeExecutionClient, request: Request) -> tuple[list[float | None], float]:
    """One burst: the seconds of each, and until the last has its result and is ended."""
    begun = time.perf_counter()
    found = await asyncio.gather(*(sandbox(client, request) for _ in range(BURST)))
    return list(found), time.perf_counter() - begun


def scale(stage: Stage, replicas: int) -> None:
    """Until the pool has so many ready pods, and no pod of a burst is left."""
    metadata = {"name": POOL, "namespace": SANDBOX}
    kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool", "metadata": metadata}
    stage.admin.apply({**kind, "spec": {"replicas": replicas, "limits": LIMITS}})
    wait_for("the pods of the last burst to go", lambda: len(stage.pods()) <= replicas, 300)
    status = lambda: stage.admin.get("sandboxpool", POOL).get("status", {})  # noqa: E731
    wait_for(f"{replicas} ready pods", lambda: status().get("readyReplicas", 0) == replicas, 300)


async def play(stage: Stage) -> tuple[Table, dict[str, str]]:
    """Bursts of both kinds, in turn; the first round is not counted."""
    request = Request(agent="burst", timeout_seconds=60, limits=Limits(**LIMITS))
    times: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    asked = dict.fromkeys(times, 0)
    walls: dict[str, list[float]] = {name: [] for name in times}
    kubeconfig = stage.agent_kubeconfig(SANDBOX)
    async with CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig=kubeconfig)) as client:
        for number in range(1 + ROUNDS):
            for name, ready in ((WITH, READY), (WITHOUT, 0)):
                await in_thread(scale, stage, ready)
                found, wall = await burst(client, request)
                if number:
                    times[name] += [one for one in found if one is not None]
                    asked[name] += BURST
                    walls[name].append(wall)
            print(f"round {number + 1} of {1 + ROUNDS}", file=sys.stderr, flush=True)
    worked = {name: f"{len(times[name])} of {asked[name]}" for name in times}
    shown = {name: {"wall_s": statistics.median(walls[name])} for name in times}
    return table("burst100", "creation to first result, simulated nodes", times, figures=shown), worked


def save(result: Table, worked: dict[str, str], load: Sequence[float]) -> None:
    """Print and write what was found."""
    print(result.text())
    for name, one in worked.items():
        print(f"{name}: {one} got the right result")
    facts: dict[str, Any] = {"rounds": ROUNDS, "nodes": NODES, "worked": worked, "table": result.dump()}
    path = ROOT / ".codeexec" / "burst.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**facts, "load_average": load[0]}, indent=2) + "\n")
    print(f"all figures: {path.relative_to(ROOT)}")


def main() -> int:
    """On a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder), nodes=NODES) as stage:
        operator = stage.operator(direct=True)
        operator.start()
        try:
            result, worked = asyncio.run(play(stage))
        finally:
            operator.end()
    save(result, worked, os.getloadavg())
    return 0 if all(one.split(" of ")[0] == one.split(" of ")[1] for one in worked.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
