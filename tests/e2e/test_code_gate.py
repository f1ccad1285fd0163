"""Rules for code with real code and a real operator's limits: they are advice, and no isolation.

What they note, ask about and deny is in `tests/component/test_code_gate.py`.
"""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from cluster_tools import SYSTEM, Admin, a_name

LIMITS = {"cpu": "100m", "memory": "64Mi"}
RULES = {"Deny": ["ctypes"], "NeedApproval": ["socket", "subprocess"], "Note": ["os"]}
GETS_ROUND = "getattr(__builtins__, '__imp' + 'ort__')"


def rules(**actions: list[str]) -> list[dict[str, Any]]:
    return [{"action": action, "imports": modules} for action, modules in actions.items()]


@pytest.fixture
def ruled(policy) -> Callable[..., None]:
    """Puts a policy with these rules into the namespace, and others if it is called."""

    def put(**actions: list[str]) -> None:
        policy(codeRules=rules(**actions))

    put(**RULES)
    return put


def ended(admin: Admin, code: str) -> dict[str, Any]:
    """The status of an execution that has ended."""
    name = a_name("gate")
    admin.submit(name, code, limits=LIMITS)
    return admin.wait_for_phase(name, "Succeeded", "Failed", "Denied", "Lost", "TimedOut")["status"]


def findings(status: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(one["found"], one["action"], *one["places"]) for one in status.get("codeFindings", ())]


def test_a_megabyte_of_hostile_code_does_not_disturb_the_operator(admin, ruled):
    """It goes on with others, and with the same process as before."""

    def killed() -> list[str]:
        """When containers of the operator were ended by lack of memory or by a fault."""
        pods = admin.list("pod", SYSTEM, labels="app.kubernetes.io/component=operator")
        states = [one["lastState"] for pod in pods for one in pod["status"].get("containerStatuses", ())]
        ends = [state["terminated"] for state in states if "terminated" in state]
        return [end["finishedAt"] for end in ends if end["reason"] == "OOMKilled" or end["exitCode"] > 128]

    before, names = killed(), [a_name("hostile") for _ in range(4)]
    for name, code in zip(names, ("(" * 999_000, "a\n" * 499_000, "1," * 499_000, "-" * 999_000 + "1"), strict=True):
        admin.submit(name, code, limits=LIMITS)
    assert ended(admin, "print('meanwhile')")["stdout"]["text"] == "meanwhile\n"
    for name in names:
        status = admin.wait_for_phase(name, "Denied", "Succeeded", "Failed")["status"]
        assert (status["phase"], findings(status)) == ("Denied", [("unreadable Python", "Deny", "spec.blocks[0]")])
    assert killed() == before


# --- advice, and no isolation ---------------------------------------------------------------------------------------


def test_code_that_wants_to_gets_round_it_and_is_still_held_by_the_sandbox(admin, ruled, unprotected_pod):
    """It imports what is denied, and nobody finds anything. Then it can do no more than any code in a sandbox."""
    ruled(Deny=["os", "socket", "ctypes"])
    assert ended(admin, "import os, socket")["phase"] == "Denied", "control: who writes it plainly is found"
    address = admin.get("service", "kubernetes", "default")["spec"]["clusterIP"]
    code = f"""
load = {GETS_ROUND}
os, socket = load('os'), load('socket')
print(os.getuid() == 0, os.path.exists('/var/run/secrets/kubernetes.io'))
try:
    socket.create_connection(({address!r}, 443), 3)
    print('reached')
except OSError as error:
    print('held:', type(error).__name__)
"""
    assert unprotected_pod(code) == "True True\nreached\n", "control: nothing in the code itself keeps it from that"
    status = ended(admin, code)
    assert (status["phase"], findings(status)) == ("Succeeded", [])
    assert status["stdout"]["text"] == "False False\nheld: PermissionError\n", "no socket can be had"
    assert status["egressProof"]["verdict"] == "Closed"


def test_nobody_reads_the_memory_of_the_operator(admin):
    """Not even a process of its own user in its own container, as the one that reads code is."""
    look = "import sys; print(len(open(f'/proc/{sys.argv[1]}/environ', 'rb').read()) > 0)"

    def read(process: str) -> subprocess.CompletedProcess[str]:
        words = ("python3", "-I", "-c", look, process)
        return admin.try_kubectl("-n", SYSTEM, "exec", "deployment/codeexec-operator", "--", *words)

    assert read("self").stdout == "True\n", "control"
    assert "PermissionError" in read("1").stderr
