"""An AutoGen team and an assistant with a tool, on one executor.

In the team, a writer proposes code and a `CodeExecutorAgent` runs it. The assistant has AutoGen's
`PythonCodeExecutionTool` and decides by itself when to run code. The models are AutoGen's replay clients, so no API key
is needed.
"""

import asyncio

from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.code_execution import PythonCodeExecutionTool

from executor_client import KubernetesCodeExecutor, Limits

PROPOSAL = "I'll save the primes below 30.\n\n```python\n{code}```\n"
PRIMES = (
    "primes = [n for n in range(2, 30) if all(n % d for d in range(2, n))]\nopen('primes', 'w').write(str(primes))\n"
)
CHECK = "print(sum(eval(open('primes').read())))"
CAN_CALL_TOOLS = ModelInfo(
    vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
)


def approve(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=True, reason=f"{len(request.code)} characters, written above")


async def ask_team(executor: KubernetesCodeExecutor) -> None:
    writer = AssistantAgent(
        "writer", ReplayChatCompletionClient([PROPOSAL.format(code=PRIMES + "print(primes)\n"), "DONE"])
    )
    runner = CodeExecutorAgent("runner", executor, approval_func=approve)
    team = RoundRobinGroupChat([writer, runner], termination_condition=TextMentionTermination("DONE"), max_turns=4)
    result = await team.run(task="Which primes are below 30?")
    for message in result.messages:
        print(f"{message.source}: {message.to_text()}")
    assert "[2, 3, 5, 7, 11, 13, 17, 19, 23, 29]" in result.messages[2].to_text()


async def ask_assistant(executor: KubernetesCodeExecutor) -> None:
    tool = PythonCodeExecutionTool(executor)
    call = FunctionCall(id="1", name=tool.name, arguments=tool.args_type()(code=CHECK).model_dump_json())
    decision = CreateResult(
        finish_reason="function_calls",
        content=[call],
        usage=RequestUsage(prompt_tokens=0, completion_tokens=0),
        cached=False,
    )
    model = ReplayChatCompletionClient([decision, "Their sum is 129."], CAN_CALL_TOOLS)
    assistant = AssistantAgent("assistant", model, tools=[tool], reflect_on_tool_use=True)
    result = await assistant.run(task="What is their sum?")
    [event] = [message for message in result.messages if isinstance(message, ToolCallExecutionEvent)]
    assert event.content[0].content == "129\n"  # the sum of the primes in the team's file
    print(f"assistant: {result.messages[-1].to_text()}")


async def main() -> None:
    async with KubernetesCodeExecutor(limits=Limits(cpu="250m"), agent="team-example") as executor:
        await ask_team(executor)
        await ask_assistant(executor)
    print("OK: the team's file was there for the tool")


asyncio.run(main())
