"""The same conversations with AutoGen's agents, its tool and a team."""

import asyncio
import json
from typing import Any

from autogen_agentchat.agents import ApprovalResponse, AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_core.tools import StaticWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.code_execution import PythonCodeExecutionTool
from cluster_tools import a_name
from parity.case import Case, Group, Scenario, Seen, raises
from parity.parties import Party, held

SURVIVES = "An unknown language is a result that the agent can read; with the Docker executor the run fails."
LAZY = "The first call connects by itself; nothing in AutoGen calls `start()`."
NOT_RUNNING = "Container is not running. Must first be started with either start or a context manager."
FAILED = "The script ran, then exited with an error (POSIX exit code: %d)\nIts output was:\n"
EARLIER = "What the running block has printed is kept, too."


def _agent(executor: Any, **options: Any) -> CodeExecutorAgent:
    return CodeExecutorAgent("runner", executor, **options)


def _message(*blocks: tuple[str, str]) -> TextMessage:
    fences = "\n\n".join(f"```{language}\n{code}\n```" for language, code in blocks)
    return TextMessage(content=f"Please run this:\n\n{fences}\n", source="user")


def _answers(*blocks: tuple[str, str], start: bool = True, **options: Any) -> Scenario:
    """What CodeExecutorAgent answers to a message with these blocks."""

    async def scenario(party: Party) -> Seen:
        executor = (await party.shared()) if start else party.make()
        response = await _agent(executor, **options).on_messages([_message(*blocks)], CancellationToken())
        return {"answer": party.normalised(response.chat_message.to_text())}

    return scenario


async def _answer_to_rust(party: Party) -> Seen:
    answer = (await _answers(("rust", "x"), supported_languages=["rust"])(party))["answer"]
    words = ("POSIX exit code: 1", "unknown language rust", "Unsupported language: rust")
    return {"says": [one for one in words if one in answer]}


async def _agent_cancelled(party: Party) -> Seen:
    executor, token, mark = await party.shared(), CancellationToken(), a_name("mark")
    task = [_message(("sh", held(mark)))]
    run = asyncio.create_task(_agent(executor).run(task=task, cancellation_token=token))
    await party.until_running(executor, mark)
    token.cancel()
    party.release(executor, mark)
    return {"answer": (await run).messages[-1].to_text().replace(mark, "running")}


async def _team(party: Party) -> Seen:
    writer = AssistantAgent(
        "writer", ReplayChatCompletionClient(["```python\nprint(sum(range(101)))\n```", "It is 5050."])
    )
    runner = _agent(await party.shared())
    team = RoundRobinGroupChat([writer, runner], termination_condition=MaxMessageTermination(4))
    result = await team.run(task="What is the sum of the numbers to 100?")
    return {"said": [f"{message.source}: {message.to_text()}" for message in result.messages[-2:]]}


def _tool(code: str) -> Scenario:
    """What the tool gives, and the text that a model is shown of it."""

    async def scenario(party: Party) -> Seen:
        tool = PythonCodeExecutionTool(await party.shared())
        result = await tool.run_json({"code": code}, CancellationToken())
        return {"success": result.success, "text": tool.return_value_as_string(result)}

    return scenario


async def _tool_not_started(party: Party) -> Seen:
    workbench = StaticWorkbench([PythonCodeExecutionTool(party.make())])
    result = await workbench.call_tool("CodeExecutor", {"code": "print(1)"})
    return {"error": result.is_error, "output": result.to_text().splitlines()[0]}


def _held_in_python(mark: str) -> str:
    """`held` in Python."""
    return f"""
import pathlib, time
pathlib.Path('{mark}').touch()
print('{mark}', flush=True)
for _ in range(600):
    if pathlib.Path('{mark}.release').exists():
        break
    time.sleep(0.1)
"""


async def _tool_cancelled(party: Party) -> Seen:
    executor, token, mark = await party.shared(), CancellationToken(), a_name("mark")
    workbench = StaticWorkbench([PythonCodeExecutionTool(executor)])
    arguments = {"code": _held_in_python(mark)}
    call = asyncio.create_task(workbench.call_tool("CodeExecutor", arguments, token))
    await party.until_running(executor, mark)
    token.cancel()
    party.release(executor, mark)
    result = await call
    return {"error": result.is_error, "output": result.to_text().replace(mark, "running")}


def _call_of_tool(code: str) -> FunctionCall:
    return FunctionCall(id=a_name("call"), name="CodeExecutor", arguments=json.dumps({"code": code}))


def _assistant(executor: Any, calls: list[FunctionCall]) -> AssistantAgent:
    """An agent whose model asks for these calls, then says that it is done."""
    usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
    asks = CreateResult(finish_reason="function_calls", content=calls, usage=usage, cached=False)
    abilities = ModelInfo(
        vision=False, function_calling=True, json_output=False, structured_output=False, family=ModelFamily.UNKNOWN
    )
    model = ReplayChatCompletionClient([asks, "Done."], model_info=abilities)
    return AssistantAgent("assistant", model, tools=[PythonCodeExecutionTool(executor)], reflect_on_tool_use=True)


async def _assistant_calls(party: Party) -> Seen:
    calls = [_call_of_tool(f"print({number} * 111)") for number in (1, 2)]
    result = await _assistant(await party.shared(), calls).run(task="Print 111 and 222.")
    [results] = [message for message in result.messages if message.type == "ToolCallExecutionEvent"]
    return {"tools gave": [one.content for one in results.content], "answer": result.messages[-1].to_text()}


async def _assistant_cancelled(party: Party) -> Seen:
    executor, token, mark = await party.shared(), CancellationToken(), a_name("mark")
    agent = _assistant(executor, [_call_of_tool(_held_in_python(mark))])
    run = asyncio.create_task(agent.run(task="Wait.", cancellation_token=token))
    await party.until_running(executor, mark)
    token.cancel()
    party.release(executor, mark)
    ended, _ = await asyncio.wait([run], timeout=30)
    if not ended:
        run.cancel()
        return {"run ends": False}
    return {
        "run ends": True,
        "cancelled": run.cancelled(),
        "raised": not run.cancelled() and run.exception() is not None,
    }


AGENTS = Group(
    "With AutoGen's agents",
    (
        Case(
            id="agent",
            about="`CodeExecutorAgent`, a message with Python and sh",
            scenario=_answers(("python", "print(6 * 7)"), ("sh", "echo shell")),
            docker={"answer": "42\nshell\n"},
        ),
        Case(
            id="agent-failure",
            about="`CodeExecutorAgent`, code that exits with 3",
            scenario=_answers(("python", "print('so far')\nexit(3)")),
            docker={
                "answer": "The script ran, then exited with an error (POSIX exit code: 3)\nIts output was:\nso far\n"
            },
        ),
        Case(
            id="agent-no-output",
            about="`CodeExecutorAgent`, code that prints nothing",
            scenario=_answers(("python", "x = 1")),
            docker={
                "answer": "The script ran but produced no output to console. The POSIX exit code was: 0. If you were "
                "expecting output, consider revising the script to ensure content is printed to stdout."
            },
        ),
        Case(
            id="agent-no-code",
            about="`CodeExecutorAgent`, a message without code",
            scenario=_answers(),
            docker={"answer": CodeExecutorAgent.NO_CODE_BLOCKS_FOUND_MESSAGE},
        ),
        Case(
            id="agent-not-approved",
            about="`CodeExecutorAgent`, code that is not approved",
            scenario=_answers(
                ("python", "print(1)"), approval_func=lambda _: ApprovalResponse(approved=False, reason="not today")
            ),
            docker={"answer": "Code execution was not approved. Reason: not today"},
        ),
        Case(
            id="agent-unknown-language",
            about="`CodeExecutorAgent` that takes `rust`, a message with a block of it",
            scenario=_answer_to_rust,
            local={"says": ["POSIX exit code: 1", "unknown language rust"]},
            docker=raises("ValueError", "Unsupported language: rust"),
            ours={"says": ["POSIX exit code: 1", "unknown language rust", "Unsupported language: rust"]},
            why=SURVIVES,
        ),
        Case(
            id="agent-not-started",
            about="`CodeExecutorAgent` with an executor that nobody has started",
            scenario=_answers(("python", "print(1)"), start=False),
            local={"answer": "1\n"},
            docker=raises("ValueError", NOT_RUNNING),
            ours={"answer": "1\n"},
            why=LAZY,
        ),
        Case(
            id="agent-cancelled",
            about="`CodeExecutorAgent.run`, cancelled while code runs",
            scenario=_agent_cancelled,
            local={"answer": "running\n"},
            docker={"answer": f"{FAILED % 1}Code execution was cancelled."},
            ours={"answer": f"{FAILED % 1}running\nCode execution was cancelled."},
            why=EARLIER,
        ),
        Case(
            id="team",
            about="a `RoundRobinGroupChat` of a writer and a runner",
            scenario=_team,
            docker={"said": ["runner: 5050\n", "writer: It is 5050."]},
        ),
        Case(
            id="tool",
            about="`PythonCodeExecutionTool`",
            scenario=_tool("print(6 * 7)"),
            docker={"success": True, "text": "42\n"},
        ),
        Case(
            id="tool-failure",
            about="`PythonCodeExecutionTool`, code that exits with 3",
            scenario=_tool("print('so far')\nexit(3)"),
            docker={"success": False, "text": "so far\n"},
        ),
        Case(
            id="tool-not-started",
            about="`PythonCodeExecutionTool` in a workbench, with an executor that nobody has started",
            scenario=_tool_not_started,
            local={"error": False, "output": "1"},
            docker={"error": True, "output": NOT_RUNNING},
            ours={"error": False, "output": "1"},
            why=LAZY,
        ),
        Case(
            id="tool-cancelled",
            about="`PythonCodeExecutionTool` in a workbench, cancelled while code runs",
            scenario=_tool_cancelled,
            local={"error": False, "output": "\nCancelled"},
            docker={"error": False, "output": "Code execution was cancelled."},
            ours={"error": False, "output": "running\nCode execution was cancelled."},
            why=EARLIER,
        ),
        Case(
            id="assistant",
            about="`AssistantAgent` that calls the tool twice at the same time",
            scenario=_assistant_calls,
            docker={"tools gave": ["111\n", "222\n"], "answer": "Done."},
        ),
        Case(
            id="assistant-cancelled",
            about="`AssistantAgent`, cancelled while its tool runs: whether its run ends",
            scenario=_assistant_cancelled,
            docker={"run ends": True, "cancelled": False, "raised": False},
        ),
    ),
)

GROUPS = (AGENTS,)
