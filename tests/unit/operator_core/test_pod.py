"""The sandbox pod: the whole of it against a golden file, and each line of the hardening by itself."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from factories import IMAGE, SESSION_UID, TARGET, a_session, an_execution

from codeexec_api import PodRequests
from codeexec_api.names import MANAGED_BY, MANAGED_BY_LABEL, SESSION_LABEL
from codeexec_operator.manifests.hardening import OWN_UIDS
from codeexec_operator.manifests.pod import build_pod

GOLDEN = Path(__file__).parents[1] / "golden" / "pod.yaml"


def a_manifest(*, user_namespace: bool = True, runtime_class_name: str | None = None, **spec: Any) -> dict[str, Any]:
    return build_pod(
        an_execution(**spec),
        image=IMAGE,
        deadline_seconds=130,
        runtime_class_name=runtime_class_name,
        user_namespace=user_namespace,
        egress_targets=[TARGET.dump()],
    )


def at(manifest: Any, path: str) -> Any:
    for part in path.split("."):
        manifest = manifest[int(part)] if part.isdigit() else manifest[part]
    return manifest


def test_the_whole_pod() -> None:
    assert a_manifest() == yaml.safe_load(GOLDEN.read_text())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("securityContext.runAsNonRoot", True),
        ("securityContext.runAsUser", 65532),
        ("securityContext.runAsGroup", 65532),
        ("securityContext.seccompProfile.type", "RuntimeDefault"),
        ("containers.0.securityContext.privileged", False),
        ("containers.0.securityContext.allowPrivilegeEscalation", False),
        ("containers.0.securityContext.readOnlyRootFilesystem", True),
        ("containers.0.securityContext.runAsNonRoot", True),
        ("containers.0.securityContext.capabilities", {"drop": ["ALL"]}),
        ("automountServiceAccountToken", False),
        ("enableServiceLinks", False),
        ("hostNetwork", False),
        ("hostPID", False),
        ("hostIPC", False),
        ("shareProcessNamespace", False),
        ("restartPolicy", "Never"),
        ("terminationGracePeriodSeconds", 0),
        ("dnsPolicy", "None"),
        ("activeDeadlineSeconds", 130),
        ("containers.0.stdin", True),
        ("hostUsers", False),
        ("containers.0.image", IMAGE),
    ],
)
def test_hardening(path: str, value: Any) -> None:
    assert at(a_manifest()["spec"], path) == value


def test_nothing_of_the_caller_or_the_host_gets_in() -> None:
    spec = a_manifest()["spec"]
    [container] = spec["containers"]
    assert [one["name"] for one in container["env"]] == ["CODEEXEC_EGRESS_TARGETS"]
    assert not {"args", "envFrom", "ports", "command", "lifecycle"} & set(container)
    assert not {"initContainers", "serviceAccountName", "hostAliases", "nodeName"} & set(spec)
    assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])


def test_the_only_writable_folders_are_bounded_and_in_memory() -> None:
    spec = a_manifest(limits={"memory": "1Gi"})["spec"]
    sizes = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"]}
    assert sizes == {
        "workspace": {"medium": "Memory", "sizeLimit": str(2**29)},
        "tmp": {"medium": "Memory", "sizeLimit": str(2**28)},
    }
    mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts == {"/workspace": "workspace", "/tmp": "tmp"}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({}, {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "16Mi"}),
        ({"cpu": "0.1"}, {"cpu": "0.1", "memory": "64Mi", "ephemeral-storage": "16Mi"}),
        ({"memory": "2Gi", "cpu": 4}, {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "16Mi"}),
    ],
    ids=["default", "of the policy", "at most the limits"],
)
def test_requests_are_those_of_the_policy_and_never_above_the_limits(requests: Any, expected: Any) -> None:
    limits = {"cpu": "2", "memory": "1Gi", "ephemeralStorage": "2Gi"}
    pod = build_pod(
        an_execution(limits=limits), image=IMAGE, deadline_seconds=130, requests=PodRequests.model_validate(requests)
    )
    highest = {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "2Gi"}
    assert pod["spec"]["containers"][0]["resources"] == {"requests": expected, "limits": highest}


def test_a_pod_with_a_low_limit_requests_its_limit() -> None:
    [container] = a_manifest(limits={"cpu": "10m", "memory": "32Mi", "ephemeralStorage": "1Mi"})["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_without_a_user_namespace_the_pod_has_a_user_of_its_own() -> None:
    spec = a_manifest(user_namespace=False)["spec"]
    assert "hostUsers" not in spec
    assert spec["securityContext"]["runAsUser"] in OWN_UIDS
    assert spec["securityContext"]["runAsGroup"] == spec["securityContext"]["fsGroup"] == 65532


def test_a_runtime_class_is_that_of_the_pod() -> None:
    assert "runtimeClassName" not in a_manifest()["spec"]
    assert a_manifest(runtime_class_name="gvisor")["spec"]["runtimeClassName"] == "gvisor"


def test_the_record_owns_the_pod() -> None:
    execution = an_execution()
    [owner] = a_manifest()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("CodeExecution", "run-1", execution.metadata.uid)
    assert owner["controller"] is True


def test_the_pod_of_a_session_differs_in_its_owner_only() -> None:
    limits = {"cpu": "2", "memory": "1Gi", "ephemeralStorage": "2Gi"}
    pod = build_pod(a_session(limits=limits), image=IMAGE, deadline_seconds=130, egress_targets=[TARGET.dump()])
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("CodeSession", "work-1", SESSION_UID)
    assert owner["controller"] is True
    assert pod["metadata"]["labels"] == {MANAGED_BY_LABEL: MANAGED_BY, SESSION_LABEL: "work-1"}
    alone = a_manifest(user_namespace=False, limits=limits)["spec"]
    user = pod["spec"]["securityContext"].pop("runAsUser")
    assert user != alone["securityContext"].pop("runAsUser")
    assert user in OWN_UIDS
    assert pod["spec"] == alone


def test_pods_share_nothing_that_could_be_changed() -> None:
    changed = a_manifest()
    changed["spec"]["securityContext"]["seccompProfile"]["type"] = "Unconfined"
    changed["spec"]["containers"][0]["securityContext"]["capabilities"]["drop"].clear()
    changed["spec"]["dnsConfig"]["nameservers"].append("8.8.8.8")
    assert a_manifest() == yaml.safe_load(GOLDEN.read_text())
