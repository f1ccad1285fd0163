"""One operator goes and the next one comes: what waited still waits, and what was done meanwhile counts."""

from datetime import timedelta
from typing import Any

import pytest
from cluster_tools import Admin, a_name, a_sealed_execution, a_session, age_the_sealing_key, an_approval
from component_stage import LIMITS, in_thread

from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
ALLOWED = (PreparedBlock("bash", b'print("allowed")'),)


def waiting_at(gate: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'print("begun")\nwait("{gate}")'.encode()),)


# --- code that goes on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["pod of its own", "pod of a pool"])
async def test_code_that_goes_on_running_can_be_cancelled(
    operator, stage, client, asking, agent, admin, make_pool, origin
):
    if origin == "pod of a pool":
        await make_pool(1)
    execution = await client.submit(waiting_at(agent), asking())
    await stage.script.reached(agent)
    await in_thread(operator.stop)
    await in_thread(operator.start)
    record = stage.record(agent)
    assert (record["status"]["phase"], "poolName" in record["status"]) == ("Running", origin == "pod of a pool")
    await execution.cancel()
    ended = await in_thread(stage.ended, agent)
    assert (ended["status"]["phase"], ended["status"]["stdout"]["text"]) == ("Cancelled", "begun\n")
    stage.ran_once(ended)
    await in_thread(admin.wait_until_gone, "pod", ended["status"]["podName"])


# --- approvals ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def ask(operator, client, asking, admin, policy):
    """Submits Python, which a human has to approve here, and waits until they are asked. Bash needs no approval."""
    await in_thread(lambda: policy(languages=["bash"], withApproval={"languages": ["python"]}))

    async def submit() -> tuple[Any, dict[str, Any]]:
        execution = await client.submit(HELLO, asking())
        return execution, await in_thread(admin.wait_for_phase, execution.name, "AwaitingApproval")

    return submit


def decide(admin: Admin, record: dict[str, Any], decision: str) -> None:
    made = an_approval(record, admin.me, decision=decision)
    if decision == "Deny":
        del made["spec"]["grants"], made["spec"]["expiresAt"]
    admin.create(made)


async def test_what_was_decided_while_there_was_no_operator_counts(operator, stage, admin, ask):
    (approved, its_record), (denied, other) = await ask(), await ask()
    await in_thread(operator.stop)
    await in_thread(decide, admin, its_record, "Approve")
    await in_thread(decide, admin, other, "Deny")
    assert {admin.phase(one.name) for one in (approved, denied)} == {"AwaitingApproval"}, "control: nobody has read it"
    await in_thread(operator.start)
    assert (await approved.result()).output == "hello\n"
    stage.ran_once(its_record)
    ended = await in_thread(admin.wait_for_phase, denied.name, "Denied")
    assert ended["status"]["reason"] == "ApprovalDenied"
    stage.never_ran(ended)


async def test_who_waits_for_approval_goes_on_waiting(operator, stage, client, asking, admin, ask):
    patient, record = await ask()
    await in_thread(operator.stop)
    await in_thread(operator.start)
    assert (await client.execute(ALLOWED, asking())).output == "allowed\n", "control: the next one works"
    assert admin.phase(patient.name) == "AwaitingApproval"
    stage.never_ran(record)
    await in_thread(decide, admin, record, "Approve")
    assert (await patient.result()).output == "hello\n"
    stage.ran_once(record)


# --- the key that code is sealed with -------------------------------------------------------------------------------


async def test_a_sealing_key_that_is_a_day_old_is_replaced_and_what_was_sealed_with_it_still_runs(
    operator, stage, admin, agent
):
    """Whether it was submitted before, waits for its turn in a session, or was on its way."""
    session, loop, early, late, new = (a_name(what) for what in ("session", "loop", "early", "late", "new"))
    await in_thread(lambda: admin.apply(a_session(session, limits=LIMITS, requestedBy=admin.me)))
    in_session = {"sessionRef": {"name": session}, "limits": LIMITS}
    gate = a_sealed_execution(admin, loop, f'wait("{agent}")', timeoutSeconds=600, **in_session)
    await in_thread(admin.create, gate)
    await stage.script.reached(agent)
    await in_thread(lambda: admin.create(a_sealed_execution(admin, early, 'print("waited")', **in_session)))
    under_way = a_sealed_execution(admin, late, 'print("under way")', limits=LIMITS)
    old = await in_thread(age_the_sealing_key, admin, timedelta(hours=25))
    await in_thread(operator.stop)
    await in_thread(operator.start)
    replaced = lambda found: found["data"]["keyName"] != old  # noqa: E731
    await in_thread(admin.wait_until, "another key", "configmap", "codeexec-sealing-key", replaced)
    await in_thread(admin.create, under_way)
    await in_thread(lambda: admin.create(a_sealed_execution(admin, new, 'print("new")', limits=LIMITS)))
    stage.script.open(agent)
    for name, output in ((early, "waited\n"), (late, "under way\n"), (new, "new\n")):
        record = await in_thread(admin.wait_for_phase, name, "Succeeded")
        assert record["status"]["stdout"]["text"] == output
        assert (record["spec"]["sealedPayload"]["keyName"] == old) is (name != new)
        stage.ran_once(record)
    await in_thread(admin.delete, "codesession", session)
