"""The command line with streams that are closed, or that lack characters: a process of its own, and a fake cluster."""

import os
import subprocess
import sys

import pytest

PROGRAM = """\
import asyncio, sys
from executor_client.cli import main
from executor_client.client.request import Request
from executor_client.model.blocks import SourceBlock
from executor_client.testing import FakeCluster, FakeOutcome

fake = FakeCluster(run=lambda block: FakeOutcome(stdout="out\\n", stderr="err\\n", exit_code=3))
asyncio.run(fake.client().execute([SourceBlock("python", "1")], Request(agent="Łukasz")))
try:
    main(sys.argv[1:], obj=lambda ref: fake.client(), prog_name="codeexec")
finally:
    assert not any(one.spec.cancelled for one in fake.executions)
"""


def codeexec(arguments: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """With arguments for a shell, which can close streams."""
    command = f'exec "$0" -c "$1" {arguments}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, PROGRAM],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("closed", "stdout", "stderr"),
    [("", b"out\n", b"err\n"), (">&-", b"", b"err\n"), ("2>&-", b"out\n", b""), (">&- 2>&- <&-", b"", b"")],
)
def test_what_is_written_to_a_closed_stream_is_dropped(closed: str, stdout: bytes, stderr: bytes) -> None:
    done = codeexec(f"run -c 1 {closed}")
    assert (done.stdout, done.stderr, done.returncode) == (stdout, stderr, 3)


@pytest.mark.parametrize("command", ["get", "run -c 1 -o json", "audit report -o -"])
def test_so_it_is_with_every_kind_of_output(command: str) -> None:
    done = codeexec(f"{command} >&-")
    assert (done.stderr, done.returncode) == (b"", 3 if "-c 1" in command else 0)


@pytest.mark.parametrize("command", ["run -", "audit verify --no-cluster -"])
def test_closed_input_can_not_be_read(command: str) -> None:
    done = codeexec(f"{command} <&-")
    assert done.returncode == 2
    assert done.stderr.endswith(b": - is standard input, which is closed: name a file\n"), done.stderr


def test_characters_that_a_terminal_lacks_are_escaped() -> None:
    done = codeexec("get", PYTHONIOENCODING="latin-1")
    assert (done.stderr, done.returncode) == (b"", 0)
    assert b"   \\u0141ukasz   python" in done.stdout
