"""The contract of codeexec: kinds, policy, phases and names, shared by the operator and the client.

Needs pydantic only, `codeexec_api.sealing` cryptography, and `codeexec_api.store_files` fsspec.
`python -m codeexec_api` writes the CRDs and the generated documents.
"""

from codeexec_api.approval import Ruling, judge
from codeexec_api.conditions import ConditionType, condition, find_condition, set_condition, true_condition
from codeexec_api.phases import Event, IllegalTransition, Phase, Reason, SessionPhase, advance, advance_session
from codeexec_api.policy import Decision, Verdict, Violation, evaluate
from codeexec_api.v1alpha1.access import ClaimSource, ConfigMapSource, EgressRule, Mount, MountSource, Permit, Selector
from codeexec_api.v1alpha1.approval import ApprovalStatus, ExecutionApproval, ExecutionApprovalSpec, ExecutionRef, Grant
from codeexec_api.v1alpha1.code_rules import CodeAction, CodeFinding, CodeRule
from codeexec_api.v1alpha1.execution import (
    ArtifactRequest,
    Block,
    CodeExecution,
    CodeExecutionSpec,
    File,
    PayloadRef,
    SealedPayload,
    SessionRef,
)
from codeexec_api.v1alpha1.execution_status import (
    ArtifactStatus,
    BlockStatus,
    CodeExecutionStatus,
    OpenedEgress,
    OutputRef,
    OutputRun,
    OutputStoreRef,
    PodReset,
    StreamStatus,
    Summary,
)
from codeexec_api.v1alpha1.limits import Limits, PodLimits, PodRequests, PolicyLimits
from codeexec_api.v1alpha1.manifest import manifest
from codeexec_api.v1alpha1.policy import (
    EgressMode,
    ExecutionPolicy,
    ExecutionPolicySpec,
    ExecutionPolicyStatus,
    PodReuse,
    RecordRetention,
)
from codeexec_api.v1alpha1.pool import SandboxPool, SandboxPoolSpec, SandboxPoolStatus
from codeexec_api.v1alpha1.sandbox import (
    AuditAnchor,
    Boundary,
    Condition,
    EgressProof,
    EgressTarget,
    EgressVerdict,
    Source,
)
from codeexec_api.v1alpha1.session import CodeSession, CodeSessionSpec, CodeSessionStatus, StoredFiles

__all__ = [
    "ApprovalStatus",
    "ArtifactRequest",
    "ArtifactStatus",
    "AuditAnchor",
    "Block",
    "BlockStatus",
    "Boundary",
    "ClaimSource",
    "CodeAction",
    "CodeExecution",
    "CodeExecutionSpec",
    "CodeExecutionStatus",
    "CodeFinding",
    "CodeRule",
    "CodeSession",
    "CodeSessionSpec",
    "CodeSessionStatus",
    "Condition",
    "ConditionType",
    "ConfigMapSource",
    "Decision",
    "EgressMode",
    "EgressProof",
    "EgressRule",
    "EgressTarget",
    "EgressVerdict",
    "Event",
    "ExecutionApproval",
    "ExecutionApprovalSpec",
    "ExecutionPolicy",
    "ExecutionPolicySpec",
    "ExecutionPolicyStatus",
    "ExecutionRef",
    "File",
    "Grant",
    "IllegalTransition",
    "Limits",
    "Mount",
    "MountSource",
    "OpenedEgress",
    "OutputRef",
    "OutputRun",
    "OutputStoreRef",
    "PayloadRef",
    "Permit",
    "Phase",
    "PodLimits",
    "PodRequests",
    "PodReset",
    "PodReuse",
    "PolicyLimits",
    "Reason",
    "RecordRetention",
    "Ruling",
    "SandboxPool",
    "SandboxPoolSpec",
    "SandboxPoolStatus",
    "SealedPayload",
    "Selector",
    "SessionPhase",
    "SessionRef",
    "Source",
    "StoredFiles",
    "StreamStatus",
    "Summary",
    "Verdict",
    "Violation",
    "advance",
    "advance_session",
    "condition",
    "evaluate",
    "find_condition",
    "judge",
    "manifest",
    "set_condition",
    "true_condition",
]
