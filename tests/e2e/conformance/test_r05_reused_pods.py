"""R-05 where a policy lets pods be used again: nothing of one execution is in the next, by any of many ways."""

import asyncio
import uuid

import leftovers
import pytest
from cluster_tools import QUOTA, use_up_the_quota
from conformance.attacks import SUCCEEDED, outcomes, script
from conformance.test_r05_isolation import FIND, PLANTED, planter

from codeexec_api import Limits

pytestmark = pytest.mark.remit("R-05")

PLACES = {"FOLDER": "/workspace", "TEMPORARY": "/tmp", "LOG": "/dev/termination-log", "DEVICE": "/dev/full"}
OWNERS_ONLY = {"mode_of_the_volume", "time_of_the_volume", "attribute_of_the_volume", "default_acl_of_the_volume"}
"""What only the owner of a volume can do, and a volume is root's in a pod."""
BUSY = {"process_that_makes_others", "depth", "breadth"}
"""They take so much of the processor that the pod may not be worth cleaning, or becomes the code's own. The unit tests
try them.
"""
WAYS = [name for name in leftovers.CONFINED if name not in OWNERS_ONLY | BUSY]
PARTS = 8
"""In which the ways are tried: all of them keep a pod busy for long on a machine that has other work."""
SMALL = Limits(cpu="1", memory="96Mi")
EACH = """
failed = []
for name in NAMES:
    try:
        if SEEN:
            failed += [name] if globals()[f"seen_{name}"]() else []
        else:
            globals()[name]()
            os.chdir("/workspace")
            failed += [] if globals()[f"seen_{name}"]() else [name]
    except OSError as error:
        failed.append(f"{name}: {error}")
print(failed)
"""


@pytest.fixture
async def agent(policy, make_pool, admin):
    """An agent of this test in a namespace whose pool has one pod, which may be used ten times, and gets no other."""
    policy(podReuse={"maxExecutions": 10})
    pool = make_pool(1, cpu=SMALL.cpu)
    await asyncio.to_thread(pool.ready, 1)
    await asyncio.to_thread(use_up_the_quota, admin)
    yield f"reuse-{uuid.uuid4().hex[:8]}"
    admin.delete("resourcequota", QUOTA)


def each(names, *, seen):
    """Code that plants all of these, and looks whether they are there; or that only looks."""
    return leftovers.code(f"NAMES, SEEN = {names!r}, {seen}\n{EACH}", **PLACES)


@pytest.mark.suspect
@pytest.mark.parametrize("part", range(PARTS))
async def test_nothing_passes_to_the_next_execution_in_the_same_pod(control, sandbox, agent, part):
    """Code finds nothing of the execution before it in the same pod, by any of 30 ways to leave something."""
    assert len(WAYS) >= 30
    ways = WAYS[part::PARTS]
    planted = await sandbox.run(each(ways, seen=False), agent=agent, limits=SMALL)
    control.succeeded("the first execution found all that it had planted, before its end", planted.output == "[]\n")
    found = await sandbox.run(each(ways, seen=True), agent=agent, limits=SMALL)
    assert found.output == "[]\n"
    first, second = (sandbox.record(one)["status"] for one in (planted, found))
    assert second["podName"] == first["podName"]
    reset = second["podReset"]
    assert (reset["use"], reset["clean"]) == (2, True)
    assert {"Processes", "Volumes", "Mounts", "Sockets", "Queues", "Privileges"} <= set(reset["checked"])


@pytest.mark.suspect
async def test_a_pod_is_used_again_and_says_so(control, sandbox, agent, admin):
    """A pod is used again only for its requester and agent, and is found clean each time."""
    records = []
    for _ in range(3):
        before = await sandbox.run(planter(0), agent=agent, limits=SMALL)
        assert before.stdout.startswith(PLANTED), before.output
        records.append(sandbox.record(before)["status"])
    control.succeeded("three executions ran in one pod", len({one["podName"] for one in records}) == 1)
    assert [one.get("podReset", {}).get("use", 1) for one in records] == [1, 2, 3]
    found = await sandbox.run(script(*FIND), agent=agent, limits=SMALL)
    assert SUCCEEDED not in outcomes(found.stdout).values()
    assert sandbox.record(found)["status"]["podName"] == records[0]["podName"]
    admin.delete("resourcequota", QUOTA)
    other = await sandbox.run("print(1)", agent=f"{agent}-2", limits=SMALL)
    status = sandbox.record(other)["status"]
    assert status["podName"] != records[0]["podName"]
    assert "podReset" not in status
