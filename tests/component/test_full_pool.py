"""Who finds no pod in a pool that can make none: it waits in line, sees where and why, and may give up."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster_tools import QUOTA, Admin, a_name, use_up_the_quota
from component_stage import LIMITS, in_thread

SMALL = {"limits": LIMITS, "timeoutSeconds": 600}


@dataclass
class Full:
    """A pool that has given out its only pod and can't make another: the namespace may have no more."""

    name: str
    """Of the pool."""
    taken: str
    """Its pod."""
    holder: str
    """The execution that has it, whose code goes on."""


@pytest.fixture
async def full(operator, stage, admin: Admin, make_pool) -> AsyncIterator[Full]:
    pool, holder = await make_pool(1), a_name("holder")
    [taken] = pool.pods()
    await in_thread(use_up_the_quota, admin)
    await in_thread(lambda: admin.submit(holder, f'wait("{holder}")', **SMALL))
    await stage.script.reached(holder)
    yield Full(pool.name, taken, holder)
    await in_thread(admin.delete, "resourcequota", QUOTA)
    stage.script.open(holder)
    await in_thread(admin.wait_for_phase, holder, "Succeeded")


def queued(record: dict[str, Any]) -> dict[str, Any]:
    """Its condition; empty if it has none."""
    conditions = record.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Queued"), {})


def in_line(admin: Admin, name: str) -> str:
    """What an execution is told, once it has a place in the queue."""
    has_a_place = lambda record: queued(record).get("status") == "True"  # noqa: E731
    return str(queued(admin.wait_until(f"{name} to be in line", "cex", name, has_a_place))["message"])


def test_the_limit_of_who_waits_is_its_own(full, stage, admin):
    patient, name = a_name("patient"), a_name("impatient")
    admin.submit(patient, 'print("at last")', **SMALL)
    in_line(admin, patient)
    admin.submit(name, 'print("never")', queueTimeoutSeconds=2, **SMALL)
    ended = admin.wait_for_phase(name, "Failed")
    assert ended["status"]["reason"] == "QueueTimeout"
    assert "spec.queueTimeoutSeconds" in ended["status"]["message"]
    stage.never_ran(ended)
    admin.wait_until_gone("secret", name)
    assert admin.phase(patient) == "Starting", "control: it has waited for longer"
    admin.delete("resourcequota", QUOTA)
    admin.wait_for_phase(patient, "Succeeded")


def test_who_waits_can_be_cancelled(full, stage, admin):
    name = a_name("unwanted")
    admin.submit(name, 'print("never")', **SMALL)
    in_line(admin, name)
    counted = lambda pool: pool["status"].get("queued") == 1  # noqa: E731
    admin.wait_until("the pool to count it", "sandboxpool", full.name, counted)
    admin.patch("cex", name, {"spec": {"cancelled": True}})
    ended = admin.wait_for_phase(name, "Cancelled")
    assert ended["status"]["reason"] == "CancelRequested"
    forgotten = lambda pool: not pool["status"].get("queued")  # noqa: E731
    admin.wait_until("the pool to forget it", "sandboxpool", full.name, forgotten)
    stage.never_ran(ended)


def test_who_finds_no_pod_waits_in_line_and_sees_where_and_why(full, stage, admin):
    names = [a_name(f"waits{number}") for number in range(3)]
    for number, name in enumerate(names, 1):
        admin.submit(name, 'print("at last")', **SMALL)
        place = f"position {number} of {number} in the queue of pool '{full.name}'"
        assert in_line(admin, name).startswith(place)
    says_why = lambda record: "quota" in queued(record)["message"]  # noqa: E731
    waits = admin.wait_until("what is wrong to be said", "cex", names[0], says_why)
    assert waits["status"]["phase"] == "Starting"
    counted = lambda pool: pool["status"].get("queued") == 3  # noqa: E731
    admin.wait_until("the pool to count them", "sandboxpool", full.name, counted)
    admin.delete("resourcequota", QUOTA)
    for name in names:
        done = admin.wait_for_phase(name, "Succeeded")
        assert done["status"]["stdout"]["text"] == "at last\n"
        assert queued(done)["status"] == "False"
        stage.ran_once(done)


def test_who_was_in_line_when_the_operator_went_gets_a_pod_that_nobody_used(full, operator, stage, admin):
    names = [a_name("first-in-line"), a_name("second-in-line")]
    for name in names:
        admin.submit(name, 'print("after all")', **SMALL)
        in_line(admin, name)
    operator.stop()
    admin.delete("resourcequota", QUOTA)
    operator.start()
    done = [admin.wait_for_phase(name, "Succeeded") for name in names]
    assert {one["status"]["stdout"]["text"] for one in done} == {"after all\n"}
    holder = admin.execution(full.holder)["status"]
    assert (holder["phase"], holder["podName"]) == ("Running", full.taken), "control: it has the pod of the pool"
    assert len({full.taken, *(one["status"]["podName"] for one in done)}) == 3, "no pod is used twice"
    for one in done:
        stage.ran_once(one)
