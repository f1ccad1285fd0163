"""What the status of an ExecutionPolicy says, while policies, CRDs and operators change."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import in_thread
from faults import Answer

from codeexec_api.names import GROUP, POLICY_PLURAL
from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
WRITE = Match("patch", POLICY_PLURAL, subresource="status")
CRD = ("customresourcedefinition", f"{POLICY_PLURAL}.{GROUP}")


@pytest.fixture
def newer(stage, admin, operator) -> Iterator[None]:
    """The CRD of a newer release: the API server takes a field that this operator doesn't know."""
    before = admin.get(*CRD)
    after = copy.deepcopy(before)
    [version] = after["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["newRule"] = {"type": "boolean"}
    admin.replace(after)
    policy = stage.a_policy(newRule=True)
    wait_for("the newer CRD to count", lambda: admin.try_apply(policy, dry_run=True) is None)
    yield
    if admin.exists("executionpolicy", "default"):
        admin.delete("executionpolicy", "default", wait=True)
    after["spec"]["versions"] = before["spec"]["versions"]
    admin.patch(*CRD, {"spec": {"versions": before["spec"]["versions"]}})
    wait_for("the CRD of this release to count", lambda: admin.try_apply(policy, dry_run=True) is not None)


def ready(policy: dict[str, Any]) -> dict[str, Any]:
    conditions = policy.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == "Ready"), {"status": "none"})


def told(admin, status: str) -> dict[str, Any]:
    """The policy, once its newest generation was observed with this result."""
    what = f"the policy to have Ready={status}"

    def is_told(policy: dict[str, Any]) -> bool:
        seen = policy.get("status", {}).get("observedGeneration") == policy["metadata"]["generation"]
        return seen and ready(policy)["status"] == status

    return dict(admin.wait_until(what, "executionpolicy", "default", is_told))


async def denied(client, asking) -> str:
    result = await client.execute(HELLO, asking())
    assert result.output.startswith("Denied: ")
    return str(result.output)


async def test_it_says_whether_the_policy_is_in_force_and_is_written_once(
    newer, operator, stage, admin, client, asking
):
    await in_thread(admin.apply, stage.a_policy(newRule=True))
    policy = await in_thread(told, admin, "False")
    condition = ready(policy)
    assert condition["reason"] == "PolicyInvalid"
    assert "spec.newRule: found true, but this version knows no such field" in condition["message"]
    assert condition["message"] in await denied(client, asking), "control: that is why nothing runs"

    begun = len(stage.proxy.seen(WRITE))
    await in_thread(operator.restart)
    await denied(client, asking)
    assert len(stage.proxy.seen(WRITE)) == begun, "the next operator finds it as it would write it"
    assert (
        admin.get("executionpolicy", "default")["metadata"]["resourceVersion"] == policy["metadata"]["resourceVersion"]
    )

    del policy["spec"]["newRule"]
    await in_thread(admin.replace, policy)
    mended = await in_thread(told, admin, "True")
    assert ready(mended)["reason"] == "PolicyInForce"
    assert ready(mended)["lastTransitionTime"] > condition["lastTransitionTime"]
    admin.kubectl("wait", "--namespace", SANDBOX, "--for=condition=Ready", "executionpolicy/default", "--timeout=0s")
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    written = [one for one in stage.proxy.seen(WRITE)[begun:] if one.status == 200]
    assert len(written) == 1, "one that comes too late, after a look at what there was, is refused"


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_a_write_that_fails_costs_nobody_anything(policy, stage, admin, client, asking, status):
    with stage.proxy.fault(WRITE, Answer(status)) as fault:
        await in_thread(admin.apply, stage.a_policy(maxBlocks=2))  # `policy` would wait for its status
        await fault.hit()
        assert (await client.execute(HELLO, asking())).output == "hello\n"
    await in_thread(lambda: policy(maxBlocks=3))
    await in_thread(told, admin, "True")
