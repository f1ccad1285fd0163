"""Output, exit codes and times come back complete, separate and true."""

import hashlib

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from executor_client import Limits

pytestmark = pytest.mark.e2e


async def run(executor, *blocks: tuple[str, str]):
    return await executor.execute_code_blocks(
        [CodeBlock(code, language) for language, code in blocks], CancellationToken()
    )


async def test_streams_are_separate_and_in_order(executor):
    result = await run(executor, ("sh", "echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c"))
    assert (result.stdout, result.stderr, result.output) == ("a\nc\n", "b\n", "a\nb\nc\n")


async def test_first_failure_ends_the_execution(executor, admin):
    result = await run(
        executor, ("python", "print('A')"), ("python", "import sys; print('B'); sys.exit(3)"), ("sh", "echo C")
    )
    assert (result.exit_code, result.output) == (3, "A\nB\n")
    status = admin.execution(result.execution)["status"]
    assert [block["exitCode"] for block in status["blocks"]] == [0, 3]
    assert (status["phase"], status["reason"]) == ("Failed", "NonZeroExit")


@pytest.mark.parametrize(
    ("code", "expected"),
    [("kill -KILL $$", 137), ("kill -SEGV $$", 139), ("exit 124", 124), ("nonesuch-command", 127), ("true", 0)],
)
async def test_exit_code_is_the_code_s_own(executor, code, expected):
    result = await run(executor, ("bash", code))
    assert result.exit_code == expected
    assert "Timeout" not in result.output


async def test_record_holds_digests_and_sizes_but_no_code(executor, admin):
    code = "marker = 'e2e-secret-marker'; print('x' * 10)"
    result = await run(executor, ("python", code))
    record = admin.execution(result.execution)
    assert record["spec"]["blocks"][0]["sha256"] == hashlib.sha256(code.encode()).hexdigest()
    assert record["spec"]["blocks"][0]["sizeBytes"] == len(code)
    status = record["status"]
    assert status["stdout"]["sha256"] == hashlib.sha256(b"xxxxxxxxxx\n").hexdigest()
    assert status["stdout"]["totalBytes"] == status["blocks"][0]["stdoutBytes"] == 11
    assert status["startedAt"] <= status["finishedAt"]
    assert status["imageID"].endswith(status["image"].split("@")[1])
    assert "e2e-secret-marker" not in str(record)


async def test_output_beyond_the_limit_is_counted_and_marked(make_executor):
    """The worst case for the size of the record: both streams full of what JSON writes as six bytes."""
    code = "import sys; print('<' * 1_000_000); print(chr(0) * 1_000_000, file=sys.stderr)"
    result = await run(make_executor(limits=Limits(output_bytes=262_144)), ("python", code))
    assert result.exit_code == 0
    assert set(result.stdout) == {"<"}
    assert set(result.stderr) == {chr(0)}
    assert len(result.stdout) == len(result.stderr) == 262_144
    assert "[codeexec: stdout truncated: 262144 of 1000001 bytes kept]" in result.output
    assert "[codeexec: stderr truncated: 262144 of 1000001 bytes kept]" in result.output


async def test_odd_bytes_survive(executor):
    code = "import sys; sys.stdout.buffer.write(b'a\\x00b\\xff\\x1b[0m' + 'ü€😀'.encode())"
    result = await run(executor, ("python", code))
    assert result.stdout == "a\x00b\ufffd\x1b[0mü€😀"


async def test_file_names_are_honoured_inside_the_workspace(executor):
    result = await run(executor, ("python", "# filename: pkg/tool.py\nx = 1"), ("sh", "cat pkg/tool.py"))
    assert (result.exit_code, result.output) == (0, "# filename: pkg/tool.py\nx = 1")


@pytest.mark.parametrize("name", ["../x.py", "/etc/x.py", "a/../../x.py", "", "."])
async def test_file_names_outside_the_workspace_are_refused(executor, name):
    result = await run(executor, ("sh", "echo before"), ("python", f"# filename: {name}\nprint('ran')"))
    assert result.exit_code == 1
    assert result.output.startswith("before\n")
    assert "Filename is not in the workspace" in result.output
    assert "ran" not in result.stdout


async def test_functions_can_be_imported(make_executor):
    executor = make_executor(functions=[_top_level_double], functions_module="helpers")
    result = await run(executor, ("python", "from helpers import _top_level_double\nprint(_top_level_double(21))"))
    assert (result.exit_code, result.output) == (0, "42\n")


def _top_level_double(number: int) -> int:
    return 2 * number


async def test_calls_do_not_share_anything(executor):
    await run(executor, ("sh", "echo secret > /workspace/left; echo secret > /tmp/left"))
    result = await run(executor, ("sh", "ls -A /workspace /tmp | grep left; true"))
    assert "left" not in result.output
