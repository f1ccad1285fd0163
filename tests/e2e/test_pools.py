"""Pods that stand ready: how a pool fills, how executions get its pods, and what it never does."""

import asyncio
import json
import subprocess
from datetime import UTC, datetime
from functools import partial

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name, restart_operator, wait_for

from executor_client import Limits

pytestmark = pytest.mark.e2e

LIMITS = Limits(cpu="100m", memory="96Mi")
RAW_LIMITS = {"cpu": "100m", "memory": "96Mi"}


@pytest.fixture
def make(make_executor):
    """Executors whose executions ask for what the pools of these tests have."""
    return lambda **options: make_executor(**{"limits": LIMITS, "timeout": 30, **options})


async def run(executor, code: str):
    return await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())


def condition(thing, kind: str):
    found = thing.get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), None)


def hog():
    """What leaves no room for another pod in the namespace: its quota is used up."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-more-pods", "namespace": SANDBOX},
        "spec": {"hard": {"pods": "0"}},
    }


async def test_an_execution_gets_a_pod_that_stands_ready(make_pool, make, admin):
    pool = make_pool(2)
    pool.ready(2)
    waiting = pool.pods()
    assert len(waiting) == 2
    result = await run(make(), "import os; print(os.getuid() != 0)")
    assert (result.exit_code, result.output) == (0, "True\n")
    record = admin.execution(result.execution)
    status = record["status"]
    assert (status["poolName"], status["podName"] in waiting) == (pool.name, True)
    assert status["egressProof"]["verdict"] == "Closed"
    assert status["egressProof"]["checkedAt"] < record["metadata"]["creationTimestamp"]
    assert condition(record, "Accepted")["reason"] == "PodClaimed"
    assert condition(record, "Queued") is None


async def test_the_pod_goes_with_the_record_and_its_deadline_is_lowered(make_pool, make, admin):
    pool = make_pool(1)
    pool.ready(1)
    [before] = pool.pods().values()
    name = (await run(make(timeout=30), "print(1)")).execution
    record = admin.execution(name)
    assert record["status"]["podName"] == before["metadata"]["name"]

    def adopted():
        pod = admin.pod(SANDBOX, record["status"]["podName"])
        return pod if "codeexec.dev/execution" in pod["metadata"]["labels"] else None

    pod = wait_for("the pod to be the execution's", adopted)
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("CodeExecution", record["metadata"]["uid"])
    assert "codeexec.dev/pool" not in pod["metadata"]["labels"]
    age = datetime.now(UTC) - datetime.fromisoformat(pod["status"]["startTime"])
    assert pod["spec"]["activeDeadlineSeconds"] <= age.total_seconds() + 30 + 15
    assert before["spec"]["activeDeadlineSeconds"] > 86_400
    # Apart from that it is the pod that it was.
    for each in (pod, before):
        del each["spec"]["activeDeadlineSeconds"]
    assert pod["spec"] == before["spec"]


@pytest.fixture
def pods_seen(admin):
    """From now on every pod of the namespace is noted: ends that, and returns their names."""
    command = ["kubectl", "--kubeconfig", admin.kubeconfig, "-n", SANDBOX, "get", "pods", "--watch", "-o", "name"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:

        def end() -> set[str]:
            watch.terminate()
            return {line.strip().removeprefix("pod/") for line in watch.communicate()[0].splitlines()}

        yield end
        watch.terminate()


def test_scaling(make_pool, admin):
    pool = make_pool(1)
    pool.ready(1)
    scale = json.loads(admin.kubectl("get", "--raw", f"{PATH}/{pool.name}/scale"))
    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (1, f"codeexec.dev/pool={pool.name}")
    pool.scale(2)
    pool.ready(2)
    pool.scale(0)
    wait_for("the pods to go", lambda: not pool.pods())
    wait_for("the pool to say so", lambda: (not_ready(pool) or {}).get("reason") == "PoolEmpty")


PATH = f"/apis/codeexec.dev/v1alpha1/namespaces/{SANDBOX}/sandboxpools"


def test_columns_say_how_it_is(make_pool, admin):
    pool = make_pool(1)
    pool.ready(1)
    heading, row = admin.kubectl("-n", SANDBOX, "get", "sandboxpools", pool.name).splitlines()
    assert heading.split() == ["NAME", "REPLICAS", "READY", "IN-USE", "QUEUED", "REFILL-MS", "AGE"]
    assert row.split()[:5] == [pool.name, "1", "1", "0", "0"]


async def test_a_pool_that_was_changed_has_new_pods(make_pool, make, admin):
    pool = make_pool(1)
    pool.ready(1)
    [old] = pool.pods()
    patch = {"spec": {"limits": {"pids": 64}}}
    admin.kubectl("-n", SANDBOX, "patch", "sandboxpool", pool.name, "--type=merge", "-p", json.dumps(patch))
    wait_for("the old pod to go", lambda: old not in pool.pods())
    pool.ready(1)
    assert condition(admin.get("sandboxpool", pool.name), "Ready")["reason"] == "PoolReady"


def test_a_policy_that_does_not_allow_its_pods_empties_it(make_pool, admin, policy):
    pool = make_pool(1)
    pool.ready(1)
    policy(maxLimits={"cpu": "50m"})
    wait_for("the pods to go", lambda: not pool.pods())
    ready = wait_for("the pool to say why", lambda: not_ready(pool))
    assert ready["reason"] == "PolicyViolation"
    assert "spec.limits.cpu: 100m is not allowed" in ready["message"]
    policy()
    pool.ready(1)


def not_ready(pool):
    found = condition(pool.admin.get("sandboxpool", pool.name), "Ready")
    return found if found and found["status"] == "False" else None


async def test_a_pod_that_is_lost_is_never_handed_out(make_pool, make, admin):
    pool = make_pool(2)
    pool.ready(2)
    [lost, _] = sorted(pool.pods(), key=lambda name: pool.pods()[name]["metadata"]["creationTimestamp"])
    admin.kubectl("-n", SANDBOX, "delete", "pod", lost, "--grace-period=0", "--force")
    results = await asyncio.gather(*(run(make(), "print(1)") for _ in range(3)))
    used = {admin.execution(one.execution)["status"]["podName"] for one in results}
    assert lost not in used
    assert len(used) == 3


async def test_other_limits_get_a_pod_of_their_own(make_pool, make, admin):
    make_pool(1).ready(1)
    result = await run(make(limits=Limits(cpu="150m", memory="96Mi")), "print(1)")
    status = admin.execution(result.execution)["status"]
    assert "poolName" not in status
    assert status["podName"].startswith(result.execution)


@pytest.fixture
def full(make_pool, admin):
    """A pool that has handed out its only pod and can't make another: the namespace may have no more."""
    pool = make_pool(1)
    pool.ready(1)
    admin.apply(hog())
    first = a_name("first")
    admin.submit(first, "import time; time.sleep(600)", limits=RAW_LIMITS, timeoutSeconds=600)
    admin.wait_for_phase(first, "Running")
    yield pool
    admin.kubectl("-n", SANDBOX, "delete", "resourcequota", "no-more-pods", "--ignore-not-found")
    admin.kubectl("-n", SANDBOX, "delete", "codeexecution", first, "--ignore-not-found", "--wait=false")


def queued(admin, name: str):
    found = condition(admin.execution(name), "Queued")
    return found if found and found["status"] == "True" else None


def test_who_finds_no_pod_waits_in_line_and_sees_where(full, admin):
    names = [a_name(f"waits{number}") for number in range(3)]
    for number, name in enumerate(names, 1):
        admin.submit(name, "print('at last')", limits=RAW_LIMITS)
        place = wait_for(f"{name} to be in line", partial(queued, admin, name))
        assert place["message"].startswith(f"position {number} of {number} in the queue of pool '{full.name}'")
    wait_for("what is wrong to be said", lambda: "quota" in queued(admin, names[0])["message"])
    wait_for("the pool to count them", lambda: full.status().get("queued") == 3)
    assert admin.execution(names[0])["status"]["phase"] == "Starting"
    admin.kubectl("-n", SANDBOX, "delete", "resourcequota", "no-more-pods")
    done = [admin.wait_for_phase(name, "Succeeded", seconds=120) for name in names]
    started = [one["status"]["startedAt"] for one in done]
    assert started == sorted(started)
    assert {one["status"]["stdout"]["text"] for one in done} == {"at last\n"}
    assert condition(done[0], "Queued")["status"] == "False"


def test_the_limit_of_who_waits_is_its_own(full, admin):
    name = a_name("impatient")
    admin.submit(name, "print(1)", limits=RAW_LIMITS, queueTimeoutSeconds=2)
    status = admin.wait_for_phase(name, "Failed")["status"]
    assert status["reason"] == "QueueTimeout"
    assert "spec.queueTimeoutSeconds" in status["message"]
    assert not admin.exists("secret", name, SANDBOX)


def test_who_waits_can_be_cancelled(full, admin):
    name = a_name("unwanted")
    admin.submit(name, "print(1)", limits=RAW_LIMITS)
    wait_for("it to be in line", lambda: queued(admin, name))
    admin.kubectl("-n", SANDBOX, "patch", "codeexecution", name, "--type=merge", "-p", '{"spec": {"cancelled": true}}')
    assert admin.wait_for_phase(name, "Cancelled")["status"]["reason"] == "CancelRequested"
    wait_for("the pool to forget it", lambda: full.status().get("queued", 0) == 0)


def test_a_pool_that_goes_leaves_nobody_waiting(full, admin):
    name = a_name("orphan")
    admin.submit(name, "print('own pod')", limits=RAW_LIMITS)
    wait_for("it to be in line", lambda: queued(admin, name))
    admin.kubectl("-n", SANDBOX, "delete", "resourcequota", "no-more-pods")
    admin.kubectl("-n", SANDBOX, "delete", "sandboxpool", full.name)
    status = admin.wait_for_phase(name, "Succeeded")["status"]
    assert status["podName"].startswith((name, full.name))


def test_who_waits_while_the_pool_changes_gets_the_pod_that_was_asked_for(full, admin):
    """The next pod of the pool has other limits: it is for others."""
    name = a_name("particular")
    admin.submit(name, "print('as asked')", limits=RAW_LIMITS)
    wait_for("it to be in line", lambda: queued(admin, name))
    patch = json.dumps({"spec": {"limits": {"cpu": "150m"}}})
    admin.kubectl("-n", SANDBOX, "patch", "sandboxpool", full.name, "--type=merge", "-p", patch)
    admin.kubectl("-n", SANDBOX, "delete", "resourcequota", "no-more-pods")
    status = admin.wait_for_phase(name, "Succeeded", seconds=120)["status"]
    pod = admin.pod(SANDBOX, status["podName"])
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == RAW_LIMITS["cpu"]
    assert "poolName" not in status
    full.ready(1)
    [ready] = full.pods().values()
    assert ready["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "150m"


async def test_a_restart_of_the_operator_loses_no_place_and_uses_no_pod_twice(make_pool, make, admin):
    pool = make_pool(2)
    pool.ready(2)
    before = set(pool.pods())
    admin.apply(hog())
    try:
        runs = a_name("runs")
        admin.submit(runs, "import time; time.sleep(600)", limits=RAW_LIMITS, timeoutSeconds=600)
        used = admin.wait_for_phase(runs, "Running")["status"]["podName"]
        busy = a_name("busy")
        admin.submit(busy, "import time; time.sleep(600)", limits=RAW_LIMITS, timeoutSeconds=600)
        admin.wait_for_phase(busy, "Running")
        waits = a_name("waits")
        admin.submit(waits, "print('after all')", limits=RAW_LIMITS)
        wait_for("it to be in line", lambda: queued(admin, waits))
        restart_operator(admin)
        for name in (runs, busy):
            assert admin.wait_for_phase(name, "Lost")["status"]["reason"] == "OperatorRestarted"
    finally:
        admin.kubectl("-n", SANDBOX, "delete", "resourcequota", "no-more-pods", "--ignore-not-found")
    done = admin.wait_for_phase(waits, "Succeeded", seconds=120)
    assert used in before
    assert done["status"]["podName"] not in before


def test_pods_of_an_operator_before_are_replaced_and_not_one_too_many_is_made(make_pool, admin, pods_seen):
    """Their egress proof names the canary of an operator that is gone."""
    pool = make_pool(2)
    pool.ready(2)
    before = set(pool.pods())
    restart_operator(admin)
    wait_for("new pods", lambda: len(pool.pods()) == 2 and not before & set(pool.pods()), 90)
    pool.ready(2)
    after = set(pool.pods())
    assert {name for name in pods_seen() if name.startswith(f"{pool.name}-")} == before | after
