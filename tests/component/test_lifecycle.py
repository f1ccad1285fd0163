"""From request to record: what is there when, what is cleaned up, what is kept. Payloads are in Secrets."""

import asyncio
from contextlib import suppress

import pytest
from api_calls import Match
from cluster_tools import QUOTA, SANDBOX, Admin, a_name, a_secret, a_session, use_up_the_quota, wait_for
from component_stage import LIMITS, in_thread

from codeexec_api.names import EXECUTION_LABEL
from executor_client import CodeExecutionClient, ExecutionNotStarted, PreparedBlock, Request

HELLO = (PreparedBlock("python", b'print("hello")'),)
SECRETS = Match("watch", "secrets", namespace=SANDBOX)
SMALL = {"limits": LIMITS, "timeoutSeconds": 600}


def cancel(admin: Admin, name: str) -> None:
    admin.patch("cex", name, {"spec": {"cancelled": True}})


def pods_of(name: str) -> str:
    return f"{EXECUTION_LABEL}={name}"


def test_the_payload_is_gone_while_the_code_runs(operator, stage, admin):
    name = a_name("payload")
    admin.submit(name, f'wait("{name}")\nprint("done")', **SMALL)
    stage.script.wait_at(name)
    admin.wait_until_gone("secret", name)
    assert admin.phase(name) == "Running"
    stage.script.open(name)
    assert admin.wait_for_phase(name, "Succeeded")["status"]["stdout"]["text"] == "done\n"


@pytest.fixture
def keeps_pods(policy) -> None:
    """The policy lets pods stay for five minutes after their code has ended."""
    policy(podTTLSeconds=300)


def test_a_pod_goes_by_its_time_and_the_record_stays(operator, admin, keeps_pods):
    quick, slow = a_name("quick"), a_name("slow")
    admin.submit(slow, 'print("hello")', ttlSecondsAfterFinished=300, **SMALL)
    kept = admin.wait_for_phase(slow, "Succeeded")["status"]["podName"]
    admin.submit(quick, 'print("hello")', ttlSecondsAfterFinished=0, **SMALL)
    admin.wait_until_gone("pod", admin.wait_for_phase(quick, "Succeeded")["status"]["podName"])
    assert admin.exists("pod", kept, SANDBOX), "control: the one that came before has more time"
    assert admin.phase(quick) == admin.phase(slow) == "Succeeded"
    admin.delete("codeexecution", slow, wait=True)
    admin.wait_until_gone("pod", kept)


def test_what_is_cancelled_before_it_starts_gets_no_pod(operator, stage, admin):
    name = a_name("early")
    admin.submit(name, 'print("never")', cancelled=True)
    ended = admin.wait_for_phase(name, "Cancelled")
    assert "podName" not in ended["status"]
    stage.never_ran(ended)
    admin.wait_until_gone("secret", name)


def test_the_payload_of_what_is_cancelled_goes_whoever_is_heard_of_first(operator, stage, admin):
    name = a_name("early")
    wait_for("the operator to hear of no payload", lambda: stage.proxy.silence_open(SECRETS))
    admin.submit(name, 'print("never")', cancelled=True)
    admin.wait_for_phase(name, "Cancelled")
    admin.wait_until_gone("secret", name)
    stage.proxy.cut_open(SECRETS)


def test_what_is_cancelled_while_it_starts_leaves_no_pod(operator, stage, admin):
    """Whatever step the operator is at: the pod that it asked for goes, and no other."""
    bystander, names = a_name("bystander"), [a_name("race") for _ in range(6)]
    admin.submit(bystander, f'wait("{bystander}")', **SMALL)
    stage.script.wait_at(bystander)
    assert len(admin.list("pod", labels=pods_of(bystander))) == 1, "control: a pod that is there is found"
    for name in names:
        admin.submit(name, f'wait("{name}")', **SMALL)
        cancel(admin, name)
    ended = [admin.wait_for_phase(name, "Cancelled")["status"]["reason"] for name in names]
    for name in names:
        admin.wait_until_all(f"the pod of {name} to be gone", "pod", lambda pods: not pods, labels=pods_of(name))
    assert ended == ["CancelRequested"] * 6
    assert admin.phase(bystander) == "Running"
    assert len(admin.list("pod", labels=pods_of(bystander))) == 1
    stage.script.open(bystander)
    admin.wait_for_phase(bystander, "Succeeded")


def test_what_is_cancelled_while_its_container_is_made_leaves_no_pod(operator, stage, admin):
    name = a_name("starting")
    with stage.nodes.waiting("ContainerCreating"):
        admin.submit(name, 'print("never")', **SMALL)
        admin.wait_until_all("its pod", "pod", bool, labels=pods_of(name))
        cancel(admin, name)
        ended = admin.wait_for_phase(name, "Cancelled")
        admin.wait_until_all("its pod to be gone", "pod", lambda pods: not pods, labels=pods_of(name))
    stage.never_ran(ended)


def test_deleting_a_session_deletes_its_pod_and_stops_what_runs(operator, stage, admin):
    session, name = a_name("deleted"), a_name("inside")
    admin.apply(a_session(session, limits=LIMITS, requestedBy=admin.me))
    admin.submit_to(name, f'wait("{name}")', session, **SMALL)
    stage.script.wait_at(name)
    pod = admin.execution(name)["status"]["podName"]
    admin.delete("codesession", session, wait=True)
    admin.wait_until_gone("pod", pod)
    stage.ran_once(admin.wait_for_phase(name, "Lost", "Cancelled"))


# --- what can't be begun --------------------------------------------------------------------------------------------


async def test_a_quota_that_is_used_up_is_an_error_that_says_what_to_do(operator, stage, client, asking, agent, admin):
    await in_thread(use_up_the_quota, admin)
    try:
        with pytest.raises(ExecutionNotStarted, match=r"QuotaExceeded.*wait until other executions end"):
            await client.execute(HELLO, asking())
    finally:
        await in_thread(admin.delete, "resourcequota", QUOTA, wait=True)
    stage.never_ran(stage.record(agent))
    async with asyncio.timeout(100):  # the API server forgets the quota a moment later
        while not await ran(client, asking(agent=f"{agent}-2")):
            continue


async def ran(client: CodeExecutionClient, request: Request) -> bool:
    with suppress(ExecutionNotStarted):
        return (await client.execute(HELLO, request)).output == "hello\n"
    return False


def test_a_secret_that_is_not_its_payload_is_left_alone(operator, stage, admin):
    """An agent can't make the operator read or delete somebody else's Secret."""
    foreign, name = a_name("foreign"), a_name("thief")
    code = 'print("hello")'
    admin.apply(a_secret(foreign, {"block-0": code.encode()}))
    admin.submit(name, code, payloadRef={"name": foreign}, **SMALL)
    ended = admin.wait_for_phase(name, "Denied")
    assert ended["status"]["reason"] == "PayloadForeign"
    stage.never_ran(ended)
    assert admin.exists("secret", foreign, SANDBOX)
    control = a_name("control")
    admin.submit(control, code, **SMALL)
    admin.wait_for_phase(control, "Succeeded")
    admin.wait_until_gone("secret", control)
    for secret in (foreign, name):
        admin.delete("secret", secret)
