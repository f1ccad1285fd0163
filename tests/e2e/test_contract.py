"""What the API server accepts and refuses, and what it says."""

import copy
import json

import pytest
from cluster_tools import ROOT, SANDBOX, a_name, an_execution

pytestmark = pytest.mark.e2e

DIGEST = "0" * 64
BLOCK = {"language": "python", "sha256": DIGEST, "sizeBytes": 1}


@pytest.mark.parametrize("path", sorted((ROOT / "crds" / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_example_is_accepted(admin, path):
    admin.kubectl("create", "--dry-run=server", "-f", str(path))


def _set(path: str, value):
    def change(execution):
        *parents, last = path.split(".")
        node = execution
        for key in parents:
            node = node[int(key)] if key.isdigit() else node[key]
        if value is None:
            del node[last]
        else:
            node[last] = value

    return change


BAD = {
    "no spec": (_set("spec", None), "spec: Required value"),
    "no blocks": (_set("spec.blocks", []), "spec.blocks"),
    "too many blocks": (_set("spec.blocks", [BLOCK] * 65), "spec.blocks: Too many: 65: must have at most 64 items"),
    "blocks that are no list": (_set("spec.blocks", "print(1)"), "spec.blocks"),
    "unknown language": (_set("spec.blocks.0.language", "perl"), "spec.blocks[0].language"),
    "language in another case": (_set("spec.blocks.0.language", "Python"), "spec.blocks[0].language"),
    "no language": (_set("spec.blocks.0.language", None), "spec.blocks[0].language"),
    "digest too short": (_set("spec.blocks.0.sha256", "abc"), "spec.blocks[0].sha256"),
    "digest in capitals": (_set("spec.blocks.0.sha256", "A" * 64), "spec.blocks[0].sha256"),
    "negative size": (_set("spec.blocks.0.sizeBytes", -1), "spec.blocks[0].sizeBytes"),
    "blocks too large together": (
        _set("spec.blocks", [{**BLOCK, "sizeBytes": 600_000}] * 2),
        "spec.blocks: Invalid value",
    ),
    "absolute file name": (_set("spec.blocks.0.filename", "/etc/passwd"), "spec.blocks[0].filename"),
    "file name that climbs": (_set("spec.blocks.0.filename", "a/../../b"), "spec.blocks[0].filename"),
    "file name with a control character": (_set("spec.blocks.0.filename", "a\nb"), "spec.blocks[0].filename"),
    "file outside the workspace": (
        _set("spec.files", [{"path": "../x", "sha256": DIGEST, "sizeBytes": 1}]),
        "spec.files[0].path",
    ),
    "no payload": (_set("spec.payloadRef", None), "spec.payloadRef: Required value"),
    "payload with a bad name": (_set("spec.payloadRef.name", "No Name"), "spec.payloadRef.name"),
    "no source": (_set("spec.source", None), "spec.source: Required value"),
    "empty agent": (_set("spec.source.agent", ""), "spec.source.agent"),
    "timeout of zero": (_set("spec.timeoutSeconds", 0), "spec.timeoutSeconds"),
    "timeout of two days": (_set("spec.timeoutSeconds", 172_800), "spec.timeoutSeconds"),
    "timeout that is text": (_set("spec.timeoutSeconds", "60"), "spec.timeoutSeconds"),
    "image by tag": (_set("spec.image", "python:3"), "spec.image"),
    "no CPU": (_set("spec.limits", {"cpu": "0"}), "spec.limits.cpu"),
    "CPU without end": (_set("spec.limits", {"cpu": 10**18}), "spec.limits.cpu"),
    "memory that is no quantity": (_set("spec.limits", {"memory": "much"}), "spec.limits.memory"),
    "negative storage": (_set("spec.limits", {"ephemeralStorage": "-1Gi"}), "spec.limits.ephemeralStorage"),
    "too much output": (_set("spec.limits", {"outputBytes": 1 << 30}), "spec.limits.outputBytes"),
    "trace context that is none": (_set("spec.traceparent", "00-xyz"), "spec.traceparent"),
    "negative time to live": (_set("spec.ttlSecondsAfterFinished", -1), "spec.ttlSecondsAfterFinished"),
    "name that is too long for a pod": (_set("metadata.name", "n" * 60), "metadata.name"),
    "name with a dot": (_set("metadata.name", "a.b"), "metadata.name"),
    "unknown field": (_set("spec.privileged", True), 'unknown field "spec.privileged"'),
}


@pytest.mark.parametrize(("change", "field"), BAD.values(), ids=BAD)
def test_bad_execution_is_refused(admin, change, field):
    execution = an_execution("bad", [copy.deepcopy(BLOCK)])
    change(execution)
    done = admin.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(execution))
    assert done.returncode != 0
    assert field in done.stderr


BAD_POLICIES = {
    "another name": ({"metadata": {"name": "mine"}}, "metadata.name"),
    "no images": ({"spec": {"images": []}}, "spec.images"),
    "image by tag": ({"spec": {"images": ["python:3"]}}, "spec.images[0]"),
    "unknown language": ({"spec": {"languages": ["perl"]}}, "spec.languages[0]"),
    "timeout of zero": ({"spec": {"maxTimeoutSeconds": 0}}, "spec.maxTimeoutSeconds"),
}


@pytest.mark.parametrize(("change", "field"), BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_bad_policy_is_refused(admin, change, field):
    policy = {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "ExecutionPolicy",
        "metadata": {"name": "default", "namespace": SANDBOX} | change.get("metadata", {}),
        "spec": {"images": [f"x@sha256:{DIGEST}"]} | change.get("spec", {}),
    }
    done = admin.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(policy))
    assert done.returncode != 0
    assert field in done.stderr


@pytest.fixture(scope="module")
def finished(admin):
    name = a_name("frozen")
    admin.submit(name, "print(1)", ttlSecondsAfterFinished=0)
    admin.wait_for_phase(name, "Succeeded")
    return name


CHANGES = {
    "blocks": {"blocks": [{**BLOCK, "sha256": "1" * 64}]},
    "payloadRef": {"payloadRef": {"name": "other"}},
    "source": {"source": {"agent": "somebody-else"}},
    "timeoutSeconds": {"timeoutSeconds": 99},
    "limits": {"limits": {"cpu": "2"}},
    "image": {"image": f"x@sha256:{DIGEST}"},
    "files": {"files": [{"path": "x", "sha256": DIGEST, "sizeBytes": 1}]},
    "traceparent": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    "ttlSecondsAfterFinished": {"ttlSecondsAfterFinished": 5},
}


@pytest.mark.parametrize("field", CHANGES)
def test_spec_is_immutable(admin, finished, field):
    patch = json.dumps({"spec": CHANGES[field]})
    done = admin.try_kubectl("-n", SANDBOX, "patch", "codeexecution", finished, "--type=merge", "-p", patch)
    assert done.returncode != 0
    assert f"spec.{field} is immutable" in done.stderr


def test_cancellation_cannot_be_taken_back(admin, finished):
    def patch(value):
        body = json.dumps({"spec": {"cancelled": value}})
        return admin.try_kubectl("-n", SANDBOX, "patch", "codeexecution", finished, "--type=merge", "-p", body)

    assert patch(True).returncode == 0
    assert "spec.cancelled can't be taken back" in patch(False).stderr
    assert admin.phase(finished) == "Succeeded"


def test_names_that_kubectl_knows(admin):
    rows = admin.kubectl("api-resources", "--api-group=codeexec.dev", "--no-headers").splitlines()
    assert [row.split() for row in sorted(rows)] == [
        ["codeexecutions", "cex", "codeexec.dev/v1alpha1", "true", "CodeExecution"],
        ["executionpolicies", "xpol", "codeexec.dev/v1alpha1", "true", "ExecutionPolicy"],
    ]
    admin.kubectl("-n", SANDBOX, "get", "codeexec")
    assert "64 lower-case hexadecimal digits" in admin.kubectl("explain", "codeexecution.spec.blocks.sha256")
