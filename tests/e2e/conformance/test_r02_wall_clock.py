"""R-02: a limit of time ends the code for certain, and what it has printed until then is kept."""

import json

import pytest

from codeexec_api import Limits

pytestmark = pytest.mark.remit("R-02")

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
    no = subprocess.DEVNULL  # what goes on must not hold the streams of this program, or kubectl would wait for it
    children[case] = subprocess.Popen(command, env=environment, stdin=no, stdout=subprocess.PIPE, stderr=no)
for child in children.values():
    assert child.stdout.read(7) == b"partial"
    child.terminate()
time.sleep(0.5)
found = dict.fromkeys(CASES, 0)
for _ in range(100):  # a process that forks and ends between two readings of /proc is missed by one look
    found = {case: max(found[case], len(living(case))) for case in CASES}
    if all(found.values()):
        break
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def left_in_the_control(admin, make_control_pod):
    """How many processes of each case live on where only the child is ended.

    They go with their pod: whoever kills them one by one may never catch the one that forks.
    """
    pod = make_control_pod("stubborn", {"command": ["sleep", "infinity"], "securityContext": {"runAsUser": 0}})
    found = json.loads(pod(f"CASES = {STUBBORN!r}\n{KILL_THE_CHILD}"))
    admin.delete("pod", pod.name, pod.namespace, gracePeriodSeconds=0)
    return found


@pytest.fixture
def survivors(control, left_in_the_control):
    """The control of each proof here."""
    control.succeeded(
        "in the unprotected pod the child was ended by SIGTERM, as AutoGen's local executor does it, and of every case "
        "a process went on",
        left_in_the_control.keys() == STUBBORN.keys() and all(left_in_the_control.values()),
    )


PROCESSES = """
import os
print(sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())))
"""


def was_ended(case, result, record):
    """That a limit ended this code once it was what it is called, and not before the limit was reached."""
    assert result.exit_code == 124, case
    assert result.output.startswith("partial"), case
    assert "Timeout" in result.output, case
    spec, status = record["spec"], record["status"]
    assert (status["phase"], status["reason"]) == ("TimedOut", "DeadlineExceeded"), case
    assert status["blocks"][0]["durationMs"] >= spec["timeoutSeconds"] * 1000, case


@pytest.mark.suspect
@pytest.mark.runtimes("runc", "gvisor")
async def test_the_limit_ends_every_kind_of_stubborn_code(survivors, everywhere):
    """The limit ends a whole tree of processes, whatever they do; what was printed is kept, and no process is left."""

    async def probe(sandbox):
        session = sandbox.session(timeout=10, limits=Limits(cpu="500m", memory="96Mi"))
        nobody = (await sandbox.run(PROCESSES, at=session)).stdout
        for case, block in STUBBORN.items():
            result = await sandbox.run(block, at=session)
            was_ended(case, result, sandbox.record(result))
            assert (await sandbox.run(PROCESSES, at=session)).stdout == nobody, case

    await everywhere(probe)


@pytest.mark.runtimes("runc", "gvisor")
async def test_the_limit_ends_an_execution_of_its_own(survivors, everywhere):
    """The same holds for an execution in a pod of its own."""
    cases = ("floods its output", "forks and forks again")

    async def probe(sandbox):
        results = await sandbox.run_all({case: [STUBBORN[case]] for case in cases}, timeout=10)
        for case, result in results.items():
            was_ended(case, result, sandbox.record(result))

    await everywhere(probe)


@pytest.mark.suspect
@pytest.mark.runtimes("runc", "gvisor")
async def test_the_limit_interrupts_a_cell(survivors, everywhere):
    """A cell of a stateful session that reaches its limit is stopped, whatever signals it ignores."""

    async def probe(sandbox):
        session = sandbox.session(timeout=10, stateful=True, limits=Limits(cpu="1", memory="256Mi"))
        await sandbox.run("kept = 1", at=session)
        stopped = await sandbox.run("print('partial', end='', flush=True)\nwhile True: pass", at=session)
        assert (stopped.exit_code, stopped.output[:7]) == (124, "partial")
        # A kernel that the node gives no CPU for two seconds is killed. That variables stay is unit/runner's claim.
        stays = "did not stop in time and was killed; its variables are gone" not in stopped.stderr
        assert (await sandbox.run("print('kept' in globals())", at=session)).output == f"{stays}\n"
        stubborn = await sandbox.run(STUBBORN["ignores every signal it can"][1], at=session)
        assert (stubborn.exit_code, stubborn.output[:7]) == (124, "partial")
        assert (await sandbox.run(PROCESSES, at=session)).exit_code == 0

    await everywhere(probe)
