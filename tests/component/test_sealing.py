"""Small code travels in the record, for the operator's eyes only; larger code in a Secret that is gone when it runs."""

import json

import pytest
from cluster_tools import SANDBOX, Admin, a_name, a_sealed_execution, a_secret, an_execution, announce
from component_stage import in_thread
from kube import Wait
from waits import SECONDS

from executor_client import PreparedBlock

PATIENT = {"timeoutSeconds": 600}

pytestmark = pytest.mark.usefixtures("operator")


@pytest.mark.parametrize(("padding", "where"), [(0, "sealedPayload"), (20_000, "payloadRef")])
async def test_small_code_is_sealed_and_larger_code_is_in_a_secret(stage, admin, client, asking, agent, padding, where):
    code = f'print("{padding}")\n#{"x" * padding}'
    since = admin.look("secret", SANDBOX)[1]
    result = await client.execute((PreparedBlock("python", code.encode()),), asking())
    assert result.output == f"{padding}\n"
    spec = stage.record(agent)["spec"]
    assert {"sealedPayload", "payloadRef"} & spec.keys() == {where}
    # Of the large code a Secret comes and goes, which is how the small code would be found in one.
    assert await in_thread(secrets_of, admin, result.name, since) == (
        [] if where == "sealedPayload" else ["ADDED", "DELETED"]
    )


def secrets_of(admin: Admin, execution: str, since: str) -> list[str]:
    """What has become of the Secrets that name an execution since that version, until there is none left."""
    last = a_name("last")
    admin.create(a_secret(last, {"block-0": b""}))
    wait = Wait(f"the Secrets of {execution} to be gone", SECONDS)
    seen: list[str] = []
    over = False
    for event in (one for change in admin.changes("secret", SANDBOX, wait, since=since) for one in change):
        wait.see(event)
        if execution in json.dumps(event.object):
            seen.append(event.type)
        over = over or event.object["metadata"]["name"] == last
        if over and seen.count("ADDED") == seen.count("DELETED"):
            admin.delete("secret", last)
            return seen
    raise wait.in_vain()


def test_what_was_sealed_for_another_execution_is_refused(stage, admin, make_user):
    """An agent reads a record of another one and tries to have its code run, to find out what it does."""
    agent = make_user("agent")
    name, copy = a_name("author"), a_name("copycat")
    agent.create(a_sealed_execution(admin, name, "print('mine')", requestedBy=agent.me, **PATIENT))
    assert admin.wait_for_phase(name, "Succeeded")["status"]["stdout"]["text"] == "mine\n", "control"
    stolen = agent.execution(name)["spec"]
    taken = {key: stolen[key] for key in ("blocks", "sealedPayload", "source", "requestedBy", "limits")}
    agent.create(an_execution(copy, [], requestedBy=agent.me) | {"spec": taken})
    record = admin.wait_for_phase(copy, "Denied")
    assert record["status"]["reason"] == "PayloadUnreadable"
    assert "spec.sealedPayload.data" in record["status"]["message"]
    assert "podName" not in record["status"]
    stage.never_ran(record)


def test_other_code_than_is_announced_is_refused(stage, admin):
    name = a_name("mismatch")
    execution = a_sealed_execution(admin, name, "print('evil')     ", **PATIENT)
    right = execution["spec"]["blocks"][0]
    wrong = right | announce(b"print('announced')")
    assert wrong["sizeBytes"] == right["sizeBytes"], "only the digest tells"
    admin.create(execution | {"spec": {**execution["spec"], "blocks": [wrong]}})
    record = admin.wait_for_phase(name, "Denied")
    assert record["status"]["reason"] == "PayloadMismatch"
    assert "spec.blocks[0]" in record["status"]["message"]
    stage.never_ran(record)


def test_a_key_that_the_operator_does_not_have(stage, admin):
    name = a_name("keyless")
    execution = a_sealed_execution(admin, name, "print(1)", **PATIENT)
    execution["spec"]["sealedPayload"]["keyName"] = "k20000101000000"
    admin.create(execution)
    record = admin.wait_for_phase(name, "Denied")
    assert record["status"]["reason"] == "PayloadUnreadable"
    assert "'k20000101000000'" in record["status"]["message"]
    assert "Create the execution again" in record["status"]["message"]
    stage.never_ran(record)
