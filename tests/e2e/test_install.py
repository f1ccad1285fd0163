"""The chart installs, upgrades and uninstalls without breaking anything. Runs last: it takes the operator away."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import ROOT, SANDBOX, SYSTEM, TERMINAL, Admin, a_name, helm, image, wait_for
from weaker_pods import a_hardened_pod

from executor_client import (
    ClusterRef,
    CodeExecutionClient,
    KubernetesCodeExecutor,
    Limits,
    NotPermitted,
    PreparedBlock,
    Request,
)

pytestmark = pytest.mark.release


VALUES = yaml.safe_load((ROOT / "tests" / "e2e" / "values.yaml").read_text())
SMALL = {"cpu": "100m", "memory": "96Mi"}


def _install(kubeconfig: str, *arguments: str) -> None:
    operator, sandbox = image("OPERATOR_IMAGE").split("@"), image().split("@")
    values = {
        "image.repository": operator[0],
        "image.digest": operator[1],
        "sandbox.image.repository": sandbox[0],
        "sandbox.image.digest": sandbox[1],
    }
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    for key, which in (("imageVerification.publicKeys", "IMAGE_KEYS"), ("image.signature", "SANDBOX_SIGNATURE")):
        settings += ["--set-file", f"sandbox.{key}={image(which)}"]
    chart = str(ROOT / "charts" / "codeexec")
    ours = ("--values", str(ROOT / "tests" / "e2e" / "values.yaml"), *settings, *arguments)
    helm(kubeconfig, "upgrade", "--install", "codeexec", chart, "--wait", "--timeout", "2m", *ours)


def test_helm_test_runs_an_execution(kubeconfig):
    assert "Phase:          Succeeded" in helm(kubeconfig, "test", "codeexec", "--timeout", "2m")


def test_the_chart_takes_the_kernel_that_the_cluster_has(admin, kubeconfig):
    """Then code meets it that names no RuntimeClass, and no pod without it is accepted, whoever makes it."""
    if not admin.exists("runtimeclass", "gvisor", "default"):
        pytest.skip("the cluster has no RuntimeClass gvisor")
    pod = a_hardened_pod()
    pod["metadata"] |= {"namespace": SANDBOX}
    assert admin.try_create(pod, dry_run=True) is None, "positive control: runc is allowed by name"
    _install(kubeconfig, "--set", "policy.runtimeClassName=auto", "--set-json", "policy.runtimeClassNames=[]")
    try:
        assert "RuntimeClass         gvisor" in helm(kubeconfig, "get", "notes", "codeexec")
        name = a_name("chosen")
        admin.submit(name, "print(1)", limits=SMALL)
        assert admin.wait_for_phase(name, *TERMINAL)["status"]["boundary"] == "gVisor"
        named = a_name("named")
        admin.submit(named, "print(1)", limits=SMALL, runtimeClassName="runc")
        assert "runc is not allowed" in admin.wait_for_phase(named, *TERMINAL)["status"]["message"]
        refusal = admin.try_create(pod, dry_run=True)
        assert refusal is not None
        assert "spec.runtimeClassName must be gvisor" in refusal.message
    finally:
        _install(kubeconfig)


class Upgraded(NamedTuple):
    """What there was before, and the namespace that has come."""

    before: str
    second: str


@pytest.fixture(scope="module")
def upgraded(admin: Admin, kubeconfig: str) -> Iterator[Upgraded]:
    """One upgrade with another policy and another namespace; the test that installs anew takes both back."""
    before, second = a_name("before-upgrade"), a_name("codeexec-second")
    admin.submit(before, "print(1)", ttlSecondsAfterFinished=300, limits=SMALL)
    admin.wait_for_phase(before, "Succeeded")
    changes = f"policy.maxTimeoutSeconds=170,sandbox.namespaces[{len(VALUES['sandbox']['namespaces'])}]={second}"
    _install(kubeconfig, "--set", changes)
    yield Upgraded(before, second)
    if "maxTimeoutSeconds" in helm(kubeconfig, "get", "values", "codeexec"):
        _install(kubeconfig)
    admin.kubectl("delete", "namespace", second, "--wait=false")


def test_upgrade_takes_over_what_is_there(admin, upgraded):
    assert admin.phase(upgraded.before) == "Succeeded"
    refused = a_name("after-upgrade")
    admin.submit(refused, "print(1)", timeoutSeconds=171, limits=SMALL)
    assert "at most 170" in admin.wait_for_phase(refused, "Denied")["status"]["message"]


async def test_one_release_serves_several_namespaces_apart(admin, kubeconfig_of, upgraded):
    second = upgraded.second
    own = {"kubeconfig": kubeconfig_of(second, "codeexec-agent"), "limits": Limits(**SMALL), "timeout": 170}
    block = [CodeBlock("open('kept', 'a').write('x'); print(open('kept').read())", "python")]
    async with KubernetesCodeExecutor(namespace=second, **own) as executor:
        outputs = [(await executor.execute_code_blocks(block, CancellationToken())).output for _ in range(2)]
        assert outputs == ["x\n", "xx\n"]
    assert len(admin.list("codeexecution", second)) == 2
    async with CodeExecutionClient(ClusterRef(SANDBOX, own["kubeconfig"])) as elsewhere:
        with pytest.raises(NotPermitted):
            await elsewhere.list_executions()
        with pytest.raises(NotPermitted):
            await elsewhere.execute((PreparedBlock("python", b"print(1)"),), Request(agent="e2e"))


def test_uninstall_keeps_the_records_and_install_takes_them_up_again(admin, kubeconfig, upgraded):
    def there() -> tuple[bool, bool]:
        bindings = [one["metadata"]["name"] for one in admin.list("rolebinding")]
        return admin.exists("deployment", "codeexec-operator", SYSTEM), "codeexec-operator" in bindings

    assert there() == (True, True), "control: what is there is found"
    helm(kubeconfig, "uninstall", "codeexec", "--wait")
    try:
        assert admin.phase(upgraded.before) == "Succeeded"
        assert there() == (False, False)
    finally:
        _install(kubeconfig)
    again = a_name("again")
    admin.submit(again, "print(1)", limits=SMALL)
    admin.wait_for_phase(again, "Succeeded")
    assert admin.phase(upgraded.before) == "Succeeded"
    wait_for("the deny-all policy", lambda: admin.exists("networkpolicy", "codeexec-deny-all", SANDBOX))
