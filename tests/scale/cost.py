"""Measures what one execution costs the control plane: `make bench-cost`.

The cluster is that of the component tier: a real API server, etcd, scheduler and controllers, simulated nodes, and the
operator as a process. A client makes EXECUTIONS (100) calls, AT_ONCE (8) at a time, each with a pod of its own from a
pool that has a ready pod for each. A round ends when the pods that were used are gone and the pool is full again, so
it has everything that an execution causes. VALUES are values of the chart, as JSON.

Prints the CPU of each process for one execution, without what the process takes at rest, as the median of ROUNDS (3),
and the requests and the calls of etcd for one execution. PROFILE names a file for a CPU profile of the API server,
which is made in a round that isn't counted. All figures are written to `.codeexec/cost.json`.
"""

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cluster_tools import ROOT, SANDBOX, wait_for
from component_stage import LIMITS, Stage, in_thread
from operator_process import OperatorProcess

from codeexec_api.names import GROUP, VERSION
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

EXECUTIONS: Final = int(os.environ.get("EXECUTIONS", "100"))
AT_ONCE: Final = int(os.environ.get("AT_ONCE", "8"))
ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
NODES: Final = int(os.environ.get("NODES", "10"))
PROFILE: Final = os.environ.get("PROFILE", "")
VALUES: Final = json.loads(os.environ.get("VALUES", "{}"))
REST_SECONDS: Final = 10
PROFILE_SECONDS: Final = 20
POOL: Final = "cost"
ASKED: Final = Request(agent="cost", timeout_seconds=60, limits=Limits(**LIMITS))
TICKS: Final = os.sysconf("SC_CLK_TCK")
CONTROL_PLANE: Final = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager")
CLIENT, NODES_NAME, OPERATOR = "client", "simulated nodes", "operator"
_SAMPLE: Final = re.compile(r"^(\w+)\{(.*)\} (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


# --- the client, a process of its own ---


async def call(kubeconfig: str) -> None:
    """For each line on stdin as many calls, and a line with how many seconds they took."""
    async with CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig=kubeconfig)) as client:
        for line in iter(sys.stdin.readline, ""):
            left, begun = int(line), time.perf_counter()

            async def caller() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    result = await client.execute([PreparedBlock("python", b'print("hello")')], ASKED)
                    assert result.output == "hello\n", result

            await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
            print(time.perf_counter() - begun, flush=True)


# --- what is read ---


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / TICKS


def requests_so_far(stage: Stage) -> Counter[str]:
    """How many requests the API server has answered, and asked etcd, by what they are."""
    text = stage.admin.connection.request("GET", "/metrics").data.decode()
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if not line.startswith(("apiserver_request_total{", "etcd_request_duration_seconds_count{")):
            continue
        name, labels, value = _SAMPLE.fullmatch(line).groups()  # type: ignore[union-attr]
        label = dict(_LABEL.findall(labels))
        if name == "apiserver_request_total":
            resource = "/".join(filter(None, (label["resource"], label["subresource"])))
            found[f"{label['verb']} {resource}"] += round(float(value))
        else:
            found[f"etcd {label['operation']} {label.get('resource') or label.get('type')}"] += round(float(value))
    return found


class Meter:
    """CPU time of the processes, from when it was made."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes, self._begun = processes, time.monotonic()
        self._before = {name: cpu_seconds(pid) for name, pid in processes.items()}

    def read(self) -> tuple[dict[str, float], float]:
        """Seconds of each, and how long that was."""
        return {name: cpu_seconds(pid) - self._before[name] for name, pid in self._processes.items()}, (
            time.monotonic() - self._begun
        )


# --- the measurement ---


class Measurement:
    """One control plane, its operator and its client."""

    def __init__(self, stage: Stage, operator: OperatorProcess, client: Process) -> None:
        self._stage, self._client = stage, client
        self.processes = {name: one.pid for name, one in stage.plane.programs.items()}
        self.processes |= {OPERATOR: operator.pid, NODES_NAME: os.getpid(), CLIENT: client.pid}

    def fill(self) -> None:
        """Until there is a ready pod for each call, and no other pod."""
        spec = {"replicas": EXECUTIONS, "limits": LIMITS}
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "SandboxPool"}
        self._stage.admin.apply({**kind, "metadata": {"name": POOL, "namespace": SANDBOX}, "spec": spec})
        self._settle(EXECUTIONS)

    def _settle(self, made: int) -> None:
        """Until so many pods were made, all of the pool are ready, and no other is there."""
        kubelets = self._stage.nodes.kubelets
        wait_for("the pods to be made", lambda: kubelets.counts.pods >= made, 300)
        wait_for("the pods that were used to go", lambda: len(kubelets._pods) == EXECUTIONS, 120)
        time.sleep(1.5)  # the pool's status is written a second late
        status = lambda: self._stage.admin.get("sandboxpool", POOL).get("status", {})  # noqa: E731
        wait_for("the pool to be full", lambda: status().get("readyReplicas") == EXECUTIONS, 60)

    async def calls(self, number: int) -> float:
        """Have so many calls made; seconds that they took."""
        assert self._client.stdin
        assert self._client.stdout
        self._client.stdin.write(f"{number}\n".encode())
        return float(await self._client.stdout.readline())

    async def round(self) -> dict[str, Any]:
        """Milliseconds of CPU of each process for one execution, and requests for one execution."""
        rest = Meter(self.processes)
        await asyncio.sleep(REST_SECONDS)
        resting, seconds = rest.read()
        idle = {name: one / seconds for name, one in resting.items()}
        made = self._stage.nodes.kubelets.counts.pods
        requests, meter = requests_so_far(self._stage), Meter(self.processes)
        lasted = await self.calls(EXECUTIONS)
        served = meter.read()
        await in_thread(self._settle, made + EXECUTIONS)
        whole = meter.read()
        requests = requests_so_far(self._stage) - requests
        serving, each = (
            {name: 1000 * (one - idle[name] * seconds) / EXECUTIONS for name, one in spent.items()}
            for spent, seconds in (served, whole)
        )
        return {
            "cpu_ms": each,
            "serving_ms": serving,
            "idle_cores": idle,
            "calls_seconds": lasted,
            "seconds": whole[1],
            "requests": {name: number / EXECUTIONS for name, number in requests.items()},
        }

    async def profile(self, path: str) -> None:
        """A CPU profile of the API server, while calls are made."""

        def fetch() -> None:
            answer = self._stage.admin.connection.request("GET", f"/debug/pprof/profile?seconds={PROFILE_SECONDS}")
            Path(path).write_bytes(answer.data)

        thread = threading.Thread(target=fetch)
        thread.start()
        while thread.is_alive():
            made = self._stage.nodes.kubelets.counts.pods
            await self.calls(EXECUTIONS)
            await in_thread(self._settle, made + EXECUTIONS)


async def play(stage: Stage, operator: OperatorProcess) -> list[dict[str, Any]]:
    """All rounds; the first is not counted."""
    kubeconfig = stage.agent_kubeconfig(SANDBOX)
    command = (sys.executable, __file__, kubeconfig)
    client = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    measurement = Measurement(stage, operator, client)
    await in_thread(measurement.fill)
    rounds = []
    for number in range(ROUNDS + 1):
        found = await measurement.round()
        print(f"round {number}: {total(found):.1f} ms of CPU each", file=sys.stderr, flush=True)
        rounds += [found] if number else []
    if PROFILE:
        await measurement.profile(PROFILE)
    assert client.stdin
    client.stdin.close()
    await client.wait()
    return rounds


def total(found: Mapping[str, Any], *names: str, kind: str = "cpu_ms") -> float:
    """CPU of these processes for one execution, or of all."""
    return sum(one for name, one in found[kind].items() if not names or name in names)


def report(rounds: list[dict[str, Any]]) -> None:
    """Print what was found."""
    for kind, title in (("serving_ms", "while calls are served"), ("cpu_ms", "until the pool is full again")):
        print(f"{f'CPU for one execution, {title}':<60}{'median':>10}{'of the rounds':>40}")
        rows = {name: [one[kind][name] for one in rounds] for name in rounds[0][kind]}
        rows["control plane and operator"] = [total(one, OPERATOR, *CONTROL_PLANE, kind=kind) for one in rounds]
        rows["all"] = [total(one, kind=kind) for one in rounds]
        for name, values in rows.items():
            of = ", ".join(f"{one:.1f}" for one in values)
            print(f"{name:<60}{statistics.median(values):>7.1f} ms{of:>40}")
    print(f"\n{'requests for one execution':<60}")
    names = {name for one in rounds for name in one["requests"]}
    shown = {name: statistics.median(one["requests"].get(name, 0) for one in rounds) for name in names}
    for name, number in sorted(shown.items(), key=lambda item: (item[0].startswith("etcd"), -item[1])):
        if number >= 0.04:
            print(f"{name:<60}{number:>8.2f}")


def main() -> None:
    """On a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder), nodes=NODES, values=VALUES) as stage:
        operator = stage.operator(direct=True)
        operator.start()
        try:
            rounds = asyncio.run(play(stage, operator))
        finally:
            operator.end()
    report(rounds)
    path = ROOT / ".codeexec" / "cost.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rounds, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(call(sys.argv[1]))
    else:
        main()
