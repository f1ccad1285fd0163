"""A LangChain tool that runs Python in the cluster, with one workspace for each conversation.

`run_python_tool` builds the tool on `CodeExecutionClient`. The model is LangChain's fake model with the answers below,
so no API key is needed. Needs `langchain-core`.
"""

import asyncio
from typing import Any

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool

from executor_client import CodeExecutionClient, ExecutionResult, Limits, Request, Session, SourceBlock

REQUEST = Request(agent="langchain-example", timeout_seconds=20, limits=Limits(cpu="250m"))
FIRST = "open('squares', 'w').write(','.join(str(n * n) for n in range(5)))\nprint('saved')"
SECOND = "print(sum(map(int, open('squares').read().split(','))))\n1 / 0"


def run_python_tool(session: Session) -> BaseTool:
    """A tool that runs code in this session."""

    @tool(response_format="content_and_artifact")
    async def run_python(code: str) -> tuple[str, ExecutionResult]:
        """Run Python code and return what it prints. Files persist between calls, variables don't."""
        result = await session.execute([SourceBlock("python", code)])
        note = "" if result.exit_code == 0 else f"\n[exit code {result.exit_code}]"
        return result.output + note, result

    return run_python


def a_call(number: int, code: str) -> AIMessage:
    call: dict[str, Any] = {"type": "tool_call", "id": f"call-{number}", "name": "run_python", "args": {"code": code}}
    return AIMessage("", tool_calls=[call])


async def main() -> None:
    model = FakeMessagesListChatModel(responses=[a_call(1, FIRST), a_call(2, SECOND), AIMessage("Their sum is 30.")])
    async with CodeExecutionClient() as client, await client.open_session(REQUEST) as session:
        run_python = run_python_tool(session)
        messages: list[Any] = [HumanMessage("Save the first squares, then add them up.")]
        while True:
            answer = await model.ainvoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += [await run_python.ainvoke(call) for call in answer.tool_calls]
    for message in messages:
        message.pretty_print()

    saved, added = (message for message in messages if message.type == "tool")
    assert saved.content == "saved\n"
    assert added.content.startswith("30\n")
    assert "ZeroDivisionError" in added.content
    assert added.artifact.exit_code == 1
    assert saved.artifact.session == added.artifact.session
    print("OK: a LangChain tool ran code in the cluster")


asyncio.run(main())
