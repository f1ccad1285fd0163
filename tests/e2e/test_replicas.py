"""Two replicas of the operator on a real cluster: an upgrade without a gap.

Who leads when, and what a leader that is told to go does, is in component/test_several_operators.py.
"""

import asyncio
from collections.abc import Iterator

import pytest
from cluster_tools import SYSTEM, Admin, a_name, restart_operator, scale_operator
from held_code import HELD, OUTPUT, held, let_go_on

LEASE = "codeexec-operator"
LIMITS = {"cpu": "100m", "memory": "96Mi"}
pytestmark = pytest.mark.release


@pytest.fixture
def two(admin: Admin) -> Iterator[None]:
    """Two replicas, for the time of a test."""
    scale_operator(admin, 2)
    yield
    scale_operator(admin, 1)


def epoch(admin: Admin) -> int:
    return admin.get("lease", LEASE, SYSTEM)["spec"]["leaseTransitions"]


async def test_during_an_upgrade_what_is_asked_for_and_what_runs_ends_well(admin, two, node_shell):
    outlasts = a_name("outlasts")
    admin.submit(outlasts, HELD, limits=LIMITS, timeoutSeconds=600)
    uid = held(admin, outlasts)
    before = epoch(admin)
    upgrade = asyncio.create_task(asyncio.to_thread(restart_operator, admin))
    submitted = []
    while not upgrade.done():
        name = a_name(f"upgrade-{len(submitted)}")
        admin.submit(name, "print(1)", limits=LIMITS)
        submitted.append(await asyncio.to_thread(admin.wait_for_phase, name, "Succeeded"))
    await upgrade
    assert epoch(admin) > before
    assert submitted
    let_go_on(uid, node_shell)
    assert admin.wait_for_phase(outlasts, "Succeeded")["status"]["stdout"]["text"] == OUTPUT
