"""What `kubectl get` shows of who holds which pod, and since when."""

import re
from datetime import UTC, datetime, timedelta

from cluster_tools import SANDBOX, Admin, a_name, a_session, an_execution

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
HELD = {
    "podName": "run-1-3f333df6",
    "nodeName": "node-1",
    "startedAt": (datetime.now(UTC) - timedelta(days=10, hours=12)).isoformat(),
}


def shown(admin: Admin, *arguments: str) -> dict[str, str]:
    """The only row of `kubectl get`, by the names of its columns."""
    header, row = admin.kubectl("get", "--namespace", SANDBOX, *arguments).splitlines()
    places = [one.start() for one in re.finditer(r"\S+", header)]
    return {
        header[start:end].strip(): row[start:end].strip()
        for start, end in zip(places, [*places[1:], None], strict=True)
    }


def test_sessions_show_who_holds_which_pod(admin):
    name = a_name("held")
    admin.create(a_session(name, clientLease="codeexec-client-one"))
    admin.patch("codesession", name, {"status": {"phase": "Ready", **HELD}}, subresource="status")
    row = shown(admin, "codesessions", name)
    expected = {"AGENT": "e2e", "PHASE": "Ready", "REQUESTED-BY": admin.me, "CLIENT": "codeexec-client-one"}
    assert {**row, **expected, "POD": HELD["podName"]} == row
    assert row["AGE"]
    assert shown(admin, "codesessions", name, "-o", "wide")["STARTED"] == "10d"


def test_a_session_that_outlives_its_client_shows_none(admin):
    name = a_name("alone")
    admin.create(a_session(name))
    assert shown(admin, "codesessions", name)["CLIENT"] == ""


def test_executions_show_who_holds_which_pod(admin):
    name = a_name("held")
    admin.create(an_execution(name, [BLOCK], sessionRef={"name": "work-1"}))
    admin.patch("codeexecution", name, {"status": {"phase": "Running", **HELD}}, subresource="status")
    row = shown(admin, "codeexecutions", name, "-o", "wide")
    expected = {"REQUESTED-BY": admin.me, "SESSION": "work-1", "STARTED": "10d", "POD": HELD["podName"]}
    assert {**row, **expected} == row


def test_pools_show_how_many_pods_are_ready(admin):
    name = a_name("pool")
    kind = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "SandboxPool"}
    admin.create({**kind, "metadata": {"name": name, "namespace": SANDBOX}, "spec": {"replicas": 3}})
    ready = {"type": "Ready", "status": "True", "reason": "PoolReady", "message": ""}
    ready["lastTransitionTime"] = HELD["startedAt"]
    counted = {"replicas": 3, "readyReplicas": 2, "claimedReplicas": 1, "queued": 4, "conditions": [ready]}
    admin.patch("sandboxpool", name, {"status": counted}, subresource="status")
    row = shown(admin, "sandboxpools", name)
    assert row.pop("AGE")
    assert list(row.items()) == [
        *[("NAME", name), ("REPLICAS", "3"), ("READY", "2"), ("IN-USE", "1"), ("QUEUED", "4"), ("REASON", "PoolReady")]
    ]
