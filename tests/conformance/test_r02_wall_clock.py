"""R-02: a limit of time ends the code for certain, and what it has printed until then is kept."""

import json

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-02")]

STUBBORN = {  # each prints "partial" once it is what it is called
    "has a child that goes on": ("sh", "sleep 300 & printf partial; wait"),
    "ignores every signal it can": (
        "python",
        """
import signal, time
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
print("partial", end="", flush=True)
time.sleep(300)
""",
    ),
    "forks into sessions of its own": (
        "python",
        """
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(300)
print("partial", end="", flush=True)
time.sleep(300)
""",
    ),
    "closes its streams": ("sh", "sleep 300 & printf partial; exec >&- 2>&-; wait"),
    "floods its output": ("sh", "trap '' TERM; printf partial; while :; do echo flood; done"),
    "stops itself": ("sh", "sleep 300 & printf partial; kill -STOP $$"),
    "forks and forks again": (
        "python",
        """
import os, time
if os.fork():
    time.sleep(300)
print("partial", end="", flush=True)
while True:
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.2)
""",
    ),
}
KILL_THE_CHILD = """
import json, os, subprocess, time
def living(case):
    mark, found = f"CODEEXEC_CASE={case}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found
children = {}
for case, (language, code) in CASES.items():
    command = [{"python": "python3", "sh": "sh"}[language], "-c", code]
    environment = os.environ | {"CODEEXEC_CASE": case}
    children[case] = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
for child in children.values():
    assert child.stdout.read(7) == b"partial"
    child.terminate()
time.sleep(0.5)
print(json.dumps({case: len(living(case)) for case in CASES}))
while left := [pid for case in CASES for pid in living(case)]:
    for pid in left:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
"""


@pytest.mark.parametrize("runtime", ["runc", "gvisor"], indirect=True)
async def test_the_limit_ends_every_kind_of_stubborn_code(control, sandbox, unprotected_pod):
    """The limit ends a whole tree of processes, whatever they do, and what was printed until then is kept."""
    survivors = json.loads(unprotected_pod(f"CASES = {STUBBORN!r}\n{KILL_THE_CHILD}"))
    assert [case for case, count in survivors.items() if not count] == []
    control.succeeded(
        "in the unprotected pod the child was ended by SIGTERM, as AutoGen's local executor does it, and of every case "
        "a process went on",
        survivors,
    )
    results = await sandbox.run_all({case: [block] for case, block in STUBBORN.items()}, timeout=3)
    for case, result in results.items():
        assert result.exit_code == 124, case
        assert result.output.startswith("partial"), case
        assert "Timeout" in result.output, case
        status = sandbox.record(result)["status"]
        assert (status["phase"], status["reason"]) == ("TimedOut", "DeadlineExceeded"), case
        assert 3000 <= status["blocks"][0]["durationMs"] < 5500, case
