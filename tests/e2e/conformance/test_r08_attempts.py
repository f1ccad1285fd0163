"""R-08: attempts to get out fail and are recorded; whoever submitted them can't change or remove the record."""

import hashlib

import pytest
from cluster_tools import Admin

pytestmark = pytest.mark.remit("R-08")


def read_the_token():
    """read the token of a service account"""
    with open("/var/run/secrets/kubernetes.io/serviceaccount/token") as file:
        return file.read()


def write_to_the_system():
    """write to /usr/bin"""
    with open("/usr/bin/codeexec", "w") as file:
        return file.write("x")


def read_the_first_process():
    """read the memory of the first process"""
    with open("/proc/1/mem", "rb") as file:
        return file.fileno()


async def test_attempts_stand_in_the_record(attack, sandbox):
    """The record of code that tried to get out tells its digest, its agent, its exit status and what it printed."""
    result = await attack(read_the_token, write_to_the_system, read_the_first_process, agent="intruder")
    record = sandbox.record(result)
    spec, status = record["spec"], record["status"]
    assert spec["source"]["agent"] == "intruder"
    assert len(spec["blocks"][0]["sha256"]) == 64
    assert (status["phase"], status["exitCode"]) == ("Succeeded", 0)
    assert "refused: EACCES" in status["stdout"]["text"]
    assert status["stdout"]["sha256"] == hashlib.sha256(result.stdout.encode()).hexdigest()


async def test_record_can_not_be_changed_by_who_submits(control, sandbox, admin, agent_kubeconfig):
    """An agent can neither delete the record of its code nor write another result into it."""
    result = await sandbox.call("import sys; sys.exit(7)")
    agent, name = Admin(agent_kubeconfig), result.execution
    forged = {"patch": {"status": {"exitCode": 0}}, "subresource": "status", "dry_run": True}
    for verb, mine, the_agent_s in (
        ("delete", admin.try_delete("codeexecution", name, dry_run=True), agent.try_delete("codeexecution", name)),
        ("patch", admin.try_patch("cex", name, **forged), agent.try_patch("cex", name, **{**forged, "dry_run": False})),
    ):
        control.succeeded(f"the administrator may {verb} the record (as a dry run)", mine is None)
        assert (the_agent_s.code, the_agent_s.reason) == (403, "Forbidden"), verb
    assert sandbox.record(result)["status"]["exitCode"] == 7
