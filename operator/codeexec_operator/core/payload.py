"""The payload: the text of blocks and files, sealed or from Secrets, held against the digests in the spec."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    CodeSessionSpec,
    Phase,
    PodLimits,
    Reason,
    SandboxPoolSpec,
    SealedPayload,
    records,
)
from codeexec_api.languages import LANGUAGES, default_file_name
from codeexec_api.names import EXECUTION_LABEL, PAYLOAD_SECRET_TYPE, payload_name, review_name
from codeexec_api.quantities import parse_quantity
from codeexec_api.sealing import unseal
from codeexec_operator.core.keyring import Keyring

PIECE_BYTES: Final = 192 * 1024
"""Of a file, in one message to the runner."""

_HELD_BYTES: Final = 1_000_000
"""Payloads up to this size stay in memory until their pod is ready."""

_NEW: Final = timedelta(seconds=3)

Secrets = tuple[tuple[str, str], ...]
"""Name and UID of each Secret."""


@dataclass(frozen=True, repr=False)
class Payload:
    """Verified code and files. Has no repr, so that code can't slip into a log line."""

    blocks: tuple[bytes, ...] = ()
    files: tuple[bytes, ...] = ()
    secrets: Secrets = ()


@dataclass(frozen=True)
class PayloadProblem:
    """Why there is no payload to run. `secrets` are those that are ours to delete."""

    reason: Reason
    message: str
    secrets: Secrets = ()


@dataclass(frozen=True)
class HeldPayload:
    """A payload that was verified and let go of: it is read again when the code can start."""

    secrets: Secrets


@dataclass(frozen=True)
class Awaited:
    """What an execution may still need, so that nobody deletes it."""

    payload: str = ""
    """Name of the payload, as long as the code may have to be handed over."""
    review: str = ""
    """Name of the Secret with its code, as long as somebody may want to read it before deciding."""
    key: str = ""
    """Name of the key that its payload is sealed with, as long as the code may have to be handed over."""

    @classmethod
    def by(cls, execution: CodeExecution, *, handed_over: bool) -> "Awaited":
        """What an execution needs whose code was handed to its runner, or wasn't."""
        spec, phase, meta = execution.spec, execution.status.phase, execution.metadata
        review = review_name(meta.name, meta.uid) if phase is Phase.AWAITING_APPROVAL else ""
        if phase.terminal or handed_over:
            return cls(review=review)
        ref, sealed = spec.payload_ref, spec.sealed_payload
        return cls(ref.name if ref else "", review, sealed.key_name if sealed else "")


def code_size(spec: CodeExecutionSpec) -> int:
    """Bytes of all blocks and files, as the request says; a payload of another size is refused."""
    return sum(block.size_bytes for block in spec.blocks) + sum(file.size_bytes for file in spec.files or ())


def is_new(execution: CodeExecution, now: datetime) -> bool:
    """True if its payload may be created at this moment, at the same time as the execution itself."""
    created = execution.metadata.creation_timestamp
    return created is not None and now - created < _NEW  # creation times are in whole seconds, rounded down


def may_wait(execution: CodeExecution) -> bool:
    """True if an execution that was accepted may have to wait for long: for a human, a pool or its session."""
    status = execution.status
    queued = bool(status.pool_name) and not status.pod_name
    return queued or status.phase is Phase.AWAITING_APPROVAL or execution.spec.session_ref is not None


def hold(payload: Payload, *, waits: bool) -> Payload | HeldPayload:
    """What to keep in memory of a verified payload whose execution was accepted, and may have to wait for long."""
    size = sum(map(len, (*payload.blocks, *payload.files)))
    return HeldPayload(payload.secrets) if size and (waits or size > _HELD_BYTES) else payload


def open_payload(execution: CodeExecution, sealed: SealedPayload, keys: Keyring) -> Payload | PayloadProblem:
    """Decrypt the payload of an execution, and check that it is exactly what the spec announces."""
    key = keys.find(sealed.key_name)
    if key is None:
        return PayloadProblem(
            Reason.PAYLOAD_UNREADABLE,
            f"spec.sealedPayload.keyName: the operator does not have key {sealed.key_name!r}. Nothing was run. Create "
            "the execution again: the client then uses the current key",
        )
    try:
        data = unseal(sealed, key.private, execution.metadata.namespace, execution.metadata.name)
    except ValueError as error:
        return PayloadProblem(
            Reason.PAYLOAD_UNREADABLE,
            f"spec.sealedPayload.data: not sealed with key {sealed.key_name!r} for an execution of this name in this "
            f"namespace ({error}). Nothing was run. Create the execution with the client, or with spec.payloadRef",
        )
    return _check(execution, [data], ())


def verify_payload(execution: CodeExecution, secrets: Sequence[Mapping[str, Any] | None]) -> Payload | PayloadProblem:
    """Check that Secrets are this execution's payload and hold exactly what the spec announces.

    There is one for each of `spec.payloadRef.parts`, in order; None for one that isn't there.
    """
    first = execution.spec.payload_ref.name if execution.spec.payload_ref else ""
    named = [(payload_name(first, index), secret) for index, secret in enumerate(secrets)]
    ours = tuple((name, secret["metadata"]["uid"]) for name, secret in named if secret and _belongs(secret, execution))
    parts: list[Mapping[str, str]] = []
    for name, secret in named:
        if secret is None:
            return PayloadProblem(
                Reason.PAYLOAD_MISSING,
                f"spec.payloadRef: there is no Secret {name!r} in namespace {execution.metadata.namespace!r}; "
                "create it before or together with the CodeExecution",
                ours,
            )
        if not _belongs(secret, execution):
            return PayloadProblem(
                Reason.PAYLOAD_FOREIGN,
                f"spec.payloadRef: Secret {name!r} is not the payload of this execution; it must have the type "
                f"{PAYLOAD_SECRET_TYPE} and the label {EXECUTION_LABEL}={execution.metadata.name}",
                ours,
            )
        parts.append(secret.get("data") or {})
    return _check(execution, parts, ours)


def _check(execution: CodeExecution, parts: Sequence[Mapping[str, str]], ours: Secrets) -> Payload | PayloadProblem:
    contents = []
    for announced in records.announced(execution.spec):
        content = _joined(parts, announced.key)
        problem = records.payload_mismatch(announced, content)
        if content is None or problem:
            return PayloadProblem(Reason.PAYLOAD_MISMATCH, problem, ours)
        contents.append(content)
    count = len(execution.spec.blocks)
    return Payload(tuple(contents[:count]), tuple(contents[count:]), ours)


def _belongs(secret: Mapping[str, Any], execution: CodeExecution) -> bool:
    labels = secret["metadata"].get("labels") or {}
    return secret.get("type") == PAYLOAD_SECRET_TYPE and labels.get(EXECUTION_LABEL) == execution.metadata.name


def _joined(parts: Sequence[Mapping[str, str]], key: str) -> bytes | None:
    """What the parts hold under a key, or None if none of them has it, or not as base64."""
    pieces = [part[key] for part in parts if key in part]
    try:
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces) if pieces else None
    except ValueError:  # a sealed payload may hold any text
        return None


def build_report_request(owner: CodeExecution | CodeSession) -> dict[str, Any]:
    """What makes the runner say what it has found out; in a stateful session it starts a kernel first."""
    stateful = isinstance(owner, CodeSession) and owner.spec.stateful
    return {"report": True, "kernel": stateful, **process_limits(owner.spec.limits), **_sockets(owner.spec)}


def _sockets(spec: CodeExecutionSpec | CodeSessionSpec) -> dict[str, Any]:
    """Which sockets code may have; without permits nothing is said of it, and it gets none."""
    permits = (spec.egress or ()) if isinstance(spec, CodeExecutionSpec) else ()
    if not permits:
        return {}
    ports = {kind: sorted({permit.port for permit in permits if permit.protocol == kind}) for kind in ("TCP", "UDP")}
    return {"egress": {"tcp": ports["TCP"], "udp": ports["UDP"]}}


def build_warm_up(pool: SandboxPoolSpec) -> dict[str, Any]:
    """The same for a pod that waits in a pool, with the limits that its first job will most likely have."""
    return {"report": True, "kernel": pool.stateful, **process_limits(pool.limits)}


def process_limits(limits: PodLimits) -> dict[str, int]:
    """What a runner is told of the limits of processes."""
    return {"memoryBytes": int(parse_quantity(limits.memory)), "pids": limits.pids}


def build_messages(
    execution: CodeExecution, payload: Payload, *, stateful: bool, fetch_bytes: int
) -> tuple[dict[str, Any], ...]:
    """What the runner is told: the files, in pieces, then the job. For the form see `operator/sandbox/runner.py`.

    Raises:
        UnicodeDecodeError: never for blocks that a client made, which are text; the caller treats it as a fault.
    """
    spec = execution.spec
    job = {
        "id": execution.metadata.uid,
        "session": spec.session_ref is not None,
        "stateful": stateful,
        "blocks": [
            {
                "path": block.filename or default_file_name(block.language, block.sha256),
                "command": list(LANGUAGES[block.language].command),
                "language": block.language,
                "code": code.decode(),
                "sha256": block.sha256,
            }
            for block, code in zip(spec.blocks, payload.blocks, strict=True)
        ],
        "timeoutSeconds": spec.timeout_seconds,
        "outputBytes": spec.limits.output_bytes,
        "fetchBytes": fetch_bytes,
        **process_limits(spec.limits),
        **_sockets(spec),
        "artifacts": spec.artifacts.dump(),
    }
    puts = (
        {"put": file.path, "data": base64.b64encode(piece).decode(), "append": start > 0}
        for file, content in zip(spec.files or (), payload.files, strict=True)
        for start, piece in _pieces(content)
    )
    return (*puts, job)


def _pieces(content: bytes) -> Iterator[tuple[int, bytes]]:
    """At least one, so that an empty file is a file, too."""
    for start in range(0, max(1, len(content)), PIECE_BYTES):
        yield start, content[start : start + PIECE_BYTES]
