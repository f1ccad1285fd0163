"""R-03: stdout, stderr and the exit code come back complete and apart from each other; limits show."""

import base64
import json

import pytest

from codeexec_api import Limits

pytestmark = pytest.mark.remit("R-03")

PROGRAMS = {
    "both streams, interleaved": "import sys\nfor n in range(500): print(n); print(-n, file=sys.stderr)",
    "no end of line": "print('x', end='')",
    "bytes of any value": "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.buffer.write(b'\\xff')",
    "an exit code": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(42)",
    "an exception": "print('before'); {}['nothing']",
    "a signal": "import os; print('before', flush=True); os.kill(os.getpid(), 11)",
    "a process that goes on writing": "import os\nif os.fork(): os.wait()\nelse: print('child')",
    "100 kB at once": "print('y' * 100_000)",
}
REFERENCE = """
import base64, json, subprocess
def run(code):
    with open("/tmp/block.py", "w") as file:
        file.write(code)
    done = subprocess.run(["python3", "/tmp/block.py"], capture_output=True)
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return [base64.b64encode(done.stdout).decode(), base64.b64encode(done.stderr).decode(), code]
print(json.dumps([run(code) for code in CODES]))
"""


async def test_results_are_those_of_the_program(control, sandbox, unprotected_pod):
    """What a program writes to stdout and to stderr and its exit code are those that it has outside of the sandbox."""
    there = json.loads(unprotected_pod(f"CODES = {list(PROGRAMS.values())!r}\n{REFERENCE}"))
    control.succeeded(
        f"in the unprotected pod the same programs gave the expected streams and codes: {'; '.join(PROGRAMS)}",
        [code for _, _, code in there] == [0, 0, 0, 42, 1, 139, 0, 0],
    )
    for (case, code), (*streams, exit_code) in zip(PROGRAMS.items(), there, strict=True):
        result = await sandbox.call(code)
        written = [base64.b64decode(one).replace(b"/tmp/block.py", result.code_file.encode()) for one in streams]
        expected = [one.decode(errors="replace") for one in written]
        assert [result.stdout, result.stderr, result.exit_code] == [*expected, exit_code], case


COUNT = """
import subprocess
def count(code):
    done = subprocess.run(["python3", "-c", code], capture_output=True)
    print(len(done.stdout), len(done.stderr))
count"""
SIZES = "1000001 1000001\n"


async def test_what_is_cut_off_is_counted_and_marked(control, sandbox, unprotected_pod):
    """Output beyond the limit is counted and marked in the result, for each stream."""
    code = "import sys; print('<' * 1_000_000); print(chr(0) * 1_000_000, file=sys.stderr)"
    there = unprotected_pod(f"{COUNT}({code!r})")
    control.succeeded("in the unprotected pod the same program wrote 1000001 bytes to each stream", there == SIZES)
    result = await sandbox.run(code, limits=Limits(cpu="300m", memory="128Mi", output_bytes=70_000))
    assert (result.stdout, result.stderr, result.exit_code) == ("<" * 70_000, chr(0) * 70_000, 0)
    for stream in ("stdout", "stderr"):
        assert f"[codeexec: {stream} truncated: 70000 of 1000001 bytes kept]" in result.output
        assert sandbox.record(result)["status"][stream]["truncated"]


MUCH = """
import hashlib, sys
out, err = b"line\\n" * 1_000_000, "ü\\0".encode() * 1_000_000
sys.stdout.buffer.write(out)
sys.stderr.buffer.write(err)
print(hashlib.sha256(out).hexdigest(), hashlib.sha256(err).hexdigest(), file=open("digests", "w"))
"""


async def test_large_output_is_complete(control, sandbox, unprotected_pod, tmp_path):
    """Megabytes on both streams come back whole: the digests are those that the program took."""
    there = unprotected_pod(f"{COUNT}({MUCH.replace('digests', '/tmp/digests')!r})")
    control.succeeded("in the unprotected pod the same program wrote 5 MB and 3 MB", there == "5000000 3000000\n")
    result = await sandbox.run(MUCH, work_dir=tmp_path)
    streams = sandbox.record(result)["status"]
    written = (tmp_path / "digests").read_text().split()
    assert [streams[name]["sha256"] for name in ("stdout", "stderr")] == written
    assert result.stdout == "line\n" * 1_000_000
    assert result.stderr == "ü\0" * 1_000_000
    assert not any(streams[name].get("truncated") for name in ("stdout", "stderr"))
