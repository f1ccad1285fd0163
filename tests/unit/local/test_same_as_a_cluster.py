"""What docs/local-sandbox.md promises: the same calls have the same results here as in a cluster, which is a fake."""

from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from executor_client import KubernetesCodeExecutor
from executor_client.testing import FakeBlock, FakeCluster, FakeOutcome

pytestmark = pytest.mark.usefixtures("landlock")

MAKE_A_FOLDER = "import os; os.makedirs('data/in'); open('data/in/x', 'w').close(); print('important')"


def make_a_folder(block: FakeBlock) -> FakeOutcome:
    block.files["data/in/x"] = b""
    return FakeOutcome(stdout="important\n")


@pytest.mark.parametrize(
    ("name", "said"), [("data", "Is a directory: data"), ("data/in/x/y.py", "Not a directory: data/in/x/y.py")]
)
async def test_a_block_whose_name_is_taken_ends_the_call_and_keeps_its_output(make: Any, name: str, said: str) -> None:
    blocks = [
        CodeBlock(MAKE_A_FOLDER, "python"),
        CodeBlock(f"# filename: {name}\nprint(1)", "python"),
        CodeBlock("print('never')", "python"),
    ]
    seen = []
    for executor in (make(), KubernetesCodeExecutor(client=FakeCluster(run=make_a_folder).client())):
        result = await executor.execute_code_blocks(blocks, CancellationToken())
        ends = [(one.exit_code, one.reason, one.stdout_bytes, one.stderr_bytes) for one in result.blocks]
        seen.append((result.exit_code, result.reason, result.output, ends, [one.path for one in result.artifacts]))
    here, cluster = seen
    assert here == cluster
    assert here[:3] == (126, "NonZeroExit", f"important\npython3: {said}\n")
