"""Many idle sessions on one node: what each takes, and what a working neighbour notices of them.

The figures of pods are the kubelet's. Everything has the limits that users get by default.
"""

import asyncio
import json
import os
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cluster_tools import SANDBOX
from kubernetes.aio import client
from measuring import progress, timed
from tables import Table, table

from codeexec_api.names import SESSION_LABEL
from executor_client import CodeExecutionClient, Request, SourceBlock, prepare
from executor_client.client.session import Session

IDLE = int(os.environ.get("IDLE", "40"))
"""Sessions; every second one is stateful."""
REST_SECONDS = float(os.environ.get("IDLE_SECONDS", "60"))
OPENED_AT_ONCE = 4
SETTLE_SECONDS = 30
"""The kubelet measures every ten seconds or so."""
ALONE, BESIDE = "a working session, alone", f"codeexec: a working session beside {IDLE} idle ones"
_QUOTA = "codeexec"
_BLOCKS = prepare([SourceBlock("python", "print(1)")]).blocks

PodFigures = Mapping[str, tuple[float, float]]
"""By name of the pod: memory in bytes, and CPU so far in seconds."""


def figures_of(summary: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Of these pods, as a kubelet's summary has them. Pure."""
    found = {}
    for pod in summary["pods"]:
        memory = (pod.get("memory") or {}).get("workingSetBytes")
        cpu = (pod.get("cpu") or {}).get("usageCoreNanoSeconds")
        if pod["podRef"]["name"] in names and memory is not None and cpu is not None:
            found[pod["podRef"]["name"]] = memory, cpu / 1e9
    return found


def killed(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of pods that ran out of memory or were evicted. Pure."""
    return [one["metadata"]["name"] for one in pods if _was_killed(one["status"])]


def _was_killed(status: Mapping[str, Any]) -> bool:
    states = [one[key] for one in status.get("containerStatuses") or () for key in ("state", "lastState") if key in one]
    reasons = [(one.get("terminated") or {}).get("reason") for one in states]
    return status.get("reason") == "Evicted" or "OOMKilled" in reasons


def summed_up(before: PodFigures, after: PodFigures, seconds: float, stateful: Sequence[str]) -> dict[str, float]:
    """Memory of an idle session in MiB, by whether it is stateful, and CPU of all of them in cores. Pure."""
    memory = {
        kind: [after[name][0] / 2**20 for name in after if (name in stateful) == (kind == "stateful")]
        for kind in ("plain", "stateful")
    }
    used = sum(after[name][1] - before[name][1] for name in after if name in before)
    return {f"{kind}_mib": statistics.median(values) for kind, values in memory.items() if values} | {
        "idle_cores": used / seconds
    }


async def density(api: client.ApiClient, runs: int) -> tuple[Table, dict[str, Any]]:
    """The neighbour's calls without and with idle sessions, and what these take."""
    core = client.CoreV1Api(api)
    request = Request(agent="bench-density")
    async with _room(core), CodeExecutionClient() as caller:
        working = await caller.open_session(request, wait=True)
        alone = await _calls(working, runs)
        sessions = await _open(caller, request)
        try:
            facts = await _look(core, sessions)
            beside = await _calls(working, runs)
            facts["killed"] = killed(await _pods(core))
        finally:
            await asyncio.gather(*(one.end() for one in sessions))
        alone += await _calls(working, runs)
        await working.end()
    ratio = {"beside idle ones / this": BESIDE}
    return table("density", "a call in a session", {ALONE: alone, BESIDE: beside}, ratio), facts


async def _open(caller: CodeExecutionClient, request: Request) -> list[Session]:
    turn = asyncio.Semaphore(OPENED_AT_ONCE)

    async def one(number: int) -> Session:
        async with turn:
            session = await caller.open_session(request, stateful=bool(number % 2), wait=True)
            result = await session.execute(_BLOCKS)  # an idle session is one that has worked
            assert result.output == "1\n", result
            return session

    sessions = await asyncio.gather(*map(one, range(IDLE)))
    progress(f"density: {IDLE} sessions are open")
    return list(sessions)


async def _look(core: client.CoreV1Api, sessions: Sequence[Session]) -> dict[str, Any]:
    names = [one.name for one in sessions]
    pods = {one["metadata"]["labels"].get(SESSION_LABEL): one for one in await _pods(core)}
    ours = {pods[name]["metadata"]["name"]: pods[name]["spec"]["nodeName"] for name in names}
    stateful = [pods[name]["metadata"]["name"] for name in names[1::2]]
    await asyncio.sleep(SETTLE_SECONDS)
    before = await _figures(core, ours)
    await asyncio.sleep(REST_SECONDS)
    after = await _figures(core, ours)
    return {"idle": IDLE, "measured": len(after), **summed_up(before, after, REST_SECONDS, stateful)}


async def _calls(session: Session, runs: int) -> list[float]:
    times = []
    for number in range(2 + runs):
        seconds = await timed(lambda: session.execute(_BLOCKS))
        if number >= 2:
            times.append(seconds)
    return times


async def _figures(core: client.CoreV1Api, pods: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for node in set(pods.values()):
        # The generated method escapes the slash of the path.
        path = f"/api/v1/nodes/{node}/proxy/stats/summary"
        request = core.api_client.param_serialize("GET", path, auth_settings=["BearerToken"])
        answer: Any = (await core.api_client.call_api(*await request)).response
        body = await answer.read()
        assert answer.status == 200, f"the kubelet of {node} has no figures: {answer.status} {body!r}"
        found |= figures_of(json.loads(body), list(pods))
    return found


async def _pods(core: client.CoreV1Api) -> list[dict[str, Any]]:
    found: Any = await core.list_namespaced_pod(SANDBOX)
    return [core.api_client.sanitize_for_serialization(one) for one in found.items]


@asynccontextmanager
async def _room(core: client.CoreV1Api) -> AsyncIterator[None]:
    """The chart's quota has room for 20 pods."""
    found: Any = await core.read_namespaced_resource_quota(_QUOTA, SANDBOX)
    before = dict(found.spec.hard)
    pods = IDLE + 10
    more = {"pods": str(pods), "limits.cpu": str(pods), "limits.memory": f"{pods}Gi"}
    more["limits.ephemeral-storage"] = f"{pods}Gi"

    async def put(hard: Mapping[str, str | None]) -> None:
        patch = {"spec": {"hard": dict(hard)}}
        merge = "application/merge-patch+json"
        await core.patch_namespaced_resource_quota(_QUOTA, SANDBOX, patch, _content_type=merge)

    await put(before | more)
    try:
        yield
    finally:
        await put({**dict.fromkeys(more), **before})


def text(facts: Mapping[str, Any]) -> list[str]:
    """The facts as sentences. Pure."""
    lines = [f"{facts['idle']} idle sessions are on the node. The kubelet measured {facts['measured']} of them."]
    for kind, name in (("plain_mib", "An idle session"), ("stateful_mib", "An idle stateful session")):
        if kind in facts:
            lines.append(f"{name} has {facts[kind]:.0f} MiB of memory (median).")
    lines.append(f"All idle sessions together used {facts['idle_cores']:.3f} of a core.")
    gone = ", ".join(facts["killed"])
    lines.append(f"Killed for want of memory: {gone}." if gone else "No sandbox was killed for want of memory.")
    return lines
