"""Bad input and a cluster that is not ready get an error that names the cause and the fix, within seconds."""

import socket
import time
from pathlib import Path

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, SYSTEM, a_name, a_secret, image

from executor_client import (
    ClusterUnreachable,
    ExecutionNotStarted,
    KubernetesCodeExecutor,
    NotInstalled,
    NotPermitted,
)

pytestmark = pytest.mark.e2e

PRINT = [CodeBlock("print('ran')", "python")]


@pytest.fixture
def quickly():
    """The test has to end within seconds: a hang would be a failure."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 30


async def test_unknown_language(executor):
    blocks = [CodeBlock("print('first')", "Python"), CodeBlock("x", "cobol"), *PRINT]
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    assert result.exit_code == 1
    assert result.output == "first\n\nunknown language cobol; supported languages: python, bash, sh, javascript, pwsh"


def test_timeout_below_one_second():
    with pytest.raises(ValueError, match="timeout is 0, but must be at least 1"):
        KubernetesCodeExecutor(timeout=0)


@pytest.fixture
def changed_kubeconfig(agent_kubeconfig, tmp_path):
    """A copy of the agent's kubeconfig with another server or another token."""

    def write(*, server: str | None = None, token: str | None = None) -> Path:
        config = yaml.safe_load(Path(agent_kubeconfig).read_text())
        if server:
            config["clusters"][0]["cluster"]["server"] = server
        if token:
            config["users"][0]["user"]["token"] = token
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


async def test_cluster_that_does_not_answer(changed_kubeconfig, quickly):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{unused.getsockname()[1]}"
        executor = KubernetesCodeExecutor(kubeconfig=changed_kubeconfig(server=server))
        with pytest.raises(ClusterUnreachable, match=r"no answer from the API server at https://127\.0\.0\.1"):
            await executor.execute_code_blocks(PRINT, CancellationToken())
        await executor.stop()


async def test_kubeconfig_that_is_not_there(quickly):
    executor = KubernetesCodeExecutor(kubeconfig="/nonexistent/kubeconfig")
    with pytest.raises(ClusterUnreachable, match="/nonexistent/kubeconfig"):
        await executor.start()


async def test_crds_that_are_missing(kubeconfig, monkeypatch, quickly):
    """The real API server answers for a group that nobody has installed."""
    monkeypatch.setattr("executor_client.transport.GROUP", "absent.codeexec.dev")
    executor = KubernetesCodeExecutor(kubeconfig=kubeconfig)
    with pytest.raises(NotInstalled, match="CRDs are missing: install the codeexec Helm chart"):
        await executor.start()
    with pytest.raises(NotInstalled, match="CRDs are missing"):
        await executor.execute_code_blocks(PRINT, CancellationToken())
    await executor.stop()


async def test_namespace_that_is_missing(kubeconfig, quickly):
    executor = KubernetesCodeExecutor(kubeconfig=kubeconfig, namespace="no-such-namespace")
    with pytest.raises(NotInstalled, match="sandbox namespace"):
        await executor.execute_code_blocks(PRINT, CancellationToken())
    await executor.stop()


async def test_identity_without_rights(kubeconfig_of, quickly):
    executor = KubernetesCodeExecutor(kubeconfig=kubeconfig_of(SANDBOX, "default"))
    with pytest.raises(NotPermitted, match="codeexec-agent"):
        await executor.execute_code_blocks(PRINT, CancellationToken())
    await executor.stop()


async def test_credentials_that_are_not_valid(changed_kubeconfig, quickly):
    executor = KubernetesCodeExecutor(kubeconfig=changed_kubeconfig(token="expired"))
    with pytest.raises(NotPermitted, match=r"401.*credentials in the kubeconfig are not valid"):
        await executor.execute_code_blocks(PRINT, CancellationToken())
    await executor.stop()


async def test_namespace_that_no_operator_serves(kubeconfig, admin):
    executor = KubernetesCodeExecutor(kubeconfig=kubeconfig, namespace="default")
    started = time.monotonic()
    with pytest.raises(NotInstalled, match="no operator took up execution"):
        await executor.execute_code_blocks(PRINT, CancellationToken())
    assert time.monotonic() - started < 40
    admin.kubectl(
        "-n", "default", "delete", "codeexecutions,secrets", "--selector", "app.kubernetes.io/managed-by=codeexec"
    )
    admin.kubectl("-n", "default", "delete", "codeexecutions", "--all")
    await executor.stop()


async def test_image_that_is_not_there(make_executor, policy, quickly):
    absent = f"{image().split('@')[0]}@sha256:{'0' * 64}"
    policy(images=[image(), absent])
    with pytest.raises(ExecutionNotStarted, match=r"ImagePullFailed.*check that the image exists"):
        await make_executor(image=absent).execute_code_blocks(PRINT, CancellationToken())


async def test_image_that_the_policy_does_not_name(make_executor, admin, quickly):
    foreign = f"registry.example/other@sha256:{'1' * 64}"
    result = await make_executor(image=foreign).execute_code_blocks(PRINT, CancellationToken())
    assert result.exit_code == 1
    assert "Denied: spec.image" in result.output
    assert foreign in result.output
    assert "podName" not in admin.execution(result.execution)["status"]


async def test_limits_above_the_policy(make_executor, policy, quickly):
    policy(maxTimeoutSeconds=10, languages=["bash"])
    result = await make_executor(timeout=11).execute_code_blocks(PRINT, CancellationToken())
    assert result.exit_code == 1
    assert "spec.timeoutSeconds: 11 is not allowed by the policy (allowed: at most 10)" in result.output
    assert "spec.blocks[0].language: python is not allowed by the policy (allowed: bash)" in result.output


async def test_quota_that_is_used_up(executor, admin, quickly):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "e2e-nothing", "namespace": SANDBOX},
        "spec": {"hard": {"pods": "0"}},
    }
    admin.apply(quota)
    try:
        with pytest.raises(ExecutionNotStarted, match=r"QuotaExceeded.*wait until other executions end"):
            await executor.execute_code_blocks(PRINT, CancellationToken())
    finally:
        admin.kubectl("-n", SANDBOX, "delete", "resourcequota", "e2e-nothing")


def test_payload_that_does_not_match_its_digest(admin, quickly):
    name = a_name("mismatch")
    admin.submit(name, "print('announced')", payload={"block-0": b"print('evil')     "})
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PayloadMismatch"
    assert "spec.blocks[0]" in status["message"]
    assert "podName" not in status
    assert not admin.exists("secret", name, SANDBOX)


def test_secret_that_is_not_its_payload_is_left_alone(admin, quickly):
    """An agent can't make the operator read or delete somebody else's Secret."""
    foreign, name = a_name("foreign"), a_name("thief")
    admin.apply(a_secret(foreign, {"block-0": b"print(1)"}))
    admin.submit(name, "print(1)", payload={"block-0": b"print(1)"}, payloadRef={"name": foreign})
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PayloadForeign"
    assert admin.exists("secret", foreign, SANDBOX)
    admin.kubectl("-n", SANDBOX, "delete", "secret", foreign, name)


def test_payload_that_never_comes(admin, quickly):
    name = a_name("empty")
    admin.submit(name, "print(1)", payloadRef={"name": a_name("absent")})
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PayloadMissing"
    admin.kubectl("-n", SANDBOX, "delete", "secret", name)


def test_sandbox_image_without_a_runner(admin, policy, quickly):
    operator = image("OPERATOR_IMAGE")
    policy(images=[operator])
    name = a_name("norunner")
    admin.submit(name, "print(1)")
    status = admin.wait_for_phase(name, "Failed")["status"]
    assert status["reason"] == "RunnerFailed"
    assert "is it a sandbox image" in status["message"]


async def test_operator_that_is_not_there(executor, admin):
    admin.kubectl("-n", SYSTEM, "scale", "deployment/codeexec-operator", "--replicas=0")
    try:
        with pytest.raises(NotInstalled, match="no operator took up execution"):
            await executor.execute_code_blocks(PRINT, CancellationToken())
    finally:
        admin.kubectl("-n", SYSTEM, "scale", "deployment/codeexec-operator", "--replicas=1")
        admin.kubectl("-n", SYSTEM, "rollout", "status", "deployment/codeexec-operator", "--timeout=60s")
