"""R-15: there is nothing to ask for a volume of the host with."""

import json

import pytest
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from cluster_tools import SANDBOX, Admin, a_name, an_execution, image

from executor_client import KubernetesCodeExecutor

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-15")]

CREATE = ["create", "--dry-run=server", "-f", "-"]


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
        admin.kubectl(*CREATE, stdin=json.dumps(elsewhere)),
    )
    here = json.dumps(a_pod_with_a_folder_of_the_host(SANDBOX))
    assert "hostPath" in admin.try_kubectl(*CREATE, stdin=here).stderr
    assert 'cannot create resource "pods"' in Admin(agent_kubeconfig).try_kubectl(*CREATE, stdin=here).stderr


def test_nothing_asks_for_a_volume(control, admin, tmp_path):
    """Neither an execution nor the executor has a parameter for a volume."""
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    good = an_execution(a_name("mounts"), [block])
    control.succeeded(
        "the same execution without a volume was accepted", admin.kubectl(*CREATE, stdin=json.dumps(good))
    )
    for field in ("mounts", "volumes", "hostPath"):
        bad = good | {"spec": good["spec"] | {field: [{"hostPath": "/etc"}]}}
        assert f'unknown field "spec.{field}"' in admin.try_kubectl(*CREATE, stdin=json.dumps(bad)).stderr
    volumes = {"/etc": {"bind": "/host", "mode": "rw"}}
    control.succeeded(
        "AutoGen's Docker executor took a folder of the host as a parameter",
        DockerCommandLineCodeExecutor(work_dir=tmp_path, extra_volumes=volumes),
    )
    with pytest.raises(TypeError, match="extra_volumes"):
        KubernetesCodeExecutor(extra_volumes=volumes)
