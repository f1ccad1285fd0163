"""What the client says where the API server is all that there is, or isn't even that: the cause, and what to do."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from click.testing import CliRunner
from cluster_tools import SANDBOX, a_name, an_execution

from executor_client import (
    ClusterRef,
    ClusterUnreachable,
    CodeExecutionClient,
    InvalidExecution,
    KubernetesCodeExecutor,
    NotInstalled,
    NotPermitted,
)
from executor_client.cli import main

PRINT = [CodeBlock("print('ran')", "python")]


@pytest.fixture
def changed_kubeconfig(agent_kubeconfig, tmp_path) -> Callable[..., Path]:
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


async def test_cluster_that_does_not_answer(make_executor, changed_kubeconfig):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{unused.getsockname()[1]}"
        executor = make_executor(kubeconfig=changed_kubeconfig(server=server))
        with pytest.raises(ClusterUnreachable, match=r"no answer from the API server at https://127\.0\.0\.1"):
            await executor.execute_code_blocks(PRINT, CancellationToken())


async def test_kubeconfig_that_is_not_there():
    executor = KubernetesCodeExecutor(kubeconfig="/nonexistent/kubeconfig")
    with pytest.raises(ClusterUnreachable, match="/nonexistent/kubeconfig"):
        await executor.start()


async def test_crds_that_are_missing(make_executor, kubeconfig, monkeypatch):
    """The real API server answers for a group that nobody has installed."""
    monkeypatch.setattr("executor_client.transport.watch.OURS", "/apis/absent.codeexec.dev/v1alpha1")
    executor = make_executor(kubeconfig=kubeconfig)
    with pytest.raises(NotInstalled, match="CRDs are missing: install the codeexec Helm chart"):
        await executor.start()
    with pytest.raises(NotInstalled, match="CRDs are missing"):
        await executor.execute_code_blocks(PRINT, CancellationToken())


async def test_namespace_that_is_missing(make_executor, kubeconfig):
    executor = make_executor(kubeconfig=kubeconfig, namespace="no-such-namespace")
    with pytest.raises(NotInstalled, match="sandbox namespace"):
        await executor.execute_code_blocks(PRINT, CancellationToken())


async def test_identity_without_rights(make_executor, kubeconfig_of):
    executor = make_executor(kubeconfig=kubeconfig_of(SANDBOX, "default"))
    with pytest.raises(NotPermitted, match="codeexec-agent"):
        await executor.execute_code_blocks(PRINT, CancellationToken())


async def test_credentials_that_are_not_valid(make_executor, changed_kubeconfig):
    executor = make_executor(kubeconfig=changed_kubeconfig(token="expired"))
    with pytest.raises(NotPermitted, match=r"401.*credentials in the kubeconfig are not valid"):
        await executor.execute_code_blocks(PRINT, CancellationToken())


async def test_a_rule_of_the_api_is_told_in_its_own_words(make_user, admin):
    """Of who may decide and has asked: without the status code, and without what the API server says around it."""
    both = make_user("agent", "approver")
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    made = both.create(an_execution(a_name("own"), [block], requestedBy=both.me))
    asked = {"grants": [{"field": "spec.limits.memory", "value": "128Mi"}]}
    status = {"phase": "AwaitingApproval", "approval": asked}
    admin.patch("cex", made["metadata"]["name"], {"status": status}, subresource="status")
    async with CodeExecutionClient(ClusterRef(SANDBOX, both.kubeconfig)) as client:
        with pytest.raises(InvalidExecution, match="nobody approves their own request") as caught:
            await client.approve(await client.get(made["metadata"]["name"]))
    said = str(caught.value)
    assert said.startswith(f"could not create the ExecutionApproval in namespace {SANDBOX!r}: spec.approver: ")
    assert not [noise for noise in ("422", "Invalid value", "object", "is invalid") if noise in said], said


@pytest.fixture
def unserved(admin, monkeypatch) -> str:
    """A namespace: no operator serves any here.

    How long a client waits for an operator is a constant, and this is a shorter one. Whether the operator is missing or
    serves other namespaces, a client sees the same: nobody takes the record up.
    """
    monkeypatch.setattr("executor_client.client.execution.OPERATOR_SECONDS", 1)
    namespace = a_name("unserved")
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return namespace


async def test_namespace_that_no_operator_serves(make_executor, admin, kubeconfig, unserved):
    executor = make_executor(kubeconfig=kubeconfig, namespace=unserved)
    with pytest.raises(NotInstalled, match="no operator took up execution"):
        await executor.execute_code_blocks(PRINT, CancellationToken())
    [left] = admin.list("codeexecution", unserved)
    assert left["spec"]["cancelled"], "so that an operator that comes later doesn't run it"


def test_doctor_says_that_no_operator_serves_the_namespace(kubeconfig, unserved):
    done = CliRunner().invoke(main, ["doctor", "-n", unserved, "--kubeconfig", kubeconfig])
    assert "failed   execution" in done.stdout
    assert f"in namespace {unserved!r} within 1 s. Pass a sandbox namespace" in done.stdout
    assert done.exit_code == 1


def test_run_says_that_no_operator_serves_the_namespace(kubeconfig, unserved):
    done = CliRunner().invoke(main, ["run", "-n", unserved, "--kubeconfig", kubeconfig, "-c", "print(1)"])
    assert (done.stdout, done.exit_code) == ("", 1)
    assert "no operator took up execution" in done.stderr
