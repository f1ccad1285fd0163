"""A failing test tells what it made, what became of that, and which calls failed; nothing else is told."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import diagnostics
import pytest
from api_server import Refusal
from cluster_tools import ROOT, SANDBOX, SYSTEM, Admin, a_name
from kube import Kube

from executor_client import ClusterRef, CodeExecError, CodeExecutionClient

FAILS = """
from cluster_tools import Admin, a_name
import os, pytest

@pytest.fixture
def admin():
    return Admin(os.environ["KUBECONFIG"])

def test_passes(admin):
    admin.submit("of-the-one-that-passes", "print(1)")

class Place:
    admin, namespaces = Admin(os.environ["KUBECONFIG"]), ()

@pytest.fixture
def several():
    return 1, Place()

def test_fails(GIVEN):
    admin = Place.admin
    admin.submit("of-the-one-that-fails", "print(1)")
    patch = {"status": {"phase": "Failed", "reason": "Tested", "message": "the reason why"}}
    admin.patch("cex", "of-the-one-that-fails", patch, subresource="status")
    admin.wait_for_phase("of-the-one-that-fails", "Succeeded")
"""


@pytest.mark.parametrize("given", ["admin", "several"], ids=["an administrator", "a stage among others"])
def test_a_failing_test_brings_its_records(admin: Admin, tmp_path: Path, given: str):
    (tmp_path / "test_it.py").write_text(FAILS.replace("GIVEN", given).replace("of-the-one", f"{given}-of-the-one"))
    command = [sys.executable, "-m", "pytest", "-p", "diagnostics", "--rootdir", str(tmp_path), str(tmp_path)]
    path = {"PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True)
    section = done.stdout.split("cluster: records since the test began")
    assert len(section) == 2, done.stdout
    assert f"CodeExecution {given}-of-the-one-that-fails:" in section[1]
    assert '"message": "the reason why"' in section[1]
    assert "1 failed, 1 passed" in done.stdout
    for name in ("passes", "fails"):
        admin.delete("cex", f"{given}-of-the-one-that-{name}")


def told(admin: Admin, began: float, failure: str = "") -> dict[str, str]:
    titles = diagnostics.tell(Kube(admin.kubeconfig, seconds=2), began, failure)
    return {title.removeprefix("cluster: ").removesuffix(" since the test began"): text for title, text in titles}


@pytest.fixture
def began() -> int:
    """Before anything is made; Kubernetes tells whole seconds."""
    return int(time.time())


@pytest.fixture
def pod(admin: Admin, began: int):
    """One that nothing runs: there is no node."""
    name = a_name("pending")
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "none"}]}
    meta = {"name": name, "namespace": "default"}
    admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    yield name
    admin.delete("pod", name, "default")


def test_pods_and_events_are_told(admin, began, pod):
    name = a_name("told")
    admin.submit(name, "print(1)")
    record = admin.execution(name)
    about = {key: record.get(key) or record["metadata"][key] for key in ("kind", "apiVersion")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": SANDBOX}}
    about |= {"name": name, "namespace": SANDBOX}
    admin.create({**event, "involvedObject": about, "reason": "Told", "message": "so it was", "lastTimestamp": now})
    node = a_name("node")
    admin.create(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    )  # no kubelet has said that it is ready
    found = told(admin, began)
    admin.delete("node", node)
    assert f"{node}: " in found["nodes that take no pods"]
    assert "node.kubernetes.io/not-ready" in found["nodes that take no pods"]
    assert f"Told CodeExecution/{name}: so it was" in found["events"]
    assert f"default: Pod {pod}: " in found["pods"]
    assert '"phase": "Pending"' in found["pods"]
    later = told(admin, time.time() + 5)
    assert not {"events", "pods", "records"} & later.keys()
    assert name in told(admin, time.time() + 5, f"AssertionError: {name} is not what it should be")["records"]
    admin.delete("cex", name)


def test_calls_that_failed_are_told_and_what_was_not_found_is_not(admin):
    began = int(time.time())
    with pytest.raises(Refusal):
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    assert not admin.exists("pod", "nothing")
    calls = told(admin, began)["API calls that failed"].splitlines()
    assert "POST /api/v1/namespaces?fieldValidation=Strict: 409 AlreadyExists" in calls[-1]


async def test_calls_of_the_client_under_test_that_failed_are_told(admin):
    began = int(time.time())
    with diagnostics.noting_calls_of_clients():
        client = CodeExecutionClient(ClusterRef("no-such-namespace", admin.kubeconfig))
        with pytest.raises(CodeExecError):
            await client.get("run-0")
        await client.close()
    assert "the client's GET" in told(admin, began)["API calls that failed"]


def test_lines_about_other_workers_are_left_out(monkeypatch):
    monkeypatch.setattr(diagnostics, "SANDBOX", "codeexec-sandbox-2")
    lines = {
        '{"namespace": "codeexec-sandbox-2", "message": "ours"}': False,
        '{"message": "codeexec-sandbox-2/run-1: Running"}': False,
        '{"message": "of everybody"}': False,
        '{"namespace": "codeexec-sandbox-1", "message": "theirs"}': True,
        '{"message": "codeexec-sandbox-1/run-1: Running"}': True,
    }
    assert {line: diagnostics._is_of_others(line) for line in lines} == lines


def test_it_never_fails_itself(tmp_path):
    """Here nobody answers."""
    path = tmp_path / "kubeconfig"
    entries = {"clusters": {"cluster": {"server": "http://127.0.0.1:1"}}, "users": {"user": {}}}
    entries["contexts"] = {"context": {"cluster": "it", "user": "it"}}
    raw = {kind: [{"name": "it", **entry}] for kind, entry in entries.items()}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "it", **raw}))
    began = time.time()
    found = dict(diagnostics.tell(Kube(str(path), seconds=0.2), began))
    assert "not known: Unreachable" in found["cluster: records since the test began"]
