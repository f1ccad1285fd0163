"""R-16: a ceiling is never exceeded by asking."""

import pytest
from cluster_tools import SANDBOX, Admin

from codeexec_api import Limits
from executor_client import ClusterRef, CodeExecError, CodeExecutionClient

pytestmark = pytest.mark.remit("R-16")

MORE = {
    "timeout": 11,
    "limits": Limits(cpu="200m", memory="128Mi", ephemeral_storage="64Mi", pids=64, output_bytes=4096),
}
LOW = {
    "maxTimeoutSeconds": 10,
    "maxBlocks": 1,
    "maxLimits": {"cpu": "50m", "memory": "64Mi", "ephemeralStorage": "32Mi", "pids": 32, "outputBytes": 2048},
}


async def test_more_than_the_ceiling_is_denied(control, sandbox, policy):
    """A request above every ceiling is denied before any pod is made, and every ceiling is named."""
    allowed = await sandbox.run("print('ran')", "print('twice')", **MORE)
    control.succeeded("under a policy that allows it the same request ran", allowed.output == "ran\ntwice\n")
    policy(**LOW)
    denied = await sandbox.run("print('ran')", "print('twice')", **MORE)
    assert (denied.exit_code, denied.stdout) == (1, "")
    for ceiling in (
        "spec.blocks: 2 is not allowed by the policy (allowed: at most 1)",
        "timeout=11 is not allowed by the policy (allowed: at most 10)",
        'Limits(cpu="200m") is not allowed by the policy (allowed: at most 50m)',
        'Limits(memory="128Mi") is not allowed by the policy (allowed: at most 64Mi)',
        'Limits(ephemeral_storage="64Mi") is not allowed by the policy (allowed: at most 32Mi)',
        "Limits(pids=64) is not allowed by the policy (allowed: at most 32)",
        "Limits(output_bytes=4096) is not allowed by the policy (allowed: at most 2048)",
    ):
        assert ceiling in denied.output
    status = sandbox.record(denied)["status"]
    assert (status["phase"], "podName" in status) == ("Denied", False)


async def test_only_a_human_raises_a_ceiling(control, sandbox, policy, admin, approver, kubeconfig_of):
    """What the policy names for that waits, and runs when somebody else approves it; who asked can't."""
    policy(maxLimits={"memory": "64Mi"}, withApproval={"maxLimits": {"memory": "256Mi"}})
    left = await sandbox.run("print('ran')", limits=Limits(memory="128Mi"), approval="return")
    assert (left.reason, left.stdout) == ("ApprovalRequired", "")
    agent = Admin(kubeconfig_of(SANDBOX, "codeexec-agent"))
    for user in (agent, approver):
        async with CodeExecutionClient(ClusterRef(SANDBOX, user.kubeconfig)) as client:
            waiting = await client.get(left.execution)
            if user is agent:
                with pytest.raises(CodeExecError):
                    await client.approve(waiting)
                assert sandbox.record(left)["status"]["phase"] == "AwaitingApproval"
            else:
                await client.approve(waiting)
    status = admin.wait_for_phase(left.execution, "Succeeded")["status"]
    control.succeeded("it ran when somebody else had approved it", status["stdout"]["text"] == "ran\n")
    assert status["approval"]["approver"] == approver.me
    assert [grant["field"] for grant in status["approval"]["grants"]] == ["spec.limits.memory"]


async def test_a_limit_is_not_raised_afterwards(control, sandbox, admin, agent_kubeconfig):
    """A request can't be changed once it is made, only cancelled."""
    name = (await sandbox.call("print('ran')")).execution
    agent = Admin(agent_kubeconfig)
    cancelled = agent.patch("cex", name, {"spec": {"cancelled": True}}, dry_run=True)
    control.succeeded("the same agent may cancel it (as a dry run)", cancelled)
    for spec in ({"timeoutSeconds": 600}, {"limits": {"memory": "1Gi"}}):
        assert "is immutable" in agent.try_patch("cex", name, {"spec": spec}, dry_run=True).message
