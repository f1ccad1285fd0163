"""Output is complete up to the limit, on each stream and in order, and marked beyond it."""

import asyncio
import base64
import hashlib
import random
from collections.abc import Iterator

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, SYSTEM, a_name, operator_pod

from codeexec_api import Limits
from executor_client import KubernetesCodeExecutor

MIB = 1024 * 1024


def noise(size: int) -> str:
    """A line that hardly compresses, from so many bytes."""
    return base64.b64encode(random.Random(1).randbytes(size)).decode() + "\n"


def printing_noise(size: int) -> str:
    return f"import base64, random; print(base64.b64encode(random.Random(1).randbytes({size})).decode())"


LIMITS = {"cpu": "300m", "memory": "256Mi"}


@pytest.fixture(scope="module")
def shared(agent_kubeconfig: str) -> Iterator[KubernetesCodeExecutor]:
    """One session for all tests of this file, so that each output also has to stay apart from the one before it."""
    executor = KubernetesCodeExecutor(
        kubeconfig=agent_kubeconfig, namespace=SANDBOX, agent=a_name("output"), timeout=60, limits=Limits(**LIMITS)
    )
    yield executor
    asyncio.run(executor.stop())


async def run(executor, code, language="python"):
    return await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())


async def test_what_is_hard_to_transport_arrives_whole(shared, admin):
    executor = shared
    lines = (
        "import sys\n"
        "for number in range(50_000):\n"
        "    print(f'out {number:>100}'); print(f'err {number:>100}', file=sys.stderr)\n"
    )
    both = await run(executor, lines)
    for stream, name in ((both.stdout, "out"), (both.stderr, "err")):
        assert stream == "".join(f"{name} {number:>100}\n" for number in range(50_000))
        assert len(stream) > 5_000_000
    assert len(both.output) == len(both.stdout) + len(both.stderr)
    record = admin.execution(both.execution)["status"]
    for stream, text in (("stdout", both.stdout), ("stderr", both.stderr)):
        assert record[stream]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert record[stream]["keptBytes"] == record[stream]["totalBytes"] == len(text)
        assert not record[stream].get("truncated")

    one_line = await run(executor, "print('x' * 10_000_000, end='')")
    assert one_line.stdout == "x" * 10_000_000
    assert one_line.stderr == ""

    # NULs, invalid UTF-8, escape sequences, what JSON has to escape, characters of two to four bytes.
    tail = "é😀\u2028".encode() * 1000 + b"\x00" * 100_000 + b"\x1b[31mred\x1b[0m\r\n\xff"
    code = f"import sys\nsys.stdout.buffer.write(bytes(range(256)) * 4096 + {tail!r})"
    result = await run(executor, code)
    assert result.stdout == (bytes(range(256)) * 4096 + tail).decode(errors="replace")
    assert result.output == result.stdout

    assert (await run(executor, "print('small')")).output == "small\n"


async def test_interleaving_of_large_output_is_kept(shared):
    # Two pipes keep no order between them: each write waits until the one before it was read.
    code = (
        "import fcntl, os, struct, termios, time\n"
        "def write(stream, text):\n"
        "    os.write(stream, text)\n"
        "    while any(struct.unpack('i', fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))):\n"
        "        time.sleep(.001)\n"
        "for number in range(40):\n"
        "    write(1, b'o' * 20_000); write(2, b'e' * 20_000)\n"
    )
    result = await run(shared, code)
    assert (len(result.stdout), len(result.stderr)) == (800_000, 800_000)
    assert result.output == ("o" * 20_000 + "e" * 20_000) * 40


async def test_background_process_s_output_is_kept(shared):
    code = (
        "(for n in 1 2 3 4 5; do echo background $n; done; touch written; sleep 1000) &\n"
        "until [ -e written ]; do sleep 0.05; done; echo foreground"
    )
    result = await run(shared, code, "bash")
    assert sorted(result.stdout.splitlines()) == sorted([*(f"background {n}" for n in range(1, 6)), "foreground"])


async def test_timeout_keeps_everything_until_then(make_executor, admin):
    executor = make_executor(session="per-executor", timeout=20, limits=Limits(**LIMITS))
    code = "import sys\nsys.stdout.write('y' * 2_000_000 + 'no final newline'); sys.stdout.flush()\nwhile True: pass"
    result = await run(executor, code)
    assert result.exit_code == 124
    assert result.stdout == "y" * 2_000_000 + "no final newline"
    assert result.output.startswith(result.stdout)
    assert "Timeout" in result.output.removeprefix(result.stdout)
    assert result.reason == "DeadlineExceeded"
    own = await run(executor, "import sys; print('mine'); sys.exit(124)")
    assert (own.exit_code, own.output, own.reason) == (124, "mine\n", "NonZeroExit")
    assert admin.execution(own.execution)["status"]["phase"] == "Failed"


async def test_the_largest_of_records_is_written(make_executor):
    """Both streams are full of what JSON writes as six bytes."""
    code = "import sys; print('<' * 1_000_000); print(chr(0) * 1_000_000, file=sys.stderr)"
    result = await run(make_executor(limits=Limits(**LIMITS, output_bytes=262_144)), code)
    assert result.exit_code == 0
    assert (result.stdout, result.stderr) == ("<" * 262_144, chr(0) * 262_144)
    assert "[codeexec: stdout truncated: 262144 of 1000001 bytes kept]" in result.output
    assert "[codeexec: stderr truncated: 262144 of 1000001 bytes kept]" in result.output


def resident_mib(admin):
    """Memory of the operator's process."""
    status = admin.kubectl("-n", SYSTEM, "exec", "deployment/codeexec-operator", "--", "cat", "/proc/1/status")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


@pytest.mark.release
async def test_operator_stays_small(shared, admin):
    """What goes through it is not kept in it: 50 MB of output leave less than half of that behind."""
    large = printing_noise(7_500_000)
    await run(shared, large)
    pod, before = operator_pod(admin), resident_mib(admin)
    for _ in range(5):
        assert len((await run(shared, large)).stdout) == 10_000_001, "control: it went through"
    assert operator_pod(admin)["metadata"]["uid"] == pod["metadata"]["uid"], "control: it is the same operator"
    assert resident_mib(admin) < before + 25
    assert resident_mib(admin) < 256, "its limit is 640 MiB"
