"""Which kernel runs code, as its pod shows: code does not run where a RuntimeClass promises more than holds."""

import pytest
from cluster_tools import put_policy
from component_stage import PRETENDED, RUNTIME_CLASS, in_thread

from executor_client import ExecutionNotStarted, PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
ANOTHER = "81a8169a-9ec8-4d07-81dd-8a28571e072d"


async def test_a_kernel_that_is_promised_has_to_be_shown(operator, stage, client, asking, agent, monkeypatch):
    """The simulated nodes' boot ID is no UUID, so this one is of no node."""
    request = asking(runtime_class_name=PRETENDED)
    with pytest.raises(ExecutionNotStarted, match=r"IsolationNotEnforced.*did not show a kernel of its own"):
        await client.execute(HELLO, request)
    refused = stage.record(agent)
    stage.never_ran(refused)
    assert refused["status"]["boundary"] == "Container"
    monkeypatch.setattr(stage.script, "boot_id", ANOTHER)
    assert (await client.execute(HELLO, request)).output == "hello\n"
    [shown] = [one for one in stage.records(agent=agent) if one["metadata"]["name"] != refused["metadata"]["name"]]
    assert shown["status"]["boundary"] == "gVisor"
    stage.ran_once(shown)


async def test_a_policy_that_names_no_class_has_the_default_policys(operator, stage, client, asking, agent, admin):
    policy = stage.a_policy()
    del policy["spec"]["runtimeClassName"]
    put_policy(admin, policy)
    try:
        await client.execute(HELLO, asking())
    finally:
        stage.drop_policy()
    assert stage.record(agent)["status"]["runtimeClassName"] == RUNTIME_CLASS


async def test_another_class_than_the_policys_is_for_those_who_name_it_and_may(
    operator, stage, policy, client, asking, agent, monkeypatch
):
    """That `runc` stands for a pod without a class: `unit/api/test_policy.py`."""
    monkeypatch.setattr(stage.script, "boot_id", ANOTHER)
    await in_thread(lambda: policy(runtimeClassName=PRETENDED, runtimeClassNames=[]))
    refused = await client.execute(HELLO, asking(runtime_class_name=RUNTIME_CLASS))
    words = f"spec.runtimeClassName: {RUNTIME_CLASS} is not allowed by the policy (allowed: {PRETENDED})"
    record = stage.record(agent)
    assert (refused.reason, words in record["status"]["message"]) == ("PolicyViolation", True)
    stage.never_ran(record)
    await in_thread(lambda: policy(runtimeClassName=PRETENDED, runtimeClassNames=[RUNTIME_CLASS]))
    found = {}
    for who, named in ((f"{agent}-named", {"runtime_class_name": RUNTIME_CLASS}), (f"{agent}-silent", {})):
        await client.execute(HELLO, asking(agent=who, **named))
        status = stage.record(who)["status"]
        found[who.removeprefix(f"{agent}-")] = status["phase"], status["runtimeClassName"], status["boundary"]
    assert found["silent"] == ("Succeeded", PRETENDED, "gVisor")
    assert found["named"][:2] == ("Succeeded", RUNTIME_CLASS)
