"""What separates code from the kernel of its node: what the record says of it, and what is refused."""

from typing import Any

import pytest
from cluster_tools import SANDBOX, TERMINAL, Admin, a_name

SMALL = {"cpu": "100m", "memory": "96Mi"}
KERNEL = "print(open('/proc/sys/kernel/random/boot_id').read().strip())"
RUNTIMES = ("runc", "gvisor")


def submit(admin: Admin, **spec: Any) -> str:
    name = a_name("boundary")
    admin.submit(name, KERNEL, **{"limits": SMALL, "timeoutSeconds": 60, **spec})
    return name


def ended(admin: Admin, **spec: Any) -> dict[str, Any]:
    """The status of an execution, once it has ended."""
    return admin.wait_for_phase(submit(admin, **spec), *TERMINAL)["status"]


def needs(admin: Admin, runtime: str) -> None:
    if runtime != "runc" and not admin.exists("runtimeclass", runtime, "default"):
        pytest.skip(f"the cluster has no RuntimeClass {runtime}")


def gives_user_namespaces(admin: Admin, handler: str) -> bool:
    [node, *_] = admin.list("node")
    told = {one.get("name", ""): one.get("features", {}) for one in node["status"].get("runtimeHandlers", ())}
    return told.get(handler, {}).get("userNamespaces", False)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_record_names_the_boundary_that_the_code_met(runtime, admin, policy, unprotected_pod):
    """Code reads the boot ID of the kernel that it runs on: in an unprotected pod that is the node's."""
    needs(admin, runtime)
    [node, *_] = admin.list("node")
    of_node = node["status"]["nodeInfo"]["bootID"]
    assert unprotected_pod(KERNEL).strip() == of_node, "positive control"
    policy(runtimeClassName=runtime)
    name = submit(admin)
    status = admin.wait_for_phase(name, *TERMINAL)["status"]
    assert (status["phase"], status["stdout"]["text"].strip() == of_node) == ("Succeeded", runtime == "runc")
    shared = "UserNamespace" if gives_user_namespaces(admin, "") else "Container"
    assert status["boundary"] == {"runc": shared, "gvisor": "gVisor"}[runtime]
    [head, row] = admin.kubectl("-n", SANDBOX, "get", "codeexecution", name, "-o", "wide").splitlines()
    assert row[head.index("BOUNDARY") :].split()[0] == status["boundary"]


@pytest.mark.parametrize(("runtime", "handler"), [("runc", ""), ("gvisor", "runsc")])
def test_user_namespaces_are_given_or_nothing_runs(runtime, handler, admin, policy):
    needs(admin, runtime)
    policy(runtimeClassName=runtime, requireUserNamespaces=True)
    status = ended(admin)
    if gives_user_namespaces(admin, handler):
        assert (status["phase"], "UserNamespace" in status["layers"]) == ("Succeeded", True)
        return
    assert (status["phase"], status["reason"]) == ("Denied", "IsolationNotEnforced")
    assert "startedAt" not in status
    policy(runtimeClassName=runtime)
    control = ended(admin)
    assert control["phase"] == "Succeeded", "control: without the demand it runs"
