"""Two replicas of the operator on a real cluster: an upgrade without a gap, and a leader whose pod is deleted."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from cluster_tools import SYSTEM, Admin, restart_operator, scale_operator

LEASE = "codeexec-operator"
LIMITS = {"cpu": "100m", "memory": "96Mi"}
pytestmark = pytest.mark.release


@pytest.fixture
def two(admin: Admin) -> Iterator[None]:
    """Two replicas, for the time of a test."""
    scale_operator(admin, 2)
    yield
    scale_operator(admin, 1)


def epoch_and_holder(admin: Admin) -> tuple[int, str]:
    spec = admin.get("lease", LEASE, SYSTEM)["spec"]
    return spec["leaseTransitions"], spec.get("holderIdentity", "").partition("_")[0]


def another_leads(admin: Admin, epoch: int) -> None:
    admin.wait_until(
        "another replica to lead",
        "lease",
        LEASE,
        lambda lease: lease["spec"]["leaseTransitions"] > epoch and lease["spec"].get("holderIdentity"),
        60,
        SYSTEM,
    )


async def test_during_an_upgrade_what_is_asked_for_and_what_runs_ends_well(admin, two):
    name = f"outlasts-{datetime.now(UTC):%H%M%S}"
    admin.submit(name, "import time; time.sleep(20); print(1)", limits=LIMITS, timeoutSeconds=60)
    outlasts = admin.wait_for_phase(name, "Running")["metadata"]["name"]
    epoch, _ = epoch_and_holder(admin)
    upgrade = asyncio.create_task(asyncio.to_thread(restart_operator, admin))
    submitted = []
    while not upgrade.done():
        name = f"upgrade-{len(submitted)}-{datetime.now(UTC):%H%M%S}"
        admin.submit(name, "print(1)", limits=LIMITS)
        submitted.append(await asyncio.to_thread(admin.wait_for_phase, name, "Succeeded"))
    await upgrade
    assert epoch_and_holder(admin)[0] > epoch
    assert submitted
    assert admin.wait_for_phase(outlasts, "Succeeded")["status"]["stdout"]["text"] == "1\n"


def test_when_the_leaders_pod_is_deleted_the_other_one_leads(admin, two):
    epoch, holder = epoch_and_holder(admin)
    admin.delete("pod", holder, SYSTEM)
    another_leads(admin, epoch)
    assert epoch_and_holder(admin)[1] != holder
