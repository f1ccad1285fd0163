"""What spans say of an execution, the client's and the operator's alike. Digests, sizes, limits, outcomes; no code.

Names without the prefix `codeexec.` are OpenTelemetry semantic conventions.
"""

from collections.abc import Mapping, Sequence

from codeexec_api.phases import Phase
from codeexec_api.v1alpha1.execution import CodeExecution, CodeExecutionSpec

Value = str | int | Sequence[str] | Sequence[int]
Attributes = Mapping[str, Value]


def request_attributes(namespace: str | None, name: str, spec: CodeExecutionSpec) -> Attributes:
    """What is asked for. Without a namespace no cluster is asked."""
    attributes: dict[str, Value] = {
        "codeexec.execution.name": name,
        "codeexec.code.digest": spec.code_digest,
        "codeexec.code.size_bytes": sum(block.size_bytes for block in spec.blocks),
        "codeexec.block.sizes_bytes": [block.size_bytes for block in spec.blocks],
        "codeexec.block.languages": [block.language for block in spec.blocks],
        "gen_ai.agent.name": spec.source.agent,
        "codeexec.source.agent": spec.source.agent,
        "codeexec.source.executor": spec.source.executor,
        "codeexec.timeout_seconds": spec.timeout_seconds,
        "codeexec.limits.cpu": spec.limits.cpu,
        "codeexec.limits.memory": spec.limits.memory,
        "codeexec.limits.ephemeral_storage": spec.limits.ephemeral_storage,
        "codeexec.limits.pids": spec.limits.pids,
        "codeexec.limits.output_bytes": spec.limits.output_bytes,
        "codeexec.files.count": len(spec.files or ()),
        "codeexec.files.size_bytes": sum(file.size_bytes for file in spec.files or ()),
    }
    if namespace is not None:
        attributes["k8s.namespace.name"] = namespace
    if spec.egress:
        attributes["codeexec.egress.permits"] = [str(permit) for permit in spec.egress]
    if spec.mounts:
        attributes["codeexec.mounts"] = [str(mount) for mount in spec.mounts]
    if spec.session_ref:
        attributes["codeexec.session.name"] = spec.session_ref.name
    return attributes


def outcome_attributes(execution: CodeExecution) -> Attributes:
    """What became of it."""
    status = execution.status
    attributes: dict[str, Value] = {
        "codeexec.execution.uid": execution.metadata.uid,
        "codeexec.phase": status.phase.value,
        "codeexec.reason": status.reason,
        "k8s.pod.name": status.pod_name,
        "codeexec.runtime_class": status.runtime_class_name,
        "codeexec.boundary": status.boundary.value if status.boundary else "",
        "codeexec.layers": list(status.layers),
        "codeexec.egress.verdict": status.egress_proof.verdict.value if status.egress_proof else "",
        "codeexec.stdout.size_bytes": status.stdout.total_bytes if status.stdout else 0,
        "codeexec.stderr.size_bytes": status.stderr.total_bytes if status.stderr else 0,
        "codeexec.artifacts.count": len(status.artifacts),
    }
    if status.code_findings:
        attributes["codeexec.code.findings"] = [one.told for one in status.code_findings]
    if execution.spec.requested_by:
        attributes["codeexec.requested_by"] = execution.spec.requested_by
    if status.approval:
        attributes["codeexec.approval.grants"] = [str(grant) for grant in status.approval.grants]
        attributes["codeexec.approval.decision"] = status.approval.decision
        attributes["codeexec.approval.approver"] = status.approval.approver
    if status.exit_code is not None:
        attributes["process.exit.code"] = status.exit_code
    if error := error_of(execution):
        attributes["error.type"] = error
    return attributes


def error_of(execution: CodeExecution) -> str:
    """Why it is no success; empty if it is one."""
    return "" if execution.status.phase is Phase.SUCCEEDED else execution.status.reason
