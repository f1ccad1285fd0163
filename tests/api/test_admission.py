"""What an agent's role lets through, admission stops: metadata that would erase records or fill the namespace."""

from typing import Any

import pytest
from cluster_tools import Admin, a_secret, a_session, an_execution
from largest import FACE, managed, nested

KINDS = ["codeexecution", "codesession"]
BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}
TRICKS = {
    "an owner that takes the record with it": {"ownerReferences": [OWNER]},
    "a finalizer that nobody removes": {"finalizers": ["example.com/for-ever"]},
    "annotations that the operator would have to list": {"annotations": {"filler": "<" * 4_100}},
    "annotations of four-byte characters": {"annotations": {"filler": FACE * 1_030}},
    "many labels": {"labels": {f"example.com/label-{number}": "x" for number in range(40)}},
    "a managed field with a megabyte of name": managed({"f:spec": {"f:" + "x" * 1_000_000: {}}}),
    "a managed field of four-byte characters": managed({"f:spec": {"f:" + FACE * 5_000: {}}}),
    "a large value of a managed list": managed({"f:spec": {'v:"' + "x" * 20_000 + '"': {}}}),
    "many managed fields": managed({"f:spec": {f"f:{number}": {} for number in range(20_000)}}),
    "managed fields with short names": managed(
        {"f:spec": {f"f:{number:x}": {f"f:{one:x}": {} for one in range(80)} for number in range(30)}}
    ),
    "managed fields at the top": managed({f"f:{number}": {} for number in range(1_000)}),
    "managed fields that are deep": managed(nested(200)),
    "many managers that apply a field each": managed(*({"f:spec": {"f:x": {}}} for _ in range(100)), operation="Apply"),
    "many managers": managed(*({"f:spec": {f"f:{number}{'x' * 50}": {}}} for number in range(500))),
}
PADDING = {name: one for name, one in TRICKS.items() if "managed" in name or "annotations" in name}


@pytest.fixture(scope="module")
def agent(agent_kubeconfig) -> Admin:
    return Admin(agent_kubeconfig)


def _create(user: Admin, thing: dict) -> str:
    """What the API server says to a dry run; empty if it accepts."""
    return getattr(user.try_create(thing, dry_run=True), "message", "")


def _record(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return an_execution(name, [BLOCK], **spec) if kind == "codeexecution" else a_session(name, **spec)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metadata", TRICKS.values(), ids=TRICKS)
def test_record_is_refused_with(agent, admin, kind, metadata):
    record = _record(kind, "trick", requestedBy=agent.me)
    assert _create(agent, record) == "", "positive control"
    record["metadata"] |= metadata
    elsewhere = record | {"metadata": record["metadata"] | {"namespace": "default"}}
    assert _create(admin, elsewhere) == "", "positive control: where no policy is bound it is accepted"
    assert f"metadata.{next(iter(metadata))} must" in _create(agent, record)


def test_agent_creates_no_secret_but_payloads(agent, admin):
    payload = a_secret("trick", {"block-0": b"x"})
    assert _create(agent, payload) == "", "positive control"
    assert _create(agent, a_secret("trick-15", {"file-0": b"x" * 1_000_000}, "trick")) == "", (
        "the last part of a payload"
    )
    other = payload | {"type": "Opaque"}
    assert _create(admin, other) == "", "positive control: an administrator may"
    assert "type must be codeexec.dev/payload" in _create(agent, other)
    held = payload | {"metadata": payload["metadata"] | {"finalizers": ["example.com/for-ever"]}}
    assert "metadata.finalizers must be empty" in _create(agent, held)


@pytest.mark.parametrize("padding", PADDING.values(), ids=PADDING)
def test_payload_is_refused_with(agent, admin, padding):
    """The operator lists the metadata of payloads."""
    payload = a_secret("trick", {"block-0": b"x"})
    entries = [one | {"apiVersion": "v1"} for one in padding.get("managedFields", [])]
    payload["metadata"] |= padding | ({"managedFields": entries} if entries else {})
    assert _create(admin, payload) == "", "positive control: an administrator may"
    assert f"metadata.{next(iter(padding))} must" in _create(agent, payload)
