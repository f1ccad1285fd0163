"""`codeexec doctor --capacity` says what the API server lets its user read, and names each right that is missing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from cluster_tools import SANDBOX, SYSTEM, Admin, a_name, wait_for

from executor_client.cli import main


def doctor(kubeconfig: str, *options: str) -> dict[str, Any]:
    command = ["doctor", "--capacity", "-o", "json", "-n", SANDBOX, "--kubeconfig", kubeconfig, *options]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@pytest.fixture
def node(admin: Admin) -> Iterator[str]:
    """A node with room for 10 sandboxes of the default requests, of which one pod of others takes half."""
    name = a_name("node")
    room = {"cpu": "200m", "memory": "64Gi", "ephemeral-storage": "64Gi", "pods": "110"}
    admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "a test says so"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    admin.patch("node", name, {"status": status}, "", "status")
    admin.patch("node", name, {"spec": {"taints": None}}, "")
    wait_for("the account of pods", lambda: admin.exists("serviceaccount", "default", "default"))
    container = {"name": "it", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}}
    admin.create({**pod, "spec": {"nodeName": name, "containers": [container]}})
    yield name
    admin.delete("pod", name, "default", gracePeriodSeconds=0)
    admin.delete("node", name)


def test_an_administrator_learns_what_fits_and_what_binds(admin: Admin, node: str) -> None:
    found = doctor(admin.kubeconfig)
    [mine] = [one for one in found["nodes"] if one["node"] == node]
    assert (mine["more"], mine["bound"], mine["at_limits"], mine["sandboxes"]) == (5, "CPU requests", 0, 0)
    assert found["sandbox"]["requests"]["cpu"] == 0.02
    [quota] = found["quotas"]
    assert (quota["quota"], quota["more"], quota["bound"]) == ("codeexec", 20, "limits.cpu and pods")
    assert (found["total"]["more"], found["total"]["bound"]) == (5, "CPU requests")
    assert (found["missing"], found["limitRangeProblems"]) == ([], [])


def test_limits_that_nobody_may_have_are_said(admin: Admin, node: str) -> None:
    found = doctor(admin.kubeconfig, "--cpu", "2")
    assert found["limitRangeProblems"] == ["LimitRange 'codeexec': limits.cpu is 2 CPU, at most 1 CPU is allowed"]
    assert found["total"]["more"] == 0


def test_an_agent_learns_which_rights_are_missing(plane, admin: Admin) -> None:
    found = doctor(plane.kubeconfig_with_token(admin.token("codeexec-agent")))
    assert [one.partition(":")[0] for one in found["missing"]] == [
        f"get executionpolicies.codeexec.dev in namespace {SANDBOX!r}",
        "list nodes in all namespaces",
        "list pods in all namespaces",
        f"list resourcequotas in namespace {SANDBOX!r}",
        f"list limitranges in namespace {SANDBOX!r}",
        f"list sandboxpools.codeexec.dev in namespace {SANDBOX!r}",
    ]
    unknown = ("nodes", "quotas", "pools", "total")
    assert [found[one] for one in unknown] == [None] * len(unknown)
    assert found["sandbox"]["requests"] is None


def test_who_may_read_the_namespace_alone_learns_of_its_quota_if_the_policy_can_be_read(plane, admin: Admin) -> None:
    user = a_name("reader")
    core = {"apiGroups": [""], "resources": ["resourcequotas", "limitranges", "configmaps"], "verbs": ["list"]}
    ours = {"apiGroups": ["codeexec.dev"], "resources": ["executionpolicies", "sandboxpools"], "verbs": ["get", "list"]}
    group = "rbac.authorization.k8s.io"
    for namespace in (SANDBOX, SYSTEM):
        metadata = {"name": user, "namespace": namespace}
        admin.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [core, ours]})
        role = {"apiGroup": group, "kind": "Role", "name": user}
        subject = {"apiGroup": group, "kind": "User", "name": user}
        binding = {"kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": [subject]}
        admin.create({"apiVersion": f"{group}/v1", **binding})
    kubeconfig = plane.kubeconfig_for(user)
    wait_for("the rights to be there", lambda: len(doctor(kubeconfig)["missing"]) == 2)
    found = doctor(kubeconfig)
    assert [one["more"] for one in found["quotas"]] == [20]
    assert (found["nodes"], found["total"]) == (None, None)


def test_a_namespace_without_the_operator_is_an_error_that_says_what_to_do(admin: Admin) -> None:
    command = ["doctor", "--capacity", "-n", SANDBOX, "--kubeconfig", admin.kubeconfig]
    done = CliRunner().invoke(main, [*command, "--operator-namespace", "default"])
    assert done.exit_code == 1
    assert "pass the namespace of the operator by --operator-namespace" in done.output
