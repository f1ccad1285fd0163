"""Several calls share one workspace, and their output arrives while the code runs.

Each call is a CodeExecution of its own, and all of them run in the pod of one CodeSession. Files persist until
`restart()` or `stop()`. Processes and variables end with each call; 05-stateful keeps variables.
"""

import asyncio

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from executor_client import KubernetesCodeExecutor, KubernetesCodeResult, Limits, OutputChunk

LIMITS = Limits(cpu="250m")
STEPS = """\
import time
for step in range(3):
    print("step", step, flush=True)
    time.sleep(0.5)
"""


async def main() -> None:
    chunks: list[OutputChunk] = []

    def show(chunk: OutputChunk) -> None:
        chunks.append(chunk)
        print(chunk.text, end="")

    async with KubernetesCodeExecutor(limits=LIMITS, agent="session-example", on_output=show) as executor:

        async def run(code: str, language: str = "python") -> KubernetesCodeResult:
            result = await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())
            assert result.exit_code == 0, result.output
            return result

        print("A file is there in the next call:")
        await run("open('notes.txt', 'w').write('kept\\n')\nprint('written')")
        assert (await run("cat notes.txt", "bash")).output == "kept\n"

        print("Output comes while the code runs:")
        chunks.clear()
        result = await run(STEPS)
        assert "".join(chunk.text for chunk in chunks) == result.stdout == "step 0\nstep 1\nstep 2\n"

        print("After a restart the workspace is a new one:")
        await executor.restart()
        assert (await run("test -e notes.txt || echo gone", "sh")).output == "gone\n"
    print("OK: files lasted until the restart")


asyncio.run(main())
