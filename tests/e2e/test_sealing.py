"""Small code travels in the record, for the operator's eyes only; larger code in a Secret that is gone when it runs."""

import json
from datetime import timedelta

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import (
    SANDBOX,
    Admin,
    a_name,
    a_sealed_execution,
    a_session,
    age_the_sealing_key,
    an_execution,
    announce,
    restart_operator,
    wait_for,
)

pytestmark = pytest.mark.e2e

LIMITS = {"cpu": "100m", "memory": "64Mi"}


def submit(user: Admin, execution: dict) -> None:
    user.kubectl("create", "-f", "-", stdin=json.dumps(execution))


@pytest.mark.parametrize(("padding", "where"), [(0, "sealedPayload"), (20_000, "payloadRef")])
async def test_small_code_is_sealed_and_larger_code_is_in_a_secret(executor, admin, padding, where):
    code = f"print({padding!r}) #{'x' * padding}"
    result = await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    assert result.output == f"{padding}\n"
    spec = admin.execution(result.execution)["spec"]
    assert {"sealedPayload", "payloadRef"} & spec.keys() == {where}
    selector = f"codeexec.dev/execution={result.execution}"
    wait_for("no Secret to be left", lambda: not admin.kubectl("-n", SANDBOX, "get", "secrets", "-l", selector))


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


def test_it_is_sealed_or_in_a_secret_and_not_both(admin):
    execution = a_sealed_execution(admin, a_name("both"), "print(1)")
    dry = ("create", "--dry-run=server", "-f", "-")
    assert admin.try_kubectl(*dry, stdin=json.dumps(execution)).returncode == 0  # the control
    both = execution["spec"] | {"payloadRef": {"name": "both"}}
    assert "sealedPayload" in admin.try_kubectl(*dry, stdin=json.dumps(execution | {"spec": both})).stderr
    neither = {key: value for key, value in execution["spec"].items() if key != "sealedPayload"}
    assert "sealedPayload" in admin.try_kubectl(*dry, stdin=json.dumps(execution | {"spec": neither})).stderr


def test_after_a_day_there_is_another_key_and_the_old_one_still_opens(admin):
    early, late, new = (a_name(what) for what in ("early", "late", "new"))
    session = a_name("session")
    admin.apply(a_session(session, limits=LIMITS))
    busy = a_name("busy")
    submit(admin, a_sealed_execution(admin, busy, "import time; time.sleep(300)", sessionRef={"name": session}))
    admin.wait_for_phase(busy, "Running")
    waiting = a_sealed_execution(admin, early, "print('waited')", sessionRef={"name": session})
    submit(admin, waiting)
    under_way = a_sealed_execution(admin, late, "print('under way')")
    old = age_the_sealing_key(admin, timedelta(hours=25))
    restart_operator(admin)
    wait_for("another key", lambda: admin.get("configmap", "codeexec-sealing-key")["data"]["keyName"] != old)
    submit(admin, under_way)
    submit(admin, a_sealed_execution(admin, new, "print('new')"))
    assert waiting["spec"]["sealedPayload"]["keyName"] == under_way["spec"]["sealedPayload"]["keyName"] == old
    outputs = [
        admin.wait_for_phase(one, "Succeeded", "Denied")["status"]["stdout"]["text"] for one in (early, late, new)
    ]
    assert outputs == ["waited\n", "under way\n", "new\n"]
    admin.kubectl("-n", SANDBOX, "delete", "codesession", session, "--wait=false")
