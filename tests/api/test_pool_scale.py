"""The scale subresource of a SandboxPool, by which `kubectl scale` and autoscalers set `spec.replicas`."""

import json

from cluster_tools import SANDBOX, Admin, a_name


def test_a_pool_is_scaled_by_its_subresource(admin: Admin):
    name = a_name("scaled")
    metadata = {"name": name, "namespace": SANDBOX}
    pool = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "SandboxPool", "metadata": metadata, "spec": {"replicas": 1}}
    admin.create(pool)
    admin.kubectl("scale", "--namespace", SANDBOX, "sandboxpool", name, "--replicas=3")
    path = f"/apis/codeexec.dev/v1alpha1/namespaces/{SANDBOX}/sandboxpools/{name}"
    assert json.loads(admin.kubectl("get", "--raw", path))["spec"]["replicas"] == 3
    assert json.loads(admin.kubectl("get", "--raw", f"{path}/scale"))["spec"]["replicas"] == 3
