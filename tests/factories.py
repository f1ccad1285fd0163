"""Small valid objects for tests; a test names only what it is about."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeExecutionStatus,
    ConditionType,
    ExecutionPolicySpec,
    Phase,
    condition,
)
from codeexec_api.names import EXECUTION_LABEL, PAYLOAD_SECRET_TYPE, block_key, file_key
from codeexec_operator.core.egress import Target
from codeexec_operator.core.observed import PodView
from codeexec_operator.core.surroundings import Surroundings
from codeexec_operator.core.transcript import Transcript

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
IMAGE = "registry.example/sandbox@sha256:" + "a" * 64
OTHER_IMAGE = "registry.example/other@sha256:" + "b" * 64
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
SECRET_UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
CODE = b"print(1)\n"
NO_OUTPUT = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def a_raw_block(content: bytes = CODE, **changes: Any) -> dict[str, Any]:
    return {
        "language": "python",
        "sha256": hashlib.sha256(content).hexdigest(),
        "sizeBytes": len(content),
    } | changes


def a_raw_file(path: str = "data.txt", content: bytes = b"data", **changes: Any) -> dict[str, Any]:
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "sizeBytes": len(content)} | changes


def a_raw_spec(**changes: Any) -> dict[str, Any]:
    """The spec of a CodeExecution as it stands in YAML."""
    return {
        "blocks": [a_raw_block()],
        "payloadRef": {"name": "run-1"},
        "source": {"agent": "tester"},
    } | changes


def a_spec(**changes: Any) -> CodeExecutionSpec:
    return CodeExecutionSpec.model_validate(a_raw_spec(**changes))


def a_policy(**changes: Any) -> ExecutionPolicySpec:
    return ExecutionPolicySpec.model_validate({"images": [IMAGE]} | changes)


def a_status(phase: Phase = Phase.PENDING, **changes: Any) -> CodeExecutionStatus:
    """A status as the operator has written it on the way to this phase."""
    if phase is Phase.PENDING:
        return CodeExecutionStatus(**changes)
    accepted = condition(ConditionType.ACCEPTED, holds=True, reason="PodRequested", message="", now=NOW, generation=1)
    past: dict[str, Any] = {
        "conditions": (accepted,),
        "observed_generation": 1,
        "image": IMAGE,
        "pod_name": "run-1-0f8fad5b",
    }
    if phase is not Phase.STARTING:
        past["started_at"] = NOW
    if phase.terminal:
        past["finished_at"] = NOW
    return CodeExecutionStatus(**{"phase": phase, **past, **changes})


def an_execution(
    *, phase: Phase = Phase.PENDING, status: Mapping[str, Any] | None = None, name: str = "run-1", **spec: Any
) -> CodeExecution:
    return CodeExecution.model_validate(
        {
            "metadata": {
                "name": name,
                "namespace": "codeexec-sandbox",
                "uid": UID,
                "resourceVersion": "7",
                "generation": 1,
                "creationTimestamp": NOW,
            },
            "spec": a_raw_spec(**spec),
            "status": a_status(phase, **(status or {})),
        }
    )


def a_secret(
    blocks: Sequence[bytes] = (CODE,), files: Sequence[bytes] = (), *, execution: str = "run-1", **changes: Any
) -> dict[str, Any]:
    """A payload Secret as the API server returns it."""
    contents = {block_key(index): code for index, code in enumerate(blocks)}
    contents |= {file_key(index): content for index, content in enumerate(files)}
    return {
        "metadata": {"name": execution, "uid": SECRET_UID, "labels": {EXECUTION_LABEL: execution}},
        "type": PAYLOAD_SECRET_TYPE,
        "data": {key: base64.b64encode(content).decode() for key, content in contents.items()},
    } | changes


def a_pod(**changes: Any) -> PodView:
    """A sandbox pod, running unless told otherwise."""
    return PodView(**{"running": True, "node_name": "node-1", "egress_targets": frozenset({TARGET}), **changes})


TARGET = Target("api-server", "10.96.0.1", 443)
SURROUNDINGS = Surroundings(reached_at={TARGET: NOW + timedelta(hours=1)})
"""A cluster whose API server answers the operator, whenever a test looks."""


def readiness(*, answered: bool = False, targets: Sequence[Target] = (TARGET,)) -> dict[str, Any]:
    """What a runner says when it is asked for its report."""
    egress = [{**target.dump(), "answered": answered} for target in targets]
    return {"ready": True, "layers": ["Seccomp", "Landlock"], "egress": egress}


def frames_to_bytes(*frames: Mapping[str, Any]) -> bytes:
    """Frames as lines, with id and sequence number filled in."""
    return b"".join(
        json.dumps({"id": UID, "seq": number} | frame, ensure_ascii=False).encode() + b"\n"
        for number, frame in enumerate(frames)
    )


def output(text: str, stream: str = "stdout") -> dict[str, Any]:
    return {"stream": stream, "data": text}


def block_end(index: int = 0, exit_code: int = 0, reason: str = "Completed", **changes: Any) -> dict[str, Any]:
    return {
        "block": index,
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": NOW.timestamp(),
        "durationMs": 12,
        "stdoutBytes": 0,
        "stderrBytes": 0,
    } | changes


def the_end(stdout: str = "", stderr: str = "", **changes: Any) -> dict[str, Any]:
    def totals(text: str) -> dict[str, Any]:
        return {"bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}

    return {"done": True, "stdout": totals(stdout), "stderr": totals(stderr)} | changes


def a_transcript(*frames: Mapping[str, Any]) -> Transcript:
    transcript = Transcript()
    transcript.feed(frames_to_bytes(*frames), UID)
    return transcript


def a_ready_transcript(**report: Any) -> Transcript:
    """Of a runner that has been asked for its report, and has no job yet."""
    transcript = Transcript()
    transcript.feed(json.dumps(readiness(**report)).encode() + b"\n", UID)
    return transcript


def a_finished_transcript(exit_code: int = 0, reason: str = "Completed", text: str = "") -> Transcript:
    frames = [output(text)] if text else []
    return a_transcript(*frames, block_end(exit_code=exit_code, reason=reason), the_end(text))
