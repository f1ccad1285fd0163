"""What many finished records cost the operator: memory, CPU and a restart. `make bench-records` has 100,000 of them.

The records are put into etcd directly: through the API server they would take an hour. With NAMESPACES=50 they are
spread over so many namespaces.
"""

import asyncio
import itertools
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_calls import Call, Match
from api_server import ApiError
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, Stage, in_thread
from faults import Delay
from operator_process import OperatorProcess
from stored_records import copy_record

from codeexec_api.names import EXECUTION_PLURAL
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

RECORDS = int(os.environ.get("RECORDS", "2000"))
NAMESPACES = [SANDBOX, *(f"{SANDBOX}-{number}" for number in range(1, int(os.environ.get("NAMESPACES", "1"))))]
MANY = RECORDS > 2000
MOST_MIB = 200
MORE_MIB = 20 if not MANY else 80
"""Beyond what it takes without these records."""
IDLE_SECONDS = 10
KNOWN_SECONDS, LOOK_SECONDS = (900, 4000) if MANY else (100, 200)
"""Until the API server knows the records, and for a look at all. The whole test has 300 s, or 6000 s for many."""
LOOK_AND_REST = 11
"""Times as long as a look is."""
PAGE = 50
MOST_SHARE, MOST_SECONDS = 1.0, 10.0
"""Of a core, in percent, and from a restart to the first call. Of many records only: CI has other work at that time."""
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Stage]:
    values = {"operator": {"logLevel": "INFO", "deleteRecords": True}}
    with Stage(tmp_path, namespaces=tuple(NAMESPACES), values=values) as stage:
        yield stage


class Look:
    """Knows the last request of a look at all records, in all namespaces."""

    def __init__(self) -> None:
        self._left = len(NAMESPACES) * math.ceil(RECORDS / len(NAMESPACES) / PAGE)
        self._pages: set[tuple[str, str]] = set()

    def ends_with(self, call: Call) -> bool:
        if {"includeObject", "fieldSelector"} <= call.query.keys():
            self._pages.add((call.namespace, call.query.get("continue", "")))
        return len(self._pages) >= self._left


@pytest.mark.timeout(6000 if MANY else 300)
async def test_the_operator_holds_none_of_many_finished_records(keeping: Stage) -> None:
    client = CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig=keeping.agent_kubeconfig()))
    operator = keeping.operator(clock=None if MANY else "+0 x10")
    try:
        await _measure(keeping, client, operator)
    finally:
        await client.close()
        await in_thread(operator.end)


async def _measure(stage: Stage, client: CodeExecutionClient, operator: OperatorProcess) -> None:
    empty = await _served(operator, client)
    alone = operator.memory_mib()
    await in_thread(operator.stop)
    [name] = [one["metadata"]["name"] for one in stage.records()]
    if MANY:
        await in_thread(stage.plane.stop_api_server)  # it would hear of each record by itself, which takes minutes
    where = itertools.cycle(NAMESPACES)
    copies = {f"many-{number:06}": {"namespace": next(where)} for number in range(RECORDS)}
    size = await copy_record(stage.plane, SANDBOX, name, copies)
    if MANY:
        await in_thread(stage.plane.start_api_server)
    await in_thread(_until_known, stage)
    limits = {"maxCount": 10_000_000, "maxAgeSeconds": 366 * 86_400}
    for namespace in NAMESPACES:
        await in_thread(stage.admin.apply, stage.a_policy(namespace, records=limits))

    with stage.proxy.fault(Match("list", EXECUTION_PLURAL, where=Look().ends_with), Delay(0)) as look:
        served = await _served(operator, client)
        started = operator.peak_mib()
        cpu, begun = _cpu_seconds(operator.pid), time.monotonic()
        await look.hit(seconds=LOOK_SECONDS)
    looking, wall = _cpu_seconds(operator.pid) - cpu, time.monotonic() - begun
    cpu = _cpu_seconds(operator.pid)
    await asyncio.sleep(IDLE_SECONDS if MANY else 0)  # this is what is measured
    idle = (_cpu_seconds(operator.pid) - cpu) / IDLE_SECONDS
    peak = operator.peak_mib()
    print(f"{RECORDS} finished records of {size} bytes in {len(NAMESPACES)} namespaces")
    print(f"without them: {alone} MiB, first call served {empty:.1f} s after a start")
    print(f"with them: {started} MiB at most by then, first call served {served:.1f} s after a start")
    print(f"idle: {100 * idle:.2f} % of a core")
    print(f"after a look at all: {peak} MiB at most")
    share = 100 * looking / (wall if NAMESPACES[1:] else LOOK_AND_REST * wall)  # there are rests between namespaces
    print(f"a look: {looking:.1f} s of CPU in {wall:.0f} s; with rests {share:.2f} % of a core")
    assert len(stage.admin.list("codesession", SANDBOX)) == 0
    assert peak < MOST_MIB
    assert peak < alone + MORE_MIB
    if MANY:
        assert share < MOST_SHARE
        assert served < MOST_SECONDS


async def _served(operator: OperatorProcess, client: CodeExecutionClient) -> float:
    """Seconds from a start until the first call is served."""
    begun = time.monotonic()
    await in_thread(operator.start)
    await _call(client)
    return time.monotonic() - begun


async def _call(client: CodeExecutionClient) -> None:
    request = Request(agent="many", timeout_seconds=600, limits=Limits(**LIMITS))
    result = await client.execute([PreparedBlock("python", b'print("hello")')], request)
    assert result.output == "hello\n"


def _until_known(stage: Stage) -> None:
    """Until the API server has read all of them, and nodes that could not reach it count as ready again."""

    def known() -> bool:
        try:
            taints = {
                taint["key"] for node in stage.admin.list("node", None) for taint in node["spec"].get("taints", ())
            }
            left = stage.admin.list("codeexecution", SANDBOX, fields="status.phase!=Succeeded")
        except ApiError:
            return False
        return not left and not any(one.startswith("node.kubernetes.io/") for one in taints)

    wait_for("the API server to know the records", known, KNOWN_SECONDS)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
