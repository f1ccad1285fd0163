"""Small valid objects for tests; a test names only what it is about."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from image_release.signing import SigningKey

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeExecutionStatus,
    CodeSession,
    CodeSessionStatus,
    ConditionType,
    EgressProof,
    EgressVerdict,
    ExecutionApproval,
    ExecutionPolicySpec,
    Phase,
    SessionPhase,
    condition,
)
from codeexec_api.names import (
    API_VERSION,
    EXECUTION_LABEL,
    PAYLOAD_SECRET_TYPE,
    SANDBOX_CONTAINER,
    block_key,
    file_key,
    pod_name,
)
from codeexec_api.packing import pack
from codeexec_api.scheduling import PLAIN
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.egress import Target
from codeexec_operator.core.observed import SessionView
from codeexec_operator.core.observed_pod import PodLink, PodView, RunnerView, Sandbox
from codeexec_operator.core.output_parts import OutputPart, OutputParts
from codeexec_operator.core.output_place import CONFIG_MAPS, OutputPlace
from codeexec_operator.core.payload import Payload
from codeexec_operator.core.readiness import readiness
from codeexec_operator.core.transcript import Transcript

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
IMAGE = "registry.example/sandbox@sha256:" + "a" * 64
OTHER_IMAGE = "registry.example/other@sha256:" + "b" * 64
A_SIGNING_KEY = SigningKey(ec.derive_private_key(1, ec.SECP256R1()))
"""For images. Signatures are the same each time."""
ANOTHER_SIGNING_KEY = SigningKey(ec.derive_private_key(2, ec.SECP256R1()))
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
SESSION_UID = "3f333df6-90a4-4fda-8dd3-9485d27cee36"
SECRET_UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
AGENT = "system:serviceaccount:agents:builder"
"""Who asks, as the API server knows them."""
APPROVER = "anna@example.org"
CODE = b"print(1)\n"
SECRETS = (("run-1", SECRET_UID),)
PAYLOAD = Payload((CODE,), (), SECRETS)
"""What `a_secret` holds, for `an_execution`."""
SESSION_REF = {"sessionRef": {"name": "work-1"}}
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


def a_raw_source(name: str = "data", *, config_map: bool = False) -> dict[str, Any]:
    """What is mounted, as it stands in YAML."""
    return {"configMap": {"name": name}} if config_map else {"persistentVolumeClaim": {"claimName": name}}


def a_raw_mount(name: str = "data", source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "mountPath": f"/mnt/{name}", **(source or a_raw_source())}


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


SESSION_POD = "work-1-3f333df6"


def a_status(phase: Phase = Phase.PENDING, **changes: Any) -> CodeExecutionStatus:
    """A status as the operator has written it on the way to this phase."""
    past: dict[str, Any]
    if phase is Phase.PENDING:
        return CodeExecutionStatus(**changes)
    if phase in (Phase.AWAITING_APPROVAL, Phase.APPROVED):
        past = {"phase": phase, "observed_generation": 1, "reason": phase.value, "message": "asked for approval"}
        return CodeExecutionStatus(**{**past, **changes})
    accepted = condition(ConditionType.ACCEPTED, holds=True, reason="PodRequested", message="", now=NOW, generation=1)
    past = {
        "conditions": (accepted,),
        "observed_generation": 1,
        "image": IMAGE,
        "pod_name": "run-1-0f8fad5b",
    }
    if phase not in (Phase.STARTING, Phase.EXPIRED):
        past["started_at"] = NOW
    if phase.terminal:
        past["finished_at"] = NOW
    return CodeExecutionStatus(**{"phase": phase, **past, **changes})


def an_execution(
    *, phase: Phase = Phase.PENDING, status: Mapping[str, Any] | None = None, name: str = "run-1", **spec: Any
) -> CodeExecution:
    in_session = {"pod_name": SESSION_POD} if phase is Phase.RUNNING and spec.get("sessionRef") else {}
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
            "status": a_status(phase, **{**in_session, **(status or {})}),
        }
    )


def an_approval(
    name: str = "decision-1",
    *,
    grants: Sequence[tuple[str, str]] = (("spec.limits.memory", "2Gi"),),
    created: datetime = NOW,
    uid: str = UID,
    requested_by: str = AGENT,
    **spec: Any,
) -> ExecutionApproval:
    """A decision about `an_execution` that AGENT has requested: it is approved for an hour, unless told otherwise."""
    decided: dict[str, Any] = {"decision": "Approve", "approver": APPROVER} | spec
    if decided["decision"] == "Approve":
        granted = [{"field": field, "value": value} for field, value in grants]
        decided = {"grants": granted, "expiresAt": NOW + timedelta(hours=1)} | decided
    return ExecutionApproval.model_validate(
        {
            "metadata": {"name": name, "namespace": "codeexec-sandbox", "creationTimestamp": created},
            "spec": {"executionRef": {"name": "run-1", "uid": uid, "requestedBy": requested_by}} | decided,
        }
    )


def a_session_status(phase: SessionPhase = SessionPhase.PENDING, **changes: Any) -> CodeSessionStatus:
    """A status as the operator has written it on the way to this phase."""
    if phase is SessionPhase.PENDING:
        return CodeSessionStatus(**changes)
    kinds = [ConditionType.ACCEPTED] + [ConditionType.EGRESS_CLOSED] * (phase is not SessionPhase.STARTING)
    past: dict[str, Any] = {
        "conditions": tuple(
            condition(kind, holds=True, reason="PodRequested", message="", now=NOW, generation=1) for kind in kinds
        ),
        "image": IMAGE,
        "pod_name": SESSION_POD,
    }
    if phase is not SessionPhase.STARTING:
        proof = EgressProof(verdict=EgressVerdict.CLOSED, checked_at=NOW)
        past |= {"started_at": NOW, "last_used_at": NOW, "node_name": "node-1", "egress_proof": proof}
        past |= {"layers": ("NetworkPolicy", "Seccomp"), "image_id": "sha256:1"}
    if phase.terminal:
        past |= {"ended_at": NOW, "reason": "EndRequested", "message": "ended on request (spec.ended)"}
    return CodeSessionStatus(**{"phase": phase, **past, **changes})


def a_session(
    *, phase: SessionPhase = SessionPhase.PENDING, status: Mapping[str, Any] | None = None, **spec: Any
) -> CodeSession:
    return CodeSession.model_validate(
        {
            "metadata": {
                "name": "work-1",
                "namespace": "codeexec-sandbox",
                "uid": SESSION_UID,
                "resourceVersion": "7",
                "generation": 1,
                "creationTimestamp": NOW,
            },
            "spec": {"source": {"agent": "tester"}} | spec,
            "status": a_session_status(phase, **(status or {})),
        }
    )


def a_view(
    phase: SessionPhase = SessionPhase.READY,
    *,
    sandbox: Sandbox | None = None,
    turn: bool = True,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> SessionView:
    """A session that code can run in, unless told otherwise, as an execution sees it."""
    return SessionView(a_session(phase=phase, status=status, **spec), sandbox or a_sandbox(), turn)


def a_secret(blocks: Sequence[bytes] = (CODE,), files: Sequence[bytes] = (), **changes: Any) -> dict[str, Any]:
    """A payload Secret as the API server returns it."""
    contents = {block_key(index): code for index, code in enumerate(blocks)}
    return a_part(contents | {file_key(index): content for index, content in enumerate(files)}, **changes)


def a_part(contents: Mapping[str, bytes], *, uid: str = SECRET_UID, **changes: Any) -> dict[str, Any]:
    """One Secret of a payload as the API server returns it."""
    return {
        "metadata": {"name": "run-1", "uid": uid, "labels": {EXECUTION_LABEL: "run-1"}},
        "type": PAYLOAD_SECRET_TYPE,
        "data": {key: base64.b64encode(content).decode() for key, content in contents.items()},
    } | changes


def a_pod(**changes: Any) -> PodView:
    """A sandbox pod, running unless told otherwise."""
    return PodView(**{"running": True, "node_name": "node-1", "egress_targets": frozenset({TARGET}), **changes})


def a_raw_pod(
    record: CodeExecution | CodeSession, *, name: str = "", owner: str = "", version: int = 5, **metadata: Any
) -> dict[str, Any]:
    """The own pod of a record, or another pod of the record, or one of another owner. The pod runs."""
    meta = record.metadata
    controller = {"apiVersion": API_VERSION, "uid": owner or meta.uid, "controller": True}
    named = {"name": name or pod_name(meta.name, meta.uid), "namespace": meta.namespace, "labels": {}}
    return {
        "metadata": {**named, "resourceVersion": str(version), "ownerReferences": [controller], **metadata},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "containerStatuses": [{"name": SANDBOX_CONTAINER, "state": {"running": {}}}]},
    }


OPEN = frozenset({PLAIN})
"""To pods of which no RuntimeClass chooses the nodes."""
TARGET = Target("api-server", "10.96.0.1", 443)
CLUSTER_VIEW = ClusterView(reached_at={TARGET: NOW + timedelta(hours=1)})
"""A cluster whose API server answers the operator, whenever a test looks."""


BOOT_ID = "81a8169a-9ec8-4d07-81dd-8a28571e072d"
"""Of a kernel that is not the node's."""


def a_report(*, answered: bool = False, targets: Sequence[Target] = (TARGET,), **changes: Any) -> dict[str, Any]:
    """What a runner says when it is asked for its report."""
    egress = [{**target.dump(), "answered": answered} for target in targets]
    report = {"ready": True, "layers": ["Seccomp", "Landlock"], "egress": egress, "kernel": False}
    return report | {"bootId": BOOT_ID, "userNamespace": True} | changes


def a_runner(**report: Any) -> RunnerView:
    """A runner that is connected, and has reported."""
    return RunnerView(link=PodLink.OPEN, ready=readiness(a_report(**report)))


def a_sandbox(**changes: Any) -> Sandbox:
    """A pod that runs, with a runner that is connected and has reported, unless told otherwise."""
    return Sandbox(**{"pod": a_pod(), "requested": True, "runner": a_runner(), **changes})


def numbered(*frames: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Frames with id and sequence number filled in."""
    return [{"id": UID, "seq": number} | frame for number, frame in enumerate(frames)]


def output(text: str, stream: str = "stdout") -> dict[str, Any]:
    return {"stream": stream, "data": text}


def compressed(frame: Mapping[str, Any]) -> dict[str, Any]:
    """The same frame of output or of a file, as a runner sends large ones."""
    frame = dict(frame)
    data = frame.pop("data").encode() if "data" in frame else base64.b64decode(frame.pop("data64"))
    return frame | {"gzip64": base64.b64encode(pack(data)).decode()}


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


def an_artifact(index: int, path: str, content: bytes, **changes: Any) -> dict[str, Any]:
    """A file that is announced."""
    return {
        "artifact": index,
        "path": path,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    } | changes


def a_piece(index: int, content: bytes) -> dict[str, Any]:
    """A piece of a file that was announced."""
    return {"file": index, "data64": base64.b64encode(content).decode()}


def the_end(stdout: str = "", stderr: str = "", **changes: Any) -> dict[str, Any]:
    def totals(text: str) -> dict[str, Any]:
        return {
            "bytes": len(text.encode()),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "truncated": False,
        }

    return {"done": True, "stdout": totals(stdout), "stderr": totals(stderr), "artifactsOmitted": 0} | changes


def a_transcript(*frames: Mapping[str, Any], place: OutputPlace = CONFIG_MAPS) -> Transcript:
    transcript = Transcript.of(place)
    for frame in numbered(*frames):
        transcript.take(frame, UID)
    return transcript


def a_finished_transcript(exit_code: int = 0, reason: str = "Completed", text: str = "") -> Transcript:
    frames = [output(text)] if text else []
    return a_transcript(*frames, block_end(exit_code=exit_code, reason=reason), the_end(text))


def take_part(parts: OutputParts) -> OutputPart | None:
    """The next part of an output, as if it were stored."""
    part = parts.next_part
    if part:
        parts.stored(part)
    return part
