"""Many executions on few pods: each gets its own answer and its own pod, no pod too many is made, nothing is left."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_fixtures import Pool
from cluster_tools import SANDBOX, Admin, a_name
from kube import Event, Wait
from release_fixtures import operator_log

from codeexec_api.names import CLIENT_LABEL, EXECUTION_LABEL, EXECUTION_PLURAL, GROUP, PAYLOAD_SECRET_TYPE, VERSION
from codeexec_operator.core.starts import STARTS_PER_NODE
from executor_client import Limits

pytestmark = pytest.mark.release

EXECUTIONS = int(os.environ.get("LOAD_EXECUTIONS", "30"))
"""`make soak` has 500; those of the component tests are on simulated kubelets."""
AT_ONCE = 20
REPLICAS = 4
RECORDS = f"/apis/{GROUP}/{VERSION}/namespaces/{SANDBOX}/{EXECUTION_PLURAL}"


@dataclass(frozen=True)
class Seen:
    """A version of an object. Those of all kinds have one order: that in which the API server has stored them."""

    version: int
    kind: str
    change: str
    raw: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])


class Watching(threading.Thread):
    """Notes every version of the objects of a kind from one version on, until what `is_last` is true of."""

    def __init__(self, admin: Admin, kind: str, since: str, is_last: Callable[[Event], bool]) -> None:
        super().__init__(daemon=True)  # not waited for when the test fails: there may be nothing more to hear
        self.seen: list[Seen] = []
        wait = Wait("the load to be over", 3600)
        self._kind, self._is_last = kind, is_last
        self._changes = admin.changes(kind, SANDBOX, wait, since=since)
        self.start()

    def run(self) -> None:
        for event in (event for change in self._changes for event in change):
            version = int(event.object["metadata"]["resourceVersion"])
            self.seen.append(Seen(version, self._kind, event.type, event.object))
            if self._is_last(event):
                return

    def all(self) -> list[Seen]:
        self.join(90)
        assert not self.is_alive(), f"the watch of each {self._kind} has not come to its end in 90 s"
        return self.seen


@contextmanager
def everything_seen(admin: Admin, pool: Pool) -> Iterator[Callable[[], list[Seen]]]:
    """From now on, every version of every pod and every execution of the namespace is noted.

    Yields what ends that: it empties the pool and creates an execution that runs nothing, and gives back all versions
    up to those that tell of it. So nothing is missing because a watch is late.
    """
    since = admin.look("pod", SANDBOX)[1]
    going: set[str] = set()
    end = a_name("the-end")

    def last_pod(event: Event) -> bool:
        name = event.object["metadata"]["name"]
        if event.type != "DELETED" or name not in going:
            return False
        going.remove(name)
        return not going

    pods = Watching(admin, "pod", since, last_pod)
    executions = Watching(admin, "codeexecution", since, lambda event: event.object["metadata"]["name"] == end)

    def end_it() -> list[Seen]:
        going.update(pool.pods())
        pool.scale(0)
        admin.submit(end, "print(1)", cancelled=True)
        return [*pods.all(), *(one for one in executions.all() if one.name != end)]

    try:
        yield end_it
    finally:
        admin.delete("codeexecution", end)


@pytest.fixture
def forget(admin):
    """Takes the records away after the test that it is given one of; so many are in the way of other tests."""
    labels: list[str] = []

    def of_client(name: str) -> str:
        """The label that all records have that came from the same client as this one."""
        label = f"{CLIENT_LABEL}={admin.execution(name)['metadata']['labels'][CLIENT_LABEL]}"
        labels.append(label)
        return label

    yield of_client
    for label in labels:
        admin.kubectl("delete", "--raw", f"{RECORDS}?labelSelector={label}")


@pytest.mark.suspect
@pytest.mark.timeout(max(300, EXECUTIONS * 4))
async def test_each_of_many_gets_its_own_answer_and_its_own_pod(make_pool, make_executor, admin, policy, forget):
    policy(podTTLSeconds=0)
    pool = make_pool(REPLICAS)
    pool.ready(REPLICAS)
    executor = make_executor(limits=Limits(cpu="100m", memory="96Mi"), timeout=30)
    turns = asyncio.Semaphore(AT_ONCE)
    tokens = [os.urandom(8).hex() for _ in range(EXECUTIONS)]

    async def one(token: str):
        async with turns:
            return await executor.execute_code_blocks([CodeBlock(f"print('{token}')", "python")], CancellationToken())

    before = set(pool.pods())
    with everything_seen(admin, pool) as end:
        begun = time.monotonic()
        results = await asyncio.gather(*map(one, tokens))
        seconds = time.monotonic() - begun
        label = forget(results[0].execution)
        assert [(one.exit_code, one.output) for one in results] == [(0, f"{token}\n") for token in tokens]

        records = {one["metadata"]["name"]: one["status"] for one in admin.list("codeexecution", labels=label)}
        assert records.keys() == {one.execution for one in results}
        assert {status["phase"] for status in records.values()} == {"Succeeded"}
        assert {status["poolName"] for status in records.values()} == {pool.name}
        used = {status["podName"] for status in records.values()}
        assert len(used) == EXECUTIONS

        await asyncio.to_thread(pool.ready, REPLICAS)
        gone = "the pods that were used to go"
        admin.wait_until_all(gone, "pod", lambda pods: not used & {one["metadata"]["name"] for one in pods})
        left = set(pool.pods())
        assert len(left) == REPLICAS
        assert not payloads(admin, records.keys())
        seen = await asyncio.to_thread(end)
    made = before | left | {one.name for one in seen if one.kind == "pod" and one.name.startswith(f"{pool.name}-")}
    given_up = made - used - left
    ahead, starting = most_at_a_time(seen, made, before)
    print(
        f"{len(made)} pods for {EXECUTIONS} executions in {seconds:.0f} s, {len(given_up)} given up; at a time at most "
        f"{ahead} pods more than executions, and {starting} that start"
    )
    assert len(given_up) <= told_of(pool, operator_log(admin)), f"pods too many: {sorted(given_up)}"
    assert ahead <= REPLICAS + len(given_up)
    assert starting <= STARTS_PER_NODE * len(admin.list("node", None))


def told_of(pool: Pool, log: str) -> int:
    """How many pods of the pool the operator has given up, by its log: that names a reason for each."""
    return sum(map(int, re.findall(rf"{SANDBOX}/{pool.name}: gave up (\d+) pods?", log)))


def payloads(admin, executions) -> list[str]:
    """Names of the Secrets with code of these executions that are still there."""
    found = admin.list("secret", fields=f"type={PAYLOAD_SECRET_TYPE}")
    return [one["metadata"]["name"] for one in found if one["metadata"]["labels"][EXECUTION_LABEL] in executions]


def most_at_a_time(seen: Sequence[Seen], ours: set[str], before: set[str]) -> tuple[int, int]:
    """By how many the pods ever made were ahead of the executions ever created, and how many were starting, at most.

    The pool makes pods for `replicas` and for each execution that waits. Whoever waits was created before, and who
    doesn't any more has taken a pod, so it is ahead by `replicas` at most, and by those that were no good. A pod is
    taken for started when the kubelet says that it runs, which is before the operator knows; and one that no node had
    room for is left out, because the operator doesn't count it while that is so.

    Args:
        seen: what the API server has stored.
        ours: all pods of the pool.
        before: those that were there before.
    """
    made, starting, homeless = set(before), set(), set()
    created = most_ahead = most_starting = 0
    for one in sorted(seen, key=lambda one: one.version):
        if one.kind == "codeexecution":
            created += one.change == "ADDED"
        elif one.name in ours:
            made.add(one.name)
            if unschedulable(one.raw):
                homeless.add(one.name)
            if one.change != "DELETED" and one.raw["status"]["phase"] == "Pending":
                starting.add(one.name)
            else:
                starting.discard(one.name)
            most_ahead = max(most_ahead, len(made) - created)
            most_starting = max(most_starting, len(starting - homeless))
    return most_ahead, most_starting


def unschedulable(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)
