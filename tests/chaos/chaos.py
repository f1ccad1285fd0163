"""Runs executions while everything around them goes and comes back, and prints what became of them: `make chaos`.

The cluster is that of the component tier: a real API server, etcd, scheduler and controller manager, simulated nodes
whose runners do what code says, and two operators as processes. CHAOS_EXECUTIONS (1000) executions, CHAOS_AT_ONCE (20)
at a time, and CHAOS_SESSIONS (20) sessions run while trouble comes:

- every 15 s, in turn: the leader is killed; all operators are restarted, one after the other
- every 60 s, in turn: the API server and etcd are killed and restarted
- every 20 s, in turn: a tenant is added, and removed
- every 10 s: a pod in which code runs is deleted

What counts stands in the records, and in the runners, which count what they began. Ends with 1 if anything is lost that
ran in a pod that was left alone, or is wrong, double or hung.
"""

import asyncio
import itertools
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cluster_tools import SANDBOX, TERMINAL
from component_stage import LIMITS, Stage
from operator_process import OperatorProcess

from executor_client import ClusterRef, CodeExecError, CodeExecutionClient, Limits, PreparedBlock, Request

EXECUTIONS: Final = int(os.environ.get("CHAOS_EXECUTIONS", "1000"))
AT_ONCE: Final = int(os.environ.get("CHAOS_AT_ONCE", "20"))
SESSIONS: Final = int(os.environ.get("CHAOS_SESSIONS", "20"))
TENANT: Final = "chaos-tenant"
PATIENCE: Final = 180
"""Seconds after the last execution was asked for, in which all records have to end."""
LOST_WITHIN: Final = 15
"""Seconds in which the record has to say that a pod was deleted."""
GAP: Final = 20
"""Seconds without any progress."""


class Trouble:
    """What goes and comes back."""

    def __init__(self, stage: Stage, operators: list[OperatorProcess], records: "Records") -> None:
        self.deleted: dict[str, float] = {}
        """Pods that were deleted, and when."""
        self.counts: Counter[str] = Counter()
        self._stage, self._operators, self._records = stage, operators, records
        self._changing = asyncio.Lock()
        self._random = random.Random(20261123)

    async def run(self) -> None:
        """Until it is cancelled."""
        operators = itertools.cycle((self._kill_leader, self._roll))
        servers = itertools.cycle((self._restart_api_server, self._restart_etcd))
        tenants = itertools.cycle((self._add_tenant, self._remove_tenant))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(20, lambda: next(tenants)()))
            group.create_task(self._every(15, lambda: next(operators)()))
            group.create_task(self._every(60, lambda: next(servers)()))
            group.create_task(self._every(10, self._delete_pod))

    async def _every(self, seconds: float, cause: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await cause()

    async def _kill_leader(self) -> None:
        async with self._changing:
            leader = await asyncio.to_thread(self._leader)
            await asyncio.to_thread(leader.kill, keeps_lease=True)
            self.counts["leaders killed"] += 1
            await asyncio.to_thread(leader.start, ready=False)

    async def _roll(self) -> None:
        async with self._changing:
            for one in self._operators:
                await asyncio.to_thread(one.stop)
                await asyncio.to_thread(one.start, ready=False)
            self.counts["rolling restarts"] += 1

    def _leader(self) -> OperatorProcess:
        return next((one for one in self._operators if one.running and one.leads), self._operators[0])

    async def _restart_api_server(self) -> None:
        await asyncio.to_thread(self._stage.plane.restart_api_server, signal.SIGKILL)
        self.counts["API server restarts"] += 1

    async def _restart_etcd(self) -> None:
        await asyncio.to_thread(self._stage.plane.stop_etcd)
        await asyncio.to_thread(self._stage.plane.start_etcd)
        self.counts["etcd restarts"] += 1

    async def _add_tenant(self) -> None:
        await _patiently(lambda: self._stage.upgrade(namespaces=(SANDBOX, TENANT)))
        self.counts["tenants added"] += 1

    async def _remove_tenant(self) -> None:
        await _patiently(lambda: self._stage.upgrade(namespaces=(SANDBOX,)))
        self.counts["tenants removed"] += 1

    async def _delete_pod(self) -> None:
        running = [one for one in self._records.all if _phase(one) == "Running" and "sessionRef" not in one["spec"]]
        if not running:
            return
        pod = self._random.choice(running)["status"]["podName"]
        self.deleted[pod] = time.time()
        await _patiently(lambda: self._stage.admin.delete("pod", pod, gracePeriodSeconds=0))
        self.counts["pods deleted"] += 1


async def _patiently(call: Callable[[], Any]) -> Any:
    """What is asked of an API server that may be away."""
    for _ in range(60):
        try:
            return await asyncio.to_thread(call)
        except Exception:
            await asyncio.sleep(0.5)
    return await asyncio.to_thread(call)


class Records:
    """All records, read once a second for whoever waits."""

    def __init__(self, stage: Stage) -> None:
        self.all: list[dict[str, Any]] = []
        self._stage = stage
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self.all = await _patiently(self._stage.records)
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(1)

    async def over(self, agents: Container[str]) -> None:
        """Wait until each record of these agents has ended, and there is any; no longer than PATIENCE."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE), self._changed:
                await self._changed.wait_for(lambda: self._ended(agents))

    def _ended(self, agents: Container[str]) -> bool:
        theirs = [one for one in self.all if one["spec"]["source"]["agent"] in agents]
        return bool(theirs) and all(_phase(one) in TERMINAL for one in theirs)


async def ask(client: CodeExecutionClient, stage: Stage, agent: str, session: str | None = None) -> None:
    """Have one execution recorded, whatever it takes; its result is looked for in the record."""
    code = f'print("{agent}")\nwait({random.choice((0, 0, 1, 3))})\nprint("done")'
    block = PreparedBlock("python", code.encode())
    request = Request(agent=agent, timeout_seconds=60, limits=Limits(**LIMITS))
    while True:
        try:
            await client.submit((block,), request, session=session)
        except CodeExecError:  # the answer may have been lost
            if await _patiently(lambda: stage.records(agent=agent)):
                return
            await asyncio.sleep(0.5)
        else:
            return


def judge(record: Mapping[str, Any], stage: Stage, deleted: Mapping[str, float]) -> str:
    """What became of one execution."""
    status, agent = record.get("status", {}), record["spec"]["source"]["agent"]
    begun = stage.script.jobs[record["metadata"]["uid"]]
    if begun > 1:
        return "double"
    if status.get("phase") not in TERMINAL:
        return "hung"
    if status["phase"] == "Succeeded":
        return "right" if status["stdout"]["text"] == f"{agent}\ndone\n" and begun == 1 else "wrong"
    if status.get("podName") in deleted and status["phase"] in ("Lost", "Failed"):
        return "pod deleted, told late" if told_after(record, deleted) > LOST_WITHIN else "pod deleted"
    return "lost" if status["phase"] == "Lost" else f"wrong ({status['phase']}: {status['reason']})"


def told_after(record: Mapping[str, Any], deleted: Mapping[str, float]) -> float:
    """How many seconds after its pod was deleted an execution ended; 0 if no pod of its was."""
    status = record.get("status", {})
    if status.get("phase") in TERMINAL and status.get("podName") in deleted:
        return _time(status["finishedAt"]) - deleted[status["podName"]]
    return 0.0


def _phase(record: Mapping[str, Any]) -> str:
    return str(record.get("status", {}).get("phase", ""))


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def longest_gap(records: list[dict[str, Any]]) -> float:
    """Longest time, in seconds, in which code neither started nor ended."""
    found = (one.get("status", {}).get(name) for one in records for name in ("startedAt", "finishedAt"))
    moments = sorted(_time(moment) for moment in found if moment)
    return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=0.0)


async def play(stage: Stage, operators: list[OperatorProcess]) -> int:
    """The whole run. Returns the exit code."""
    records = Records(stage)
    trouble = Trouble(stage, operators, records)
    async with CodeExecutionClient(ClusterRef(kubeconfig=stage.agent_kubeconfig(), namespace=SANDBOX)) as client:
        request = Request(agent="chaos-sessions", limits=Limits(**LIMITS))
        opening = [client.open_session(request, outlives_client=True, wait=True) for _ in range(SESSIONS)]
        sessions = [one.name for one in await asyncio.gather(*opening)]
        begun = time.monotonic()
        tasks = [asyncio.create_task(one.run()) for one in (records, trouble)]
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with turns:
                agent = f"chaos-{number}-{secrets.token_hex(4)}"
                in_session = sessions[number // 4 % SESSIONS] if SESSIONS and number % 4 == 0 else None
                await ask(client, stage, agent, in_session)
                await records.over({agent})

        await asyncio.gather(*map(one, range(EXECUTIONS)))
        seconds = time.monotonic() - begun
        for task in tasks:
            task.cancel()
    return report(await _patiently(stage.records), stage, trouble, seconds)


def report(records: list[dict[str, Any]], stage: Stage, trouble: Trouble, seconds: float) -> int:
    """Print the table, and return the exit code."""
    verdicts = Counter(judge(one, stage, trouble.deleted) for one in records)
    gap = longest_gap(records)
    causes = ", ".join(f"{count} {what}" for what, count in trouble.counts.items())
    print(f"{len(records)} executions in {seconds:.0f} s; {causes}")
    for verdict, count in verdicts.most_common():
        print(f"  {verdict:24}{count:6}")
    told = max((told_after(one, trouble.deleted) for one in records), default=0.0)
    print(f"  {'longest gap':24}{gap:6.1f} s\n  {'a deleted pod, told after':24}{told:6.1f} s at most")
    for one in records:
        if judge(one, stage, trouble.deleted) not in ("right", "pod deleted"):
            status = one.get("status", {})
            print(f"  {one['metadata']['name']}: {status.get('phase')}/{status.get('reason')}: {status.get('message')}")
    good = set(verdicts) <= {"right", "pod deleted"} and gap <= GAP
    print("all promises were kept" if good else "PROMISES WERE BROKEN")
    return 0 if good else 1


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stage = stack.enter_context(Stage(Path(folder)))
        operators = [stage.operator(direct=True, lease_seconds=10) for _ in range(2)]
        for one in operators:
            stack.callback(one.end)
            one.start(leads=one is operators[0])
        return asyncio.run(play(stage, operators))


if __name__ == "__main__":
    sys.exit(main())
