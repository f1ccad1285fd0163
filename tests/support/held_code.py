"""Code that goes on only when a test says so, however long a restart takes, and without a word to any operator."""

from cluster_fixtures import ControlPod
from cluster_tools import SANDBOX, Admin

HELD = """
import signal, time
signalled = []
signal.signal(signal.SIGUSR1, lambda *_: signalled.append(True))
print("before", flush=True)
while not signalled: time.sleep(0.05)
print("after")
"""
OUTPUT = "before\nafter\n"
_GOES_ON = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        of_the_pod = {uid!r} in open(f"/proc/{{pid}}/cgroup").read().replace("_", "-")
        [caught] = [line.split()[1] for line in open(f"/proc/{{pid}}/status") if line.startswith("SigCgt")]
        if of_the_pod and int(caught, 16) >> signal.SIGUSR1 - 1 & 1:
            os.kill(int(pid), signal.SIGUSR1)
            print("signalled")
    except OSError:
        pass
"""
"""Runs on the node."""


def held(admin: Admin, name: str) -> str:
    """The uid of the pod of this execution, once its code waits."""
    pod = admin.wait_for_phase(name, "Running")["status"]["podName"]
    admin.wait_for_output(name, "before")
    return admin.pod(SANDBOX, pod)["metadata"]["uid"]


def let_go_on(uid: str, node_shell: ControlPod) -> None:
    """The code in the pod with this uid."""
    told = node_shell(_GOES_ON.format(uid=uid))
    assert told == "signalled\n", "control: the code, and nothing else"
