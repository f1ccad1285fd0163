"""From request to record: what is there when, what is cleaned up, what is kept."""

import asyncio
from urllib.parse import urlsplit

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name
from kubernetes.aio.client import ApiClient

from codeexec_api import Limits
from codeexec_api.names import EXECUTION_LABEL

pytestmark = pytest.mark.e2e

SMALL = {"cpu": "100m", "memory": "96Mi"}
LONG = "import time; time.sleep(300)"


def test_payload_is_gone_while_the_code_runs(admin):
    name = a_name("payload")
    admin.submit(name, LONG, limits=SMALL, timeoutSeconds=300, ttlSecondsAfterFinished=0)
    admin.wait_for_phase(name, "Running")
    admin.wait_until_gone("secret", name)
    assert admin.phase(name) == "Running"
    _cancel(admin, name)


def test_pod_goes_by_its_time_and_the_record_stays(admin):
    quick, slow = a_name("quick"), a_name("slow")
    admin.submit(quick, "print(1)", limits=SMALL, ttlSecondsAfterFinished=0)
    admin.submit(slow, "print(1)", limits=SMALL, ttlSecondsAfterFinished=300)
    pods = [admin.wait_for_phase(name, "Succeeded")["status"]["podName"] for name in (quick, slow)]
    admin.wait_until_gone("pod", pods[0])
    assert admin.exists("pod", pods[1], SANDBOX)
    assert admin.phase(quick) == admin.phase(slow) == "Succeeded"
    admin.delete("codeexecution", slow, wait=True)
    admin.wait_until_gone("pod", pods[1])


def test_cancelled_before_it_starts(admin):
    name = a_name("early")
    admin.submit(name, "print(1)", cancelled=True)
    status = admin.wait_for_phase(name, "Cancelled")["status"]
    assert "podName" not in status
    admin.wait_until_gone("secret", name)


def test_cancelled_while_it_starts_leaves_no_pod(admin):
    """Whatever step the operator is at: the pod that it asked for goes, and no other."""
    bystander, names = a_name("bystander"), [a_name("race") for _ in range(6)]
    admin.submit(bystander, LONG, limits=SMALL, timeoutSeconds=600)
    admin.wait_for_phase(bystander, "Running")
    assert len(admin.list("pod", labels=_pods_of(bystander))) == 1, "control: a pod that is there is found"
    for name in names:
        admin.submit(name, LONG, limits={"cpu": "50m", "memory": "32Mi"})
        admin.patch("cex", name, {"spec": {"cancelled": True}})
    ended = [admin.wait_for_phase(name, "Cancelled")["status"]["reason"] for name in names]
    for name in names:
        admin.wait_until_all(f"the pod of {name} to be gone", "pod", lambda pods: not pods, labels=_pods_of(name))
    assert ended == ["CancelRequested"] * 6
    assert admin.phase(bystander) == "Running"
    _cancel(admin, bystander)


@pytest.mark.suspect
async def test_caller_that_goes_away_while_it_submits(make_executor, admin, monkeypatch):
    """In the moment when the API server has made the record, and the caller has not heard of it yet."""
    executor, made = make_executor(timeout=60, limits=Limits(**SMALL)), []
    await executor.start()
    answered = ApiClient.call_api

    async def answered_too_late(api, method, url, header_params=None, body=None, *rest, **how):
        answer = await answered(api, method, url, header_params, body, *rest, **how)
        if method == "POST" and urlsplit(url).path.endswith("/codeexecutions"):
            made.append(body["metadata"]["name"])
            calling.cancel()
        return answer

    monkeypatch.setattr(ApiClient, "call_api", answered_too_late)
    block = CodeBlock("sleep 300", "sh")
    calling = asyncio.create_task(executor.execute_code_blocks([block], CancellationToken()))
    with pytest.raises(asyncio.CancelledError):
        await calling
    [name] = made
    record = await asyncio.to_thread(admin.wait_for_phase, name, "Cancelled")
    assert record["spec"]["cancelled"] is True


def _pods_of(name):
    return f"{EXECUTION_LABEL}={name}"


def _cancel(admin, name):
    admin.patch("cex", name, {"spec": {"cancelled": True}})
    admin.wait_for_phase(name, "Cancelled")
