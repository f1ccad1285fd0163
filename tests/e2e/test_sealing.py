"""Small code travels in the record, for the operator's eyes only; larger code in a Secret that is gone when it runs."""

import asyncio
import json

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, Admin, a_name, a_sealed_execution, a_secret, an_execution, announce
from kube import Wait

pytestmark = pytest.mark.e2e


def submit(user: Admin, execution: dict) -> None:
    user.create(execution)


@pytest.mark.parametrize(("padding", "where"), [(0, "sealedPayload"), (20_000, "payloadRef")])
async def test_small_code_is_sealed_and_larger_code_is_in_a_secret(executor, admin, padding, where):
    code = f"print({padding!r}) #{'x' * padding}"
    since = admin.look("secret", SANDBOX)[1]
    result = await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    assert result.output == f"{padding}\n"
    spec = admin.execution(result.execution)["spec"]
    assert {"sealedPayload", "payloadRef"} & spec.keys() == {where}
    # Of the large code a Secret comes and goes, which is how the small code would be found in one.
    assert await asyncio.to_thread(secrets_of, admin, result.execution, since) == (
        [] if where == "sealedPayload" else ["ADDED", "DELETED"]
    )


def secrets_of(admin: Admin, execution: str, since: str) -> list[str]:
    """What has become of the Secrets that name an execution since that version, until there is none left."""
    last = a_name("last")
    admin.create(a_secret(last, {"block-0": b""}))
    wait = Wait(f"the Secrets of {execution} to be gone", 60)
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


def test_what_was_sealed_for_another_execution_is_refused(admin, agent_kubeconfig):
    """An agent reads a record of another one and tries to have its code run, to find out what it does."""
    agent = Admin(agent_kubeconfig)
    name, copy = a_name("author"), a_name("copycat")
    submit(agent, a_sealed_execution(admin, name, "print('mine')", requestedBy=agent.me))
    assert admin.wait_for_phase(name, "Succeeded")["status"]["stdout"]["text"] == "mine\n"  # the control
    stolen = agent.execution(name)["spec"]
    taken = {key: stolen[key] for key in ("blocks", "sealedPayload", "source", "requestedBy", "limits")}
    submit(agent, an_execution(copy, []) | {"spec": taken})
    status = admin.wait_for_phase(copy, "Denied")["status"]
    assert status["reason"] == "PayloadUnreadable"
    assert "spec.sealedPayload.data" in status["message"]
    assert "podName" not in status


def test_other_code_than_is_announced_is_refused(admin):
    name = a_name("mismatch")
    execution = a_sealed_execution(admin, name, "print('evil')     ")
    execution["spec"]["blocks"][0] |= announce(b"print('announced')")
    submit(admin, execution)
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PayloadMismatch"
    assert "spec.blocks[0]" in status["message"]


def test_a_key_that_the_operator_does_not_have(admin):
    name = a_name("keyless")
    execution = a_sealed_execution(admin, name, "print(1)")
    execution["spec"]["sealedPayload"]["keyName"] = "k20000101000000"
    submit(admin, execution)
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PayloadUnreadable"
    assert "'k20000101000000'" in status["message"]
    assert "Create the execution again" in status["message"]
