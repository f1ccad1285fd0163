"""A session that sleeps, in real pods: the pod is gone meanwhile, and files and modes come back."""

import pytest
from cluster_tools import SANDBOX, a_name, helm, upgrade_release
from waits import phase_of

from codeexec_api import Limits
from executor_client import ClusterRef, CodeExecutionClient, PreparedBlock, Request

pytestmark = pytest.mark.release

STORE = "memory://output"
"""In the one replica's own memory: the test cluster has no other storage."""
MAKE = """
import os
os.makedirs("project/empty")
with open("project/run.sh", "w") as script: script.write("#!/bin/sh\\necho from the script\\n")
with open("data.bin", "wb") as data: data.write(os.urandom(3_000_000))
os.chmod("project/run.sh", 0o750)
os.chmod("project", 0o700)
"""
LOOK = """
import os, hashlib
print(hashlib.sha256(open("data.bin", "rb").read()).hexdigest())
for path in ("project", "project/empty", "project/run.sh", "data.bin"): print(path, oct(os.stat(path).st_mode & 0o777))
print(open("project/run.sh").read())
"""


@pytest.fixture(scope="module")
def sleepy(kubeconfig):
    """A release whose sessions can sleep; it gets its old values back."""
    settings = {"outputStore.url": STORE, "policy.sessionSleep.minAfterSeconds": "2"}
    upgrade_release(kubeconfig, *[word for key, value in settings.items() for word in ("--set", f"{key}={value}")])
    yield
    helm(kubeconfig, "rollback", "codeexec", "--wait", "--timeout", "2m")


async def test_its_pod_is_gone_meanwhile_and_files_and_modes_come_back(sleepy, agent_kubeconfig, admin):
    request = Request(agent=a_name("sleep"), limits=Limits(cpu="200m", memory="128Mi"), timeout_seconds=60)
    async with CodeExecutionClient(ClusterRef(kubeconfig=agent_kubeconfig, namespace=SANDBOX)) as client:
        session = await client.open_session(request, sleep_after_seconds=3, wait=True)
        made = await session.execute([PreparedBlock("python", code.encode()) for code in (MAKE, LOOK)])
        assert made.exit_code == 0, made.output
        assert "project 0o700" in made.stdout
        assert "project/run.sh 0o750" in made.stdout
        assert "from the script" in made.stdout
        first = made.pod_name

        admin.wait_until("the session to sleep", "codesession", session.name, lambda it: phase_of(it) == "Asleep")
        assert "Asleep" in admin.kubectl("-n", SANDBOX, "get", "codesessions", session.name)
        admin.wait_until_gone("pod", first)
        looked = await session.execute([PreparedBlock("python", LOOK.encode())])
        assert (looked.exit_code, looked.stdout) == (0, made.stdout), looked.output
        assert looked.pod_name != first
        await session.end()
