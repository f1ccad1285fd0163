"""Records of each released form, as the API server returned them then, and the operator's log about them.

They stay readable, and they stay verifiable: nobody edits the files in `old_records`. A change of the contract that
breaks a test here loses evidence. Keep the old names in the schema, or give the digest a new form.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from codeexec_api import CodeExecution, CodeSession, ExecutionApproval, ExecutionPolicy, SandboxPool
from codeexec_api.audit_check import Verification, read_log, verify
from codeexec_api.audit_findings import FindingKind
from codeexec_api.schema import custom_resource_definitions

FOLDER = Path(__file__).parent / "old_records"
FORMS = sorted(path.name for path in FOLDER.iterdir())
MODELS = {one.__name__: one for one in (CodeExecution, CodeSession, ExecutionApproval, ExecutionPolicy, SandboxPool)}
SCHEMAS = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for crd in custom_resource_definitions().values()
}
Thing = dict[str, Any]
each_form = pytest.mark.parametrize("form", FORMS)
each_record = pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.json")), ids=lambda path: path.stem)


def load(path: Path) -> Thing:
    return dict(json.loads(path.read_text()))


def verified(form: str, change: str = "", to: object = None) -> Verification:
    """The verdict of `codeexec audit verify` on that form, after a change of one field of each status."""
    records = [
        one for path in sorted((FOLDER / form).glob("*.json")) if "audit" in (one := load(path)).get("status", {})
    ]
    for one in records if change else ():
        one["status"][change] = to
    lines = read_log("log", (FOLDER / form / "operator.log").read_text().splitlines())
    now = datetime(2026, 11, 22, tzinfo=UTC)
    return verify(lines, records, now=now, namespace="codeexec-sandbox", complete=True)


def leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    elif isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT[^a-z]*", value):
        yield datetime.fromisoformat(value).isoformat()
    else:
        yield repr(value)


@each_form
def test_old_records_agree_with_their_log(form: str) -> None:
    found = verified(form)
    assert (found.findings, found.notes) == ((), ())
    assert found.records == 3


@each_form
@pytest.mark.parametrize(("field", "value"), [("exitCode", 7), ("message", "nothing happened"), ("startedAt", None)])
def test_a_changed_old_record_is_found(form: str, field: str, value: object) -> None:
    found = verified(form, field, value)
    assert {one.kind for one in found.findings} == {FindingKind.RECORD_CHANGED}


@each_record
def test_nothing_of_an_old_record_is_lost_when_it_is_read(path: Path) -> None:
    raw = load(path)
    read = MODELS[raw["kind"]].read(raw)
    assert read == MODELS[raw["kind"]].parse(raw)
    told = {*leaves(read.model_dump(mode="json", by_alias=True))}
    assert {*leaves({part: raw.get(part, {}) for part in ("spec", "status")})} <= told


@each_record
def test_the_api_server_still_keeps_and_takes_each_field_of_an_old_record(path: Path) -> None:
    """It removes fields that the schema lacks, also from what is stored, and the digest of the record would differ."""
    raw = load(path)
    for part in ("spec", "status"):
        if part in raw:
            assert [*objections(raw[part], SCHEMAS[raw["kind"]]["properties"][part], f".{part}")] == []


def objections(value: Any, schema: Thing, path: str) -> Iterator[str]:
    """What a structural schema does not allow in a value."""
    if isinstance(value, dict):
        for name, one in value.items():
            child = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            yield from objections(one, child, f"{path}.{name}") if child else [f"{path}.{name} is unknown"]
    elif isinstance(value, list):
        if schema.get("x-kubernetes-list-type") == "set" and len(set(value)) < len(value):
            yield f"{path} has duplicates"
        for one in value:
            yield from objections(one, schema["items"], f"{path}[]")
    elif isinstance(value, str):
        fits = re.search(schema.get("pattern", ""), value) and len(value) <= schema.get("maxLength", len(value))
        if not (fits and value in schema.get("enum", [value])):
            yield f"{path}: {value!r}"
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value}"
