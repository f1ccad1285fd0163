"""The chart's own pods pass the Pod Security Standard "restricted", as the API server enforces it.

tests/unit/chart/test_security.py looks at the fields of the same pods, with all values files.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_tools import SYSTEM, Admin, a_name
from kube import Refusal

WEAK = {"containers": [{"name": "main", "image": "none"}]}


@pytest.fixture(scope="module")
def refusal_of(admin: Admin) -> Iterator[Callable[[dict[str, Any]], Refusal | None]]:
    """Tries a pod in a namespace that takes none but restricted ones."""
    namespace = a_name("strict")
    # Created with its label: admission reads a namespace that its cache doesn't have, but not one that has changed.
    admin.create_namespace(namespace, **{"pod-security.kubernetes.io/enforce": "restricted"})

    def attempt(spec: dict[str, Any]) -> Refusal | None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copy", "namespace": namespace}, "spec": spec}
        return admin.try_create(pod, dry_run=True)

    yield attempt
    admin.delete("namespace", namespace)


def pod_spec(admin: Admin, kind: str, name: str) -> dict[str, Any]:
    """What the API server has stored of the chart's pod, without its account, which is in another namespace."""
    spec = admin.get(kind, name, SYSTEM)["spec"]
    template = (spec["jobTemplate"]["spec"] if kind == "cronjob" else spec)["template"]["spec"]
    return {key: value for key, value in template.items() if key not in ("serviceAccount", "serviceAccountName")}


@pytest.mark.suspect
@pytest.mark.parametrize(
    ("kind", "name"),
    [("deployment", "codeexec-operator"), ("cronjob", "codeexec-checkpoints"), ("cronjob", "codeexec-export")],
)
def test_the_charts_pods_pass_the_restricted_standard(admin, refusal_of, kind: str, name: str) -> None:
    refusal = refusal_of(WEAK)
    assert refusal is not None, "control"
    assert 'violates PodSecurity "restricted' in refusal.message
    refusal = refusal_of(pod_spec(admin, kind, name))
    assert refusal is None, refusal
