"""An agent requests more memory than the policy allows, and waits until a human approves the request.

The example plays three roles: the platform owner, who sets the policy; the agent, with the service account
codeexec-agent; and the human, who decides. It therefore needs an administrator's kubeconfig, such as that of
`make demo`. Outside an example, the human runs `kubectl codeexec approvals` and `kubectl codeexec approve NAME`.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from kubernetes.aio import client, config

from executor_client import ApprovalRequest, ClusterRef, CodeExecutionClient, KubernetesCodeExecutor, Limits

NAMESPACE = "codeexec-sandbox"
WHERE = ("codeexec.dev", "v1alpha1", NAMESPACE, "executionpolicies")
SMALL, LARGE = Limits(cpu="100m", memory="64Mi"), Limits(cpu="100m", memory="256Mi")
CODE = CodeBlock("print(len(bytes(100_000_000)))", "python")


async def main() -> None:
    configuration = client.Configuration()
    await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        custom: Any = client.CustomObjectsApi(api)
        image = await image_in_use()
        # The platform owner allows 64 MiB, and up to 512 MiB if a human approves.
        spec = {
            "images": [image],
            "maxLimits": {"memory": "64Mi"},
            "withApproval": {"maxLimits": {"memory": "512Mi"}},
        }
        kind = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "ExecutionPolicy", "metadata": {"name": "default"}}
        await custom.create_namespaced_custom_object(*WHERE, {**kind, "spec": spec})
        try:
            with tempfile.TemporaryDirectory() as folder:
                await ask_and_decide(await agents_kubeconfig(api, Path(folder)))
        finally:
            await custom.delete_namespaced_custom_object(*WHERE, "default")
    print("OK: what the policy does not allow by itself ran because a human approved it")


async def ask_and_decide(kubeconfig: Path) -> None:
    human = CodeExecutionClient(ClusterRef(NAMESPACE))
    loop, token = asyncio.get_running_loop(), CancellationToken()

    def notify(request: ApprovalRequest) -> None:  # a real application would notify its approvers here
        asks = ", ".join(map(str, request.grants))
        print(f"Agent {request.agent!r} ({request.requested_by}) asks for {asks}.")
        asyncio.run_coroutine_threadsafe(decide(human, request.execution, token), loop)

    options = {"kubeconfig": kubeconfig, "agent": "approval-example", "session": "per-call"}
    async with human, KubernetesCodeExecutor(limits=LARGE, on_approval_request=notify, **options) as agent:
        result = await agent.execute_code_blocks([CODE], token)
        assert (result.exit_code, result.output) == (0, "100000000\n"), result.output
        approval = (await human.get(result.execution or "")).status.approval
        assert approval
        print(f"It ran: approved by {approval.approver} ({approval.reason}).")

    print("With approval='return' the agent does not wait:")
    async with KubernetesCodeExecutor(limits=LARGE, approval="return", **options) as hasty:
        result = await hasty.execute_code_blocks([CODE], CancellationToken())
        assert (result.exit_code, result.reason) == (1, "ApprovalRequired"), result.output
        print(result.output)
        async with human:
            await human.deny(await human.get(result.execution or ""), reason="64 MiB are enough for that")
        print((await hasty.result_of(result.execution or "")).output)


async def decide(human: CodeExecutionClient, name: str, token: CancellationToken) -> None:
    try:
        execution = await human.get(name)
        code = await human.read_code(execution)
        print(f"The human reads the code: {code.blocks[0].decode()!a}")
        await human.approve(execution, reason="looks fine")
    except Exception as error:
        print(f"No decision: {error}")
        token.cancel()  # nobody else decides here, so the agent need not wait


async def image_in_use() -> str:
    """The first image of the cluster's default policy, from the record of an execution."""
    async with CodeExecutionClient(ClusterRef(NAMESPACE)) as owner:
        executor = KubernetesCodeExecutor(client=owner, limits=SMALL, session="per-call", agent="approval-example")
        result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
        return (await owner.get(result.execution or "")).status.image


async def agents_kubeconfig(api: client.ApiClient, folder: Path) -> Path:
    """A kubeconfig with an agent's rights only."""
    request: Any = {"spec": {"expirationSeconds": 3600}}
    core = client.CoreV1Api(api)
    token: Any = await core.create_namespaced_service_account_token("codeexec-agent", NAMESPACE, request)
    return with_token(token.status.token, folder / "kubeconfig")


def with_token(token: str, path: Path) -> Path:
    raw = yaml.safe_load(Path(os.environ.get("KUBECONFIG", "~/.kube/config")).expanduser().read_text())
    raw["users"] = [{"name": "agent", "user": {"token": token}}]
    for context in raw["contexts"]:
        context["context"]["user"] = "agent"
    path.write_text(yaml.safe_dump(raw))
    return path


asyncio.run(main())
