"""What docs/local-sandbox.md promises: the same calls have the same results here as in a cluster, which is a fake."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

import codeexec
from codeexec.local import Sandbox
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


REWRITE = """# filename: state.py
with open("state.py", "w") as file:
    file.write("n = 2")
"""


def rewrite(block: FakeBlock) -> FakeOutcome:
    if block.filename == "state.py":
        block.files["state.py"] = b"n = 2"
    return FakeOutcome()


async def test_a_source_that_code_changes_is_a_changed_file(make: Any, tmp_path: Path) -> None:
    """Not so the sources that it leaves as they are."""
    seen = []
    fake = FakeCluster(run=rewrite).client()
    for index, executor in enumerate((make, partial(KubernetesCodeExecutor, client=fake))):
        folder = tmp_path / str(index)
        async with executor(work_dir=folder) as one:
            blocks = [CodeBlock("# filename: same.py\n1", "python"), CodeBlock(REWRITE, "python")]
            result = await one.execute_code_blocks(blocks, CancellationToken())
        seen.append(([(file.path, file.fetched) for file in result.artifacts], (folder / "state.py").read_text()))
    assert seen == [([("state.py", True)], "n = 2")] * 2


@pytest.mark.parametrize("written", [b"ab\xe2\x82", "\xe9".encode() * 600, b"\xff" * 600, b"a" * 1025, b"a" * 1024])
async def test_output_that_ends_inside_a_character(written: bytes) -> None:
    """At its end, or at its limit."""
    seen = []
    fake = FakeCluster(run=lambda _: FakeOutcome(stdout=written))
    for backend in (Sandbox(), fake.client()):
        live: list[str] = []
        async with codeexec.Client(agent="a", backend=backend) as client:
            result = await client.run(
                f"import sys; sys.stdout.buffer.write({written!r})",
                limits=codeexec.Limits(output_bytes=1024),
                on_output=lambda chunk, live=live: live.append(chunk.text),
            )
        assert "".join(live) == result.stdout
        seen.append((result.stdout, result.truncated, result.output))
    here, cluster = seen
    assert here == cluster


async def test_a_result_names_its_session() -> None:
    for backend in (Sandbox(), FakeCluster(run=lambda _: FakeOutcome()).client()):
        async with (
            codeexec.Client(agent="a", backend=backend) as client,
            client.session(stateful=False) as session,
        ):
            assert (await session.run("1")).session == session.name
            assert (await client.run("1")).session is None
