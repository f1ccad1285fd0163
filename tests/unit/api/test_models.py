"""The models of the contract: what they refuse, and that nothing is lost on the way to the API server and back."""

import hashlib
from typing import Any

import pytest
from factories import IMAGE, NOW, UID, a_raw_block, a_raw_file, a_raw_spec, a_spec, an_execution
from pydantic import ValidationError

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    CodeSessionSpec,
    ExecutionPolicySpec,
    Limits,
    manifest,
)
from codeexec_api.v1alpha1.bounds import MAX_OUTPUT_BYTES, MAX_PAYLOAD_BYTES, MAX_STORED_BYTES

LIMITS = {
    "cpu": "500m",
    "memory": "256Mi",
    "ephemeralStorage": "256Mi",
    "pids": 256,
    "outputBytes": MAX_OUTPUT_BYTES,
}
WRONG = {
    "too many blocks": ("blocks", {"blocks": [a_raw_block()] * 65}),
    "unknown language": ("blocks.0.language", {"blocks": [a_raw_block(language="ruby")]}),
    "language in another spelling": ("blocks.0.language", {"blocks": [a_raw_block(language="Python")]}),
    "short digest": ("blocks.0.sha256", {"blocks": [a_raw_block(sha256="abc")]}),
    "upper-case digest": ("blocks.0.sha256", {"blocks": [a_raw_block(sha256="A" * 64)]}),
    "negative size": ("blocks.0.sizeBytes", {"blocks": [a_raw_block(sizeBytes=-1)]}),
    "huge block": ("blocks.0.sizeBytes", {"blocks": [a_raw_block(sizeBytes=1_000_001)]}),
    "empty file name": ("blocks.0.filename", {"blocks": [a_raw_block(filename="")]}),
    "control character in a file name": ("blocks.0.filename", {"blocks": [a_raw_block(filename="a\nb")]}),
    "the code itself": ("blocks.0.code", {"blocks": [a_raw_block(code="print(1)")]}),
    "too many files": ("files", {"files": [a_raw_file()] * 65}),
    "no files in the list": ("files", {"files": []}),
    "huge file": ("files.0.sizeBytes", {"files": [a_raw_file(sizeBytes=MAX_PAYLOAD_BYTES + 1)]}),
    "backslash in a path": ("files.0.path", {"files": [a_raw_file("a\\b")]}),
    "long path": ("files.0.path", {"files": [a_raw_file("x" * 256)]}),
    "no payload name": ("payloadRef.name", {"payloadRef": {"name": ""}}),
    "payload name with capitals": ("payloadRef.name", {"payloadRef": {"name": "Run-1"}}),
    "payload in no part": ("payloadRef.parts", {"payloadRef": {"name": "run-1", "parts": 0}}),
    "payload in many parts": ("payloadRef.parts", {"payloadRef": {"name": "run-1", "parts": 17}}),
    "no session name": ("sessionRef.name", {"sessionRef": {"name": ""}}),
    "session name with capitals": ("sessionRef.name", {"sessionRef": {"name": "Mine"}}),
    "session in another namespace": ("sessionRef.namespace", {"sessionRef": {"name": "mine", "namespace": "yours"}}),
    "some artifacts": ("artifacts.list", {"artifacts": {"list": "Some"}}),
    "too many patterns": ("artifacts.fetch", {"artifacts": {"fetch": ["*"] * 65}}),
    "empty pattern": ("artifacts.fetch.0", {"artifacts": {"fetch": [""]}}),
    "long pattern": ("artifacts.fetch.0", {"artifacts": {"fetch": ["x" * 256]}}),
    "no agent": ("source.agent", {"source": {}}),
    "no timeout": ("timeoutSeconds", {"timeoutSeconds": 0}),
    "timeout of more than a day": ("timeoutSeconds", {"timeoutSeconds": 86_401}),
    "timeout in words": ("timeoutSeconds", {"timeoutSeconds": "60s"}),
    "no cpu": ("limits.cpu", {"limits": {"cpu": "0"}}),
    "memory in megabytes": ("limits.memory", {"limits": {"memory": "256MB"}}),
    "exponent": ("limits.memory", {"limits": {"memory": "1e9"}}),
    "boolean": ("limits.cpu", {"limits": {"cpu": True}}),
    "little output": ("limits.outputBytes", {"limits": {"outputBytes": 1023}}),
    "much output": ("limits.outputBytes", {"limits": {"outputBytes": MAX_STORED_BYTES + 1}}),
    "image by tag": ("image", {"image": "python:3.11"}),
    "image by tag of an official name": ("image", {"image": "registry.example/python:latest"}),
    "traceparent of another version": ("traceparent", {"traceparent": "hello"}),
    "negative time to live": ("ttlSecondsAfterFinished", {"ttlSecondsAfterFinished": -1}),
    "unknown field": ("privileged", {"privileged": True}),
    "misspelt limit": ("limits.mem", {"limits": {"mem": "1Gi"}}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_spec_is_refused_and_the_field_is_named(case: str) -> None:
    field, changes = WRONG[case]
    with pytest.raises(ValidationError) as refused:
        CodeExecutionSpec.model_validate(a_raw_spec(**changes))
    assert field in {".".join(map(str, error["loc"])) for error in refused.value.errors()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image": IMAGE},
        {"image": "localhost:5001/codeexec/sandbox@sha256:" + "0" * 64},
        {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-03"},
        {"blocks": [a_raw_block(filename="pkg/täst file.py")], "files": [a_raw_file()], "ttlSecondsAfterFinished": 0},
        {"limits": {"cpu": 1, "memory": "0.5Gi"}, "cancelled": True, "timeoutSeconds": 86_400},
        {"blocks": [a_raw_block(b"")]},
        *({"blocks": [a_raw_block(language=language)]} for language in ("javascript", "pwsh")),
        {"blocks": [], "sessionRef": {"name": "mine"}, "artifacts": {"list": "None", "fetch": ["*.csv"] * 64}},
        {
            "blocks": [],
            "sessionRef": {"name": "mine"},
            "files": [a_raw_file(sizeBytes=MAX_PAYLOAD_BYTES)],
            "payloadRef": {"name": "run-1", "parts": 16},
        },
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    spec = a_spec(**changes)
    assert CodeExecutionSpec.model_validate(spec.dump()) == spec


def test_dump_is_what_the_api_server_stores() -> None:
    dumped = a_spec().dump()
    assert dumped == a_raw_spec() | {
        "payloadRef": {"name": "run-1", "parts": 1},
        "artifacts": {"list": "Changed", "fetch": []},
        "source": {"agent": "tester", "executor": "unknown"},
        "timeoutSeconds": 60,
        "limits": LIMITS,
        "cancelled": False,
    }


def test_nothing_to_hand_in_needs_no_payload() -> None:
    raw = {"blocks": [], "source": {"agent": "tester"}, "sessionRef": {"name": "mine"}}
    spec = CodeExecutionSpec.model_validate(raw)
    assert spec.payload_ref is None
    assert "payloadRef" not in spec.dump()
    assert (spec.languages, spec.code_digest) == ((), "sha256:" + hashlib.sha256(b"").hexdigest())


def test_an_execution_survives_the_round_trip_with_its_status() -> None:
    execution = an_execution(status={"reason": "Received"})
    assert CodeExecution.parse(execution.dump()) == execution


def test_status_of_a_newer_operator_can_be_read() -> None:
    raw = an_execution().dump()
    raw["status"] = {"phase": "Pending", "somethingNew": 1}
    raw["metadata"] |= {"managedFields": []}
    assert CodeExecution.parse(raw) == an_execution()


def test_a_record_of_an_older_operator_can_be_read() -> None:
    """It knew no artifacts, no parts and no references."""
    raw = an_execution().dump() | {"spec": a_raw_spec()}
    stream = {"text": "1\n", "sha256": "0" * 64, "totalBytes": 2, "truncated": False}
    old = CodeExecution.parse(raw | {"status": {"phase": "Succeeded", "stdout": stream}})
    assert old.spec == an_execution().spec
    assert old.status.stdout is not None
    assert (old.status.stdout.referenced, old.status.output_refs, old.status.artifacts) == (False, (), ())


def test_what_an_execution_gave_out_survives_the_round_trip() -> None:
    stream = {"text": "x", "sha256": "0" * 64, "keptBytes": 9, "totalBytes": 10, "truncated": True, "referenced": True}
    status = {
        "phase": "Succeeded",
        "stdout": stream,
        "artifacts": [
            {"path": "plots/a b.png", "sizeBytes": 3, "sha256": "1" * 64, "fetched": True},
            {"path": "huge", "sizeBytes": 2**40},
        ],
        "artifactsOmitted": 7,
        "outputRefs": [{"name": "run-1-0f8fad5b-0"}],
        "operatorVersion": "0.1.0",
    }
    raw = an_execution().dump() | {"status": status}
    dumped = CodeExecution.parse(raw).dump()["status"]
    assert dumped["artifacts"] == status["artifacts"]
    assert {key: dumped[key] for key in status if key != "phase"} == {
        key: value for key, value in status.items() if key != "phase"
    }


WRONG_SESSIONS = {
    "no source": ("source", {"source": None}),
    "no agent": ("source.agent", {"source": {}}),
    "no idle limit": ("idleTimeoutSeconds", {"idleTimeoutSeconds": 0}),
    "idle for more than a week": ("idleTimeoutSeconds", {"idleTimeoutSeconds": 604_801}),
    "no lifetime": ("maxLifetimeSeconds", {"maxLifetimeSeconds": 0}),
    "more than a week": ("maxLifetimeSeconds", {"maxLifetimeSeconds": 604_801}),
    "lifetime in words": ("maxLifetimeSeconds", {"maxLifetimeSeconds": "8h"}),
    "image by tag": ("image", {"image": "python:3.11"}),
    "empty runtime class": ("runtimeClassName", {"runtimeClassName": ""}),
    "no memory": ("limits.memory", {"limits": {"memory": "0"}}),
    "much output": ("limits.outputBytes", {"limits": {"outputBytes": MAX_STORED_BYTES + 1}}),
    "state in words": ("stateful", {"stateful": "if possible"}),
    "traceparent of another version": ("traceparent", {"traceparent": "hello"}),
    "a field of an execution": ("blocks", {"blocks": [a_raw_block()]}),
    "an execution's word for the end": ("cancelled", {"cancelled": True}),
}


@pytest.mark.parametrize("case", WRONG_SESSIONS)
def test_a_wrong_session_is_refused_and_the_field_is_named(case: str) -> None:
    field, changes = WRONG_SESSIONS[case]
    with pytest.raises(ValidationError) as refused:
        CodeSessionSpec.model_validate({"source": {"agent": "tester"}} | changes)
    assert field in {".".join(map(str, error["loc"])) for error in refused.value.errors()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image": IMAGE, "runtimeClassName": "gvisor", "stateful": True, "ended": True},
        {"idleTimeoutSeconds": 1, "maxLifetimeSeconds": 604_800, "limits": {"cpu": 2}},
        {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-03"},
    ],
)
def test_a_session_survives_the_round_trip(changes: dict[str, Any]) -> None:
    spec = CodeSessionSpec.model_validate({"source": {"agent": "tester"}} | changes)
    assert CodeSessionSpec.model_validate(spec.dump()) == spec
    metadata = {"name": "mine", "namespace": "here", "uid": UID, "creationTimestamp": NOW}
    status = {"phase": "Ready", "podName": "mine-0f8fad5b", "startedAt": NOW, "lastUsedAt": NOW, "executions": 3}
    session = CodeSession.parse({"metadata": metadata, "spec": spec.dump(), "status": status})
    assert CodeSession.parse(session.dump()) == session


def test_a_session_as_the_api_server_stores_it() -> None:
    dumped = CodeSessionSpec.model_validate({"source": {"agent": "tester"}}).dump()
    assert dumped == {
        "source": {"agent": "tester", "executor": "unknown"},
        "limits": LIMITS,
        "stateful": False,
        "idleTimeoutSeconds": 1800,
        "maxLifetimeSeconds": 28_800,
        "ended": False,
    }


def test_status_of_a_session_of_a_newer_operator_can_be_read() -> None:
    metadata = {"name": "mine", "namespace": "here", "uid": UID, "managedFields": []}
    spec = {"source": {"agent": "tester"}}
    session = CodeSession.parse({"metadata": metadata, "spec": spec, "status": {"phase": "Lost", "somethingNew": 1}})
    assert session.status.phase.terminal


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        a_spec().timeout_seconds = 1


def test_limits_as_yaml_writes_them() -> None:
    assert Limits(cpu=2).cpu == "2"


def test_languages_once_each_in_order() -> None:
    blocks = [a_raw_block(language=language) for language in ("sh", "python", "sh", "bash")]
    assert a_spec(blocks=blocks).languages == ("sh", "python", "bash")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("images", {"images": []}),
        ("images.0", {"images": ["python:3.11"]}),
        ("languages.0", {"languages": ["ruby"]}),
        ("languages", {"languages": []}),
        ("maxLimits.cpu", {"maxLimits": {"cpu": "none"}}),
        ("maxBlocks", {"maxBlocks": 65}),
        ("podTTLSeconds", {"podTTLSeconds": -1}),
        ("podTtlSeconds", {"podTtlSeconds": 1}),
        ("outputTTLSeconds", {"outputTTLSeconds": 59}),
        ("outputTTLSeconds", {"outputTTLSeconds": 30 * 86_400 + 1}),
        ("outputTtlSeconds", {"outputTtlSeconds": 60}),
        ("maxSessionIdleSeconds", {"maxSessionIdleSeconds": 0}),
        ("maxSessionLifetimeSeconds", {"maxSessionLifetimeSeconds": 604_801}),
        ("records.maxAgeSeconds", {"records": {"maxAgeSeconds": 299}}),
        ("records.maxCount", {"records": {"maxCount": 0}}),
        ("podReuse.maxExecutions", {"podReuse": {"maxExecutions": 101}}),
    ],
)
def test_a_wrong_policy_is_refused_and_the_field_is_named(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ExecutionPolicySpec.model_validate({"images": [IMAGE]} | changes)
    assert field in {".".join(map(str, error["loc"])) for error in refused.value.errors()}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("CodeExecution", a_spec()),
        ("CodeSession", CodeSessionSpec.model_validate({"source": {"agent": "tester"}})),
    ],
)
def test_the_manifest_names_its_kind_and_holds_no_status(kind: str, spec: CodeExecutionSpec | CodeSessionSpec) -> None:
    assert manifest(name="run-1", namespace="here", spec=spec) == {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "run-1", "namespace": "here"},
        "spec": spec.dump(),
    }


def test_the_summary_of_a_transfer_of_files_says_so() -> None:
    """`kubectl get` would show no language, and the digest of nothing."""
    transfer = {"source": {"agent": "tester"}, "sessionRef": {"name": "mine"}, "blocks": []}
    listing = CodeExecutionSpec.model_validate({**transfer, "artifacts": {"list": "All"}})
    assert (listing.summary.languages, listing.summary.digest) == ("files", "")
    upload = CodeExecutionSpec.model_validate({**transfer, "files": [a_raw_file()], "payloadRef": {"name": "run-1"}})
    assert upload.summary.languages == "files"
    assert upload.summary.digest == upload.code_digest.removeprefix("sha256:")[:12]
    assert a_spec().summary.languages == "python"
