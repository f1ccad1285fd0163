"""What the code finds when it looks around: nothing to abuse. Each probe succeeds in an unprotected pod."""

import json

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

pytestmark = pytest.mark.e2e

PROBE = """
import json, os, pathlib
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
def writable(folder):
    try:
        path = pathlib.Path(folder, "codeexec-probe"); path.write_text("x"); path.unlink()
        return True
    except OSError:
        return False
def readable(path):
    try:
        open(path, "rb").read(1)
        return True
    except OSError:
        return False
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "capabilities": {key: int(status[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
    "no_new_privs": int(status["NoNewPrivs"]), "seccomp": int(status["Seccomp"]),
    "writable": [folder for folder in ("/", "/usr", "/etc", "/opt/codeexec", "/home", "/var/tmp") if writable(folder)],
    "own_folders": [folder for folder in ("/workspace", "/tmp") if writable(folder)],
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "environment": sorted(os.environ),
    "pid1_memory": readable("/proc/1/mem"), "pid1_environment": readable("/proc/1/environ"),
    "stdin": open(0).read(),
}))
"""


@pytest.fixture(scope="session")
def control(unprotected_pod):
    return json.loads(unprotected_pod(PROBE.replace('"stdin": open(0).read(),', "")))


@pytest.fixture
async def inside(executor):
    result = await executor.execute_code_blocks([CodeBlock(PROBE, "python")], CancellationToken())
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


async def test_sandbox_has_nothing_to_abuse(inside, control):
    assert control["uid"] == 0
    assert inside["uid"] == inside["gid"] == 65532
    assert set(inside["groups"]) <= {65532}
    assert control["capabilities"]["CapEff"] != 0
    assert set(inside["capabilities"].values()) == {0}
    assert control["no_new_privs"] == 0
    assert inside["no_new_privs"] == 1
    assert inside["seccomp"] == 2
    assert "/" in control["writable"]
    assert inside["writable"] == []
    assert inside["own_folders"] == ["/workspace", "/tmp"]
    assert control["token"]
    assert not inside["token"]


async def test_sandbox_sees_no_environment_but_its_own(inside, control):
    assert {"CALLER_SECRET", "KUBERNETES_SERVICE_HOST"} <= set(control["environment"])
    ours = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
    assert set(inside["environment"]) - {"LC_CTYPE"} == ours
    assert inside["stdin"] == ""


async def test_code_cannot_read_the_runner(inside, control):
    assert control["pid1_environment"]
    assert not inside["pid1_memory"]
    assert not inside["pid1_environment"]


async def test_code_cannot_forge_the_result(executor):
    forged = json.dumps({"id": "x", "seq": 0, "block": 0, "exitCode": 0, "reason": "Completed"})
    code = f"""
import os, signal
print({forged!r})
for descriptor in ("/proc/1/fd/1", "/dev/console", "/proc/1/fd/0"):
    try:
        os.write(os.open(descriptor, os.O_WRONLY), {(forged + chr(10)).encode()!r})
        print("wrote to", descriptor)
    except OSError:
        pass
for number in signal.valid_signals():
    os.kill(1, number)
os._exit(7)
"""
    result = await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    assert (result.exit_code, result.output) == (7, forged + "\n")
