"""Output is complete up to the limit, on each stream and in order, and marked beyond it."""

import base64
import hashlib
import json

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, SYSTEM, a_name, wait_for

from codeexec_api import Limits

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024


@pytest.fixture
def make(make_executor):
    return lambda **limits: make_executor(
        session="per-executor", timeout=60, limits=Limits(cpu="500m", memory="256Mi", **limits)
    )


async def run(executor, code, language="python"):
    return await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())


async def test_what_is_hard_to_transport_arrives_whole(make, admin):
    """One session, so that each output also has to stay apart from the one before it."""
    executor = make()
    lines = (
        "import sys\n"
        "for number in range(200_000):\n"
        "    print(f'out {number:>22}'); print(f'err {number:>22}', file=sys.stderr)\n"
    )
    both = await run(executor, lines)
    for stream, name in ((both.stdout, "out"), (both.stderr, "err")):
        assert stream == "".join(f"{name} {number:>22}\n" for number in range(200_000))
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


async def test_interleaving_of_large_output_is_kept(make):
    executor = make()
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
    result = await run(executor, code)
    assert (len(result.stdout), len(result.stderr)) == (800_000, 800_000)
    assert result.output == ("o" * 20_000 + "e" * 20_000) * 40


async def test_background_process_s_output_is_kept(make):
    executor = make()
    code = "(for n in 1 2 3 4 5; do echo background $n; done; sleep 1000) & sleep 1; echo foreground"
    result = await run(executor, code, "bash")
    assert sorted(result.stdout.splitlines()) == sorted([*(f"background {n}" for n in range(1, 6)), "foreground"])


async def test_timeout_keeps_everything_until_then(make_executor, admin):
    executor = make_executor(session="per-executor", timeout=3, limits=Limits(cpu="500m", memory="256Mi"))
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


async def test_beyond_the_limit_output_is_cut_counted_and_marked(make, admin):
    executor = make(output_bytes=3 * MIB)
    result = await run(executor, "import sys\nprint('o' * 5_000_000)\nprint('small', file=sys.stderr)")
    assert result.stdout == "o" * (3 * MIB)
    assert result.stderr == "small\n"
    assert f"[codeexec: stdout truncated: {3 * MIB} of 5000001 bytes kept]" in result.output
    assert result.exit_code == 0
    status = admin.execution(result.execution)["status"]["stdout"]
    assert (status["truncated"], status["totalBytes"], status["keptBytes"]) == (True, 5_000_001, 3 * MIB)


async def test_large_output_is_immutable_owned_and_goes_with_its_record(make, admin):
    executor = make()
    result = await run(executor, "print('z' * 1_500_000)")
    record = admin.execution(result.execution)
    names = [one["name"] for one in record["status"]["outputRefs"]]
    assert len(names) >= 2
    parts = [admin.get("configmap", name) for name in names]
    for part in parts:
        assert part["immutable"] is True
        assert part["metadata"]["ownerReferences"][0]["uid"] == record["metadata"]["uid"]
        assert "codeexec.dev/expires-at" in part["metadata"]["annotations"]
    joined = b"".join(base64.b64decode(part["binaryData"]["stdout"]) for part in parts)
    assert joined == b"z" * 1_500_000 + b"\n"
    assert len(record["status"]["stdout"]["text"]) <= 4096
    admin.kubectl("-n", SANDBOX, "delete", "codeexecution", result.execution)
    wait_for("the parts to go with the record", lambda: not admin.exists("configmap", names[0], SANDBOX))


async def test_output_that_can_t_be_kept_is_marked(make, admin):
    """The namespace's quota of ConfigMaps is used up: the code still runs, and the result says what is missing."""
    executor = make()
    await run(executor, "print(1)")
    # The table that the API server makes: the objects themselves may be hundreds of megabytes.
    used = len(admin.kubectl("-n", SANDBOX, "get", "configmaps", "--no-headers").splitlines())
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": a_name("full"), "namespace": SANDBOX},
        "spec": {"hard": {"count/configmaps": str(used + 1)}},
    }
    admin.apply(quota)
    name = quota["metadata"]["name"]
    wait_for("the quota to be counted", lambda: admin.get("resourcequota", name).get("status", {}).get("used"))
    try:
        result = await run(executor, "print('q' * 3_000_000)")
        small = await run(executor, "print('fits')")
    finally:
        admin.kubectl("-n", SANDBOX, "delete", "resourcequota", name)
    status = admin.execution(result.execution)["status"]
    assert status["phase"] == "Succeeded"
    assert len(status["outputRefs"]) == 1
    assert "not all output could be kept" in status["message"]
    assert result.stdout == "q" * status["stdout"]["keptBytes"]
    assert 0 < status["stdout"]["keptBytes"] < status["stdout"]["totalBytes"] == 3_000_001
    assert "stdout truncated" in result.output
    assert small.output == "fits\n"


def test_operator_stays_small(admin):
    """What goes through it is not kept in it: far below its limit of 512 MiB, after all the output of these tests."""
    pods = json.loads(admin.kubectl("-n", SYSTEM, "get", "pods", "-o", "json"))["items"]
    [pod] = [one for one in pods if one["metadata"]["name"].startswith("codeexec-operator")]
    statistics = json.loads(
        admin.kubectl("get", "--raw", f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/stats/summary")
    )
    [found] = [one for one in statistics["pods"] if one["podRef"]["uid"] == pod["metadata"]["uid"]]
    assert found["memory"]["workingSetBytes"] < 256 * MIB
