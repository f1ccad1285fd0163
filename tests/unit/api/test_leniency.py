"""One minor version of skew, played both ways: what a newer version writes is read, and what an older one wrote."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import codeexec_api
from codeexec_api import CodeExecution, CodeSession, ExecutionPolicySpec, Phase, SandboxPool
from codeexec_api.audit import DIGEST_FORM, STATUS_FORM, AuditEvent, Segment, facts_of, in_utc, log_entry, status_digest
from codeexec_api.audit_check import read_log, verify
from codeexec_api.v1alpha1.base import Object
from executor_client import CodeExecutionClient, Request, prepare
from executor_client.model.blocks import SourceBlock
from executor_client.testing import FakeCluster, FakeOutcome

SPEC = {"blocks": [], "sessionRef": {"name": "s"}, "source": {"agent": "x"}}
NAMESPACE = "codeexec-sandbox"
META = {"name": "a", "resourceVersion": "1"}


def a_record(**spec: Any) -> dict[str, Any]:
    return {"metadata": META, "spec": {**SPEC, **spec}, "status": {"phase": "Running"}}


BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
NEWER: list[tuple[str, dict[str, Any]]] = [
    ("a field of the spec", a_record(newField={"a": 1})),
    ("a field of a block", a_record(blocks=[{**BLOCK, "newField": 1}])),
    ("a language", a_record(blocks=[{**BLOCK, "language": "ruby"}])),
    ("a file name with a no-break space", a_record(blocks=[{**BLOCK, "filename": "my\u00a0file.py"}])),
    ("a file name with a leading blank", a_record(blocks=[{**BLOCK, "filename": " report.py"}])),
    ("a file name of 400 bytes", a_record(blocks=[{**BLOCK, "filename": "ü" * 200}])),
    ("a mount of another kind", a_record(mounts=[{"name": "data", "mountPath": "/data/x", "image": "x"}])),
    ("a permit of another kind", a_record(egress=[{"port": 443, "serviceAccount": "x"}])),
    ("another digest", a_record(blocks=[{**BLOCK, "sha256": "sha512:1"}])),
    ("more blocks", a_record(blocks=[BLOCK] * 200)),
    ("a longer timeout", a_record(timeoutSeconds=10**6)),
    ("a field of the status", a_record() | {"status": {"newField": 1}}),
    ("a phase", a_record() | {"status": {"phase": "Paused"}}),
    ("a boundary", a_record() | {"status": {"boundary": "Enclave"}}),
    (
        "a verdict",
        a_record() | {"status": {"egressProof": {"verdict": "Partial", "checkedAt": "2026-01-01T00:00:00Z"}}},
    ),
    ("a longer message", a_record() | {"status": {"message": "x" * 100_000}}),
]


@pytest.mark.parametrize(("what", "raw"), NEWER, ids=[what for what, _ in NEWER])
def test_what_a_newer_version_wrote_is_read_back_and_is_no_request_of_this_one(what: str, raw: dict[str, Any]) -> None:
    record = CodeExecution.read(raw)
    assert record.metadata.name == "a"
    assert CodeExecution.read({**raw, "kind": "CodeExecution"}) == record
    if not what.endswith("of the status"):  # of which a field more was never refused
        with pytest.raises(ValidationError):
            CodeExecution.parse(raw)


def test_a_value_that_is_not_known_is_told_as_it_is() -> None:
    raw = a_record() | {"status": {"phase": "Paused", "boundary": "Enclave"}}
    status = CodeExecution.read(raw).status
    assert (status.phase.value, status.phase.terminal, status.phase) == ("Paused", False, "Paused")
    assert status.phase not in list(Phase)
    assert CodeExecution.read(raw).dump()["status"] == {"phase": "Paused", "boundary": "Enclave"}
    session = CodeSession.read({"metadata": META, "spec": {"source": {"agent": "x"}}, "status": {"phase": "Resting"}})
    assert (session.status.phase.value, session.status.phase.terminal) == ("Resting", False)


def test_what_is_no_record_at_all_is_refused() -> None:
    for raw in ({}, {"metadata": META}, a_record(source={}), a_record(timeoutSeconds="long")):
        with pytest.raises(ValidationError):
            CodeExecution.read(raw)


def test_what_this_version_wrote_is_read_as_it_is_parsed() -> None:
    fake, _ = played()
    for record in fake.executions:
        assert CodeExecution.read(record.dump()) == CodeExecution.parse(record.dump())


def models() -> Iterator[type[BaseModel]]:
    for found in vars(codeexec_api).values():
        if isinstance(found, type) and issubclass(found, Object):
            yield found


@pytest.mark.parametrize("model", tuple(models()), ids=lambda model: model.__name__)
def test_each_kind_can_be_read_back(model: type[Object]) -> None:
    with pytest.raises(ValidationError, match="metadata"):
        model.read({})


def test_an_older_version_wrote_fewer_fields() -> None:
    """Each field that was added to a status since has a default."""
    for kind in (CodeExecution, CodeSession, SandboxPool):
        model = kind.model_fields["status"].annotation
        assert model.model_validate({}) == model()


def played() -> tuple[FakeCluster, CodeExecutionClient]:
    fake = FakeCluster(run=lambda _: FakeOutcome(stdout="x"))
    return fake, fake.client()


@pytest.mark.parametrize("change", [{"newField": 1}, {"queueTimeoutSeconds": 10**6}])
async def test_the_audit_log_verifies_records_that_a_newer_client_made(change: dict[str, Any]) -> None:
    fake, client = played()
    await client.execute(prepare([SourceBlock("python", "1")]).blocks, Request(agent="a"))
    records: list[Any] = [copy.deepcopy(dict(one)) async for one in (await client.connect()).list_stored()]
    records[0]["spec"] |= change
    log = list(read_log("log", fake.audit_log))
    assert verify(log, records, now=fake.now, namespace=fake.executions[0].metadata.namespace).findings == ()
    records[0]["spec"]["timeoutSeconds"] = 1
    records[0]["status"]["exitCode"] = 7
    assert verify(log, records, now=fake.now, namespace=fake.executions[0].metadata.namespace).findings, "the control"


NEWER_LINES: list[dict[str, Any]] = [
    {"reused": True},
    {"phase": "Paused"},
    {"boundary": "Enclave"},
    {"limits": {"cpu": "500m", "gpus": 1}},
]


async def audited_by_another_operator(told: dict[str, Any], filename: str) -> tuple[list[str], list[Any], Any]:
    """A log and records as an operator of another version writes them, with a status and facts of its own."""
    fake, client = played()
    await client.execute(prepare([SourceBlock("python", "1")]).blocks, Request(agent="a"))
    [raw] = [copy.deepcopy(dict(one)) async for one in (await client.connect()).list_stored()]
    raw["status"] |= {name: value for name, value in told.items() if name != "limits"}
    raw["spec"]["blocks"][0]["filename"] = filename
    raw["spec"]["limits"] |= told.get("limits", {})
    segment, began = Segment("a" * 32, NAMESPACE, "0.3.0").append(AuditEvent.OPERATOR_STARTED, fake.now, {})
    facts = facts_of(CodeExecution.read(raw))
    facts |= told | {"limits": raw["spec"]["limits"]}
    forms = {"digestForm": DIGEST_FORM, "statusForm": STATUS_FORM}
    more = {"record": facts, **forms, "statusSHA256": status_digest(raw["status"])}
    _, line = segment.append(AuditEvent.STATUS_WRITE, fake.now, more)
    raw["status"]["audit"] = line.anchor.dump() | {"time": in_utc(fake.now)}
    return [log_entry(began), log_entry(line)], [raw], fake.now


@pytest.mark.parametrize("told", NEWER_LINES, ids=lambda told: next(iter(told)))
async def test_audit_lines_of_a_newer_operator_are_verified(told: dict[str, Any]) -> None:
    log, records, now = await audited_by_another_operator(told, "a.py")
    found = verify(read_log("log", log), records, now=now, namespace=NAMESPACE)
    assert (found.findings, found.records) == ((), 1)
    new = told.keys() & {"reused", "limits"}
    assert [one.kind.value for one in found.notes] == ["Unreadable"] * len(new), "and a fact that isn't known is a note"

    records[0]["status"]["message"] = "something else"
    changed = verify(read_log("log", log), records, now=now, namespace=NAMESPACE).findings
    assert [one.kind.value for one in changed] == ["RecordChanged"], "the control"


async def test_audit_lines_about_a_file_name_of_version_0_1_are_verified() -> None:
    log, records, now = await audited_by_another_operator({}, "my\u00a0file.py")
    assert verify(read_log("log", log), records, now=now, namespace=NAMESPACE).findings == ()

    records[0]["spec"]["blocks"][0]["filename"] = "my\u00a0other.py"
    changed = verify(read_log("log", log), records, now=now, namespace=NAMESPACE).findings
    assert [one.kind.value for one in changed] == ["RecordChanged"], "the control"


def test_a_policy_that_is_not_known_in_full_is_refused() -> None:
    """The operator does what a policy says: a field that it doesn't know may be the one that counts."""
    with pytest.raises(ValidationError):
        ExecutionPolicySpec.model_validate({"images": ["not an image"], "newField": 1})
