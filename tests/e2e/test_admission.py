"""What an agent's role lets through, admission stops: metadata that would erase records or fill the namespace."""

import json

import pytest
from cluster_tools import SANDBOX, Admin, a_name, a_secret, an_execution

pytestmark = pytest.mark.e2e

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}
TRICKS = {
    "an owner that takes the record with it": {"ownerReferences": [OWNER]},
    "a finalizer that nobody removes": {"finalizers": ["example.com/for-ever"]},
    "annotations that leave no room for the result": {"annotations": {"filler": "<" * 40_000}},
    "many labels": {"labels": {f"example.com/label-{number}": "x" for number in range(40)}},
}


@pytest.fixture(scope="session")
def agent(agent_kubeconfig) -> Admin:
    return Admin(agent_kubeconfig)


def _create(user: Admin, thing: dict) -> str:
    """What kubectl says to a dry run on the server; empty if it is accepted."""
    return user.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(thing)).stderr


@pytest.mark.parametrize("metadata", TRICKS.values(), ids=TRICKS)
def test_record_is_refused_with(agent, admin, metadata):
    execution = an_execution("trick", [BLOCK])
    assert _create(agent, execution) == "", "positive control"
    execution["metadata"] |= metadata
    elsewhere = execution | {"metadata": execution["metadata"] | {"namespace": "default"}}
    assert _create(admin, elsewhere) == "", "positive control: where no policy is bound it is accepted"
    assert f"metadata.{next(iter(metadata))} must" in _create(agent, execution)


@pytest.mark.parametrize("metadata", TRICKS.values(), ids=TRICKS)
def test_finished_record_is_not_changed_to_have(agent, admin, metadata):
    name = a_name("record")
    admin.submit(name, "print(1)", ttlSecondsAfterFinished=0)
    admin.wait_for_phase(name, "Succeeded")
    patch = json.dumps({"metadata": metadata})
    done = agent.try_kubectl("-n", SANDBOX, "patch", "codeexecution", name, "--type=merge", "-p", patch)
    assert f"metadata.{next(iter(metadata))} must" in done.stderr
    assert admin.phase(name) == "Succeeded"


def test_agent_creates_no_secret_but_payloads(agent, admin):
    payload = a_secret("trick", {"block-0": b"x"})
    assert _create(agent, payload) == "", "positive control"
    other = payload | {"type": "Opaque"}
    assert _create(admin, other) == "", "positive control: an administrator may"
    assert "type must be codeexec.dev/payload" in _create(agent, other)
    held = payload | {"metadata": payload["metadata"] | {"finalizers": ["example.com/for-ever"]}}
    assert "metadata.finalizers must be empty" in _create(agent, held)
