"""What becomes of the sessions of a client whose process is killed."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from cluster_tools import SANDBOX
from component_stage import LIMITS, in_thread

SCRIPT = """
import asyncio, sys
from functools import partial
from executor_client import ClusterRef, CodeExecutionClient, Limits, Request
from executor_client.client.connected import _connect
from executor_client.client.lease import ClientLease

async def main():
    ref = ClusterRef(kubeconfig=sys.argv[1], namespace=sys.argv[2])
    client = CodeExecutionClient(ref)
    client._lease = ClientLease(partial(_connect, ref), seconds=4, every=0.5)
    request = Request(agent="gone", limits=Limits(cpu=sys.argv[3], memory=sys.argv[4]))
    for outlives in (False, True):
        session = await client.open_session(request, outlives_client=outlives, wait=True)
        print(session.name, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def process(operator, stage) -> Iterator[subprocess.Popen[str]]:
    arguments = [stage.agent_kubeconfig(SANDBOX), SANDBOX, LIMITS["cpu"], LIMITS["memory"]]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    ) as run:
        yield run
        run.kill()


async def test_an_idle_session_ends_soon_after_its_client_unless_it_outlives_it(process, admin):
    assert process.stdout
    kept, outliving = [(await in_thread(process.stdout.readline)).strip() for _ in range(2)]
    lease, renewals = admin.get("codesession", kept)["spec"]["clientLease"], []

    def renewed_for_longer_than_it_counts(one) -> bool:
        renewals.append(datetime.fromisoformat(one["spec"]["renewTime"]))
        return renewals[-1] - renewals[0] > timedelta(seconds=10)

    await in_thread(admin.wait_until, "renewals", "lease", lease, renewed_for_longer_than_it_counts)
    assert admin.get("codesession", kept)["status"]["phase"] == "Ready", "the control: its client is there"

    process.kill()
    ended = await in_thread(admin.wait_until, "its end", "codesession", kept, lambda one: "endedAt" in one["status"])
    status = ended["status"]
    assert status["reason"] == "ClientGone"
    assert status["message"] == f"the client is gone: Lease {lease} was not renewed for 10 s (spec.clientLease)"
    await in_thread(admin.wait_until_gone, "pod", status["podName"])
    assert admin.get("codesession", outliving)["status"]["phase"] == "Ready"
    assert "clientLease" not in admin.get("codesession", outliving)["spec"]
    await in_thread(admin.patch, "codesession", outliving, {"spec": {"ended": True}})


async def test_a_client_that_closes_gives_back_its_sessions_at_once(operator, client, asking, admin):
    session = await client.open_session(asking(), wait=True)
    lease = admin.get("codesession", session.name)["spec"]["clientLease"]
    await in_thread(admin.wait_until, "the Lease", "lease", lease, lambda one: one["spec"]["holderIdentity"])
    await client.close()
    await in_thread(admin.wait_until_gone, "lease", lease)  # `close` doesn't wait for a slow API server
