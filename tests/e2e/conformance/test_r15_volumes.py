"""R-15: there is nothing to ask for a volume of the host with; what else is mounted was granted, and is only read."""

import json

import pytest
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from cluster_tools import SANDBOX, Admin, a_name, a_policy, an_execution, image

from executor_client import KubernetesCodeExecutor

pytestmark = pytest.mark.remit("R-15")


def a_pod_with_a_folder_of_the_host(namespace):
    """In all else as strict as Pod Security asks for."""
    container = {
        "name": "main",
        "image": image(),
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": a_name("mounts"), "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "host", "hostPath": {"path": "/etc"}}],
        },
    }


def test_a_pod_that_mounts_the_host_is_refused(control, admin, agent_kubeconfig, unprotected_pod):
    """The API server refuses pods that mount a folder of the host, even of an administrator; agents create no pod."""
    elsewhere = a_pod_with_a_folder_of_the_host(unprotected_pod.namespace)
    control.succeeded(
        "the same pod was accepted in a namespace that nothing protects",
        admin.create(elsewhere, dry_run=True),
    )
    here = a_pod_with_a_folder_of_the_host(SANDBOX)
    assert "hostPath" in admin.try_create(here, dry_run=True).message
    assert 'cannot create resource "pods"' in Admin(agent_kubeconfig).try_create(here, dry_run=True).message


def test_nothing_asks_for_a_volume_of_the_host(control, admin, tmp_path):
    """Neither an execution nor the executor nor a policy has a parameter for a volume of the host."""
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    good = an_execution(a_name("mounts"), [block])
    control.succeeded("the same execution without a volume was accepted", admin.create(good, dry_run=True))
    mount = {"name": "one", "mountPath": "/mnt/one", "hostPath": {"path": "/etc"}}
    for field, found in (
        ({"mounts": [mount]}, "spec.mounts[0].hostPath"),
        ({"volumes": [{"hostPath": "/etc"}]}, "spec.volumes"),
        ({"hostPath": "/etc"}, "spec.hostPath"),
    ):
        bad = good | {"spec": good["spec"] | field}
        assert f'unknown field "{found}"' in admin.try_create(bad, dry_run=True).message
    policy = a_policy(mounts=[{"hostPath": {"path": "/etc"}}])
    assert 'unknown field "spec.mounts[0].hostPath"' in admin.try_create(policy, dry_run=True).message
    volumes = {"/etc": {"bind": "/host", "mode": "rw"}}
    control.succeeded(
        "AutoGen's Docker executor took a folder of the host as a parameter",
        DockerCommandLineCodeExecutor(work_dir=tmp_path, extra_volumes=volumes),
    )
    with pytest.raises(TypeError, match="extra_volumes"):
        KubernetesCodeExecutor(extra_volumes=volumes)


READ_AND_WRITE = """
import json
def attempt(action):
    try:
        return action()
    except OSError as error:
        return type(error).__name__
path = ROOT + "/words.txt"
print(json.dumps([attempt(lambda: open(path).read()), attempt(lambda: open(path, "a").write("more"))]))
"""


async def test_what_is_granted_can_be_read_and_not_written(control, admin, sandbox, policy, make_control_pod):
    """A ConfigMap that the policy names is mounted to be read; one that it does not name is not mounted at all."""
    name = a_name("settings")
    meta = {"name": name, "namespace": SANDBOX}
    admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"words.txt": "granted"}})
    try:
        policy(mounts=[{"configMap": {"name": name}}])
        mount = f"configmap:{name}:/mnt/settings"
        result = await sandbox.run(f"ROOT = '/mnt/settings'{READ_AND_WRITE}", mounts=[mount])
        assert json.loads(result.stdout)[0] == "granted"
        assert json.loads(result.stdout)[1] in ("OSError", "PermissionError")
        denied = await sandbox.run("print(1)", mounts=["configmap:codeexec-sealing-key:/mnt/key"])
        assert denied.reason == "PolicyViolation"
    finally:
        admin.delete("configmap", name)
    writer = make_control_pod(
        a_name("writer"),
        {
            "command": ["sleep", "infinity"],
            "securityContext": {"runAsUser": 0},
            "volumeMounts": [{"name": "one", "mountPath": "/mnt/one"}],
        },
        volumes=[{"name": "one", "emptyDir": {}}],
    )
    writer("open('/mnt/one/words.txt', 'w').write('granted')")
    there = json.loads(writer(f"ROOT = '/mnt/one'{READ_AND_WRITE}"))
    control.succeeded(
        "a volume that is mounted as Kubernetes does by default can be written to", there == ["granted", 4]
    )
