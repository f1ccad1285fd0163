"""AutoGen's agents, teams, tools and JSON work on the executor as they do on AutoGen's own."""

import asyncio
import importlib
import json
import threading
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, AssistantAgent, BaseChatAgent, CodeExecutorAgent
from autogen_agentchat.messages import (
    CodeExecutionEvent,
    TextMessage,
    ToolCallExecutionEvent,
)
from autogen_core import CancellationToken, FunctionCall, is_component_class
from autogen_core.code_executor import CodeBlock
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_core.tools import BaseTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.code_execution import PythonCodeExecutionTool
from cluster_tools import SANDBOX, a_name

from codeexec_api.names import CLIENT_LABEL
from executor_client import KubernetesCodeExecutor, Limits

SMALL = Limits(cpu="100m", memory="96Mi")
CAPABLE = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)


@pytest.fixture
def make(make_executor):
    """Executors with a session each; nobody starts them."""
    return lambda **options: make_executor(**{"session": "per-executor", "limits": SMALL, "timeout": 20, **options})


def approve(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=True, reason="a test")


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```"


def a_tool_call(*codes: str) -> CreateResult:
    calls = [
        FunctionCall(id=str(number), name="CodeExecutor", arguments=json.dumps({"code": code}))
        for number, code in enumerate(codes)
    ]
    usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
    return CreateResult(finish_reason="function_calls", content=calls, usage=usage, cached=False)


async def run(executor, code, language="python"):
    return await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())


async def test_agent_corrects_code_that_fails(make):
    replies = [
        fenced("print(1 / 0)"),
        json.dumps({"reason": "a division by zero", "retry": True}),
        fenced("print(1 / 1)"),
        "It is 1.",
    ]
    model = ReplayChatCompletionClient(replies, CAPABLE)
    agent = CodeExecutorAgent("coder", make(), model_client=model, max_retries_on_error=2, approval_func=approve)
    messages = [message async for message in agent.run_stream(task="What is one by one?")]
    events = [message for message in messages if isinstance(message, CodeExecutionEvent)]
    assert [(event.retry_attempt, event.result.exit_code) for event in events] == [(0, 1), (1, 0)]
    assert "ZeroDivisionError" in events[0].to_text()
    assert events[1].result.output == "1.0\n"
    assert messages[-1].messages[-1].to_text() == "It is 1."


@pytest.mark.suspect
async def test_nothing_is_run_without_approval(make, admin):
    executor = make()

    def refuse(request: ApprovalRequest) -> ApprovalResponse:
        return ApprovalResponse(approved=False, reason="too long")

    runner = CodeExecutorAgent("runner", executor, approval_func=refuse)
    response = await runner.on_messages([TextMessage(content=fenced("print(1)"), source="user")], CancellationToken())
    assert "not approved" in response.chat_message.to_text()
    control = admin.execution((await run(executor, "print(1)")).execution)
    client = f"{CLIENT_LABEL}={control['metadata']['labels'][CLIENT_LABEL]}"
    made = [one["metadata"]["name"] for one in admin.list("codeexecution", labels=client)]
    assert made == [control["metadata"]["name"]], "control: what runs is found; nothing else has"


async def test_tool_can_be_called_many_times_at_once(make):
    tool = PythonCodeExecutionTool(make())
    codes = [f"print({number} * {number})" for number in range(5)] + ["import sys; print('no'); sys.exit(2)"]
    results = await asyncio.gather(*(tool.run_json({"code": code}, CancellationToken()) for code in codes))
    assert [(one.success, one.output) for one in results] == [
        *((True, f"{number * number}\n") for number in range(5)),
        (False, "no\n"),
    ]


async def test_cancelled_agent_ends_with_a_result_and_the_code_stops(make, admin):
    """AutoGen's assistant never comes to an end if a tool raises `CancelledError`."""
    agent, token = a_name("cancelled"), CancellationToken()
    tool = PythonCodeExecutionTool(make(agent=agent, timeout=300))
    model = ReplayChatCompletionClient(
        [a_tool_call("print('so far', flush=True)\nimport time; time.sleep(300)")], CAPABLE
    )
    assistant = AssistantAgent("assistant", model, tools=[tool])
    running = asyncio.create_task(assistant.run(task="Wait.", cancellation_token=token))
    name = await asyncio.to_thread(admin.running_execution, agent)
    token.cancel()
    result = await asyncio.wait_for(running, 100)
    [event] = [message for message in result.messages if isinstance(message, ToolCallExecutionEvent)]
    assert event.content[0].content.endswith("Code execution was cancelled.")
    assert (await asyncio.to_thread(admin.wait_for_phase, name, "Cancelled"))["spec"]["cancelled"] is True


# --- JSON, as AutoGen Studio has it ---------------------------------------------------------------------------------


def a_component(kubeconfig: str, agent: str) -> dict[str, Any]:
    return {
        "provider": "executor_client.KubernetesCodeExecutor",
        "component_type": "code_executor",
        "version": 1,
        "component_version": 2,
        "label": "Kubernetes executor",
        "config": {
            "namespace": SANDBOX,
            "kubeconfig": kubeconfig,
            "timeout": 20,
            "agent": agent,
            "limits": {"cpu": "200m", "memory": "96Mi"},
        },
    }


def validated(component: dict[str, Any]) -> type[Any]:
    """The class of a component, after what Studio asks of one before it makes it."""
    module, _, name = component["provider"].rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert is_component_class(found)
    assert component["component_type"] == found.component_type
    found.component_config_schema.model_validate(component["config"])
    return found


@pytest.fixture
def trusted(monkeypatch) -> None:
    """Newer versions of AutoGen load nothing from other packages unless told to."""
    monkeypatch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "executor_client")


@pytest.mark.usefixtures("trusted")
async def test_agent_from_json_runs_code(agent_kubeconfig):
    executor = a_component(agent_kubeconfig, a_name("json"))
    agent = {
        "provider": "autogen_agentchat.agents.CodeExecutorAgent",
        "component_type": "agent",
        "version": 1,
        "component_version": 1,
        "config": {"name": "runner", "supported_languages": ["python", "sh", "bash"], "code_executor": executor},
    }
    assert validated(executor) is KubernetesCodeExecutor
    validated(agent)
    with pytest.warns(UserWarning, match="No approval function"):
        loaded = BaseChatAgent.load_component(agent)
    message = TextMessage(content=fenced("print(6 * 7)"), source="user")
    try:
        response = await loaded.on_messages([message], CancellationToken())
    finally:
        await loaded._code_executor.stop()  # nobody else will: Studio doesn't
    assert response.chat_message.to_text() == "42\n"


@pytest.mark.usefixtures("trusted")
async def test_tool_from_json_runs_code(agent_kubeconfig):
    executor = a_component(agent_kubeconfig, a_name("json"))
    tool = {
        "provider": "autogen_ext.tools.code_execution.PythonCodeExecutionTool",
        "component_type": "tool",
        "version": 1,
        "component_version": 1,
        "config": {"executor": executor, "description": "Runs Python in the cluster."},
    }
    validated(executor)
    validated(tool)
    loaded = BaseTool.load_component(tool)
    try:
        result = await loaded.run_json({"code": "print(6 * 7)"}, CancellationToken())
    finally:
        await loaded._executor.stop()
    assert (result.success, result.output) == (True, "42\n")


# --- loops and threads ----------------------------------------------------------------------------------------------


@pytest.mark.suspect
def test_several_threads_at_the_same_time_share_one_session(agent_kubeconfig, admin):
    executor = KubernetesCodeExecutor(kubeconfig=agent_kubeconfig, namespace=SANDBOX, agent="e2e", limits=SMALL)
    outputs: dict[int, str] = {}
    executions: list[str] = []

    def call(number: int) -> None:
        result = asyncio.run(run(executor, f"open('{number}', 'x'); print({number})"))
        outputs[number] = result.output
        executions.append(result.execution)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listing = asyncio.run(run(executor, "ls [0-9]", "sh")).output
    asyncio.run(executor.stop())
    assert outputs == {number: f"{number}\n" for number in range(4)}
    assert listing.split() == ["0", "1", "2", "3"]
    assert len({admin.execution(name)["spec"]["sessionRef"]["name"] for name in executions}) == 1
