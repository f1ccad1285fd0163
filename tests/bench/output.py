"""Much output, and how long a printed line is under way to the caller."""

import asyncio
import subprocess
import time
from collections.abc import Sequence

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from cluster_tools import image
from measuring import Contender

OUTPUT = "import sys\nline = 'x' * 99\nfor _ in range(50_000): print(line); print(line, file=sys.stderr)"
OUTPUT_BYTES = 10_000_000
LINES = 20
DATED = f"import time\nfor _ in range({LINES}): print(time.time(), flush=True); time.sleep(0.1)"
"""The sandbox's clock is the machine's."""


def prints_much(executor: CodeExecutor) -> Contender:
    async def call() -> None:
        result = await executor.execute_code_blocks([CodeBlock(OUTPUT, "python")], CancellationToken())
        assert (result.exit_code, len(result.output)) == (0, OUTPUT_BYTES)

    return call


async def delays_here(heard: Sequence[float], executor: CodeExecutor) -> list[float]:
    """Seconds from the printing of each line to the caller's having it.

    `heard` is when the executor's callback has had each: it grows during the call.
    """
    result = await executor.execute_code_blocks([CodeBlock(DATED, "python")], CancellationToken())
    printed = [float(line) for line in result.output.split()]
    return [at - when for at, when in zip(heard, printed, strict=True)]


async def delays_of_docker() -> list[float]:
    """The same of `docker run`, read through its pipe."""
    process = await asyncio.create_subprocess_exec(
        *("docker", "run", "--rm", "--entrypoint", "python3", image(), "-c", DATED), stdout=subprocess.PIPE
    )
    assert process.stdout
    delays = [time.time() - float(line) async for line in process.stdout]
    await process.wait()
    return delays
