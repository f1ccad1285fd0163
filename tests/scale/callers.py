"""Calls that arrive at fixed times whatever becomes of those before them (an open loop), made by our own client.

Started by `load.py`, in as many processes as it takes that their CPU is not what is measured. Each line on stdin is a
task, each line on stdout what came of it; KUBECONFIG has the rights of an agent.
"""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stage import LIMITS, NAMESPACE, RUNTIME_CLASS

from executor_client import CodeExecutionClient, Limits, Request, SourceBlock, prepare
from executor_client.client.request import ClusterRef
from executor_client.exceptions import CodeExecError

PATIENCE_SECONDS: Final = 120
"""A call that takes longer is given up and counts as failed."""


async def call(client: CodeExecutionClient, request: Request, due: float) -> Mapping[str, Any]:
    """One call, at its time: when it was due and when it ended, and whether the right thing came back."""
    await asyncio.sleep(max(0.0, due - time.time()))
    begun, token = time.time(), secrets.token_hex(16)
    blocks = prepare([SourceBlock("python", f'print("{token}")')]).blocks
    outcome: dict[str, Any] = {"due": due, "begun": begun}
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            result = await client.execute(blocks, request)
    except (CodeExecError, TimeoutError) as error:
        return outcome | {"error": f"{type(error).__name__}: {error}"[:300]}
    right = (result.exit_code, result.output) == (0, f"{token}\n")
    return outcome | {"name": result.name, "pod": result.pod_name, "ended": time.time(), "right": right}


async def calls(client: CodeExecutionClient, agent: str, due: Sequence[float]) -> list[Mapping[str, Any]]:
    """All calls of one task, in the order of their times."""
    request = Request(agent=agent, limits=Limits(**LIMITS), runtime_class_name=RUNTIME_CLASS)
    return list(await asyncio.gather(*(call(client, request, one) for one in due)))


async def main() -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines, loop=loop), sys.stdin)
    async with CodeExecutionClient(ClusterRef(namespace=NAMESPACE)) as client:
        await client.check()
        print(json.dumps("ready"), flush=True)
        while line := await lines.readline():
            task = json.loads(line)
            print(json.dumps(await calls(client, task["agent"], task["due"])), flush=True)


asyncio.run(main())
