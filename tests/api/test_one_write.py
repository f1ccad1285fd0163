"""After its creation a record is written once by others than the operator: each write stores the whole object again.

`count/codeexecutions` of a ResourceQuota doesn't count them, and storage that is full can't be written by anybody.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, Object, a_name, a_session, an_execution
from largest import LARGEST_REQUEST, managed, the_largest_output, the_largest_request
from stored_records import copy_record

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
FLAGS = {"codeexecution": "cancelled", "codesession": "ended"}
PHASES = {"codeexecution": "Succeeded", "codesession": "Ended"}
ROLES = ["agent", "approver"]
KIND = {"apiVersion": "codeexec.dev/v1alpha1"}

CHANGES: dict[str, Object] = {
    "labels": {"labels": {"example.com/ticket": "7"}},
    "no labels": {"labels": None},
    "annotations": {"annotations": {"example.com/ticket": "7"}},
    "no annotations": {"annotations": None},
    "generateName": {"generateName": "another-"},
    "managed fields": managed({"f:spec": {"f:" + "x" * 1000: {}}}),
    "managed fields reset": {"managedFields": [{}]},
}
"""Of metadata, which an agent could write again and again before there was a policy."""


@pytest.fixture(scope="module")
def agent(agent_kubeconfig) -> Admin:
    return Admin(agent_kubeconfig)


@pytest.fixture(scope="module")
def user_of(agent, approver) -> Callable[[str], Admin]:
    return {"agent": agent, "approver": approver}.__getitem__


def _record(kind: str, **spec: Any) -> Object:
    name = a_name("record")
    record = an_execution(name, [BLOCK], **spec) if kind == "codeexecution" else a_session(name, **spec)
    marked = {"labels": {"example.com/team": "red"}, "annotations": {"example.com/team": "red"}}
    return record | {"metadata": record["metadata"] | marked}


@pytest.fixture
def make(admin) -> Callable[[str], str]:
    """Makes a record that is over, and gives its name."""

    def make(kind: str) -> str:
        name = admin.create(_record(kind))["metadata"]["name"]
        admin.patch(kind, name, {"status": {"phase": PHASES[kind]}}, subresource="status")
        return name

    return make


def _refusal(user: Admin, kind: str, name: str, change: Object) -> str:
    return getattr(user.try_patch(kind, name, change), "message", "")


def _version(admin: Admin, kind: str, name: str) -> str:
    return admin.get(kind, name)["metadata"]["resourceVersion"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", FLAGS)
def test_a_record_is_written_once(admin, user_of, make, kind, role):
    user, name = user_of(role), make(kind)
    stop = {"spec": {FLAGS[kind]: True}}
    versions = {_version(admin, kind, name)}
    changes = [{"metadata": one} for one in CHANGES.values()]
    for change in [*changes, stop, stop, *changes, {"spec": {FLAGS[kind]: False}}]:
        user.try_patch(kind, name, change)
        versions.add(_version(admin, kind, name))
    assert len(versions) == 2, "as it was created, and stopped"
    assert admin.get(kind, name)["spec"][FLAGS[kind]] is True


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_metadata_is_refused(admin, agent, make, kind, change):
    name = make(kind)
    refusal = _refusal(agent, kind, name, {"metadata": change})
    if "managedFields" in change:  # the API server adds to these with each change that is allowed
        assert "a record can be changed once after creation" in refusal
    else:
        assert "metadata can't be changed after creation" in refusal
        both = {"metadata": change, "spec": {FLAGS[kind]: True}}
        assert "metadata can't be changed after creation" in _refusal(agent, kind, name, both)
    before = _version(admin, kind, name)
    assert _refusal(admin, kind, name, {"metadata": change}) == "", "control: an administrator may"
    assert _version(admin, kind, name) != before, "control: that is a write"


@pytest.mark.parametrize("kind", FLAGS)
def test_the_one_write_brings_no_padding(agent, make, kind):
    padded = {"metadata": managed({"f:spec": {"f:" + "x" * 30_000: {}}}), "spec": {FLAGS[kind]: True}}
    name = make(kind)
    assert "metadata.managedFields must have at most 16384 bytes" in _refusal(agent, kind, name, padded)
    assert _refusal(agent, kind, name, {"spec": {FLAGS[kind]: True}}) == "", "control"


def the_most_padding(user: Admin, thing: Object) -> Object:
    """The object with as much padding as is accepted, which dry runs tell."""

    def padded(size: int) -> Object:
        return thing | {"metadata": thing["metadata"] | managed({"f:metadata": {"f:labels": {"f:" + "x" * size: {}}}})}

    accepted, refused = 0, 65_536
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        if user.try_create(padded(middle), dry_run=True) is None:
            accepted = middle
        else:
            refused = middle
    assert accepted > 4096, f"control: there is padding; without it: {user.try_create(thing, dry_run=True)}"
    return padded(accepted)


@pytest.mark.parametrize("kind", FLAGS)
def test_padding_leaves_room_for_the_write_that_stops_a_record(admin, agent, approver, kind):
    """Without that, nobody could stop what an agent has started before its time is over."""
    record = agent.create(the_most_padding(agent, _record(kind, requestedBy=agent.me)))
    name = record["metadata"]["name"]
    assert len(json.dumps(record["metadata"]["managedFields"])) > 4096, "control: the API server keeps the padding"
    status = the_largest_output() if kind == "codeexecution" else {}
    admin.patch(kind, name, {"status": {"phase": "Running" if status else "Ready", **status}}, subresource="status")
    assert _refusal(approver, kind, name, {"spec": {FLAGS[kind]: True}}) == ""
    assert admin.get(kind, name)["spec"][FLAGS[kind]] is True


def test_padding_leaves_room_for_the_write_that_revokes_a_decision(admin, agent, approver):
    execution = admin.create(_record("codeexecution"))
    ref = {"name": execution["metadata"]["name"], "uid": execution["metadata"]["uid"], "requestedBy": agent.me}
    meta = {"name": a_name("decision"), "namespace": SANDBOX, "labels": {"codeexec.dev/execution": ref["name"]}}
    spec = {"executionRef": ref, "decision": "Deny", "approver": approver.me}
    decision = KIND | {"kind": "ExecutionApproval", "metadata": meta, "spec": spec}
    approver.create(the_most_padding(approver, decision))
    revoke = {"spec": {"revoked": True, "revokedBy": admin.me}}
    assert _refusal(admin, "executionapproval", meta["name"], revoke) == ""
    assert admin.get("executionapproval", meta["name"])["spec"]["revoked"] is True


def test_nothing_is_stored_when_what_is_so_already_is_asked_for(admin, agent, make):
    """Two callers may cancel the same execution, and neither of them does anything wrong."""
    name = make("codeexecution")
    for change, written in [({}, False), ({"spec": {"cancelled": True}}, True), ({"spec": {"cancelled": True}}, False)]:
        before = _version(admin, "codeexecution", name)
        assert _refusal(agent, "codeexecution", name, change) == ""
        assert (_version(admin, "codeexecution", name) != before) is written


def test_server_side_apply_stops_an_execution_and_does_nothing_else(admin, agent, make):
    name = make("codeexecution")
    path = agent.resource("codeexecution").path(SANDBOX, name)

    def apply(manager: str, **more: Any) -> str:
        body = KIND | {"kind": "CodeExecution", "metadata": {"name": name}} | more
        how = {"type": "application/apply-patch+yaml", "fieldManager": manager, "force": "true"}
        try:
            agent.connection.json("PATCH", path, body, **how)
        except Exception as refusal:
            return str(refusal)
        return ""

    assert "a record can be changed once" in apply("one", spec={"cancelled": False})
    assert apply("one", spec={"cancelled": True}) == ""
    for number in range(5):
        assert "a record can be changed once" in apply(f"m{number}", spec={"cancelled": True})
    assert len(admin.execution(name)["metadata"]["managedFields"]) <= 3


def test_a_decision_is_written_once(admin, agent, approver):
    execution = admin.create(_record("codeexecution"))
    ref = {"name": execution["metadata"]["name"], "uid": execution["metadata"]["uid"], "requestedBy": agent.me}
    meta = {"name": a_name("decision"), "namespace": SANDBOX, "labels": {"codeexec.dev/execution": ref["name"]}}
    spec = {"executionRef": ref, "decision": "Deny", "approver": approver.me}
    approver.create(KIND | {"kind": "ExecutionApproval", "metadata": meta, "spec": spec})
    revoke = {"spec": {"revoked": True, "revokedBy": approver.me}}
    versions = {_version(admin, "executionapproval", meta["name"])}
    changes = [{"metadata": one} for one in CHANGES.values()]
    for change in [*changes, revoke, revoke, *changes]:
        approver.try_patch("executionapproval", meta["name"], change)
        versions.add(_version(admin, "executionapproval", meta["name"]))
    assert len(versions) == 2, "as it was made, and revoked"


async def test_what_was_stored_under_an_older_bound_of_annotations_can_still_be_cancelled(plane, admin, agent, make):
    name, copy = make("codeexecution"), a_name("annotated")
    await copy_record(plane, SANDBOX, name, {copy: {"annotations": {"a": "<" * 30_000}}})
    assert _refusal(agent, "codeexecution", copy, {"spec": {"cancelled": True}}) == ""
    assert admin.get("codeexecution", copy)["spec"]["cancelled"]


def test_the_garbage_collector_finishes_a_deletion(admin, make):
    """It takes its own finalizer off the record, which is a change of metadata and of nothing else."""
    name = make("codeexecution")
    admin.delete("codeexecution", name, propagationPolicy="Foreground")
    admin.wait_until_gone("codeexecution", name)


# --- what one agent can store --------------------------------------------------------


def test_the_largest_request_has_the_size_that_is_documented(admin, agent):
    meta, spec = the_largest_request()
    record = an_execution(a_name("largest"), spec.pop("blocks"), requestedBy=agent.me, **spec)
    del record["spec"]["payloadRef"]
    record["metadata"] |= meta
    agent.create(record)
    stored = json.dumps(admin.execution(record["metadata"]["name"]), ensure_ascii=False).encode()
    assert 0.5 * LARGEST_REQUEST < len(stored) <= LARGEST_REQUEST
