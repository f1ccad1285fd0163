"""Runs real code for hours and says whether the operator grows: `make soak`. It changes the release.

First 500 executions, 20 at a time (`test_load.py` with LOAD_EXECUTIONS=500). Then SOAK_MINUTES (120) of mixed load on
the cluster that KUBECONFIG names: calls that succeed, fail, time out, are cancelled or denied, calls with files and
with much output, and sessions that end. Meanwhile the operator's memory, descriptors, threads and tasks, the records
and other objects are counted every SOAK_EVERY seconds (10) and written to .codeexec/reports/soak.csv. `growth.py` says
what each is, and which slope is too much. Ends with 1 if an answer was wrong, if the operator has started anew, or if
something grows. To try it, SOAK_MINUTES=3 SOAK_BURST=60 is enough: what each call leaves behind is found then, too.

Environment: SOAK_MINUTES, SOAK_EVERY, SOAK_CALLERS (4), SOAK_BURST (500; 0 leaves out the first part).
"""

import asyncio
import csv
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from codeexec_api.names import EXECUTION_PLURAL
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request, WorkspaceFile

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT, SANDBOX, SYSTEM, Admin, a_name, helm, upgrade_release
from growth import Sample, slopes

MINUTES: Final = float(os.environ.get("SOAK_MINUTES", "120"))
EVERY: Final = float(os.environ.get("SOAK_EVERY", "10"))
CALLERS: Final = int(os.environ.get("SOAK_CALLERS", "4"))
BURST: Final = int(os.environ.get("SOAK_BURST", "500"))
REPORTS: Final = ROOT / ".codeexec" / "reports"
SMALL: Final = Limits(cpu="100m", memory="96Mi")
READ: Final = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8082/metrics', timeout=9).read().decode())"


class Operator:
    """The operator's process, as its own metrics and its kernel tell of it."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._begun = self._started()
        self._before = self._count(EXECUTION_PLURAL)

    def sample(self, seconds: float, begun: int) -> Sample:
        metrics = {one.name: one.value for family in self._metrics() for one in family.samples}
        status = dict(line.split(":", 1) for line in self._in_pod("cat", "/proc/1/status").splitlines())
        memory = metrics["process_resident_memory_bytes"] / 2**20
        records = self._count(EXECUTION_PLURAL)
        return Sample(
            seconds,
            memory,
            descriptors=metrics["process_open_fds"],
            threads=int(status["Threads"]),
            tasks=metrics["codeexec_tasks"],
            objects=sum(map(self._count, ("pods", "secrets", "networkpolicies"))),
            records=records,
            surplus=records - self._before - begun,
        )

    @property
    def restarted(self) -> bool:
        return self._started() != self._begun

    def _count(self, kind: str) -> int:
        found = self._admin.connection.json("GET", self._admin.resource(kind).path(SANDBOX), limit=1)
        return len(found["items"]) + found["metadata"].get("remainingItemCount", 0)

    def _metrics(self) -> Iterator[Any]:
        return text_string_to_metric_families(self._in_pod("python3", "-I", "-c", READ))

    def _started(self) -> str:
        selector = "app.kubernetes.io/component=operator"
        path = "jsonpath={.items[*].status.containerStatuses[*].containerID}"
        return self._admin.kubectl("-n", SYSTEM, "get", "pods", "-l", selector, "-o", path)

    def _in_pod(self, *command: str) -> str:
        return self._admin.kubectl("-n", SYSTEM, "exec", "deployment/codeexec-operator", "--", *command)


class Load:
    """Callers that each begin the next call when the last has ended, of all kinds in turn."""

    def __init__(self, cluster: CodeExecutionClient, until: float) -> None:
        self._client, self._until, self._agent = cluster, until, a_name("soak")
        self.begun = 0
        """How many executions."""
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._caller(number) for number in range(CALLERS)))

    async def _caller(self, number: int) -> None:
        kinds: Sequence[Callable[[], Awaitable[None]]] = (
            *(self._prints, self._fails, self._much, self._session, self._denied, self._files),
            *(self._times_out, self._cancelled),
        )
        for kind in itertools.islice(itertools.cycle(kinds), number, None):
            if time.monotonic() >= self._until:
                return
            try:
                await kind()
            except Exception as error:  # the load goes on, and the verdict tells of it
                self._note(kind.__name__, f"{type(error).__name__}: {error}", "an answer")

    def _note(self, kind: str, found: Any, expected: Any) -> None:
        self.outcomes[kind if found == expected else f"{kind}: wrong"] += 1
        if found != expected:
            self.wrong.append(f"{kind}: {str(found)[:300]} instead of {str(expected)[:100]}")

    def _request(self, **changes: Any) -> Request:
        """For one execution."""
        self.begun += 1
        return Request(**{"agent": self._agent, "limits": SMALL, "timeout_seconds": 30, **changes})

    async def _phase(self, kind: str, code: str, phase: str, stdout: str = "", **changes: Any) -> None:
        result = await self._client.execute((PreparedBlock("python", code.encode()),), self._request(**changes))
        self._note(kind, (result.phase.value, result.stdout), (phase, stdout))

    async def _prints(self) -> None:
        word = os.urandom(6).hex()
        await self._phase("prints", f"print('{word}')", "Succeeded", f"{word}\n")

    async def _fails(self) -> None:
        await self._phase("fails", "import sys; sys.exit(3)", "Failed")

    async def _much(self) -> None:
        await self._phase("much output", "print('x' * 2_000_000)", "Succeeded", "x" * 2_000_000 + "\n")

    async def _denied(self) -> None:
        await self._phase("denied", "print(1)", "Denied", timeout_seconds=86_400)

    async def _times_out(self) -> None:
        await self._phase("times out", "import time; time.sleep(60)", "TimedOut", timeout_seconds=2)

    async def _cancelled(self) -> None:
        block = PreparedBlock("python", b"import time; print('on', flush=True); time.sleep(60)")
        execution = await self._client.submit((block,), self._request())
        async for _ in execution.output():
            await execution.cancel()
        result = await execution.result()
        self._note("cancelled", (result.phase.value, result.stdout), ("Cancelled", "on\n"))

    async def _files(self) -> None:
        content = os.urandom(200_000)
        block = PreparedBlock("python", b"import os; print(os.path.getsize('given'))")
        result = await self._client.execute((block,), self._request(), files=(WorkspaceFile("given", content),))
        self._note("files", result.stdout, f"{len(content)}\n")

    async def _session(self) -> None:
        async with await self._client.open_session(self._request()) as session:
            self.begun += 2  # three, one of which _request has counted
            code = b"open('n', 'a').write('x'); print(len(open('n').read()))"
            found = [(await session.execute((PreparedBlock("python", code),))).stdout for _ in range(3)]
        self._note("session", found, ["1\n", "2\n", "3\n"])


@contextmanager
def metrics_served(kubeconfig: str) -> Iterator[None]:
    """The operator tells of itself meanwhile; afterwards it has the values that it had before."""
    settings = ("--set", "metrics.enabled=true", "--set", f"metrics.scrapeNamespaces={{{SYSTEM}}}")
    upgrade_release(kubeconfig, *settings)
    try:
        yield
    finally:
        helm(kubeconfig, "rollback", "codeexec", "--wait", "--timeout", "2m")


async def mixed(kubeconfig: str) -> tuple[list[Sample], Load, bool]:
    """What was measured, the load with its outcomes, and whether the operator has started anew."""
    begun = time.monotonic()
    operator = Operator(Admin(kubeconfig))
    samples: list[Sample] = []
    cluster = CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig))
    load = Load(cluster, begun + MINUTES * 60)
    running = asyncio.create_task(load.run())
    while not running.done():
        samples.append(await asyncio.to_thread(operator.sample, time.monotonic() - begun, load.begun))
        keep(samples)
        print(" ".join(f"{key}={value:.1f}" for key, value in asdict(samples[-1]).items()), flush=True)
        await asyncio.wait([running], timeout=EVERY)
    await running
    await cluster.close()
    return samples, load, await asyncio.to_thread(lambda: operator.restarted)


def keep(samples: Sequence[Sample]) -> None:
    REPORTS.mkdir(parents=True, exist_ok=True)
    with (REPORTS / "soak.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, [one.name for one in fields(Sample)])
        rows.writeheader()
        rows.writerows(asdict(one) for one in samples)


def burst() -> int:
    """500 real executions at a concurrency of 20; the test tells what is wrong."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "e2e" / "test_load.py"), "-s"]
    return subprocess.run(command, env=os.environ | {"LOAD_EXECUTIONS": str(BURST)}, cwd=ROOT).returncode


def main() -> int:
    kubeconfig = os.environ["KUBECONFIG"]
    failed = bool(BURST and burst())
    with metrics_served(kubeconfig):
        samples, load, restarted = asyncio.run(mixed(kubeconfig))
    print(f"\n{sum(load.outcomes.values())} calls in {samples[-1].seconds / 60:.0f} min:", dict(load.outcomes))
    for line in load.wrong[:20]:
        print("WRONG", line)
    found = slopes(samples)
    print("in the second half:" if found else "too few samples for a slope: let it run for longer")
    for slope in found:
        print(f"  {slope}")
    failed |= not found or any(slope.grows for slope in found)
    print("the operator has started anew: see its log" if restarted else "the operator was the same all the time")
    return int(failed or restarted or bool(load.wrong))


if __name__ == "__main__":
    sys.exit(main())
