"""Loads the control plane as agent-sandbox's own CI does: 75 executions/s for 10 s, pool of 1,050, 100 nodes.

Run by `make load`; docs/scale.md says what it shows and what it can't. The nodes are simulated
(`simulated_kubelets.py`); API server, etcd, scheduler, operator and client are real. Prints tables and writes
`.codeexec/load.json`.

Environment: NODES, POOL, RATE (executions/s), SECONDS, CLIENTS (processes that call); STEPS, rates to try if the gate
is not met, to find the highest that meets it; HELM_ARGS, for the operator that is loaded. Ends with 1 if an answer was
wrong or missing, or a pod was used twice, whatever the times are.
"""

import asyncio
import json
import math
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cpu import MACHINE, STOLEN, Meter, Seconds, process_of_pod, spent
from kubernetes.aio import client, config, watch
from stage import NAMESPACE, POOL, Stage

from codeexec_api import CodeExecution

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT

NODES = int(os.environ.get("NODES", "100"))
REPLICAS = int(os.environ.get("POOL", "1050"))
RATE = float(os.environ.get("RATE", "75"))
DURATION = float(os.environ.get("SECONDS", "10"))
CLIENTS = int(os.environ.get("CLIENTS", "2"))
STEPS = [float(one) for one in os.environ.get("STEPS", "5,10,20,30,40").split(",") if one]
GATE: Final = {"p50": 0.300, "p90": 0.300, "p99": 0.500}
"""Of kubernetes-sigs/agent-sandbox, in seconds until a claim has its sandbox.

See dev/ci/presubmits/test-e2e-scalability-kwok there.
"""
STALLED_SECONDS: Final = 120
"""A pool that has not come further for so long comes no further."""
REST_SECONDS: Final = 20
LEAD_SECONDS: Final = 2
"""From the readiness of all to the first call."""
READING_SECONDS: Final = 0.5
"""How long before the first call the CPU times are read, which takes a part of that."""
SETTLED_SECONDS: Final = 1.5
"""The status of a pool is written a second after something has changed; before that it may seem full."""
WHERE: Final = ("codeexec.dev", "v1alpha1", NAMESPACE)


@dataclass(frozen=True)
class Filling:
    """How the pool became full."""

    replicas: int
    ready: int
    seconds: float
    most_pods: int
    """That existed at the same time."""
    cpu: Seconds
    condition: str
    """What the pool says, if it did not become full."""


@dataclass(frozen=True)
class Step:
    """What came of one rate."""

    rate: float
    calls: int
    right: int
    wrong: int
    failed: int
    errors: Mapping[str, int]
    pods_used_twice: int
    e2e: Mapping[str, float]
    """Percentiles, in seconds, from when a call was due to its caller having the output; never, for a failed one."""
    adoption: Mapping[str, float]
    """To the record's own time of the start of the code: the execution has its pod."""
    lateness: Mapping[str, float]
    """Of the callers: from when a call was due to when it was made. Part of the above."""
    seconds: float
    """From the first call to the last result."""
    throughput: float
    cpu: Seconds
    """While the calls were served."""
    measured_seconds: float
    """How long that was."""
    cpu_with_refill: Seconds
    """Until the pool was full again."""
    refill_seconds: float

    @property
    def met(self) -> bool:
        return all(self.e2e[name] <= limit for name, limit in GATE.items())


class Callers:
    """The processes that call."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    @classmethod
    async def start(cls, count: int, kubeconfig: str) -> "Callers":
        command = [sys.executable, str(Path(__file__).with_name("callers.py"))]
        pipe, environment = asyncio.subprocess.PIPE, os.environ | {"KUBECONFIG": kubeconfig}
        started = [
            await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment, limit=2**26)
            for _ in range(count)
        ]
        callers = cls(started)
        await asyncio.gather(*(callers._read(one) for one in started))
        return callers

    @property
    def ids(self) -> list[int]:
        return [one.pid for one in self._processes]

    async def call(self, agent: str, rate: float, first: float) -> list[dict[str, Any]]:
        """Make calls from this time on, evenly spread over the processes and over the time; what came of each."""
        due = [first + number / rate for number in range(round(rate * DURATION))]
        share = len(self._processes)
        jobs = (self._ask(one, agent, due[index::share]) for index, one in enumerate(self._processes))
        return [outcome for outcomes in await asyncio.gather(*jobs) for outcome in outcomes]

    async def _ask(self, process: asyncio.subprocess.Process, agent: str, due: Sequence[float]) -> list[dict[str, Any]]:
        assert process.stdin
        process.stdin.write(json.dumps({"agent": agent, "due": due}).encode() + b"\n")
        answer: list[dict[str, Any]] = await self._read(process)
        return answer

    @staticmethod
    async def _read(process: asyncio.subprocess.Process) -> Any:
        assert process.stdout
        line = await process.stdout.readline()
        assert line, "a calling process has ended; what it said stands above"
        return json.loads(line)

    async def aclose(self) -> None:
        for one in self._processes:
            assert one.stdin
            one.stdin.close()
        await asyncio.gather(*(one.wait() for one in self._processes))


class Load:
    """The test, once everything is there."""

    def __init__(self, stage: Stage, api: client.ApiClient, meter: Meter, callers: Callers) -> None:
        self._stage, self._meter, self._callers = stage, meter, callers
        self._custom = client.CustomObjectsApi(api)

    async def fill(self, replicas: int) -> Filling:
        """Have a pool of so many, and wait until it is full or comes no further."""
        before, begun = self._meter.read(), time.monotonic()
        self._stage.make_pool(replicas)
        pool = await self._until_full(replicas, "filling")
        cpu = spent(before, self._meter.read())
        status = pool.get("status", {})
        [shown] = [one for one in status.get("conditions", ()) if one["type"] == "Ready"] or [{}]
        ready = status.get("readyReplicas", 0)
        return Filling(
            replicas=replicas,
            ready=ready,
            seconds=time.monotonic() - begun,
            most_pods=self._stage.simulator.counts()["most_waiting"],
            cpu=cpu,
            condition="" if ready >= replicas else f"{shown.get('reason')}: {shown.get('message')}",
        )

    async def _until_full(self, replicas: int, what: str) -> Mapping[str, Any]:
        """The pool, when it is full or has stalled. Its status is written about once a second."""
        seen: dict[str, Any] = {}
        begun = moved = time.monotonic()
        most = -1
        stream = watch.Watch()
        call = self._custom.list_namespaced_custom_object
        while time.monotonic() - moved < STALLED_SECONDS:
            events = stream.stream(
                call, *WHERE, "sandboxpools", field_selector=f"metadata.name={POOL}", timeout_seconds=5
            )
            async for event in events:
                seen = event["object"]
                status = seen.get("status", {})
                ready = status.get("readyReplicas", 0)
                idle = not status.get("claimedReplicas") and not status.get("queued")
                current = status.get("observedGeneration") == seen["metadata"]["generation"]
                if ready > most:
                    most, moved = ready, time.monotonic()
                    print(f"  {what}: {ready} of {replicas} ready after {moved - begun:.0f} s", file=sys.stderr)
                if current and idle and ready >= replicas:
                    return seen
                if time.monotonic() - moved >= STALLED_SECONDS:
                    break
        return seen

    async def rest(self) -> dict[str, float]:
        """CPU that is used while nothing happens, in cores."""
        before, begun = self._meter.read(), time.monotonic()
        await asyncio.sleep(REST_SECONDS)
        lasted = time.monotonic() - begun
        return {name: seconds / lasted for name, seconds in spent(before, self._meter.read()).items()}

    async def step(self, rate: float, replicas: int) -> Step:
        """Call at this rate, look at the records, and wait until the pool is full again."""
        agent = f"load-{time.time_ns() % 10**9:09}"
        print(f"  {rate:g}/s for {DURATION:g} s", file=sys.stderr)
        first = time.time() + LEAD_SECONDS
        calling = asyncio.create_task(self._callers.call(agent, rate, first))
        await asyncio.sleep(LEAD_SECONDS - READING_SECONDS)
        before, reading = self._meter.read(), time.monotonic()
        outcomes = await calling
        cpu, refilling = spent(before, self._meter.read()), time.monotonic()
        await asyncio.sleep(SETTLED_SECONDS)
        await self._until_full(replicas, "refilling")
        whole, refill_seconds = spent(before, self._meter.read()), time.monotonic() - refilling
        records = await self._records(agent)
        ended = [one for one in outcomes if "ended" in one]
        begun = [(records[one["name"]].status.started_at, one["due"]) for one in ended if one["name"] in records]
        lasted = max((one["ended"] for one in ended), default=math.inf) - min(one["due"] for one in outcomes)
        return Step(
            rate=rate,
            calls=len(outcomes),
            right=sum(one["right"] for one in ended),
            wrong=sum(not one["right"] for one in ended),
            failed=len(outcomes) - len(ended),
            errors=dict(Counter(one["error"] for one in outcomes if "error" in one)),
            pods_used_twice=_repeated(one.status.pod_name for one in records.values()),
            e2e=percentiles([one["ended"] - one["due"] for one in ended], len(outcomes)),
            adoption=percentiles([at.timestamp() - due for at, due in begun if at], len(outcomes)),
            lateness=percentiles([one["begun"] - one["due"] for one in outcomes], len(outcomes)),
            seconds=lasted,
            throughput=len(ended) / lasted,
            cpu=cpu,
            measured_seconds=refilling - reading,
            cpu_with_refill=whole,
            refill_seconds=refill_seconds,
        )

    async def _records(self, agent: str) -> dict[str, CodeExecution]:
        """What the cluster has kept of the calls, by name."""
        found: dict[str, CodeExecution] = {}
        token = None
        while token != "":
            page: Any = await self._custom.list_namespaced_custom_object(
                *WHERE, "codeexecutions", limit=200, _continue=token
            )
            for raw in page["items"]:
                if raw["spec"]["source"]["agent"] == agent:
                    found[raw["metadata"]["name"]] = CodeExecution.parse(raw)
            token = page["metadata"].get("continue", "")
        return found


def _repeated(names: Iterator[str]) -> int:
    return sum(count > 1 for name, count in Counter(names).items() if name)


def percentiles(seconds: Sequence[float], count: int) -> dict[str, float]:
    """By nearest rank, of `count` values; those that are not there took for ever."""
    ordered = sorted(seconds) + [math.inf] * (count - len(seconds))
    return {name: ordered[math.ceil(share * count) - 1] for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


# --- what is printed ---


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:>7.0f} ms" if math.isfinite(seconds) else f"{'never':>10}"


def print_steps(steps: Sequence[Step]) -> None:
    """Each rate beside the gate."""
    print(f"\n{'rate':<14}{'':<28}{'p50':>10}{'p90':>10}{'p99':>10}   gate (on e2e)")
    print(f"{'':<14}{'the gate':<28}" + "".join(_milliseconds(one) for one in GATE.values()))
    for step in steps:
        for name, values in (("e2e", step.e2e), ("to the start of the code", step.adoption)):
            verdict = ("met" if step.met else "NOT met") if name == "e2e" else ""
            label = f"{step.rate:g}/s" if name == "e2e" else ""
            print(f"{label:<14}{name:<28}" + "".join(map(_milliseconds, values.values())) + f"   {verdict}")
        print(
            f"{'':<14}{step.calls} calls: {step.right} right, {step.wrong} wrong, {step.failed} failed; "
            f"{step.throughput:.1f}/s reached, {step.seconds:.1f} s; pods used twice: {step.pods_used_twice}; "
            f"callers late by {step.lateness['p99'] * 1000:.0f} ms (p99); "
            f"the pool is full again {step.refill_seconds:.0f} s later"
        )
        for error, count in step.errors.items():
            print(f"{'':<14}{count} x {error}")


def print_cpu(steps: Sequence[Step], rest: Seconds) -> None:
    """CPU of each for an execution, and its share of the machine."""
    print(f"\n{'CPU':<26}{'at rest':>12}" + "".join(f"{f'{one.rate:g}/s':>28}" for one in steps))
    print(f"{'':<26}{'cores':>12}" + "".join(f"{'ms each':>10}{'+refill':>10}{'cores':>8}" for _ in steps))
    for name in rest:
        figures = ""
        for step in steps:
            each, whole = (1000 * one[name] / step.calls for one in (step.cpu, step.cpu_with_refill))
            figures += f"{each:>10.1f}{whole:>10.1f}{step.cpu[name] / step.measured_seconds:>8.2f}"
        print(f"{name:<26}{rest[name]:>12.2f}{figures}")


def print_limit(step: Step) -> None:
    """Who had how much of the machine when the gate was missed: observed, not concluded."""
    cores = {name: seconds / step.measured_seconds for name, seconds in step.cpu.items()}
    busy, stolen = cores.pop(MACHINE), cores.pop(STOLEN)
    most = sorted(cores, key=lambda name: -cores[name])[:5]
    print(
        f"\nat {step.rate:g}/s, which missed the gate, {busy:.2f} of {os.cpu_count()} cores were busy on average "
        f"({stolen:.2f} more were stolen): " + ", ".join(f"{name} {cores[name]:.2f}" for name in most) + "; "
        f"the operator is one thread and can't use more than 1.00: it used {cores['operator']:.2f}"
    )


@contextmanager
def results() -> Iterator[dict[str, Any]]:
    """What is written to a file in the end, also after a failure."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    found: dict[str, Any] = {
        "machine": machine,
        "simulated": "nodes, containers, runners; see tests/scale/simulated_kubelets.py",
        "parameters": {"nodes": NODES, "pool": REPLICAS, "rate": RATE, "seconds": DURATION, "clients": CLIENTS},
        "gate_s": GATE,
    }
    try:
        yield found
    finally:
        path = ROOT / ".codeexec" / "load.json"
        path.write_text(json.dumps(found, indent=2, default=str) + "\n")
        print(f"\n{machine}; all figures: {path.relative_to(ROOT)}")


async def run(stage: Stage, found: dict[str, Any]) -> bool:
    """The whole test; False if something was wrong, however fast."""
    pod = stage.operator()
    process = process_of_pod(stage.node, pod["metadata"]["uid"], "codeexec_operator")
    callers = await Callers.start(CLIENTS, stage.agent_kubeconfig)
    ours = {"callers (our client)": callers.ids, "simulator": [stage.simulator.process.pid]}
    meter = Meter(stage.node, process, ours)
    configuration = client.Configuration()
    await config.load_kube_config(stage.kubeconfig, client_configuration=configuration)
    async with client.ApiClient(configuration) as api, aclosing(callers):
        load = Load(stage, api, meter, callers)
        filling = await load.fill(REPLICAS)
        found["filling"] = asdict(filling)
        over = max(0, filling.most_pods - REPLICAS)
        print(
            f"\npool of {REPLICAS} on {NODES} simulated nodes: {filling.ready} ready after {filling.seconds:.0f} s; "
            f"at most {filling.most_pods} pods at once, {over} too many; "
            f"the operator took {filling.cpu['operator']:.1f} s of CPU"
        )
        if filling.condition:
            print(f"the pool did not become full, so nothing was called. It says: {filling.condition}")
            print(f"connections to runners: at most {stage.simulator.counts()['most_attached']} at once")
            found["simulator"] = stage.simulator.counts()
            found["operator_memory_mib"] = meter.operator_memory()
            return False
        found["at_rest_cores"] = rest = await load.rest()
        steps = await _steps(load)
        found["steps"] = [asdict(one) | {"met": one.met} for one in steps]
        found["operator_memory_mib"] = memory = meter.operator_memory()
        found["simulator"] = counts = stage.simulator.counts()
        restarts = stage.operator()["status"]["containerStatuses"][0]["restartCount"]
        found["operator_restarts"] = restarts
    print_steps(steps)
    print_cpu(steps, rest)
    print(f"\noperator: {memory['now']:.0f} MiB resident, {memory['peak']:.0f} MiB at most, {restarts} restarts")
    used = sum(one.calls - one.failed for one in steps)
    print(
        f"pods: {counts['pods']} made, {counts['jobs']} given code for {used} answers, {counts['waiting']} waiting, "
        f"{counts['pods_used_twice']} given code twice"
    )
    if missed := [one for one in steps if not one.met]:
        print_limit(missed[0])
    met = [one.rate for one in steps if one.met]
    print(f"highest rate that met the gate: {max(met):g}/s" if met else "no rate that was tried met the gate")
    bad = sum(one.wrong + one.failed + one.pods_used_twice for one in steps) + counts["pods_used_twice"] + restarts
    return not bad


async def _steps(load: Load) -> list[Step]:
    """The rate that is asked for; if it doesn't meet the gate, then from below until one doesn't."""
    steps = [await load.step(RATE, REPLICAS)]
    for rate in STEPS if not steps[0].met else ():
        steps.append(await load.step(rate, REPLICAS))
        if not steps[-1].met:
            break
    return sorted(steps, key=lambda one: one.rate)


def main() -> None:
    pods = 2 * REPLICAS + round(RATE * DURATION) + 100
    with results() as found:
        print(f"putting up {NODES} simulated nodes and an operator of their own", file=sys.stderr)
        with Stage(nodes=NODES, pods=pods, helm_args=os.environ.get("HELM_ARGS", "").split()) as stage:
            well = asyncio.run(run(stage, found))
            print("taking everything away again", file=sys.stderr)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
