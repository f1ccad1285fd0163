"""The payload: the text of blocks and files, from a Secret, held against the digests in the spec."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codeexec_api import CodeExecution, Reason
from codeexec_api.digests import sha256_hex
from codeexec_api.languages import LANGUAGES, default_file_name
from codeexec_api.names import EXECUTION_LABEL, PAYLOAD_SECRET_TYPE, block_key, file_key
from codeexec_api.quantities import parse_quantity


@dataclass(frozen=True, repr=False)
class Payload:
    """Verified code and files. Has no repr, so that code can't slip into a log line."""

    secret_uid: str
    blocks: tuple[bytes, ...]
    files: tuple[bytes, ...]


@dataclass(frozen=True)
class PayloadProblem:
    """Why there is no payload to run. `secret_uid` is set if the Secret is ours to delete."""

    reason: Reason
    message: str
    secret_uid: str | None = None


def verify_payload(execution: CodeExecution, secret: Mapping[str, Any] | None) -> Payload | PayloadProblem:
    """Check that a Secret is this execution's payload and holds exactly what the spec announces."""
    name = execution.spec.payload_ref.name
    if secret is None:
        return PayloadProblem(
            Reason.PAYLOAD_MISSING,
            f"spec.payloadRef: there is no Secret {name!r} in namespace {execution.metadata.namespace!r}; "
            "create it before or together with the CodeExecution",
        )
    labels = secret["metadata"].get("labels") or {}
    if secret.get("type") != PAYLOAD_SECRET_TYPE or labels.get(EXECUTION_LABEL) != execution.metadata.name:
        return PayloadProblem(
            Reason.PAYLOAD_FOREIGN,
            f"spec.payloadRef: Secret {name!r} is not the payload of this execution; it must have the type "
            f"{PAYLOAD_SECRET_TYPE} and the label {EXECUTION_LABEL}={execution.metadata.name}",
        )
    uid = secret["metadata"]["uid"]
    data = secret.get("data") or {}
    announced = [
        (f"spec.blocks[{index}]", block_key(index), block.sha256, block.size_bytes)
        for index, block in enumerate(execution.spec.blocks)
    ] + [
        (f"spec.files[{index}]", file_key(index), file.sha256, file.size_bytes)
        for index, file in enumerate(execution.spec.files or ())
    ]
    contents = []
    for field, key, sha256, size in announced:
        content = _decode(data.get(key))
        found = "nothing" if content is None else f"sha256 {sha256_hex(content)}, {len(content)} bytes"
        if content is None or found != f"sha256 {sha256}, {size} bytes":
            return PayloadProblem(
                Reason.PAYLOAD_MISMATCH,
                f"{field}: the payload holds {found} under {key!r}, but the spec announces sha256 {sha256}, "
                f"{size} bytes; nothing was run. Create the execution again from the code that is meant to run",
                uid,
            )
        contents.append(content)
    count = len(execution.spec.blocks)
    return Payload(uid, tuple(contents[:count]), tuple(contents[count:]))


def _decode(value: str | None) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return None


def build_job(execution: CodeExecution, payload: Payload) -> dict[str, Any]:
    """What the runner is told to do; the format is described in `operator/sandbox/runner.py`.

    Raises:
        UnicodeDecodeError: never for blocks that a client made, which are text; the caller treats it as a fault.
    """
    spec = execution.spec
    return {
        "id": execution.metadata.uid,
        "blocks": [
            {
                "path": block.filename or default_file_name(block.language, block.sha256),
                "command": list(LANGUAGES[block.language].command),
                "code": code.decode(),
            }
            for block, code in zip(spec.blocks, payload.blocks, strict=True)
        ],
        "files": [
            {"path": file.path, "data": base64.b64encode(content).decode()}
            for file, content in zip(spec.files or (), payload.files, strict=True)
        ],
        "timeoutSeconds": spec.timeout_seconds,
        "outputBytes": spec.limits.output_bytes,
        "memoryBytes": int(parse_quantity(spec.limits.memory)),
        "pids": spec.limits.pids,
    }
