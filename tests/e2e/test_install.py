"""The chart installs, upgrades and uninstalls without breaking anything. Runs last: it takes the operator away."""

import json

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import ROOT, SANDBOX, SYSTEM, a_name, helm, image, wait_for

from executor_client import (
    ClusterRef,
    CodeExecutionClient,
    KubernetesCodeExecutor,
    Limits,
    NotPermitted,
    PreparedBlock,
    Request,
)

pytestmark = pytest.mark.e2e


def _install(kubeconfig: str, *arguments: str) -> None:
    operator, sandbox = image("OPERATOR_IMAGE").split("@"), image().split("@")
    values = {
        "image.repository": operator[0],
        "image.digest": operator[1],
        "sandbox.image.repository": sandbox[0],
        "sandbox.image.digest": sandbox[1],
    }
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    chart = str(ROOT / "charts" / "codeexec")
    helm(kubeconfig, "upgrade", "--install", "codeexec", chart, "--wait", "--timeout", "2m", *settings, *arguments)


def test_helm_test_runs_an_execution(kubeconfig):
    assert "Phase:          Succeeded" in helm(kubeconfig, "test", "codeexec", "--timeout", "2m")


def test_operator_passes_the_restricted_standard(admin):
    selector = "app.kubernetes.io/component=operator"
    [pod] = json.loads(admin.kubectl("-n", SYSTEM, "get", "pods", "-l", selector, "-o", "json"))["items"]
    strict = a_name("strict")
    admin.kubectl("create", "namespace", strict)
    admin.kubectl("label", "namespace", strict, "pod-security.kubernetes.io/enforce=restricted")
    try:
        weak = {"metadata": {"name": "weak"}, "spec": {"containers": [{"name": "main", "image": image()}]}}
        for candidate, accepted in ((weak, False), (pod, True)):
            spec = {key: value for key, value in candidate["spec"].items() if key != "serviceAccountName"}
            spec.pop("serviceAccount", None)
            copy = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copy", "namespace": strict}, "spec": spec}
            done = admin.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(copy))
            assert (done.returncode == 0) is accepted, done.stderr
    finally:
        admin.kubectl("delete", "namespace", strict, "--wait=false")


def test_upgrade_takes_over_what_is_there(admin, kubeconfig):
    name = a_name("before-upgrade")
    admin.submit(name, "print(1)", ttlSecondsAfterFinished=300)
    admin.wait_for_phase(name, "Succeeded")
    _install(kubeconfig, "--set", "policy.maxTimeoutSeconds=7")
    assert admin.phase(name) == "Succeeded"
    refused = a_name("after-upgrade")
    admin.submit(refused, "print(1)", timeoutSeconds=8)
    assert "at most 7" in admin.wait_for_phase(refused, "Denied")["status"]["message"]
    _install(kubeconfig)


async def test_one_release_serves_several_namespaces_apart(admin, kubeconfig, kubeconfig_of):
    second = a_name("codeexec-second")
    _install(kubeconfig, "--set", f"sandbox.namespaces={{{SANDBOX},{second}}}")
    own = {"kubeconfig": kubeconfig_of(second, "codeexec-agent"), "limits": Limits(cpu="200m", memory="96Mi")}
    block, token = (
        [CodeBlock("open('kept', 'a').write('x'); print(open('kept').read())", "python")],
        CancellationToken(),
    )
    try:
        async with KubernetesCodeExecutor(namespace=second, **own) as executor:
            outputs = [(await executor.execute_code_blocks(block, token)).output for _ in range(2)]
            assert outputs == ["x\n", "xx\n"]
        assert len(json.loads(admin.kubectl("-n", second, "get", "codeexecutions", "-o", "json"))["items"]) == 2
        async with CodeExecutionClient(ClusterRef(SANDBOX, own["kubeconfig"])) as elsewhere:
            with pytest.raises(NotPermitted):
                await elsewhere.list_executions()
            with pytest.raises(NotPermitted):
                await elsewhere.execute((PreparedBlock("python", b"print(1)"),), Request(agent="e2e"))
    finally:
        _install(kubeconfig)
        admin.kubectl("delete", "namespace", second, "--wait=false")


def test_uninstall_keeps_the_records_and_install_takes_them_up_again(admin, kubeconfig):
    name = a_name("kept")
    admin.submit(name, "print(1)", ttlSecondsAfterFinished=0)
    admin.wait_for_phase(name, "Succeeded")
    helm(kubeconfig, "uninstall", "codeexec", "--wait")
    try:
        assert admin.phase(name) == "Succeeded"
        assert not admin.exists("deployment", "codeexec-operator", SYSTEM)
        left = admin.kubectl("-n", SANDBOX, "get", "rolebindings", "-o", "name")
        assert "codeexec-operator" not in left
    finally:
        _install(kubeconfig)
    again = a_name("again")
    admin.submit(again, "print(1)")
    admin.wait_for_phase(again, "Succeeded")
    assert admin.phase(name) == "Succeeded"
    wait_for("the deny-all policy", lambda: admin.exists("networkpolicy", "codeexec-deny-all", SANDBOX))
