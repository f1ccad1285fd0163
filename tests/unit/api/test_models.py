"""The models of the contract: what they refuse, and that nothing is lost on the way to the API server and back."""

from typing import Any

import pytest
from factories import IMAGE, a_raw_block, a_raw_file, a_raw_spec, a_spec, an_execution
from pydantic import ValidationError

from codeexec_api import CodeExecution, CodeExecutionSpec, ExecutionPolicySpec, Limits, execution_manifest

WRONG = {
    "no blocks": ("blocks", {"blocks": []}),
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
    "too many files": ("files", {"files": [a_raw_file()] * 17}),
    "backslash in a path": ("files.0.path", {"files": [a_raw_file("a\\b")]}),
    "long path": ("files.0.path", {"files": [a_raw_file("x" * 256)]}),
    "no payload name": ("payloadRef.name", {"payloadRef": {"name": ""}}),
    "payload name with capitals": ("payloadRef.name", {"payloadRef": {"name": "Run-1"}}),
    "no agent": ("source.agent", {"source": {}}),
    "no timeout": ("timeoutSeconds", {"timeoutSeconds": 0}),
    "timeout of more than a day": ("timeoutSeconds", {"timeoutSeconds": 86_401}),
    "timeout in words": ("timeoutSeconds", {"timeoutSeconds": "60s"}),
    "no cpu": ("limits.cpu", {"limits": {"cpu": "0"}}),
    "memory in megabytes": ("limits.memory", {"limits": {"memory": "256MB"}}),
    "exponent": ("limits.memory", {"limits": {"memory": "1e9"}}),
    "boolean": ("limits.cpu", {"limits": {"cpu": True}}),
    "little output": ("limits.outputBytes", {"limits": {"outputBytes": 1023}}),
    "much output": ("limits.outputBytes", {"limits": {"outputBytes": 262_145}}),
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
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    spec = a_spec(**changes)
    assert CodeExecutionSpec.model_validate(spec.dump()) == spec


def test_dump_is_what_the_api_server_stores() -> None:
    dumped = a_spec().dump()
    assert dumped == a_raw_spec() | {
        "source": {"agent": "tester", "executor": "unknown"},
        "timeoutSeconds": 60,
        "limits": {"cpu": "500m", "memory": "256Mi", "ephemeralStorage": "128Mi", "pids": 256, "outputBytes": 262_144},
        "cancelled": False,
    }


def test_an_execution_survives_the_round_trip_with_its_status() -> None:
    execution = an_execution(status={"reason": "Received"})
    assert CodeExecution.parse(execution.dump()) == execution


def test_status_of_a_newer_operator_can_be_read() -> None:
    raw = an_execution().dump()
    raw["status"] = {"phase": "Pending", "somethingNew": 1}
    raw["metadata"] |= {"managedFields": []}
    assert CodeExecution.parse(raw) == an_execution()


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
    ],
)
def test_a_wrong_policy_is_refused_and_the_field_is_named(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ExecutionPolicySpec.model_validate({"images": [IMAGE]} | changes)
    assert field in {".".join(map(str, error["loc"])) for error in refused.value.errors()}


def test_the_manifest_holds_no_status() -> None:
    manifest = execution_manifest(name="run-1", namespace="here", spec=a_spec())
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert manifest["metadata"] == {"name": "run-1", "namespace": "here"}
