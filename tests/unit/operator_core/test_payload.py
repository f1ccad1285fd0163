"""The payload is held against the spec; what doesn't match is never run."""

import base64
import hashlib
from typing import Any

import pytest
from factories import CODE, SECRET_UID, UID, a_raw_block, a_raw_file, a_secret, an_execution

from codeexec_api import Reason
from codeexec_api.names import EXECUTION_LABEL
from codeexec_operator.core.payload import Payload, PayloadProblem, build_job, verify_payload


def test_what_was_announced_is_accepted_in_order() -> None:
    execution = an_execution(
        blocks=[a_raw_block(b"one"), a_raw_block(b"two")], files=[a_raw_file("a", b"A"), a_raw_file("b", b"B")]
    )
    payload = verify_payload(execution, a_secret([b"one", b"two"], [b"A", b"B"]))
    assert isinstance(payload, Payload)
    assert (payload.secret_uid, payload.blocks, payload.files) == (SECRET_UID, (b"one", b"two"), (b"A", b"B"))


def test_a_missing_secret_is_named() -> None:
    problem = verify_payload(an_execution(), None)
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISSING
    assert "'run-1'" in problem.message
    assert "codeexec-sandbox" in problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "Opaque"},
        {"type": "kubernetes.io/service-account-token"},
        {"metadata": {"name": "run-1", "uid": SECRET_UID}},
        {"metadata": {"name": "run-1", "uid": SECRET_UID, "labels": None}},
        {"metadata": {"name": "run-1", "uid": SECRET_UID, "labels": {EXECUTION_LABEL: "run-2"}}},
    ],
)
def test_a_foreign_secret_is_refused_and_never_deleted(changes: dict[str, Any]) -> None:
    problem = verify_payload(an_execution(), a_secret(**changes))
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_FOREIGN
    assert problem.secret_uid is None


@pytest.mark.parametrize(
    ("blocks", "files", "field"),
    [
        ([b"one", b"twO"], [b"A"], "spec.blocks[1]"),
        ([b"two", b"one"], [b"A"], "spec.blocks[0]"),
        ([b"one"], [b"A"], "spec.blocks[1]"),
        ([b"one", b"two"], [b"B"], "spec.files[0]"),
        ([b"one", b"two"], [], "spec.files[0]"),
    ],
)
def test_a_mismatch_names_the_field_and_the_secret_goes(blocks: list[bytes], files: list[bytes], field: str) -> None:
    execution = an_execution(blocks=[a_raw_block(b"one"), a_raw_block(b"two")], files=[a_raw_file("a", b"A")])
    problem = verify_payload(execution, a_secret(blocks, files))
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISMATCH
    assert problem.message.startswith(f"{field}: ")
    assert problem.secret_uid == SECRET_UID


def test_a_wrong_size_is_a_mismatch() -> None:
    problem = verify_payload(an_execution(blocks=[a_raw_block(sizeBytes=8)]), a_secret())
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISMATCH


@pytest.mark.parametrize("data", [None, {}, {"block-0": "not base64!"}, {"block-0": "YQ"}])
def test_content_that_can_not_be_read_is_a_mismatch(data: Any) -> None:
    problem = verify_payload(an_execution(), a_secret(data=data))
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISMATCH
    assert "holds nothing" in problem.message


def test_no_code_in_messages_or_representations() -> None:
    marker = b"print('PLANTED')"
    execution = an_execution()
    problem = verify_payload(execution, a_secret([marker]))
    payload = verify_payload(an_execution(blocks=[a_raw_block(marker)]), a_secret([marker]))
    assert isinstance(payload, Payload)
    assert "PLANTED" not in repr(problem) + repr(payload)


def test_the_job_is_what_the_runner_needs() -> None:
    execution = an_execution(
        blocks=[a_raw_block(filename="pkg/main.py"), a_raw_block(b"ls\n", language="bash")],
        files=[a_raw_file("in/data", b"\x00\xff")],
        timeoutSeconds=7,
        limits={"outputBytes": 2048, "memory": "1Mi", "pids": 9},
    )
    payload = verify_payload(execution, a_secret([CODE, b"ls\n"], [b"\x00\xff"]))
    assert isinstance(payload, Payload)
    assert build_job(execution, payload) == {
        "id": UID,
        "blocks": [
            {"path": "pkg/main.py", "command": ["python3"], "code": "print(1)\n"},
            {
                "path": f"tmp_code_{hashlib.sha256(b'ls' + bytes([10])).hexdigest()}.sh",
                "command": ["bash"],
                "code": "ls\n",
            },
        ],
        "files": [{"path": "in/data", "data": base64.b64encode(b"\x00\xff").decode()}],
        "timeoutSeconds": 7,
        "outputBytes": 2048,
        "memoryBytes": 2**20,
        "pids": 9,
    }


def test_a_block_that_is_not_text_is_an_error() -> None:
    execution = an_execution(blocks=[a_raw_block(b"\xff")])
    payload = verify_payload(execution, a_secret([b"\xff"]))
    assert isinstance(payload, Payload)
    with pytest.raises(UnicodeDecodeError):
        build_job(execution, payload)
