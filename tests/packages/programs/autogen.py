"""AutoGen's executor, on the fake."""

import asyncio

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeexec.testing import FakeCluster, FakeOutcome
from executor_client import KubernetesCodeExecutor


async def main() -> None:
    fake = FakeCluster()
    fake.answers({"print(6 * 7)": FakeOutcome(stdout="42\n")})
    async with KubernetesCodeExecutor(client=fake.client(), agent="analyst") as executor:
        result = await executor.execute_code_blocks([CodeBlock("print(6 * 7)", "python")], CancellationToken())
        assert (result.exit_code, result.output) == (0, "42\n"), result


asyncio.run(main())
