"""The contract of codeexec: kinds, policy, phases and names, shared by the operator and the client.

Needs pydantic only. `python -m codeexec_api` writes the CRDs and the generated documents.
"""

from codeexec_api.conditions import ConditionType, condition, set_condition
from codeexec_api.phases import Event, IllegalTransition, Phase, Reason, advance
from codeexec_api.policy import Verdict, Violation, evaluate
from codeexec_api.v1alpha1 import (
    Block,
    BlockStatus,
    CodeExecution,
    CodeExecutionSpec,
    CodeExecutionStatus,
    Condition,
    EgressMode,
    EgressProof,
    EgressTarget,
    EgressVerdict,
    ExecutionPolicy,
    ExecutionPolicySpec,
    File,
    Limits,
    OutputRun,
    PayloadRef,
    PolicyLimits,
    Source,
    StreamStatus,
    Summary,
    execution_manifest,
)

__all__ = [
    "Block",
    "BlockStatus",
    "CodeExecution",
    "CodeExecutionSpec",
    "CodeExecutionStatus",
    "Condition",
    "ConditionType",
    "EgressMode",
    "EgressProof",
    "EgressTarget",
    "EgressVerdict",
    "Event",
    "ExecutionPolicy",
    "ExecutionPolicySpec",
    "File",
    "IllegalTransition",
    "Limits",
    "OutputRun",
    "PayloadRef",
    "Phase",
    "PolicyLimits",
    "Reason",
    "Source",
    "StreamStatus",
    "Summary",
    "Verdict",
    "Violation",
    "advance",
    "condition",
    "evaluate",
    "execution_manifest",
    "set_condition",
]
