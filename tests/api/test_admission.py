"""What an agent's role lets through, admission stops: metadata that would erase records or fill the namespace."""

from typing import Any

import pytest
from cluster_tools import Admin, a_name, a_secret, a_session, an_execution

KINDS = ["codeexecution", "codesession"]
BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}
TRICKS = {
    "an owner that takes the record with it": {"ownerReferences": [OWNER]},
    "a finalizer that nobody removes": {"finalizers": ["example.com/for-ever"]},
    "annotations that leave no room for the result": {"annotations": {"filler": "<" * 40_000}},
    "many labels": {"labels": {f"example.com/label-{number}": "x" for number in range(40)}},
}


@pytest.fixture(scope="module")
def agent(agent_kubeconfig) -> Admin:
    return Admin(agent_kubeconfig)


def _create(user: Admin, thing: dict) -> str:
    """What the API server says to a dry run; empty if it accepts."""
    return getattr(user.try_create(thing, dry_run=True), "message", "")


def _record(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return an_execution(name, [BLOCK], **spec) if kind == "codeexecution" else a_session(name, **spec)


@pytest.fixture(scope="module")
def finished(admin) -> dict[str, str]:
    """Name of a record that is over, by kind."""
    phases = {"codeexecution": "Succeeded", "codesession": "Ended"}
    names = {kind: a_name("record") for kind in KINDS}
    for kind, name in names.items():
        admin.create(_record(kind, name))
        admin.patch(kind, name, {"status": {"phase": phases[kind]}}, subresource="status")
    return names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metadata", TRICKS.values(), ids=TRICKS)
def test_record_is_refused_with(agent, admin, kind, metadata):
    record = _record(kind, "trick", requestedBy=agent.me)
    assert _create(agent, record) == "", "positive control"
    record["metadata"] |= metadata
    elsewhere = record | {"metadata": record["metadata"] | {"namespace": "default"}}
    assert _create(admin, elsewhere) == "", "positive control: where no policy is bound it is accepted"
    assert f"metadata.{next(iter(metadata))} must" in _create(agent, record)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metadata", TRICKS.values(), ids=TRICKS)
def test_finished_record_is_not_changed_to_have(agent, admin, finished, kind, metadata):
    def patch(change: dict[str, Any]) -> str:
        return getattr(agent.try_patch(kind, finished[kind], {"metadata": change}), "message", "")

    before = admin.get(kind, finished[kind])["status"]
    assert patch({"labels": {"example.com/ticket": "7"}}) == "", "positive control: a patch as such"
    assert f"metadata.{next(iter(metadata))} must" in patch(metadata)
    assert admin.get(kind, finished[kind])["status"] == before


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
