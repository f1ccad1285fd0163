"""containerd and the kubelet of the node are restarted while code runs, and while pods wait in a pool."""

import subprocess
from typing import Any

import pytest
from cluster_fixtures import Pool
from cluster_tools import SANDBOX, Admin, a_name, wait_for

pytestmark = pytest.mark.release

LIMITS = {"cpu": "100m", "memory": "96Mi"}
ALONE = {"cpu": "120m", "memory": "96Mi"}
"""Limits that no pool has."""
COUNTS = """
import itertools, os, time
open("begun", "a").write("x")
for number in itertools.count():
    print(number, flush=True)
    if os.path.exists("end"):
        break
    time.sleep(0.5)
print("begun", len(open("begun").read()))
"""
"""Goes on until somebody makes a file, so that a restart meets it while it runs."""
WORKSPACE = "/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/workspace"
"""Of a pod, on its node."""


class Node:
    """The node's container of the test cluster, where systemd runs both services."""

    def __init__(self, admin: Admin) -> None:
        [node] = admin.list("node", None)
        self.admin, self.name = admin, node["metadata"]["name"]

    def run(self, *command: str) -> str:
        done = subprocess.run(["docker", "exec", self.name, *command], capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, f"docker exec {self.name} {' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def restart(self, service: str) -> None:
        """And wait until it is another process, and the node is ready."""
        before = self._process(service)
        self.run("systemctl", "restart", service)
        wait_for(f"{service} to be active", lambda: self.run("systemctl", "is-active", service) == "active")
        assert before != self._process(service), "control: it is another process"
        self.admin.wait_until_all("the node to be ready", "node", _are_ready, namespace=None)

    def _process(self, service: str) -> str:
        return self.run("systemctl", "show", "--property=MainPID", "--value", service)


def _are_ready(nodes: list[dict[str, Any]]) -> bool:
    conditions = [node["status"]["conditions"] for node in nodes]
    return all(any((one["type"], one["status"]) == ("Ready", "True") for one in of) for of in conditions)


@pytest.fixture
def node(admin: Admin) -> Node:
    return Node(admin)


@pytest.mark.parametrize("service", ["containerd", "kubelet"])
def test_code_that_runs_meanwhile_ends_with_its_true_result(admin, node, service):
    name = a_name("outlasts")
    admin.submit(name, COUNTS, limits=ALONE, timeoutSeconds=600)
    pod = admin.wait_for_phase(name, "Running")["status"]["podName"]
    admin.wait_for_output(name, "1\n")
    workspace = WORKSPACE.format(uid=admin.pod(SANDBOX, pod)["metadata"]["uid"])
    assert "begun" in node.run("ls", workspace).split(), "control: this is where it runs"
    node.restart(service)
    node.run("touch", f"{workspace}/end")
    ended = admin.wait_for_phase(name, "Succeeded")["status"]
    *numbers, begun = ended["stdout"]["text"].splitlines()
    assert begun == "begun 1", "it began once"
    assert numbers == [str(number) for number in range(len(numbers))], "nothing of its output is missing"
    assert ended["podName"] == pod


@pytest.mark.parametrize("service", ["containerd", "kubelet"])
def test_a_pool_has_ready_pods_afterwards(admin, node, make_pool, service):
    """The pods of before, or others: each is proven anew before code gets it."""
    pool: Pool = make_pool(1)
    pool.ready(1)
    node.restart(service)
    name = a_name("after")
    admin.submit(name, "print(1)", limits=LIMITS)
    status = admin.wait_for_phase(name, "Succeeded")["status"]
    assert status["stdout"]["text"] == "1\n"
    pool.ready(1)
