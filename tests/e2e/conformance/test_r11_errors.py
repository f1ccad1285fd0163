"""R-11: what failed, where, and what to do reaches the caller. More of it: tests/e2e/test_bad_input.py."""

import socket
from pathlib import Path

import pytest
import yaml
from cluster_tools import SANDBOX, image, signatures

from executor_client import (
    ClusterUnreachable,
    ExecutionNotStarted,
    NotPermitted,
)

pytestmark = pytest.mark.remit("R-11")

RUN = "print('ran')"


@pytest.fixture
async def works(control, sandbox):
    """The control of each failure: the same call without the fault works."""
    result = await sandbox.call(RUN)
    control.succeeded("the same call without the fault ran the code", result.stdout == "ran\n")


async def test_failures_around_the_code_are_errors(works, sandbox, kubeconfig_of, agent_kubeconfig, tmp_path):
    """No cluster, no rights, no namespace, no valid credentials: an error of its own kind, with what to do."""
    config = yaml.safe_load(Path(agent_kubeconfig).read_text())
    nowhere, expired = tmp_path / "nowhere", tmp_path / "expired"
    [user] = config["users"]
    expired.write_text(yaml.safe_dump(config | {"users": [{"name": user["name"], "user": {"token": "expired"}}]}))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{unused.getsockname()[1]}"
        nowhere.write_text(yaml.safe_dump(config))
        with pytest.raises(
            ClusterUnreachable, match="check that the cluster is running, and that kubeconfig and context are right"
        ):
            await sandbox.run(RUN, kubeconfig=nowhere)
    with pytest.raises(NotPermitted, match=r"401.*credentials in the kubeconfig are not valid"):
        await sandbox.run(RUN, kubeconfig=expired)
    with pytest.raises(NotPermitted, match="ask the platform owner to bind the Role 'codeexec-agent'"):
        await sandbox.run(RUN, kubeconfig=kubeconfig_of(SANDBOX, "default"))
    with pytest.raises(NotPermitted, match="no-such-namespace"):
        await sandbox.run(RUN, namespace="no-such-namespace")


async def test_failures_of_the_sandbox_are_errors(works, sandbox, policy):
    """An image or a RuntimeClass that is not there: an error that names it."""
    absent = f"{image().split('@')[0]}@sha256:{'0' * 64}"
    policy(images=[image(), absent], imageSignatures=signatures(absent), runtimeClassNames=["no-such-class"])
    with pytest.raises(ExecutionNotStarted, match=r"ImagePullFailed.*check that the image exists"):
        await sandbox.run(RUN, image=absent)
    policy(runtimeClassName="no-such-class")
    with pytest.raises(ExecutionNotStarted, match=r"RuntimeClassNotFound.*no-such-class"):
        await sandbox.run(RUN)


async def test_failures_that_an_agent_can_mend_are_results(works, sandbox, policy):
    """An unknown language, a refusal by policy and each end of the code are results that say what to do."""
    unknown = await sandbox.run(("cobol", RUN))
    assert (unknown.exit_code, unknown.output) == (
        1,
        "unknown language cobol; supported languages: python, bash, sh. A sandbox image with node or pwsh also runs "
        "javascript or pwsh: see docs/images.md\nUnsupported language: cobol",
    )
    cases = {"ended": "import sys; sys.exit(9)", "missing": ("sh", "nonesuch"), "late": "import time; time.sleep(60)"}
    ended, missing = [await sandbox.run(cases[case]) for case in ("ended", "missing")]
    late = await sandbox.run(cases["late"], at=sandbox.session(timeout=3))
    assert ended.exit_code == 9
    assert (missing.exit_code, "nonesuch" in missing.stderr) == (127, True)
    assert (late.exit_code, "Timeout" in late.output) == (124, True)
    policy(maxTimeoutSeconds=10, languages=["bash"])
    denied = await sandbox.run(RUN, timeout=11)
    assert denied.exit_code == 1
    assert "timeout=11 is not allowed by the policy (allowed: at most 10)" in denied.output
    assert "spec.blocks[0].language: python is not allowed by the policy (allowed: bash)" in denied.output
    assert "ask the platform owner" in denied.output
