"""R-03: stdout, stderr and the exit code come back complete and apart from each other; limits show."""

import base64
import json

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-03")]

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
    results = await sandbox.run_all({case: [code] for case, code in PROGRAMS.items()})
    for (case, result), (*streams, exit_code) in zip(results.items(), there, strict=True):
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
    result = await sandbox.run(code)
    assert (set(result.stdout), set(result.stderr), result.exit_code) == ({"<"}, {chr(0)}, 0)
    for stream, kept in (("stdout", len(result.stdout)), ("stderr", len(result.stderr))):
        assert kept >= 60_000
        assert f"[codeexec: {stream} truncated: {kept} of 1000001 bytes kept]" in result.output
        assert sandbox.record(result)["status"][stream]["truncated"]
