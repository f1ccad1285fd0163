"""What the chart installs is as locked down as the chart says."""

from pathlib import Path
from typing import Any

import pytest
from chart.helm import CHART, CI_VALUES, pick, render
from chart.rights import AGENT, APPROVER, OPERATOR, OPERATOR_EVERYWHERE, VIEWER, VIEWER_EVERYWHERE, Rights, cells

FULL_VALUES = CHART / "ci" / "full-values.yaml"


def _rights(role: dict[str, Any]) -> Rights:
    rights: Rights = {}
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                rights.setdefault((group, resource), set()).update(rule["verbs"])
    return rights


def test_the_operator_has_these_rights_and_no_other() -> None:
    objects = render()
    bound = {
        (one["metadata"].get("namespace"), one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in objects
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and any(subject["name"] == "codeexec-operator" for subject in one["subjects"])
    }
    assert bound == {
        ("codeexec-sandbox", "Role", "codeexec-operator"),
        (None, "ClusterRole", "codeexec-operator"),
    }
    assert _rights(pick(objects, "Role", "codeexec-operator")) == OPERATOR
    assert _rights(pick(objects, "ClusterRole", "codeexec-operator")) == OPERATOR_EVERYWHERE


@pytest.mark.parametrize(("role", "rights"), [("agent", AGENT), ("approver", APPROVER), ("viewer", VIEWER)])
def test_a_user_role_has_these_rights_and_no_other(role: str, rights: Rights) -> None:
    assert _rights(pick(render(), "Role", f"codeexec-{role}")) == rights


def test_the_built_in_role_view_gets_nothing_that_is_not_ours() -> None:
    """Kubernetes adds the rights to "view" in every namespace of the cluster."""
    role = pick(render(), "ClusterRole", "codeexec-viewer")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert _rights(role) == VIEWER_EVERYWHERE
    assert {group for group, _, _ in cells(VIEWER_EVERYWHERE)} == {"codeexec.dev"}
    assert cells(VIEWER_EVERYWHERE) <= cells(VIEWER)


def test_nobody_but_the_operator_writes_output() -> None:
    """Who could make or change a ConfigMap in a sandbox namespace could forge what code has given out."""
    writers = {
        one["metadata"]["name"]
        for one in render(values=FULL_VALUES)
        if one["kind"] in ("Role", "ClusterRole")
        and cells(_rights(one)) & {("", "configmaps", verb) for verb in ("create", "update", "patch", "delete")}
    }
    assert writers == {"sandboxes-operator"}


def test_nobody_is_an_approver_or_a_viewer_unless_the_values_say_so() -> None:
    bound = {one["roleRef"]["name"] for one in render() if one["kind"] == "RoleBinding"}
    assert {"codeexec-approver", "codeexec-viewer"}.isdisjoint(bound)
    bound = {one["roleRef"]["name"] for one in render(values=FULL_VALUES) if one["kind"] == "RoleBinding"}
    assert {"codeexec-approver", "codeexec-viewer"} <= bound


def _pod_specs(values: Path) -> list[dict[str, Any]]:
    objects = render(values=values)
    deployments = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    return deployments + [one["spec"] for one in objects if one["kind"] == "Pod"]


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_pod_satisfies_the_restricted_profile(values: Path) -> None:
    pods = _pod_specs(values)
    assert len(pods) == 2, "the operator, and the pod of `helm test`"
    for pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(set(volume) <= {"name", "configMap", "emptyDir"} for volume in pod["volumes"])
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in container.get("ports", []))


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_image_is_named_by_digest(values: Path) -> None:
    images = [container["image"] for pod in _pod_specs(values) for container in pod["containers"]]
    assert all("@sha256:" in image for image in images)


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_sandbox_namespace_is_closed(values: Path) -> None:
    objects = render(values=values)
    sandboxes = {one["metadata"]["namespace"] for one in objects if one["kind"] == "Role"}
    for kind in ("NetworkPolicy", "LimitRange", "ResourceQuota"):
        assert sandboxes <= {one["metadata"]["namespace"] for one in objects if one["kind"] == kind}
    denials = [one["spec"] for one in objects if one["metadata"]["name"] == "codeexec-deny-all"]
    assert denials == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}] * len(sandboxes)


def test_a_new_policy_restarts_the_operator() -> None:
    def checksum(*arguments: str) -> str:
        template = pick(render(*arguments), "Deployment", "codeexec-operator")["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/policy"]

    assert checksum() != checksum("--set", "policy.maxBlocks=31")
    assert checksum() == checksum("--set", "operator.logLevel=DEBUG")
