"""What the chart installs is as locked down as the chart says."""

from pathlib import Path
from typing import Any

import pytest
from chart.helm import CHART, CI_VALUES, pick, render
from chart.rights import (
    AGENT,
    APPROVER,
    CHECKPOINTS_AT_HOME,
    EXPORT,
    EXPORT_BY_NAME,
    OPERATOR,
    OPERATOR_AT_HOME,
    OPERATOR_AT_HOME_BY_NAME,
    OPERATOR_BY_NAME,
    OPERATOR_EVERYWHERE,
    OPERATOR_IN_DEFAULT,
    OPERATOR_THAT_DELETES,
    OPERATOR_THAT_DELETES_BY_NAME,
    VIEWER,
    VIEWER_EVERYWHERE,
    NamedRights,
    Rights,
    cells,
)

from codeexec_api.names import EXPORT_CURSOR, SEALING_KEY

FULL_VALUES = CHART / "ci" / "full-values.yaml"
WITH_JOBS = [FULL_VALUES, CHART / "ci" / "strict-values.yaml"]
"""With the jobs that sign checkpoints and export records."""
SYSTEM = "codeexec-system"


def _both(role: dict[str, Any]) -> tuple[Rights, NamedRights]:
    """The rights to all objects of a kind, and those to single ones."""
    rights: Rights = {}
    by_name: NamedRights = {}
    for rule in role["rules"]:
        assert set(rule) - {"resourceNames"} == {"apiGroups", "resources", "verbs"}
        assert rule.get("resourceNames") != [], "no name stands for every name"
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                if "resourceNames" not in rule:
                    rights.setdefault((group, resource), set()).update(rule["verbs"])
                for name in rule.get("resourceNames", ()):
                    by_name.setdefault((group, resource, name), set()).update(rule["verbs"])
    return rights, by_name


def _rights(role: dict[str, Any]) -> Rights:
    rights, by_name = _both(role)
    assert by_name == {}
    return rights


def test_rights_go_to_accounts_of_the_release_only() -> None:
    """What a group or every account may do would not show in `reviews.rules_of`."""
    bindings = [one for one in render() if one["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    subjects = [subject for one in bindings for subject in one["subjects"]]
    assert {one["kind"] for one in subjects} == {"ServiceAccount"}
    assert all(one["name"].startswith("codeexec-") for one in subjects), subjects


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
        (SYSTEM, "Role", "codeexec-operator"),
        ("default", "Role", "codeexec-operator-api-addresses"),
        (None, "ClusterRole", "codeexec-operator"),
    }
    in_sandboxes = pick(objects, "Role", "codeexec-operator", namespace="codeexec-sandbox")
    at_home = pick(objects, "Role", "codeexec-operator", namespace=SYSTEM)
    assert _both(in_sandboxes) == (OPERATOR, OPERATOR_BY_NAME)
    assert _both(at_home) == (OPERATOR_AT_HOME, OPERATOR_AT_HOME_BY_NAME)
    in_default = pick(objects, "Role", "codeexec-operator-api-addresses", namespace="default")
    assert _both(in_default) == (OPERATOR_IN_DEFAULT, {})
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
    """Who could make or change a ConfigMap in a sandbox namespace could forge what code has given out.

    The job that exports records changes one that holds none.
    """
    writers = {
        one["metadata"]["name"]
        for one in render(values=FULL_VALUES)
        if one["kind"] in ("Role", "ClusterRole")
        and _verbs(one, "configmaps") & {"create", "update", "patch", "delete", "deletecollection", "*"}
    }
    assert writers == {"sandboxes-operator", "sandboxes-export"}


def _verbs(role: dict[str, Any], resource: str) -> set[str]:
    """All that may be done with objects of the core API, were it with one only."""
    rights, by_name = _both(role)
    verbs = [every for (group, kind), every in rights.items() if (group, kind) == ("", resource)]
    return set().union(*verbs, *(some for (group, kind, _), some in by_name.items() if (group, kind) == ("", resource)))


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_nobody_but_the_operator_reaches_the_sealing_keys(values: Path) -> None:
    """Not even agents, approvers and viewers, of whom the full values name some."""
    objects = render(values=values)
    operator = pick(objects, "Deployment", _operator(objects))["spec"]["template"]["spec"]
    [named] = [one["value"] for one in operator["containers"][0]["env"] if one["name"] == "CODEEXEC_SEALING_SECRET"]
    namespace, name = named.split("/")
    roles = [
        one
        for one in objects
        if one["kind"] == "ClusterRole" or (one["kind"], one["metadata"].get("namespace")) == ("Role", namespace)
    ]
    [holder] = [one for one in roles if _verbs(one, "secrets")]
    rights, by_name = _both(holder)
    assert not [key for key in rights if "secrets" in key]
    assert {key: verbs for key, verbs in by_name.items() if "secrets" in key} == {
        ("", "secrets", name): {"get", "patch"}
    }
    [binding] = [
        one
        for one in objects
        if (one["kind"], one["metadata"].get("namespace")) == ("RoleBinding", namespace)
        and one["roleRef"]["name"] == holder["metadata"]["name"]
    ]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": holder["metadata"]["name"],
    }
    account = {"kind": "ServiceAccount", "name": operator["serviceAccountName"], "namespace": namespace}
    assert binding["subjects"] == [account]


def _operator(objects: list[dict[str, Any]]) -> str:
    """The first shard; the others differ in their number."""
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "Deployment"]
    assert names[1:] == [f"{names[0]}-{index}" for index in range(1, len(names))]
    return str(names[0])


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_the_sealing_keys_are_nowhere_in_the_chart(values: Path) -> None:
    """And an upgrade doesn't touch what the operator has written there."""
    objects = render(values=values)
    [secret] = [one for one in objects if one["kind"] == "Secret"]
    assert (secret["metadata"]["namespace"], secret["type"]) == (SYSTEM, "Opaque")
    assert set(secret) == {"apiVersion", "kind", "metadata", "type"}
    published = [one for one in objects if one["metadata"]["name"] == SEALING_KEY]
    assert {one["kind"] for one in published} == {"ConfigMap"}
    assert {one["metadata"]["namespace"] for one in published} == _sandboxes(objects)
    assert all(set(one) == {"apiVersion", "kind", "metadata"} for one in published)


def _sandboxes(objects: list[dict[str, Any]]) -> set[str]:
    namespaces = {one["metadata"]["namespace"] for one in objects if one["kind"] == "Role"} - {SYSTEM, "default"}
    assert namespaces
    return namespaces


def test_nobody_is_an_approver_or_a_viewer_unless_the_values_say_so() -> None:
    bound = {one["roleRef"]["name"] for one in render() if one["kind"] == "RoleBinding"}
    assert {"codeexec-approver", "codeexec-viewer"}.isdisjoint(bound)
    bound = {one["roleRef"]["name"] for one in render(values=FULL_VALUES) if one["kind"] == "RoleBinding"}
    assert {"codeexec-approver", "codeexec-viewer"} <= bound


def _job(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The pod of a CronJob."""
    jobs = [one for one in objects if one["kind"] == "CronJob" and one["metadata"]["name"].endswith(f"-{name}")]
    [spec] = [one["spec"]["jobTemplate"]["spec"]["template"]["spec"] for one in jobs]
    return dict(spec)


def _roles_of(objects: list[dict[str, Any]], account: str) -> dict[str, dict[str, Any]]:
    """The Role of an account by its namespace."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
    bound = [one for one in objects if one["kind"].endswith("RoleBinding") and subject in one["subjects"]]
    assert {one["roleRef"]["kind"] for one in bound} == {"Role"}
    namespaces = [one["metadata"]["namespace"] for one in bound]
    return {where: pick(objects, "Role", account, namespace=where) for where in namespaces}


@pytest.mark.parametrize("values", WITH_JOBS, ids=lambda path: path.stem)
def test_the_job_for_checkpoints_reads_the_operators_log_and_nothing_else(values: Path) -> None:
    """And nobody, not even the operator, has a right to its key."""
    objects = render(values=values)
    job = _job(objects, "checkpoints")
    [(namespace, role)] = _roles_of(objects, job["serviceAccountName"]).items()
    assert (namespace, _rights(role)) == (SYSTEM, CHECKPOINTS_AT_HOME)
    [key] = [one["secret"]["secretName"] for one in job["volumes"] if "secret" in one]
    roles = [one for one in objects if one["kind"] == "ClusterRole" or one["metadata"].get("namespace") == SYSTEM]
    rights = [_both(one) for one in roles if one["kind"] in ("Role", "ClusterRole")]
    assert not any(kind == "secrets" for everything, _ in rights for _, kind in everything)
    assert not any((kind, name) == ("secrets", key) for _, by_name in rights for _, kind, name in by_name)


@pytest.mark.parametrize("values", WITH_JOBS, ids=lambda path: path.stem)
def test_the_job_for_exports_reads_records_and_writes_how_far_it_got(values: Path) -> None:
    objects = render(values=values)
    job = _job(objects, "export")
    roles = _roles_of(objects, job["serviceAccountName"])
    assert _rights(roles.pop(SYSTEM)) == CHECKPOINTS_AT_HOME
    assert roles.keys() == _sandboxes(objects)
    assert all(_both(role) == (EXPORT, EXPORT_BY_NAME) for role in roles.values())
    assert not any("secret" in one for one in job["volumes"])
    arguments = job["containers"][0]["args"]
    assert {arguments[at + 1] for at, one in enumerate(arguments) if one == "--namespace"} == set(roles)
    cursors = [one for one in objects if one["metadata"]["name"] == EXPORT_CURSOR and one["kind"] == "ConfigMap"]
    assert {one["metadata"]["namespace"] for one in cursors} == set(roles)
    assert all(set(one) == {"apiVersion", "kind", "metadata"} for one in cursors), "an upgrade keeps what it says"


@pytest.mark.parametrize(
    "setting", ["operator.deleteRecords=true", "policy.records.maxAgeSeconds=600", "policy.records.maxCount=5"]
)
def test_the_operator_may_delete_records_if_the_values_limit_them(setting: str) -> None:
    role = pick(render("--set", setting), "Role", "codeexec-operator", namespace="codeexec-sandbox")
    assert _both(role) == (OPERATOR_THAT_DELETES, OPERATOR_THAT_DELETES_BY_NAME)
    role = pick(
        render("--set", "policy.records.requireExport=true"), "Role", "codeexec-operator", namespace="codeexec-sandbox"
    )
    assert _both(role) == (OPERATOR, OPERATOR_BY_NAME)


def _pod_specs(values: Path) -> list[dict[str, Any]]:
    objects = render(values=values)
    templates = [one["spec"] for one in objects if one["kind"] == "Deployment"]
    templates += [one["spec"]["jobTemplate"]["spec"] for one in objects if one["kind"] == "CronJob"]
    return [one["template"]["spec"] for one in templates] + [one["spec"] for one in objects if one["kind"] == "Pod"]


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_pod_satisfies_the_restricted_profile(values: Path) -> None:
    pods = _pod_specs(values)
    shards = 3 if values == FULL_VALUES else 1
    expected = shards + 1 + 2 * (values in WITH_JOBS)
    assert len(pods) == expected, "the operator's, the pod of `helm test`, and the two jobs"
    for pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        ours = {"name", "configMap", "emptyDir", "secret", "persistentVolumeClaim"}
        assert all(set(volume) <= ours for volume in pod["volumes"])
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
    sandboxes = _sandboxes(objects)
    for kind in ("NetworkPolicy", "LimitRange", "ResourceQuota"):
        assert sandboxes <= {one["metadata"]["namespace"] for one in objects if one["kind"] == kind}
    denials = [one["spec"] for one in objects if one["metadata"]["name"] == "codeexec-deny-all"]
    assert denials == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}] * len(sandboxes)


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_admission_knows_the_operator_by_its_account(values: Path) -> None:
    """It is the only one that may have something mounted, and the one whose ways out are bounded."""
    objects = render(values=values)
    operator = pick(objects, "Deployment", _operator(objects))
    name = operator["spec"]["template"]["spec"]["serviceAccountName"]
    account = f"'system:serviceaccount:{operator['metadata']['namespace']}:{name}'"
    policies = {
        one["metadata"]["name"].rpartition("-")[2]: one["spec"]
        for one in objects
        if one["kind"] == "ValidatingAdmissionPolicy"
    }
    assert [one["expression"] for one in policies["egress"]["matchConditions"]] == [
        f"request.userInfo.username == {account}"
    ]
    [volumes] = [
        one
        for one in policies["pods"]["validations"]
        if "mount-" in one["expression"] and "emptyDir" in one["expression"]
    ]
    assert f"request.userInfo.username == {account}" in volumes["expression"]


def test_who_may_open_the_network() -> None:
    """Nobody but the operator makes a NetworkPolicy or deletes one, and nobody changes one."""
    verbs = {
        one["metadata"]["name"]: verbs
        for one in render(values=FULL_VALUES)
        if one["kind"] in ("Role", "ClusterRole")
        for (group, kind), verbs in _both(one)[0].items()
        if kind in ("networkpolicies", "*")
    }
    assert verbs == {"sandboxes-operator": {"list", "create", "delete"}}


@pytest.mark.parametrize(
    "change", ["policy.maxBlocks=31", "defaultPool.enabled=false", "defaultPool.replicas=3", "sandbox.namespaces={a,b}"]
)
def test_what_the_operator_takes_over_while_it_runs_does_not_restart_it(change: str) -> None:
    def template(*arguments: str) -> dict[str, Any]:
        spec: dict[str, Any] = pick(render(*arguments), "Deployment", "codeexec-operator")["spec"]["template"]
        return spec

    assert template() == template("--set", change)
    assert template() != template("--set", "operator.logLevel=DEBUG")


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_no_policy_selects_what_is_deleted_by_name(values: Path) -> None:
    """`deletecollection` reaches admission without a name, and a policy with `resourceNames` does not match it."""
    rules = [
        rule
        for one in render(values=values)
        if one["kind"] == "ValidatingAdmissionPolicy"
        for rule in one["spec"]["matchConstraints"]["resourceRules"]
    ]
    assert any("DELETE" in rule["operations"] for rule in rules)
    assert [rule for rule in rules if "DELETE" in rule["operations"] and "resourceNames" in rule] == []


def test_each_admission_policy_fails_closed_holds_in_the_sandboxes_and_outlives_the_release() -> None:
    objects = render("--set", "sandbox.namespaces={team-red,team-blue}")
    keep = {"helm.sh/resource-policy": "keep"}
    policies, bindings = (
        {one["metadata"]["name"]: one for one in objects if one["kind"] == f"ValidatingAdmissionPolicy{kind}"}
        for kind in ("", "Binding")
    )
    assert policies
    assert policies.keys() == bindings.keys()
    for name, policy in policies.items():
        where = ["team-red", "team-blue", *([SYSTEM] if name == "codeexec-sealing" else [])]
        named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": where}
        assert policy["spec"]["failurePolicy"] == "Fail", name
        assert bindings[name]["spec"] == {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchExpressions": [named]}},
        }
        assert policy["metadata"]["annotations"] == bindings[name]["metadata"]["annotations"] == keep
