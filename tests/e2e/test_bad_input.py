"""A cluster that is not ready, and input that is not what it says, get an error that names the cause and the fix.

conformance/test_r11_errors.py has the usual failures, fake_cases.py those of policy and payload, test_cli.py a
namespace that no operator serves, tests/api those that need no node.
"""

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name, a_secret, image, signatures

from executor_client import (
    ExecutionNotStarted,
)

pytestmark = pytest.mark.e2e

PRINT = [CodeBlock("print('ran')", "python")]
SMALL = {"cpu": "100m", "memory": "96Mi"}


async def test_quota_that_is_used_up(executor, admin):
    name = a_name("nothing")
    meta = {"name": name, "namespace": SANDBOX}
    admin.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {"pods": "0"}}})
    counted = "the quota to be counted"
    admin.wait_until(counted, "resourcequota", name, lambda found: found.get("status", {}).get("used"))
    try:
        with pytest.raises(ExecutionNotStarted, match=r"QuotaExceeded.*wait until other executions end"):
            await executor.execute_code_blocks(PRINT, CancellationToken())
    finally:
        admin.delete("resourcequota", name)


def test_secret_that_is_not_its_payload_is_left_alone(admin):
    """An agent can't make the operator read or delete somebody else's Secret."""
    foreign, name = a_name("foreign"), a_name("thief")
    admin.apply(a_secret(foreign, {"block-0": b"print(1)"}))
    admin.submit(name, "print(1)", payload={"block-0": b"print(1)"}, payloadRef={"name": foreign})
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PayloadForeign"
    assert admin.exists("secret", foreign, SANDBOX)
    for secret in (foreign, name):
        admin.delete("secret", secret)


def test_sandbox_image_without_a_runner(admin, policy):
    operator = image("OPERATOR_IMAGE")
    policy(images=[operator], imageSignatures=signatures(operator))
    name = a_name("norunner")
    admin.submit(name, "print(1)", limits=SMALL)
    status = admin.wait_for_phase(name, "Failed")["status"]
    assert status["reason"] == "RunnerFailed"
    assert "check that the image is a codeexec sandbox image" in status["message"]
