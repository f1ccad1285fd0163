"""What many finished records cost the operator: memory, CPU and a restart. `make bench-records` has 100,000 of them.

The records are put into etcd directly: through the API server they would take an hour.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest
from api_calls import Match
from api_server import ApiError
from cluster_tools import SANDBOX, wait_for
from component_stage import LIMITS, Stage, in_thread
from faults import Delay
from operator_process import OperatorProcess
from stored_records import copy_record

from codeexec_api.names import SESSION_PLURAL
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

RECORDS = int(os.environ.get("RECORDS", "2000"))
MANY = RECORDS > 2000
MOST_MIB = 200
MORE_MIB = 20 if not MANY else 80
"""Beyond what it takes without these records."""
IDLE_SECONDS = 10
LOOK_AND_REST = 11
"""Times as long as a look is."""
LOOKED = Match("list", SESSION_PLURAL, where=lambda call: {"includeObject", "fieldSelector"} <= call.query.keys())
"""The last request of a look at all records."""
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout(3000 if MANY else 300)
def test_the_operator_holds_none_of_many_finished_records(tmp_path: Path) -> None:
    with Stage(tmp_path, values={"operator": {"logLevel": "INFO", "deleteRecords": True}}) as stage:
        asyncio.run(_measured(stage))


async def _measured(stage: Stage) -> None:
    client = CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig=stage.agent_kubeconfig()))
    operator = stage.operator(clock=None if MANY else "+0 x10")
    try:
        await _measure(stage, client, operator)
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
    size = await copy_record(stage.plane, SANDBOX, name, {f"many-{number:06}": {} for number in range(RECORDS)})
    if MANY:
        await in_thread(stage.plane.start_api_server)
    await in_thread(_until_known, stage)
    await in_thread(stage.admin.apply, stage.a_policy(records={"maxCount": 10_000_000, "maxAgeSeconds": 366 * 86_400}))

    with stage.proxy.fault(LOOKED, Delay(0)) as look:
        served = await _served(operator, client)
        started = operator.peak_mib()
        cpu, begun = _cpu_seconds(operator.pid), time.monotonic()
        await look.hit(seconds=1500)
    looking, wall = _cpu_seconds(operator.pid) - cpu, time.monotonic() - begun
    cpu = _cpu_seconds(operator.pid)
    await asyncio.sleep(IDLE_SECONDS if MANY else 0)  # this is what is measured
    idle = (_cpu_seconds(operator.pid) - cpu) / IDLE_SECONDS
    peak = operator.peak_mib()
    print(f"{RECORDS} finished records of {size} bytes")
    print(f"without them: {alone} MiB, first call served {empty:.1f} s after a start")
    print(f"with them: {started} MiB at most by then, first call served {served:.1f} s after a start")
    print(f"idle: {100 * idle:.2f} % of a core")
    print(f"after a look at all: {peak} MiB at most")
    share = 100 * looking / (LOOK_AND_REST * wall)
    print(f"a look: {looking:.1f} s of CPU in {wall:.0f} s; with the rest after it {share:.2f} % of a core")
    assert len(stage.admin.list("codesession", SANDBOX)) == 0
    assert peak < MOST_MIB
    assert peak < alone + MORE_MIB


async def _served(operator: OperatorProcess, client: CodeExecutionClient) -> float:
    """Seconds from a start until the first call is served."""
    begun = time.monotonic()
    await in_thread(operator.start)
    await _call(client)
    return time.monotonic() - begun


async def _call(client: CodeExecutionClient) -> None:
    request = Request(agent="many", timeout_seconds=20, limits=Limits(**LIMITS))
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

    wait_for("the API server to know the records", known, 900)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
